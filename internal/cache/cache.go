// Package cache is the write-back cache of a Limiter: the TATs of buckets in
// memory, and when and how they reach the store. A TAT (theoretical arrival time)
// is the instant at which a bucket will be full again, in Unix nanoseconds.
//
// The package knows numbers, ids, TATs and levels of durability. It does not know
// what a limit is, and it decides nothing: its caller locks a Shard, finds a
// bucket in it, decides, writes the new TAT, and asks SubmitLocked what the store
// needs before the answer. commit.go tells what follows, and flush.go how the rest
// reaches the store. What an operator should hear goes through the functions of
// Tell.
//
// Locks, in this order: the flusher's mu, the directory's mu, the Mu of shards by
// their Order, and the mutex of the group commit. All other mutexes come last, and
// none is held while another one is taken.
package cache

import (
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/since"
)

// Key is a bucket: the number of its Name, and its id.
type Key struct {
	Name uint16
	ID   string
}

// Level is what a change waits for, and so what a crash may forget.
type Level uint8

// The levels, weakest first. 0 means the default of Options.
const (
	Memory  Level = iota + 1 // a crash may forget everything
	Flushed                  // a crash may forget what changed since the last flush
	Leased                   // a crash forgets nothing, and may withhold one lease of each bucket
	Synced                   // a crash forgets nothing and withholds nothing
)

// Limits are the rules in force in a shard. The package asks them two numbers,
// never on the fast path.
type Limits interface {
	// Rule returns the level of a rule, 0 if it names none, and its leases.
	Rule(rule uint32) (Level, *Lease)
}

// NoLease is the last of the rules without arithmetic, which have no lease and
// no lane.
const NoLease = 1

// Store has the functions of the store. The last three may be nil, the clock's
// both or neither.
type Store struct {
	Load      func(name uint16, id string) (tat int64, err error)
	Save      func([]format.Entry) error // may reorder the entries
	All       func(name uint16) iter.Seq2[format.Entry, error]
	Maintain  func(now time.Time) error
	LoadClock func() ([]byte, error)
	SaveClock func(record []byte) error
	Room      func() int // how many buckets it can save before a save has to wait
}

// Tell has the functions that a Cache calls when something happens. They are
// called with locks held, so they must return at once, and not call the Cache.
type Tell struct {
	Failed    func(err error)             // a flush failed, the first in a row
	Recovered func()                      // a flush succeeded after one that failed
	Overdue   func(err error)             // a call of the store takes longer than Timeout
	Ended     func(err error)             // a call that was overdue ended
	Called    func(saved bool, err error) // a call of the store ended; saved: it was Save
	Stepped   func(step time.Duration)    // the wall clock was set
}

// Options are the options of New. All but Tell are mandatory.
type Options struct {
	Store       Store
	Clock       *clock.Clock
	Tell        Tell
	Level       Level         // of rules that name none
	MaxResident int           // most buckets in memory
	Interval    time.Duration // of flushes
	Timeout     time.Duration // after which a caller no longer waits for the store
}

// ErrNotDurable: the store could not make a change durable.
var ErrNotDurable = errors.New("stint: not durable")

// ErrFull: memory holds MaxResident buckets, and none could be written to the
// store to make space.
var ErrFull = errors.New("stint: too many buckets")

// Cache has the buckets in memory, and what saves them.
type Cache struct {
	directory
	flusher   *flusher
	committer *committer

	loads       atomic.Int64
	loadFailure atomic.Pointer[since.Failure] // of the last load; nil if it succeeded
	closing     sync.Once
	closeErr    error
}

// New returns a Cache with the rules of limits in force. It does nothing by itself
// until Start.
func New(o Options, limits Limits) *Cache {
	c := &Cache{}
	c.directory.init(limits, o.MaxResident)
	c.flusher = newFlusher(&c.directory, o)
	c.committer = newCommitter(c.flusher, o.Timeout)
	return c
}

// Start lets the Cache flush once in each interval. Call it after what
// RestoreHold and MoveBack should do.
func (c *Cache) Start() { go c.flusher.run() }

// Close ends decisions, saves every bucket as it is, and leaves the store alone
// from then on. A second Close returns what the first did.
func (c *Cache) Close() error {
	c.closing.Do(func() {
		close(c.flusher.stop)
		<-c.flusher.stopped
		c.SetLimits(nil, func(s *Shard) { s.Limits = nil })
		c.committer.Close()
		c.closeErr = c.flusher.flush(true)
		c.flusher.mu.Lock()
		defer c.flusher.mu.Unlock()
		c.flusher.closed = true
	})
	return c.closeErr
}

// Load returns the TAT that the store has for a bucket.
func (c *Cache) Load(name uint16, id string) (tat int64, err error) {
	c.loads.Add(1)
	tat, err = c.flusher.store.Load(name, id)
	was := c.loadFailure.Load()
	if err == nil {
		if was != nil {
			c.loadFailure.CompareAndSwap(was, nil)
		}
		return tat, nil
	}
	is := &since.Failure{Err: err, Since: time.Unix(0, c.flusher.clock.Now())}
	if was != nil {
		is.Since = was.Since
	}
	c.loadFailure.CompareAndSwap(was, is) // another load may have ended since
	return 0, fmt.Errorf("stint: %w", err)
}
