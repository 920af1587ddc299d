package cache

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint/internal/table"
)

// directory holds the buckets in memory, in shards with a mutex each. Ids of
// similar length form a class, which has shards of its own, because all slots of a
// shard have one size. The hash of the key selects the shard of the class. A class
// is made at its first id. There are many shards, so growing or scanning one stops
// its callers only for microseconds.
//
// A bucket that is not in memory is in the store, or is full. Cache.Load reads it
// from the store, and InsertLocked puts it here. evict removes buckets when there
// are too many (evict.go), and a flush removes full ones (flush.go).
type directory struct {
	lanes    lanes // of hot buckets
	seed     maphash.Seed
	shift    uint          // from a hash to the index of its shard
	resident atomic.Int64  // buckets in memory
	saving   atomic.Uint64 // number of a flush's save under way, as in table.SaveMask
	hand     atomic.Uint32 // next shard that evict looks at
	evicted  atomic.Int64  // buckets so far
	left     atomic.Int64  // buckets so far that were evicted, or full

	classes [table.Classes]atomic.Pointer[[]Shard] // made at the first id of the class
	mu      sync.Mutex                             // guards the making of classes, and limits
	limits  Limits                                 // of new shards; nil once closed
	tallies sync.Map                               // of lanes: number of a Name → *tally

	spilledMu sync.Mutex       // guards spilled
	spilled   map[uint16]count // that shards had no space for
}

// init makes a directory for about maxResident buckets. A class has 64
// shards for each processor, so that two of them seldom need the same shard, and
// more for many buckets.
func (t *directory) init(limits Limits, maxResident int) {
	const perShard, perProcessor, most = 1 << 11, 64, 1 << 10
	n := max(perProcessor*runtime.GOMAXPROCS(0), maxResident/perShard)
	t.seed = maphash.MakeSeed()
	t.shift = uint(64 - bits.Len(uint(min(n, most)-1)))
	t.limits = limits
	t.spilled = make(map[uint16]count)
}

// Shard returns the shard that a bucket belongs to, and the bucket's hash. The id
// must be at most table.MaxID bytes long.
func (t *directory) Shard(name uint16, id string) (*Shard, uint64) {
	class := table.ClassOf(id)
	shards := t.classes[class].Load()
	if shards == nil {
		shards = t.makeClass(class)
	}
	h := table.Hash(t.seed, name, id)
	return &(*shards)[h>>t.shift], h
}

func (t *directory) shardOf(key Key) (*Shard, uint64) { return t.Shard(key.Name, key.ID) }

func (t *directory) makeClass(class uint8) *[]Shard {
	t.mu.Lock()
	defer t.mu.Unlock()
	if shards := t.classes[class].Load(); shards != nil {
		return shards
	}
	shards := make([]Shard, 1<<(64-t.shift))
	for i := range shards {
		s := &shards[i]
		s.directory, s.Order = t, uint32(class)<<16|uint32(i)
		s.Init(class, t.seed)
		s.Limits = t.limits
	}
	t.classes[class].Store(&shards)
	return &shards
}

// Each calls f with every shard, locked.
func (t *directory) Each(f func(*Shard)) {
	for s := range t.Shards() {
		s.Lock()
		f(s)
		s.Mu.Unlock()
	}
}

// Shards yields every shard. None is locked.
func (t *directory) Shards() iter.Seq[*Shard] {
	return func(yield func(*Shard) bool) {
		for n := 0; ; n++ {
			var s *Shard
			if s, n = t.shardFrom(n); s == nil || !yield(s) {
				return
			}
		}
	}
}

// shardFrom returns the first shard with number n or a later one, and its
// number. If there is none, s is nil.
func (t *directory) shardFrom(n int) (s *Shard, at int) {
	perClass := 1 << (64 - t.shift)
	for ; n < len(t.classes)*perClass; n++ {
		if shards := t.classes[n/perClass].Load(); shards != nil {
			return &(*shards)[n%perClass], n
		}
		n += perClass - 1 - n%perClass
	}
	return nil, n
}

// SetLimits puts limits in force: it calls f with each shard, locked, and f puts
// them in force there. Nil limits close the shards to decisions.
func (t *directory) SetLimits(limits Limits, f func(*Shard)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.Each(f)
}

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

	table.Slots

	lane      *Lane  // of a hot bucket; nil if there is none
	rival     uint32 // index of the last bucket for which a fast path waited
	contended uint32 // how often it did so

	more      []countOf // of other Names
	Order     uint32    // of locking
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

// count has the numbers of allowed and denied decisions on one Name.
type count [2]uint64

func (c *count) add(d count) { c[0], c[1] = c[0]+d[0], c[1]+d[1] }

// countOf is the count of a Name in one shard.
type countOf struct {
	name uint16 // 0 if it is free
	count
}

// CountLocked counts a decision on a Name: denied is 0 or 1.
func (s *Shard) CountLocked(name uint16, denied uint) {
	if s.fewOf[name&1] != name {
		s.fetchCountLocked(name)
	}
	s.few[name&1][denied]++
}

// uncountLocked takes an allowed decision back.
func (s *Shard) uncountLocked(name uint16) {
	if s.fewOf[name&1] != name {
		s.fetchCountLocked(name)
	}
	s.few[name&1][0]--
}

// mostCounts is how many counts a shard has besides the few: more would take
// hundreds of megabytes for all shards if a program has thousands of Names.
const mostCounts = 64

// fetchCountLocked puts the count of a Name into few, in exchange for that of
// another one. A Name has a count from its first decision on. If the shard has too
// many, one of them leaves it.
func (s *Shard) fetchCountLocked(name uint16) {
	was := countOf{s.fewOf[name&1], s.few[name&1]}
	s.fewOf[name&1], s.few[name&1] = name, count{}
	if len(s.more) > 0 {
		if c := &s.more[int(name>>1)%len(s.more)]; c.name == name {
			s.few[name&1], *c = c.count, countOf{}
		}
	}
	if was.name == 0 {
		return
	}
	for {
		if len(s.more) > 0 {
			c := &s.more[int(was.name>>1)%len(s.more)]
			if c.name != 0 && len(s.more) == mostCounts {
				s.directory.spill(*c)
				c.name = 0
			}
			if c.name == 0 {
				*c = was
				return
			}
		}
		fewer := s.more
		s.more = make([]countOf, max(4, 2*len(fewer)))
		for _, c := range fewer {
			if c.name != 0 {
				s.more[int(c.name>>1)%len(s.more)] = c
			}
		}
	}
}

// spill adds a count that leaves its shard to those of all shards.
func (t *directory) spill(c countOf) {
	t.spilledMu.Lock()
	defer t.spilledMu.Unlock()
	sum := t.spilled[c.name]
	sum.add(c.count)
	t.spilled[c.name] = sum
}

// countsLocked calls add with each count of the shard.
func (s *Shard) countsLocked(add func(name uint16, c count)) {
	for i, name := range s.fewOf {
		add(name, s.few[i])
	}
	for _, c := range s.more {
		add(c.name, c.count)
	}
}

// Counts returns the numbers of decisions on each Name so far, and the number of
// buckets in memory that have changed since they were saved.
func (t *directory) Counts(add func(name uint16, allowed, denied int64)) (dirty int64) {
	sums := make(map[uint16]count)
	sum := func(name uint16, c count) {
		all := sums[name]
		all.add(c)
		sums[name] = all
	}
	for s := range t.Shards() {
		s.Lock()
		dirty += int64(s.Dirty())
		s.countsLocked(sum)
		s.Mu.Unlock()
	}
	t.tallies.Range(func(name, of any) bool {
		sum(name.(uint16), of.(*tally).sum())
		return true
	})
	t.spilledMu.Lock()
	defer t.spilledMu.Unlock()
	for name, c := range t.spilled {
		sum(name, c)
	}
	delete(sums, 0) // of free counts
	for name, c := range sums {
		add(name, int64(c[0]), int64(c[1]))
	}
	return dirty
}
