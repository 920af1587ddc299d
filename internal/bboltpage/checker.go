package bboltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"sort"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
)

// Checker checks the pages of the trees in a file, each once. Pages that were
// added after NewChecker count as sound, because this process wrote them. With
// a nil Checker all pages count as sound.
type Checker struct {
	file  *os.File
	path  string
	sound []atomic.Uint64 // one bit for each page that was checked
	whole atomic.Bool     // all pages were checked
}

// NewChecker returns a Checker for a file with this meta page.
func NewChecker(file *os.File, path string, m Meta) *Checker {
	return &Checker{file: file, path: path, sound: make([]atomic.Uint64, m.Pages/64+1)}
}

func (c *Checker) read(id uint64, buffer []byte) error {
	if err := ReadAt(c.file, buffer, int64(id)*Size); errors.Is(err, format.ErrCorrupt) {
		return err
	} else if err != nil {
		return fmt.Errorf("page %d of %s: %w", id, c.path, err)
	}
	return nil
}

// IsSound reports whether a page was checked.
func (c *Checker) IsSound(id uint64) bool {
	return id/64 >= uint64(len(c.sound)) || c.sound[id/64].Load()&(1<<(id%64)) != 0
}

var pageBuffers = sync.Pool{New: func() any { return new([Size]byte) }}

// Page reads a page, and checks it if that was not done before. All keys of the
// page must lie between first and next, which may be nil. The result is in the
// buffer if the keys of the page fit there, and otherwise in a new slice. Either
// may lack the end of the last value.
func (c *Checker) Page(id, pages uint64, first, next []byte, buffer []byte) ([]byte, error) {
	if id < 2 || id >= pages {
		return nil, format.Damaged(c.path, "page %d is not in the file", id)
	}
	if err := c.read(id, buffer); err != nil {
		return nil, err
	}
	kind := Kind(buffer)
	if c.IsSound(id) {
		return buffer, nil
	}
	long := uint64(binary.NativeEndian.Uint32(buffer[12:])) + 1
	used, looked := usedBytes(buffer)
	switch {
	case binary.NativeEndian.Uint64(buffer) != id || kind != Leaf && kind != Branch || long > pages-id:
		return nil, format.Damaged(c.path, "page %d is not a page of the tree", id)
	case (used+Size-1)/Size != long:
		return nil, format.Damaged(c.path, "page %d is not as long as it says", id)
	case looked > uint64(len(buffer)):
		buffer = make([]byte, looked)
		if err := c.read(id, buffer); err != nil {
			return nil, err
		}
	}
	if err := checkElements(buffer, long*Size, pages, first, next); err != nil {
		return nil, format.Damaged(c.path, "page %d: %v", id, err)
	}
	if id/64 < uint64(len(c.sound)) {
		c.sound[id/64].Or(1 << (id % 64))
	}
	return buffer, nil
}

// SetWhole records that all pages were checked.
func (c *Checker) SetWhole() {
	if c != nil {
		c.whole.Store(true)
	}
}

func (c *Checker) isWhole() bool { return c == nil || c.whole.Load() }

// Key checks the pages on the way to a key of the bucket, which may be absent.
// It also checks the pages beside them, because bbolt may merge a page with its
// neighbour.
func (c *Checker) Key(b *bolt.Bucket, key []byte) error {
	id := uint64(b.RootPage())
	if c.isWhole() || id == 0 {
		return nil
	}
	buffers := [2]*[Size]byte{pageBuffers.Get().(*[Size]byte), pageBuffers.Get().(*[Size]byte)}
	defer pageBuffers.Put(buffers[0])
	defer pageBuffers.Put(buffers[1])
	pages := c.pages(b)
	var first, next []byte
	for range deepest {
		page, err := c.Page(id, pages, first, next, buffers[0][:])
		if err != nil {
			return err
		}
		if Kind(page) == Leaf {
			return nil
		}
		n := Count(page)
		i := uint64(sort.Search(int(n), func(i int) bool {
			return bytes.Compare(KeyOf(page, uint64(i)), key) > 0
		}))
		i -= min(i, 1)
		for j := i - min(i, 1); j <= min(i+1, n-1); j++ {
			lower, upper := Bounds(page, j, first, next)
			if child := ItemOf(page, j).Child; j != i && !c.IsSound(child) {
				if _, err := c.Page(child, pages, lower, upper, buffers[1][:]); err != nil {
					return err
				}
			}
		}
		lower, upper := Bounds(page, i, first, next)
		first, next = bytes.Clone(lower), bytes.Clone(upper)
		id = ItemOf(page, i).Child
	}
	return format.Damaged(c.path, "page %d leads back to itself", id)
}

// pages returns the length of the file in pages, in the bucket's transaction.
func (c *Checker) pages(b *bolt.Bucket) uint64 { return uint64(b.Tx().Size()) / Size }

// Root checks the first page of a bucket without reading its last value. The
// bucket may be nil.
func (c *Checker) Root(b *bolt.Bucket) error {
	if c.isWhole() || b == nil || b.RootPage() == 0 {
		return nil
	}
	buffer := pageBuffers.Get().(*[Size]byte)
	defer pageBuffers.Put(buffer)
	_, err := c.Page(uint64(b.RootPage()), c.pages(b), nil, nil, buffer[:])
	return err
}

// Run checks the pages that hold the bucket's keys after the key `after`. It
// stops when they hold at least want keys; a want of 0 means all. The bucket
// may be nil.
func (c *Checker) Run(b *bolt.Bucket, after []byte, want int) error {
	if c.isWhole() || b == nil || b.RootPage() == 0 {
		return nil
	}
	if want == 0 {
		want = math.MaxInt
	}
	for page, err := range c.Leaves(uint64(b.RootPage()), c.pages(b), after, false) {
		if err != nil {
			return err
		}
		if n := Count(page); len(after) == 0 || n > 0 && bytes.Compare(KeyOf(page, 0), after) > 0 {
			want -= int(n)
		}
		if want < 0 {
			return nil
		}
	}
	return nil
}

// Leaves yields the leaves below a page that may hold keys after the key
// `after`, and the errors of unsound pages. It goes on after an error. If once
// is true, a page that was checked before is an error, because two pages point
// to it.
func (c *Checker) Leaves(id, pages uint64, after []byte, once bool) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		walk{c, pages, after, once, yield}.page(id, nil, nil, deepest)
	}
}

type walk struct {
	*Checker
	pages uint64
	after []byte
	once  bool
	yield func([]byte, error) bool
}

func (w walk) page(id uint64, first, next []byte, deep int) bool {
	if deep == 0 || w.once && id < w.pages && w.IsSound(id) {
		return w.yield(nil, format.Damaged(w.path, "several pages point to page %d", id))
	}
	page, err := w.Page(id, w.pages, first, next, make([]byte, Size))
	if err == nil {
		if used, _ := usedBytes(page); used > uint64(len(page)) {
			page = make([]byte, used)
			err = w.read(id, page)
		}
	}
	if err != nil || Kind(page) == Leaf {
		return w.yield(page, err)
	}
	for i := range Count(page) {
		lower, upper := Bounds(page, i, first, next)
		if len(w.after) > 0 && upper != nil && bytes.Compare(upper, w.after) <= 0 {
			continue
		}
		if !w.page(ItemOf(page, i).Child, lower, upper, deep-1) {
			return false
		}
	}
	return true
}
