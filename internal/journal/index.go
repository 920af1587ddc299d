package journal

import (
	"container/heap"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"unsafe"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/prefetch"
)

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio

// Index has the newest entry of each bucket in the journal. The entries lie end
// to end in chunks, and a hash table has the place of each. The chunks hold no
// pointers, so the garbage collector does not scan them. Drop leaves gaps: once
// half of a chunk is gaps, the other half moves, and the chunk is used again.
type Index struct {
	seed   maphash.Seed
	slots  []uint64 // 32 bits of the hash, and the place of the entry plus 1; 0 if free
	n      int      // slots in use
	chunks []chunk
	last   int   // the chunk that takes new entries
	free   []int // chunks without entries
	size   int64 // bytes of all entries that were not dropped
}

// chunk has entries, end to end. A dropped entry has the TAT dropped, and no slot.
type chunk struct {
	b    []byte
	lost int // bytes of dropped entries
}

const dropped = math.MinInt64

// chunkBits is the number of bits of a place that are the offset in a chunk.
// The bits above are the number of the chunk.
const chunkBits = 18

// New returns an empty Index.
func New() *Index {
	return &Index{seed: maphash.MakeSeed(), slots: make([]uint64, 64)}
}

// Len returns the number of buckets.
func (x *Index) Len() int { return x.n }

// Size returns the bytes of the entries.
func (x *Index) Size() int64 { return x.size }

// hash returns the upper half of a key's slot.
func (x *Index) hash(name uint16, id string) uint64 {
	return (maphash.String(x.seed, id) + uint64(name)*golden) >> 32 << 32
}

// home returns the slot at which the search for a hash begins. Slots are in the
// order of their hashes.
func (x *Index) home(slot uint64) int {
	return int(slot >> 32 * uint64(len(x.slots)) >> 32)
}

// at returns the bytes from a slot's entry to the end of its chunk.
func (x *Index) at(slot uint64) []byte {
	place := uint32(slot) - 1
	return x.chunks[place>>chunkBits].b[place&(1<<chunkBits-1):]
}

// find returns the key's entry and the bytes from that entry to the end of its
// chunk. If there is no entry, b is nil and free is the index of a free slot.
func (x *Index) find(name uint16, id string, hash uint64) (e format.RawEntry, b []byte, free int) {
	for i := x.home(hash); ; i = (i + 1) & (len(x.slots) - 1) {
		slot := x.slots[i]
		if slot == 0 {
			return format.RawEntry{}, nil, i
		}
		if slot>>32 == hash>>32 {
			b := x.at(slot)
			if e, _ = format.ReadEntry(b); e.Name == name && string(e.ID) == id {
				return e, b, -1
			}
		}
	}
}

// Get returns the TAT of a bucket, and whether the index has one.
func (x *Index) Get(name uint16, id string) (tat int64, ok bool) {
	e, b, _ := x.find(name, id, x.hash(name, id))
	return e.TAT, b != nil
}

// Put adds entries. A later entry replaces an earlier one of the same bucket.
func (x *Index) Put(entries ...format.Entry) {
	for x.n+len(entries) > len(x.slots)*5/8 {
		x.grow()
	}
	const ahead = 16 // cache lines fetched at a time
	var hashes [ahead]uint64
	for part := range slices.Chunk(entries, ahead) {
		for i := range part {
			hashes[i] = x.hash(part[i].Name, part[i].ID)
			prefetch.Lines(uintptr(unsafe.Pointer(&x.slots[x.home(hashes[i])])))
		}
		for i := range part {
			if slot := x.slots[x.home(hashes[i])]; slot != 0 {
				prefetch.Lines(uintptr(unsafe.Pointer(&x.at(slot)[0])))
			}
		}
		for i := range part {
			x.putHashed(part[i], hashes[i])
		}
	}
}

func (x *Index) putHashed(n format.Entry, hash uint64) {
	e, b, free := x.find(n.Name, n.ID, hash)
	if b != nil {
		binary.BigEndian.PutUint64(b[e.Size-8:], uint64(n.TAT))
		return
	}
	c, begin := x.room(format.EntrySize(n))
	c.b = format.AppendEntry(c.b, n)
	x.slots[free] = hash | x.place(begin)
	x.size += int64(len(c.b) - begin)
	x.n++
}

// room returns the chunk that takes the next entry, of at most so many bytes, and
// where.
func (x *Index) room(size int) (c *chunk, begin int) {
	switch {
	case len(x.chunks) == 0: // the first one grows: many indexes are small
		x.chunks = append(x.chunks, chunk{})
	case len(x.chunks[x.last].b)+size > 1<<chunkBits && len(x.free) > 0:
		x.last, x.free = x.free[len(x.free)-1], x.free[:len(x.free)-1]
	case len(x.chunks[x.last].b)+size > 1<<chunkBits:
		x.last, x.chunks = len(x.chunks), append(x.chunks, chunk{b: make([]byte, 0, 1<<chunkBits)})
	}
	c = &x.chunks[x.last]
	return c, len(c.b)
}

// place returns the lower half of a slot for an entry of the last chunk.
func (x *Index) place(begin int) uint64 { return uint64(x.last<<chunkBits + begin + 1) }

// Drop takes a bucket out, unless it has a later TAT than now.
func (x *Index) Drop(name uint16, id string, now int64) {
	hash := x.hash(name, id)
	e, b, _ := x.find(name, id, hash)
	if b == nil || e.TAT > now {
		return
	}
	i := x.slotOf(hash, b)
	at := int(uint32(x.slots[i])-1) >> chunkBits
	x.removeSlot(i)
	binary.BigEndian.PutUint64(b[e.Size-8:], 1<<63) // dropped
	x.n--
	x.size -= int64(e.Size)
	c := &x.chunks[at]
	if c.lost += e.Size; at != x.last && c.lost > len(c.b)/2 {
		x.clean(at)
	}
}

// slotOf returns the slot of the entry at b.
func (x *Index) slotOf(hash uint64, b []byte) int {
	for i := x.home(hash); ; i = (i + 1) & (len(x.slots) - 1) {
		if slot := x.slots[i]; slot != 0 && slot>>32 == hash>>32 && &x.at(slot)[0] == &b[0] {
			return i
		}
	}
}

// removeSlot frees a slot. Later ones move up if that brings them nearer to their
// homes, so a search never steps over free slots.
func (x *Index) removeSlot(i int) {
	mask := len(x.slots) - 1
	for j := (i + 1) & mask; x.slots[j] != 0; j = (j + 1) & mask {
		if (j-x.home(x.slots[j]))&mask >= (j-i)&mask {
			x.slots[i], i = x.slots[j], j
		}
	}
	x.slots[i] = 0
}

// clean moves the entries of a chunk to the last one, and frees it.
func (x *Index) clean(at int) {
	for e := range x.all(at) {
		hash := x.hash(e.Name, string(e.ID))
		i := x.slotOf(hash, e.b)
		c, begin := x.room(e.Size)
		c.b = append(c.b, e.b[:e.Size]...)
		x.slots[i] = hash | x.place(begin)
	}
	x.chunks[at] = chunk{b: x.chunks[at].b[:0]}
	x.free = append(x.free, at)
}

// grow makes twice as many slots.
func (x *Index) grow() {
	old := x.slots
	x.slots = make([]uint64, 2*len(old))
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		i := x.home(slot)
		for x.slots[i] != 0 {
			i = (i + 1) & (len(x.slots) - 1)
		}
		x.slots[i] = slot
	}
}

// Full reports whether the index should take no more entries: places have 32 bits.
func (x *Index) Full() bool { return len(x.chunks) >= 1<<(31-chunkBits) }

// placed is an entry in a chunk.
type placed struct {
	format.RawEntry
	b []byte // from the entry to the end of the chunk
}

// all yields the entries of a chunk that were not dropped.
func (x *Index) all(chunk int) iter.Seq[placed] {
	return func(yield func(placed) bool) {
		for b := x.chunks[chunk].b; len(b) > 0; {
			e, _ := format.ReadEntry(b)
			if (e.TAT != dropped || x.has(e, b)) && !yield(placed{e, b}) {
				return
			}
			b = b[e.Size:]
		}
	}
}

// has reports whether the entry at b has a slot.
func (x *Index) has(e format.RawEntry, b []byte) bool {
	id := string(e.ID)
	_, found, _ := x.find(e.Name, id, x.hash(e.Name, id))
	return found != nil && &found[0] == &b[0]
}

// All yields the entries, in no order.
func (x *Index) All() iter.Seq[format.RawEntry] {
	return func(yield func(format.RawEntry) bool) {
		for i := range x.chunks {
			for e := range x.all(i) {
				if !yield(e.RawEntry) {
					return
				}
			}
		}
	}
}

// Chunks returns how many parts Passed has.
func (x *Index) Chunks() int { return len(x.chunks) }

// Passed appends the entries of a part whose TAT is not later than now.
func (x *Index) Passed(to []format.Entry, part int, now int64) []format.Entry {
	for e := range x.all(part) {
		if e.TAT <= now {
			to = append(to, e.Entry())
		}
	}
	return to
}

// run is a chunk of an index, in the order of the keys.
type run struct {
	first format.RawEntry
	chunk []byte
	rest  []uint32 // offsets of the other entries in the chunk
}

// Sorter yields the entries of an Index in the order of their keys. A chunk
// fits into the processor's cache, but the whole index does not. So each chunk
// is sorted separately, and Take merges the chunks.
type Sorter struct {
	runs  []*run // a heap
	Left  int    // entries not yet taken
	taken []format.RawEntry
}

// Sorted returns the entries in the order of their keys. It returns nil as soon
// as stop returns true. stop may be nil.
func (x *Index) Sorted(stop func() bool) *Sorter {
	s := &Sorter{Left: x.n}
	var es []placed
	for i := range x.chunks {
		if stop != nil && stop() {
			return nil
		}
		if es = slices.AppendSeq(es[:0], x.all(i)); len(es) == 0 {
			continue
		}
		slices.SortFunc(es, func(a, b placed) int { return a.Compare(b.RawEntry) })
		chunk := x.chunks[i].b
		r := &run{first: es[0].RawEntry, chunk: chunk, rest: make([]uint32, len(es)-1)}
		for i := range r.rest {
			r.rest[i] = uint32(len(chunk) - len(es[i+1].b))
		}
		s.runs = append(s.runs, r)
	}
	heap.Init(s)
	return s
}

// Take returns the next n entries, or all that are left. They are valid until
// the next Take.
func (s *Sorter) Take(n int) []format.RawEntry {
	s.taken = s.taken[:0]
	for range min(n, s.Left) {
		r := s.runs[0]
		s.taken = append(s.taken, r.first)
		if len(r.rest) > 0 {
			r.first, _ = format.ReadEntry(r.chunk[r.rest[0]:])
			r.rest = r.rest[1:]
			heap.Fix(s, 0)
		} else {
			heap.Pop(s)
		}
	}
	s.Left -= len(s.taken)
	return s.taken
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (s *Sorter) Len() int           { return len(s.runs) }
func (s *Sorter) Less(i, j int) bool { return s.runs[i].first.Compare(s.runs[j].first) < 0 }
func (s *Sorter) Swap(i, j int)      { s.runs[i], s.runs[j] = s.runs[j], s.runs[i] }
func (s *Sorter) Push(any)           { panic("nothing is added") }
func (s *Sorter) Pop() any {
	s.runs = s.runs[:len(s.runs)-1]
	return nil
}
