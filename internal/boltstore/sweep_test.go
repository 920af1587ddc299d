package boltstore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
)

func TestSweepDeletesWhatIsPast(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	const n = 10_000
	want := fill(t, s, n)
	hold := Key{format.Holds, "1:held"}
	s.put(t, entry(hold, 1<<40), entry(Key{format.Holds, "1:over"}, 5))
	require.NoError(t, s.checkpoint())
	want[hold] = 1 << 40

	sweepAll(t, s, n/2)
	maps.DeleteFunc(want, func(_ Key, tat int64) bool { return tat <= n/2 })
	s.sameAs(t, want, slices.Collect(maps.Keys(want)))
	require.EqualValues(t, n/2+1, s.Stats().Swept)

	path := crash(t, s)
	openStore(t, path).sameAs(t, want, nil)
}

// A value that is damaged is told of, before the sweep was there and after.
func TestSweepPassesABadValue(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	const n = 2*sweepStep + 5
	want := fill(t, s, n)
	bad := Key{1, "id-0000100"}
	require.NoError(t, s.update(func(tx *bolt.Tx) error { return tx.Bucket(format.Decimal(1)).Put([]byte(bad.ID), []byte("short")) }))
	_, err := s.Load(bad.Name, bad.ID)
	require.ErrorIs(t, err, format.ErrCorrupt)
	told := 0
	for s.filter.Load() == nil {
		if err := s.sweep(-1); err != nil {
			require.ErrorIs(t, err, format.ErrCorrupt)
			told++
		}
	}
	require.Equal(t, 1, told)
	_, err = s.Load(bad.Name, bad.ID)
	require.ErrorIs(t, err, format.ErrCorrupt)
	delete(want, bad)
	for key, tat := range want {
		require.Equal(t, tat, load(t, s, key))
	}
}

// The same, where it is certain that they come between the two.
func TestSweepLosesTheRace(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := fill(t, s, sweepStep/2)
	tx, err := s.inUse.file.DB.Begin(true)
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- s.sweep(1 << 30) }() // holds first, then the name 1: it finds all of them past, and waits to delete them
	b := tx.Bucket(format.Decimal(1))
	for range 20 {
		for key := range want {
			want[key] = 1 << 40
			require.NoError(t, b.Put(format.EncodeID(key.ID), format.BigEndian(1<<40)))
		}
	}
	require.NoError(t, tx.Commit())
	require.NoError(t, <-done)
	s.sameAs(t, want, nil)
}

// An overfull filter is followed by one that has room.
func TestFilterGrows(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	sweepAll(t, s, 0)
	was := s.filter.Load()
	fill(t, s, 70_000) // room for 43,690
	require.True(t, s.filter.Load().Overfull())
	for s.filter.Load().Overfull() {
		require.NoError(t, s.sweep(0))
	}
	require.NotSame(t, was, s.filter.Load())
}

// While saves, sweeps, checkpoints and compactions go on, a Load finds what the
// last Save before it left, or a later one.
func TestNoFalseNegatives(t *testing.T) {
	t.Parallel()
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
				var changes []format.Entry
				for i := range ids {
					if rnd.IntN(3) == 0 {
						c := entry(Key{uint16(1 + w%2), fmt.Sprint(w, "-", i+round*ids/2)}, int64(1000+round)) // half of them are new
						if rnd.IntN(10) == 0 {
							c.TAT = 0
						}
						changes = append(changes, c)
						last[keyOf(c)] = c.TAT
					}
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
	wg.Wait()
	close(stop)
	care.Wait()
}

// A sweep that found the file in the care of others is made up for.
func TestMissedSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, storePath(t))
		fill(t, s, 100)
		require.NoError(t, s.Compact())
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

// Once the sweep has been through the file, an id that it does not have costs
// no question to it.
func TestMissDoesNotTouchTheFile(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := fill(t, s, 3_000)
	setClosed := func(closed bool) {
		s.inUse.mu.Lock()
		defer s.inUse.mu.Unlock()
		s.inUse.closed = closed
	}
	asks := func(key Key) bool {
		setClosed(true)
		defer setClosed(false)
		_, err := s.Load(key.Name, key.ID)
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
