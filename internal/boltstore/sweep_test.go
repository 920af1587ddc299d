package boltstore

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

// A sweep deletes buckets that are full, and holds that have ended.
func TestSweepFullBuckets(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	const n = 10_000
	want := fill(t, s, n)
	hold, over := entry(Key{format.Holds, "1:held"}, 1<<40), entry(Key{format.Holds, "1:over"}, 5)
	s.put(t, hold, over)
	require.NoError(t, s.checkpoint())
	sweepAll(t, s, n/2)
	maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= n/2 })
	want = with(want, hold)
	s.sameAs(t, want, keyOf(over))
	require.EqualValues(t, n/2+1, s.Stats().Swept)
	requireCrash(t, s, want)
}

// An invalid value is ErrCorrupt, before a sweep has read it and after. The
// other entries stay as they were.
func TestDamagedValue(t *testing.T) {
	t.Parallel()
	path := makeFile(t, storeNames, numbered(1, 0, 3)...)
	for _, value := range [][]byte{nil, make([]byte, 7), make([]byte, 9)} {
		filecopy.Edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("1")).Put([]byte("1"), value) })
		s := openStore(t, path)
		for range 2 {
			_, err := s.Load(1, "1")
			require.ErrorIs(t, err, format.ErrCorrupt)
			require.ErrorContains(t, err, "1:1")
			require.EqualValues(t, 1, load(t, s, Key{1, "0"}))
			require.EqualValues(t, 3, load(t, s, Key{1, "2"}))
			var got []string
			for e, err := range s.All(1) {
				got = append(got, fmt.Sprint(e.ID, errors.Is(err, format.ErrCorrupt)))
			}
			require.Equal(t, []string{"0false", "true"}, got, "the error comes last")
			met := 0
			for s.filter.Load() == nil {
				if err := s.sweep(-1); err != nil {
					require.ErrorIs(t, err, format.ErrCorrupt)
					met++
				}
			}
			require.LessOrEqual(t, met, 1)
		}
		require.ErrorIs(t, s.Compact(), format.ErrCorrupt)
		require.Empty(t, temporaries(t, s))
		require.NoError(t, s.Close())
	}
}

// A sweep that cannot read the first page of a limit's buckets reports it.
func TestSweepDamagedFirstPage(t *testing.T) {
	t.Parallel()
	path := makeFile(t, storeNames, numbered(1, 0, 500)...)
	var first int64
	filecopy.Edit(t, path, func(tx *bolt.Tx) error {
		first = int64(tx.Bucket([]byte("1")).Root()) * int64(tx.DB().Info().PageSize)
		return nil
	})
	require.NotZero(t, first)
	content := filecopy.Read(t, path)
	copy(content[first:], make([]byte, 16)) // the header of a page
	s := openStore(t, filecopy.New(t, content))
	for range 3 {
		require.ErrorIs(t, s.sweep(-1), format.ErrCorrupt)
		require.ErrorIs(t, s.Health(), format.ErrCorrupt)
	}
	_, err := s.Load(1, "1")
	require.ErrorIs(t, err, format.ErrCorrupt)
	require.Zero(t, load(t, s, Key{2, "1"}), "other limits can be read")
}

// A bucket that is saved between a sweep's read and its delete stays.
func TestSweepRace(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := fill(t, s, sweepStep/2)
	tx, err := s.inUse.file.DB.Begin(true)
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- s.sweep(1 << 30) }() // it finds all buckets full, and waits to delete them
	b := tx.Bucket(format.Decimal(1))
	for range 20 {
		for key := range want {
			want[key] = 1 << 40
			require.NoError(t, b.Put(format.EncodeID(key.ID), format.BigEndian(1<<40)))
		}
	}
	require.NoError(t, tx.Commit())
	require.NoError(t, <-done)
	require.Equal(t, want, allOf(t, s))
}

// After an overfull filter comes a larger one.
func TestFilterGrowth(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	sweepAll(t, s, 0)
	was := s.filter.Load()
	fill(t, s, 70_000) // room for 43,690
	require.True(t, was.Overfull())
	for s.filter.Load().Overfull() {
		require.NoError(t, s.sweep(0))
	}
	require.NotSame(t, was, s.filter.Load())
}

// A Load returns the last Save before it, or a later one, during saves, sweeps,
// checkpoints and compactions.
func TestNoFalseNegatives(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	const writers, ids = 3, 60
	rounds := testlength.Of(60, 8)
	var writing, upkeep sync.WaitGroup
	var stop atomic.Bool
	for _, f := range []func() error{func() error { return s.sweep(1) }, s.checkpoint, s.Compact} {
		upkeep.Go(func() {
			for !stop.Load() {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 5))
			last := make(map[Key]int64)
			for round := range rounds {
				var changes []format.Entry
				for _, i := range rnd.Perm(ids)[:ids/3] { // half of them are new
					key := Key{uint16(1 + w%2), fmt.Sprint(w, "-", i+round*ids/2)}
					last[key] = int64(1000+round) * min(1, rnd.Int64N(10))
					changes = append(changes, entry(key, last[key]))
				}
				if err := s.Save(changes); err != nil {
					t.Error(err)
					return
				}
				for key, want := range last {
					if tat, err := s.Load(key.Name, key.ID); err != nil || tat != want {
						t.Errorf("%v: %d, %v; want %d", key, tat, err, want)
						return
					}
				}
			}
		})
	}
	writing.Wait()
	stop.Store(true)
	upkeep.Wait()
}

// If other maintenance is under way, a sweep runs later.
func TestMissedSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		fill(t, s, 100)
		s.maintenance.mu.Lock()
		require.NoError(t, s.sweep(100))
		s.maintenance.mu.Unlock()
		require.Zero(t, s.Stats().Swept)
		s.wake()
		synctest.Wait()
		require.EqualValues(t, 100, s.Stats().Swept)
		require.NoError(t, s.Close())
	})
}

// After a full pass of the sweep, loading an unknown id does not read the file.
func TestLoadUnknownID(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	fill(t, s, 3_000)
	reads := func(id string) int {
		s.inUse.closed = true
		defer func() { s.inUse.closed = false }()
		if _, err := s.Load(1, id); err != nil {
			return 1
		}
		return 0
	}
	idle(t, s)
	require.Equal(t, 1, reads("unknown"))
	sweepAll(t, s, 0)
	require.Equal(t, 1, reads("17"))
	wrong := 0
	for i := range 1_000 {
		wrong += reads(fmt.Sprint("unknown", i))
	}
	require.Less(t, wrong, 15)
}

// The journal's index lets go of buckets that have passed, unless the tree, or a
// checkpoint that failed, has a later TAT of them. No load and no crash shows it.
func TestSweepDropsPassed(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	const n, now = 1000, 1 << 30
	inTree := numbered(1, now, n) // each later than now
	s.put(t, inTree...)
	require.NoError(t, s.checkpoint())
	s.together()
	var deleted []format.Entry
	for _, e := range inTree[:n/2] {
		deleted = append(deleted, entry(keyOf(e), 0))
	}
	s.put(t, deleted...)
	passed := numbered(2, 1, n) // ids of which the tree has nothing
	s.put(t, passed...)
	hold := entry(Key{format.Holds, "1:held"}, now+1)
	s.put(t, hold)
	want := with(with(nil, inTree[n/2:]...), hold)
	kept := int64(n/2 + 1) // what was deleted from the tree, and the hold
	drop := func(of *Store) {
		for range 100 {
			of.maintenance.mu.Lock()
			require.NoError(t, of.dropPassedLocked(now))
			of.maintenance.mu.Unlock()
		}
	}
	drop(s)
	require.Equal(t, kept, s.Stats().Journaled)
	for _, e := range deleted {
		require.Zero(t, load(t, s, keyOf(e)))
	}
	next := openStore(t, crash(t, s))
	next.now.Store(now)
	require.EqualValues(t, kept+n, next.Stats().Journaled, "the file has the records")
	require.NoError(t, next.checkpoint())
	next.sameAs(t, want)

	inOld := entry(Key{3, "in the failed checkpoint"}, now+1)
	s.put(t, inOld)
	restore := failCommits(s.inUse.file, func([]byte, int64) (int, error) { return 0, errFault })
	require.ErrorIs(t, s.checkpoint(), errFault)
	restore()
	s.journal.mu.Lock()
	s.journal.retry = time.Now().Add(time.Hour) // not yet in the background
	s.journal.mu.Unlock()
	deleted = []format.Entry{entry(keyOf(inOld), 0)}
	for _, e := range inTree[n/2:] {
		deleted = append(deleted, entry(keyOf(e), 0))
	}
	s.put(t, deleted...)
	drop(s)
	for _, e := range append(inTree, inOld) {
		require.Zero(t, load(t, s, keyOf(e)))
	}
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.checkpoint())
	s.sameAs(t, with(nil, hold), keyOf(inOld))
}
