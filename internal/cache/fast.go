package cache

import (
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// What a fast path needs of a shard that it has locked is here, and in lane.go.

// UsableLocked returns the rule of the bucket at index i if a decision on it needs
// nothing but its TAT, and otherwise nil: it has a hold or a queue, its limit has
// become smaller, or the Cache is closed.
func (s *Shard) UsableLocked(i uint32) *gcra.Rule {
	meta := s.At(i).Meta()
	if s.Limits == nil || meta&(table.Gate|table.Uncut) != 0 {
		return nil
	}
	return &s.Limits.Rules[table.RuleOf(meta)]
}

// SpendLocked gives the bucket at index i the TAT after a spend at the instant now.
func (s *Shard) SpendLocked(i uint32, to, now int64) {
	s.DecidedLocked(now)
	s.Write(i, to)
}

// ContendedLocked counts a spend for which a fast path had to wait for the lock, and
// gives the bucket a lane if that happens often.
func (c *Cache) ContendedLocked(s *Shard, name uint16, id string, hash uint64) {
	i, ok := s.Find(name, id, hash)
	if !ok || s.lane != nil {
		return
	}
	if s.rival != i {
		s.rival, s.contended = i, 0
	}
	if s.contended++; s.contended < promoteAfter {
		return
	}
	s.contended = 0
	c.PromoteLocked(s, i, hash)
}

// PromoteLocked gives the bucket at index i a lane, if it can have one: its limit is
// below Leased and does not follow the calendar, and the bucket has no hold or queue.
// A lane does not cut a TAT down to a smaller limit.
func (c *Cache) PromoteLocked(s *Shard, i uint32, hash uint64) {
	b, place := s.At(i), c.lanes.at(hash)
	r := s.ruleOf(b)
	if s.lane != nil || place.Load() != nil || b.Has(table.Gate|table.Uncut) ||
		!r.Limited() || r.Periods != nil || r.Level.Or(c.flusher.level) >= gcra.Leased {
		return
	}
	key := slotKey(b)
	s.lane = &Lane{Rule: r, index: i, tally: c.tally(key.Name), hash: hash, key: key}
	s.lane.tat.Store(b.TAT())
	place.Store(s.lane)
}
