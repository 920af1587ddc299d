package stint

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stint-go/stint/internal/prefetch"
)

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio: its multiples lie far apart

// The buckets in memory: open addressing with linear probing, in shards that each have a mutex. A slot holds one bucket
// whole, id included, and no pointer, so that the garbage collector has nothing to look at in ten million of them and a
// decision touches one or two cache lines. Ids are compared, not only hashed: no two share a bucket.
//
// Slots are of one size within a shard, so that ids of about one length share a class of shards. There are many shards,
// small enough that to grow one, or to look through it, stops its users for microseconds.
//
//	slot   0  TAT, int64
//	       8  meta: name (16 bits), length of the id (10), flags (10), index of the rule (28)
//	      16  the id, padded to the class's size
//
// An empty slot has meta 0: no bucket has the Name 0.
const (
	slotMeta = 8
	slotID   = 16

	metaKey   = 1<<26 - 1 // name and length: what two slots of one bucket have in common
	metaLen   = 16        // shift
	metaFlags = 26        // shift
	metaRule  = 36        // shift

	flagDirty   = 1 << (metaFlags + 0) // the TAT is not the store's
	flagStored  = 1 << (metaFlags + 1) // the store may have something for this bucket
	flagAside   = 1 << (metaFlags + 2) // there is a hold or a line, in shard.aside
	flagUsed    = 1 << (metaFlags + 3) // since eviction last came by
	flagPending = 1 << (metaFlags + 4) // in shard.pending
	flagCovered = 1 << (metaFlags + 5) // the store has the half of a lease that this TAT is in,
	flagAhead   = 1 << (metaFlags + 9) // and the one behind it
	flagClamped = 1 << (metaFlags + 8) // when it was loaded, by who only looked: the store has the TAT further ahead
	saveShift   = metaFlags + 6
	maskSave    = 3 << saveShift // the number of the save that took it last: 1, 2, 3, 1, …; 0: none yet
)

// idClasses are the sizes that ids are padded to.
var idClasses = [...]uint32{8, 16, 24, 32, 40, 48, 64, 96, 128, 256, maxIDLen}

// classOf maps a length, in units of 8 bytes rounded up, to its class.
var classOf = func() (of [maxIDLen/8 + 1]uint8) {
	class := uint8(0)
	for n := range of {
		if uint32(n)*8 > idClasses[class] {
			class++
		}
		of[n] = class
	}
	return of
}()

type table struct {
	seed     maphash.Seed
	shift    uint          // of a hash, to the index of its shard
	resident atomic.Int64  // buckets in memory
	saving   atomic.Uint64 // the number, as maskSave has it, of the save under way; 0: none

	evictHand atomic.Uint32 // the shard where eviction goes on

	classes [len(idClasses)]atomic.Pointer[[]shard] // made when the first id of that length comes
	mu      sync.Mutex                              // guards the making of a class, and:
	limits  *Limits                                 // those of shards yet to be made; nil once closed
}

// newTable returns a table for about maxResident buckets.
func newTable(limits *Limits, maxResident int) *table {
	const perShard = 1 << 12
	n := bits.Len(uint(maxResident / perShard))
	return &table{
		seed:   maphash.MakeSeed(),
		shift:  uint(64 - min(max(n, 6), 10)),
		limits: limits,
	}
}

// shard returns the shard that the key's bucket is in, if it is in memory, and the key's hash. The id is at most
// maxIDLen bytes long.
func (t *table) shard(key Key) (*shard, uint64) {
	class := classOf[(len(key.ID)+7)/8]
	shards := t.classes[class].Load()
	if shards == nil {
		shards = t.makeClass(class)
	}
	h := t.hash(key)
	return &(*shards)[h>>t.shift], h
}

func (t *table) hash(key Key) uint64 {
	return maphash.String(t.seed, key.ID) + uint64(key.Name)*golden
}

func (t *table) makeClass(class uint8) *[]shard {
	t.mu.Lock()
	defer t.mu.Unlock()
	if shards := t.classes[class].Load(); shards != nil {
		return shards
	}
	shards := make([]shard, 1<<(64-t.shift))
	for i := range shards {
		shards[i] = shard{table: t, order: uint32(class)<<16 | uint32(i), stride: slotID + idClasses[class]}
		shards[i].setLimitsLocked(t.limits)
	}
	t.classes[class].Store(&shards)
	return &shards
}

// each calls f with every shard, locked.
func (t *table) each(f func(*shard)) {
	t.eachFrom(0, func(s *shard) bool { f(s); return true })
}

// eachFrom calls f with every shard, locked, from the one numbered from on, until f returns false. It returns the number of
// the shard behind the last, or -1.
func (t *table) eachFrom(from int, f func(*shard) bool) (next int) {
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

// setLimits puts new limits in force, shard after shard; nil closes the table to decisions.
func (t *table) setLimits(limits *Limits, f func(*shard)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.each(f)
}

// shard is one part of the table. Its methods named …Locked, and all of those of slots, want mu to be held.
type shard struct {
	// What every decision reads, and what it counts in, in one cache line.
	mu       sync.Mutex
	limits   *Limits              // in force here; nil once closed
	slots    atomic.Pointer[byte] // the first; nil: there is none
	capacity atomic.Uint32        // slots; both are read without mu, for prefetch
	stride   uint32               // bytes of a slot
	few      [2]count             // by the index of the Name in limits

	more     []count    // of the Names behind those of few
	groups   uint32     // shift, of the index of a slot
	n        uint32     // slots in use
	dirty    uint32     // of those, the ones that the store does not have as they are
	removals uint32     // slots removed so far: a TAT loaded from the store before one may be stale
	hand     uint32     // where eviction goes on
	order    uint32     // shards are locked in this order
	waiting  bool       // some of the dirty are not marked: those that are saved only when all are
	marks    []uint64   // bit g: there may be a dirty slot among those with index >> groups == g
	resets   [16]uint32 // Resets and clamps so far, by hash: what was spent before one is not given back
	aside    map[Key]*aside
	pending  []pending // of the buckets that are in a commit, the last; there are few at a time
	table    *table
	_        [8]byte // so that no other shard is in these cache lines
}

// dirtyGroups is in how many groups, at most, a shard's slots are looked through for dirty ones: as many that a few in a thousand
// slots do not make a flush look at all of them.
const dirtyGroups = 1 << 13

// count is what one Name's decisions in one shard came to.
type count struct{ allowed, denied uint64 }

func (s *shard) setLimitsLocked(limits *Limits) {
	s.limits, s.few, s.more = limits, [len(s.few)]count{}, nil
	if limits != nil && len(limits.order) > len(s.few) {
		const perLine = 4
		n := len(limits.order) - len(s.few)
		s.more = make([]count, n, (n+perLine-1)&^(perLine-1))
	}
}

// count returns the counts of the Name with an index in limits.
func (s *shard) count(index uint32) *count {
	if index < uint32(len(s.few)) {
		return &s.few[index]
	}
	return &s.more[index-uint32(len(s.few))]
}

// slot is where a bucket is: one of a shard's, as long as that is locked, and is not resized.
type slot struct{ at unsafe.Pointer }

func (b slot) tat() int64            { return *(*int64)(b.at) }
func (b slot) setTAT(tat int64)      { *(*int64)(b.at) = tat }
func (b slot) meta() uint64          { return *(*uint64)(unsafe.Add(b.at, slotMeta)) }
func (b slot) setMeta(m uint64)      { *(*uint64)(unsafe.Add(b.at, slotMeta)) = m }
func (b slot) has(flag uint64) bool  { return b.meta()&flag != 0 }
func (b slot) set(flag uint64)       { b.setMeta(b.meta() | flag) }
func (b slot) clear(flag uint64)     { b.setMeta(b.meta() &^ flag) }
func (b slot) rule() uint32          { return uint32(b.meta() >> metaRule) }
func (b slot) setRule(r uint32)      { b.setMeta(b.meta()&(1<<metaRule-1) | uint64(r)<<metaRule) }
func (b slot) name() Name            { return Name(b.meta()) }
func (b slot) id() []byte            { return b.bytes(slotID + uint32(b.meta()&metaKey>>metaLen))[slotID:] }
func (b slot) key() Key              { return Key{b.name(), string(b.id())} }
func (b slot) bytes(n uint32) []byte { return unsafe.Slice((*byte)(b.at), n) }

// at returns the slot with an index, which is less than capacity.
func (s *shard) at(i uint32) slot {
	return slot{unsafe.Add(unsafe.Pointer(s.slots.Load()), uintptr(i)*uintptr(s.stride))}
}

// home returns the index where the search for a hash begins: in the order of the hashes, so that the slots of a shard
// that grows are moved from front to back.
func (s *shard) home(h uint64) uint32 {
	return uint32(uint64(uint32(h)) * uint64(s.capacity.Load()) >> 32)
}

// prefetch has the processor fetch the slots where the search for a hash begins. It does not want mu to be held: where
// the shard is growing, the wrong ones come.
func (s *shard) prefetch(h uint64) { s.prefetchSlot(s.home(h)) }

func (s *shard) prefetchSlot(i uint32) {
	prefetch.Lines(uintptr(unsafe.Pointer(s.slots.Load())) + uintptr(i)*uintptr(s.stride))
}

func (s *shard) next(i uint32) uint32 {
	if i++; i == s.capacity.Load() {
		return 0
	}
	return i
}

// findLocked returns the index of the key's slot.
func (s *shard) findLocked(key Key, h uint64) (i uint32, ok bool) {
	if s.capacity.Load() == 0 {
		return 0, false
	}
	want := uint64(key.Name) | uint64(len(key.ID))<<metaLen
	for i = s.home(h); ; i = s.next(i) {
		b := s.at(i)
		m := b.meta()
		if m&metaKey == want && string(b.id()) == key.ID {
			return i, true
		}
		if m == 0 {
			return 0, false
		}
	}
}

// insertLocked adds a slot for a key that has none, and returns its index.
func (s *shard) insertLocked(key Key, h uint64, tat int64, rule uint32, flags uint64) uint32 {
	if s.n+s.n/4+1 >= s.capacity.Load() { // at most four fifths full, and never quite
		s.growLocked()
	}
	i := s.place(h)
	b := s.at(i)
	b.setTAT(tat)
	b.setMeta(uint64(key.Name) | uint64(len(key.ID))<<metaLen | flags | uint64(rule)<<metaRule)
	id := b.bytes(s.stride)[slotID:]
	clear(id[copy(id, key.ID):])
	s.n++
	s.table.resident.Add(1)
	if _, ok := s.aside[key]; ok {
		b.set(flagAside)
	}
	if flags&flagDirty != 0 {
		s.dirty++
		s.markGroup(i)
	}
	return i
}

// place returns the index of the first empty slot for a hash.
func (s *shard) place(h uint64) uint32 {
	i := s.home(h)
	for s.at(i).meta() != 0 {
		i = s.next(i)
	}
	return i
}

// growLocked makes room in many small steps, so that memory is never more than an eighth ahead of what it holds.
func (s *shard) growLocked() {
	if capacity := s.capacity.Load(); capacity < 256 {
		s.resizeLocked(2*capacity + 4)
	} else {
		s.resizeLocked(capacity + capacity/8)
	}
}

// resizeLocked moves all to slots of another capacity: the given, and what the allocator would waste.
func (s *shard) resizeLocked(capacity uint32) {
	n := s.capacity.Load()
	old := s.at(0).bytes(n * s.stride)
	slots := makeSlots(int(capacity * s.stride))
	capacity = uint32(len(slots)) / s.stride
	s.slots.Store(unsafe.SliceData(slots))
	s.capacity.Store(capacity)
	s.groups = uint32(max(0, bits.Len32(capacity-1)-bits.Len32(dirtyGroups-1)))
	words := int((capacity-1)>>s.groups/64 + 1)
	s.marks = slices.Grow(s.marks[:0], words)[:words]
	clear(s.marks)
	s.hand = 0
	for ; len(old) > 0; old = old[s.stride:] {
		if b := (slot{unsafe.Pointer(&old[0])}); b.meta() != 0 {
			s.moveTo(s.place(s.hashOf(b)), b)
		}
	}
}

// makeSlots returns n bytes, and what the allocator would waste: above 32 KiB it deals in pages of 8.
func makeSlots(n int) []byte {
	const large, page = 32 << 10, 8 << 10
	if n <= large {
		b := slices.Grow([]byte(nil), n)
		return b[:cap(b)]
	}
	b := make([]byte, (n+page-1)&^(page-1)) // append would write to it before it has its pages
	wantLargePages(b)
	return b
}

// moveTo copies a slot to where it goes.
func (s *shard) moveTo(i uint32, b slot) {
	copy(s.at(i).bytes(s.stride), b.bytes(s.stride))
	if b.has(flagDirty) {
		s.markGroup(i)
	}
}

func (s *shard) hashOf(b slot) uint64 {
	return maphash.Bytes(s.table.seed, b.id()) + uint64(b.name())*golden
}

// removeLocked takes a slot out, and closes the gap: the slots behind it that would be found sooner move up, so that a
// search need not step over the removed.
func (s *shard) removeLocked(i uint32) {
	s.cleanLocked(i)
	s.n--
	s.removals++
	s.table.resident.Add(-1)
	for j := s.next(i); s.at(j).meta() != 0; j = s.next(j) {
		home := s.home(s.hashOf(s.at(j)))
		if between := i < j && (home <= i || home > j) || i > j && (home <= i && home > j); between {
			s.moveTo(i, s.at(j))
			i = j
		}
	}
	s.at(i).setMeta(0)
}

// writeLocked gives a bucket a new TAT, which the store does not have.
func (s *shard) writeLocked(i uint32, tat int64) {
	b := s.at(i)
	b.setTAT(tat)
	if m := b.meta(); m&(flagDirty|flagUsed) != flagDirty|flagUsed {
		b.setMeta(m&^flagClamped | flagUsed)
		s.dirtyLocked(i)
	}
}

// useLocked notes that tokens of a bucket were asked for. What a look clamped is a change then: loaded anew it would be clamped anew,
// and who comes back when he was told to would be denied again.
func (s *shard) useLocked(i uint32) {
	if b := s.at(i); b.has(flagClamped) {
		s.writeLocked(i, b.tat())
	} else {
		b.set(flagUsed)
	}
}

// dirtyLocked has the next flush save a bucket, and cleanLocked not.
func (s *shard) dirtyLocked(i uint32) {
	if b := s.at(i); !b.has(flagDirty) {
		b.set(flagDirty)
		s.dirty++
	}
	s.markGroup(i)
}

func (s *shard) cleanLocked(i uint32) {
	if b := s.at(i); b.has(flagDirty) {
		b.clear(flagDirty)
		s.dirty--
	}
}

func (s *shard) markGroup(i uint32) {
	g := i >> s.groups
	s.marks[g/64] |= 1 << (g % 64)
}

// firstOf returns the first slot of the first of the groups that a word of marks has.
func (s *shard) firstOf(word int, marks uint64) uint32 {
	return uint32(word*64+bits.TrailingZeros64(marks)) << s.groups
}

// evictLocked removes buckets to make room: those that are full again and that the store knows nothing of, and those
// that have not been used since it last came by, or, with used, have, and that the store has as they are. Those in which
// somebody waits stay; a hold does not need its bucket. It looks at no more than a part of the shard, and returns how
// many it removed.
func (s *shard) evictLocked(now int64, used bool) (removed int) {
	keep := uint64(flagDirty | flagUsed)
	if used {
		keep = flagDirty
	}
	saving := s.table.saving.Load()
	for range min(s.capacity.Load(), max(16, s.capacity.Load()/8)) {
		if s.hand >= s.capacity.Load() {
			s.hand = 0
		}
		b := s.at(s.hand)
		m := b.meta()
		switch expired := b.tat() <= now && m&flagStored == 0; {
		case m == 0 || m&flagPending != 0 || saving != 0 && m&maskSave == saving:
		case m&flagAside != 0 && len(s.aside[Key{b.name(), string(b.id())}].line) > 0:
		case expired || m&keep == 0:
			s.removeLocked(s.hand)
			removed++
			continue // another may have moved here
		default:
			b.clear(flagUsed)
		}
		s.hand++
	}
	return removed
}

// evict goes around the shards, from where it last stopped, removing buckets while there are too many. It returns how many
// it removed once there are not, or after a full round.
func (t *table) evict(now int64, used bool, tooMany func() bool) (removed int) {
	for range len(t.classes) << (64 - t.shift) {
		n := t.evictHand.Add(1) - 1
		shards := t.classes[n>>(64-t.shift)%uint32(len(t.classes))].Load()
		if shards == nil {
			continue
		}
		s := &(*shards)[n&(1<<(64-t.shift)-1)]
		s.mu.Lock()
		removed += s.evictLocked(now, used)
		s.mu.Unlock()
		if !tooMany() {
			break
		}
	}
	return removed
}
