package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/trace"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

func TestCompact(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := fill(t, s, 40_000)
	hold := Key{format.Holds, "1:held"}
	want[hold] = 1 << 50
	s.put(t, entry(hold, 1<<50))
	sweepAll(t, s, 35_000)
	maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= 35_000 })
	s.sameAs(t, want, nil)
	require.NoError(t, s.checkpoint())
	before := s.Stats()

	done := make(chan error)
	go func() { done <- s.Compact() }()
	keys := slices.SortedFunc(maps.Keys(want), Key.compare)
	for i, running := 0, true; running; i++ {
		select {
		case err := <-done:
			require.NoError(t, err)
			running = false
		default:
			c := entry(keys[i*7%len(keys)], 1<<41+int64(i))
			s.alone() // it would go home, where the copy may have been already
			require.NoError(t, s.Save([]format.Entry{c}))
			want[keyOf(c)] = c.TAT
			tat, err := s.Load(c.Name, c.ID)
			require.NoError(t, err)
			require.Equal(t, c.TAT, tat)
			for c, err := range s.All(1) {
				require.NoError(t, err)
				require.NotZero(t, c.TAT)
				break
			}
		}
	}
	s.sameAs(t, want, keys)
	after := s.Stats()
	require.Less(t, after.Bytes, before.Bytes/2)
	require.EqualValues(t, 1, after.Compactions)
	require.Empty(t, temporaries(t, s))
	info, err := os.Stat(s.path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())

	path := crash(t, s)
	other := openStore(t, path)
	other.sameAs(t, want, keys)
	require.Equal(t, s.Names(), other.Names())
	require.NoError(t, s.Close())
	s = openStore(t, s.path)
	s.sameAs(t, want, keys)
}

// After a compaction that fails the old file is in place and in use, and
// nothing is left of the new one.
func TestCompactFails(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 5_000)

	aside := s.path + "-aside"
	require.NoError(t, os.Rename(s.path, aside))
	require.NoError(t, os.Mkdir(s.path, 0o700)) // in the way of the rename
	require.Error(t, s.Compact())
	require.Error(t, s.Stats().Err)
	require.Empty(t, temporaries(t, s))
	s.sameAs(t, want, nil)
	require.NoError(t, os.Remove(s.path))
	require.NoError(t, os.Rename(aside, s.path))

	s.put(t, entry(Key{2, "x"}, 7))
	want[Key{2, "x"}] = 7
	require.NoError(t, s.Compact())
	require.NoError(t, s.Stats().Err)
	require.Zero(t, s.Stats().Journaled, "it is home")
	s.sameAs(t, want, nil)

	require.NoError(t, s.update(func(tx *bolt.Tx) error { return tx.Bucket(format.Decimal(1)).Put([]byte("bad"), []byte("short")) }))
	require.ErrorIs(t, s.Compact(), format.ErrCorrupt)
	require.Empty(t, temporaries(t, s))
	tat, err := s.Load(2, "x")
	require.NoError(t, err)
	require.EqualValues(t, 7, tat)
}

// The same on a system that renames no open file.
func TestCompactClosed(t *testing.T) {
	s := openLogged(t)
	s.fs.RenamesOpen = false
	want := fill(t, s, 100)
	s.put(t, entry(Key{2, "x"}, 7))
	want[Key{1, "the log is made"}], want[Key{2, "x"}] = 1, 7
	old := s.inUse.file
	require.NoError(t, s.Compact())
	require.NotSame(t, old, s.inUse.file)
	s.sameAs(t, want, nil)
	require.Empty(t, temporaries(t, s))
	s.put(t, entry(Key{2, "x"}, 6))
	s.put(t, entry(Key{2, "x"}, 7))

	swap := func(before func(temp string)) error { // with a copy as it was before
		temp := copyOf(t, s.path)
		target, err := boltfile.Open(temp, boltfile.Options{LockTimeout: longLock, FS: s.fs})
		require.NoError(t, err)
		before(temp)
		s.inUse.file, err = s.inUse.file.ReplaceWith(target)
		return err
	}
	require.NoError(t, s.checkpoint())
	begin := s.inUse.file.LogState().Begin
	require.ErrorIs(t, swap(func(temp string) { require.NoError(t, os.Remove(temp)) }), os.ErrNotExist)
	require.Equal(t, begin, s.inUse.file.LogState().Begin, "the log goes on")
	s.put(t, entry(Key{2, "x"}, 8))
	want[Key{2, "x"}] = 8
	s.sameAs(t, want, nil)
	requireCrash(t, s, want)

	require.NoError(t, s.emptyLog())
	err := swap(func(temp string) { // another process writes in between
		written := copyOf(t, temp)
		edit(t, written, func(tx *bolt.Tx) error { return tx.Bucket([]byte("1")).Put([]byte("x"), format.BigEndian(9)) })
		require.NoError(t, os.Rename(written, temp))
	})
	require.ErrorIs(t, err, ErrLocked)
	require.NotErrorIs(t, err, format.ErrCorrupt)
	require.ErrorIs(t, s.append([]format.Entry{entry(Key{2, "x"}, 8)}), ErrLocked)
	_, err = s.Load(2, "y")
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())
	openStore(t, s.path)
}

// compactHeld has a compaction begin, and stop where it can still be given up,
// until goOn is called.
func (s *Store) compactHeld() (goOn func(), done <-chan error) {
	s.names.mu.Lock() // which it wants before it copies anything
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

// A compaction gives up where more is saved than the journal has room for; the
// old file stays in use, and the journal goes home.
func TestCompactOutpaced(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 2_000)
	s.setMost(1 << 10)
	old, checkpoints := s.inUse.file, s.Stats().Checkpoints
	save := func(n int) {
		s.together()
		var changes []format.Entry
		for i := range n {
			c := entry(Key{2, fmt.Sprint(n, "-", i)}, 1)
			changes, want[keyOf(c)] = append(changes, c), 1
		}
		require.NoError(t, s.Save(changes))
	}
	goOn, done := s.compactHeld()
	save(200)
	goOn()
	require.ErrorIs(t, <-done, errOutpaced)
	require.NoError(t, s.Stats().Err, "nothing failed")
	require.Same(t, old, s.inUse.file)
	require.Empty(t, temporaries(t, s))
	s.sameAs(t, want, nil)
	s.maintenance.mu.Lock()
	s.checkpointLocked() // unless it was done by then
	s.maintenance.mu.Unlock()
	require.Greater(t, s.Stats().Checkpoints, checkpoints)
	goOn, done = s.compactHeld()
	save(2)
	goOn()
	require.NoError(t, <-done)
	s.sameAs(t, want, nil)
}

// Where the journal is full a save waits until a compaction has given up, and
// the sweep does not hurry.
func TestSaveWaitsForACompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		idle(t, s)
		s.journal.most = 10
		s.journal.setCopying(true)
		saved := 0
		go func() {
			for ; saved < 3; saved++ {
				if err := s.append([]format.Entry{entry(Key{1, fmt.Sprintf("%020d", saved)}, 1)}); err != nil {
					t.Error(err)
				}
			}
		}()
		synctest.Wait()
		require.Equal(t, 1, saved)
		require.NoError(t, s.sweep(0))
		require.Nil(t, s.filter.Load())
		s.journal.setCopying(false)
		synctest.Wait()
		require.Equal(t, 3, saved)
	})
}

// When a compaction has the saves wait, all is in the new file but what was
// saved since: that alone it copies then.
func TestCompactCopiesTheJournalBefore(t *testing.T) {
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
	got, err := found(t, copyOf(t, temporaries(t, s)[0]))
	require.NoError(t, err)
	require.Equal(t, want, got)
	save(entry(Key{2, "since"}, 1)) // as a save that was there first
	save(tooManyForTheLog()[1:]...)
	save(entry(Key{2, "in the log"}, 1))
	s.saves.mu.Unlock()
	require.NoError(t, <-done)
	requireCrash(t, s, want)
}

// Nobody who saves waits for the sync of the copy, but for that of what was
// saved since.
func TestCompactSyncsBefore(t *testing.T) {
	s := openStore(t, storePath(t))
	fill(t, s, 2_000)
	goOn, done := s.compactHeld()
	var traced bytes.Buffer
	s.saves.mu.Lock() // as a save would
	require.NoError(t, trace.Start(&traced))
	goOn()
	awaitWaiter("copyAndReplaceLocked", done)
	trace.Stop()
	s.saves.mu.Unlock()
	require.NoError(t, <-done)
	synced := bytes.Contains(traced.Bytes(), []byte("bbolt.(*DB).Sync")) // a trace has the callers of each call of the system
	require.True(t, synced, "it has yet to be")
}

// A compaction leaves a file's mode and owner as they are.
func TestCompactKeepsModeAndOwner(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	s := openStore(t, storePath(t))
	fill(t, s, 100)
	require.NoError(t, os.Chmod(s.path, 0o640))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(s.path, 12345, 54321))
	}
	before, err := os.Stat(s.path)
	require.NoError(t, err)
	require.NoError(t, s.Compact())
	after, err := os.Stat(s.path)
	require.NoError(t, err)
	require.False(t, os.SameFile(before, after))
	require.Equal(t, before.Mode(), after.Mode())
	owner := func(i os.FileInfo) [2]uint64 {
		sys := reflect.ValueOf(i.Sys()).Elem()
		return [2]uint64{sys.FieldByName("Uid").Uint(), sys.FieldByName("Gid").Uint()}
	}
	require.Equal(t, owner(before), owner(after))
}

// Where the name of the new file cannot be made durable, the old one stays;
// where that is seen when it is too late, nothing is saved until it is.
func TestCompactCannotSyncTheName(t *testing.T) {
	s := openLogged(t)
	want := fill(t, s, 100)
	want[Key{1, "the log is made"}] = 1
	old, dir := s.inUse.file, s.fs.SyncDir
	sync := func(fine int) func(string) error {
		return func(path string) error {
			if fine--; fine < 0 {
				return errFault
			}
			return dir(path)
		}
	}
	s.fs.SyncDir = sync(0)
	require.ErrorIs(t, s.Compact(), errFault)
	require.Same(t, old, s.inUse.file)
	require.Empty(t, temporaries(t, s))
	change := entry(Key{1, "more"}, 1)
	s.put(t, change)
	want[keyOf(change)] = 1

	s.fs.SyncDir = sync(1)
	require.ErrorIs(t, s.Compact(), errFault)
	require.NotSame(t, old, s.inUse.file)
	require.NoError(t, s.inUse.file.InPlace())
	require.Empty(t, temporaries(t, s))
	s.sameAs(t, want, nil)
	for range 2 {
		require.ErrorIs(t, s.append([]format.Entry{entry(Key{1, "still more"}, 1)}), errFault)
		s.alone()
		require.ErrorIs(t, s.Save([]format.Entry{entry(Key{1, "still more"}, 1)}), errFault)
	}
	s.sameAs(t, want, nil)
	synced := 0
	s.fs.SyncDir = func(path string) error { synced++; return dir(path) }
	for range 2 {
		change.TAT++
		s.put(t, change)
	}
	want[keyOf(change)] = change.TAT
	require.Equal(t, 1, synced)
	requireCrash(t, s, want)
}

// Who waits for the file's lock while the file is compacted, or set aside, does
// not end up on the old one.
func TestReplaced(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 100)
	waiting, err := os.Stat(s.path)
	require.NoError(t, err)
	require.NoError(t, s.Compact())
	there, err := os.Stat(s.path)
	require.NoError(t, err)
	require.False(t, os.SameFile(waiting, there))

	opened := make(chan *Store)
	go func() {
		other, err := Open(s.path, storeNames, Options{LockTimeout: time.Minute})
		if err != nil {
			t.Error(err)
		}
		opened <- other
	}()
	for i := range 20 {
		require.NoError(t, s.Compact())
		require.NoError(t, s.Save([]format.Entry{entry(Key{2, "last"}, int64(i+1))}))
	}
	want[Key{2, "last"}] = 20
	require.NoError(t, s.Close())
	if other := <-opened; other != nil {
		defer other.Close()
		require.NoError(t, other.inUse.file.InPlace())
		other.sameAs(t, want, nil)
	}
}

func TestCompactDuringClose(t *testing.T) {
	for range 10 {
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
		s = openStore(t, s.path) // the lock is free
		s.sameAs(t, want, nil)
		require.NoError(t, s.Close())
	}
}

// A file that is mostly free pages is compacted by itself once it is large
// enough; where that failed, not at once again.
func TestCompactByItself(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.maintenance.compactMin = 1 << 20
	want := fill(t, s, 40_000)
	s.compactIfDue()
	require.Zero(t, s.Stats().Compactions, "it is in use")

	aside := s.path + "-aside"
	require.NoError(t, os.Rename(s.path, aside))
	require.NoError(t, os.Mkdir(s.path, 0o700)) // in the way of the rename
	sweepAll(t, s, 39_000)
	s.compactIfDue() // unless the goroutine that takes care, woken by the sweep, was there first
	require.Error(t, s.Stats().Err)
	require.NoError(t, os.Remove(s.path))
	require.NoError(t, os.Rename(aside, s.path))
	s.compactIfDue()
	require.Zero(t, s.Stats().Compactions, "it failed a moment ago")

	s.maintenance.mu.Lock()
	s.maintenance.notCompacted = s.maintenance.notCompacted.Add(-compactRetry)
	s.maintenance.mu.Unlock()
	s.compactIfDue()
	require.EqualValues(t, 1, s.Stats().Compactions)
	require.Less(t, s.Stats().Bytes, int64(2<<20))
	maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= 39_000 })
	s.sameAs(t, want, nil)
}

// Nobody has to ask for it: once a sweep has been through the file, it is
// looked at whether that is worth it.
func TestCompactAfterTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		s.maintenance.compactMin = 1 << 19
		fill(t, s, 10_000)
		synctest.Wait()
		require.Zero(t, s.Stats().Compactions, "it is in use")
		sweepAll(t, s, 9_900)
		synctest.Wait()
		require.EqualValues(t, 1, s.Stats().Compactions)
		require.NoError(t, s.Close())
	})
}

// A file that was opened by a relative path stays in its directory.
func TestCompactElsewhere(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	t.Chdir(here)
	s := openStore(t, "x.db")
	t.Chdir(there)
	require.NoError(t, s.Compact())
	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "after"}, 1<<60)}))
	require.NoError(t, s.Close())
	require.Empty(t, listDir(t, there))
	require.Equal(t, []string{"x.db"}, listDir(t, here))
	s = openStore(t, filepath.Join(here, "x.db"))
	require.Equal(t, int64(1<<60), load(t, s, Key{1, "after"}))
}

// The sizes read from the file are what bbolt knows.
func TestSizes(t *testing.T) {
	s := openStore(t, storePath(t))
	for _, step := range []func(){func() {}, func() { fill(t, s, 20_000) }, func() { sweepAll(t, s, 19_000) }, func() { require.NoError(t, s.Compact()) }} {
		step()
		size, free := s.sizes()
		db, err := bolt.Open(crash(t, s), 0o600, &bolt.Options{Timeout: longLock, ReadOnly: true, PreLoadFreelist: true})
		require.NoError(t, err)
		require.EqualValues(t, db.Stats().FreePageN*bboltpage.Size, free)
		require.NoError(t, db.Close())
		info, err := os.Stat(s.path)
		require.NoError(t, err)
		require.Equal(t, info.Size(), size)
	}
	require.NoError(t, s.Close())
	size, free := s.sizes()
	require.Zero(t, size+free)
}
