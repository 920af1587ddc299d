package journal

import (
	"container/heap"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"unsafe"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/prefetch"
)

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio

// Index has the newest entry of each bucket in the journal. The entries lie end
// to end in chunks, and a hash table has the place of each. The chunks hold no
// pointers, so the garbage collector does not scan them.
type Index struct {
	seed   maphash.Seed
	slots  []uint64 // 32 bits of the hash, and the place of the entry plus 1; 0 if free
	n      int      // slots in use
	chunks [][]byte // entries, end to end
	size   int64    // bytes in all chunks
}

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
	return x.chunks[place>>chunkBits][place&(1<<chunkBits-1):]
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
	last := len(x.chunks) - 1
	if last < 0 {
		x.chunks, last = append(x.chunks, nil), 0
	} else if len(x.chunks[last])+format.EntrySize(n) > 1<<chunkBits {
		x.chunks, last = append(x.chunks, make([]byte, 0, 1<<chunkBits)), last+1
	}
	begin := len(x.chunks[last])
	x.slots[free] = hash | uint64(last<<chunkBits+begin+1)
	x.chunks[last] = format.AppendEntry(x.chunks[last], n)
	x.size += int64(len(x.chunks[last]) - begin)
	x.n++
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

// All yields the entries, in the order in which their buckets were first put.
func (x *Index) All() iter.Seq[format.RawEntry] {
	return func(yield func(format.RawEntry) bool) {
		for _, b := range x.chunks {
			for len(b) > 0 {
				e, _ := format.ReadEntry(b)
				if !yield(e) {
					return
				}
				b = b[e.Size:]
			}
		}
	}
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
	type placed struct {
		format.RawEntry
		begin uint32
	}
	s := &Sorter{Left: x.n}
	var es []placed
	for _, chunk := range x.chunks {
		if stop != nil && stop() {
			return nil
		}
		es = es[:0]
		for at := 0; at < len(chunk); {
			e, _ := format.ReadEntry(chunk[at:])
			es = append(es, placed{e, uint32(at)})
			at += e.Size
		}
		slices.SortFunc(es, func(a, b placed) int { return a.Compare(b.RawEntry) })
		r := &run{first: es[0].RawEntry, chunk: chunk, rest: make([]uint32, len(es)-1)}
		for i := range r.rest {
			r.rest[i] = es[i+1].begin
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
