package redislimit

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// Event reports to an operator that the server, or a shard of a cluster, went
// away or came back. Health and Stats report it too.
type Event struct {
	Kind EventKind
	Time time.Time // of the server, as far as this machine knows it
	Err  error     // of ServerAway: why it counts as away
}

// EventKind says what an Event is about.
type EventKind uint8

// The kinds of events.
const (
	ServerAway EventKind = iota + 1 // Options.Away holds from now on
	ServerBack                      // it decides again, and has charged what this machine spent
)

// String returns what happened, in two words.
func (k EventKind) String() string {
	switch k {
	case ServerAway:
		return "server away"
	case ServerBack:
		return "server back"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

func (l *Limiter) tell(e Event) {
	l.events.Lock()
	defer l.events.Unlock()
	if l.opts.OnEvent != nil {
		l.opts.OnEvent(e)
	}
}

// Stats are counts since the Limiter was opened.
type Stats struct {
	Trips     int64         // script calls
	Aways     int64         // times that the server, or a shard of a cluster, went away
	Away      time.Duration // time that it was away, until now; the sum over shards
	AwaySince time.Time     // zero if none is away
	Share     int64         // calls decided with this machine's share; SpendAll once for each slot
	Open      int64         // spends that AwayOpen let pass, one for each bucket
	Charged   int64         // buckets whose debt ended when the server was back: it was charged, or refused
	Local     stint.Stats   // of the file at Options.Local, or of memory
}

// counts are what Stats reports.
type counts struct{ trips, aways, away, here, open, charged atomic.Int64 }

// Stats returns the counts. It asks no server.
func (l *Limiter) Stats() Stats {
	c := &l.stats
	s := Stats{
		Trips: c.trips.Load(), Aways: c.aways.Load(), Away: time.Duration(c.away.Load()),
		Share: c.here.Load(), Open: c.open.Load(), Charged: c.charged.Load(),
	}
	now := instant(l.Now())
	for _, o := range l.outages() {
		if o.away.Load() {
			s.Away += time.Duration(max(0, now-o.since.Load()))
		}
	}
	if since := l.awaySince(); since != 0 {
		s.AwaySince = time.Unix(0, since)
	}
	if l.home != nil {
		s.Local = l.home.l.Stats()
	}
	return s
}
