package away

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// Config are the settings of a Watch, and the functions that it calls.
type Config struct {
	Server  Server
	Learn   func() error                  // asks what the server is
	Decides bool                          // decisions are made without a server that is away
	Elapsed func() int64                  // since some instant, never set back or ahead
	Prefix  string                        // of the keys
	Key     func(stint.Key) string        // of a bucket at the server
	Begin   func(f func()) bool           // starts a goroutine, unless closed
	Closing chan struct{}                 // closed when the probes must end
	Tell    func(err error, at time.Time) // an outage began because of err, or ended: nil
	Note    func(error)                   // what is wrong now
}

// Server is what this package uses of a script.Server.
type Server interface {
	Time() time.Time
	IsCluster() bool
	Shards() (*[16384]string, error)
	Probe(key string) error
}

// Watch notices which servers of a Limiter are away.
type Watch struct {
	Config

	Whole  *Outage                        // of a single server, and of a cluster until its shards are known
	shards atomic.Pointer[[16384]*Outage] // of a cluster, by slot; nil until they are known

	mu   sync.Mutex    // held while outages begin, end, or are made
	back chan struct{} // closed when the next outage ends; guarded by mu

	under   atomic.Int32 // outages under way: above 0 as long as any server is away
	gone    atomic.Int64 // nanoseconds of those that have ended
	Outages atomic.Int64 // those that have begun
}

// New returns a Watch of a server that is not away.
func New(c Config) *Watch {
	w := &Watch{Config: c, back: make(chan struct{})}
	w.Whole = &Outage{watch: w}
	return w
}

// Under reports whether any outage is under way.
func (w *Watch) Under() bool { return w.under.Load() > 0 }

// Back returns a channel that is closed when the next outage ends.
func (w *Watch) Back() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.back
}

// TimeAway returns when the server went away, or the first of the shards that are away,
// and the zero time if none is. It also returns the time of all outages, until now.
func (w *Watch) TimeAway() (since time.Time, total time.Duration) {
	now := w.Elapsed()
	total = time.Duration(w.gone.Load())
	for _, o := range w.All() {
		if !o.away.Load() {
			continue
		}
		total += time.Duration(max(0, now-o.began.Load()))
		if at := time.Unix(0, o.since.Load()); since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since, total
}
