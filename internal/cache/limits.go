package cache

import (
	"bytes"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// Limits are the rules in force in a shard.
type Limits struct {
	Rules []gcra.Rule // by number; 0 is that of Names that have none

	// Resolve returns the number of the rule of a bucket, and of the rule that its
	// Name has by default. After an error both are 0.
	Resolve func(key Key) (rule, byDefault uint32, err error)
}

// accepts reports whether a bucket has a rule. Nil limits accept none.
func (ls *Limits) accepts(key Key) bool {
	if ls == nil {
		return false
	}
	_, _, err := ls.Resolve(key)
	return err == nil
}

// ruleOf returns the rule of a bucket.
func (s *Shard) ruleOf(b table.Slot) *gcra.Rule { return &s.Limits.Rules[b.Rule()] }

// SetLimits puts limits in force, and holds every bucket in memory to them.
func (c *Cache) SetLimits(limits *Limits) {
	c.putLimits(limits, func(s *Shard) {
		old, now := s.Limits, c.flusher.clock.Now()
		s.Limits = limits
		s.Each(func(i uint32, _ table.Slot) table.Outcome {
			s.changeRuleLocked(i, old, now, false)
			return table.Done
		})
	})
}

// ReplaceLimits puts limits in force, and leaves the buckets in memory as they are.
// Nil limits close the shards to decisions.
func (c *Cache) ReplaceLimits(limits *Limits) {
	c.putLimits(limits, func(s *Shard) { s.Limits = limits })
}

// putLimits calls put with each shard, locked, to put limits in force there.
func (c *Cache) putLimits(limits *Limits, put func(*Shard)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits = limits
	c.Each(put)
}

// ChangeRule holds a bucket to the limits in force, as after a change of its
// override: it keeps the tokens that were used. A second call changes nothing.
func (c *Cache) ChangeRule(key Key) {
	b := Bucket{Key: key}
	c.Locate(&b)
	b.Shard.Lock()
	defer b.Shard.Unlock()
	b.ChangeRuleLocked(c.flusher.clock.Now())
}

// ChangeRuleLocked is ChangeRule for a bucket whose shard is locked.
func (b *Bucket) ChangeRuleLocked(now int64) {
	s := b.Shard
	if i, ok := s.findLocked(b.Key, b.Hash); ok && s.Limits != nil {
		s.changeRuleLocked(i, s.Limits, now, true)
	}
}

// ChangeRules is ChangeRule for the buckets in memory whose ids begin with a prefix.
func (c *Cache) ChangeRules(name uint16, prefix string) {
	c.Each(func(s *Shard) {
		now := c.flusher.clock.Now()
		s.Each(func(i uint32, b table.Slot) table.Outcome {
			if b.Name() == name && bytes.HasPrefix(b.ID(), []byte(prefix)) && s.Limits != nil {
				s.changeRuleLocked(i, s.Limits, now, true)
			}
			return table.Done
		})
	})
}

// changeRuleLocked holds a bucket to the limits in force, after the old ones,
// which have the bucket's rule. If its rate is the same, the bucket keeps its
// TAT, which may be that of a larger given limit. If the rules give a TAT another
// meaning, the bucket keeps the tokens that were used if convert is set, or if one of
// the rules is not the default of the Name: then an override came, went or changed.
func (s *Shard) changeRuleLocked(i uint32, old *Limits, now int64, convert bool) {
	b := s.At(i)
	key := slotKey(b)
	rule, byDefault, _ := s.Limits.Resolve(key) // 0 if the Name is not declared: then the next call is an error
	was, is := &old.Rules[b.Rule()], &s.Limits.Rules[rule]
	if !is.Converts(was) {
		convert = false
	} else if !convert {
		_, before, _ := old.Resolve(key)
		convert = b.Rule() != before || rule != byDefault
	}
	b.SetRule(rule)
	b.Clear(table.Covered)
	if b.Has(table.Dirty) {
		s.MarkDirty(i) // at the new level it may no longer be deferred
	}
	if !is.Limited() {
		return // a queue keeps the rate that it had
	}
	s.rerateLocked(i, is, now)
	if is.Rate == was.Rate && is.SameTime(was) {
		return
	}
	if p := s.pendingLocked(b); p != nil { // if the commit fails, the old TAT converts too
		p.limits = append(p.limits, limitChange{
			convert: func(tat int64) int64 { return is.After(was, tat, now, convert) }, noQueue: is.Periods != nil,
		})
	}
	tat := b.TAT()
	if convert && b.Has(table.Uncut) {
		tat = was.Clamp(tat, now)
	}
	tat = is.After(was, tat, now, convert)
	b.Clear(table.Uncut)
	if is.Clamp(tat, now) < tat {
		b.Set(table.Uncut) // the next request cuts it
	}
	s.DecidedLocked(now) // even an earlier TAT may deny at earlier instants, under a faster limit
	switch {
	case tat < b.TAT():
		s.LowerLocked(i, tat)
	case tat > b.TAT():
		s.Write(i, tat)
	}
}

// rerateLocked holds the queue of a bucket, if it has one, to another rule. If that
// follows the calendar, what waits is charged at once, and still goes when its turn
// comes.
func (s *Shard) rerateLocked(i uint32, r *gcra.Rule, now int64) {
	b := s.At(i)
	g := s.gateOfLocked(b)
	if !g.BusyLocked() {
		return
	}
	s.AdvanceLocked(b, g, now)
	if r.Periods != nil {
		b.SetTAT(g.Tail(b.TAT()))
		g.Queue.Take()
	} else {
		g.rate = r.QueueRate()
	}
	s.MarkDirty(i)
}
