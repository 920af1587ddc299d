package cache

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/stint-go/stint/internal/table"
)

// Shard is one part of the buckets in memory. mu guards all of it. Methods named
// …Locked need it, and so do those of Slots except Prefetch and EvictSteps.
type Shard struct {
	// The fields that decisions change share a cache line. Slots begins the next
	// one, with the address of the slots, which seldom changes: so a processor can
	// ask for a slot before it has the line of the lock. TestShardLayout checks that.
	mu     sync.Mutex
	Limits *Limits   // in force; nil once closed
	latest int64     // instant of the last decision that put a TAT ahead
	few    [2]count  // of two Names
	fewOf  [2]uint16 // their numbers, or 0
	Order  uint32    // of locking

	table.Slots

	lane      *Lane  // of a hot bucket; nil if there is none
	rival     uint32 // index of the last bucket for which a fast path waited
	contended uint32 // how often it did so

	more      []countOf // of other Names
	gates     map[Key]*Gate
	pending   []pending // buckets in commits: a few at a time
	directory *directory
	_         [32]byte
}

// findLocked returns the index of the key's slot.
func (s *Shard) findLocked(key Key, h uint64) (i uint32, ok bool) {
	return s.Find(key.Name, key.ID, h)
}

// InsertLocked adds a bucket and returns its index.
func (s *Shard) InsertLocked(name uint16, id string, h uint64, tat int64, rule uint32, flags uint64) uint32 {
	if len(s.gates) > 0 && s.gates[Key{name, id}] != nil {
		flags |= table.Gate
	}
	s.directory.resident.Add(1)
	return s.Insert(name, id, h, tat, rule, flags)
}

// RemoveLocked removes a bucket from memory, saved or not.
func (s *Shard) RemoveLocked(i uint32) {
	s.Remove(i)
	s.directory.resident.Add(-1)
	s.directory.left.Add(1)
}

// slotKey returns the key of a slot, as a copy.
func slotKey(b table.Slot) Key { return Key{b.Name(), string(b.ID())} }

// countOf is a count of a Name in one shard, or a part of it.
type countOf struct {
	name uint16 // 0 if it is free
	count
}

// CountLocked returns the counts of allowed and denied decisions on a Name, for the
// caller to add to.
func (s *Shard) CountLocked(name uint16) *count {
	if s.fewOf[name&1] != name {
		s.fetchCountLocked(name)
	}
	return &s.few[name&1]
}

// mostCounts is how many counts a shard has besides the few: more would take
// hundreds of megabytes for all shards if a program has thousands of Names.
const mostCounts = 64

// fetchCountLocked gives a Name a count in few, and moves the one that was there to
// more. If more has no place for it, another one leaves the shard.
func (s *Shard) fetchCountLocked(name uint16) {
	was := countOf{s.fewOf[name&1], s.few[name&1]}
	s.fewOf[name&1], s.few[name&1] = name, count{}
	if was.name == 0 {
		return
	}
	for {
		if len(s.more) > 0 {
			c := &s.more[int(was.name)%len(s.more)]
			if c.name != was.name && c.name != 0 && len(s.more) == mostCounts {
				s.directory.takeCount(c.name, &c.count)
				c.name = 0
			}
			if c.name == was.name || c.name == 0 {
				c.name = was.name
				c.add(was.count)
				return
			}
		}
		fewer := s.more
		s.more = make([]countOf, max(4, 2*len(fewer)))
		for _, c := range fewer {
			if c.name != 0 {
				s.more[int(c.name)%len(s.more)] = c
			}
		}
	}
}

// Lock takes the lock of a shard for anything but a fast path, and retires its lane.
func (s *Shard) Lock() {
	s.mu.Lock()
	s.retireLocked()
}

// Unlock ends Lock.
func (s *Shard) Unlock() { s.mu.Unlock() }

// TryLockFast is Lock for a fast path, which changes no TAT but that of a slot without a
// lane. The lane stays. If the lock is taken, TryLockFast returns false, and LockFast
// waits for it: one method for both would not be inlined, and takes 1 ns.
func (s *Shard) TryLockFast() bool { return s.mu.TryLock() }

// LockFast is TryLockFast that waits.
func (s *Shard) LockFast() { s.mu.Lock() }

// UnlockFast ends LockFast.
func (s *Shard) UnlockFast() { s.mu.Unlock() }

// retireLocked ends the lane of the shard, if it has one.
func (s *Shard) retireLocked() {
	if s.lane != nil {
		s.endLaneLocked()
	}
}

// LockAll locks a few shards with Lock, each once, and returns them for UnlockAll. If
// one is locked, by another call or for the second time, it begins again, in the order
// of locking. Sorting them first takes 5 % longer: no processor predicts the order.
func LockAll(shards []*Shard) []*Shard {
	for n, s := range shards {
		if s.mu.TryLock() {
			s.retireLocked()
			continue
		}
		UnlockAll(shards[:n])
		slices.SortFunc(shards, func(a, b *Shard) int { return cmp.Compare(a.Order, b.Order) })
		shards = slices.Compact(shards)
		for _, s := range shards {
			s.Lock()
		}
		break
	}
	return shards
}

// UnlockAll unlocks what LockAll has locked.
func UnlockAll(locked []*Shard) {
	for _, s := range locked {
		s.Unlock()
	}
}

// DecidedLocked notes a decision at the instant now that puts a TAT ahead.
func (s *Shard) DecidedLocked(now int64) { s.latest = max(s.latest, now) }

// DecidedAfterLocked reports whether a TAT was put ahead by a decision at a later
// instant than now. If not, a denial at the instant now is a true one: a caller that
// reads the clock and then waits for the lock is denied what was not there when it
// read the clock. Otherwise it may be denied a token that was there all the time.
func (s *Shard) DecidedAfterLocked(now int64) bool { return s.latest > now }

// endLaneLocked gives the slot of a hot bucket its TAT back.
func (s *Shard) endLaneLocked() {
	n := s.lane
	s.lane, s.rival, s.contended = nil, n.index, promoteAfter-1
	tat := n.tat.Swap(LaneRetired)
	s.directory.lanes.at(n.hash).Store(nil)
	if tat != s.At(n.index).TAT() {
		s.DecidedLocked(s.directory.clock.Now()) // all decisions in the lane read the clock earlier
		s.Write(n.index, tat)
	}
}

// makeGateLocked returns the key's gate, and makes it if there is none.
func (s *Shard) makeGateLocked(key Key, h uint64) *Gate {
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
	if g.Queue.Len() == 0 {
		return
	}
	if tat := g.Queue.Advance(b.TAT(), now, g.rate); tat != b.TAT() {
		b.SetTAT(tat)
		s.DecidedLocked(now)
	}
}

// tidyGateLocked charges the turns that have come, and drops the gate if it has
// no hold, queue or commit.
func (s *Shard) tidyGateLocked(key Key, g *Gate, now int64) {
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

// pendingLocked returns the commit that a bucket is in, or nil.
func (s *Shard) pendingLocked(b table.Slot) *pending {
	if b.Has(table.Pending) {
		for i := range s.pending {
			if p := &s.pending[i]; p.key.Name == b.Name() && p.key.ID == string(b.ID()) {
				return p
			}
		}
	}
	return nil
}

// dropPendingLocked notes that a bucket's newest commit has ended.
func (s *Shard) dropPendingLocked(b table.Slot, p *pending) {
	last := &s.pending[len(s.pending)-1]
	*p, *last = *last, pending{}
	s.pending = s.pending[:len(s.pending)-1]
	b.Clear(table.Pending)
}

// unsavedLocked reports whether the store may have another TAT for a bucket
// than memory has.
func (s *Shard) unsavedLocked(b table.Slot) bool {
	saving := s.directory.saving.Load()
	return b.Has(table.Dirty|table.Pending) || saving != 0 && b.Meta()&table.SaveMask == saving
}

// LowerLocked gives a bucket an earlier TAT, after a refund, a reset or a change
// of its limit. Write gives it a later one, after a spend or a change of
// its limit. Only two other things change the TAT of a bucket in memory. A queue
// charges its turns, which leaves the tail as it is. A failed commit takes back
// its own change.
func (s *Shard) LowerLocked(i uint32, tat int64) {
	if p := s.pendingLocked(s.At(i)); p != nil {
		p.survivesFailure = true
	}
	s.Write(i, tat)
}
