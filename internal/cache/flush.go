package cache

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// longestBackoff is the longest pause after flushes that failed.
const longestBackoff = 30 * time.Second

// quietPause is how long after the first change that follows a quiet interval
// a flush begins: what one request changes shares the save.
const quietPause = 5 * time.Millisecond

// awaitChange makes the next change begin a flush. With a simulated clock it does
// nothing: a test says when to flush, or waits for the interval.
func (f *flusher) awaitChange() {
	if !f.clock.Simulated() {
		f.directory.bell.Set()
	}
}

// run flushes once in each interval until stop is closed. After an interval in
// which it had nothing to save, the first change rings the bell and is saved at once,
// unless its bucket will be full before the next flush. The next flush comes an
// interval later, so no interval has two flushes that save.
func (f *flusher) run() {
	defer close(f.stopped)
	bell := f.directory.bell
	next := time.NewTimer(f.interval)
	defer next.Stop()
	var wait, skip time.Duration // the pause after a failure, and what is left of it
	for hurried := false; ; {
		select {
		case <-f.stop:
			return
		case <-bell.C:
			next.Reset(min(quietPause, f.interval))
			hurried = true
			continue
		case <-next.C:
		}
		next.Reset(f.interval)
		if step := f.clock.Follow(); step != 0 {
			f.tell.Stepped(step)
		}
		if skip -= f.interval; skip > 0 {
			continue
		}
		var soon time.Duration
		if hurried {
			soon = f.interval // a flush at a fixed instant would have found them full
		} else {
			f.awaitChange() // before the flush, which may have passed a bucket that changes now
		}
		hurried = false
		before := f.saved()
		_, err := f.flush(false, soon)
		if err != nil || f.saved() > before {
			bell.Unset()
		}
		if err != nil {
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

// saved returns how many buckets flushes have saved so far.
func (f *flusher) saved() int64 {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	return f.status.Buckets
}

const (
	// maxSave is about how many buckets one save writes. Commits go on between the
	// saves of a larger flush.
	maxSave = 1 << 17

	// crowdedSave is maxSave while memory is nearly full. It is smaller because
	// callers that wait for space wait for one save.
	crowdedSave = 1 << 13

	// trialSave is maxSave for space in memory, after a flush has failed. While the
	// disk fails, each call that waits for space tries again, and a large save that
	// fails takes as long as one that does not.
	trialSave = 1 << 6
)

// saveSize returns about how many buckets the next save has. While the store is
// slow, saves are small, so that callers get space in memory sooner.
func (f *flusher) saveSize() int {
	most := maxSave
	if f.directory.resident.Load() >= f.resident-f.resident/8 {
		most = crowdedSave
	}
	if f.trial {
		most = trialSave
	}
	if f.store.Room != nil {
		most = min(most, f.store.Room())
	}
	return most
}

// flush saves the dirty buckets. If all is set, it also saves buckets that need
// not survive a crash, and exact TATs in place of leases. Close and Flush set
// it. Otherwise it leaves buckets that are full again soon for a later flush. It
// returns the commits of the buckets that it left out.
func (f *flusher) flush(all bool, soon time.Duration) (skipped []*Batch, err error) {
	var errs []error
	for at, first := (place{}), true; !at.end; first = false {
		f.mu.Lock()
		for more := true; more; first = false {
			var part []*Batch
			at, part, err = f.flushPartLocked(all, soon, at, first)
			if err != nil {
				errs = append(errs, err)
			}
			skipped = append(skipped, part...)
			more = at.inside // another flush must not begin in this shard
		}
		f.mu.Unlock()
	}
	if errs == nil {
		f.recovered()
	}
	return skipped, errors.Join(errs...)
}

// Flush saves everything spent before the call, at every level, in a flush that
// begins after it. Calls that come during a flush share the next one. After that
// time it returns an error, and the flush goes on; 0 means no bound.
func (c *Cache) Flush(within time.Duration) error {
	flush := c.flusher.forAll.flush(false)
	var late <-chan time.Time
	if within > 0 {
		timer := time.NewTimer(within)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-flush.done:
		return flush.err
	case <-late:
		return fmt.Errorf("no answer from the store for %v", within)
	}
}

// flushAndWait saves everything spent so far, and waits for the commits that
// save a part of it.
func (f *flusher) flushAndWait() error {
	// The second flush, or a later commit, saves tokens that were spent after
	// the bucket joined a commit.
	for second := range 2 {
		skipped, err := f.flush(true, 0)
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

// flushPartLocked saves dirty buckets, beginning at a place, until they fill one
// save. It returns the place to go on from. If callers wait for space in memory,
// it then evicts at least as many buckets as it has saved, if possible, and more
// while memory is full.
func (f *flusher) flushPartLocked(all bool, soon time.Duration, from place, first bool) (next place, skipped []*Batch, err error) {
	if f.closed {
		return place{end: true}, nil, format.ErrClosed
	}
	defer f.partEnded()
	f.number = f.number%3 + 1
	f.directory.saving.Store(f.number << table.SaveShift)
	defer f.directory.saving.Store(0)

	begun := time.Now()
	c := collector{now: f.clock.Now(), all: all, level: f.level, save: f.number << table.SaveShift, changes: f.spare}
	c.soon = c.now + int64(soon)
	defer func() {
		clear(c.changes)
		f.spare = c.changes[:0]
	}()
	if first {
		f.sweep(&c)
	}
	next = c.collect(f.directory, from, f.saveSize())
	n := len(c.changes)
	if n > 0 || first {
		err = f.saveCollected(&c, n, next.end, first && f.timeDue(all))
		if n > 0 || err != nil {
			f.failed = err != nil
			f.record(n, time.Since(begun), err)
		}
	}
	if err == nil && f.waiting.Load() > 0 {
		f.directory.saving.Store(0) // they are saved
		f.makeSpaceBetween(from, next, c.now, n)
	}
	return next, c.skipped, err
}

// saveCollected saves n changes, and notes how the save ended. withTime adds the
// time even if n is 0.
func (f *flusher) saveCollected(c *collector, n int, last, withTime bool) error {
	if n > 0 || withTime {
		c.changes = append(c.changes, f.timeOfSave())
	}
	err := f.save(c.changes)
	if n > 0 && last && err == nil {
		err = f.save(nil) // finds out whether the file is still at its path
	}
	for _, e := range c.changes { // the Store may have reordered them; one is the time, and no bucket
		if e.Name == holds && e.ID != "" {
			f.directory.holdSaved(c.holds[e.ID], e.TAT, err, c.now)
		} else if e.Name != holds && (err != nil || e.TAT == 0) {
			f.directory.saved(Key{e.Name, e.ID}, err, c.now)
		}
	}
	return err
}

// nextPart returns a channel that is closed when a part of a flush ends. The
// caller has counted itself in waiting.
func (f *flusher) nextPart() <-chan struct{} {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	return f.part
}

// partEnded wakes the callers that wait for space.
func (f *flusher) partEnded() {
	if f.waiting.Load() > 0 {
		f.statusMu.Lock()
		defer f.statusMu.Unlock()
		close(f.part)
		f.part = make(chan struct{})
	}
}

// timeOfSave returns the time, which each save contains besides its buckets. The
// next process learns from it whether its clock is behind. It is the last of the
// changes that save gets. mu is held.
func (f *flusher) timeOfSave() format.Entry {
	if f.store.SaveClock == nil {
		return format.Entry{TAT: f.clock.Seen()}
	}
	return format.Entry{TAT: f.clock.Now()}
}

// timeAlone is how often the time is saved without buckets while the wall clock
// is behind or not believed. The clock then counts only uptime, and the next boot
// would lose the uptime since the last save. For the same reason, a flush of all
// buckets saves the time if the last saved one is this old.
const timeAlone = int64(time.Minute)

// timeDue reports whether the time is saved even without buckets. mu is held.
func (f *flusher) timeDue(all bool) bool {
	_, unsaved := f.clock.Record()
	late := f.clock.Now()-f.timed >= timeAlone
	if all && !f.clock.Simulated() && (unsaved || late) {
		return true
	}
	return f.clock.Wrong() && (all || late)
}

// sweepRounds is the number of flushes in which every shard is swept once.
const sweepRounds = 64

// sweep looks for full buckets in some of the shards, ends the holds whose time
// has passed, and adds to the save the holds that the store does not have.
func (f *flusher) sweep(c *collector) {
	f.round++
	f.directory.Each(func(s *Shard) {
		if int(s.Order)%sweepRounds == f.round%sweepRounds {
			s.expireLocked(c.now)
		}
		for key, g := range s.gates {
			if g.Hold != 0 && g.Hold <= c.now {
				g.Hold, g.unsaved = 0, true
			}
			if g.unsaved && g.commits == 0 { // otherwise a commit saves it
				e := holdEntry(key, g.Hold)
				if c.holds == nil {
					c.holds = make(map[string]Key)
				}
				c.holds[e.ID] = key
				c.changes = append(c.changes, e)
			}
			s.tidyGateLocked(key, g, c.now)
		}
	})
}

// expireLocked removes full buckets that the store does not have, and marks the
// other full ones so that the flush deletes them.
func (s *Shard) expireLocked(now int64) {
	s.Each(func(i uint32, b table.Slot) table.Outcome {
		switch {
		case b.TAT() > now || b.Has(table.Pending) || s.gateOfLocked(b) != nil:
		case b.Has(table.Stored):
			s.MarkDirty(i)
		default:
			s.RemoveLocked(i)
			return table.Removed
		}
		return table.Done
	})
	s.Shrink()
}

// collector gathers the changes of a save.
type collector struct {
	now     int64
	soon    int64 // a bucket that is full by then is left, unless it is full now
	all     bool
	level   gcra.Level
	save    uint64 // number of the save, in table.SaveMask
	changes []format.Entry
	ids     *strings.Builder // of changes: many share an allocation
	holds   map[string]Key   // by the ids of their entries in changes
	skipped []*Batch         // commits of buckets that were left out
}

// id returns the id of a slot, which may move before the save.
func (c *collector) id(b table.Slot) string {
	id := b.ID()
	if c.ids == nil || c.ids.Len()+len(id) > c.ids.Cap() {
		c.ids = new(strings.Builder)
		c.ids.Grow(max(len(id), min(24*len(c.changes), 32<<10)))
	}
	begin := c.ids.Len()
	c.ids.Write(id)
	return c.ids.String()[begin:]
}

// collect copies dirty buckets, beginning at a place, until there are enough for
// a save, and returns the place to go on from. It releases the lock of a shard
// every few buckets, so that decisions wait only for microseconds.
func (c *collector) collect(t *directory, from place, most int) (next place) {
	for next = from; ; next = (place{shard: next.shard + 1}) {
		s, at := t.shardFrom(next.shard)
		if s == nil {
			return place{end: true}
		}
		next.inside = next.inside && next.shard == at
		next.shard = at
		for more := true; more; {
			if next.inside && len(c.changes) >= most {
				return next
			}
			s.Lock()
			if !next.inside {
				s.BeginDirty(c.all)
				next.inside = true
			}
			more = c.collectLocked(s)
			s.Unlock()
		}
		if len(c.changes) >= most {
			return place{shard: at + 1}
		}
	}
}

// collectLocked copies the next few dirty buckets of a shard, marks them clean,
// and reports whether there are more.
func (c *collector) collectLocked(s *Shard) (more bool) {
	return s.NextDirty(func(i uint32, b table.Slot) table.Outcome {
		if b.Has(table.Pending) {
			c.skipped = append(c.skipped, s.pendingLocked(b).batch)
			return table.Again
		}
		tat := s.TailLocked(b)
		switch past := tat <= c.now; {
		case past && !b.Has(table.Stored) && s.gateOfLocked(b) == nil:
			s.RemoveLocked(i)
			return table.Removed
		case past && !b.Has(table.Stored):
			s.MarkClean(i)
			return table.Done
		case past:
			tat = 0
		case tat <= c.soon, !c.all && c.waits(s, b):
			return table.Defer
		}
		s.MarkClean(i)
		b.Clear(table.Covered | table.SaveMask)
		b.Set(table.Stored | c.save)
		c.changes = append(c.changes, format.Entry{Name: b.Name(), ID: c.id(b), TAT: tat})
		return table.Done
	})
}

// waits reports whether a dirty bucket waits for a flush of all buckets: it need
// not survive a crash, or the store has a lease for it.
func (c *collector) waits(s *Shard, b table.Slot) bool {
	switch s.ruleOf(b).Level.Or(c.level) {
	case gcra.Memory:
		return !b.Has(table.Flush)
	case gcra.Leased:
		return b.Has(table.Covered)
	}
	return false
}

// saved notes how the save of a bucket ended. If it failed, the bucket is dirty
// again. A bucket that was deleted from the store also leaves memory, unless it is
// in use again.
func (t *directory) saved(key Key, err error, now int64) {
	s, h := t.shardOf(key)
	s.Lock()
	defer s.Unlock()
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
			s.RemoveLocked(i)
		}
	}
}

// holdSaved notes how the save of a hold ended. If it failed, the hold stays
// unsaved.
func (t *directory) holdSaved(key Key, end int64, err error, now int64) {
	s, h := t.shardOf(key)
	s.Lock()
	defer s.Unlock()
	g := s.makeGateLocked(key, h)
	if err == nil {
		g.saved = end
	}
	g.unsaved = err != nil || g.Hold != end
	s.tidyGateLocked(key, g, now)
}

// makeSpaceBetween evicts buckets after a part of a flush that saved n. In a flood
// of ids that come once, it evicts those, and spares the buckets that are used more
// often. If that makes too little space, it goes once more through the same
// shards, and evicts what was not used in between.
func (f *flusher) makeSpaceBetween(from, to place, now int64, n int) {
	more := func(removed int) bool { return removed < n || f.full() }
	if removed := f.directory.evictBetween(from, to, now, more); removed < n/2 || f.full() {
		f.directory.evictBetween(from, to, now, more)
	}
}
