package stint

import (
	"strings"

	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// gate is the hold or the queue of a bucket, or both. Few buckets have one, so
// it is in a map of the shard, and the slot has a flag.
//
// A hold is in force as soon as it is in the gate, and durable when its commit
// has ended. If the commit fails, the hold that was last saved is in force again.
// After its end a hold denies nothing, and the next flush removes it.
//
// A queue lives in memory only. advanceLocked charges each turn to the bucket
// when it comes. The store gets the TAT after all turns, also after those that
// still wait. So a bucket with a queue stays in memory. A bucket with only a hold
// may leave memory, and its gate stays. A gate without hold, queue or commit is
// dropped.
type gate struct {
	hold    int64 // end of the hold in force; 0 if there is none
	saved   int64 // end of the hold that was last saved, or loaded
	unsaved bool  // the store may have another hold than memory
	commits int   // changes of the hold that are in commits
	newest  *batch
	resets  int        // resets in commits: if one fails, its turns come back
	rate    queue.Rate // of the limit that the queue was last held to
	queue   queue.Queue
}

// savedLocked reports whether the store has the hold in force, and no commit is
// about to change it.
func (g *gate) savedLocked() bool { return !g.unsaved && g.commits == 0 }

func queueRate(r *rate) queue.Rate {
	return queue.Rate{Interval: r.interval, Tolerance: r.tolerance}
}

// tail returns the TAT after the queue, for a bucket with this TAT. The gate
// may be nil.
func (g *gate) tail(tat int64) int64 {
	if g == nil || g.queue.Len() == 0 {
		return tat
	}
	return g.queue.Tail(tat, g.rate)
}

// notBefore returns the end of the hold or the instant of the last turn,
// whichever is later, or 0 if there is neither. The gate may be nil.
func (g *gate) notBefore() int64 {
	if g == nil {
		return 0
	}
	return max(g.hold, g.queue.Last())
}

// gateLocked returns the key's gate, and makes it if there is none.
func (s *shard) gateLocked(key Key, h uint64) *gate {
	g := s.gates[key]
	if g == nil {
		if s.gates == nil {
			s.gates = make(map[Key]*gate)
		}
		g = &gate{}
		s.gates[Key{key.Name, strings.Clone(key.ID)}] = g
		if i, ok := s.findLocked(key, h); ok {
			s.At(i).Set(table.Gate)
		}
	}
	return g
}

// gateOfLocked returns the gate of a slot, or nil.
func (s *shard) gateOfLocked(b table.Slot) *gate {
	if !b.Has(table.Gate) {
		return nil
	}
	return s.gates[Key{Name(b.Name()), string(b.ID())}]
}

// queuedLocked reports whether requests wait at a bucket.
func (s *shard) queuedLocked(b table.Slot) bool {
	g := s.gateOfLocked(b)
	return g != nil && g.queue.Len() > 0
}

// tailLocked returns the bucket's TAT after its queue. The store gets that TAT.
func (s *shard) tailLocked(b table.Slot) int64 { return s.gateOfLocked(b).tail(b.TAT()) }

// advanceLocked charges the turns of a queue that have come.
func (s *shard) advanceLocked(b table.Slot, g *gate, now int64) {
	if g.queue.Len() > 0 {
		b.SetTAT(g.queue.Advance(b.TAT(), now, g.rate))
	}
}

// tidyGateLocked charges the turns that have come, and drops the gate if it has
// no hold, queue or commit.
func (s *shard) tidyGateLocked(key Key, g *gate, now int64) {
	i, resident := s.findLocked(key, s.directory.hash(key))
	if resident {
		s.advanceLocked(s.At(i), g, now)
	}
	if g.hold == 0 && g.queue.Len() == 0 && !g.unsaved && g.commits == 0 && g.resets == 0 {
		delete(s.gates, key)
		if resident && s.limits.member(key.Name).role == plainRole {
			s.At(i).Clear(table.Gate)
		}
	}
}

// holdKey is the key under which the store has a bucket's hold.
func holdKey(key Key) Key { return Key{Unknown, key.String()} }
