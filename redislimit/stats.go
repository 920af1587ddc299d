package redislimit

import (
	"time"

	"github.com/stint-go/stint"
)

// Event reports to an operator that the server, or a shard of a cluster, went
// away or came back. Health and Stats report it too.
type Event struct {
	Time time.Time // of the server, as far as this machine knows it

	// Err says why the server counts as away from now on, so that Options.Away
	// holds. It is nil if the server is back: it decides again, and has charged what
	// this machine spent.
	Err error
}

// tell reports that a server went away because of err, or came back if err is nil.
func (l *Limiter) tell(err error, at time.Time) {
	l.events.Lock()
	defer l.events.Unlock()
	if l.opts.OnEvent != nil {
		l.opts.OnEvent(Event{at, err})
	}
}

// Stats are counts since the Limiter was opened.
type Stats struct {
	Trips     int64         // script calls
	Outages   int64         // times that the server, or a shard of a cluster, went away
	Away      time.Duration // time that it was away, until now; the sum over shards
	AwaySince time.Time     // zero if none is away
	AwayShare int64         // calls that AwayShare decided; SpendAll once for each slot
	AwayOpen  int64         // spends that AwayOpen let pass, one for each bucket
	Charged   int64         // debts that ended when the server was back: charged, or dropped as their key is no bucket
	Local     stint.Stats   // of the file at Options.Local, or of memory
}

// Stats returns the counts. It asks no server.
func (l *Limiter) Stats() Stats {
	since, away := l.node.TimeAway()
	s := Stats{
		Trips: l.server.Trips.Load(), Outages: l.node.Aways.Load(), Away: away,
		AwayShare: l.node.Shared.Load(), AwayOpen: l.open.Load(), Charged: l.node.Charged.Load(),
	}
	if since != 0 {
		s.AwaySince = time.Unix(0, since)
	}
	if l.node.Local != nil {
		s.Local = l.node.Local.Stats()
	}
	return s
}
