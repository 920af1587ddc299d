package cache

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/since"
	"github.com/stint-go/stint/internal/spell"
	"github.com/stint-go/stint/internal/table"
)

// Cache keeps buckets in memory, and saves them.
type Cache struct {
	directory
	flusher *flusher
	commits *groupcommit.Group[work]

	committed   atomic.Int64 // buckets
	leases      atomic.Int64 // written by commits
	loads       atomic.Int64
	loadFailure atomic.Pointer[since.Failure] // of the last load; nil if it succeeded
	closing     sync.Once
	closeErr    error
}

// New returns a Cache with the rules of limits in force. It does not
// flush by itself until Start.
func New(o Options, limits *Limits) *Cache {
	c := &Cache{}
	c.directory.init(limits, o.Clock, o.MaxResident)
	c.flusher = newFlusher(&c.directory, o)
	c.flusher.forAll.run, c.flusher.forSpace.run = c.flusher.flushAndWait, c.flusher.makeSpace
	c.commits = groupcommit.New(o.Timeout, renewalPause, &c.flusher.mu, c.save)
	return c
}

// Begin lets the clock go on from the store's time if the wall clock is wrong,
// and puts the holds of the store in force. It writes nothing. wrong is by how much
// the wall clock is off, if it is not trusted. If back is more than 0, the clock was
// ahead when the buckets were saved, and is correct by now: MoveBack comes next.
func (c *Cache) Begin() (wrong, back time.Duration, err error) {
	wrong, back, err = c.flusher.store.BeginClock(c.flusher.clock)
	if err = errors.Join(err, c.restoreHolds()); err != nil {
		return 0, 0, err
	}
	return wrong, back, nil
}

// restoreHolds puts the holds of the store in force.
func (c *Cache) restoreHolds() error {
	for e, err := range c.flusher.store.All(holds) {
		if err != nil {
			return fmt.Errorf("stint: read the holds: %w", err)
		}
		if e.IsTime() {
			continue
		}
		name, id, err := spell.ParseKey(e.ID)
		if err != nil {
			return fmt.Errorf("%w: a hold on %q", format.ErrCorrupt, e.ID)
		}
		key := Key{name, id}
		s, h := c.shardOf(key)
		g := s.makeGateLocked(key, h)
		g.Hold = max(1, e.TAT) // the first flush deletes those that have ended
		g.saved = g.Hold
	}
	return nil
}

// Start lets the Cache flush once in each interval. Call it after Begin.
func (c *Cache) Start() {
	c.flusher.awaitChange()
	go c.flusher.run()
}

// Close ends decisions, saves every bucket as it is, and does not use the store
// afterwards. A second Close returns what the first did.
func (c *Cache) Close() error {
	c.closing.Do(func() {
		close(c.flusher.stop)
		<-c.flusher.stopped
		c.ReplaceLimits(nil)
		c.commits.Close()
		_, c.closeErr = c.flusher.flush(true, 0)
		c.flusher.mu.Lock()
		defer c.flusher.mu.Unlock()
		c.flusher.closed = true
	})
	return c.closeErr
}

// Held calls f with each bucket that is held or has a queue, until f returns false.
// f gets the end of the hold, or 0, and how many requests wait. No shard is locked
// while f runs. After Close it is not called.
func (c *Cache) Held(f func(key Key, until int64, waiting int) bool) {
	type held struct {
		key     Key
		until   int64
		waiting int
	}
	var found []held
	for s := range c.Shards() {
		s.Lock()
		found = found[:0]
		now := c.flusher.clock.Now()
		for key, g := range s.gates {
			h := held{key: key, waiting: g.Queue.Waiting(now)}
			if g.Hold > now {
				h.until = g.Hold
			}
			if s.Limits != nil && (h.waiting > 0 || h.until != 0) {
				found = append(found, h)
			}
		}
		s.Unlock()
		for _, h := range found {
			if !f(h.key, h.until, h.waiting) {
				return
			}
		}
	}
}

// Fresh calls f with the id of each bucket of a Name whose state the store may
// not have, and of each that is held or has a queue.
func (c *Cache) Fresh(name uint16, f func(id string)) {
	c.Each(func(s *Shard) {
		s.Each(func(_ uint32, b table.Slot) table.Outcome {
			if b.Name() == name && (!b.Has(table.Stored) || s.unsavedLocked(b)) {
				f(string(b.ID()))
			}
			return table.Done
		})
		for key := range s.gates {
			if key.Name == name {
				f(key.ID)
			}
		}
	})
}

// Stats are counts since New, and present sizes.
type Stats struct {
	Resident, Loads, Evictions int64
	Flush, Commit              SaveStats
	Leases                     int64     // that commits wrote
	Saving                     time.Time // when the save under way began, or zero
}

// Stats returns the counts.
func (c *Cache) Stats() Stats {
	st := Stats{
		Resident: c.resident.Load(), Loads: c.loads.Load(), Evictions: c.evicted.Load(),
		Leases: c.leases.Load(),
	}
	commits := c.commits.Stats()
	st.Commit = SaveStats{
		commits.Saves, c.committed.Load(), commits.Failures, commits.Last, commits.Longest, commits.Err,
	}
	f := c.flusher
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	st.Flush, st.Saving = f.status, f.saving.since
	return st
}

// Health returns what is wrong now with the saves and loads, and since when. It
// waits for no call of the store.
func (c *Cache) Health() []error {
	f := c.flusher
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	unsaved := f.failing
	if unsaved.Err == nil {
		unsaved = f.commit
	}
	errs := []error{unsaved.Says("nothing saved"), f.saving.overdue, f.upkeep.overdue}
	if load := c.loadFailure.Load(); load != nil {
		errs = append(errs, load.Says("no bucket loaded"))
	}
	return errs
}

// MoveBack moves all holds, and the buckets of names, back in time, because the
// clock was ahead when they were saved, and is correct by now, so that
// they last no longer than they would have. If more buckets than MaxResident
// are not full, the others stay. move returns where the TAT of a bucket moves to, or
// false if it stays; back is the earlier TAT, or 0 if that has passed.
//
// A crash may come at any time, and nothing may be moved twice. So the first save
// says that holds and buckets are about to be moved, and the second, which moves
// them, also changes the time of the last save.
func (c *Cache) MoveBack(
	by time.Duration, names []uint16, move func(key Key, tat, back int64) (to int64, moves bool),
) {
	f := c.flusher
	now := f.clock.Now()
	var changes []format.Entry
	c.Each(func(s *Shard) {
		for key, g := range s.gates {
			to := movedBack(g.Hold, now, int64(by))
			changes = append(changes, holdEntry(key, to))
			g.Hold, g.unsaved = max(1, to), true
			g.saved = g.Hold // comes back if the commit of a hold fails
		}
	})
	for _, name := range names {
		for e, err := range f.store.All(name) {
			if err != nil || int64(len(changes)) >= f.resident {
				break // the others are cut down when they are loaded
			}
			if to, moves := move(Key{e.Name, e.ID}, e.TAT, movedBack(e.TAT, now, int64(by))); moves {
				e.TAT = to
				changes = append(changes, e)
			}
		}
	}
	if len(changes) == 0 || f.store.SaveClock == nil {
		return
	}
	seen, err := f.store.Load(holds, "")
	if err == nil {
		err = f.store.SaveClock(f.clock.Moving(seen).Marshal())
	}
	if err == nil {
		err = f.store.Save(append(changes, format.Entry{TAT: now}))
	}
	if err == nil {
		f.store.saveClock(f.clock) // the record is of another time, and perhaps of another boot
	}
}

// movedBack returns the instant that is so many nanoseconds earlier, or 0 if that
// has passed.
func movedBack(tat, now, by int64) int64 {
	if tat -= by; tat <= now {
		return 0
	}
	return tat
}
