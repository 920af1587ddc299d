package stint

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/table"
)

// flusher saves changed buckets to the store: once per interval, on request,
// and when the Limiter closes.
type flusher struct {
	directory *directory
	store     Store
	clock     *clock.Clock
	level     Durability // of limits that name none
	interval  time.Duration
	timeout   time.Duration // after which a call of the store is overdue

	mu     sync.Mutex // held during a save, by a flush or a commit
	closed bool       // the store is no longer the Limiter's
	number uint64     // of the save, 1 to 3
	round  int        // of the sweep
	timed  int64      // the last time that was saved
	spare  []Change   // for the next save

	statusMu sync.Mutex
	status   FlushStats
	commit   failure // of the last commit; none once a commit or a flush succeeded
	gone     bool    // the last save returned ErrGone
	saving   watch   // of Store.Save
	upkeep   watch   // of Store.Maintain

	stop, stopped chan struct{}
	events        chan Event    // nil without a listener
	silent        chan struct{} // closed when no more events come
	delivered     chan struct{} // closed after the last event was delivered
}

// newFlusher returns a flusher that runs.
func newFlusher(t *directory, store Store, c *clock.Clock, o Options) *flusher {
	f := &flusher{
		directory: t, store: store, clock: c, level: o.Durability, interval: o.FlushInterval,
		timeout: o.CommitTimeout, saving: watch{what: "a save"}, upkeep: watch{what: "the upkeep of the store"},
		stop: make(chan struct{}), stopped: make(chan struct{}),
		silent: make(chan struct{}), delivered: make(chan struct{}),
	}
	if o.OnEvent != nil {
		f.events = make(chan Event, 64)
		go f.deliver(o.OnEvent)
	} else {
		close(f.delivered)
	}
	go f.run()
	return f
}

// failure is the error of the last attempt, and the time of the first failure
// in a row.
type failure struct {
	err   error
	since time.Time
}

// says returns the failure as an error, or nil if there was none.
func (f failure) says(what string) error {
	if f.err == nil {
		return nil
	}
	return fmt.Errorf("stint: %s since %s: %w", what, f.since.UTC().Format(time.RFC3339), f.err)
}

// longestBackoff is the longest pause after flushes that failed.
const longestBackoff = 30 * time.Second

// run flushes at each tick until stop is closed.
func (f *flusher) run() {
	defer close(f.stopped)
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	var wait, skip time.Duration // the pause after a failure, and what is left of it
	for {
		select {
		case <-f.stop:
			return
		case <-ticker.C:
		}
		if step := f.clock.Follow(); step != 0 {
			f.emit(Event{Kind: ClockStepped, Step: step})
		}
		if skip -= f.interval; skip > 0 {
			continue
		}
		if f.flush(false) != nil {
			wait = min(max(2*wait, f.interval), longestBackoff)
			skip = wait
		} else {
			wait, skip = 0, 0
		}
		f.begin(&f.upkeep)
		f.store.Maintain(time.Unix(0, f.clock.Now())) // Store.Health reports a failure
		f.end(&f.upkeep, nil)
	}
}

// save saves changes for a flush or a commit. mu is held. With no changes it
// only finds out whether the store can save.
func (f *flusher) save(changes []Change) error {
	f.begin(&f.saving)
	err := f.store.Save(changes)
	f.end(&f.saving, err)
	return err
}

// timeOfSave returns the time that each save has besides buckets. The next
// process learns from it whether its clock is behind. mu is held.
func (f *flusher) timeOfSave() Change {
	f.timed = f.clock.Seen()
	return Change{Key{}, f.timed}
}

// beginClock lets c go on from the last save if the wall clock is wrong. It
// returns how far a wall clock that is not believed is from the save, or 0.
func beginClock(c *clock.Clock, store Store) (time.Duration, error) {
	seen, err := store.Load(Key{})
	if err != nil {
		return 0, fmt.Errorf("stint: read the time of the last save: %w", err)
	}
	return c.Begin(seen), nil
}

// timeAlone is how often the time is saved without buckets, while the wall clock
// is not believed. The clock counts only uptime then, and the next boot would
// lose uptime that is not saved.
const timeAlone = int64(time.Minute)

// timeDue reports whether the time is saved even without buckets. mu is held.
func (f *flusher) timeDue(all bool) bool {
	return f.clock.Health() != nil && (all || f.clock.Now()-f.timed >= timeAlone)
}

// maxSave is about how many buckets one save writes. Commits go on between the
// saves of a larger flush.
const maxSave = 1 << 17

// flush saves the dirty buckets. If all is set, it also saves buckets that need
// not survive a crash, and exact TATs in place of leases. Close, Flush and
// evictOne set it.
func (f *flusher) flush(all bool) error {
	_, err := f.flushParts(all)
	return err
}

// flushParts is flush. It also returns the commits of the buckets that it left
// out.
func (f *flusher) flushParts(all bool) (skipped []*batch, err error) {
	var errs []error
	for next, first := 0, true; next >= 0; first = false {
		var part []*batch
		f.mu.Lock()
		next, part, err = f.flushPartLocked(all, next, first)
		f.mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		}
		skipped = append(skipped, part...)
	}
	if errs == nil {
		f.recovered()
	}
	return skipped, errors.Join(errs...)
}

// flushAndWait saves everything spent so far, and waits for the commits that
// save a part of it.
func (f *flusher) flushAndWait() error {
	// The second flush, or a later commit, saves tokens that were spent after
	// the bucket joined a commit.
	for second := range 2 {
		skipped, err := f.flushParts(true)
		for _, b := range skipped {
			<-b.Done()
			if second == 1 {
				err = errors.Join(err, b.Err())
			}
		}
		if err != nil || skipped == nil {
			return err
		}
	}
	return nil
}

// flushPartLocked saves the dirty buckets of shard number from and later ones,
// until they fill one save. It returns the number to go on with, or -1.
func (f *flusher) flushPartLocked(all bool, from int, first bool) (next int, skipped []*batch, err error) {
	if f.closed {
		return -1, nil, ErrClosed
	}
	f.number = f.number%3 + 1
	f.directory.saving.Store(f.number << table.SaveShift)
	defer f.directory.saving.Store(0)

	begun := time.Now()
	c := collector{now: f.clock.Now(), all: all, level: f.level, save: f.number << table.SaveShift, changes: f.spare}
	defer func() {
		clear(c.changes)
		f.spare = c.changes[:0]
	}()
	if first {
		f.sweep(&c)
	}
	next = f.directory.eachFrom(from, func(s *shard) bool {
		c.collectLocked(s)
		return len(c.changes) < maxSave
	})
	n := len(c.changes)
	if n == 0 && !first {
		return next, c.skipped, nil
	}
	if n > 0 || first && f.timeDue(all) {
		c.changes = append(c.changes, f.timeOfSave())
	}
	err = f.save(c.changes)
	if n > 0 && next < 0 && err == nil {
		err = f.save(nil) // finds out whether the file is still at its path
	}
	for _, change := range c.changes[:n] {
		if err != nil || change.TAT == 0 || change.Key.Name == Unknown {
			f.directory.saved(change, err, c.now)
		}
	}
	if n > 0 || err != nil {
		f.record(n, time.Since(begun), err)
	}
	return next, c.skipped, err
}

// sweepRounds is the number of flushes in which every shard is swept once.
const sweepRounds = 64

// sweep looks for full buckets in some of the shards, and deletes the holds
// that have ended.
func (f *flusher) sweep(c *collector) {
	f.round++
	f.directory.each(func(s *shard) {
		if int(s.order)%sweepRounds == f.round%sweepRounds {
			s.expireLocked(c.now)
		}
		for key, g := range s.gates {
			if g.hold != 0 && g.hold <= c.now {
				g.hold, g.unsaved = 0, true
			}
			if g.unsaved {
				c.changes = append(c.changes, Change{holdKey(key), g.hold})
			}
			s.tidyGateLocked(key, g, c.now)
		}
	})
}

// holdKey is the key under which the store has a bucket's hold.
func holdKey(key Key) Key { return Key{Unknown, key.String()} }

// expireLocked removes full buckets, and marks stored ones so that the flush
// deletes them. Buckets that only a Check has clamped stay until they are
// evicted, because the store's TAT may be ahead.
func (s *shard) expireLocked(now int64) {
	s.Each(func(i uint32, b table.Slot) table.Outcome {
		switch {
		case b.TAT() > now || b.Has(table.Pending|table.Clamped) || s.gateOfLocked(b) != nil:
		case b.Has(table.Stored):
			s.MarkDirty(i)
		default:
			s.removeLocked(i)
			return table.Removed
		}
		return table.Done
	})
	s.Shrink()
}

// collector gathers the changes of a save.
type collector struct {
	now     int64
	all     bool
	level   Durability
	save    uint64 // number of the save, in table.SaveMask
	changes []Change
	ids     *strings.Builder // of changes: many share an allocation
	skipped []*batch         // commits of buckets that were left out
}

// key returns the key of a slot, which may move before the save.
func (c *collector) key(b table.Slot) Key {
	id := b.ID()
	if c.ids == nil || c.ids.Len()+len(id) > c.ids.Cap() {
		c.ids = new(strings.Builder)
		c.ids.Grow(max(len(id), min(24*len(c.changes), 32<<10)))
	}
	begin := c.ids.Len()
	c.ids.Write(id)
	return Key{Name(b.Name()), c.ids.String()[begin:]}
}

// collectLocked takes over the dirty buckets of a shard.
func (c *collector) collectLocked(s *shard) {
	s.EachDirty(c.all, func(i uint32, b table.Slot) table.Outcome {
		if b.Has(table.Pending) {
			c.skipped = append(c.skipped, s.pendingLocked(b).batch)
			return table.Again
		}
		tat := s.tailLocked(b)
		switch past := tat <= c.now; {
		case past && !b.Has(table.Stored) && s.gateOfLocked(b) == nil:
			s.removeLocked(i)
			return table.Removed
		case past && !b.Has(table.Stored):
			s.MarkClean(i)
			return table.Done
		case past:
			tat = 0
		case !c.all && c.waits(s, b):
			return table.Defer
		}
		s.MarkClean(i)
		b.Clear(table.Covered | table.SaveMask)
		b.Set(table.Stored | c.save)
		c.changes = append(c.changes, Change{c.key(b), tat})
		return table.Done
	})
}

// waits reports whether only a flush of all buckets saves a dirty bucket: it
// need not survive a crash, or the store has a lease for it.
func (c *collector) waits(s *shard, b table.Slot) bool {
	switch cmp.Or(s.limits.rules[b.Rule()].limit.Durability, c.level) {
	case Memory:
		return !b.Has(table.Flush)
	case Leased:
		return b.Has(table.Covered)
	}
	return false
}

// saved notes how the save of a change ended. If it failed, the bucket is dirty
// again, and a hold stays unsaved. A bucket that was deleted from the store may
// leave memory, too.
func (t *directory) saved(change Change, err error, now int64) {
	key := change.Key
	isHold := key.Name == Unknown
	if isHold {
		held, keyErr := ParseKey(key.ID)
		if keyErr != nil {
			return
		}
		key = held
	}
	s, h := t.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if isHold {
		g := s.gateLocked(key, h)
		g.unsaved = err != nil || g.hold != change.TAT
		s.tidyGateLocked(key, g, now)
		return
	}
	i, ok := s.findLocked(key, h)
	if !ok {
		return
	}
	b := s.At(i)
	if err != nil {
		s.MarkDirty(i)
	} else if !b.Has(table.Dirty) {
		b.Clear(table.Stored)
		if b.TAT() <= now && !b.Has(table.Pending) && s.gateOfLocked(b) == nil {
			s.removeLocked(i)
		}
	}
}
