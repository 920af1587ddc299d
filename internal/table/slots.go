package table

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/stint-go/stint/internal/prefetch"
)

// Slots holds the buckets of one shard. Init makes it ready.
type Slots struct {
	// These fields begin a cache line, which Prefetch reads without the lock. They
	// change when the table is resized.
	first    atomic.Pointer[byte] // slot 0; nil if there is none
	capacity atomic.Uint32        // in slots
	stride   uint32               // bytes of a slot

	groupShift uint32 // slots of a group, as a shift
	n          uint32 // slots in use
	dirty      uint32 // slots with the flag Dirty
	removals   uint32 // removals so far
	hand       uint16 // the last window that Evict looked at
	leap       uint16 // from there to the next one
	deferred   bool   // some dirty slots have no mark
	round      uint16 // word of marks that NextDirty looks at next
	marks      []uint64
	seed       maphash.Seed
	bell       *Bell
}

// A mark tells that a group of slots may hold a dirty one. A shard has at most
// maxGroups groups, so a flush with few dirty slots skips nearly all others.
const maxGroups = 1 << 13

// Init prepares empty Slots for ids of the class, hashed with seed. bell rings
// when a bucket becomes dirty.
func (s *Slots) Init(class uint8, seed maphash.Seed, bell *Bell) {
	s.stride = slotID + classes[class]
	s.seed, s.bell = seed, bell
}

// Len returns the number of buckets.
func (s *Slots) Len() int { return int(s.n) }

// Dirty returns the number of buckets that differ from the store's.
func (s *Slots) Dirty() int { return int(s.dirty) }

// Removals counts the buckets removed so far. A TAT that was loaded from the
// store before a removal may be stale after it.
func (s *Slots) Removals() uint32 { return s.removals }

// At returns the slot with an index below the capacity.
func (s *Slots) At(i uint32) Slot {
	return Slot{unsafe.Add(unsafe.Pointer(s.first.Load()), uintptr(i)*uintptr(s.stride))}
}

// home returns the index at which the search for a hash begins. Homes are in
// the order of the hashes, so a resize moves the slots from front to back.
func (s *Slots) home(h uint64) uint32 {
	return uint32(uint64(uint32(h)) * uint64(s.capacity.Load()) >> 32)
}

// Prefetch fetches the slots at which the search for a hash begins. It needs no
// lock: during a resize it fetches other slots, which does no harm.
func (s *Slots) Prefetch(h uint64) { s.prefetchSlot(s.home(h)) }

func (s *Slots) prefetchSlot(i uint32) {
	prefetch.Lines(uintptr(unsafe.Pointer(s.first.Load())) + uintptr(i)*uintptr(s.stride))
}

func (s *Slots) next(i uint32) uint32 {
	if i++; i == s.capacity.Load() {
		return 0
	}
	return i
}

// Find returns the index of a bucket.
func (s *Slots) Find(name uint16, id string, h uint64) (i uint32, ok bool) {
	if s.capacity.Load() == 0 {
		return 0, false
	}
	want := uint64(name) | uint64(len(id))<<metaLen
	for i = s.home(h); ; i = s.next(i) {
		b := s.At(i)
		m := b.Meta()
		if m&metaKey == want && string(b.ID()) == id {
			return i, true
		}
		if m == 0 {
			return 0, false
		}
	}
}

// Insert adds a bucket that is not there yet, and returns its index.
func (s *Slots) Insert(name uint16, id string, h uint64, tat int64, rule uint32, flags uint64) uint32 {
	if s.n+s.n/4+1 >= s.capacity.Load() { // at most four fifths are in use
		s.grow()
	}
	i := s.place(h)
	b := s.At(i)
	b.SetTAT(tat)
	b.setMeta(uint64(name) | uint64(len(id))<<metaLen | flags | uint64(rule)<<metaRule)
	padded := b.bytes(s.stride)[slotID:]
	clear(padded[copy(padded, id):])
	s.n++
	if flags&Dirty != 0 {
		s.dirty++
		s.mark(i)
		s.bell.ring()
	}
	return i
}

// place returns the index of the first empty slot for a hash.
func (s *Slots) place(h uint64) uint32 {
	i := s.home(h)
	for s.At(i).Meta() != 0 {
		i = s.next(i)
	}
	return i
}

// grow makes an eighth more slots, so that little memory is unused.
func (s *Slots) grow() {
	if capacity := s.capacity.Load(); capacity < 256 {
		s.resize(2*capacity + 4)
	} else {
		s.resize(capacity + capacity/8)
	}
}

// Shrink gives memory back if less than a quarter of it is in use.
func (s *Slots) Shrink() {
	if s.n < s.capacity.Load()/4 && s.capacity.Load() > 256 {
		s.resize(s.n + s.n/2 + 16)
	}
}

// resize moves all buckets to slots of at least the capacity.
func (s *Slots) resize(capacity uint32) {
	n := s.capacity.Load()
	old := s.At(0).bytes(n * s.stride)
	mem := makeMem(int(capacity * s.stride))
	capacity = uint32(len(mem)) / s.stride
	s.first.Store(unsafe.SliceData(mem))
	s.capacity.Store(capacity)
	s.groupShift = uint32(max(0, bits.Len32(capacity-1)-bits.Len32(maxGroups-1)))
	words := int((capacity-1)>>s.groupShift/64 + 1)
	s.marks = slices.Grow(s.marks[:0], words)[:words]
	clear(s.marks)
	s.hand, s.leap, s.round = 0, leapOf(s.windows()), 0
	for ; len(old) > 0; old = old[s.stride:] {
		if b := (Slot{unsafe.Pointer(&old[0])}); b.Meta() != 0 {
			s.move(s.place(s.hashOf(b)), b)
		}
	}
}

// makeMem returns at least n bytes: all that the allocator reserves for n.
func makeMem(n int) []byte {
	b := slices.Grow([]byte(nil), n)
	return b[:cap(b)]
}

// move copies a slot to the index i.
func (s *Slots) move(i uint32, b Slot) {
	copy(s.At(i).bytes(s.stride), b.bytes(s.stride))
	if b.Has(Dirty) {
		s.mark(i)
	}
}

func (s *Slots) hashOf(b Slot) uint64 {
	return maphash.Bytes(s.seed, b.ID()) + uint64(b.Name())*Golden
}

// Remove takes a bucket out and closes the gap. Later slots move up if that
// brings them nearer to their homes, so a search never steps over removed
// slots.
func (s *Slots) Remove(i uint32) {
	s.MarkClean(i)
	s.n--
	s.removals++
	for j := s.next(i); s.At(j).Meta() != 0; j = s.next(j) {
		home := s.home(s.hashOf(s.At(j)))
		if i < j && (home <= i || home > j) || i > j && home <= i && home > j {
			s.move(i, s.At(j))
			if from, to := s.wordOf(j), s.wordOf(i); s.At(j).Has(Dirty) && to < s.visited() && from >= s.visited() {
				s.round = uint16(to + dirtyAhead) // NextDirty has not visited it yet, and would miss it
			}
			i = j
		}
	}
	s.At(i).setMeta(0)
}

// Write gives a bucket a new TAT, which the store does not have.
func (s *Slots) Write(i uint32, tat int64) {
	if b := s.At(i); !b.Rewrite(tat) {
		b.SetTAT(tat)
		b.Set(Used)
		s.MarkDirty(i)
	}
}

// Use records that tokens of a bucket were requested.
func (s *Slots) Use(i uint32) {
	if b := s.At(i); !b.Has(Used) {
		b.Set(Used)
	}
}

// MarkDirty makes the next flush visit a bucket.
func (s *Slots) MarkDirty(i uint32) {
	if b := s.At(i); !b.Has(Dirty) {
		b.Set(Dirty)
		s.dirty++
		s.bell.ring()
	}
	s.mark(i)
}

// MarkClean records that the store has the bucket as it is.
func (s *Slots) MarkClean(i uint32) {
	if b := s.At(i); b.Has(Dirty) {
		b.Clear(Dirty)
		s.dirty--
	}
}

// wordOf returns the word of marks that a slot belongs to.
func (s *Slots) wordOf(i uint32) int { return int(i >> s.groupShift / 64) }

func (s *Slots) mark(i uint32) {
	g := i >> s.groupShift
	s.marks[g/64] |= 1 << (g % 64)
}
