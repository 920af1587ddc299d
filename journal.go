package stint

import (
	"bytes"
	"cmp"
	"container/heap"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"iter"
	"slices"
	"unsafe"

	"github.com/stint-go/stint/internal/prefetch"
)

// A save is appended to the journal: a few sequential pages, where writing each bucket to its place in the tree would
// rewrite a page for every one. A checkpoint takes them home later, each once for all the times it was journaled.
//
// The value of a journal record is a checksum and a batch of entries; docs/format.md has the bytes.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendEntry appends a change to a record or to an index.
func appendEntry(b []byte, c Change) []byte {
	b = binary.AppendUvarint(b, uint64(c.Key.Name))
	b = binary.AppendUvarint(b, uint64(len(c.Key.ID)))
	b = append(b, c.Key.ID...)
	return binary.BigEndian.AppendUint64(b, uint64(c.TAT))
}

// entry is one change as it lies in a record.
type entry struct {
	name Name
	id   []byte
	tat  int64
	size int // of all of it
}

func (e entry) change() Change { return Change{Key{e.name, string(e.id)}, e.tat} }

// readEntry reads the entry at the start of b.
func readEntry(b []byte) (e entry, ok bool) {
	name, n := binary.Uvarint(b)
	if n <= 0 || name > 1<<16-1 {
		return entry{}, false
	}
	size, m := binary.Uvarint(b[n:])
	if m <= 0 || size > uint64(len(b)) || len(b)-n-m-8 < int(size) {
		return entry{}, false
	}
	id := b[n+m:][:size]
	tat := int64(binary.BigEndian.Uint64(b[n+m+int(size):]))
	return entry{Name(name), id, tat, n + m + int(size) + 8}, true
}

// sealRecord puts the checksum of the entries, and of the record's place, into the four bytes before them.
func sealRecord(seq uint64, record []byte) {
	binary.BigEndian.PutUint32(record, recordSum(seq, record[4:]))
}

func bigEndian(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func recordSum(seq uint64, entries []byte) uint32 {
	return crc32.Update(crc32.Checksum(bigEndian(seq), castagnoli), castagnoli, entries)
}

// entries yields what a record holds, after its checksum was found right. Of one that is damaged it yields nothing but the
// error.
func entries(seq uint64, record []byte) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		if len(record) < 4 || binary.BigEndian.Uint32(record) != recordSum(seq, record[4:]) {
			yield(entry{}, fmt.Errorf("%w: journal record %d: its checksum is wrong", ErrCorrupt, seq))
			return
		}
		for b := record[4:]; len(b) > 0; {
			e, ok := readEntry(b)
			if !ok {
				yield(entry{}, fmt.Errorf("%w: journal record %d: not a list of entries", ErrCorrupt, seq))
				return
			}
			b = b[e.size:]
		}
		for b := record[4:]; len(b) > 0; {
			e, _ := readEntry(b)
			if !yield(e, nil) {
				return
			}
			b = b[e.size:]
		}
	}
}

// records yields the entries of changes as records to be sealed, each with room for its checksum, and of about size
// bytes.
func records(changes []Change, size int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for buffer := []byte(nil); len(changes) > 0; {
			if cap(buffer)-len(buffer) < size { // bbolt keeps them until the transaction has ended
				buffer = make([]byte, 0, max(size+size/8, min(48*len(changes), 16<<10)))
			}
			record := append(buffer, 0, 0, 0, 0)
			for first := true; len(changes) > 0 && (first || len(record)+entrySize(changes[0]) <= size); first = false {
				record = appendEntry(record, changes[0])
				changes = changes[1:]
			}
			if !yield(record[:len(record):len(record)]) {
				return
			}
			buffer = record[len(record):]
		}
	}
}

// entrySize returns how long an entry is at the most.
func entrySize(c Change) int { return 3 + 2 + len(c.Key.ID) + 8 }

// journalIndex is the newest entry of each bucket in the journal, end to end, and where each begins by its hash. It has no
// pointer for the garbage collector to follow but those to the chunks that the entries are in.
type journalIndex struct {
	seed   maphash.Seed
	slots  []uint64 // 32 bits of the hash, which say where the search begins, and a place plus 1; 0: free
	n      int      // slots in use
	chunks [][]byte // of whole entries
	size   int64    // of all of them
}

// chunkBits of a place are the offset in a chunk, the others its number.
const chunkBits = 18

func newJournalIndex() *journalIndex {
	return &journalIndex{seed: maphash.MakeSeed(), slots: make([]uint64, 64)}
}

func (x *journalIndex) len() int { return x.n }

// hash returns the half of a slot that says where the search for a key begins.
func (x *journalIndex) hash(key Key) uint64 {
	return (maphash.String(x.seed, key.ID) + uint64(key.Name)*golden) >> 32 << 32
}

// home returns the slot where the search for a hash begins: in the order of the hashes.
func (x *journalIndex) home(slot uint64) int {
	return int(slot >> 32 * uint64(len(x.slots)) >> 32)
}

// at returns what the entries are from a slot's on, to the end of its chunk.
func (x *journalIndex) at(slot uint64) []byte {
	place := uint32(slot) - 1
	return x.chunks[place>>chunkBits][place&(1<<chunkBits-1):]
}

// find returns the key's entry and the bytes from it on, or nil and the index of the slot that is free for it.
func (x *journalIndex) find(key Key, hash uint64) (e entry, b []byte, free int) {
	for i := x.home(hash); ; i = (i + 1) & (len(x.slots) - 1) {
		slot := x.slots[i]
		if slot == 0 {
			return entry{}, nil, i
		}
		if slot>>32 == hash>>32 {
			b := x.at(slot)
			if e, _ = readEntry(b); e.name == key.Name && string(e.id) == key.ID {
				return e, b, -1
			}
		}
	}
}

func (x *journalIndex) get(key Key) (tat int64, ok bool) {
	e, b, _ := x.find(key, x.hash(key))
	return e.tat, b != nil
}

// put enters changes, of which a later one replaces an earlier one of the same bucket.
func (x *journalIndex) put(changes ...Change) {
	for x.n+len(changes) > len(x.slots)*5/8 {
		x.grow()
	}
	const ahead = 16 // as many cache lines as may be on their way at a time
	var hashes [ahead]uint64
	for part := range slices.Chunk(changes, ahead) {
		for i := range part {
			hashes[i] = x.hash(part[i].Key)
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

func (x *journalIndex) putHashed(c Change, hash uint64) {
	e, b, free := x.find(c.Key, hash)
	if b != nil {
		binary.BigEndian.PutUint64(b[e.size-8:], uint64(c.TAT))
		return
	}
	last := len(x.chunks) - 1
	if last < 0 {
		x.chunks, last = append(x.chunks, nil), 0
	} else if len(x.chunks[last])+entrySize(c) > 1<<chunkBits {
		x.chunks, last = append(x.chunks, make([]byte, 0, 1<<chunkBits)), last+1
	}
	begin := len(x.chunks[last])
	x.slots[free] = hash | uint64(last<<chunkBits+begin+1)
	x.chunks[last] = appendEntry(x.chunks[last], c)
	x.size += int64(len(x.chunks[last]) - begin)
	x.n++
}

// grow makes twice as many slots.
func (x *journalIndex) grow() {
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

// full reports whether the places are about to run out.
func (x *journalIndex) full() bool { return len(x.chunks) >= 1<<(31-chunkBits) }

// all yields the entries, in the order in which their buckets first came.
func (x *journalIndex) all() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for _, b := range x.chunks {
			for len(b) > 0 {
				e, _ := readEntry(b)
				if !yield(e) {
					return
				}
				b = b[e.size:]
			}
		}
	}
}

func (e entry) compare(f entry) int {
	return cmp.Or(cmp.Compare(e.name, f.name), bytes.Compare(e.id, f.id))
}

// run is what a chunk of an index has, in the order of the keys.
type run struct {
	first  entry
	chunk  []byte
	behind []uint32 // where the other entries begin
}

// sorter has the entries of an index in the order of their keys. All of them are more than the processor's cache holds, and a
// chunk is not: each is sorted by itself, and they are merged as the entries are taken.
type sorter struct {
	runs  []*run // a heap
	left  int    // entries
	taken []entry
}

// sorted returns the entries in the order of their keys; nil if stop, where there is one, has said so meanwhile.
func (x *journalIndex) sorted(stop func() bool) *sorter {
	type placed struct {
		entry
		begin uint32
	}
	s := &sorter{left: x.n}
	var es []placed
	for _, chunk := range x.chunks {
		if stop != nil && stop() {
			return nil
		}
		es = es[:0]
		for at := 0; at < len(chunk); {
			e, _ := readEntry(chunk[at:])
			es = append(es, placed{e, uint32(at)})
			at += e.size
		}
		slices.SortFunc(es, func(a, b placed) int { return a.compare(b.entry) })
		r := &run{first: es[0].entry, chunk: chunk, behind: make([]uint32, len(es)-1)}
		for i := range r.behind {
			r.behind[i] = es[i+1].begin
		}
		s.runs = append(s.runs, r)
	}
	heap.Init(s)
	return s
}

// take returns the next n entries, or all that are left. They are good until the next take.
func (s *sorter) take(n int) []entry {
	s.taken = s.taken[:0]
	for range min(n, s.left) {
		r := s.runs[0]
		s.taken = append(s.taken, r.first)
		if len(r.behind) > 0 {
			r.first, _ = readEntry(r.chunk[r.behind[0]:])
			r.behind = r.behind[1:]
			heap.Fix(s, 0)
		} else {
			heap.Pop(s)
		}
	}
	s.left -= len(s.taken)
	return s.taken
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (s *sorter) Len() int           { return len(s.runs) }
func (s *sorter) Less(i, j int) bool { return s.runs[i].first.compare(s.runs[j].first) < 0 }
func (s *sorter) Swap(i, j int)      { s.runs[i], s.runs[j] = s.runs[j], s.runs[i] }
func (s *sorter) Push(any)           { panic("nothing is added") }
func (s *sorter) Pop() any {
	s.runs = s.runs[:len(s.runs)-1]
	return nil
}
