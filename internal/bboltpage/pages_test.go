package bboltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
)

// makeSound makes a bbolt file with a branch page, free pages and a bucket in
// its parent's page.
func makeSound(t testing.TB) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sound.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: Size, Timeout: time.Second})
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, db.Update(func(tx *bolt.Tx) error {
			large, err := tx.CreateBucketIfNotExists([]byte("large"))
			small, smallErr := tx.CreateBucketIfNotExists([]byte("small"))
			err = errors.Join(err, smallErr, small.Put([]byte("key"), []byte("value")))
			for j := range 500 {
				err = errors.Join(err, large.Put(fmt.Appendf(nil, "key-%05d", (i*7919+j*13)%9000), make([]byte, 8+i)))
			}
			return err
		}))
	}
	require.NoError(t, db.Close())
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	return path, content
}

// check does what a store does with a file: it checks each page before bbolt
// gets to it, and reads all of it. A panic of bbolt's ends the test.
func check(t testing.TB, content []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "checked.db")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	if err := CheckMagic(file); err != nil {
		return err
	}
	m, err := CheckFile(file)
	if err != nil {
		return err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	require.NoError(t, err)
	defer db.Close()
	c := NewChecker(file, path, m)
	return db.View(func(tx *bolt.Tx) error {
		root := tx.Cursor().Bucket()
		if err := c.Run(root, nil, 0); err != nil {
			return err
		}
		return root.ForEachBucket(func(name []byte) error {
			b := tx.Bucket(name)
			byKey := NewChecker(file, path, m)
			for i := range 90 {
				if err := byKey.Key(b, fmt.Appendf(nil, "key-%05d", i*100)); err != nil {
					require.ErrorIs(t, err, format.ErrCorrupt)
					break
				}
			}
			if err := c.Run(b, nil, 0); err != nil {
				return err
			}
			return b.ForEach(func(k, v []byte) error { return nil })
		})
	})
}

// What a bbolt file must never say is an error before bbolt reads it. Most of
// it would end the process, or keep it busy for ever.
func TestChecker(t *testing.T) {
	path, sound := makeSound(t)
	require.NoError(t, check(t, sound))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	m, err := ReadMeta(file)
	require.NoError(t, err)
	page := func(id uint64) []byte { return sound[id*Size:][:Size] }
	var branch, leaf uint64
	for id := uint64(2); id < m.Pages; id++ { // of the tree: a page that is free may look like one
		if Kind(page(id)) == Branch {
			branch = id
		}
	}
	require.NotZero(t, branch)
	leaf = ItemOf(page(branch), 1).Child
	other := ItemOf(page(branch), 2).Child
	list := m.Freelist
	require.Positive(t, Count(page(list)))

	type patch struct {
		page uint64
		at   int
		put  any // a number of the size that it has, or bytes
	}
	type nasty struct {
		name    string
		patches []patch
	}
	var cases []nasty
	add := func(name string, patches ...patch) { cases = append(cases, nasty{name, patches}) }
	for i := range []int{0, 5, int(Count(page(branch))) - 1} {
		child := Header + Element*i + 8
		for name, n := range map[string]uint64{
			"itself": branch, "its sibling's": ItemOf(page(branch), uint64(i+1)).Child, "the list of free pages": list,
			"a meta page": 1, "beyond the file": 1 << 20, "beyond memory": 1 << 60,
		} {
			add(fmt.Sprint("a branch whose child is ", name), patch{branch, child, n})
		}
	}
	for _, id := range []uint64{branch, leaf} {
		for _, n := range []uint16{0, uint16(Count(page(id)) + 1), uint16(Count(page(id)) - 1), 0x7FFF, 0xFFFF} {
			add(fmt.Sprint("a page with the count ", n), patch{id, 10, n})
		}
		for _, n := range []uint32{1, 0xFF, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF} {
			add(fmt.Sprint("a page with the overflow ", n), patch{id, 12, n})
		}
		for _, n := range []uint16{0, 3, 4, 0x10, 3 - uint16(Kind(page(id)))} {
			add(fmt.Sprint("a page of the type ", n), patch{id, 8, n})
		}
		add("a page of zeros", patch{id, 0, make([]byte, Size)})
		add("a page of ones", patch{id, 0, bytes.Repeat([]byte{0xFF}, Size)})
		add("a page of ones after its header", patch{id, 16, bytes.Repeat([]byte{0xFF}, Size-16)})
		add("a page with another's number", patch{id, 0, other})
	}
	for at := 0; at < Element; at += 4 {
		for _, n := range []uint32{2, 0xFFFF, 0x7FFFFFF, 0x7FFFFFFF, 0xFFFFFFFF} {
			add(fmt.Sprintf("an element whose word %d is %d", at/4, n), patch{leaf, Header + 5*Element + at, n})
		}
	}
	var long []patch
	for i := range int(Count(page(leaf))) {
		long = append(long, patch{leaf, Header + Element*i + 12, uint32(0x7F000000)})
	}
	add("a leaf of long values", long...)
	add("a leaf that is a copy of another", patch{leaf, 8, page(other)[8:]})
	for i := range 3 { // the buckets as they lie in the root
		at := int(ItemOf(page(m.Root), uint64(i%2)).At) + 5
		for _, n := range []uint64{1, m.Pages, 1 << 60} {
			add(fmt.Sprint("a bucket that begins at ", n), patch{m.Root, at, n})
		}
	}
	small := int(ItemOf(page(m.Root), 1).At) + 5 + 16
	add("a bucket in its parent that is too long", patch{m.Root, small + 10, uint16(0xFFFF)})
	add("a bucket in its parent that is a branch", patch{m.Root, small + 8, uint16(Branch)})

	add("a list of free pages without end", patch{list, 10, uint16(0xFFFF)}, patch{list, 16, uint64(1 << 40)})
	add("a list of free pages with a negative count", patch{list, 10, uint16(0xFFFF)}, patch{list, 16, uint64(1 << 63)})
	add("a list of too many free pages", patch{list, 10, uint16(0xFFFE)})
	add("a list of free pages that is long", patch{list, 12, uint32(0xFFFFFFFF)})
	for _, n := range []uint64{0, 1, list, m.Root, m.Pages, 1 << 33, 1<<64 - 1} {
		add(fmt.Sprint("page ", n, " is free"), patch{list, 16, n})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			content := bytes.Clone(sound)
			for _, p := range c.patches {
				at := content[int(p.page)*Size+p.at:]
				switch n := p.put.(type) {
				case uint16:
					binary.NativeEndian.PutUint16(at, n)
				case uint32:
					binary.NativeEndian.PutUint32(at, n)
				case uint64:
					binary.NativeEndian.PutUint64(at, n)
				case []byte:
					copy(at, n)
				}
			}
			require.ErrorIs(t, check(t, content), format.ErrCorrupt)
		})
	}

	// Both meta pages, with a checksum that is right.
	for at, numbers := range map[int][]uint64{
		32: {0, 1, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1}, 48: {0, 1, 5, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1},
		56: {0, 1, 5, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1}, 64: {1 << 62, 1<<63 - 1, 1<<64 - 1}, 24: {0, 512, 8192, 1 << 31},
	} {
		for _, n := range numbers {
			t.Run(fmt.Sprintf("%d at %d of the meta pages", n, at), func(t *testing.T) {
				content := bytes.Clone(sound)
				for i := range uint64(2) {
					meta := content[i*Size:]
					if at == 24 {
						binary.NativeEndian.PutUint32(meta[at:], uint32(n))
					} else {
						binary.NativeEndian.PutUint64(meta[at:], n)
					}
					SealMeta(meta, i, word(meta, 64))
				}
				err := check(t, content)
				require.True(t, errors.Is(err, format.ErrCorrupt) || errors.Is(err, format.ErrFormat), err)
			})
		}
	}
}

// Whatever byte is another, bbolt reads what was checked without a panic.
func TestCheckerFlips(t *testing.T) {
	_, sound := makeSound(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		content := bytes.Clone(sound)
		content[rnd.IntN(len(content))] ^= byte(1 + rnd.IntN(255))
		if err := check(t, content); err != nil {
			require.True(t, errors.Is(err, format.ErrCorrupt) || errors.Is(err, format.ErrFormat), err)
		}
	}
}

// A file that is too short says so; one that was never bbolt's is ErrFormat.
func TestCheckMagic(t *testing.T) {
	path, sound := makeSound(t)
	for name, c := range map[string]struct {
		content []byte
		err     error
		want    string
	}{
		"text":           {bytes.Repeat([]byte("text"), 3000), format.ErrFormat, "not a bbolt file"},
		"empty":          {nil, format.ErrCorrupt, "it is empty; remove it to start anew"},
		"a byte":         {[]byte("x"), format.ErrFormat, "not a bbolt file"},
		"a page":         {sound[:Size], format.ErrCorrupt, "the file is shorter than it says: 4096 bytes, want 8192; restore it from a backup"},
		"pages":          {sound[:3*Size], format.ErrCorrupt, "the file is shorter than it says: 12288 bytes, want "},
		"zeros":          {make([]byte, 3*Size), format.ErrFormat, "not a bbolt file"},
		"first is gone":  {append(make([]byte, Size), sound[Size:]...), nil, ""},
		"second is gone": {append(append(bytes.Clone(sound[:Size]), make([]byte, Size)...), sound[2*Size:]...), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := check(t, c.content)
			if c.err == nil {
				require.NotErrorIs(t, err, format.ErrFormat)
				return
			}
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.want)
		})
	}
	file, err := os.Open(path)
	require.NoError(t, err)
	m, err := ReadMeta(file)
	require.NoError(t, err)
	size, free := Sizes(file)
	require.GreaterOrEqual(t, size, int64(m.Pages*Size))
	require.Less(t, free, size)
	of, err := MetaOf(file, m.Tx)
	require.NoError(t, err)
	require.Equal(t, m, *of)
	require.Equal(t, m.Tx, word(of.Page(), 64))
	require.Equal(t, m.Place, word(of.Page(), 0))
	of, err = MetaOf(file, m.Tx+1)
	require.NoError(t, err)
	require.Nil(t, of)
	require.NoError(t, file.Close())
	for _, check := range []func(*os.File) error{CheckMagic, func(f *os.File) error { _, err := ReadMeta(f); return err }} {
		err := check(file)
		require.ErrorIs(t, err, os.ErrClosed, "the operating system's error")
		require.NotErrorIs(t, err, format.ErrCorrupt)
	}
}
