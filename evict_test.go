package stint

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// TestMakeSpace: if all buckets in memory are dirty, a new one waits for one
// save of a part of them, and not for the whole flush.
func TestMakeSpace(t *testing.T) {
	const resident, part = 1000, 50
	synctest.Test(t, func(t *testing.T) {
		r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: resident})
		r.disk.most = part
		for i := range resident {
			r.take(flushed.Key(fmt.Sprint(i)), 1)
		}
		for round := range 10 {
			r.disk.shut()
			done := make(chan error, 1)
			go func() {
				_, err := r.Spend(flushed.Key(fmt.Sprint("new ", round)), 1)
				done <- err
			}()
			synctest.Wait()
			require.Empty(t, done, "it waits for space")
			saving := r.disk.latest()
			require.Less(t, len(saving), 4*part)
			dirty := r.Stats().Dirty
			var used []Key // far apart
			for i := range 5 {
				used = append(used, saving[i*len(saving)/5].Key)
				r.take(used[i], 0)
			}
			r.disk.gate <- nil
			synctest.Wait()
			require.Len(t, done, 1, "one save is enough")
			require.NoError(t, <-done)
			require.Greater(t, r.Stats().Dirty, dirty-4*part)
			require.LessOrEqual(t, r.Stats().Resident, int64(resident-part/2+len(used)))
			loads := r.Stats().Loads
			for _, key := range used {
				r.take(key, 0)
			}
			require.LessOrEqual(t, r.Stats().Loads, loads+3,
				"buckets that were used during the save stay, unless a removal moves them past the hand")
			r.disk.open()
			for i := 0; r.Stats().Resident < resident; i++ {
				r.take(flushed.Key(fmt.Sprint(round, " more ", i)), 1)
			}
			r.evictAll() // all are dirty now, or leave memory
			for i := 0; r.Stats().Resident < resident; i++ {
				r.take(flushed.Key(fmt.Sprint(round, " again ", i)), 1)
			}
		}
	})
}

// TestMakeSpaceAfterFailure: while the disk fails, a call that waits for space
// tries to save a few buckets only, until a save succeeds.
func TestMakeSpaceAfterFailure(t *testing.T) {
	const resident = 1000
	r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: resident})
	for i := range resident {
		r.take(flushed.Key(fmt.Sprint(i)), 1)
	}
	r.disk.fail(errDisk, "save")
	for call := range 20 {
		_, err := r.Spend(flushed.Key("new"), 1)
		require.ErrorIs(t, err, ErrFull)
		if call > 0 {
			require.Less(t, len(r.disk.latest()), 2*64)
		}
	}
	require.ErrorIs(t, r.Flush(), errDisk)
	require.Len(t, r.disk.latest(), resident, "another flush tries to save all")
	r.disk.fail(nil)
	r.take(flushed.Key("new"), 1)
	require.Less(t, len(r.disk.latest()), 2*64)
	for i := 0; r.disk.count() < 23; i++ {
		r.take(flushed.Key(fmt.Sprint("more ", i)), 1)
	}
	require.Greater(t, len(r.disk.latest()), resident/2)
}

// TestFloodSparesOthers: buckets that are used more than once stay in memory during
// a flood of ids that ask once, although the flood's saves save them, too.
func TestFloodSparesOthers(t *testing.T) {
	const resident, flood, others = 1000, 10_000, 20
	r := rigOn(t, NewMemStore(), levelLimits(t, Limit{Burst: 1000, Count: 1, Period: time.Hour}), Options{MaxResident: resident})
	r.disk.most = 50
	for i := range flood {
		r.take(flushed.Key(fmt.Sprint(i)), 1)
		r.take(flushed.Key(fmt.Sprint("other ", i%others)), int64(i/others%2)) // each 20 new ids
	}
	require.LessOrEqual(t, r.Stats().Loads, int64(flood+3*others))
	require.LessOrEqual(t, r.Stats().Resident, int64(resident))
}

// TestMaxResident: calls look for space before they load, so each request of the
// calls under way may add a bucket above the bound. The next call makes space
// again.
func TestMaxResident(t *testing.T) {
	const resident = 100
	for _, c := range []struct{ calls, requests int }{{20, 1}, {1, 20}} {
		t.Run(fmt.Sprintf("%d calls of %d", c.calls, c.requests), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: resident})
				for i := range resident - 1 {
					r.take(flushed.Key(fmt.Sprint(i)), 1)
				}
				loading := make(chan struct{})
				r.disk.on(func(op storeOp) error {
					if op.name == "load" && !op.done {
						<-loading
					}
					return nil
				})
				done := make(chan error, c.calls)
				for call := range c.calls {
					reqs := make([]Request, c.requests)
					for i := range reqs {
						reqs[i] = Request{Key: flushed.Key(fmt.Sprint("new ", call, " ", i)), Cost: 1}
					}
					go func() { _, err := r.SpendAll(reqs...); done <- err }()
				}
				synctest.Wait()
				close(loading)
				for range c.calls {
					require.NoError(t, <-done)
				}
				require.EqualValues(t, resident-1+20, r.Stats().Resident)
				r.take(flushed.Key("next"), 1)
				require.LessOrEqual(t, r.Stats().Resident, int64(resident))
			})
		})
	}
}

// TestMakeSpaceInUse: a bucket that is used during each save leaves once it is not.
func TestMakeSpaceInUse(t *testing.T) {
	r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: 1})
	used := flushed.Key("used")
	r.take(used, 1)
	saves := 0
	r.disk.on(func(op storeOp) error {
		if op.name == "save" && !op.done && saves < 5 {
			saves++
			r.take(used, 1)
		}
		return nil
	})
	r.take(flushed.Key("other"), 1)
	require.Equal(t, 5, saves)
}

// Callers that outnumber MaxResident take turns, as long as buckets can leave.
func TestFewResident(t *testing.T) {
	t.Parallel()
	for most := 1; most <= 3; most++ {
		for _, name := range []Name{flushed, synced} {
			l, err := New(NewMemStore(), levelLimits(t, PerHour(1000)), &Options{MaxResident: most, CommitTimeout: time.Hour})
			require.NoError(t, err)
			var all sync.WaitGroup
			for g := range 16 {
				all.Go(func() {
					for i := range testlength.Of(1000, 200) {
						if _, err := l.Spend(name.Key(fmt.Sprint(g, " ", i%100)), 1); err != nil {
							t.Error(most, err)
							return
						}
					}
				})
			}
			all.Wait()
			require.NoError(t, l.Close())
		}
	}
}
