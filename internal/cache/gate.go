package cache

import (
	"iter"
	"maps"
	"strings"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Gate is the hold or the queue of a bucket, or both. Few buckets have one, so
// it is in a map of the shard, and the slot has a flag.
//
// A hold is in force as soon as it is in the gate, and durable when its commit
// has ended. If the commit fails, the hold that was last saved is in force again.
// After its end a hold denies nothing, and the next flush removes it.
//
// A queue lives in memory only. AdvanceLocked charges each turn to the bucket
// when it comes. The store gets the TAT after all turns, also after those that
// still wait. So a bucket with a queue stays in memory. A bucket with only a hold
// may leave memory, and its gate stays. A gate without hold, queue or commit is
// dropped.
type Gate struct {
	Hold  int64       // end of the hold in force; 0 if there is none
	Rate  queue.Rate  // of the limit that the queue was last held to
	Queue queue.Queue // of requests that wait for their turns

	saved   int64 // end of the hold that was last saved, or loaded
	unsaved bool  // the store may have another hold than memory
	commits int   // changes of the hold that are in commits
	newest  *Batch
	resets  int // resets in commits: if one fails, its turns come back
}

// SavedLocked reports whether the store has the hold in force, and no commit is
// about to change it.
func (g *Gate) SavedLocked() bool { return !g.unsaved && g.commits == 0 }

// InCommitLocked reports whether a commit is about to change the hold.
func (g *Gate) InCommitLocked() bool { return g.commits > 0 }

// HeldLocked reports whether there is a hold, here or perhaps in the store. The
// gate may be nil.
func (g *Gate) HeldLocked() bool { return g != nil && (g.Hold != 0 || !g.SavedLocked()) }

// BusyLocked reports whether requests wait, or turns may come back because a reset
// fails. The gate may be nil.
func (g *Gate) BusyLocked() bool { return g != nil && (g.Queue.Len() > 0 || g.resets > 0) }

// Tail returns the TAT after the queue, for a bucket with this TAT. The gate
// may be nil.
func (g *Gate) Tail(tat int64) int64 {
	if g == nil || g.Queue.Len() == 0 {
		return tat
	}
	return g.Queue.Tail(tat, g.Rate)
}

// NotBefore returns the end of the hold or the instant of the last turn,
// whichever is later, or 0 if there is neither. The gate may be nil.
func (g *Gate) NotBefore() int64 {
	if g == nil {
		return 0
	}
	return max(g.Hold, g.Queue.Last())
}

// MakeGateLocked returns the key's gate, and makes it if there is none.
func (s *Shard) MakeGateLocked(key Key, h uint64) *Gate {
	g := s.gates[key]
	if g == nil {
		if s.gates == nil {
			s.gates = make(map[Key]*Gate)
		}
		g = &Gate{}
		s.gates[Key{key.Name, strings.Clone(key.ID)}] = g
		if i, ok := s.findLocked(key, h); ok {
			s.At(i).Set(table.Gate)
		}
	}
	return g
}

// gateOfLocked returns the gate of a slot, or nil.
func (s *Shard) gateOfLocked(b table.Slot) *Gate {
	if !b.Has(table.Gate) {
		return nil
	}
	return s.gates[Key{b.Name(), string(b.ID())}]
}

// queuedLocked reports whether requests wait at a bucket.
func (s *Shard) queuedLocked(b table.Slot) bool {
	g := s.gateOfLocked(b)
	return g != nil && g.Queue.Len() > 0
}

// TailLocked returns the bucket's TAT after its queue. The store gets that TAT.
func (s *Shard) TailLocked(b table.Slot) int64 { return s.gateOfLocked(b).Tail(b.TAT()) }

// AdvanceLocked charges the turns of a queue that have come.
func (s *Shard) AdvanceLocked(b table.Slot, g *Gate, now int64) {
	if g.Queue.Len() > 0 {
		b.SetTAT(g.Queue.Advance(b.TAT(), now, g.Rate))
	}
}

// TidyGateLocked charges the turns that have come, and drops the gate if it has
// no hold, queue or commit.
func (s *Shard) TidyGateLocked(key Key, g *Gate, now int64) {
	i, resident := s.findLocked(key, table.Hash(s.directory.seed, key.Name, key.ID))
	if resident {
		s.AdvanceLocked(s.At(i), g, now)
	}
	if g.Hold == 0 && g.Queue.Len() == 0 && !g.unsaved && g.commits == 0 && g.resets == 0 {
		delete(s.gates, key)
		if resident {
			s.At(i).Clear(table.Gate)
		}
	}
}

// GateLocked returns the key's gate, or nil.
func (s *Shard) GateLocked(key Key) *Gate { return s.gates[key] }

// GatesLocked yields the gates of a locked shard.
func (s *Shard) GatesLocked() iter.Seq2[Key, *Gate] { return maps.All(s.gates) }

// holdEntry returns the entry that the store has for a bucket's hold.
func holdEntry(key Key, end int64) format.Entry {
	return format.Entry{Name: holds, ID: format.Entry{Name: key.Name, ID: key.ID}.String(), TAT: end}
}

// holds is the Name of the entries of holds.
const holds = 0

// RestoreHold puts a hold of the store in force.
func (c *Cache) RestoreHold(key Key, end int64) {
	s, h := c.shardOf(key)
	g := s.MakeGateLocked(key, h)
	g.Hold = max(1, end) // the first flush deletes those that are over
	g.saved = g.Hold
}
