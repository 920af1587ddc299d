package stint

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// directory holds the buckets in memory, in shards with a mutex each. There
// are many shards, so growing or scanning one stops its callers only for
// microseconds.
//
// Locks of the package, in order: Limiter.limitsMu, flusher.mu, directory.mu,
// the mutexes of shards by their order, the mutex of the group commit, and the
// mutexes that guard counts.
type directory struct {
	seed     maphash.Seed
	shift    uint          // from a hash to the index of its shard
	resident atomic.Int64  // buckets in memory
	saving   atomic.Uint64 // number of the save under way, as in table.SaveMask
	hand     atomic.Uint32 // next shard that evict looks at

	classes [table.Classes]atomic.Pointer[[]shard] // made at the first id of the class
	mu      sync.Mutex                             // guards the making of classes, and limits
	limits  *Limits                                // of new shards; nil once closed
}

// newDirectory returns a directory for about maxResident buckets.
func newDirectory(limits *Limits, maxResident int) *directory {
	const perShard = 1 << 12
	n := bits.Len(uint(maxResident / perShard))
	return &directory{
		seed:   maphash.MakeSeed(),
		shift:  uint(64 - min(max(n, 6), 10)),
		limits: limits,
	}
}

// shard returns the shard that a key belongs to, and the key's hash. The id is
// at most maxIDLen bytes long.
func (t *directory) shard(key Key) (*shard, uint64) {
	class := table.ClassOf(key.ID)
	shards := t.classes[class].Load()
	if shards == nil {
		shards = t.makeClass(class)
	}
	h := t.hash(key)
	return &(*shards)[h>>t.shift], h
}

func (t *directory) hash(key Key) uint64 {
	return table.Hash(t.seed, uint16(key.Name), key.ID)
}

func (t *directory) makeClass(class uint8) *[]shard {
	t.mu.Lock()
	defer t.mu.Unlock()
	if shards := t.classes[class].Load(); shards != nil {
		return shards
	}
	shards := make([]shard, 1<<(64-t.shift))
	for i := range shards {
		s := &shards[i]
		s.directory, s.order = t, uint32(class)<<16|uint32(i)
		s.Init(class, t.seed)
		s.setLimitsLocked(t.limits)
	}
	t.classes[class].Store(&shards)
	return &shards
}

// each calls f with every shard, locked.
func (t *directory) each(f func(*shard)) {
	t.eachFrom(0, func(s *shard) bool { f(s); return true })
}

// eachFrom calls f with shard number from and later ones, each locked, until f
// returns false. It returns the number to go on with, or -1.
func (t *directory) eachFrom(from int, f func(*shard) bool) (next int) {
	perClass := 1 << (64 - t.shift)
	for n := from; n < len(t.classes)*perClass; n++ {
		shards := t.classes[n/perClass].Load()
		if shards == nil {
			n += perClass - 1 - n%perClass
			continue
		}
		s := &(*shards)[n%perClass]
		s.mu.Lock()
		more := f(s)
		s.mu.Unlock()
		if !more {
			return n + 1
		}
	}
	return -1
}

// setLimits puts limits in force by calling f with each shard, locked. Nil
// limits close the directory to decisions.
func (t *directory) setLimits(limits *Limits, f func(*shard)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.each(f)
}

// evict removes buckets from one shard after the other, until tooMany returns
// false or each shard had its turn. It returns the number of removed buckets.
func (t *directory) evict(now int64, used bool, tooMany func() bool) (removed int) {
	perClass := uint32(1) << (64 - t.shift)
	for range len(t.classes) * int(perClass) {
		n := t.hand.Add(1) - 1
		shards := t.classes[n/perClass%uint32(len(t.classes))].Load()
		if shards == nil {
			continue
		}
		s := &(*shards)[n%perClass]
		s.mu.Lock()
		gone := s.Evict(now, used, t.saving.Load(), s.queuedLocked)
		s.mu.Unlock()
		t.resident.Add(-int64(gone))
		removed += gone
		if !tooMany() {
			break
		}
	}
	return removed
}

// shard is one part of the directory. mu guards all of it; methods named
// …Locked, and those of Slots, need it.
type shard struct {
	// The fields that every decision reads share a cache line, up to the start
	// of Slots. TestShardLayout checks that.
	mu     sync.Mutex
	limits *Limits  // in force; nil once closed
	few    [2]count // of the first Names in limits
	table.Slots

	more      []count // of the other Names
	order     uint32  // of locking
	gates     map[Key]*gate
	pending   []pending // buckets in commits: a few at a time
	directory *directory
}

// count has the numbers of decisions on one Name in one shard.
type count struct{ allowed, denied uint64 }

// setLimitsLocked puts limits in force and begins new counts.
func (s *shard) setLimitsLocked(limits *Limits) {
	s.limits, s.few, s.more = limits, [len(s.few)]count{}, nil
	if limits != nil && len(limits.order) > len(s.few) {
		const perLine = 4
		n := len(limits.order) - len(s.few)
		s.more = make([]count, n, (n+perLine-1)&^(perLine-1))
	}
}

// changeLimitsLocked puts limits in force in a shard, for every bucket in it.
func (s *shard) changeLimitsLocked(limits *Limits, now int64) {
	s.setLimitsLocked(limits)
	s.Each(func(i uint32, b table.Slot) table.Outcome { return s.changeRuleLocked(i, b, now) })
}

// changeRules holds the buckets of an override to the limits in force. The id
// of the override is the whole id of the bucket if parts is 0.
func (t *directory) changeRules(key Key, parts int, clock *clock.Clock) {
	if parts == 0 {
		s, h := t.shard(key)
		s.mu.Lock()
		defer s.mu.Unlock()
		if i, ok := s.findLocked(key, h); ok && s.limits != nil {
			s.changeRuleLocked(i, s.At(i), clock.Now())
		}
		return
	}
	t.each(func(s *shard) {
		s.Each(func(i uint32, b table.Slot) table.Outcome {
			if Name(b.Name()) == key.Name && bytes.HasPrefix(b.ID(), []byte(key.ID+":")) {
				return s.changeRuleLocked(i, b, clock.Now())
			}
			return table.Done
		})
	})
}

// changeRuleLocked holds a bucket to the limits in force.
func (s *shard) changeRuleLocked(i uint32, b table.Slot, now int64) table.Outcome {
	if b.Has(table.Clamped) { // by the old limit: the store's TAT may be ahead
		s.removeLocked(i)
		return table.Removed
	}
	rule, _ := s.limits.resolve(slotKey(b)) // 0 if the Name is not declared: then the next call is an error
	b.SetRule(rule)
	b.Clear(table.Covered)
	if s.limits.member(Name(b.Name())).role != plainRole {
		b.Set(table.Gate)
	}
	if b.Has(table.Dirty) {
		s.MarkDirty(i) // at the new level it may no longer be deferred
	}
	if rule <= blocked {
		return table.Done // a queue keeps the rate that it had
	}
	r := &s.limits.rules[rule].rate
	if g := s.gateOfLocked(b); g != nil && g.queue.Len() > 0 {
		s.advanceLocked(b, g, now)
		g.rate = queueRate(r)
		s.MarkDirty(i)
	}
	if tat := r.Clamp(b.TAT(), now); tat != b.TAT() {
		s.lowerLocked(i, tat)
	}
	return table.Done
}

// countOf returns the counts of the Name with an index in limits.
func (s *shard) countOf(index uint32) *count {
	if index < uint32(len(s.few)) {
		return &s.few[index]
	}
	return &s.more[index-uint32(len(s.few))]
}

func (s *shard) countLocked(name Name, allowed bool) {
	if c := s.countOf(s.limits.index(name)); allowed {
		c.allowed++
	} else {
		c.denied++
	}
}

// findLocked returns the index of the key's slot.
func (s *shard) findLocked(key Key, h uint64) (i uint32, ok bool) {
	return s.Find(uint16(key.Name), key.ID, h)
}

// insertLocked adds a bucket and returns its index.
func (s *shard) insertLocked(key Key, h uint64, tat int64, rule uint32, flags uint64) uint32 {
	if _, ok := s.gates[key]; ok || s.limits.member(key.Name).role != plainRole {
		flags |= table.Gate
	}
	s.directory.resident.Add(1)
	return s.Insert(uint16(key.Name), key.ID, h, tat, rule, flags)
}

func (s *shard) removeLocked(i uint32) {
	s.Remove(i)
	s.directory.resident.Add(-1)
}

// lowerLocked gives a bucket an earlier TAT: for a refund, a reset, a smaller
// limit. Write gives it a later one: for a spend or a raise. Only two other things
// change the TAT of a bucket in memory. A queue charges its turns, which leaves the
// tail as it is. A failed commit takes back its own change.
func (s *shard) lowerLocked(i uint32, tat int64) {
	if p := s.pendingLocked(s.At(i)); p != nil {
		p.lowered = true
	}
	s.Write(i, tat)
}

// slotKey returns the key of a slot, as a copy.
func slotKey(b table.Slot) Key { return Key{Name(b.Name()), string(b.ID())} }

// gate is the hold or the queue of a bucket, or both. Few buckets have one, so
// it is not in the slot.
type gate struct {
	hold    int64 // end of the hold; 0 if there is none
	unsaved bool  // the store may have another hold
	commits int   // changes of the hold that are in commits
	newest  *batch
	rate    queue.Rate // of the limit that the queue was last held to
	queue   queue.Queue
}

func queueRate(r *gcra.Rate) queue.Rate {
	return queue.Rate{Interval: r.Interval, Tolerance: r.Tolerance}
}

// tail returns the TAT after the queue, for a bucket with this TAT. The gate
// may be nil.
func (g *gate) tail(tat int64) int64 {
	if g == nil || g.queue.Len() == 0 {
		return tat
	}
	return g.queue.Tail(tat, g.rate)
}

// notBefore returns the end of the hold and the queue, or 0. The gate may be
// nil.
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

// tidyGateLocked drops a gate without a hold, a queue or a commit.
func (s *shard) tidyGateLocked(key Key, g *gate, now int64) {
	i, resident := s.findLocked(key, s.directory.hash(key))
	if resident {
		s.advanceLocked(s.At(i), g, now)
	}
	if g.hold == 0 && g.queue.Len() == 0 && !g.unsaved && g.commits == 0 {
		delete(s.gates, key)
		if resident && s.limits.member(key.Name).role == plainRole {
			s.At(i).Clear(table.Gate)
		}
	}
}

// batch is the work of one commit.
type batch = groupcommit.Batch[work]

// pending is a bucket in a commit that has not ended.
type pending struct {
	key     Key
	batch   *batch // newest commit of the bucket
	index   int    // of its change in the batch
	entries int    // changes of the batch to this bucket
	lowered bool   // TAT was lowered since: a failed commit takes nothing back
}

// pendingLocked returns the commit that a bucket is in, or nil.
func (s *shard) pendingLocked(b table.Slot) *pending {
	if b.Has(table.Pending) {
		for i := range s.pending {
			if p := &s.pending[i]; uint16(p.key.Name) == b.Name() && p.key.ID == string(b.ID()) {
				return p
			}
		}
	}
	return nil
}

// dropPendingLocked notes that a bucket's newest commit has ended.
func (s *shard) dropPendingLocked(b table.Slot, p *pending) {
	last := &s.pending[len(s.pending)-1]
	*p, *last = *last, pending{}
	s.pending = s.pending[:len(s.pending)-1]
	b.Clear(table.Pending)
}
