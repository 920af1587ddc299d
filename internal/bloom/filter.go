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
	seed   maphash.Seed
	layers atomic.Pointer[[]*layer] // the last one takes new keys
}

// layer is a Bloom filter of a fixed size.
type layer struct {
	lines []line
	shift uint         // from a hash to the number of a line
	added atomic.Int64 // approximate number of keys
	room  int64        // number of keys until the layer is full
}

type line [8]atomic.Uint64

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio: its multiples lie far apart

const (
	bitsPerKey = 12
	probes     = 5
)

// New returns a filter that has one layer for at least room keys.
func New(room int64) *Filter {
	f := &Filter{seed: maphash.MakeSeed()}
	f.layers.Store(&[]*layer{newLayer(room)})
	return f
}

func newLayer(room int64) *layer {
	n := bits.Len64(uint64(max(room, 1<<15)*bitsPerKey - 1)) // a power of two
	return &layer{
		lines: make([]line, 1<<(n-9)),
		shift: uint(64 - n + 9),
		room:  1 << n / bitsPerKey,
	}
}

func (f *Filter) hash(name uint16, id string) uint64 {
	return maphash.String(f.seed, id) + uint64(name)*golden
}

// Add adds a key.
func (f *Filter) Add(name uint16, id string) { f.addHash(f.hash(name, id)) }

func (f *Filter) addHash(h uint64) {
	layers := *f.layers.Load()
	last := layers[len(layers)-1]
	for _, l := range layers[:len(layers)-1] {
		if l.has(h) {
			return
		}
	}
	if last.add(h) && last.added.Add(1) == last.room {
		f.addLayer(2 * last.room)
	}
}

// addLayer adds a layer. Only the call whose key filled the last layer calls it, so
// no two calls do at once.
func (f *Filter) addLayer(room int64) {
	layers := append(slices.Clone(*f.layers.Load()), newLayer(room))
	f.layers.Store(&layers)
}

// AddAll adds the keys of entries, except those with a TAT of 0.
func (f *Filter) AddAll(entries []format.Entry) {
	const ahead = 16 // cache lines of a layer fetched at a time
	var hashes [ahead]uint64
	for part := range slices.Chunk(entries, ahead) {
		for i, e := range part {
			hashes[i] = f.hash(e.Name, e.ID)
			f.prefetch(hashes[i])
		}
		for i, e := range part {
			if e.TAT != 0 {
				f.addHash(hashes[i])
			}
		}
	}
}

// prefetch fetches the lines of a hash.
func (f *Filter) prefetch(h uint64) {
	for _, l := range *f.layers.Load() {
		prefetch.Lines(uintptr(unsafe.Pointer(&l.lines[h>>l.shift])))
	}
}

// Has reports whether the key may have been added. False is always right.
func (f *Filter) Has(name uint16, id string) bool {
	h := f.hash(name, id)
	f.prefetch(h)
	return slices.ContainsFunc(*f.layers.Load(), func(l *layer) bool { return l.has(h) })
}

// Added returns the approximate number of keys.
func (f *Filter) Added() (n int64) {
	for _, l := range *f.layers.Load() {
		n += l.added.Load()
	}
	return n
}

// Overfull reports whether the filter has more keys than it was made for, and so
// more than one layer.
func (f *Filter) Overfull() bool { return len(*f.layers.Load()) > 1 }

// add sets the bits of a hash. It reports whether one of them was new.
func (l *layer) add(h uint64) (fresh bool) {
	for i := range probes {
		if w, mask := l.bit(h, i); w.Load()&mask == 0 {
			w.Or(mask)
			fresh = true
		}
	}
	return fresh
}

func (l *layer) has(h uint64) bool {
	for i := range probes {
		if w, mask := l.bit(h, i); w.Load()&mask == 0 {
			return false
		}
	}
	return true
}

// bit returns the word and the mask of one probe of a hash.
func (l *layer) bit(h uint64, probe int) (*atomic.Uint64, uint64) {
	bit := h * golden >> (64 - 9*(probe+1)) % 512
	return &l.lines[h>>l.shift][bit/64], 1 << (bit % 64)
}
