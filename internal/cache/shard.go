package cache

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Shard is one part of the buckets in memory. Mu guards all of it. Methods named
// …Locked need it, and so do those of Slots except Prefetch and EvictSteps.
type Shard struct {
	// The fields that decisions change share a cache line. Slots begins the next
	// one, with the address of the slots, which seldom changes: so a processor can
	// ask for a slot before it has the line of the lock. TestShardLayout checks that.
	Mu     sync.Mutex
	Limits Limits    // in force; nil once closed
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
	_         [40]byte
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

// CountLocked returns counts of allowed and denied decisions on a Name, for the
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

// Lock takes the lock of a shard for anything but a fast path.
func (s *Shard) Lock() {
	s.Mu.Lock()
	s.retireLocked()
}

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
		if s.Mu.TryLock() {
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
		s.Mu.Unlock()
	}
}

// endLaneLocked gives the slot of a hot bucket its TAT back.
func (s *Shard) endLaneLocked() {
	n := s.lane
	s.lane, s.rival, s.contended = nil, n.index, promoteAfter-1
	tat := n.tat.Swap(LaneRetired)
	s.directory.lanes.at(n.hash).Store(nil)
	if tat != s.At(n.index).TAT() {
		s.Write(n.index, tat)
	}
}

// ContendedLocked counts a spend for which a fast path had to wait for the lock.
// It reports whether the bucket, which has index i, should have a lane.
func (s *Shard) ContendedLocked(i uint32) bool {
	if s.lane != nil {
		return false
	}
	if s.rival != i {
		s.rival, s.contended = i, 0
	}
	if s.contended++; s.contended < promoteAfter {
		return false
	}
	s.contended = 0
	return true
}

// PromoteLocked gives a bucket a lane that decides by a rule of the caller, if it can
// have one. A lane does not cut a TAT down to a smaller limit.
func (s *Shard) PromoteLocked(i uint32, hash uint64, rule any) {
	b, place := s.At(i), s.directory.lanes.at(hash)
	if s.lane != nil || b.Has(table.Gate|table.Uncut) || place.Load() != nil {
		return
	}
	key := slotKey(b)
	s.lane = &Lane{Rule: rule, index: i, tally: s.directory.tally(key.Name), hash: hash, key: key}
	s.lane.tat.Store(b.TAT())
	place.Store(s.lane)
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
	if g.Queue.Len() > 0 {
		b.SetTAT(g.Queue.Advance(b.TAT(), now, g.rate))
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

// JoinLocked puts a turn at the end of a bucket's queue. The rate is that of the
// bucket's limit; nil leaves the one that the queue has.
func (s *Shard) JoinLocked(key Key, h uint64, turn *queue.Turn, rate *queue.Rate) {
	g := s.makeGateLocked(key, h)
	if rate != nil {
		g.rate = *rate
	}
	g.Queue.Join(turn)
}

// RerateLocked holds the queue of the bucket at index i to another limit. If
// that has no queue, what waits is charged at once, and still goes when its turn
// comes.
func (s *Shard) RerateLocked(i uint32, g *Gate, now int64, rate queue.Rate, noQueue bool) {
	if !g.BusyLocked() {
		return
	}
	b := s.At(i)
	s.AdvanceLocked(b, g, now)
	if noQueue {
		b.SetTAT(g.Tail(b.TAT()))
		g.Queue.Take()
	} else {
		g.rate = rate
	}
	s.MarkDirty(i)
}

// GateLocked returns the key's gate, or nil.
func (s *Shard) GateLocked(key Key) *Gate { return s.gates[key] }

// ConvertedLocked notes that a bucket in a commit has another limit now, with no
// queue if noQueue is set. If the commit fails, convert gives the TAT that the
// bucket gets back what its new TAT got.
func (s *Shard) ConvertedLocked(b table.Slot, noQueue bool, convert func(tat int64) int64) {
	if p := s.pendingLocked(b); p != nil {
		p.limits = append(p.limits, limitChange{convert, noQueue})
	}
}

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
// of its limit. Write gives it a later one, after a spend, a raise or a change of
// its limit. Only two other things change the TAT of a bucket in memory. A queue
// charges its turns, which leaves the tail as it is. A failed commit takes back
// its own change.
func (s *Shard) LowerLocked(i uint32, tat int64) {
	if p := s.pendingLocked(s.At(i)); p != nil {
		p.kept = true
	}
	s.Write(i, tat)
}
