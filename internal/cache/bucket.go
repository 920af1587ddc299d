package cache

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/since"
	"github.com/stint-go/stint/internal/table"
)

// Bucket is a bucket that a call looks for, in memory or in the store.
type Bucket struct {
	Key   Key
	Shard *Shard
	Hash  uint64
	Need  Need
	At    int // for the caller: which of its requests it is

	// These are known while LockFound has locked the shard.
	TAT      int64
	Rule     uint32 // number of the configured one
	Resident bool   // it is in memory
	index    uint32 // its slot, if it is in memory

	known    bool    // findLocked found the state of the bucket
	limits   *Limits // at the last load; nil before it
	saved    int64   // TAT in the store at that load
	removals uint32  // of the shard before that load
}

// Need says which calls need the state of a bucket.
type Need uint8

// The needs. ByRule is the zero Need.
const (
	ByRule Need = iota // if the rule of the bucket has arithmetic
	Always             // whatever its rule is
	Never              // whatever its rule is
	Read               // whatever its rule is, and it gets no place in memory
)

// Locate sets the shard and the hash of a bucket.
func (c *Cache) Locate(b *Bucket) {
	b.Shard, b.Hash = c.shardOf(b.Key)
	b.Shard.Prefetch(b.Hash)
}

// Compare is the order of locking. Equal keys become neighbours.
func (b *Bucket) Compare(other *Bucket) int {
	if c := cmp.Compare(b.Shard.Order, other.Shard.Order); c != 0 {
		return c
	}
	if c := cmp.Compare(b.Hash, other.Hash); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(b.Key.Name, other.Key.Name), strings.Compare(b.Key.ID, other.Key.ID))
}

// LockFound locks the shards of buckets once the state of each is known, and loads only
// those that are unknown. The buckets are sorted by Compare. If full is not nil, it is
// returned in place of a wait for space in memory. After an error, which is that of
// bs[at], no shard is locked.
func (c *Cache) LockFound(bs []Bucket, full error) (at int, err error) {
	for !LockKnown(bs) {
		if at, err = c.LoadUnknown(bs, full); err != nil {
			return at, err
		}
	}
	for i := range bs {
		if bs[i].Shard.Limits == nil {
			UnlockBuckets(bs)
			return i, format.ErrClosed
		}
	}
	return 0, nil
}

// LockKnown locks the shards of sorted buckets if the state of each is known, and
// reports whether it has.
func LockKnown(bs []Bucket) (known bool) {
	known = true
	for i := range bs {
		b := &bs[i]
		if i == 0 || b.Shard != bs[i-1].Shard {
			b.Shard.Lock()
		}
		b.known = b.findLocked()
		known = known && b.known
	}
	if !known {
		UnlockBuckets(bs)
	}
	return known
}

// UnlockBuckets unlocks what LockFound or LockKnown has locked.
func UnlockBuckets(bs []Bucket) {
	for i := range bs {
		if i == 0 || bs[i].Shard != bs[i-1].Shard {
			bs[i].Shard.Unlock()
		}
	}
}

// LoadUnknown loads the buckets whose state LockKnown did not find.
func (c *Cache) LoadUnknown(bs []Bucket, full error) (at int, err error) {
	for i := range bs {
		if !bs[i].known {
			if err := c.load(&bs[i], full); err != nil {
				return i, err
			}
		}
	}
	return 0, nil
}

// findLocked reports whether the state of the bucket is known: it is in
// memory, or it was loaded and no bucket has left the shard since.
func (b *Bucket) findLocked() bool {
	s := b.Shard
	if b.index, b.Resident = s.findLocked(b.Key, b.Hash); b.Resident {
		slot := s.At(b.index)
		b.TAT = slot.TAT()
		if rule := slot.Rule(); rule != 0 || b.Need != ByRule && s.Limits.accepts(b.Key) {
			b.Rule = rule
			return true
		}
	}
	return b.limits == s.Limits && (b.Resident || b.removals == s.Removals())
}

// load asks the store for the TAT of a bucket that is not in memory. A bucket whose
// state is not needed does not wait for space in memory.
func (c *Cache) load(b *Bucket, full error) error {
	if needed, err := b.resolve(); err != nil || !needed {
		return err
	}
	if b.Need != Read && c.flusher.full() {
		if full != nil {
			return full
		}
		if err := c.MakeSpace(); err != nil {
			return err
		}
		if needed, err := b.resolve(); err != nil || !needed { // again: buckets have left memory
			return err
		}
	}
	var err error
	b.saved, err = c.loadTAT(b.Key)
	b.TAT = b.saved
	return err
}

// loadTAT returns the TAT that the store has for a bucket.
func (c *Cache) loadTAT(key Key) (tat int64, err error) {
	c.loads.Add(1)
	tat, err = c.flusher.store.Load(key.Name, key.ID)
	was := c.loadFailure.Load()
	if err == nil {
		if was != nil {
			c.loadFailure.CompareAndSwap(was, nil)
		}
		return tat, nil
	}
	is := &since.Failure{Err: err, Since: time.Unix(0, c.flusher.clock.Now())}
	if was != nil {
		is.Since = was.Since
	}
	c.loadFailure.CompareAndSwap(was, is) // unless another load has ended since
	return 0, fmt.Errorf("stint: %w", err)
}

// resolve finds the rule of a bucket that is not in memory, and reports whether its
// TAT is needed.
func (b *Bucket) resolve() (needed bool, err error) {
	b.Shard.LockFast() // a lane may stay
	limits, removals := b.Shard.Limits, b.Shard.Removals()
	b.Shard.UnlockFast()
	if limits == nil {
		return false, format.ErrClosed
	}
	if b.Rule, _, err = limits.Resolve(b.Key); err != nil {
		return false, err
	}
	b.limits, b.removals, b.saved, b.TAT = limits, removals, 0, 0
	return b.Need == Always || b.Need == Read || b.Need == ByRule && limits.Rules[b.Rule].Limited(), nil
}

// RuleLocked returns the configured rule of the bucket.
func (b *Bucket) RuleLocked() *gcra.Rule { return &b.Shard.Limits.Rules[b.Rule] }

// GateLocked returns the gate of the bucket, or nil.
func (b *Bucket) GateLocked() *Gate { return b.Shard.GateLocked(b.Key) }

// ReadyLocked charges the turns of the bucket that have come, and clamps its TAT for
// a request that is held to a rule. It returns the gate of the bucket, or nil.
func (b *Bucket) ReadyLocked(held *gcra.Rule, now int64) *Gate {
	g := b.GateLocked()
	if g != nil && b.Resident {
		slot := b.Shard.At(b.index)
		b.Shard.AdvanceLocked(slot, g, now)
		b.TAT = slot.TAT()
	}
	b.clampLocked(held, now)
	return g
}

// clampLocked clamps a TAT that was loaded, or that is in memory while no request
// has come since the limit became smaller. Any other bucket in memory stays as it
// is: a larger given limit may have emptied it.
//
// A quota keeps what the loaded TAT says was used under one of another zone, start
// or unit.
func (b *Bucket) clampLocked(held *gcra.Rule, now int64) {
	configured := b.RuleLocked()
	if !configured.Limited() && !held.Limited() {
		return
	}
	if b.Resident {
		slot := b.Shard.At(b.index)
		if !slot.Has(table.Uncut) {
			return
		}
		slot.Clear(table.Uncut)
	}
	if b.TAT <= now {
		return
	}
	if !b.Resident && configured.Periods != nil {
		b.TAT = configured.Read(b.TAT, now)
	} else if !b.Resident && held.Periods != nil {
		b.TAT = held.Read(b.TAT, now)
	}
	most := int64(0)
	for _, rule := range [...]*gcra.Rule{configured, held} {
		if rule.Limited() {
			most = max(most, rule.Clamp(math.MaxInt64, now))
		}
	}
	if b.Resident && most < b.TAT {
		b.Shard.LowerLocked(b.index, most)
	}
	b.TAT = min(b.TAT, most)
}

// PutLocked gives the bucket a new TAT, and a slot if it needs one, after a request
// that was held to a rule. A check that changes nothing does not count as a use.
func (b *Bucket) PutLocked(to int64, held *gcra.Rule, now int64, check bool) {
	s := b.Shard
	if to > b.TAT {
		s.DecidedLocked(now)
	}
	switch {
	case b.Resident && to > b.TAT:
		s.Write(b.index, to)
	case b.Resident && to < b.TAT:
		s.LowerLocked(b.index, to)
	case b.Resident && !check:
		s.Use(b.index)
	case b.Resident:
	case b.saved != 0 || held.Limited() && (to > now || b.GateLocked() != nil):
		flags := uint64(0)
		if b.saved != 0 {
			flags = table.Stored | table.Loaded
		}
		if to != b.saved {
			flags |= table.Dirty
		}
		b.index = s.InsertLocked(b.Key.Name, b.Key.ID, b.Hash, to, b.Rule, flags)
	}
}

// JoinLocked puts a turn at the end of the bucket's queue. given is the rule of the
// turn if that is not the configured one.
func (b *Bucket) JoinLocked(turn *queue.Turn, given *gcra.Rule, now int64) {
	g, held := b.Shard.makeGateLocked(b.Key, b.Hash), given
	if held == nil {
		held = b.RuleLocked()
		g.rate = held.QueueRate()
	}
	g.Queue.Join(turn)
	b.PutLocked(b.TAT, held, now, false)
	b.Shard.MarkDirty(b.index)
}

// lockOne is LockFound for one bucket.
func (c *Cache) lockOne(key Key, need Need) (Bucket, error) {
	bs := [1]Bucket{{Key: key, Need: need}}
	c.Locate(&bs[0])
	_, err := c.LockFound(bs[:], nil)
	return bs[0], err
}

// Reset makes a bucket full, empties its queue, and ends its hold. It returns the
// commit that the answer waits for, or nil.
func (c *Cache) Reset(key Key) (*Batch, error) {
	b, err := c.lockOne(key, Always)
	if err != nil {
		return nil, err
	}
	defer b.Shard.Unlock()
	s, rule, now := b.Shard, b.RuleLocked(), c.flusher.clock.Now()
	g := b.ReadyLocked(rule, now) // clamped, so that a failed commit puts the clamped TAT back
	ch := Change{Key: b.Key, Shard: s, Hash: b.Hash, From: b.TAT, To: min(now, b.TAT), Builds: true}
	if g != nil && g.Queue.Len() > 0 {
		ch.Turns = g.Queue.Take()
		s.MarkDirty(b.index) // the store has the TAT after the turns
	}
	b.PutLocked(ch.To, rule, now, false)
	ch.Given = s.levelOfGivenLocked(&b)
	if g != nil && (g.Hold != 0 || !g.savedLocked()) {
		return c.holdLocked(&ch, g, 0, now, true), nil
	}
	return c.SubmitLocked([]Change{ch}, now), nil
}

// levelOfGivenLocked returns Synced if a given limit may have changed the bucket in
// the store, and otherwise 0: no limit is configured, or the bucket was loaded. At
// which level that was is not known any more.
func (s *Shard) levelOfGivenLocked(b *Bucket) gcra.Level {
	if i, ok := s.findLocked(b.Key, b.Hash); ok {
		slot := s.At(i)
		if slot.Has(table.Stored) && (slot.Has(table.Flush|table.Loaded) || !s.ruleOf(slot).Limited()) {
			return gcra.Synced
		}
	}
	return 0
}

// Seen is what a request would find at a bucket.
type Seen struct {
	Rule     *gcra.Rule
	TAT      int64 // after the queue
	Hold     int64 // end of the hold, or 0
	Now      int64 // instant of the look
	Resident bool
}

// Read returns what a request would find at a bucket, which takes no place in memory.
func (c *Cache) Read(key Key) (Seen, error) {
	b, err := c.lockOne(key, Read)
	if err != nil {
		return Seen{}, err
	}
	defer b.Shard.Unlock()
	return b.seenLocked(c.flusher.clock.Now()), nil
}

// Look is Read for a bucket whose TAT in the store is known. It returns false after
// Close.
func (c *Cache) Look(key Key, stored int64) (Seen, bool) {
	b := Bucket{Key: key, TAT: stored}
	c.Locate(&b)
	b.Shard.Lock()
	defer b.Shard.Unlock()
	if b.Shard.Limits == nil {
		return Seen{}, false
	}
	if b.index, b.Resident = b.Shard.findLocked(key, b.Hash); b.Resident {
		b.TAT = b.Shard.At(b.index).TAT()
	}
	b.Rule, _, _ = b.Shard.Limits.Resolve(key)
	return b.seenLocked(c.flusher.clock.Now()), true
}

func (b *Bucket) seenLocked(now int64) Seen {
	seen := Seen{Rule: b.RuleLocked(), TAT: b.TAT, Now: now, Resident: b.Resident}
	g := b.GateLocked()
	switch {
	case !seen.Rule.Limited():
	case !b.Resident:
		seen.TAT = seen.Rule.Read(b.TAT, now)
	case b.Shard.At(b.index).Has(table.Uncut):
		seen.TAT = seen.Rule.Clamp(b.TAT, now)
	}
	if b.Resident {
		seen.TAT = g.Tail(seen.TAT)
	}
	if g != nil && g.Hold > now {
		seen.Hold = g.Hold
	}
	return seen
}
