package stint

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// Decisions of Leased and Synced limits wait for a commit, and those that wait together share one. A commit begins as soon
// as the one before it has ended; what comes meanwhile is in the next.

type committer struct {
	flusher *flusher // whose mutex keeps saves in the order in which buckets changed
	wake    chan struct{}
	stop    chan struct{}
	stopped chan struct{}

	mu     sync.Mutex
	next   *batch // nil while nobody waits for one
	stats  CommitStats
	leases int64
}

// CommitStats tells of the commits that Leased and Synced decisions waited for.
type CommitStats struct {
	Commits  int64
	Buckets  int64 // written by them
	Leases   int64 // of those, the ones that were ahead of what was spent
	Failures int64
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error // why the last one failed; nil if it did not
}

// add puts changes into the next commit, all of them into one.
func (c *committer) add(changes []Change, leases int) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = &batch{done: make(chan struct{})}
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	c.next.changes = append(c.next.changes, changes...)
	c.leases += int64(leases)
	return c.next
}

// run commits until stop is closed and nobody waits any more.
func (c *committer) run() {
	defer close(c.stopped)
	for {
		select {
		case <-c.wake:
			c.commit()
		case <-c.stop:
			c.commit()
			return
		}
	}
}

// commit saves the next batch, once those that are about to join it have.
func (c *committer) commit() {
	for waiting := 0; ; runtime.Gosched() {
		c.mu.Lock()
		n := 0
		if c.next != nil {
			n = len(c.next.changes)
		}
		c.mu.Unlock()
		if n == waiting {
			break
		}
		waiting = n
	}
	c.flusher.mu.Lock()
	c.mu.Lock()
	b := c.next
	c.next = nil
	c.mu.Unlock()
	if b == nil {
		c.flusher.mu.Unlock()
		return
	}
	changes := newest(b.changes)
	n := len(changes)
	begun := time.Now()
	b.err = c.flusher.store.Save(changes)
	took := time.Since(begun)
	c.flusher.mu.Unlock()

	c.mu.Lock()
	c.stats.Last, c.stats.Longest, c.stats.Err = took, max(c.stats.Longest, took), b.err
	if b.err == nil {
		c.stats.Commits++
		c.stats.Buckets += int64(n)
	} else {
		c.stats.Failures++
	}
	c.mu.Unlock()
	close(b.done)
}

// newest returns, of changes that may be of one key, the last of each.
func newest(changes []Change) []Change {
	if len(changes) < 2 {
		return changes
	}
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return a.Key.compare(b.Key) })
	kept := changes[:0]
	for i, c := range changes {
		if i+1 == len(changes) || changes[i+1].Key != c.Key {
			kept = append(kept, c)
		}
	}
	return kept
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
}

// lease returns the TAT that the file is given for a Leased bucket: the next of the instants that lie an eighth of
// the tolerance apart. Up to there it is spent in memory, so that the file is written once in that time at the most.
// That the instants are the same for every bucket of a limit saves remembering what the file was given.
func (r *rate) lease(tat int64) int64 {
	step := max(1, r.tolerance/8)
	if tat > endOfTime {
		return tat
	}
	return (tat + step - 1) / step * step
}
