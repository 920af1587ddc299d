package bloom

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/prefetch"
)

// Filter is a set of keys, with rare false positives. It may be read while keys
// are added, because bits are only ever set.
type Filter struct {
	seed  maphash.Seed
	lines []line
	shift uint         // from a hash to the number of a line
	added atomic.Int64 // approximate number of keys
	room  int64        // number of keys until the filter is overfull
}

type line [8]atomic.Uint64

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio: its multiples lie far apart

const (
	bitsPerKey = 12
	probes     = 5
)

// New returns a filter for at least room keys.
func New(room int64) *Filter {
	n := bits.Len64(uint64(max(room, 1<<15)*bitsPerKey - 1)) // a power of two
	return &Filter{
		seed:  maphash.MakeSeed(),
		lines: make([]line, 1<<(n-9)),
		shift: uint(64 - n + 9),
		room:  1 << n / bitsPerKey,
	}
}

// bit returns the word and the mask of one probe of a hash.
func (f *Filter) bit(h uint64, probe int) (*atomic.Uint64, uint64) {
	bit := h * golden >> (64 - 9*(probe+1)) % 512
	return &f.lines[h>>f.shift][bit/64], 1 << (bit % 64)
}

func (f *Filter) hash(name uint16, id string) uint64 {
	return maphash.String(f.seed, id) + uint64(name)*golden
}

// Add adds a key.
func (f *Filter) Add(name uint16, id string) { f.addHash(f.hash(name, id)) }

func (f *Filter) addHash(h uint64) {
	fresh := false
	for i := range probes {
		if w, mask := f.bit(h, i); w.Load()&mask == 0 {
			w.Or(mask)
			fresh = true
		}
	}
	if fresh {
		f.added.Add(1)
	}
}

// AddAll adds the keys of entries, except those with a TAT of 0.
func (f *Filter) AddAll(entries []format.Entry) {
	const ahead = 16 // cache lines fetched at a time
	var hashes [ahead]uint64
	for part := range slices.Chunk(entries, ahead) {
		for i, e := range part {
			hashes[i] = f.hash(e.Name, e.ID)
			prefetch.Lines(uintptr(unsafe.Pointer(&f.lines[hashes[i]>>f.shift])))
		}
		for i, e := range part {
			if e.TAT != 0 {
				f.addHash(hashes[i])
			}
		}
	}
}

// Has reports whether the key may have been added. False is always right.
func (f *Filter) Has(name uint16, id string) bool {
	h := f.hash(name, id)
	for i := range probes {
		if w, mask := f.bit(h, i); w.Load()&mask == 0 {
			return false
		}
	}
	return true
}

// Added returns the approximate number of keys.
func (f *Filter) Added() int64 { return f.added.Load() }

// Overfull reports whether the filter has more keys than it was made for.
func (f *Filter) Overfull() bool { return f.added.Load() > f.room }
