package stint

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/filecopy"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

// longLock is the longest that a test waits for a lock that is about to be
// free.
const longLock = time.Minute

var storeNames = Names{1: {Label: "one"}, 2: {Label: "two", Limit: Unlimited},
	300: {Label: "three hundred", Limit: Unlimited}}

func storePath(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") }

// openBolt opens a file, which is closed when the test ends.
func openBolt(t testing.TB, path string, names Names) *boltStore {
	t.Helper()
	return openBoltOn(t, path, names, nil)
}

// openBoltOn is openBolt on a file system that may fail.
func openBoltOn(t testing.TB, path string, names Names, files *boltfile.FS) *boltStore {
	t.Helper()
	store, err := boltstore.Open(path, names.labels(),
		boltstore.Options{LockTimeout: longLock, MaxResident: 1 << 20, FS: files})
	require.NoError(t, err)
	s := &boltStore{store: store}
	t.Cleanup(func() { s.Close() })
	return s
}

// unsynced is a file system that syncs nothing, for tests that cut no power.
func unsynced() *boltfile.FS {
	files := boltfile.OS()
	files.SyncFile = func(*os.File) error { return nil }
	files.SyncDir, files.NoSync = func(string) error { return nil }, true
	return files
}

// copyOf copies a file, as a killed process would leave it.
func copyOf(t testing.TB, path string) string {
	t.Helper()
	other := storePath(t)
	require.NoError(t, filecopy.Copy(path, other))
	return other
}

// edit changes a file behind stint's back.
func edit(t testing.TB, path string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: longLock})
	require.NoError(t, err)
	require.NoError(t, db.Update(f))
	require.NoError(t, db.Close())
}

func TestOpenBolt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "buckets.db")
	for _, c := range []struct {
		names Names
		opts  BoltOptions
		want  string
	}{
		{Names{0: {Label: "none"}}, BoltOptions{}, "Name 0 is no limit"},
		{Names{1: {}}, BoltOptions{}, "Name 1 has no label"},
		{nil, BoltOptions{LockTimeout: -1}, "stint: LockTimeout -1ns: want more than 0"},
		{nil, BoltOptions{MaxResident: -1}, "stint: MaxResident -1: want more than 0"},
	} {
		_, err := OpenBolt(path, c.names, &c.opts)
		require.ErrorContains(t, err, c.want)
	}
	_, err := OpenBolt(path, nil, &BoltOptions{ReadOnly: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenBolt(path, nil, &BoltOptions{ErrorIfNotExists: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, path)

	s, err := OpenBolt(path, storeNames, nil)
	require.NoError(t, err)
	_, err = OpenBolt(path, nil, &BoltOptions{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrLocked)
	require.Equal(t, 1, s.Stats().Format)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Save([]Change{{Key{1, "a"}, 1}}), ErrClosed)
}

// The golden files: one that the first version of the format wrote, which has
// no sums, one with them, and one with a log.
const (
	goldenFile     = "testdata/format1.db"
	goldenFileSums = "testdata/format1-sums.db"
	goldenFileLog  = "testdata/format1-log.db.gz" // most of it is zeros
)

// goldenTATs returns what each golden file has.
func goldenTATs() map[Key]int64 {
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

// Every later version opens the files that earlier versions of the format
// wrote. A machine of the other byte order says that it cannot.
func TestGoldenFile(t *testing.T) {
	names := Names{1: {Label: "Everyone", ID: Shared}, 6: {Label: "NewOrdersPerAccount"},
		300: {Label: "PerRange", ID: AnyID}}
	for _, file := range []string{goldenFile, goldenFileSums, goldenFileLog} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Less(t, len(content), 64<<10)
			if strings.HasSuffix(file, ".gz") {
				r, err := gzip.NewReader(bytes.NewReader(content))
				require.NoError(t, err)
				content, err = io.ReadAll(r)
				require.NoError(t, err)
			}
			path := storePath(t)
			require.NoError(t, os.WriteFile(path, content, 0o600))
			if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
				_, err := OpenBolt(path, names, nil)
				require.ErrorIs(t, err, ErrFormat)
				require.ErrorContains(t, err, "written by a machine of the other byte order")
				return
			}
			s := openBolt(t, path, names)
			require.Equal(t, names.labels(), s.store.Names())
			got := make(map[Key]int64)
			for _, name := range []Name{Unknown, 1, 6, 300} {
				for key, tat := range tatsOf(collect(t, s.All(name))) {
					require.Equal(t, tat, load(t, s, key))
					got[key] = tat
				}
			}
			require.Equal(t, goldenTATs(), got)
			save(t, s, Change{Key{6, "new"}, 1})
			require.NoError(t, s.Close())

			l, err := Open(path, limitsOf(t, names, map[Name]Limit{1: PerHour(5), 6: PerHour(5), 300: PerHour(5)}), nil)
			require.NoError(t, err)
			d, err := l.Check(Key{6, "12345678"}, 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "it is held")
			require.NoError(t, l.Close())
		})
	}
}

// commits returns the number of the file's last transaction.
func commits(t testing.TB, path string) (n int) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: longLock, ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, db.View(func(tx *bolt.Tx) error { n = tx.ID(); return nil }))
	require.NoError(t, db.Close())
	return n
}

// A program that opens the file, spends once and closes makes one commit, or
// two at Leased: the lease, and the exact TAT when it closes. There is no log.
func TestOneCommit(t *testing.T) {
	path := storePath(t)
	limits := limitsOf(t, storeNames, map[Name]Limit{1: PerHour(5),
		2:   {Burst: 100, Count: 100, Period: time.Hour, Durability: Leased},
		300: {Burst: 5, Count: 5, Period: time.Hour, Durability: Synced}})
	once := func(key Key) int {
		l, err := Open(path, limits, nil)
		require.NoError(t, err)
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, l.Close())
		return commits(t, path)
	}
	last := once(Name(1).Key("first"))
	for range 3 {
		for i, key := range []Key{Name(1).Key("x"), Name(2).Key("y"), Name(300).Key("z")} {
			now := once(key)
			require.Equal(t, []int{1, 2, 1}[i], now-last, key)
			last = now
		}
	}
	edit(t, path, func(tx *bolt.Tx) error {
		require.Nil(t, tx.Bucket(fileformat.LogBucket))
		return nil
	})
}

// A snapshot has all decisions, although there was no flush.
func TestLimiterSnapshot(t *testing.T) {
	limits := limitsOf(t, storeNames, map[Name]Limit{1: PerHour(5)})
	l, err := Open(storePath(t), limits, nil)
	require.NoError(t, err)
	defer l.Close()
	for range 5 {
		require.True(t, l.Allow(Key{1, "a"}))
	}
	var copied bytes.Buffer
	_, err = l.Snapshot(&copied)
	require.NoError(t, err)
	path := storePath(t)
	require.NoError(t, os.WriteFile(path, copied.Bytes(), 0o600))
	c, err := Open(path, limits, nil)
	require.NoError(t, err)
	require.False(t, c.Allow(Key{1, "a"}))
	require.NoError(t, c.Close())

	m, err := New(NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Snapshot(&copied)
	require.ErrorContains(t, err, "has no file to copy")
	require.NoError(t, l.Close())
	_, err = l.Snapshot(&copied)
	require.ErrorIs(t, err, ErrClosed)
}

// wrapped is a Store that embeds another, as one that counts calls would.
type wrapped struct{ Store }

// A Store that embeds another loses none of what the Limiter asks of it.
func TestWrappedStore(t *testing.T) {
	s := openBolt(t, storePath(t), nil)
	limits := limitsOf(t, storeNames, map[Name]Limit{1: PerHour(5)})
	l, err := New(wrapped{s}, limits, &Options{FlushInterval: time.Hour})
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, storeNames.labels(), s.store.Names(), "Declare")
	require.Positive(t, l.Stats().File.Bytes, "Stats")
	_, err = l.Snapshot(io.Discard)
	require.NoError(t, err)
	require.NoError(t, s.Save([]Change{{Key{2, "full again"}, 1}}))
	for l.Stats().File.Swept == 0 {
		require.NoError(t, wrapped{s}.Maintain(time.Now()))
	}
	require.NoError(t, l.Health())
	require.ErrorIs(t, errors.Join(l.Close(), s.Save(nil)), ErrClosed, "Close")
}

func init() {
	children["hold the file"] = func(args []string) {
		s, err := OpenBolt(args[0], nil, &BoltOptions{LockTimeout: longLock})
		if err != nil {
			say("%v", err)
			return
		}
		say("locked")
		io.Copy(io.Discard, os.Stdin)
		s.Close()
	}
}

// A file that another process has, or another store of this one, is ErrLocked
// for all of LockTimeout. SetAsideCorrupt leaves it alone.
func testErrLocked(t *testing.T) {
	path := storePath(t)
	c := startChild(t, "hold the file", path)
	require.Equal(t, "locked", c.readLine(t))
	o := damagedOptions()
	o.LockTimeout, o.SetAsideCorrupt = time.Millisecond, true
	_, err := Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "stint: file is locked: "+path)
	opened := make(chan error)
	go func() {
		o := damagedOptions()
		o.LockTimeout = longLock
		l, err := Open(path, damagedLimits(t), o)
		if err == nil {
			err = l.Close()
		}
		opened <- err
	}()
	c.finish(t)
	require.NoError(t, <-opened, "the lock goes with the process")
	s := openBolt(t, path, nil)
	_, err = Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, ErrLocked)
	c = startChild(t, "hold the file", path)
	require.NoError(t, s.Close())
	require.Equal(t, "locked", c.readLine(t), "a process waits for it")
	c.finish(t)
}

// If several Limiters open a file at once, the file is made once, or a corrupt
// one is set aside once.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	for i := range testlength.Of(10, 2) {
		path := storePath(t)
		if i%2 == 0 {
			require.NoError(t, openBolt(t, path, nil).Close())
			require.NoError(t, os.Truncate(path, 2*4096+1))
		}
		type opened struct {
			l   *Limiter
			err error
		}
		const n = 8
		all := make(chan opened, n)
		for range n {
			go func() {
				o := damagedOptions()
				o.LockTimeout, o.SetAsideCorrupt = 300*time.Millisecond, true
				l, err := Open(path, damagedLimits(t), o)
				all <- opened{l, err}
			}()
		}
		var have []*Limiter
		for range n {
			if o := <-all; o.err == nil {
				have = append(have, o.l)
			} else {
				require.ErrorIs(t, o.err, ErrLocked)
			}
		}
		require.Len(t, have, 1)
		require.NoError(t, have[0].Close())
		files, err := filepath.Glob(path + "*")
		require.NoError(t, err)
		require.Len(t, files, 2-i%2, fmt.Sprint(files))
	}
}

// With ErrorIfNotExists only a file that is there is opened. If it is set aside,
// another takes its place.
func TestErrorIfNotExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	opts := &Options{ErrorIfNotExists: true, SetAsideCorrupt: true}
	_, err := Open(path, testLimits(t), opts)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, path)
	l, err := Open(path, testLimits(t), nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	for range 2 {
		l, err = Open(path, testLimits(t), opts)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
}
