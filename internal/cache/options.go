// Package cache is the write-back cache of a Limiter: the TATs of buckets in
// memory, and when and how they reach the store. A TAT (theoretical arrival time)
// is the instant at which a bucket will be full again, in Unix nanoseconds.
//
// The package knows the rules of buckets, and decides nothing: its caller locks a
// shard, with LockFast if the bucket must be in memory, or else with LockFound,
// which loads it. The caller decides, writes the new TAT, and asks SubmitLocked what
// the store needs before the answer. commit.go tells what follows, and flush.go how
// the rest reaches the store. What an operator should hear goes through the functions
// of Tell.
//
// Locks, in this order: the flusher's mu, the directory's mu, the mu of shards by
// their Order, and the mutex of the group commit. All other mutexes come last, and
// none is held while another one is taken.
package cache

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/queue"
)

// Key is a bucket: the number of its Name, and its id.
type Key struct {
	Name uint16
	ID   string
}

// Change is the change that one call made to one bucket, or to its hold.
type Change struct {
	Key   Key
	Shard *Shard
	Hash  uint64

	From, To        int64         // TAT in the slot, or end of the hold
	Given           gcra.Level    // of the caller's own limit; 0: that of the bucket's rule
	Turn            *queue.Turn   // that joined the queue
	Turns           []*queue.Turn // that a reset took out of the queue
	Counted         int           // as allowed, so many times in CountLocked
	Builds          bool          // the answer builds on the TAT, even if From is To
	SurvivesFailure bool          // of the commit

	isHold  bool
	limits  int  // how many of pending.limits came before it
	renewal bool // of a lease: no caller waits
}

// work has what one commit saves, and the changes that it finishes.
type work struct {
	saves   []format.Entry
	changes []Change
	holds   map[Key]savedHold
}

// savedHold is the newest hold of a bucket in a commit. A Store may reorder
// saves, so after the save its index is no longer valid.
type savedHold struct {
	index int // in work.saves
	end   int64
}

// Batch is the work of one commit.
type Batch = groupcommit.Batch[work]

// pending is a bucket in a commit that has not ended.
type pending struct {
	key             Key
	batch           *Batch // newest commit of the bucket
	index           int    // of its entry in work.saves, until the save
	tat             int64  // that the batch saves
	entries         int    // changes of the batch to this bucket
	limits          []limitChange
	survivesFailure bool // a failed commit takes nothing back: TAT was lowered since, or an answer builds on it
}

// limitChange is a change of the limit of a pending bucket.
type limitChange struct {
	convert func(tat int64) int64
	noQueue bool
}

// Store has the functions of the store. The last three are nil if it has
// neither a clock nor a file.
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
	Level       gcra.Level    // of rules that name none
	MaxResident int           // most buckets in memory
	Interval    time.Duration // of flushes
	Timeout     time.Duration // after which a caller no longer waits for the store
}

// ErrNotDurable: the store could not make a change durable.
var ErrNotDurable = errors.New("stint: not durable")

// ErrFull: memory holds MaxResident buckets, and none could be written to the
// store to make space.
var ErrFull = errors.New("stint: too many buckets")

// holds is the Name of the entries of holds.
const holds = 0

// BeginClock lets a clock go on from the store's time if the wall clock is
// wrong. It returns by how much a wall clock is off that is not trusted, or how far
// the store's time goes back to one that is.
func (s *Store) BeginClock(c *clock.Clock) (wrong, back time.Duration, err error) {
	seen, err := s.Load(holds, "")
	if err != nil {
		return 0, 0, fmt.Errorf("stint: read the time of the last save: %w", err)
	}
	var was clock.Record
	if s.LoadClock != nil {
		record, err := s.LoadClock()
		if err != nil {
			return 0, 0, fmt.Errorf("stint: read the record of the clock: %w", err)
		}
		if was, err = clock.Unmarshal(record); err != nil {
			return 0, 0, fmt.Errorf("%w: %w", format.ErrCorrupt, err)
		}
	}
	wrong, back = c.Begin(seen, was)
	return wrong, back, nil
}

// saveClock saves what the next process has to know about the clock. It comes
// before each save, because the time of a save means something only together
// with the boot in which it was made.
func (s *Store) saveClock(c *clock.Clock) error {
	record, unsaved := c.Record()
	if !unsaved || s.SaveClock == nil {
		return nil
	}
	if err := s.SaveClock(record.Marshal()); err != nil {
		return fmt.Errorf("save the record of the clock: %w", err)
	}
	c.Saved(record)
	return nil
}
