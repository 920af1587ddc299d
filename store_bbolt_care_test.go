package stint

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"runtime/trace"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// fill saves n buckets of the name 1, each past at its number, and takes them home.
func fill(t testing.TB, s *BoltStore, n int) map[Key]int64 {
	t.Helper()
	want := make(map[Key]int64)
	var changes []Change
	for i := range n {
		key := Key{1, fmt.Sprintf("id-%07d", i)}
		want[key] = int64(i + 1)
		changes = append(changes, Change{key, want[key]})
	}
	require.NoError(t, s.append(changes))
	require.NoError(t, s.checkpoint())
	return want
}

// sweepAll goes through all of the file, and a little further.
func sweepAll(t testing.TB, s *BoltStore, now int64) {
	t.Helper()
	for range 2 {
		s.filter.Store(nil)
		for s.filter.Load() == nil {
			require.NoError(t, s.sweep(now))
		}
	}
}

func TestSweepDeletesWhatIsPast(t *testing.T) {
	s := openStore(t, storePath(t))
	const n = 10_000
	want := fill(t, s, n)
	hold := Key{Unknown, "1:held"}
	require.NoError(t, s.append([]Change{{hold, 1 << 40}, {Key{Unknown, "1:over"}, 5}}))
	require.NoError(t, s.checkpoint())
	want[hold] = 1 << 40

	sweepAll(t, s, n/2)
	maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= n/2 })
	s.sameAs(t, want, slices.Collect(maps.Keys(want)))
	require.EqualValues(t, n/2+1, s.Stats().Swept)

	path := crash(t, s)
	openStore(t, path).sameAs(t, want, nil)
}

// A bucket that is saved anew between the sweep's look at it and its deletion stays.
func TestSweepSparesWhatIsSavedAnew(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 3*sweepStep)
	keys := slices.SortedFunc(maps.Keys(want), Key.compare)
	saved := make(map[Key]int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		rnd := rand.New(rand.NewPCG(1, 1))
		for i := range 300 {
			key := keys[rnd.IntN(len(keys))]
			saved[key] = 1<<40 + int64(i)
			if i%2 == 0 {
				s.together()
			} else {
				s.alone()
			}
			s.Save([]Change{{key, saved[key]}})
			if i%50 == 49 {
				s.checkpoint()
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			require.NoError(t, s.sweep(1<<30))
		}
	}
	sweepAll(t, s, 1<<30)
	s.sameAs(t, saved, keys)
}

// A value that is damaged is told of, before the sweep was there and after.
func TestSweepPassesABadValue(t *testing.T) {
	s := openStore(t, storePath(t))
	const n = 2*sweepStep + 5
	want := fill(t, s, n)
	bad := Key{1, "id-0000100"}
	require.NoError(t, s.update(func(tx *bolt.Tx) error { return tx.Bucket(Name(1).decimal()).Put([]byte(bad.ID), []byte("short")) }))
	_, err := s.Load(bad)
	require.ErrorIs(t, err, ErrCorrupt)
	told := 0
	for s.filter.Load() == nil {
		if err := s.sweep(-1); err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			told++
		}
	}
	require.Equal(t, 1, told)
	_, err = s.Load(bad)
	require.ErrorIs(t, err, ErrCorrupt)
	delete(want, bad)
	for key, tat := range want {
		require.Equal(t, tat, load(t, s, key))
	}
}

// The same, where it is certain that they come between the two.
func TestSweepLosesTheRace(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, sweepStep/2)
	tx, err := s.file.db.Begin(true)
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- s.sweep(1 << 30) }() // holds first, then the name 1: it finds all of them past, and waits to delete them
	b := tx.Bucket(Name(1).decimal())
	for range 20 {
		for key := range want {
			want[key] = 1 << 40
			require.NoError(t, b.Put(encodeID(key.ID), bigEndian(1<<40)))
		}
	}
	require.NoError(t, tx.Commit())
	require.NoError(t, <-done)
	s.sameAs(t, want, nil)
}

func TestFilterTakesFewForOthers(t *testing.T) {
	f := newFilter(0)
	n := int(f.room)
	for i := range n {
		f.add(Key{1, fmt.Sprint("in", i)})
	}
	wrong := 0
	for i := range n {
		require.True(t, f.has(Key{1, fmt.Sprint("in", i)}))
		if f.has(Key{1, fmt.Sprint("out", i)}) {
			wrong++
		}
		if f.has(Key{2, fmt.Sprint("in", i)}) {
			wrong++
		}
	}
	t.Logf("%d of %d others taken for one of %d", wrong, 2*n, n)
	require.Less(t, wrong, 2*n/120)
	require.InDelta(t, n, f.added.Load(), float64(n)/100)
	require.False(t, f.overfull())
	for i := range n / 10 {
		f.add(Key{1, fmt.Sprint("more", i)})
	}
	require.True(t, f.overfull())
}

// An overfull filter is followed by one that has room.
func TestFilterGrows(t *testing.T) {
	s := openStore(t, storePath(t))
	sweepAll(t, s, 0)
	room := s.filter.Load().room
	fill(t, s, int(room)+int(room)/10)
	require.True(t, s.filter.Load().overfull())
	for s.filter.Load().overfull() {
		require.NoError(t, s.sweep(0))
	}
	require.Greater(t, s.filter.Load().room, room)
}

// While saves, sweeps, checkpoints and compactions go on, a Load finds what the last Save before it left, or a later one.
func TestNoFalseNegatives(t *testing.T) {
	s := openStore(t, storePath(t))
	const writers, ids, rounds = 3, 60, 60
	var wg, care sync.WaitGroup
	stop := make(chan struct{})
	for _, f := range []func() error{
		func() error { return s.sweep(1) },
		s.checkpoint,
		s.Compact,
	} {
		care.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := f(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 5))
			last := make(map[Key]int64)
			for round := range rounds {
				var changes []Change
				for i := range ids {
					if rnd.IntN(3) == 0 {
						c := Change{Key{Name(1 + w%2), fmt.Sprint(w, "-", i+round*ids/2)}, int64(1000 + round)} // half of them are new
						if rnd.IntN(10) == 0 {
							c.TAT = 0
						}
						changes = append(changes, c)
						last[c.Key] = c.TAT
					}
				}
				if err := s.Save(changes); err != nil {
					t.Error(err)
					return
				}
				for key, want := range last {
					if tat, err := s.Load(key); err != nil || tat != want {
						t.Errorf("%v: %d, %v; want %d", key, tat, err, want)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	care.Wait()
}

// The flusher saves at each tick while a checkpoint or a compaction is under way, and afterwards what is
// past leaves the file by itself.
func TestFlusherDoesNotWaitForCare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		path, limits := storePath(t), limitsOf(t, storeNames, map[Name]Limit{1: PerHour(100)})
		s := openStore(t, path)
		fill(t, s, n)
		require.NoError(t, s.Close())
		l, err := Open(path, limits, nil)
		require.NoError(t, err)
		s = l.store.(*BoltStore)
		s.careMu.Lock()
		for i := range int64(5) {
			_, err := l.Spend(Name(1).Key("a"), 1)
			require.NoError(t, err)
			<-time.After(time.Second)
			synctest.Wait()
			require.Equal(t, i+1, l.Stats().Flush.Flushes)
		}
		require.Zero(t, l.Stats().File.Swept)
		s.careMu.Unlock()
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.EqualValues(t, n, l.Stats().File.Swept)
		require.NoError(t, l.Close())
	})
}

// A sweep that found the file in the care of others is made up for.
func TestMissedSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		fill(t, s, 100)
		require.NoError(t, s.Compact())
		s.careMu.Lock()
		require.NoError(t, s.sweep(100))
		s.careMu.Unlock()
		require.Zero(t, s.Stats().Swept)
		s.wake()
		synctest.Wait()
		require.EqualValues(t, 100, s.Stats().Swept)
		require.NoError(t, s.Close())
	})
}

// Once the sweep has been through the file, an id that it does not have costs no question to it.
func TestMissDoesNotTouchTheFile(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 3_000)
	unreadable := errors.New("unreadable")
	asks := func(key Key) bool {
		s.file.broken.Store(&unreadable)
		defer s.file.broken.Store(nil)
		_, err := s.Load(key)
		return err != nil
	}
	require.True(t, asks(Key{1, "unknown"}))
	sweepAll(t, s, 0)
	asked := 0
	for i := range 1_000 {
		if asks(Key{1, fmt.Sprint("unknown", i)}) {
			asked++
		}
	}
	require.Less(t, asked, 15)
	for key := range want {
		require.True(t, asks(key))
		break
	}
}

func temporaries(t testing.TB, s *BoltStore) []string {
	t.Helper()
	found, err := filepath.Glob(s.path + ".*")
	require.NoError(t, err)
	return found
}

func TestCompact(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 40_000)
	hold := Key{Unknown, "1:held"}
	want[hold] = 1 << 50
	require.NoError(t, s.append([]Change{{hold, 1 << 50}}))
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
			c := Change{keys[i*7%len(keys)], 1<<41 + int64(i)}
			s.alone() // it would go home, where the copy may have been already
			require.NoError(t, s.Save([]Change{c}))
			want[c.Key] = c.TAT
			tat, err := s.Load(c.Key)
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

// After a compaction that fails the old file is in place and in use, and nothing is left of the new one.
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

	require.NoError(t, s.append([]Change{{Key{2, "x"}, 7}}))
	want[Key{2, "x"}] = 7
	require.NoError(t, s.Compact())
	require.NoError(t, s.Stats().Err)
	require.Zero(t, s.Stats().Journaled, "it is home")
	s.sameAs(t, want, nil)

	require.NoError(t, s.update(func(tx *bolt.Tx) error { return tx.Bucket(Name(1).decimal()).Put([]byte("bad"), []byte("short")) }))
	require.ErrorIs(t, s.Compact(), ErrCorrupt)
	require.Empty(t, temporaries(t, s))
	tat, err := s.Load(Key{2, "x"})
	require.NoError(t, err)
	require.EqualValues(t, 7, tat)
}

// The same, where a file that is open is not renamed.
func TestCompactClosed(t *testing.T) {
	defer func(was bool) { renamesOpen = was }(renamesOpen)
	renamesOpen = false
	TestCompact(t)

	s := openLogged(t)
	want := fill(t, s, 100)
	require.NoError(t, s.append([]Change{{Key{2, "x"}, 7}}))
	want[Key{1, "the log is made"}], want[Key{2, "x"}] = 1, 7
	begin := s.file.log.begin
	swap := func(before func(temp string)) error { // a swap with a copy as it was before
		temp := copyOf(t, s.path)
		target, err := openBoltFile(temp, time.Second, 0, toWrite)
		require.NoError(t, err)
		before(temp)
		return s.swapLocked(temp, target)
	}
	require.NoError(t, s.checkpoint())
	require.ErrorIs(t, swap(func(temp string) { require.NoError(t, os.Remove(temp)) }), os.ErrNotExist)
	require.Equal(t, begin, s.file.log.begin, "the log goes on")
	require.NoError(t, s.append([]Change{{Key{2, "x"}, 8}}))
	want[Key{2, "x"}] = 8
	s.sameAs(t, want, nil)
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, s.emptyLog())
	err = swap(func(temp string) { // by another process, in between
		written := copyOf(t, temp)
		edit(t, written, func(tx *bolt.Tx) error { return tx.Bucket(Name(1).decimal()).Put([]byte("x"), bigEndian(9)) })
		require.NoError(t, os.Rename(written, temp))
	})
	require.ErrorIs(t, err, ErrLocked)
	require.NotErrorIs(t, err, ErrCorrupt)
	require.ErrorIs(t, s.append([]Change{{Key{2, "x"}, 8}}), ErrLocked)
	_, err = s.Load(Key{2, "y"})
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())
	openStore(t, s.path)
}

// compactHeld has a compaction begin, and stop where it can still be given up, until goOn is called.
func (s *BoltStore) compactHeld() (goOn func(), done <-chan error) {
	s.namesMu.Lock() // which it wants before it copies anything
	ended := make(chan error, 1)
	go func() { ended <- s.compactBusy() }()
	s.awaitCopying(true)
	return s.namesMu.Unlock, ended
}

func (s *BoltStore) awaitCopying(is bool) {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	for s.copying != is {
		s.stepped.Wait()
	}
}

// awaitWaiter waits until a goroutine waits in a function for a lock, or to be woken, or has ended.
func awaitWaiter(function string, ended <-chan error) {
	waits := regexp.MustCompile(`\[sync\..*\]:\n(.*sync\..*\n\t.*\n)+.*\)\.` + function + `\(`)
	for stacks := make([]byte, 1<<20); len(ended) == 0 && !waits.Match(stacks[:runtime.Stack(stacks, true)]); {
		runtime.Gosched()
	}
}

// A compaction gives up where more is saved than the journal has room for; the old file stays in use, and the journal goes home.
func TestCompactOutpaced(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 2_000)
	s.indexMu.Lock()
	s.indexMost = 1 << 10
	s.indexMu.Unlock()
	old, checkpoints := s.file, s.Stats().Checkpoints
	save := func(n int) {
		s.together()
		var changes []Change
		for i := range n {
			c := Change{Key{2, fmt.Sprint(n, "-", i)}, 1}
			changes, want[c.Key] = append(changes, c), 1
		}
		require.NoError(t, s.Save(changes))
	}
	goOn, done := s.compactHeld()
	save(200)
	goOn()
	require.ErrorIs(t, <-done, errOutpaced)
	require.NoError(t, s.Stats().Err, "nothing failed")
	require.Same(t, old, s.file)
	require.Empty(t, temporaries(t, s))
	s.sameAs(t, want, nil)
	s.careMu.Lock()
	s.takeHomeLocked() // unless it was done by then
	s.careMu.Unlock()
	require.Greater(t, s.Stats().Checkpoints, checkpoints)
	goOn, done = s.compactHeld()
	save(2)
	goOn()
	require.NoError(t, <-done)
	s.sameAs(t, want, nil)
}

// The same, where there is room until it copies the journal: it is led there from lock to lock.
func TestCompactOutpacedAtTheJournal(t *testing.T) {
	s := openStore(t, storePath(t))
	s.indexMu.Lock()
	s.indexMost = 1 << 10
	s.indexMu.Unlock()
	changes := tooManyForTheLog()
	require.NoError(t, s.append(changes[:1])) // nothing is home: there is one batch
	old := s.file
	goOn, done := s.compactHeld()
	s.indexMu.Lock()
	goOn()
	awaitWaiter("outpaced", done) // behind that batch
	old.views.Lock()
	s.indexMu.Unlock()
	awaitWaiter("view", done) // for the sums
	s.indexMu.Lock()
	old.views.Unlock()
	awaitWaiter("outpaced", done) // before the journal
	old.views.Lock()
	s.indexMu.Unlock()
	require.NoError(t, s.append(changes))
	old.views.Unlock()
	require.ErrorIs(t, <-done, errOutpaced)
	require.Same(t, old, s.file)
	require.Empty(t, temporaries(t, s))
	s.sameAs(t, apply(map[Key]int64{}, changes...), nil)
}

// Where the journal is full a save waits until a compaction has given up, and the sweep does not hurry.
func TestSaveWaitsForACompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		s.closing.Do(s.stopCare) // nobody does what is due
		defer s.file.close()
		s.indexMost = 10
		s.setCopying(true)
		saved := 0
		go func() {
			for ; saved < 3; saved++ {
				if err := s.append([]Change{{Key{1, fmt.Sprintf("%020d", saved)}, 1}}); err != nil {
					t.Error(err)
				}
			}
		}()
		synctest.Wait()
		require.Equal(t, 1, saved)
		require.NoError(t, s.sweep(0))
		require.Nil(t, s.filter.Load())
		s.setCopying(false)
		synctest.Wait()
		require.Equal(t, 3, saved)
	})
}

// When a compaction has the saves wait, all is in the new file but what was saved since: that alone it copies then.
func TestCompactCopiesTheJournalBefore(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 2_000)
	save := func(changes ...Change) {
		require.NoError(t, s.append(changes))
		want = apply(want, changes...)
	}
	var long []Change // more than one step
	for i := range 10_000 {
		long = append(long, Change{Key{2, fmt.Sprintf("%0200d", i)}, 1})
	}
	save(long...)
	save(tooManyForTheLog()...)
	goOn, done := s.compactHeld()
	s.saveMu.Lock()
	goOn()
	s.awaitCopying(false)
	require.Len(t, temporaries(t, s), 1)
	got, err := found(t, copyOf(t, temporaries(t, s)[0]))
	require.NoError(t, err)
	require.Equal(t, want, got)
	save(Change{Key{2, "since"}, 1}) // as a save that was there first
	save(tooManyForTheLog()[1:]...)
	save(Change{Key{2, "in the log"}, 1})
	s.saveMu.Unlock()
	require.NoError(t, <-done)
	got, err = found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// Nobody who saves waits for the sync of the copy, but for that of what was saved since.
func TestCompactSyncsBefore(t *testing.T) {
	s := openStore(t, storePath(t))
	fill(t, s, 2_000)
	goOn, done := s.compactHeld()
	var traced bytes.Buffer
	s.saveMu.Lock() // as a save would
	require.NoError(t, trace.Start(&traced))
	goOn()
	awaitWaiter("compactOnceLocked", done)
	trace.Stop()
	s.saveMu.Unlock()
	require.NoError(t, <-done)
	synced := bytes.Contains(traced.Bytes(), []byte("bbolt.(*DB).Sync")) // a trace has the callers of each call of the system
	require.True(t, synced, "it has yet to be")
}

// A compaction leaves a file's mode and owner as they are.
func TestCompactKeepsModeAndOwner(t *testing.T) {
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

// Where the name of the new file cannot be made durable, the old one stays; where that is seen when it is too late, nothing is saved
// until it is.
func TestCompactCannotSyncTheName(t *testing.T) {
	s := openLogged(t)
	want := fill(t, s, 100)
	want[Key{1, "the log is made"}] = 1
	old, dir := s.file, syncDir
	defer func() { syncDir = dir }()
	sync := func(fine int) func(string) error {
		return func(path string) error {
			if fine--; fine < 0 {
				return errFault
			}
			return dir(path)
		}
	}
	syncDir = sync(0)
	require.ErrorIs(t, s.Compact(), errFault)
	require.Same(t, old, s.file)
	require.Empty(t, temporaries(t, s))
	change := Change{Key{1, "more"}, 1}
	require.NoError(t, s.append([]Change{change}))
	want[change.Key] = 1

	syncDir = sync(1)
	require.ErrorIs(t, s.Compact(), errFault)
	require.NotSame(t, old, s.file)
	require.False(t, s.file.replaced())
	require.Empty(t, temporaries(t, s))
	s.sameAs(t, want, nil)
	for range 2 {
		require.ErrorIs(t, s.append([]Change{{Key{1, "still more"}, 1}}), errFault)
		s.alone()
		require.ErrorIs(t, s.Save([]Change{{Key{1, "still more"}, 1}}), errFault)
	}
	s.sameAs(t, want, nil)
	synced := 0
	syncDir = func(path string) error { synced++; return dir(path) }
	for range 2 {
		change.TAT++
		require.NoError(t, s.append([]Change{change}))
	}
	want[change.Key] = change.TAT
	require.Equal(t, 1, synced)
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// Who waits for the file's lock while the file is compacted, or set aside, does not end up on the old one.
func TestReplaced(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 100)
	file, err := os.Open(s.path)
	require.NoError(t, err)
	defer file.Close()
	waiting := boltFile{path: s.path, file: file}
	require.False(t, waiting.replaced())
	require.NoError(t, s.Compact())
	require.True(t, waiting.replaced())

	opened := make(chan *BoltStore)
	go func() {
		other, err := OpenBolt(s.path, storeNames, &BoltOptions{LockTimeout: time.Minute})
		if err != nil {
			t.Error(err)
		}
		opened <- other
	}()
	for i := range 20 {
		require.NoError(t, s.Compact())
		require.NoError(t, s.Save([]Change{{Key{2, "last"}, int64(i + 1)}}))
	}
	want[Key{2, "last"}] = 20
	require.NoError(t, s.Close())
	if other := <-opened; other != nil {
		defer other.Close()
		require.False(t, other.file.replaced())
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

// With the race detector: Close looks at the file that a compaction has just put in the place of the old one.
func TestCloseAfterCompact(t *testing.T) {
	s := openStore(t, storePath(t))
	want := fill(t, s, 3_000)
	was, err := os.Stat(s.path)
	require.NoError(t, err)
	compacted := make(chan error, 1)
	go func() { compacted <- s.Compact() }()
	for same := true; same && len(compacted) == 0; {
		is, err := os.Stat(s.path)
		require.NoError(t, err)
		same = os.SameFile(was, is)
	}
	require.NoError(t, s.Close())
	require.NoError(t, <-compacted)
	openStore(t, s.path).sameAs(t, want, nil)
}

// A file that is mostly free pages is compacted by itself once it is large enough; where that failed, not at once again.
func TestCompactByItself(t *testing.T) {
	s := openStore(t, storePath(t))
	s.compactMin = 1 << 20
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

	s.careMu.Lock()
	s.notCompacted = s.notCompacted.Add(-compactRetry)
	s.careMu.Unlock()
	s.compactIfDue()
	require.EqualValues(t, 1, s.Stats().Compactions)
	require.Less(t, s.Stats().Bytes, int64(2<<20))
	maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= 39_000 })
	s.sameAs(t, want, nil)
}

// Nobody has to ask for it: once a sweep has been through the file, it is looked at whether that is worth it.
func TestCompactAfterTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		s.compactMin = 1 << 19
		fill(t, s, 10_000)
		synctest.Wait()
		require.Zero(t, s.Stats().Compactions, "it is in use")
		sweepAll(t, s, 9_900)
		synctest.Wait()
		require.EqualValues(t, 1, s.Stats().Compactions)
		require.NoError(t, s.Close())
	})
}

// What sizes reads from the file is what bbolt knows.
func TestSizes(t *testing.T) {
	s := openStore(t, storePath(t))
	check := func() {
		t.Helper()
		path := crash(t, s)
		size, free := s.sizes()
		db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, ReadOnly: true, PreLoadFreelist: true})
		require.NoError(t, err)
		defer db.Close()
		want := 0
		require.NoError(t, db.View(func(tx *bolt.Tx) error {
			for id := 0; ; id++ {
				info, err := tx.Page(id)
				if err != nil || info == nil {
					return err
				}
				if info.Type == "free" {
					want += pageSize
				}
			}
		}))
		require.EqualValues(t, want, free)
		info, err := os.Stat(s.path)
		require.NoError(t, err)
		require.Equal(t, info.Size(), size)
	}
	check()
	fill(t, s, 20_000)
	check()
	sweepAll(t, s, 19_000)
	check()
	require.NoError(t, s.Compact())
	check()
	require.NoError(t, s.Close())
	size, free := s.sizes()
	require.Zero(t, size+free)
}
