package stint

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/table"
)

// flusher saves changed buckets to the store: once per interval, on request,
// and when the Limiter closes.
//
// A flush goes from shard to shard. In each, collect copies the dirty buckets
// and marks them clean. Decisions go on during the save, and make the buckets
// that they change dirty again. collect leaves out buckets that are in a commit,
// and buckets that need not be saved now: their limit is Memory, or a lease covers
// them. When it has enough for a save, the flush saves them and goes on from
// there. If the save fails, saved marks its buckets dirty again. A full bucket is
// deleted from the store, and then leaves memory.
//
// mu lets one save run at a time, a flush's or a commit's, so the store gets the
// TATs of a bucket in the order in which they were taken.
type flusher struct {
	directory *directory
	store     Store
	clock     *clock.Clock
	level     Durability // of limits that name none
	resident  int64      // most buckets in memory
	interval  time.Duration
	timeout   time.Duration // after which a call of the store is overdue

	mu     sync.Mutex // held during a save, by a flush or a commit
	closed bool       // the store is no longer the Limiter's
	number uint64     // of the last part of a flush, 1 to 3
	round  int        // of the sweep
	timed  int64      // the last time that was saved, also by an earlier process
	spare  []Change   // memory for the next save
	space  place      // where the next flush for space begins
	trial  bool       // whether to save only a few buckets
	failed bool       // the last save of a flush failed

	waiting atomic.Int64  // callers that wait for space in memory
	part    chan struct{} // closed when a part of a flush ends; guarded by statusMu

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
		directory: t, store: store, clock: c, timed: c.Last(), level: o.Durability, interval: o.FlushInterval,
		resident: int64(o.MaxResident), part: make(chan struct{}),
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
			f.emit(Event{Kind: ClockStepped, Step: step, Err: fmt.Errorf("stint: the wall clock stepped by %v", step)})
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

const (
	// maxSave is about how many buckets one save writes. Commits go on between the
	// saves of a larger flush.
	maxSave = 1 << 17

	// crowdedSave is the same while memory is nearly full. It is smaller because
	// callers that wait for space wait for one save.
	crowdedSave = 1 << 13

	// trialSave is the same for space in memory, after a flush has failed. While the
	// disk fails, each call that waits for space tries again, and a large save that
	// fails takes as long as one that does not.
	trialSave = 1 << 6
)

// A pacedStore tells how many buckets it can save before a save has to wait.
type pacedStore interface{ room() int }

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
	if s, ok := f.store.(pacedStore); ok {
		most = min(most, s.room())
	}
	return most
}

// flush saves the dirty buckets. If all is set, it also saves buckets that need
// not survive a crash, and exact TATs in place of leases. Close, Flush,
// SetOverrides and evictOne set it.
func (f *flusher) flush(all bool) error {
	_, err := f.flushParts(all)
	return err
}

// flushParts is flush. It also returns the commits of the buckets that it left
// out.
func (f *flusher) flushParts(all bool) (skipped []*batch, err error) {
	var errs []error
	for at, first := (place{}), true; !at.end; first = false {
		f.mu.Lock()
		for more := true; more; first = false {
			var part []*batch
			at, part, err = f.flushPartLocked(all, at, first)
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

// place is how far a flush has come.
type place struct {
	shard  int
	inside bool // some buckets of the shard are done; only valid until mu is released
	end    bool
}

// flushPartLocked saves dirty buckets, beginning at a place, until they fill one
// save. It returns the place to go on from. If callers wait for space in memory,
// it then evicts at least as many buckets as it has saved, if it can, and more
// while memory is full.
func (f *flusher) flushPartLocked(all bool, from place, first bool) (next place, skipped []*batch, err error) {
	if f.closed {
		return place{end: true}, nil, ErrClosed
	}
	defer f.partEnded()
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
	for _, change := range c.changes { // the Store may have moved the time, which is no bucket
		if change.Key != (Key{}) && (err != nil || change.TAT == 0 || change.Key.Name == Unknown) {
			f.directory.saved(change, err, c.now)
		}
	}
	return err
}

// full reports whether memory has no space for another bucket.
func (f *flusher) full() bool { return f.directory.resident.Load() >= f.resident }

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
func (f *flusher) timeOfSave() Change {
	if _, ok := f.store.(ClockStore); !ok {
		return Change{Key{}, f.clock.Seen()}
	}
	return Change{Key{}, f.clock.Now()}
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
	f.directory.each(func(s *shard) {
		if int(s.order)%sweepRounds == f.round%sweepRounds {
			s.expireLocked(c.now)
		}
		for key, g := range s.gates {
			if g.hold != 0 && g.hold <= c.now {
				g.hold, g.unsaved = 0, true
			}
			if g.unsaved && g.commits == 0 { // otherwise a commit saves it
				c.changes = append(c.changes, Change{holdKey(key), g.hold})
			}
			s.tidyGateLocked(key, g, c.now)
		}
	})
}

// expireLocked removes full buckets that the store does not have, and marks the
// other full ones so that the flush deletes them. Buckets that only a Check has
// clamped stay until they are evicted, because the store's TAT may be ahead.
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
			s.lock()
			if !next.inside {
				s.BeginDirty(c.all)
				next.inside = true
			}
			more = c.collectLocked(s)
			s.mu.Unlock()
		}
		if len(c.changes) >= most {
			return place{shard: at + 1}
		}
	}
}

// collectLocked copies the next few dirty buckets of a shard, marks them clean,
// and reports whether there are more.
func (c *collector) collectLocked(s *shard) (more bool) {
	return s.NextDirty(func(i uint32, b table.Slot) table.Outcome {
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

// waits reports whether a dirty bucket waits for a flush of all buckets: it need
// not survive a crash, or the store has a lease for it.
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
// again, and a hold stays unsaved. A bucket that was deleted from the store also
// leaves memory, unless it is in use again.
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
	s.lock()
	defer s.mu.Unlock()
	if isHold {
		g := s.gateLocked(key, h)
		if err == nil {
			g.saved = change.TAT
		}
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
