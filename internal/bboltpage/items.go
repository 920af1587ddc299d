package bboltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind returns the type of a page.
func Kind(page []byte) uint16 { return binary.NativeEndian.Uint16(page[8:]) }

// Count returns how many elements a page has.
func Count(page []byte) uint64 { return uint64(binary.NativeEndian.Uint16(page[10:])) }

// Item is an element of a page. A leaf has no Child, and a branch has no Flags
// and no Value.
type Item struct {
	Flags      uint32
	At         uint64 // the place of the key, in the page
	Key, Value uint64 // lengths
	Child      uint64
}

// ItemOf returns an element.
func ItemOf(page []byte, i uint64) (e Item) {
	at := Header + Element*i
	word := func(n uint64) uint32 { return binary.NativeEndian.Uint32(page[at+4*n:]) }
	if Kind(page) == Leaf {
		return Item{word(0), at + uint64(word(1)), uint64(word(2)), uint64(word(3)), 0}
	}
	return Item{0, at + uint64(word(0)), uint64(word(1)), 0, binary.NativeEndian.Uint64(page[at+8:])}
}

// usedBytes returns how many bytes the header, elements, keys and values of a
// page use, and how many of these checkElements looks at: not the last value,
// unless it is a bucket. Both are 0 if the header and the elements do not fit in
// page.
func usedBytes(page []byte) (used, looked uint64) {
	n := Count(page)
	used = Header + Element*n
	if used > uint64(len(page)) {
		return 0, 0
	}
	looked = used
	for i := range n {
		e := ItemOf(page, i)
		used += e.Key + e.Value
		if looked = used; e.Flags != BucketFlag {
			looked -= e.Value
		}
	}
	return used, looked
}

// checkElements checks the elements of a page. There must be no gap between
// them, and their keys must be in order and between first and next. Each page
// that they point to must be in the file, and each bucket in them must be
// sound. The page has size bytes; its last value may be missing.
func checkElements(page []byte, size, pages uint64, first, next []byte) error {
	n := Count(page)
	leaf := Kind(page) == Leaf
	if n == 0 && (!leaf || first != nil || next != nil) { // only a whole bucket may be empty
		return errors.New("it is empty")
	}
	at := Header + Element*n
	last := first
	for i := range n {
		e := ItemOf(page, i)
		left := size - at
		if e.At != at || e.Key == 0 || e.Key > left || e.Value > left-e.Key {
			return fmt.Errorf("element %d is not in its place", i)
		}
		key := page[at:][:e.Key]
		c := bytes.Compare(last, key)
		if c > 0 || c == 0 && i > 0 || next != nil && bytes.Compare(key, next) >= 0 {
			return fmt.Errorf("element %d is out of order", i)
		}
		last = key
		at += e.Key + e.Value
		switch {
		case !leaf && (e.Child < 2 || e.Child >= pages || e.Child == binary.NativeEndian.Uint64(page)):
			return fmt.Errorf("element %d points to page %d", i, e.Child)
		case leaf && e.Flags&^BucketFlag != 0:
			return fmt.Errorf("element %d is neither a value nor a bucket", i)
		case leaf && e.Flags == BucketFlag:
			if err := checkBucket(page[at-e.Value:at], pages); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
	}
	return nil
}

// checkBucket checks a bucket's entry in its parent: the number of its root
// page, and a sequence number. If the root is 0, the bucket's only page follows
// inline.
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
	used := uint64(0)
	if len(page) >= Header {
		used, _ = usedBytes(page)
	}
	if len(page) < Header || Kind(page) != Leaf || binary.NativeEndian.Uint32(page[12:]) != 0 ||
		used != uint64(len(page)) {
		return errors.New("a bucket that is not as long as it says")
	}
	return checkElements(page, used, pages, nil, nil)
}

// KeyOf returns the key of an element.
func KeyOf(page []byte, i uint64) []byte {
	e := ItemOf(page, i)
	return page[e.At:][:e.Key]
}

// Bounds returns the keys between which a child of a branch lies, if the branch
// itself lies between first and next.
func Bounds(page []byte, i uint64, first, next []byte) (lower, upper []byte) {
	lower, upper = first, next
	if i > 0 {
		lower = KeyOf(page, i)
	}
	if i+1 < Count(page) {
		upper = KeyOf(page, i+1)
	}
	return lower, upper
}
