package cache

import (
	"errors"
	"fmt"
	"time"
)

// Full reports whether memory has no space for another bucket.
func (c *Cache) Full() bool { return c.flusher.full() }

// MakeSpace makes space in memory for one bucket. If it soon finds no bucket that
// can be evicted without a save, MakeSpace waits for a flush, which evicts buckets
// after each of its saves. If none is under way, MakeSpace begins one.
func (c *Cache) MakeSpace() error {
	f := c.flusher
	if n := c.evict(f.clock.Now(), f.full); n > 0 || !f.full() {
		return nil // other calls may take the space that this one made
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	timer := time.NewTimer(f.timeout)
	defer timer.Stop()
	for flush := f.forSpace.flush(true); ; {
		part := f.nextPart()
		if !f.full() {
			return nil
		}
		select {
		case <-part:
		case <-flush.done:
			if flush.err != nil {
				return fmt.Errorf("%w: %d in memory, %w", ErrFull, f.resident, flush.err)
			}
			flush = f.forSpace.flush(true) // other calls took the space that this one made
		case <-timer.C:
			return fmt.Errorf("%w: %d in memory, and no space for %v", ErrFull, f.resident, f.timeout)
		}
	}
}

// EvictAll removes from memory all buckets that may leave it.
func (c *Cache) EvictAll() {
	for range 5 { // a removal may move a slot past the hand
		c.evictBetween(place{}, place{end: true}, c.flusher.clock.Now(), func(int) bool { return true })
	}
}

// evictScan is the number of slots after which evict gives up. In a flood of new
// ids nearly all buckets are dirty, and a longer search would find nothing either.
const evictScan = 1 << 12

// evict goes from shard to shard, looks at an eighth of each, and removes the
// buckets that may go. It stops when tooMany returns false, after evictScan slots,
// or after all shards. It returns the number of removed buckets.
func (t *directory) evict(now int64, tooMany func() bool) (removed int) {
	perClass := uint32(1) << (64 - t.shift)
	scanned := 0
	for range len(t.classes) * int(perClass) {
		n := t.hand.Add(1) - 1
		shards := t.classes[n/perClass%uint32(len(t.classes))].Load()
		if shards == nil {
			continue
		}
		s := &(*shards)[n%perClass]
		for range (s.EvictSteps() + 7) / 8 {
			looked, gone := s.evictStep(now, false)
			scanned += looked
			if removed += gone; !tooMany() || scanned >= evictScan {
				return removed
			}
		}
	}
	return removed
}

// evictBetween removes buckets from the shards that a part of a flush has
// visited, until more returns false. It returns the number of removed buckets.
func (t *directory) evictBetween(from, to place, now int64, more func(removed int) bool) (removed int) {
	for n := from.shard; ; n++ {
		var s *Shard
		s, n = t.shardFrom(n)
		if s == nil || !to.end && (n > to.shard || n == to.shard && !to.inside) {
			return removed
		}
		for range s.EvictSteps() {
			_, gone := s.evictStep(now, true)
			if removed += gone; !more(removed) {
				return removed
			}
		}
	}
}

// makeSpaceBetween evicts buckets after a part of a flush that saved n. In a flood
// of ids that ask once, it evicts those, and spares the buckets that are used more
// often. If that makes too little space, it goes once more through the same
// shards, and evicts what was not used in between.
func (f *flusher) makeSpaceBetween(from, to place, now int64, n int) {
	more := func(removed int) bool { return removed < n || f.full() }
	if removed := f.directory.evictBetween(from, to, now, more); removed < n/2 || f.full() {
		f.directory.evictBetween(from, to, now, more)
	}
}

// evictStep looks at a few slots, so decisions wait only for microseconds.
func (s *Shard) evictStep(now int64, forget bool) (scanned, removed int) {
	s.Lock()
	defer s.Mu.Unlock() // after the counts: makeSpace must not find fewer buckets than they say
	scanned, removed = s.Evict(now, s.directory.saving.Load(), forget, s.queuedLocked)
	s.directory.resident.Add(-int64(removed))
	s.directory.left.Add(int64(removed))
	s.directory.evicted.Add(int64(removed))
	return scanned, removed
}

// makeSpace saves and evicts buckets until there is space in memory, or no
// caller waits for it. It gives up after three times through all shards in which
// no bucket has left memory, because the first time may begin in the middle, and
// buckets may be in commits. If some have left, other callers took the space. If
// some have no queue, they were used between their save and the eviction, and can
// leave another time.
func (f *flusher) makeSpace() error {
	var skipped []*Batch
	left := f.directory.left.Load()
	for round := 0; round < 3 || !f.directory.allQueued(); {
		next, part, err := f.makeSpacePart()
		if err != nil {
			return fmt.Errorf("and they cannot be saved: %w", err)
		}
		if !f.full() || f.waiting.Load() == 0 {
			return nil
		}
		if skipped = append(skipped, part...); next.end {
			for _, b := range skipped {
				<-b.Done() // buckets in commits stay until the commits end
			}
			skipped = nil
			round++
			if is := f.directory.left.Load(); is != left {
				left, round = is, 0
			}
		}
	}
	return errors.New("each with a queue")
}

// allQueued reports whether all buckets in memory have queues, so that none of
// them can leave.
func (t *directory) allQueued() bool {
	queued := int64(0)
	t.Each(func(s *Shard) {
		for _, g := range s.gates {
			if g.Queue.Len() > 0 {
				queued++
			}
		}
	})
	return queued >= t.resident.Load()
}

// makeSpacePart saves and evicts a part of the buckets: only a few if the
// last save of a flush failed.
func (f *flusher) makeSpacePart() (next place, skipped []*Batch, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.full() {
		return f.space, nil, nil
	}
	f.trial = f.failed
	next, skipped, err = f.flushPartLocked(true, f.space, false)
	f.trial = false
	f.space = place{shard: next.shard}
	if next.end {
		f.space = place{}
	}
	return next, skipped, err
}
