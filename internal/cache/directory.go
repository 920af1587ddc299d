package cache

import (
	"hash/maphash"
	"iter"
	"maps"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint/internal/clock"
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
	clock    *clock.Clock
	shift    uint          // from a hash to the index of its shard
	resident atomic.Int64  // buckets in memory
	saving   atomic.Uint64 // number of the save of a flush under way, as in table.SaveMask
	hand     atomic.Uint32 // next shard that evict looks at
	bell     *table.Bell   // rings for the first change after a quiet interval
	evicted  atomic.Int64  // buckets so far
	left     atomic.Int64  // buckets so far that were evicted, or full

	classes [table.Classes]atomic.Pointer[[]Shard] // made at the first id of the class
	mu      sync.Mutex                             // guards the making of classes, and limits
	limits  *Limits                                // of new shards; nil once closed
	tallies sync.Map                               // of lanes: number of a Name → *tally

	countsMu sync.Mutex       // guards counts
	counts   map[uint16]count // that have left their shards, by Name
}

// init makes a directory for about maxResident buckets. A class has 64
// shards for each processor, so that two of them seldom need the same shard, and
// more for many buckets.
func (t *directory) init(limits *Limits, clock *clock.Clock, maxResident int) {
	const perShard, perProcessor, most = 1 << 11, 64, 1 << 10
	n := max(perProcessor*runtime.GOMAXPROCS(0), maxResident/perShard)
	t.seed, t.bell = maphash.MakeSeed(), table.NewBell()
	t.shift = uint(64 - bits.Len(uint(min(n, most)-1)))
	t.limits, t.clock = limits, clock
	t.counts = make(map[uint16]count)
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

// Prefetch fetches the slots of a bucket, if there are any of its class.
func (t *directory) Prefetch(name uint16, id string) {
	if shards := t.classes[table.ClassOf(id)].Load(); shards != nil {
		h := table.Hash(t.seed, name, id)
		(*shards)[h>>t.shift].Prefetch(h)
	}
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
		s.Init(class, t.seed, t.bell)
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
		s.Unlock()
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

// takeCount moves a count from its shard, which is locked, to those of all shards.
func (t *directory) takeCount(name uint16, c *count) {
	t.countsMu.Lock()
	defer t.countsMu.Unlock()
	sum := t.counts[name]
	sum.add(*c)
	t.counts[name], *c = sum, count{}
}

// Counts returns the numbers of decisions on each Name so far, and the number of
// buckets in memory that have changed since they were saved. It takes the counts out of
// the shards. If they stayed, one that leaves its shard meanwhile would be missed, or
// counted twice.
func (t *directory) Counts(add func(name uint16, allowed, denied int64)) (dirty int64) {
	for s := range t.Shards() {
		s.Lock()
		dirty += int64(s.Dirty())
		for i, name := range s.fewOf {
			t.takeCount(name, &s.few[i])
		}
		for i := range s.more {
			t.takeCount(s.more[i].name, &s.more[i].count)
		}
		s.Unlock()
	}
	t.countsMu.Lock()
	sums := maps.Clone(t.counts)
	t.countsMu.Unlock()
	t.tallies.Range(func(name, of any) bool {
		c := sums[name.(uint16)]
		c.add(of.(*tally).sum())
		sums[name.(uint16)] = c
		return true
	})
	delete(sums, 0) // of free counts
	for name, c := range sums {
		add(name, int64(c[0]), int64(c[1]))
	}
	return dirty
}

// Lane returns the lane at the place of a hash, which may be that of another bucket, or
// nil.
func (t *directory) Lane(hash uint64) *Lane { return t.lanes.at(hash).Load() }

// tally returns the tally of a Name. It lives as long as the Limiter, because a
// decision may be counted after its lane was retired.
func (t *directory) tally(name uint16) *tally {
	if c, ok := t.tallies.Load(name); ok {
		return c.(*tally)
	}
	c, _ := t.tallies.LoadOrStore(name, new(tally))
	return c.(*tally)
}

// place is how far a flush has come.
type place struct {
	shard  int
	inside bool // some buckets of the shard are done; valid only while mu is held
	end    bool
}

// evictScan is the number of slots after which evict gives up. In a flood of new
// ids nearly all buckets are dirty, and a longer search would find nothing either.
const evictScan = 1 << 12

// evict goes from shard to shard, looks at an eighth of each, and removes the
// buckets that may go. It stops when tooMany returns false, after evictScan slots,
// or after all shards. It returns the number of removed buckets.
func (t *directory) evict(now int64, tooMany func() bool) (removed int) {
	perClass := uint32(1) << (64 - t.shift)
	scanned := 0
	for range len(t.classes) * int(perClass) {
		n := t.hand.Add(1) - 1
		shards := t.classes[n/perClass%uint32(len(t.classes))].Load()
		if shards == nil {
			continue
		}
		s := &(*shards)[n%perClass]
		for range (s.EvictSteps() + 7) / 8 {
			looked, gone := s.evictStep(now, false)
			scanned += looked
			if removed += gone; !tooMany() || scanned >= evictScan {
				return removed
			}
		}
	}
	return removed
}

// evictBetween removes buckets from the shards that a part of a flush has
// visited, until more returns false. It returns the number of removed buckets.
func (t *directory) evictBetween(from, to place, now int64, more func(removed int) bool) (removed int) {
	for n := from.shard; ; n++ {
		var s *Shard
		s, n = t.shardFrom(n)
		if s == nil || !to.end && (n > to.shard || n == to.shard && !to.inside) {
			return removed
		}
		for range s.EvictSteps() {
			_, gone := s.evictStep(now, true)
			if removed += gone; !more(removed) {
				return removed
			}
		}
	}
}

// evictStep looks at a few slots, so decisions wait only for microseconds.
func (s *Shard) evictStep(now int64, forget bool) (scanned, removed int) {
	s.Lock()
	defer s.Unlock() // counts first, so that makeSpace sees every removal
	scanned, removed = s.Evict(now, s.directory.saving.Load(), forget, s.queuedLocked)
	s.directory.resident.Add(-int64(removed))
	s.directory.left.Add(int64(removed))
	s.directory.evicted.Add(int64(removed))
	return scanned, removed
}
