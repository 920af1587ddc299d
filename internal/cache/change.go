package cache

import (
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/queue"
)

// Change is the change that one call made to one bucket, or to its hold.
type Change struct {
	Key   Key
	Shard *Shard
	Hash  uint64

	From, To int64         // TAT in the slot, or end of the hold
	Given    Level         // of the caller's own limit; 0: that of the bucket's rule
	Turn     *queue.Turn   // that joined the queue
	Turns    []*queue.Turn // that a reset took out of the queue
	Counted  int           // as allowed, by so many calls of CountLocked
	Builds   bool          // the answer builds on the TAT, even if From is To
	Stays    bool          // even if the commit fails

	isHold  bool
	limits  int  // how many of pending.limits came before it
	renewal bool // of a lease: no caller waits
}

// work has what one commit saves, and the changes that it finishes.
type work struct {
	saves   []format.Entry
	changes []Change
	holds   map[Key]savedHold
}

// savedHold is the newest hold of a bucket in a commit. A Store may reorder
// saves, so after the save its index is no longer valid.
type savedHold struct {
	index int // in work.saves
	end   int64
}

// Batch is the work of one commit.
type Batch = groupcommit.Batch[work]

// pending is a bucket in a commit that has not ended.
type pending struct {
	key     Key
	batch   *Batch // newest commit of the bucket
	index   int    // of its change in the batch, until the save
	tat     int64  // that the batch saves
	entries int    // changes of the batch to this bucket
	limits  []limitChange
	kept    bool // a failed commit takes nothing back: TAT was lowered since, or an answer builds on it
}

// limitChange is a change of the limit of a pending bucket.
type limitChange struct {
	convert func(tat int64) int64
	noQueue bool
}
