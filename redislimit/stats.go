package redislimit

import (
	"time"
)

// Event reports to an operator that the server, or a shard of a cluster, went
// away or came back. Health and Stats report it too.
type Event struct {
	Time time.Time // of the server, as far as this machine knows it

	// Err says why the server counts as away from now on, so that Options.Away
	// decides. It is nil if the server is back.
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

	// AwayDecisions counts decisions of Options.Away: one for each bucket of a call.
	AwayDecisions int64
}

// Stats returns the counts. It asks no server.
func (l *Limiter) Stats() Stats {
	since, away := l.watch.TimeAway()
	return Stats{
		Trips: l.server.Trips.Load(), Outages: l.watch.Outages.Load(), Away: away, AwaySince: since,
		AwayDecisions: l.awayDecisions.Load(),
	}
}
