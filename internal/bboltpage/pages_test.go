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

// makeSound makes a bbolt file with a branch page, free pages, and a bucket
// that lies inline in its parent's page.
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

// Each kind of damage is an error before bbolt reads the page. Most of the
// kinds would end the process, or keep it busy for ever.
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
	for id := uint64(2); id < m.Pages; id++ { // pages of the tree only: a free page may look like one
		if Kind(page(id)) == Branch {
			branch = id
		}
	}
	require.NotZero(t, branch)
	leaf = ItemOf(page(branch), 1).Child
	other := ItemOf(page(branch), 2).Child
	list := m.Freelist
	require.Positive(t, Count(page(list)))

	put := func(content []byte, at, size int, n uint64) {
		switch size {
		case 2:
			binary.NativeEndian.PutUint16(content[at:], uint16(n))
		case 4:
			binary.NativeEndian.PutUint32(content[at:], uint32(n))
		case 8:
			binary.NativeEndian.PutUint64(content[at:], n)
		}
	}
	// field writes wrong values to a number that has size bytes. Each must be an
	// error.
	field := func(name string, id uint64, at, size int, values ...uint64) {
		for _, n := range values {
			content := bytes.Clone(sound)
			put(content, int(id)*Size+at, size, n)
			if !bytes.Equal(content, sound) {
				t.Run(fmt.Sprintf("%s of page %d is %d", name, id, n), func(t *testing.T) {
					require.ErrorIs(t, check(t, content), format.ErrCorrupt)
				})
			}
		}
	}
	for _, id := range []uint64{branch, leaf} {
		count := Count(page(id))
		field("the number", id, 0, 8, 0, 1, other, m.Pages, 1<<60)
		field("the type", id, 8, 2, 0, 1, 2, 3, 4, 0x10)
		field("the count", id, 10, 2, 0, count-1, count+1, 0x7FFF, 0xFFFF)
		field("the overflow", id, 12, 4, 1, 0xFF, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
	}
	for i := range uint64(3) {
		sibling := ItemOf(page(branch), i+1).Child
		field("a child", branch, int(Header+Element*i+8), 8, branch, sibling, list, 1, m.Pages, 1<<20, 1<<60)
	}
	for at := 0; at < Element; at += 4 {
		field(fmt.Sprintf("word %d of an element", at/4), leaf, Header+5*Element+at, 4,
			2, 0xFFFF, 0x7FFFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
	}
	for i := range uint64(2) { // the buckets as they lie in the root
		field("the root of a bucket", m.Root, int(ItemOf(page(m.Root), i).At)+5, 8, 1, m.Pages, 1<<60)
	}
	small := int(ItemOf(page(m.Root), 1).At) + 5 + 16
	field("the type of a bucket in its parent", m.Root, small+8, 2, Branch)
	field("the count of a bucket in its parent", m.Root, small+10, 2, 0xFFFF)
	field("the count of the free pages", list, 10, 2, 0xFFFE)
	field("the overflow of the list of free pages", list, 12, 4, 0xFFFFFFFF)
	field("a free page", list, 16, 8, 0, 1, list, m.Root, m.Pages, 1<<33, 1<<64-1)

	for name, damage := range map[string]func(content []byte){
		"a page of zeros": func(b []byte) { clear(b[leaf*Size:][:Size]) },
		"a page of ones":  func(b []byte) { copy(b[leaf*Size:], bytes.Repeat([]byte{0xFF}, Size)) },
		"a page of ones after its header": func(b []byte) {
			copy(b[branch*Size+Header:], bytes.Repeat([]byte{0xFF}, Size-Header))
		},
		"a copy of another page": func(b []byte) { copy(b[leaf*Size+8:], page(other)[8:]) },
		"a leaf of long values": func(b []byte) {
			for i := range int(Count(page(leaf))) {
				put(b, int(leaf)*Size+Header+Element*i+12, 4, 0x7F000000)
			}
		},
		"a list of free pages without end": func(b []byte) {
			put(b, int(list)*Size+10, 2, 0xFFFF)
			put(b, int(list)*Size+16, 8, 1<<40)
		},
		"a list of free pages with a negative count": func(b []byte) {
			put(b, int(list)*Size+10, 2, 0xFFFF)
			put(b, int(list)*Size+16, 8, 1<<63)
		},
	} {
		t.Run(name, func(t *testing.T) {
			content := bytes.Clone(sound)
			damage(content)
			require.ErrorIs(t, check(t, content), format.ErrCorrupt)
		})
	}

	// Both meta pages have wrong numbers and the right checksum.
	for at, c := range map[int]struct {
		size    int
		numbers []uint64
	}{
		24: {4, []uint64{0, 512, 8192, 1 << 31}},
		32: {8, []uint64{0, 1, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1}},
		48: {8, []uint64{0, 1, 5, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1}},
		56: {8, []uint64{0, 1, 5, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1}},
		64: {8, []uint64{1 << 62, 1<<63 - 1, 1<<64 - 1}},
	} {
		for _, n := range c.numbers {
			t.Run(fmt.Sprintf("%d at %d of the meta pages", n, at), func(t *testing.T) {
				content := bytes.Clone(sound)
				for i := range uint64(2) {
					meta := content[i*Size:]
					put(meta, at, c.size, n)
					SealMeta(meta, i, word(meta, 64))
				}
				err := check(t, content)
				require.True(t, errors.Is(err, format.ErrCorrupt) || errors.Is(err, format.ErrFormat), err)
			})
		}
	}
}

// bbolt reads a checked file without a panic, whichever byte was changed.
func TestCheckerFlippedBytes(t *testing.T) {
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

// CheckMagic reports a file that is too short, and a file of another program.
func TestCheckMagic(t *testing.T) {
	path, sound := makeSound(t)
	for name, c := range map[string]struct {
		content []byte
		err     error
		want    string
	}{
		"text":   {bytes.Repeat([]byte("text"), 3000), format.ErrFormat, "not a bbolt file"},
		"empty":  {nil, format.ErrCorrupt, "it is empty; remove it to start anew"},
		"a byte": {[]byte("x"), format.ErrFormat, "not a bbolt file"},
		"a page": {sound[:Size], format.ErrCorrupt,
			"the file is shorter than it says: 4096 bytes, want 8192; restore it from a backup"},
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
	require.EqualValues(t, len(sound), size)
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	require.NoError(t, err)
	require.EqualValues(t, db.Stats().FreePageN*Size, free, "as bbolt knows it")
	require.NoError(t, db.Close())
	of, err := MetaOf(file, m.Tx)
	require.NoError(t, err)
	require.Equal(t, m, *of)
	require.Equal(t, m.Tx, word(of.Page(), 64))
	require.Equal(t, m.Place, word(of.Page(), 0))
	of, err = MetaOf(file, m.Tx+1)
	require.NoError(t, err)
	require.Nil(t, of)
	require.NoError(t, file.Close())
	for _, check := range []func(*os.File) error{CheckMagic,
		func(f *os.File) error { _, err := ReadMeta(f); return err }} {
		err := check(file)
		require.ErrorIs(t, err, os.ErrClosed, "the operating system's error")
		require.NotErrorIs(t, err, format.ErrCorrupt)
	}
}
