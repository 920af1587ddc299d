package worlds

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/testlength"
)

// openGone opens a Limiter of 2³¹ tokens that counts its events.
func openGone(t *testing.T, path string, files *boltfile.FS, level stint.Durability, kinds *[20]atomic.Int64) *stint.Limiter {
	l, err := stint.New(OpenFile(t, path, levelNames, files), levelLimits(t, stint.Limit{Burst: 1 << 31, Count: 1, Period: time.Second}),
		&stint.Options{FlushInterval: time.Hour, Durability: level, OnEvent: func(e stint.Event) { kinds[e.Kind].Add(1) }})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// Once a save has found that another file replaced the Limiter's, nothing is
// acknowledged, however many callers ask. One event says so.
func TestFileReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	for level := stint.Leased; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			path, kinds := Path(t), new([20]atomic.Int64)
			l := openGone(t, path, boltfile.OS(), level, kinds)
			var found, stop atomic.Bool
			var acked, refused atomic.Int64
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					for n := 0; !stop.Load(); n++ {
						was := found.Load()
						// Each id is new, so that a lease of it needs a commit.
						_, err := l.Spend(stint.Name(level).Key(fmt.Sprint(i, "-", n)), 1)
						if was && err == nil {
							acked.Add(1)
						} else if err != nil {
							found.Store(true)
							refused.Add(1)
						}
					}
				})
			}
			require.NoError(t, os.WriteFile(path+".other", []byte("somebody else's"), 0o600))
			require.NoError(t, os.Rename(path+".other", path))
			require.Eventually(t, func() bool { return refused.Load() > 200 }, time.Minute, time.Millisecond)
			stop.Store(true)
			callers.Wait()
			require.Zero(t, acked.Load(), "acknowledged after a save found another file")
			require.ErrorIs(t, l.Close(), stint.ErrGone)
			require.EqualValues(t, []int64{1, 0}, []int64{kinds[stint.FileGone].Load(), kinds[stint.FileBack].Load()})
		})
	}
}

// A power cut while files are taken away: whatever file is at the path, it has
// all that was acknowledged before.
func TestFileTakenAwayCut(t *testing.T) {
	t.Parallel()
	for level := stint.Leased; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			path, kinds := Path(t), new([20]atomic.Int64)
			files := boltfile.OS()
			files.LookEvery = 0
			l := openGone(t, path, files, level, kinds)
			rnd := rand.New(rand.NewPCG(uint64(level), 1))
			begun := time.Now()
			key, acked, cuts, took := stint.Name(level).Key("a"), int64(0), 0, 0
			limit := levelLimits(t, stint.Limit{Burst: 1 << 31, Count: 1, Period: time.Second})
			for n := testlength.Of(1_800, 100); n > 0 || level == stint.Synced && cuts == 0; n-- { // a lease is spent without a file, too
				switch rnd.IntN(10) {
				case 0:
					require.NoError(t, os.RemoveAll(path))
					took++
				case 1:
					if os.Rename(path, path+".moved") == nil {
						took++
					}
				}
				if _, err := l.Spend(key, 1<<20); err != nil {
					require.ErrorIs(t, err, stint.ErrNotDurable)
					continue
				}
				acked += 1 << 20
				_, err := os.Stat(path)
				if level == stint.Leased && err != nil {
					continue // the file had the lease before
				}
				require.NoError(t, err, "acknowledged, and no file is there")
				if rnd.IntN(4) > 0 {
					continue
				}
				cuts++
				next, err := stint.New(OpenFile(t, CopyOf(t, path), levelNames, Unsynced()), limit, &stint.Options{MaxResident: fewResident})
				require.NoError(t, err)
				left := remainingOf(t, next, key)
				back := int64(time.Since(begun)/time.Second) + 1
				require.LessOrEqual(t, left, int64(1<<31)-acked+back)
				require.NoError(t, next.Close())
			}
			require.Positive(t, took)
		})
	}
}
