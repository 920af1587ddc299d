package stint

import (
	"cmp"
	"errors"
	"strings"
	"sync"
	"time"
)

// flusher carries what changed in the table to the store: once per interval, when told to, and when the limiter closes.
type flusher struct {
	table    *table
	store    Store
	clock    *clock
	level    Durability // of limits that name none
	interval time.Duration

	mu     sync.Mutex // held by whoever saves: what changed later is saved later
	over   bool       // the store is no longer the limiter's
	number uint64     // of the save, as maskSave has it
	swept  int        // flushes so far, of which each looks for full buckets in other shards
	spare  []Change   // room for those of the next save

	statusMu sync.Mutex
	status   FlushStats
	commit   failure // of the last commit, until a commit or a flush succeeds

	stop, stopped chan struct{}
	events        chan Event    // nil where nobody listens
	silent        chan struct{} // closed when there will be no more of them
	delivered     chan struct{} // closed when the last of them was
}

// FlushStats tells of the flushes of one Limiter.
type FlushStats struct {
	Flushes  int64         // that wrote something
	Buckets  int64         // written or deleted by them
	Failures int64         // flushes that failed; what they were to write was kept, and tried again
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error     // why the last one failed; nil if it did not
	Since    time.Time // of the first failure in a row, by the Limiter's clock
}

// The longest that a failing store is left alone before it is tried again.
const longestBackoff = 30 * time.Second

// run flushes at each tick until stop is closed.
func (f *flusher) run() {
	defer close(f.stopped)
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	var wait, skip time.Duration // after a failure; what is left of it
	for {
		select {
		case <-f.stop:
			return
		case <-ticker.C:
		}
		if step := f.clock.follow(); step != 0 {
			f.tell(Event{Kind: ClockStepped, Step: step})
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
		_ = f.store.Maintain(time.Unix(0, f.clock.now())) // a failure is in the store's own Health
	}
}

// tell passes an event on. It does not wait for the one who listens: if he has fallen far behind, he misses it.
func (f *flusher) tell(e Event) {
	e.Time = time.Unix(0, f.clock.now())
	select {
	case f.events <- e:
	default:
	}
}

// deliver calls f with each event, until there will be no more.
func (f *flusher) deliver(listen func(Event)) {
	defer close(f.delivered)
	for over := false; ; {
		select {
		case e := <-f.events:
			listen(e)
			continue
		default:
		}
		if over {
			return
		}
		select {
		case e := <-f.events:
			listen(e)
		case <-f.silent:
			over = true // once those before it are delivered
		}
	}
}

// A flush of more than this is saved in parts, between which commits go on.
const maxSave = 1 << 17

// flush saves what is dirty. all includes what need not survive a crash, and has leases give way to exact TATs: it is
// for when the limiter closes, runs out of memory, or is told to.
func (f *flusher) flush(all bool) error {
	_, err := f.flushBut(all)
	return err
}

// flushBut is flush, and returns the commits under way of buckets that it left to them.
func (f *flusher) flushBut(all bool) (skipped []*batch, err error) {
	var errs []error
	for next, first := 0, true; next >= 0; first = false {
		var part []*batch
		var err error
		if next, part, err = f.flushPart(all, next, first); err != nil {
			errs = append(errs, err)
		}
		skipped = append(skipped, part...)
	}
	if errs == nil {
		f.recovered()
	}
	return skipped, errors.Join(errs...)
}

// flushAndWait saves all that was spent so far, and waits for the commits that have some of it.
func (f *flusher) flushAndWait() error {
	// What a bucket spent since it was put into a commit is saved by the second flush or, where that finds the bucket in
	// a later commit, by that one.
	for second := range 2 {
		skipped, err := f.flushBut(true)
		for _, in := range skipped {
			<-in.done
			if second == 1 {
				err = errors.Join(err, in.err)
			}
		}
		if err != nil || skipped == nil {
			return err
		}
	}
	return nil
}

// flushPart saves what is dirty in the shards from number from on, until it is enough for one save, and returns the
// number of the shard to go on with, or -1.
func (f *flusher) flushPart(all bool, from int, first bool) (next int, skipped []*batch, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flushPartLocked(all, from, first)
}

func (f *flusher) flushPartLocked(all bool, from int, first bool) (next int, skipped []*batch, err error) {
	if f.over {
		return -1, nil, ErrClosed
	}
	f.number = f.number%3 + 1
	f.table.saving.Store(f.number << saveShift)
	defer f.table.saving.Store(0)

	begun := time.Now()
	c := collector{now: f.clock.now(), all: all, level: f.level, save: f.number << saveShift, changes: f.spare}
	defer func() {
		clear(c.changes)
		f.spare = c.changes[:0]
	}()
	if first {
		f.sweep(&c)
	}
	next = f.table.eachFrom(from, func(s *shard) bool {
		c.collectLocked(s)
		return len(c.changes) < maxSave
	})
	if len(c.changes) == 0 {
		return next, c.skipped, nil
	}
	n := len(c.changes)
	err = f.store.Save(c.changes)
	for _, change := range c.changes {
		if err != nil || change.TAT == 0 {
			f.table.settle(change, err, c.now)
		}
	}
	f.record(n, time.Since(begun), err)
	return next, c.skipped, err
}

// record notes how a part of a flush ended.
func (f *flusher) record(buckets int, took time.Duration, err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	st := &f.status
	st.Last, st.Longest = took, max(st.Longest, took)
	if err == nil { // of this part
		st.Flushes++
		st.Buckets += int64(buckets)
		return
	}
	st.Failures++
	if st.Err == nil {
		st.Since = time.Unix(0, f.clock.now())
		f.tell(Event{Kind: FlushFailed, Err: err})
	}
	st.Err = err
}

// committed notes, for Health, how a commit ended.
func (f *flusher) committed(err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if err != nil && f.commit.err == nil {
		f.commit.since = time.Unix(0, f.clock.now())
	}
	f.commit.err = err
}

// recovered notes that nothing is left unsaved, be it because a commit brought what a flush could not.
func (f *flusher) recovered() {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	f.commit = failure{}
	if f.status.Err != nil {
		f.status.Err, f.status.Since = nil, time.Time{}
		f.tell(Event{Kind: FlushRecovered})
	}
}

func (f *flusher) stats() FlushStats {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	return f.status
}

// sweepRounds is in how many flushes every shard's turn comes.
const sweepRounds = 64

// sweep looks through the next few of the shards for buckets that are full again, and ends the holds that are over.
func (f *flusher) sweep(c *collector) {
	f.swept++
	f.table.each(func(s *shard) {
		if int(s.order)%sweepRounds == f.swept%sweepRounds {
			s.expireLocked(c.now)
		}
		for key, a := range s.aside {
			if over := a.hold != 0 && a.hold <= c.now; over || a.lost {
				if over {
					a.hold = 0
				}
				a.lost = false
				c.changes = append(c.changes, Change{holdKey(key), a.hold})
			}
			s.tidyAsideLocked(key, a, c.now)
		}
	})
}

// holdKey is the key under which the store has a bucket's hold.
func holdKey(key Key) Key { return Key{Unknown, key.String()} }

// expireLocked removes the buckets that are full again; those that the store has are left to the next flush, which
// deletes them there.
func (s *shard) expireLocked(now int64) {
	for i := uint32(0); i < s.capacity.Load(); {
		b := s.at(i)
		m := b.meta()
		if m == 0 || b.tat() > now || m&(flagAside|flagPending) != 0 {
			i++
		} else if m&flagStored == 0 {
			s.removeLocked(i)
		} else {
			s.dirtyLocked(i)
			i++
		}
	}
	if s.n < s.capacity.Load()/4 && s.capacity.Load() > 256 {
		s.resizeLocked(s.n + s.n/2 + 16)
	}
}

// collector gathers the changes of a flush.
type collector struct {
	now     int64
	all     bool
	level   Durability
	save    uint64
	changes []Change
	ids     *strings.Builder // of changes, many to an allocation
	skipped []*batch         // the commits under way of buckets that were left out
}

// key returns the key of a slot that may move or be reused before the changes are saved.
func (c *collector) key(b slot) Key {
	id := b.id()
	if c.ids == nil || c.ids.Len()+len(id) > c.ids.Cap() {
		c.ids = new(strings.Builder)
		c.ids.Grow(max(len(id), min(24*len(c.changes), 32<<10)))
	}
	begin := c.ids.Len()
	c.ids.Write(id)
	return Key{b.name(), c.ids.String()[begin:]}
}

// collectLocked takes over the dirty buckets of a shard that the flush is to save.
func (c *collector) collectLocked(s *shard) {
	unmarked := c.all && s.waiting
	if c.all {
		s.waiting = false
	}
	const ahead = 16 // words of marks, whose slots are on their way meanwhile
	for next := range len(s.marks) + ahead {
		if next < len(s.marks) {
			if unmarked {
				s.marks[next] = 1<<64 - 1
			}
			for rest := s.marks[next]; rest != 0; rest &= rest - 1 {
				s.prefetchSlot(s.firstOf(next, rest))
			}
		}
		if w := next - ahead; w >= 0 {
			for marked := s.marks[w]; marked != 0; {
				group := marked & -marked
				s.marks[w] &^= group
				c.collectGroupLocked(s, s.firstOf(w, group))
				marked = s.marks[w] &^ (group<<1 - 1) // to which those have come that moved up where others were removed
			}
		}
	}
}

// collectGroupLocked takes over those of the group that begins with a slot.
func (c *collector) collectGroupLocked(s *shard, first uint32) {
	end := min(first+1<<s.groups, s.capacity.Load())
	for i := first; i < end; i++ {
		b := s.at(i)
		m := b.meta()
		if m&flagDirty == 0 {
			continue
		}
		if m&flagPending != 0 {
			e := s.pendingLocked(b)
			if e.batch != nil && !e.batch.over() {
				s.markGroup(i)
				c.skipped = append(c.skipped, e.batch)
				continue
			}
			if e.batch != nil && !c.all && e.batch.err == nil { // who waited for it is about to note what the store has
				s.markGroup(i)
				continue
			}
			e.batch = nil // this is newer; but the bucket stays until he has given back what the commit failed to take
		}
		tat := b.tat()
		past := tat <= c.now
		if past && m&flagStored == 0 { // full, and the store does not know otherwise
			if m&(flagAside|flagPending) != 0 {
				s.cleanLocked(i)
			} else {
				s.removeLocked(i)
				i-- // another may have moved here
			}
			continue
		}
		if past {
			tat = 0
		} else if !c.all && c.waits(s, b) {
			s.waiting = true
			continue // until all is saved: no need to look at it before
		}
		s.cleanLocked(i)
		b.setMeta(b.meta()&^(flagCovered|maskSave) | flagStored | c.save)
		c.changes = append(c.changes, Change{c.key(b), tat})
	}
}

// waits reports whether a dirty bucket is saved only when all are: it need not survive a crash, or its lease does.
func (c *collector) waits(s *shard, b slot) bool {
	switch cmp.Or(s.limits.rules[b.rule()].limit.Durability, c.level) {
	case Memory:
		return true
	case Leased:
		return b.has(flagCovered)
	}
	return false
}

// settle tells the table how the save of a change ended. What could not be saved is dirty again; what was deleted from
// the store need not stay in memory either.
func (t *table) settle(change Change, err error, now int64) {
	if change.Key.Name == Unknown {
		if key, keyErr := ParseKey(change.Key.ID); err != nil && keyErr == nil {
			s, h := t.shard(key)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asideLocked(key, h).lost = true
		}
		return
	}
	s, h := t.shard(change.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.findLocked(change.Key, h)
	if !ok {
		return
	}
	b := s.at(i)
	if err != nil {
		s.dirtyLocked(i)
	} else if !b.has(flagDirty) {
		b.clear(flagStored)
		if b.tat() <= now && !b.has(flagAside|flagPending) {
			s.removeLocked(i)
		}
	}
}
