package cache

import (
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/queue"
)

// Gate is the hold or the queue of a bucket, or both. Few buckets have one, so
// it is in a map of the shard, and the slot has a flag.
//
// A hold is in force as soon as it is in the gate, and durable when its commit
// has succeeded. If the commit fails, the hold that was last saved is in force again.
// After its end a hold denies nothing, and the next flush removes it.
//
// A queue lives in memory only. AdvanceLocked charges each turn to the bucket
// when it comes. The store gets the TAT after all turns, even those that
// still wait: that is not the present one, so a bucket with a queue stays in memory.
// A bucket with only a hold may leave memory, and its gate stays. A gate without
// hold, queue or commit is dropped.
type Gate struct {
	Hold  int64       // end of the hold in force; 0 if there is none
	Queue queue.Queue // of requests that wait for their turns

	rate    queue.Rate // of the limit that the queue was last held to
	saved   int64      // end of the hold that was last saved, or loaded
	unsaved bool       // the store may have another hold than memory
	commits int        // changes of the hold that are in commits
	newest  *Batch
	resets  int // in commits that have not ended: if one fails, its turns come back
}

// savedLocked reports whether the store has the hold in force, and no commit is
// about to change it.
func (g *Gate) savedLocked() bool { return !g.unsaved && g.commits == 0 }

// BusyLocked reports whether requests wait, or turns may come back because a reset
// fails. The gate may be nil.
func (g *Gate) BusyLocked() bool { return g != nil && (g.Queue.Len() > 0 || g.resets > 0) }

// Tail returns the TAT after the queue, for a bucket with this TAT. The gate
// may be nil.
func (g *Gate) Tail(tat int64) int64 {
	if g == nil || g.Queue.Len() == 0 {
		return tat
	}
	return g.Queue.Tail(tat, g.rate)
}

// leaveLocked takes a turn out of the queue of a bucket with this TAT, and reports
// whether it was still waiting. Those behind it move up, but not into a hold.
func (g *Gate) leaveLocked(turn *queue.Turn, tat, now int64) bool {
	return g.Queue.Leave(turn, tat, max(now, g.Hold), g.rate)
}

// NotBefore returns the end of the hold or the instant of the last turn,
// whichever is later, or 0 if there is neither. The gate may be nil.
func (g *Gate) NotBefore() int64 {
	if g == nil {
		return 0
	}
	return max(g.Hold, g.Queue.Last())
}

// holdEntry returns the entry that the store has for a bucket's hold.
func holdEntry(key Key, end int64) format.Entry {
	return format.Entry{Name: holds, ID: format.Entry{Name: key.Name, ID: key.ID}.String(), TAT: end}
}
