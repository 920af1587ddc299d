package stint

import (
	"hash/maphash"
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
// A bucket that is not in memory is in the store, or is full. load reads it from
// the store, and writeLocked inserts it (decide.go). evict removes buckets when
// there are too many (evict.go), and a flush removes full ones (flush.go).
//
// Locks of the package, in order: Limiter.declareMu, Limiter.limitsMu,
// flusher.mu, directory.mu, the mutexes of shards by their order, and the mutex of
// the group commit. All other mutexes come last, and none is held while another
// one is taken, except Limiter.plansMu before rulebook.mu.
type directory struct {
	lanes    lanes // of hot buckets
	seed     maphash.Seed
	shift    uint          // from a hash to the index of its shard
	resident atomic.Int64  // buckets in memory
	saving   atomic.Uint64 // number of a flush's save under way, as in table.SaveMask
	hand     atomic.Uint32 // next shard that evict looks at
	evicted  atomic.Int64  // buckets so far

	classes [table.Classes]atomic.Pointer[[]shard] // made at the first id of the class
	mu      sync.Mutex                             // guards the making of classes, and limits
	limits  *Limits                                // of new shards; nil once closed
	tallies sync.Map                               // of lanes: Name → *tally
}

// newDirectory returns a directory for about maxResident buckets. A class has 64
// shards for each processor, so that two of them seldom need the same shard, and
// more for many buckets.
func newDirectory(limits *Limits, maxResident int) *directory {
	const perShard, perProcessor, most = 1 << 11, 64, 1 << 10
	n := max(perProcessor*runtime.GOMAXPROCS(0), maxResident/perShard)
	return &directory{
		seed:   maphash.MakeSeed(),
		shift:  uint(64 - bits.Len(uint(min(n, most)-1))),
		limits: limits,
	}
}

// shard returns the shard that a key belongs to, and the key's hash. The id must
// be at most maxIDLen bytes long.
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
	for n := 0; ; n++ {
		var s *shard
		if s, n = t.shardFrom(n); s == nil {
			return
		}
		s.lock()
		f(s)
		s.mu.Unlock()
	}
}

// shardFrom returns the first shard with number n or a later one, and its
// number. If there is none, s is nil.
func (t *directory) shardFrom(n int) (s *shard, at int) {
	perClass := 1 << (64 - t.shift)
	for ; n < len(t.classes)*perClass; n++ {
		if shards := t.classes[n/perClass].Load(); shards != nil {
			return &(*shards)[n%perClass], n
		}
		n += perClass - 1 - n%perClass
	}
	return nil, n
}

// setLimits puts limits in force: it calls f with each shard, locked, and f puts
// them in force there. Nil limits close the directory to decisions.
func (t *directory) setLimits(limits *Limits, f func(*shard)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.each(f)
}

// shard is one part of the directory. mu guards all of it. Methods named …Locked
// need it, and so do those of Slots except Prefetch and EvictSteps.
type shard struct {
	// The fields that decisions change share a cache line. Slots begins the next
	// one, with the address of the slots, which seldom changes: so a processor can
	// ask for a slot before it has the line of the lock. TestShardLayout checks that.
	mu     sync.Mutex
	limits *Limits  // in force; nil once closed
	few    [2]count // of the first Names in limits

	lane      *lane  // of a hot bucket; nil if there is none
	rival     uint32 // index of the last bucket for which a fast path waited
	contended uint32 // how often it did so

	table.Slots

	more      []count // of the other Names
	order     uint32  // of locking
	gates     map[Key]*gate
	pending   []pending // buckets in commits: a few at a time
	directory *directory
	_         [48]byte
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

// slotKey returns the key of a slot, as a copy.
func slotKey(b table.Slot) Key { return Key{Name(b.Name()), string(b.ID())} }

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
