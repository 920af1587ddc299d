package bboltpage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/bits"
	"os"
	"slices"

	"github.com/stint-go/stint/internal/format"
)

// A page begins with its number (8 bytes), type (2), the count of its elements
// (2), and its length in pages, less one (4). An element has 16 bytes. In a
// leaf these are flags, the offset of the key from the element, the length of
// the key, and the length of the value after it. In a branch they are the
// offset and the length of a child's first key, and the child's page number.
const (
	Size       = 4096
	Header     = 16
	Element    = 16
	Branch     = 1  // type of a page
	Leaf       = 2  // type of a page
	freelist   = 16 // type of a page
	BucketFlag = 1  // flag of an element that is a bucket
	deepest    = 40 // most levels of a tree
)

const (
	metaBytes = 80 // the part of a meta page that is in use
	magic     = 0xED0CDAED
)

// Meta has the contents of the meta page at Place, which is 0 or 1.
type Meta struct {
	Root, Freelist, Pages, Tx, Place uint64

	bytes [metaBytes]byte
}

// Page returns the page with Place as its number. The number in the file may be
// wrong: the checksum does not cover it.
func (m Meta) Page() []byte {
	page := make([]byte, Size)
	copy(page, m.bytes[:])
	binary.NativeEndian.PutUint64(page, m.Place)
	return page
}

func hasMagic(page []byte) bool { return binary.NativeEndian.Uint32(page[16:]) == magic }

// isForeign reports whether the page was written by a machine of the other byte
// order.
func isForeign(page []byte) bool {
	return bits.ReverseBytes32(binary.NativeEndian.Uint32(page[16:])) == magic
}

func word(page []byte, at int) uint64 { return binary.NativeEndian.Uint64(page[at:]) }

func metaSum(page []byte) uint64 {
	h := fnv.New64a()
	h.Write(page[16:72])
	return h.Sum64()
}

// SealMeta makes a page the meta page of a transaction, at place 0 or 1.
func SealMeta(page []byte, place, tx uint64) {
	binary.NativeEndian.PutUint64(page, place)
	binary.NativeEndian.PutUint64(page[64:], tx)
	binary.NativeEndian.PutUint64(page[72:], metaSum(page))
}

// ReadAt fills b from the file. If the file is too short, the error is
// ErrCorrupt with both lengths.
func ReadAt(file *os.File, b []byte, at int64) error {
	_, err := file.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		return Short(file, file.Name(), at+int64(len(b)))
	}
	return err
}

// Short returns the ErrCorrupt of a file, named path, that should have want
// bytes.
func Short(file *os.File, path string, want int64) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return format.Damaged(path, "the file is shorter than it says: %d bytes, want %d; "+
		"restore it from a backup", info.Size(), want)
}

// CheckMagic returns ErrFormat if the file is not a bbolt file: neither of its
// first two pages has bbolt's magic number. It returns ErrCorrupt if the file
// is empty, or if it is a bbolt file that ends within its first two pages.
func CheckMagic(file *os.File) error {
	var pages [2 * Size]byte
	n, err := file.ReadAt(pages[:], 0)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case n == 0: // bbolt would make a new database of it
		return format.Damaged(file.Name(), "it is empty; remove it to start anew")
	case isForeign(pages[:]) || isForeign(pages[Size:]):
		return fmt.Errorf("%w: %s: written by a machine of the other byte order; use stint export there, "+
			"and stint import here", format.ErrFormat, file.Name())
	case !hasMagic(pages[:]) && !hasMagic(pages[Size:]):
		return fmt.Errorf("%w: %s: not a bbolt file; if stint wrote it, its beginning was overwritten: "+
			"restore it from a backup", format.ErrFormat, file.Name())
	case n < len(pages):
		return Short(file, file.Name(), int64(len(pages)))
	}
	return nil
}

// ReadMeta returns the meta page in force: the sound one of the latest
// transaction.
func ReadMeta(file *os.File) (Meta, error) {
	ms, err := ReadMetas(file)
	if err != nil {
		return Meta{}, err
	}
	return ms[0], nil
}

// ReadMetas returns the sound meta pages: first the one in force, then the one
// of the transaction before.
func ReadMetas(file *os.File) (ms []Meta, err error) {
	for place := range uint64(2) {
		m := Meta{Place: place}
		b := m.bytes[:]
		if _, err := file.ReadAt(b, int64(place)*Size); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if !hasMagic(b) || word(b, 72) != metaSum(b) {
			continue
		}
		if size := binary.NativeEndian.Uint32(b[24:]); size != Size {
			return nil, fmt.Errorf("%w: %s: a bbolt file with pages of %d bytes, not one of stint's",
				format.ErrFormat, file.Name(), size)
		}
		m.Root, m.Freelist, m.Pages, m.Tx = word(b, 32), word(b, 48), word(b, 56), word(b, 64)
		ms = append(ms, m)
	}
	if len(ms) == 0 {
		return nil, format.Damaged(file.Name(), "neither of its first two pages is sound")
	}
	slices.SortStableFunc(ms, func(a, b Meta) int { return cmp.Compare(b.Tx, a.Tx) })
	return ms, nil
}

// MetaOf returns the meta page of a transaction, or nil if there is none.
func MetaOf(file *os.File, tx uint64) (*Meta, error) {
	ms, err := ReadMetas(file)
	for _, m := range ms {
		if m.Tx == tx {
			return &m, nil
		}
	}
	return nil, err
}

// CheckMeta checks the meta pages, and that the file is as long as they say. If
// short is true, the file may end early. Salvage needs that.
func CheckMeta(file *os.File, short bool) (Meta, error) {
	m, err := ReadMeta(file)
	if err != nil {
		return m, err
	}
	info, err := file.Stat()
	if err != nil {
		return m, err
	}
	path, most := file.Name(), uint64(info.Size())/Size
	switch {
	case m.Freelist == 1<<64-1: // bbolt would read every page, and could panic in another goroutine
		err = fmt.Errorf("%w: %s: a bbolt file without a list of free pages, not one of stint's",
			format.ErrFormat, path)
	case m.Pages > most*1024:
		err = format.Damaged(path, "it has %d bytes, want %d pages of %d bytes", info.Size(), m.Pages, Size)
	case m.Pages > most && !short:
		err = Short(file, path, int64(m.Pages*Size))
	case m.Root < 2 || m.Root >= m.Pages || m.Freelist < 2 || m.Freelist >= m.Pages:
		err = format.Damaged(path, "one of its first two pages points to a page outside of the file")
	case m.Tx >= 1<<62:
		// The number of the next transaction may wrap around to 0. bbolt would take
		// the older meta page for the newer one, and ignore its own commits.
		err = format.Damaged(path, "its transaction number %d is impossible", m.Tx)
	}
	return m, err
}

// freelistCount returns how many pages a list of free pages has, and the offset
// of the first.
func freelistCount(head []byte) (count, skip uint64) {
	if n := Count(head); n != 0xFFFF {
		return n, Header
	}
	return word(head, Header), Header + 8 // the count does not fit in 16 bits
}

// CheckFile checks what bbolt reads when it opens a file to write: the meta
// pages, and the list of free pages.
func CheckFile(file *os.File) (Meta, error) {
	m, err := CheckMeta(file, false)
	if err != nil {
		return m, err
	}
	path := file.Name()
	var head [24]byte
	if err := ReadAt(file, head[:], int64(m.Freelist)*Size); err != nil {
		return m, err
	}
	long := uint64(binary.NativeEndian.Uint32(head[12:])) + 1
	count, skip := freelistCount(head[:])
	if word(head[:], 0) != m.Freelist || Kind(head[:]) != freelist || long > m.Pages-m.Freelist ||
		count > m.Pages || skip+8*count > long*Size {
		return m, format.Damaged(path, "its list of free pages is damaged")
	}
	list := make([]byte, 8*count)
	if err := ReadAt(file, list, int64(m.Freelist*Size+skip)); err != nil {
		return m, err
	}
	last := uint64(1)
	for ; len(list) > 0; list = list[8:] {
		id := word(list, 0)
		if id <= last || id >= m.Pages || id == m.Root || id >= m.Freelist && id < m.Freelist+long {
			return m, format.Damaged(path, "its list of free pages has page %d, which does not belong there", id)
		}
		last = id
	}
	return m, nil
}

// Sizes returns the bytes of the file, and of its free pages as of bbolt's last
// commit. A number that cannot be read is 0.
func Sizes(file *os.File) (size, free int64) {
	info, err := file.Stat()
	if err != nil {
		return 0, 0
	}
	m, err := ReadMeta(file)
	var head [24]byte
	if err == nil {
		_, err = file.ReadAt(head[:], int64(m.Freelist)*Size)
	}
	if err != nil {
		return info.Size(), 0
	}
	n, _ := freelistCount(head[:])
	return info.Size(), min(int64(n)*Size, info.Size())
}
