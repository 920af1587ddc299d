package stint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// bbolt trusts its pages. Most of what it meets in a damaged one is a panic or a fault, which guard recovers; but a branch
// that leads back to itself, a page that claims to be a billion pages long, or a list of free pages without an end use up
// the stack or the memory, and that ends the process. So pages are looked at here, through the file, before bbolt
// does: the meta pages, the list of free pages and all but the buckets when the file is opened; the pages of the buckets
// when they are first needed, and no more once the sweep has been through all of them.
//
// A page is written in one go, so that it has no gaps, and the order of its keys and its length follow from what it holds:
// little of a page can be changed without that being seen here. What can are values, and then the clamp has its turn.

// A page begins with its number (8 bytes), type (2), the count of its elements (2), and how many pages it is long, less one
// (4). An element is 16 bytes: of a leaf, flags, the offset of the key from here, its length, and that of the value behind
// it; of a branch, the offset and the length of the first key of a page, and that page's number.
const (
	pageHeader   = 16
	pageElement  = 16
	branchPage   = 1
	leafPage     = 2
	freelistPage = 16
	bucketValue  = 1 // the flag of an element that is a bucket
	deepest      = 40
)

// boltMeta is what a meta page says.
type boltMeta struct{ root, freelist, pages, tx uint64 }

func damaged(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrCorrupt, path, fmt.Sprintf(format, args...))
}

// metaBytes is how much of a meta page is in use.
const metaBytes = 80

// isMeta reports whether a page is a meta page whose checksum is right.
func isMeta(b []byte) bool {
	return binary.NativeEndian.Uint32(b[16:]) == 0xED0CDAED && binary.NativeEndian.Uint64(b[72:]) == metaSum(b)
}

func metaSum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b[16:72])
	return h.Sum64()
}

// readMeta returns the meta page that is in force.
func readMeta(file *os.File) (boltMeta, error) {
	ms, err := readMetas(file)
	if err != nil {
		return boltMeta{}, err
	}
	return ms[0], nil
}

// readMetas returns the meta pages that are sound, the one in force before that of the transaction before.
func readMetas(file *os.File) (ms []boltMeta, err error) {
	for i := range int64(2) {
		var b [metaBytes]byte
		if _, err := file.ReadAt(b[:], i*pageSize); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, err
		}
		if !isMeta(b[:]) {
			continue
		}
		word := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
		if size := binary.NativeEndian.Uint32(b[24:]); size != pageSize {
			return nil, fmt.Errorf("%w: %s: a bbolt file with pages of %d bytes, not one of stint's", ErrFormat, file.Name(), size)
		}
		ms = append(ms, boltMeta{word(32), word(48), word(56), word(64)})
	}
	if len(ms) == 0 {
		return nil, damaged(file.Name(), "neither of its first two pages is sound")
	}
	slices.SortStableFunc(ms, func(a, b boltMeta) int { return cmp.Compare(b.tx, a.tx) })
	return ms, nil
}

// checkMeta looks at the meta pages, and that the file is as long as they say; of one to salvage, which may be short, that they are
// believable.
func checkMeta(file *os.File, purpose purpose) (boltMeta, error) {
	m, err := readMeta(file)
	if err != nil {
		return m, err
	}
	info, err := file.Stat()
	if err != nil {
		return m, err
	}
	path, most := file.Name(), uint64(info.Size())/pageSize
	if purpose == toSalvage {
		most *= 1024
	}
	switch {
	case m.freelist == 1<<64-1: // bbolt would look at every page, in a goroutine of its own
		err = fmt.Errorf("%w: %s: a bbolt file without a list of free pages, not one of stint's", ErrFormat, path)
	case m.pages > most:
		err = damaged(path, "it has %d bytes, and should have %d pages", info.Size(), m.pages)
	case m.root < 2 || m.root >= m.pages || m.freelist < 2 || m.freelist >= m.pages:
		err = damaged(path, "its first page points outside of it")
	case m.tx >= 1<<62: // the next may be 0, which bbolt would never take for newer: commits without effect, on pages still in use
		err = damaged(path, "no file has seen %d transactions", m.tx)
	}
	return m, err
}

// checkFile looks at what bbolt reads when it opens a file: the meta pages, and the list of free pages.
func checkFile(file *os.File) (boltMeta, error) {
	m, err := checkMeta(file, toWrite)
	if err != nil {
		return m, err
	}
	path := file.Name()
	var head [24]byte
	if _, err := file.ReadAt(head[:], int64(m.freelist)*pageSize); err != nil {
		return m, err
	}
	long := uint64(binary.NativeEndian.Uint32(head[12:])) + 1
	count, skip := uint64(binary.NativeEndian.Uint16(head[10:])), uint64(pageHeader)
	if count == 0xFFFF { // more than that: the first of the list says how many
		count, skip = binary.NativeEndian.Uint64(head[16:]), skip+8
	}
	if binary.NativeEndian.Uint64(head[:]) != m.freelist || binary.NativeEndian.Uint16(head[8:]) != freelistPage ||
		long > m.pages-m.freelist || count > m.pages || skip+8*count > long*pageSize {
		return m, damaged(path, "its list of free pages is not one")
	}
	list := make([]byte, 8*count)
	if _, err := file.ReadAt(list, int64(m.freelist*pageSize+skip)); err != nil {
		return m, err
	}
	last := uint64(1)
	for ; len(list) > 0; list = list[8:] {
		id := binary.NativeEndian.Uint64(list)
		if id <= last || id >= m.pages || id == m.root || id >= m.freelist && id < m.freelist+long {
			return m, damaged(path, "page %d is in its list of free pages", id)
		}
		last = id
	}
	return m, nil
}

// pageChecker looks at the pages of the tree.
type pageChecker struct {
	file  *os.File
	path  string
	sound []atomic.Uint64 // bit by page: it was looked at. The pages behind were written by this process.
	whole atomic.Bool     // and so was all that there is
}

func newPageChecker(file *os.File, path string, m boltMeta) *pageChecker {
	return &pageChecker{file: file, path: path, sound: make([]atomic.Uint64, m.pages/64+1)}
}

func (c *pageChecker) isSound(id uint64) bool {
	return id/64 >= uint64(len(c.sound)) || c.sound[id/64].Load()&(1<<(id%64)) != 0
}

var pageBuffers = sync.Pool{New: func() any { return new([pageSize]byte) }}

// page reads a page and checks it, once. first and next are the keys that it lies between; nil: there is no
// such key. What it returns is in the buffer, if it has room there.
func (c *pageChecker) page(id, pages uint64, first, next []byte, buffer []byte) ([]byte, error) {
	if id < 2 || id >= pages {
		return nil, damaged(c.path, "page %d is not in the file", id)
	}
	if _, err := c.file.ReadAt(buffer, int64(id)*pageSize); err != nil {
		return nil, fmt.Errorf("page %d of %s: %w", id, c.path, err)
	}
	kind := pageKind(buffer)
	if c.isSound(id) {
		return buffer, nil
	}
	long := uint64(binary.NativeEndian.Uint32(buffer[12:])) + 1
	switch used := usedBytes(buffer); {
	case binary.NativeEndian.Uint64(buffer) != id || kind != leafPage && kind != branchPage || long > pages-id:
		return nil, damaged(c.path, "page %d is not one of the tree", id)
	case (used+pageSize-1)/pageSize != long:
		return nil, damaged(c.path, "page %d is not as long as it says", id)
	case long > 1:
		buffer = make([]byte, long*pageSize)
		if _, err := c.file.ReadAt(buffer, int64(id)*pageSize); err != nil {
			return nil, fmt.Errorf("page %d of %s: %w", id, c.path, err)
		}
	}
	if err := checkElements(buffer, pages, first, next); err != nil {
		return nil, damaged(c.path, "page %d: %v", id, err)
	}
	if id/64 < uint64(len(c.sound)) {
		c.sound[id/64].Or(1 << (id % 64))
	}
	return buffer, nil
}

func pageKind(page []byte) uint16  { return binary.NativeEndian.Uint16(page[8:]) }
func pageCount(page []byte) uint64 { return uint64(binary.NativeEndian.Uint16(page[10:])) }

// pageItem is an element of a page.
type pageItem struct {
	flags      uint32
	at         uint64 // of the key, in the page
	key, value uint64 // their lengths
	child      uint64
}

func itemOf(page []byte, i uint64) (e pageItem) {
	at := pageHeader + pageElement*i
	word := func(n uint64) uint32 { return binary.NativeEndian.Uint32(page[at+4*n:]) }
	if pageKind(page) == leafPage {
		return pageItem{flags: word(0), at: at + uint64(word(1)), key: uint64(word(2)), value: uint64(word(3))}
	}
	return pageItem{at: at + uint64(word(0)), key: uint64(word(1)), child: binary.NativeEndian.Uint64(page[at+8:])}
}

// usedBytes returns how much of a page its elements say that they use: 0 where there are more than begin in its first part.
func usedBytes(page []byte) uint64 {
	n := pageCount(page)
	used := pageHeader + pageElement*n
	if used > uint64(len(page)) {
		return 0
	}
	for i := range n {
		e := itemOf(page, i)
		used += e.key + e.value
	}
	return used
}

// checkElements looks at the elements of a page: that there is no gap between what they hold, that the keys are in order and
// between first and next, and that what is said to be another page, or a bucket, may be one.
func checkElements(page []byte, pages uint64, first, next []byte) error {
	n := pageCount(page)
	leaf := pageKind(page) == leafPage
	if n == 0 && (!leaf || first != nil || next != nil) { // only a whole bucket may be empty
		return errors.New("it is empty")
	}
	at := pageHeader + pageElement*n
	last := first
	for i := range n {
		e := itemOf(page, i)
		if e.at != at || e.key == 0 || e.key > uint64(len(page))-at || e.value > uint64(len(page))-at-e.key {
			return fmt.Errorf("element %d is not in its place", i)
		}
		key, value := page[at:][:e.key], page[at+e.key:][:e.value]
		if c := bytes.Compare(last, key); c > 0 || c == 0 && i > 0 || next != nil && bytes.Compare(key, next) >= 0 {
			return fmt.Errorf("element %d is out of order", i)
		}
		last = key
		at += e.key + e.value
		switch {
		case !leaf && (e.child < 2 || e.child >= pages || e.child == binary.NativeEndian.Uint64(page)):
			return fmt.Errorf("element %d points to page %d", i, e.child)
		case leaf && e.flags&^bucketValue != 0:
			return fmt.Errorf("element %d is neither a value nor a bucket", i)
		case leaf && e.flags == bucketValue:
			if err := checkBucket(value, pages); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
	}
	return nil
}

// checkBucket looks at a bucket as it lies in its parent: the number of its root page and a sequence number, and, where
// that root is 0, the one page that is all of it.
func checkBucket(b []byte, pages uint64) error {
	if len(b) < 16 {
		return errors.New("a bucket of too few bytes")
	}
	root, page := binary.NativeEndian.Uint64(b), b[16:]
	if root != 0 {
		if root < 2 || root >= pages || len(page) > 0 {
			return fmt.Errorf("a bucket that begins at page %d", root)
		}
		return nil
	}
	if len(page) < pageHeader || pageKind(page) != leafPage || binary.NativeEndian.Uint32(page[12:]) != 0 ||
		usedBytes(page) != uint64(len(page)) {
		return errors.New("a bucket that is not as long as it says")
	}
	return checkElements(page, pages, nil, nil)
}

// isWhole reports whether nothing is left to look at.
func (c *pageChecker) isWhole() bool { return c == nil || c.whole.Load() }

// key checks the pages in which a bucket has the key, or would have it, and those beside them, which bbolt may join
// with them.
func (c *pageChecker) key(b *bolt.Bucket, key []byte) error {
	id := uint64(b.RootPage())
	if c.isWhole() || id == 0 {
		return nil
	}
	buffers := [2]*[pageSize]byte{pageBuffers.Get().(*[pageSize]byte), pageBuffers.Get().(*[pageSize]byte)}
	defer pageBuffers.Put(buffers[0])
	defer pageBuffers.Put(buffers[1])
	pages := c.pages(b)
	var first, next []byte
	for range deepest {
		page, err := c.page(id, pages, first, next, buffers[0][:])
		if err != nil {
			return err
		}
		if pageKind(page) == leafPage {
			return nil
		}
		n := pageCount(page)
		i := uint64(sort.Search(int(n), func(i int) bool { return bytes.Compare(keyOf(page, uint64(i)), key) > 0 }))
		i -= min(i, 1)
		for j := i - min(i, 1); j <= min(i+1, n-1); j++ {
			lower, upper := bounds(page, j, first, next)
			if child := itemOf(page, j).child; j != i && !c.isSound(child) {
				if _, err := c.page(child, pages, lower, upper, buffers[1][:]); err != nil {
					return err
				}
			}
		}
		lower, upper := bounds(page, i, first, next)
		first, next = bytes.Clone(lower), bytes.Clone(upper)
		id = itemOf(page, i).child
	}
	return damaged(c.path, "page %d leads back to itself", id)
}

func keyOf(page []byte, i uint64) []byte {
	e := itemOf(page, i)
	return page[e.at:][:e.key]
}

// bounds returns the keys that a child of a branch lies between.
func bounds(page []byte, i uint64, first, next []byte) (lower, upper []byte) {
	lower, upper = first, next
	if i > 0 {
		lower = keyOf(page, i)
	}
	if i+1 < pageCount(page) {
		upper = keyOf(page, i+1)
	}
	return lower, upper
}

// pages returns how many pages the file has, as the bucket's transaction sees it.
func (c *pageChecker) pages(b *bolt.Bucket) uint64 { return uint64(b.Tx().Size()) / pageSize }

// run checks the pages of a bucket that hold the keys behind one, and as many more as are wanted: 0 for all.
func (c *pageChecker) run(b *bolt.Bucket, after []byte, want int) error {
	id := uint64(b.RootPage())
	if c.isWhole() || id == 0 {
		return nil
	}
	if want == 0 {
		want = math.MaxInt
	}
	_, err := c.runOf(id, c.pages(b), nil, nil, after, want, deepest)
	return err
}

func (c *pageChecker) runOf(id, pages uint64, first, next, after []byte, want, deep int) (left int, err error) {
	if deep == 0 {
		return 0, damaged(c.path, "page %d leads back to itself", id)
	}
	page, err := c.page(id, pages, first, next, make([]byte, pageSize))
	if err != nil {
		return 0, err
	}
	n := pageCount(page)
	if pageKind(page) == leafPage {
		if len(after) == 0 || n > 0 && bytes.Compare(keyOf(page, 0), after) > 0 {
			want -= int(n)
		}
		return want, nil
	}
	for i := range n {
		lower, upper := bounds(page, i, first, next)
		if len(after) > 0 && upper != nil && bytes.Compare(upper, after) <= 0 {
			continue
		}
		if want, err = c.runOf(itemOf(page, i).child, pages, lower, upper, after, want, deep-1); err != nil || want < 0 {
			return want, err
		}
	}
	return want, nil
}
