package boltstore

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/fsck"
)

// longLock is the longest that a test waits for a lock that is about to be
// free.
const longLock = time.Minute

var errFault = errors.New("the disk is on fire")

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // tests keep little of what they allocate
	os.Exit(m.Run())
}

type (
	Key struct {
		Name uint16
		ID   string
	}
	labels = map[uint16]string
)

func entry(k Key, tat int64) format.Entry { return format.Entry{Name: k.Name, ID: k.ID, TAT: tat} }

func keyOf(e format.Entry) Key { return Key{e.Name, e.ID} }

var storeNames = labels{1: "one", 2: "two", 6: "six", 300: "three hundred"}

func storePath(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") }

func openStore(t testing.TB, path string) *Store {
	t.Helper()
	return openNamed(t, path, storeNames)
}

func openNamed(t testing.TB, path string, names labels) *Store {
	t.Helper()
	files := boltfile.OS()
	files.LookEvery = 0
	return openOn(t, path, names, files)
}

// openOn opens a file on a file system that may fail.
func openOn(t testing.TB, path string, names labels, files *boltfile.FS) *Store {
	t.Helper()
	s, err := Open(path, names, Options{LockTimeout: longLock, FS: files})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// openLogged opens a new file that has an empty log and one bucket.
func openLogged(t testing.TB) (s *Store, have map[Key]int64) {
	t.Helper()
	s = openStore(t, storePath(t))
	s.put(t, entry(Key{1, "first"}, 1<<60))
	require.NoError(t, s.checkpoint())
	require.Positive(t, s.inUse.file.LogState().Begin)
	return s, map[Key]int64{{1, "first"}: 1 << 60}
}

// together sends the next save to the journal, and alone to the tree.
func (s *Store) together() { s.saves.last, s.saves.recent = time.Now().Add(time.Hour), 2 }
func (s *Store) alone()    { s.saves.last = time.Time{} }

// idle keeps the background from running checkpoints: the test runs them.
func idle(t testing.TB, s *Store) {
	s.closing.Do(func() {
		close(s.stop)
		s.running.Wait()
	})
	file := s.inUse.file
	t.Cleanup(func() { file.Close() })
}

// compactBusy is a compaction while the journal has entries.
func (s *Store) compactBusy() error {
	s.maintenance.mu.Lock()
	defer s.maintenance.mu.Unlock()
	return s.compactLocked()
}

// put saves entries to the journal.
func (s *Store) put(t testing.TB, entries ...format.Entry) {
	t.Helper()
	s.addToFilters(entries)
	require.NoError(t, s.append(entries))
}

func (s *Store) emptyLog() error { return s.write((*boltfile.File).EmptyLog) }

// crash returns a copy of the file, as it would be if the process were killed now.
func crash(t testing.TB, s *Store) string { return filecopy.Of(t, s.path) }

// abandon closes a store's file as it is, as the end of the process would.
func abandon(t testing.TB, s *Store) {
	t.Helper()
	idle(t, s)
	require.NoError(t, s.inUse.file.Close())
}

// allOf returns the entries that a store lists, and requires that they are in
// the order of the keys.
func allOf(t testing.TB, s *Store) map[Key]int64 {
	t.Helper()
	all := make(map[Key]int64)
	var names []uint16
	require.NoError(t, s.view(func(tx *bolt.Tx) error { names = boltfile.BucketNames(tx); return nil }))
	for _, name := range slices.AppendSeq(names, maps.Keys(s.Names())) {
		var last *format.Entry
		for e, err := range s.All(name) {
			require.NoError(t, err)
			require.True(t, last == nil || last.CompareStored(e) < 0, "%v comes before %v", last, e)
			all[keyOf(e)], last = e.TAT, &e
		}
	}
	return all
}

// verify runs fsck.Verify on a file.
func verify(path string) (fsck.Verified, error) { return fsck.Verify(path, longLock, func(int) {}) }

// found returns all entries of the file at path, and requires that it is sound.
func found(t testing.TB, path string) (map[Key]int64, error) {
	t.Helper()
	all, err := foundUnverified(t, path)
	if err == nil {
		_, err := verify(path)
		require.NoError(t, err)
	}
	return all, err
}

func foundUnverified(t testing.TB, path string) (map[Key]int64, error) {
	t.Helper()
	s, err := Open(path, nil, Options{ReadOnly: true, LockTimeout: longLock})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return allOf(t, s), nil
}

// with returns what a file has after a save.
func with(have map[Key]int64, entries ...format.Entry) map[Key]int64 {
	have = maps.Clone(have)
	if have == nil {
		have = make(map[Key]int64)
	}
	for _, e := range entries {
		if have[keyOf(e)] = e.TAT; e.TAT == 0 {
			delete(have, keyOf(e))
		}
	}
	return have
}

func load(t testing.TB, s *Store, k Key) int64 {
	t.Helper()
	tat, err := s.Load(k.Name, k.ID)
	require.NoError(t, err)
	return tat
}

// numbered returns n entries of a name. Their ids are numbers from `from` on,
// and their TATs are the ids plus 1.
func numbered(name uint16, from, n int) (entries []format.Entry) {
	for i := from; i < from+n; i++ {
		entries = append(entries, entry(Key{name, fmt.Sprint(i)}, int64(i+1)))
	}
	return entries
}

// fill saves n buckets of the name 1, each full at its number, and applies the
// journal.
func fill(t testing.TB, s *Store, n int) map[Key]int64 {
	t.Helper()
	entries := numbered(1, 0, n)
	s.put(t, entries...)
	require.NoError(t, s.checkpoint())
	return with(nil, entries...)
}

// sweepAll sweeps all of the file, and a little further.
func sweepAll(t testing.TB, s *Store, now int64) {
	t.Helper()
	for range 2 {
		s.filter.Store(nil)
		for s.filter.Load() == nil {
			require.NoError(t, s.sweep(now))
		}
	}
}

// sameAs requires that the store has the entries of want, and no entry for the
// other keys.
func (s *Store) sameAs(t testing.TB, want map[Key]int64, others ...Key) {
	t.Helper()
	require.Equal(t, want, allOf(t, s))
	for _, key := range slices.AppendSeq(others, maps.Keys(want)) {
		require.Equal(t, want[key], load(t, s, key))
	}
}

// temporaries returns the files beside the store's.
func temporaries(t testing.TB, s *Store) []string {
	t.Helper()
	found, err := filepath.Glob(s.path + ".*")
	require.NoError(t, err)
	return found
}

// awaitWaiter returns when a goroutine waits in a function, for a lock or a
// condition, or when that function has ended. It sees the goroutines of all
// tests, so its callers are not parallel.
func awaitWaiter(function string, ended <-chan error) {
	waits := regexp.MustCompile(`\[sync\..*\]:\n(.*sync\..*\n\t.*\n)+.*\)\.` + function + `\(`)
	for stacks := make([]byte, 1<<20); len(ended) == 0 && !waits.Match(stacks[:runtime.Stack(stacks, true)]); {
		<-time.After(time.Millisecond) // a look stops all goroutines
	}
}

// failCommits replaces the write of the meta page, which bbolt does in each
// commit. A sync that fails after that write leaves the same file as a failed
// write.
func failCommits(f *boltfile.File, write func(meta []byte, at int64) (int, error)) (restore func()) {
	field := reflect.ValueOf(f.DB).Elem().FieldByName("ops").FieldByName("writeAt")
	ops := (*func(b []byte, at int64) (int, error))(field.Addr().UnsafePointer())
	writeAt := *ops
	*ops = func(b []byte, at int64) (int, error) {
		if at >= 2*bboltpage.Size {
			return writeAt(b, at)
		}
		return write(b, at)
	}
	return func() { *ops = writeAt }
}

// unsynced writes a meta page, and returns an error.
func unsynced(f *boltfile.File) func(meta []byte, at int64) (int, error) {
	return func(meta []byte, at int64) (int, error) {
		n, err := f.OS().WriteAt(meta, at)
		return n, errors.Join(err, errFault)
	}
}

// tooManyForTheLog returns more entries than a save to the log may have.
func tooManyForTheLog() []format.Entry { return numbered(1, 1<<20, commitSave+1) }

// makeFile makes a file with some entries, and returns its path.
func makeFile(t testing.TB, names labels, entries ...format.Entry) string {
	t.Helper()
	s := openNamed(t, storePath(t), names)
	require.NoError(t, s.Save(entries))
	require.NoError(t, s.Close())
	return s.path
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

// requireCrash requires that the file would have the entries of want if the
// process were killed now.
func requireCrash(t testing.TB, s *Store, want map[Key]int64) {
	t.Helper()
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// overdueLocked reports whether a checkpoint is due that the background, which may
// be late, has not begun. Saves do not wait for a checkpoint before it has begun.
func overdueLocked(j *journalState) bool { return !j.checkpointing && j.dueLocked() }

// setMost makes a checkpoint due when the index has this size.
func (s *Store) setMost(most int64) {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.journal.most = most
}
