package stint

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/stint-go/stint/internal/prefetch"
)

// filter is a Bloom filter of the buckets in a file: it knows of most ids that the file has nothing for, and the file
// need not be asked. All the bits of a bucket are in one cache line. Bits are only ever set, so that it may be read while
// it is written.
//
// F. Putze, P. Sanders and J. Singler, "Cache-, hash-, and space-efficient Bloom filters", 2009.
type filter struct {
	seed  maphash.Seed
	lines []filterLine
	shift uint         // of a hash, to a line's number
	added atomic.Int64 // about how many
	room  int64        // for so many: one in two hundred of the others is then taken for one of them
}

type filterLine [8]atomic.Uint64

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio: its multiples lie far apart

const (
	filterBits   = 12 // per bucket
	filterProbes = 5
)

func newFilter(room int64) *filter {
	n := bits.Len64(uint64(max(room, 1<<15)*filterBits - 1)) // a power of two
	return &filter{
		seed:  maphash.MakeSeed(),
		lines: make([]filterLine, 1<<(n-9)),
		shift: uint(64 - n + 9),
		room:  1 << n / filterBits,
	}
}

// bit returns the word and the mask of one of the bits of a hash.
func (f *filter) bit(h uint64, probe int) (*atomic.Uint64, uint64) {
	bit := h * golden >> (64 - 9*(probe+1)) % 512
	return &f.lines[h>>f.shift][bit/64], 1 << (bit % 64)
}

func (f *filter) hash(key Key) uint64 {
	return maphash.String(f.seed, key.ID) + uint64(key.Name)*golden
}

func (f *filter) add(key Key) { f.addHash(f.hash(key)) }

func (f *filter) addHash(h uint64) {
	fresh := false
	for i := range filterProbes {
		if w, mask := f.bit(h, i); w.Load()&mask == 0 {
			w.Or(mask)
			fresh = true
		}
	}
	if fresh {
		f.added.Add(1)
	}
}

// addAll adds the buckets that the store has after the changes.
func (f *filter) addAll(changes []Change) {
	const ahead = 16 // as many cache lines as may be on their way at a time
	var hashes [ahead]uint64
	for part := range slices.Chunk(changes, ahead) {
		for i, c := range part {
			hashes[i] = f.hash(c.Key)
			prefetch.Lines(uintptr(unsafe.Pointer(&f.lines[hashes[i]>>f.shift])))
		}
		for i, c := range part {
			if c.TAT != 0 {
				f.addHash(hashes[i])
			}
		}
	}
}

// has reports whether the key may have been added; false is certain.
func (f *filter) has(key Key) bool {
	h := f.hash(key)
	for i := range filterProbes {
		if w, mask := f.bit(h, i); w.Load()&mask == 0 {
			return false
		}
	}
	return true
}

func (f *filter) overfull() bool { return f.added.Load() > f.room }
