package stint

import (
	"cmp"
	"runtime"
	"sync"
	"time"
)

// Decisions of Leased and Synced limits wait for a commit, and those that wait together share one. A commit begins as soon
// as the one before it has ended, and those who waited for that have had a chance to come again; what comes later is in the next.
// Leases that are renewed go into the same commits, and do not hurry them.

type committer struct {
	flusher *flusher      // whose mutex keeps saves in the order in which buckets changed
	wake    chan struct{} // there is a next commit,
	hurry   chan struct{} // and somebody waits for it
	stop    chan struct{}
	stopped chan struct{}

	unsettled sync.WaitGroup // who put something into a commit, and has yet to note in the table how that ended

	mu       sync.Mutex
	next     *batch      // nil while there is nothing to save
	slow     *time.Timer // closes next.heard
	oldest   time.Time   // when the first of the commits under way was begun, by who is in it; zero: there is none
	expected int         // who may wait for it soon: as many as for the last, and as came meanwhile
	spare    batch       // what the last one had, empty
	stats    CommitStats
	leases   int64
}

// CommitStats tells of the commits that holds, and Leased and Synced decisions, waited for.
type CommitStats struct {
	Commits  int64
	Buckets  int64 // and holds, written by them
	Leases   int64 // of those, the ones that were ahead of what was spent: leases, and renewals of half a lease
	Failures int64
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error // why the last one failed; nil if it did not
}

// nextLocked returns the next commit, which is saved soon. What belongs together is put into it before mu is unlocked. The first
// to wait for it does so for as long as timeout.
func (c *committer) nextLocked(timeout time.Duration) *batch {
	if c.next == nil {
		b := &batch{changes: c.spare.changes, renewed: c.spare.renewed, done: make(chan struct{}), heard: make(chan struct{})}
		c.next, c.spare = b, batch{}
		b.begun = time.Now()
		if c.oldest.IsZero() {
			c.oldest = b.begun
		}
		c.slow = time.AfterFunc(timeout, func() { close(b.heard) })
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return c.next
}

// putLocked puts the TAT that the store is to have for a bucket of the shard into the next commit. b is its slot; zero: it
// has none.
func (c *committer) putLocked(s *shard, b slot, key Key, tat int64) {
	changes := &c.next.changes
	if b == (slot{}) {
		*changes = append(*changes, Change{key, tat})
		return
	}
	e := s.pendingLocked(b)
	if e == nil {
		s.pending = append(s.pending, pending{})
		e = &s.pending[len(s.pending)-1]
	}
	if e.batch != c.next {
		e.index = len(*changes)
		*changes = append(*changes, Change{})
	}
	(*changes)[e.index] = Change{key, tat}
	e.unsettled++
	e.key, e.batch, e.tat = key, c.next, tat
	b.set(flagPending | flagStored)
}

// The longest that renewed leases wait for more of them, or for somebody who waits: half a lease lasts longer than that, but for
// those who spend much faster than their limit gives back.
const renewalPause = 5 * time.Millisecond

// run commits until stop is closed and nobody waits any more.
func (c *committer) run() {
	defer close(c.stopped)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-c.wake:
			pause.Reset(renewalPause)
			select {
			case <-c.hurry:
			case <-pause.C:
			case <-c.stop:
			}
			c.commit()
		case <-c.stop:
			c.commit()
			return
		}
	}
}

// waitLocked has the caller wait for the next commit.
func (c *committer) waitLocked(timeout time.Duration) *batch {
	b := c.nextLocked(timeout)
	if b.waiting++; b.waiting == 1 {
		select {
		case c.hurry <- struct{}{}:
		default:
		}
	}
	return b
}

// patience is how often in a row the processor is left to others, none of whom comes.
const patience = 32

// gather lets those come who are about to: it returns once there are as many as may be expected, or nobody comes any more.
func (c *committer) gather() {
	most := 0
	for idle := 0; idle < patience; idle++ {
		c.mu.Lock()
		waiting := c.expected
		if c.next != nil {
			waiting = c.next.waiting
		}
		c.mu.Unlock()
		if waiting >= c.expected {
			return
		}
		if waiting > most {
			most, idle = waiting, 0
		}
		runtime.Gosched()
	}
}

// hold puts a hold into the commit; ended is told how that ends. The last one on a key counts.
func (b *batch) hold(key Key, end int64, ended func(err error)) {
	i, ok := b.held[key]
	if !ok {
		i = len(b.changes)
		b.changes = append(b.changes, Change{})
		if b.held == nil {
			b.held = make(map[Key]int)
		}
		b.held[key] = i
	}
	b.changes[i] = Change{key, end}
	b.holds = append(b.holds, ended)
}

// commit saves the next batch.
func (c *committer) commit() {
	c.gather()
	c.flusher.mu.Lock()
	c.mu.Lock()
	b, slow := c.next, c.slow
	c.next = nil
	c.mu.Unlock()
	if b == nil {
		c.flusher.mu.Unlock()
		return
	}
	n := len(b.changes)
	begun := time.Now()
	b.err = c.flusher.store.Save(b.changes)
	took := time.Since(begun)
	c.flusher.committed(b.err)
	for _, r := range b.renewed {
		c.settle(r, b)
	}
	for _, ended := range b.holds { // before a flush, which deletes those that are over
		ended(b.err)
	}
	c.flusher.mu.Unlock()

	c.mu.Lock()
	c.stats.Last, c.stats.Longest, c.stats.Err = took, max(c.stats.Longest, took), b.err
	if b.err == nil {
		c.stats.Commits++
		c.stats.Buckets += int64(n)
	} else {
		c.stats.Failures++
	}
	c.expected, c.oldest = b.waiting, time.Time{}
	if c.next != nil {
		c.expected, c.oldest = b.waiting+c.next.waiting, c.next.begun
	}
	clear(b.changes)
	clear(b.renewed)
	c.spare.changes, c.spare.renewed = b.changes[:0], b.renewed[:0]
	b.changes, b.renewed = nil, nil
	close(b.done)
	c.mu.Unlock()
	if slow.Stop() {
		close(b.heard)
	}
	for _, do := range b.left {
		do()
	}
}

// leave leaves it to a commit to do what is to be done once it has ended, unless it has.
func (c *committer) leave(b *batch, do func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.over() {
		return false
	}
	b.left = append(b.left, do)
	return true
}

// settle notes how the commit of a renewal ended. Half a lease covers the bucket all the same.
func (c *committer) settle(r renewal, in *batch) {
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.findLocked(r.key, r.hash)
	if !ok {
		return
	}
	b := s.at(i)
	e := s.pendingLocked(b)
	if e == nil {
		return
	}
	tat, last := e.tat, e.batch == in
	s.settledPendingLocked(b, e)
	if !last {
		return // it was put into a later commit, or a flush has saved it since
	}
	if in.err != nil {
		b.set(flagStored) // the store may have it all the same
		s.dirtyLocked(i)
	} else if s.limits != nil && b.rule() != 0 && cmp.Or(s.limits.rules[b.rule()].limit.Durability, c.flusher.level) == Leased {
		s.coverLocked(b, tat)
	}
}

// coverLocked notes that the store has a lease of the bucket's that ends at end, if it is one.
func (s *shard) coverLocked(b slot, end int64) {
	switch this, next := s.limits.rules[b.rule()].rate.lease(b.tat()); end {
	case next:
		b.set(flagCovered | flagAhead)
	case this:
		b.clear(flagAhead)
		b.set(flagCovered)
	}
}

func (c *committer) status() CommitStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.stats
	st.Leases = c.leases
	return st
}

// close waits until whoever waits has been answered.
func (c *committer) close() {
	close(c.stop)
	<-c.stopped
	c.unsettled.Wait() // or what they give back would not be saved
}

// lease returns where the half of a lease ends that a TAT of a Leased bucket is in, and where the next does. The store is
// given the end of the next. When the bucket has spent up to there, the half behind that is put into a commit that nobody
// waits for, while the bucket spends on; what the store has is an eighth of the tolerance ahead at the most. That
// halves end at the same instants for every bucket of a limit saves remembering what the store was given.
func (r *rate) lease(tat int64) (end, next int64) {
	step := r.halves.n
	if step == 0 || tat > endOfTime {
		return tat, tat
	}
	end = r.halves.quotient(tat+step-1) * step
	return end, end + step
}
