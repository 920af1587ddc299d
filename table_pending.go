package stint

import "time"

// What a shard knows of the commits that its buckets are in.

// batch is what one commit saves.
type batch struct {
	changes []Change
	waiting int       // those who do, or are about to
	renewed []renewal // whom nobody waits for
	left    []func()  // by those who waited for too long, to be done once it has ended
	holds   []func(err error)
	held    map[Key]int // holds among changes, by index
	begun   time.Time   // by the first of them
	err     error       // valid once done is closed
	done    chan struct{}
	heard   chan struct{} // closed with done or, for those who wait to look at their clocks, when that takes too long
}

// over reports whether the commit has ended.
func (b *batch) over() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// pending is a commit that a bucket was put into, and is in until the shard has heard how that ended.
type pending struct {
	key   Key
	batch *batch // nil: a flush has saved what is newer
	index int    // of its change, while the batch is collected
	tat   int64  // the TAT that the store is given by it

	unsettled int // who put it into this one and those before, and have yet to note how that ended
}

// renewal is a bucket whose next half of a lease is in a commit.
type renewal struct {
	shard *shard
	hash  uint64
	key   Key
}

// pendingLocked returns the commit that a bucket is in; nil: none.
func (s *shard) pendingLocked(b slot) *pending {
	if b.has(flagPending) {
		for i := range s.pending {
			if e := &s.pending[i]; e.key.Name == b.name() && e.key.ID == string(b.id()) {
				return e
			}
		}
	}
	return nil
}

// settledPendingLocked takes a bucket out of the commits that it is in, once all who put it there know how that ended: until then it
// stays in memory, or what they give back would be lost.
func (s *shard) settledPendingLocked(b slot, e *pending) {
	if e == nil {
		return
	}
	if e.unsettled--; e.unsettled > 0 {
		return
	}
	last := &s.pending[len(s.pending)-1]
	*e, *last = *last, pending{}
	s.pending = s.pending[:len(s.pending)-1]
	b.clear(flagPending)
}
