package cache

import (
	"errors"
	"fmt"
	"time"
)

// MakeSpace makes space in memory for one bucket. If it soon finds no bucket that
// can be evicted without a save, MakeSpace waits for a flush, which evicts buckets
// after each of its saves. If none is under way, MakeSpace begins one.
func (c *Cache) MakeSpace() error {
	f := c.flusher
	if n := c.evict(f.clock.Now(), f.full); n > 0 || !f.full() {
		return nil // even if other calls take the space at once
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

// makeSpace saves and evicts buckets until there is space in memory, or no
// caller waits for it. It gives up if all buckets have queues, and it has been three
// times through all shards without one that left memory: the first time may begin
// in the middle, and buckets may be in commits.
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
	next, skipped, err = f.flushPartLocked(true, 0, f.space, false)
	f.trial = false
	f.space = place{shard: next.shard}
	if next.end {
		f.space = place{}
	}
	return next, skipped, err
}
