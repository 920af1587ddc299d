package stint

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The longest that a test waits for a lock which it knows to be let go of.
const longLock = time.Minute

func init() {
	children["hold the lock"] = func(args []string) {
		s, err := OpenBolt(args[0], nil, &BoltOptions{LockTimeout: longLock})
		if err != nil {
			say("%v", err)
			return
		}
		say("locked")
		io.Copy(io.Discard, os.Stdin)
		s.Close()
	}
	children["try the lock"] = func(args []string) {
		_, err := OpenBolt(args[0], nil, &BoltOptions{LockTimeout: time.Millisecond})
		say("%v %v", errors.Is(err, ErrLocked), err)
	}
}

// openBolt opens a file, which is closed when the test ends, if not before.
func openBolt(t testing.TB, path string, names Names) *BoltStore {
	t.Helper()
	s, err := OpenBolt(path, names, &BoltOptions{LockTimeout: longLock})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// makeBolt makes a file with some buckets in it, and returns its path.
func makeBolt(t testing.TB, names Names, changes ...Change) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "buckets.db")
	s := openBolt(t, path, names)
	if len(changes) > 0 {
		save(t, s, changes...)
	}
	require.NoError(t, s.Close())
	return path
}

// edit changes a file behind stint's back.
func edit(t testing.TB, path string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: longLock})
	require.NoError(t, err)
	require.NoError(t, db.Update(f))
	require.NoError(t, db.Close())
}

func listDir(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOpenBoltMakesTheFile(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "one"}}, Change{Key{1, "a"}, 42})
	require.Equal(t, []string{"buckets.db"}, listDir(t, filepath.Dir(path)), "no other file is left")
	if runtime.GOOS != "windows" {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
	}
	s := openBolt(t, path, Names{1: {Label: "one"}})
	require.EqualValues(t, 42, load(t, s, Key{1, "a"}))
	require.Equal(t, map[Name]string{1: "one"}, s.Names())
}

// Of several that make the file at once, one does, and the others find it made.
func TestOpenBoltMakesTheFileOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s, err := OpenBolt(path, nil, &BoltOptions{LockTimeout: longLock})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Save([]Change{{Key{1, fmt.Sprint(i)}, 1}}); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Len(t, collect(t, openBolt(t, path, nil).All(1)), 8)
	require.Equal(t, []string{"buckets.db"}, listDir(t, filepath.Dir(path)))
}

func TestOpenBoltCannotMakeTheFile(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenBolt(filepath.Join(dir, "absent", "buckets.db"), nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)

	_, err = OpenBolt(dir, nil, nil)
	require.Error(t, err, "a directory")
	require.NotErrorIs(t, err, ErrLocked)

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = OpenBolt(filepath.Join(file, "buckets.db"), nil, nil)
	require.Error(t, err)
	require.Equal(t, []string{"file"}, listDir(t, dir))

	_, err = OpenBolt(filepath.Join(dir, "buckets.db"), Names{0: {Label: "none"}, 1: {}}, nil)
	require.ErrorContains(t, err, "Name 0 is no limit")
	require.ErrorContains(t, err, "Name 1 has no label")
	_, err = OpenBolt(filepath.Join(dir, "buckets.db"), nil, &BoltOptions{LockTimeout: -1})
	require.EqualError(t, err, "stint: LockTimeout -1ns: want more than 0")
	require.Equal(t, []string{"file"}, listDir(t, dir), "and no file is left")
}

func TestOpenBoltInReadOnlyDirectory(t *testing.T) {
	if os.Geteuid() <= 0 {
		t.Skip("permissions do not bind this user")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500))
	_, err := OpenBolt(filepath.Join(dir, "buckets.db"), nil, nil)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.Empty(t, listDir(t, dir))

	path := makeBolt(t, nil)
	require.NoError(t, os.Chmod(path, 0o400))
	_, err = OpenBolt(path, nil, nil)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.NotErrorIs(t, err, ErrCorrupt)
}

// A crash at any moment before the file has its name leaves no file of that name, and none that is in the way.
func TestOpenBoltAfterCrashWhileMaking(t *testing.T) {
	dir := t.TempDir()
	for i, half := range [][]byte{nil, make([]byte, 5000), []byte("half")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("buckets.db.new-%d", i)), half, 0o600))
	}
	s := openBolt(t, filepath.Join(dir, "buckets.db"), nil)
	save(t, s, Change{Key{1, "a"}, 1})
}

// Whoever wrote the file may have been killed before he synced it, or its name: that is done before anything is written.
func TestOpenBoltSyncs(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "one"}}, Change{Key{1, "a"}, 1})
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	file, dir := syncFile, syncDir
	defer func() { syncFile, syncDir = file, dir }()
	var failed error
	synced := 0
	syncFile = func(*os.File) error { synced++; return failed }
	syncDir = func(path string) error { synced += 10; return dir(path) }
	open := func(o *BoltOptions) error {
		s, err := OpenBolt(path, Names{2: {Label: "two"}}, o)
		if err == nil {
			err = s.Close()
		}
		return err
	}
	require.NoError(t, open(&BoltOptions{ReadOnly: true}))
	require.Zero(t, synced, "who only reads does not care")
	failed = errFault
	for range 2 {
		err := open(nil)
		require.ErrorIs(t, err, errFault)
		require.NotErrorIs(t, err, ErrCorrupt)
	}
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	synced, failed = 0, nil
	require.NoError(t, open(nil))
	require.Equal(t, 11, synced)
	syncDir = func(string) error { return errFault }
	require.ErrorIs(t, open(nil), errFault)
}

func TestNamesTable(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "one"}, 2: {Label: "two"}, 300: {Label: "many"}})
	open := func(names Names) (*BoltStore, error) {
		return OpenBolt(path, names, &BoltOptions{LockTimeout: longLock})
	}
	for _, tc := range []struct {
		what  string
		names Names
		want  []string
	}{
		{"a number has another label", Names{1: {Label: "uno"}}, []string{`name 1 is "one" in the file, and declared as "uno"`}},
		{"a label has another number", Names{3: {Label: "two"}}, []string{`"two" is name 2 in the file, and declared as 3`}},
		{"swapped", Names{1: {Label: "two"}, 2: {Label: "one"}}, []string{
			`name 1 is "one" in the file, and declared as "two"`, `name 2 is "two" in the file, and declared as "one"`}},
		{"one wrong, one new", Names{1: {Label: "uno"}, 9: {Label: "nine"}}, []string{`name 1 is "one" in the file, and declared as "uno"`}},
	} {
		s, err := open(tc.names)
		require.Nil(t, s, tc.what)
		require.ErrorIs(t, err, ErrNameMismatch, tc.what)
		require.ErrorContains(t, err, path)
		for _, want := range tc.want {
			require.ErrorContains(t, err, want, tc.what)
		}
	}

	s, err := open(Names{2: {Label: "two"}, 4: {Label: "four"}}) // not all that the file has, and one more
	require.NoError(t, err)
	want := map[Name]string{1: "one", 2: "two", 4: "four", 300: "many"}
	require.Equal(t, want, s.Names(), "nothing was added by those that failed")
	require.NoError(t, s.Close())

	s, err = open(nil)
	require.NoError(t, err)
	require.Equal(t, want, s.Names(), "names are kept")
	s.Names()[1] = "changed"
	require.Equal(t, want, s.Names(), "a copy")

	for _, tc := range []struct {
		label string
		want  Name
	}{{"one", 1}, {"many", 300}, {"third", 3}, {"fifth", 5}, {"third", 3}} {
		n, err := s.Number(tc.label)
		require.NoError(t, err)
		require.Equal(t, tc.want, n, tc.label)
	}
	require.NoError(t, s.Close())
	s, err = open(Names{3: {Label: "third"}})
	require.NoError(t, err)
	n, err := s.Number("fifth")
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.NoError(t, s.Close())
	_, err = s.Number("sixth")
	require.ErrorIs(t, err, ErrClosed)
	n, err = s.Number("fifth")
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
}

func TestNumberFromManyGoroutines(t *testing.T) {
	s := openBolt(t, filepath.Join(t.TempDir(), "buckets.db"), nil)
	const labels = 8
	got := make([]Name, 4*labels)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = s.Number(fmt.Sprint("label ", i%labels)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, n := range got {
		require.Equal(t, got[i%labels], n)
	}
	slices.Sort(got)
	require.Equal(t, []Name{1, 2, 3, 4, 5, 6, 7, 8}, slices.Compact(got))
}

func TestNumberHasAnEnd(t *testing.T) {
	s := openBolt(t, filepath.Join(t.TempDir(), "buckets.db"), nil)
	for n := Name(1); n != 0; n++ {
		s.names[n] = fmt.Sprint("label ", n)
	}
	delete(s.names, 40_000)
	n, err := s.Number("the last")
	require.NoError(t, err)
	require.EqualValues(t, 40_000, n)
	_, err = s.Number("one too many")
	require.EqualError(t, err, `stint: names differ from the file's: all 65535 numbers are taken, none is left for "one too many"`)
}

func TestErrLocked(t *testing.T) {
	path := makeBolt(t, nil)
	short := &BoltOptions{LockTimeout: time.Millisecond}

	t.Run("in one process", func(t *testing.T) {
		s := openBolt(t, path, nil)
		_, err := OpenBolt(path, nil, short)
		require.ErrorIs(t, err, ErrLocked)
		require.ErrorContains(t, err, path)
		require.NoError(t, s.Close())
		require.NoError(t, openBolt(t, path, nil).Close())
	})
	t.Run("held here", func(t *testing.T) {
		s := openBolt(t, path, nil)
		c := startChild(t, "try the lock", path)
		require.Contains(t, c.readLine(t), "true stint: file is locked: "+path)
		c.finish(t)
		require.NoError(t, s.Close())
	})
	t.Run("held elsewhere", func(t *testing.T) {
		c := startChild(t, "hold the lock", path)
		require.Equal(t, "locked", c.readLine(t))
		_, err := OpenBolt(path, nil, short)
		require.ErrorIs(t, err, ErrLocked)
		limits := limitsOf(t, nil, nil)
		_, err = Open(path, limits, &Options{LockTimeout: time.Millisecond})
		require.ErrorIs(t, err, ErrLocked)
		c.finish(t)
		require.NoError(t, openBolt(t, path, nil).Close(), "the lock went with the process")
	})
	t.Run("waited for", func(t *testing.T) {
		s := openBolt(t, path, nil)
		c := startChild(t, "hold the lock", path)
		require.NoError(t, s.Close())
		require.Equal(t, "locked", c.readLine(t))
		c.finish(t)
	})
}

func TestClosedBolt(t *testing.T) {
	s := openBolt(t, makeBolt(t, nil), nil)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Load(Key{1, "a"})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, s.Save([]Change{{Key{1, "a"}, 1}}), ErrClosed)
	for _, err := range s.All(1) {
		require.ErrorIs(t, err, ErrClosed)
	}
}

func TestEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	for range 2 {
		_, err := OpenBolt(path, nil, nil)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "it is empty; remove it to start anew")
	}
	require.NoError(t, os.Remove(path))
	openBolt(t, path, nil)
}

func TestErrFormat(t *testing.T) {
	for _, tc := range []struct {
		what string
		edit func(tx *bolt.Tx) error
		want string
	}{
		{"another program's", func(tx *bolt.Tx) error { return tx.DeleteBucket(metaBucket) }, "a bbolt file, but not one of stint's"},
		{"no format", func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Delete(formatKey) }, "a bbolt file, but not one of stint's"},
		{"newer", func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, bigEndian(2)) }, "format 2, and this version reads 1"},
	} {
		path := makeBolt(t, Names{1: {Label: "one"}}, Change{Key{1, "a"}, 1})
		edit(t, path, tc.edit)
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		_, err = OpenBolt(path, Names{2: {Label: "two"}}, nil)
		require.ErrorIs(t, err, ErrFormat, tc.what)
		require.NotErrorIs(t, err, ErrCorrupt, tc.what)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, tc.want)
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after), "%s: the file is left as it was", tc.what)
		db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: longLock})
		require.NoError(t, err, "and the lock is let go of")
		require.NoError(t, db.Close())
	}
}

func TestErrCorruptMeta(t *testing.T) {
	for what, damage := range map[string]func(tx *bolt.Tx) error{
		"short format": func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, []byte{1}) },
		"no names":     func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).DeleteBucket(namesBucket) },
		"name 0": func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Bucket(namesBucket).Put([]byte("0"), []byte("x"))
		},
		"name too large": func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Bucket(namesBucket).Put([]byte("65536"), []byte("x"))
		},
		"name not a number": func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Bucket(namesBucket).Put([]byte("one"), []byte("x"))
		},
	} {
		path := makeBolt(t, Names{1: {Label: "one"}})
		edit(t, path, damage)
		_, err := OpenBolt(path, nil, nil)
		require.ErrorIs(t, err, ErrCorrupt, what)
		require.ErrorContains(t, err, path, what)
	}
}

func TestErrCorruptValue(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "one"}}, Change{Key{1, "a"}, 1}, Change{Key{1, "b"}, 2}, Change{Key{1, "c"}, 3})
	for _, value := range [][]byte{nil, make([]byte, 7), make([]byte, 9)} {
		edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("1")).Put([]byte("b"), value) })
		s := openBolt(t, path, nil)
		_, err := s.Load(Key{1, "b"})
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "1:b")
		require.EqualValues(t, 3, load(t, s, Key{1, "c"}), "the others are as they were")
		var got []Change
		for c, e := range s.All(1) {
			if err = e; e == nil {
				got = append(got, c)
			}
		}
		require.ErrorIs(t, err, ErrCorrupt)
		require.Equal(t, []Change{{Key{1, "a"}, 1}}, got, "the error comes last")
		require.NoError(t, s.Close())
	}
}

// exercise reads all that a store has, and writes to it.
func exercise(s *BoltStore) error {
	errs := []error{}
	for name := range Name(4) {
		for _, err := range s.All(name) {
			errs = append(errs, err)
		}
		_, err := s.Load(Key{name, "id 100"})
		errs = append(errs, err, s.Save([]Change{{Key{name, "id 100"}, 1}, {Key{name, "new"}, 1}}))
	}
	return errors.Join(errs...)
}

// Whatever is in the file: no panic and no hang, and an error, if there is one, that has a name.
func TestDamagedFiles(t *testing.T) {
	var changes []Change
	for i := range 2000 {
		changes = append(changes, Change{Key{Name(1 + i%3), fmt.Sprint("id ", i)}, int64(i + 1)})
	}
	path := makeBolt(t, Names{1: {Label: "one"}, 2: {Label: "two"}, 3: {Label: "three"}}, changes...)
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	if i := bytes.LastIndexFunc(sound, func(r rune) bool { return r != 0 }); i >= 0 {
		sound = sound[:(i/4096+1)*4096] // the file was made larger than what is in it
	}
	try := func(t *testing.T, content []byte) error {
		path := filepath.Join(t.TempDir(), "buckets.db")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		s, err := OpenBolt(path, nil, &BoltOptions{LockTimeout: longLock})
		if err == nil {
			err = errors.Join(exercise(s), s.Close())
		}
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) {
			t.Errorf("an error without a name: %v", err)
		}
		return err
	}
	t.Run("sound", func(t *testing.T) { require.NoError(t, try(t, sound)) })
	t.Run("text", func(t *testing.T) {
		require.ErrorIs(t, try(t, []byte(strings.Repeat("127.0.0.1 - - GET / HTTP/1.1\n", 1000))), ErrCorrupt)
		require.ErrorIs(t, try(t, []byte("x")), ErrCorrupt)
	})
	t.Run("zeros", func(t *testing.T) { require.ErrorIs(t, try(t, make([]byte, 1<<16)), ErrCorrupt) })
	t.Run("truncated", func(t *testing.T) {
		for n := 512; n < len(sound)/2; n += 4096 + 512 {
			require.ErrorIs(t, try(t, sound[:n]), ErrCorrupt, "%d bytes", n)
		}
		for n := len(sound) / 2; n < len(sound); n += 4096 + 512 { // only free pages may be missing
			try(t, sound[:n])
		}
	})
	t.Run("garbage page", func(t *testing.T) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		for page := 0; page < len(sound)/4096; page++ {
			content := slices.Clone(sound)
			for i := range 4096 {
				content[page*4096+i] = byte(rnd.Uint32())
			}
			try(t, content)
			clear(content[page*4096:][:4096])
			try(t, content)
		}
	})
}

// After bbolt has panicked once, it is not called again.
func TestBrokenForGood(t *testing.T) {
	s := openBolt(t, makeBolt(t, nil), nil)
	err := s.view(func(*bolt.Tx) error { panic("a page that makes no sense") })
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "a page that makes no sense")
	called := false
	require.Equal(t, err, s.view(func(*bolt.Tx) error { called = true; return nil }))
	require.Equal(t, err, s.Save(nil), "nor for nothing")
	require.False(t, called)
	require.NoError(t, s.Close(), "and does not hang")
	openBolt(t, s.path, nil).Close()
}

// The lock does not outlive the failure to open a file that bbolt panics at.
func TestCorruptFileIsNotLocked(t *testing.T) {
	path := makeBolt(t, nil, Change{Key{1, "a"}, 1})
	require.NoError(t, os.Truncate(path, 2*4096))
	for range 2 {
		_, err := OpenBolt(path, nil, &BoltOptions{LockTimeout: time.Millisecond})
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

// abandon lets go of a store's file as it is, as the end of the process would.
func abandon(t *testing.T, s *BoltStore) {
	t.Helper()
	s.closing.Do(s.stopCare)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	require.NoError(t, s.file.close())
}

// The golden files: one that the first version of the format wrote, which keeps no sums, and one with them.
const (
	goldenFile     = "testdata/format1.db"
	goldenFileSums = "testdata/format1-sums.db"
	goldenFileLog  = "testdata/format1-log.db.gz" // most of it is zeros
)

// goldenChanges are what the golden file holds.
func goldenChanges() map[Key]int64 {
	return map[Key]int64{
		{1, ""}:                            1_700_000_000_000_000_000,
		{6, "12345678"}:                    1_800_000_000_000_000_001,
		{6, "*"}:                           3,
		{6, "**"}:                          4,
		{6, "a:b"}:                         5,
		{6, "\x00\xff"}:                    1<<63 - 1,
		{6, strings.Repeat("x", maxIDLen)}: 7,
		{300, "2001:db8::/48"}:             8,
		{Unknown, "1:"}:                    4_000_000_000_000_000_000,
		{Unknown, "6:12345678"}:            4_000_000_000_000_000_001,
		{Unknown, "6:" + strings.Repeat("y", maxIDLen)}: 12,
	}
}

// TestGoldenFile opens files that earlier versions of this format wrote. Every later version must.
func TestGoldenFile(t *testing.T) {
	names := Names{1: {Label: "Everyone", ID: Shared}, 6: {Label: "NewOrdersPerAccount"}, 300: {Label: "PerRange", ID: AnyID}}
	if *updateGolden {
		path := filepath.Join(t.TempDir(), "buckets.db")
		s := openBolt(t, path, names)
		for odd := range 3 {
			if odd < 2 {
				require.NoError(t, s.checkpoint())
			} else {
				require.NoError(t, s.emptyLog())
			}
			for key, tat := range goldenChanges() {
				if len(key.ID)%3 == odd {
					require.NoError(t, s.append([]Change{{key, tat}}))
				}
			}
		}
		require.NotEmpty(t, s.file.log.pending)
		require.Greater(t, s.fresh.len(), len(s.file.log.pending), "some of it is in the tree of the journal")
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, err := w.Write(copied(t, s)) // the other ones stay as they are
		require.NoError(t, errors.Join(err, w.Close()))
		require.NoError(t, os.WriteFile(goldenFileLog, packed.Bytes(), 0o644))
	}
	for file, unsummed := range map[string][]string{goldenFile: {"1", "6", "holds", "journal", "names"}, goldenFileSums: nil, goldenFileLog: nil} {
		t.Run(filepath.Base(file), func(t *testing.T) { openGolden(t, file, names, unsummed) })
	}
}

func openGolden(t *testing.T, file string, names Names, unsummed []string) {
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Less(t, len(content), 64<<10)
	if strings.HasSuffix(file, ".gz") {
		r, err := gzip.NewReader(bytes.NewReader(content))
		require.NoError(t, err)
		content, err = io.ReadAll(r)
		require.NoError(t, err)
	}
	path := filepath.Join(t.TempDir(), "buckets.db")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	v, err := verify(t, path)
	require.NoError(t, err)
	require.Equal(t, unsummed, v.Unsummed)
	s := openBolt(t, path, names)
	require.Equal(t, map[Name]string{1: "Everyone", 6: "NewOrdersPerAccount", 300: "PerRange"}, s.Names())
	got := make(map[Key]int64)
	for _, name := range []Name{Unknown, 1, 6, 300} {
		for key, tat := range tatsOf(collect(t, s.All(name))) {
			require.Equal(t, tat, load(t, s, key))
			got[key] = tat
		}
	}
	require.Equal(t, goldenChanges(), got)
	save(t, s, Change{Key{6, "new"}, 1})
	require.NoError(t, s.Close())

	l, err := Open(path, limitsOf(t, names, map[Name]Limit{1: PerHour(5), 6: PerHour(5), 300: PerHour(5)}), nil)
	require.NoError(t, err)
	d, err := l.Check(Key{6, "12345678"}, 1)
	require.NoError(t, err)
	require.False(t, d.Allowed, "it is held")
	require.NoError(t, l.Close())
}

// What the journal has comes once, in its place, and takes the place of what the tree has.
func TestAllMergesTheJournal(t *testing.T) {
	s := openBolt(t, filepath.Join(t.TempDir(), "buckets.db"), nil)
	for _, id := range []string{"*", "*!", "b", "d", ""} {
		save(t, s, Change{Key{1, id}, 1})
	}
	require.NoError(t, s.checkpoint())
	for _, id := range []string{"*", "**", "a", "d", "e"} {
		save(t, s, Change{Key{1, id}, 2})
	}
	require.NoError(t, s.append([]Change{{Key{1, "b"}, 0}, {Key{1, "c"}, 2}}))
	require.NotZero(t, s.fresh.len())
	require.Equal(t, []Change{
		{Key{1, ""}, 1}, {Key{1, "*!"}, 1}, {Key{1, "*"}, 2}, {Key{1, "**"}, 2},
		{Key{1, "a"}, 2}, {Key{1, "c"}, 2}, {Key{1, "d"}, 2}, {Key{1, "e"}, 2},
	}, collect(t, s.All(1)))
}

// A link is followed to the end, even where there is nothing yet: a file is made, and replaced, where the link leads.
func TestOpenBoltThroughALink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("not everybody may make links")
	}
	dir := t.TempDir()
	real := filepath.Join(dir, "real", "in")
	require.NoError(t, os.MkdirAll(real, 0o700))
	require.NoError(t, os.Symlink(real, filepath.Join(dir, "short")))
	for _, to := range []string{
		filepath.Join(real, "buckets.db"), "short/buckets.db", "short/../buckets.db", "another",
	} {
		link := filepath.Join(dir, "link")
		require.NoError(t, os.Symlink(to, link))
		if to == "another" {
			require.NoError(t, os.Symlink("short/buckets.db", filepath.Join(dir, to)))
		}
		for i := range 2 { // it is made, and found
			s := openBolt(t, link, Names{1: {Label: "one"}})
			save(t, s, Change{Key{1, "a"}, int64(i + 1)})
			require.NoError(t, s.Compact())
			require.False(t, s.file.replaced())
			require.NoError(t, s.Close())
			info, err := os.Lstat(link)
			require.NoError(t, err)
			require.Equal(t, fs.ModeSymlink, info.Mode().Type(), "it is a link still")
		}
		lead, err := filepath.EvalSymlinks(link)
		require.NoError(t, err)
		require.Equal(t, []string{"buckets.db"}, listDir(t, filepath.Dir(lead))[:1])
		s := openBolt(t, lead, nil)
		require.EqualValues(t, 2, load(t, s, Key{1, "a"}))
		require.NoError(t, s.Close())
		require.NoError(t, os.WriteFile(lead, []byte("damaged"), 0o600))
		l, err := Open(link, limitsOf(t, nil, nil), &Options{Recover: true})
		require.NoError(t, err)
		require.NoError(t, l.Close())
		aside, err := filepath.Glob(lead + ".corrupt-*")
		require.NoError(t, err)
		require.Len(t, aside, 1)
		require.NoError(t, errors.Join(os.Remove(link), os.Remove(lead), os.Remove(aside[0])))
	}

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("absent/buckets.db", link))
	_, err := OpenBolt(link, nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("link", link))
	_, err = OpenBolt(link, nil, nil)
	require.Error(t, err)
}

// What the operating system says is no damage: a file is not set aside for it.
func TestSystemErrorIsNoDamage(t *testing.T) {
	path := makeBolt(t, nil)
	for _, err := range []error{
		syscall.ENOLCK, syscall.ENOMEM, syscall.EIO, errors.New("mmap too large"), errors.New("truncate: there is no room"),
		&fs.PathError{Op: "read", Path: path, Err: syscall.EIO}, fmt.Errorf("file stat error: %w", syscall.EIO),
	} {
		err := openError(path, time.Second, err)
		require.NotErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, path)
		require.Equal(t, 1, strings.Count(err.Error(), path), err)
		require.True(t, strings.HasPrefix(err.Error(), "stint: "))
	}
	for _, err := range []error{bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch, errors.New("file size too small 4097")} {
		err := openError(path, time.Second, err)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, path)
	}

	s := openBolt(t, path, nil)
	file, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	s.file.check.file, s.file.check.sound = file, make([]atomic.Uint64, len(s.file.check.sound))
	s.file.file, file = file, s.file.file
	err = s.read()
	require.ErrorIs(t, err, os.ErrClosed)
	require.NotErrorIs(t, err, ErrCorrupt)
	s.file.file = file
}

// A compaction puts no file where the one that it copied is not.
func TestCompactElsewhere(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	t.Chdir(here)
	s, err := OpenBolt("x.db", Names{1: {Label: "One"}}, nil)
	require.NoError(t, err)
	t.Chdir(there)
	require.ErrorContains(t, s.Compact(), "x.db is another file by now, or none")
	save(t, s, Change{Key{1, "after"}, 1 << 60})
	require.NoError(t, s.Close())
	files, err := os.ReadDir(there)
	require.NoError(t, err)
	require.Empty(t, files)
	s, err = OpenBolt(filepath.Join(here, "x.db"), nil, nil)
	require.NoError(t, err)
	require.Equal(t, int64(1<<60), load(t, s, Key{1, "after"}))
	require.NoError(t, s.Close())
}
