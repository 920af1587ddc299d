package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/trace"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

// A compacted file has the saves that came during the compaction, even those
// that would otherwise go to the tree.
func TestCompact(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	buckets := testlength.Of(40_000, 15_000)
	want := fill(t, s, buckets)
	done := make(chan error, 1)
	go func() { done <- s.Compact() }()
	for i := 0; len(done) == 0; i++ {
		e := entry(Key{1, fmt.Sprint(i * 7 % buckets)}, 1<<41+int64(i))
		want[keyOf(e)] = e.TAT
		s.alone()
		require.NoError(t, s.Save([]format.Entry{e}))
		require.Equal(t, e.TAT, load(t, s, keyOf(e)))
	}
	require.NoError(t, <-done)
	s.sameAs(t, want)
	requireCrash(t, s, want)
	require.Equal(t, s.Names(), openNamed(t, crash(t, s), nil).Names())
}

// block puts a directory at the path, in the way of a rename.
func block(t testing.TB, s *Store) (unblock func()) {
	t.Helper()
	aside := s.path + "-aside"
	require.NoError(t, os.Rename(s.path, aside))
	require.NoError(t, os.Mkdir(s.path, 0o700))
	return func() {
		require.NoError(t, os.Remove(s.path))
		require.NoError(t, os.Rename(aside, s.path))
	}
}

// TestCompactClosed is TestCompact on a system that renames no open file.
func TestCompactClosed(t *testing.T) {
	t.Parallel()
	s, want := openLogged(t)
	s.fs.RenamesOpen = false
	put := func(tat int64) {
		s.put(t, entry(Key{2, "x"}, tat))
		want = with(want, entry(Key{2, "x"}, tat))
	}
	put(7)
	old := s.inUse.file
	require.NoError(t, s.Compact())
	require.NotSame(t, old, s.inUse.file)
	s.sameAs(t, want)
	require.Empty(t, temporaries(t, s))
	put(6) // makes a log
	put(7)
	require.NoError(t, s.checkpoint())

	replace := func(before func(temp string)) error { // with a copy that is opened first
		temp := crash(t, s)
		target, err := boltfile.Open(temp, boltfile.Options{LockTimeout: longLock, FS: s.fs})
		require.NoError(t, err)
		before(temp)
		s.inUse.file, err = s.inUse.file.ReplaceWith(target)
		return err
	}
	begin := s.inUse.file.LogState().Begin
	require.ErrorIs(t, replace(func(temp string) { require.NoError(t, os.Remove(temp)) }), os.ErrNotExist)
	require.Equal(t, begin, s.inUse.file.LogState().Begin, "the log goes on")
	put(8)
	s.sameAs(t, want)
	requireCrash(t, s, want)

	require.NoError(t, s.emptyLog())
	err := replace(func(temp string) { // another process writes in between
		written := filecopy.New(t, filecopy.Read(t, temp))
		filecopy.Edit(t, written, func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("1")).Put([]byte("x"), format.BigEndian(9))
		})
		require.NoError(t, os.Rename(written, temp))
	})
	require.ErrorIs(t, err, ErrLocked)
	require.NotErrorIs(t, err, format.ErrCorrupt)
	require.ErrorIs(t, s.append(numbered(1, 0, 1)), ErrLocked)
	_, err = s.Load(2, "y")
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())
	openStore(t, s.path)
}

// compactHeld begins a compaction, which stops at a point where it can still
// give up, until the test calls goOn.
func (s *Store) compactHeld() (goOn func(), done <-chan error) {
	s.names.mu.Lock() // the compaction waits for it before it copies anything
	ended := make(chan error, 1)
	go func() { ended <- s.compactBusy() }()
	s.awaitCopying(true)
	return s.names.mu.Unlock, ended
}

func (s *Store) awaitCopying(is bool) {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	for s.journal.copying != is {
		s.journal.stepped.Wait()
	}
}

// A compaction gives up when the journal is full. The next save waits for that.
// The old file stays in use.
func TestCompactOutpaced(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 2_000)
	s.setMost(1 << 10)
	old := s.inUse.file
	goOn, done := s.compactHeld()
	s.put(t, numbered(2, 0, 200)...)
	saved := make(chan error, 1)
	go func() {
		s.saves.mu.Lock() // as Save does
		defer s.saves.mu.Unlock()
		saved <- s.append(numbered(2, 200, 1))
	}()
	awaitWaiter("pace", saved)
	require.Empty(t, saved, "the save did not wait")
	goOn()
	require.ErrorIs(t, <-done, errOutpaced)
	require.NoError(t, <-saved)
	require.NoError(t, s.Stats().Err, "nothing failed")
	require.Same(t, old, s.inUse.file)
	require.Empty(t, temporaries(t, s))
	want = with(want, numbered(2, 0, 201)...)
	s.sameAs(t, want)
	require.NoError(t, s.checkpoint())

	goOn, done = s.compactHeld()
	s.put(t, numbered(2, 0, 2)...)
	goOn()
	require.NoError(t, <-done)
	s.sameAs(t, want)
}

// Before a compaction makes saves wait, it copies the whole journal. While
// saves wait, it copies only the records that came after that.
func TestCompactJournal(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := fill(t, s, 2_000)
	save := func(changes ...format.Entry) {
		s.put(t, changes...)
		want = with(want, changes...)
	}
	var long []format.Entry // more than one step
	for i := range 10_000 {
		long = append(long, entry(Key{2, fmt.Sprintf("%0200d", i)}, 1))
	}
	save(long...)
	save(tooManyForTheLog()...)
	goOn, done := s.compactHeld()
	s.saves.mu.Lock()
	goOn()
	s.awaitCopying(false)
	require.Len(t, temporaries(t, s), 1)
	got, err := found(t, filecopy.New(t, filecopy.Read(t, temporaries(t, s)[0])))
	require.NoError(t, err)
	require.Equal(t, want, got)
	save(entry(Key{2, "since"}, 1)) // while the compaction waits for saves.mu
	save(tooManyForTheLog()[1:]...)
	save(entry(Key{2, "in the log"}, 1))
	s.saves.mu.Unlock()
	require.NoError(t, <-done)
	requireCrash(t, s, want)
}

// Saves wait only for a sync of the last saves, not for the sync of the whole
// copy.
func TestCompactSync(t *testing.T) {
	s := openStore(t, storePath(t))
	fill(t, s, 2_000)
	goOn, done := s.compactHeld()
	var traced bytes.Buffer
	s.saves.mu.Lock() // as a save does
	require.NoError(t, trace.Start(&traced))
	goOn()
	awaitWaiter("copyAndReplaceLocked", done)
	trace.Stop()
	s.saves.mu.Unlock()
	require.NoError(t, <-done)
	require.Contains(t, traced.String(), "bbolt.(*DB).Sync") // a trace has the stack of each system call
}

// A compaction leaves a file's mode and owner as they are.
func TestCompactModeAndOwner(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	s := openStore(t, storePath(t))
	info, err := os.Stat(s.path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode(), "of a new file")
	require.NoError(t, os.Chmod(s.path, 0o640))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(s.path, 12345, 54321))
	}
	modeAndOwner := func() [3]any {
		info, err := os.Stat(s.path)
		require.NoError(t, err)
		sys := reflect.ValueOf(info.Sys()).Elem()
		return [3]any{info.Mode(), sys.FieldByName("Uid").Uint(), sys.FieldByName("Gid").Uint()}
	}
	before, old := modeAndOwner(), s.inUse.file
	require.NoError(t, s.Compact())
	require.NotSame(t, old, s.inUse.file)
	require.Equal(t, before, modeAndOwner())
}

// If the sync of the directory fails, the old file stays in use. If it fails
// after the rename, nothing is saved until the name is durable.
func TestCompactUnsyncedName(t *testing.T) {
	t.Parallel()
	s, want := openLogged(t)
	old, dir := s.inUse.file, s.fs.SyncDir
	change := entry(Key{1, "more"}, 0)
	put := func() {
		change.TAT++
		s.put(t, change)
		want = with(want, change)
	}
	for fine, replaced := range []bool{false, true} { // fine is the number of syncs before the one that fails
		s.fs.SyncDir = func(path string) error {
			if fine--; fine < 0 {
				return errFault
			}
			return dir(path)
		}
		require.ErrorIs(t, s.Compact(), errFault)
		require.Equal(t, replaced, s.inUse.file != old)
		require.NoError(t, s.inUse.file.InPlace())
		require.Empty(t, temporaries(t, s))
		if !replaced {
			put()
		}
	}
	for range 2 {
		require.ErrorIs(t, s.append(numbered(1, 0, 1)), errFault)
		s.alone()
		require.ErrorIs(t, s.Save(numbered(1, 0, 1)), errFault)
	}
	s.sameAs(t, want)
	synced := 0
	s.fs.SyncDir = func(path string) error { synced++; return dir(path) }
	put()
	put()
	require.Equal(t, 1, synced)
	requireCrash(t, s, want)
}

// After a compaction, errors name the file, not the copy that took its place.
func TestCompactErrorNames(t *testing.T) {
	t.Parallel()
	s, _ := openLogged(t)
	require.NoError(t, s.Compact())
	s.put(t, numbered(1, 0, 1)...) // makes a log
	s.put(t, numbered(1, 0, 1)...)
	fails := func(file *os.File) error { return &fs.PathError{Op: "write", Path: file.Name(), Err: errFault} }
	s.fs.WriteAt = func(file *os.File, _ []byte, _ int64) (int, error) { return 0, fails(file) }
	failCommits(s.inUse.file, func(meta []byte, at int64) (int, error) {
		n, err := s.inUse.file.OS().WriteAt(meta, at)
		require.NoError(t, err)
		return n, fails(s.inUse.file.OS())
	})
	want := "write " + s.path + ": " + errFault.Error()
	require.EqualError(t, s.append(numbered(1, 0, 1)), "append to the log of "+s.path+": "+want)
	require.EqualError(t, s.append(numbered(1, 0, 1)), want) // a commit
	require.EqualError(t, s.append(numbered(1, 0, 1)), "write the first pages of "+s.path+" again: "+want)
}

// A process that waits for the file's lock during a compaction opens the new
// file.
func TestOpenReplacedFile(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := fill(t, s, 100)
	opened := make(chan *Store)
	go func() {
		other, err := Open(s.path, storeNames, Options{LockTimeout: longLock})
		if err != nil {
			t.Error(err)
		}
		opened <- other
	}()
	for i := range 20 {
		require.NoError(t, s.Compact())
		last := entry(Key{2, "last"}, int64(i+1))
		require.NoError(t, s.Save([]format.Entry{last}))
		want = with(want, last)
	}
	require.NoError(t, s.Close())
	if other := <-opened; other != nil {
		defer other.Close()
		require.NoError(t, other.inUse.file.InPlace())
		other.sameAs(t, want)
	}
}

// A compaction that Close interrupts leaves the file, its lock and its
// directory as they were.
func TestCompactDuringClose(t *testing.T) {
	t.Parallel()
	for range testlength.Of(20, 4) {
		s := openStore(t, storePath(t))
		want := fill(t, s, 3_000)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for range 3 {
					if err := s.Compact(); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, errStopped) {
						t.Error(err)
					}
				}
			})
			wg.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Empty(t, temporaries(t, s))
		openStore(t, s.path).sameAs(t, want)
	}
}

// A large file that is mostly free pages is compacted automatically, after a
// sweep has read all of it. After a failure the next attempt waits.
func TestCompactAutomatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		s.maintenance.compactMin = 1 << 19
		const n = 20_000
		want := fill(t, s, n)
		compactions := func() int64 {
			s.wake()
			synctest.Wait()
			return s.Stats().Compactions
		}
		require.Zero(t, compactions(), "it is in use")
		unblock := block(t, s)
		sweepAll(t, s, n-1000)
		synctest.Wait()
		require.Error(t, s.Stats().Err)
		require.Empty(t, temporaries(t, s))
		unblock()
		require.Zero(t, compactions(), "it failed a moment ago")
		s.maintenance.notCompacted = s.maintenance.notCompacted.Add(-compactRetry - time.Second)
		before := s.Stats().Bytes
		require.EqualValues(t, 1, compactions())
		require.Less(t, s.Stats().Bytes, before/2)
		maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= n-1000 })
		s.sameAs(t, want)
		require.NoError(t, s.Close())
	})
}

// A file that was opened by a relative path stays in its directory.
func TestCompactRelativePath(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	t.Chdir(here)
	s := openStore(t, "x.db")
	t.Chdir(there)
	require.NoError(t, s.Compact())
	s.put(t, entry(Key{1, "after"}, 1<<60))
	require.NoError(t, s.Close())
	require.Empty(t, listDir(t, there))
	require.Equal(t, []string{"x.db"}, listDir(t, here))
	openStore(t, filepath.Join(here, "x.db")).sameAs(t, map[Key]int64{{1, "after"}: 1 << 60})
}
