package worlds

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/filecopy"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

var storeNames = stint.Names{1: {Label: "one"}, 2: {Label: "two", Limit: stint.Unlimited},
	300: {Label: "three hundred", Limit: stint.Unlimited}}

func TestOpenBolt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "buckets.db")
	for _, c := range []struct {
		names stint.Names
		opts  stint.BoltOptions
		want  string
	}{
		{stint.Names{0: {Label: "none"}}, stint.BoltOptions{}, "Name 0 is no limit"},
		{stint.Names{1: {}}, stint.BoltOptions{}, "Name 1 has no label"},
		{nil, stint.BoltOptions{LockTimeout: -1}, "stint: LockTimeout -1ns: want more than 0"},
		{nil, stint.BoltOptions{MaxResident: -1}, "stint: MaxResident -1: want more than 0"},
	} {
		_, err := stint.OpenBolt(path, c.names, &c.opts)
		require.ErrorContains(t, err, c.want)
	}
	_, err := stint.OpenBolt(path, nil, &stint.BoltOptions{ReadOnly: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, path)

	s, err := stint.OpenBolt(path, storeNames, nil)
	require.NoError(t, err)
	_, err = stint.OpenBolt(path, nil, &stint.BoltOptions{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, stint.ErrLocked)
	require.Equal(t, 1, s.Stats().Format)
	require.NoError(t, s.Close())
	limits := LimitsOf(t, stint.Names{1: {Label: "one", Limit: stint.PerHour(1)}}, nil)
	s, err = stint.OpenBolt(path, nil, &stint.BoltOptions{ReadOnly: true})
	require.NoError(t, err)
	require.ErrorContains(t, s.Declare(stint.Names{9: {Label: "nine"}}), "read-only")
	_, err = stint.New(s, limits, nil)
	require.EqualError(t, err, "stint: New: the store is ReadOnly, and a Limiter has to write")
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Save([]stint.Change{{Key: stint.Key{Name: 1, ID: "a"}, TAT: 1}}), stint.ErrClosed)
}

// The golden files: one that the first version of the format wrote, which has
// no sums, one with them, and one with a log.
const (
	goldenFile     = "../../testdata/format1.db"
	goldenFileSums = "../../testdata/format1-sums.db"
	goldenFileLog  = "../../testdata/format1-log.db.gz" // most of it is zeros
)

// goldenTATs returns what each golden file has.
func goldenTATs() map[stint.Key]int64 {
	return map[stint.Key]int64{
		{Name: 1, ID: ""}:                                          1_700_000_000_000_000_000,
		{Name: 6, ID: "12345678"}:                                  1_800_000_000_000_000_001,
		{Name: 6, ID: "*"}:                                         3,
		{Name: 6, ID: "**"}:                                        4,
		{Name: 6, ID: "a:b"}:                                       5,
		{Name: 6, ID: "\x00\xff"}:                                  1<<63 - 1,
		{Name: 6, ID: strings.Repeat("x", 512)}:                    7,
		{Name: 300, ID: "2001:db8::/48"}:                           8,
		{Name: stint.Unknown, ID: "1:"}:                            4_000_000_000_000_000_000,
		{Name: stint.Unknown, ID: "6:12345678"}:                    4_000_000_000_000_000_001,
		{Name: stint.Unknown, ID: "6:" + strings.Repeat("y", 512)}: 12,
	}
}

// Every later version opens the files that earlier versions of the format
// wrote. A machine of the other byte order says that it cannot.
func TestGoldenFile(t *testing.T) {
	names := stint.Names{1: {Label: "Everyone", IDs: stint.Single}, 6: {Label: "NewOrdersPerAccount"},
		300: {Label: "PerRange", IDs: stint.AnyID}}
	for _, file := range []string{goldenFile, goldenFileSums, goldenFileLog} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content := filecopy.Read(t, file)
			require.Less(t, len(content), 64<<10)
			if strings.HasSuffix(file, ".gz") {
				r, err := gzip.NewReader(bytes.NewReader(content))
				require.NoError(t, err)
				content, err = io.ReadAll(r)
				require.NoError(t, err)
			}
			path := filecopy.New(t, content)
			if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
				_, err := stint.OpenBolt(path, names, nil)
				require.ErrorIs(t, err, stint.ErrFormat)
				require.ErrorContains(t, err, "written by a machine of the other byte order")
				return
			}
			s := OpenFile(t, path, names, nil)
			require.Equal(t, labels(names), s.Names())
			got := make(map[stint.Key]int64)
			for _, c := range all(t, s, names)[1:] {
				loaded, err := s.Load(c.Key)
				require.NoError(t, err)
				require.Equal(t, c.TAT, loaded)
				got[c.Key] = c.TAT
			}
			require.Equal(t, goldenTATs(), got)
			require.NoError(t, s.Save([]stint.Change{{Key: stint.Key{Name: 6, ID: "new"}, TAT: 1}}))
			require.NoError(t, s.Close())

			hourly := stint.PerHour(5)
			limits := LimitsOf(t, names, map[stint.Name]stint.Limit{1: hourly, 6: hourly, 300: hourly})
			l, err := stint.Open(path, limits, nil)
			require.NoError(t, err)
			d, err := l.Check(stint.Key{Name: 6, ID: "12345678"}, 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "it is held")
			require.NoError(t, l.Close())
		})
	}
}

// A program that opens the file, spends once and closes makes one commit, or
// two at Leased: the lease, and the exact TAT when it closes. There is no log.
func TestOneCommit(t *testing.T) {
	path := Path(t)
	limits := LimitsOf(t, storeNames, map[stint.Name]stint.Limit{1: stint.PerHour(5),
		2:   {Burst: 100, Count: 100, Period: time.Hour, Durability: stint.Leased},
		300: {Burst: 5, Count: 5, Period: time.Hour, Durability: stint.Synced}})
	once := func(key stint.Key) uint64 {
		l, err := stint.Open(path, limits, nil)
		require.NoError(t, err)
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, l.Close())
		return filecopy.Commits(t, path)
	}
	last := once(stint.Name(1).Key("first"))
	for range 3 {
		for i, key := range []stint.Key{stint.Name(1).Key("x"), stint.Name(2).Key("y"), stint.Name(300).Key("z")} {
			now := once(key)
			require.Equal(t, []uint64{1, 2, 1}[i], now-last, key)
			last = now
		}
	}
	filecopy.Edit(t, path, func(tx *bolt.Tx) error {
		require.Nil(t, tx.Bucket(fileformat.LogBucket))
		return nil
	})
}

// A snapshot has all decisions, although there was no flush.
func TestLimiterSnapshot(t *testing.T) {
	limits := LimitsOf(t, storeNames, map[stint.Name]stint.Limit{1: stint.PerHour(5)})
	l, err := stint.Open(Path(t), limits, nil)
	require.NoError(t, err)
	defer l.Close()
	for range 5 {
		require.True(t, l.Allow(stint.Key{Name: 1, ID: "a"}))
	}
	var copied bytes.Buffer
	_, err = l.Snapshot(&copied)
	require.NoError(t, err)
	c, err := stint.Open(filecopy.New(t, copied.Bytes()), limits, nil)
	require.NoError(t, err)
	require.False(t, c.Allow(stint.Key{Name: 1, ID: "a"}))
	require.NoError(t, c.Close())

	m, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Snapshot(&copied)
	require.ErrorContains(t, err, "has no file to copy")
	require.NoError(t, l.Close())
	_, err = l.Snapshot(&copied)
	require.ErrorIs(t, err, stint.ErrClosed)
}

// holdFile is a process that has a file until its standard input ends.
func holdFile(args []string) {
	s, err := boltstore.Open(args[0], nil, boltstore.Options{LockTimeout: LongLock})
	if err != nil {
		subprocess.Say("%v", err)
		return
	}
	subprocess.Say("locked")
	io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// A file that another process has, or another store of this one, is ErrLocked
// for all of LockTimeout. SetAsideCorrupt leaves it alone.
func testErrLocked(t *testing.T) {
	path := Path(t)
	c := subprocess.Start(t, "hold the file", path)
	require.Equal(t, "locked", c.ReadLine(t))
	o := damagedOptions()
	o.LockTimeout, o.SetAsideCorrupt = time.Millisecond, true
	_, err := stint.Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, stint.ErrLocked)
	require.ErrorContains(t, err, "stint: file is locked: "+path)
	opened := make(chan error)
	go func() {
		o := damagedOptions()
		o.LockTimeout = LongLock
		l, err := stint.Open(path, damagedLimits(t), o)
		if err == nil {
			err = l.Close()
		}
		opened <- err
	}()
	c.Finish(t)
	require.NoError(t, <-opened, "the lock goes with the process")
	s := OpenFile(t, path, nil, nil)
	_, err = stint.Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, stint.ErrLocked)
	c = subprocess.Start(t, "hold the file", path)
	require.NoError(t, s.Close())
	require.Equal(t, "locked", c.ReadLine(t), "a process waits for it")
	c.Finish(t)
}

// If several Limiters open a file at once, the file is made once, or a corrupt
// one is set aside once.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	for i := range testlength.Of(10, 2) {
		path := Path(t)
		if i%2 == 0 {
			require.NoError(t, OpenFile(t, path, nil, nil).Close())
			require.NoError(t, os.Truncate(path, 2*4096+1))
		}
		var limiters [8]*stint.Limiter
		var errs [len(limiters)]error
		var all sync.WaitGroup
		for i := range limiters {
			all.Go(func() {
				o := damagedOptions()
				o.LockTimeout, o.SetAsideCorrupt = 300*time.Millisecond, true
				limiters[i], errs[i] = stint.Open(path, damagedLimits(t), o)
			})
		}
		all.Wait()
		var have []*stint.Limiter
		for i, err := range errs {
			if err == nil {
				have = append(have, limiters[i])
			} else {
				require.ErrorIs(t, err, stint.ErrLocked)
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
	opts := &stint.Options{ErrorIfNotExists: true, SetAsideCorrupt: true}
	_, err := stint.Open(path, tenADay(t), opts)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, path)
	l, err := stint.Open(path, tenADay(t), nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	for range 2 {
		l, err = stint.Open(path, tenADay(t), opts)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
}
