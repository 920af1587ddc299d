package costs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/internal/worlds"
)

// bytesWritten returns how many bytes this process has written. They include
// those with which the runtime wakes its threads, some 80 for each timer.
func bytesWritten(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("no /proc/self/io: ", err)
	}
	_, err = fmt.Sscanf(string(b[bytes.Index(b, []byte("wchar:")):]), "wchar: %d", &n)
	require.NoError(t, err)
	return n
}

// TestWear counts what an hour of 100 decisions a second over 1,000 ids writes,
// at each flush interval, and what an idle hour does. docs/edge.md has the
// figures. Every transaction of bbolt is two syncs.
func TestWear(t *testing.T) {
	for _, c := range []struct {
		interval     time.Duration
		busy         bool
		bytes, syncs int64 // at most
	}{
		{time.Second, false, 0, 0},
		{time.Second, true, 20e6, 7500},
		{time.Minute, true, 4e6, 130},
		{5 * time.Minute, true, 1e6, 30},
	} {
		if c.busy && c.interval < 5*time.Minute && !testlength.Long {
			continue // up to 3,600 saves
		}
		t.Run(fmt.Sprintf("%v, busy %v", c.interval, c.busy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var syncs, writes atomic.Int64
				files := boltfile.OS()
				syncFile := files.SyncFile
				files.SyncFile = func(file *os.File) error { syncs.Add(1); return syncFile(file) }
				writeAt := files.WriteAt
				files.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
					writes.Add(1)
					return writeAt(file, b, at)
				}
				path := worlds.Path(t)
				limits := worlds.LimitsOf(t, stint.Names{flushed: {Label: "flushed", Limit: stint.PerHour(60)}}, nil)
				store := worlds.OpenFile(t, path, limits.Names(), files)
				l, err := stint.New(store, limits, &stint.Options{FlushInterval: c.interval, MaxResident: 10_000})
				require.NoError(t, err)
				random := rand.New(rand.NewPCG(1, 2))
				hour := func() (written, synced int64) {
					was := filecopy.Commits(t, path)
					before, begun := bytesWritten(t), syncs.Load()
					for range 3600 {
						for i := 0; c.busy && i < 100; i++ {
							_, err := l.Spend(flushed.Key(fmt.Sprintf("client-%03d", random.IntN(1000))), 1)
							require.NoError(t, err)
						}
						<-time.After(time.Second)
						synctest.Wait()
					}
					return bytesWritten(t) - before, syncs.Load() - begun + 2*int64(filecopy.Commits(t, path)-was)
				}
				if c.busy {
					hour() // until TATs are as far ahead of the clock as they get
				}
				writes.Store(0)
				written, synced := hour()
				if writes.Load() == 0 && synced == 0 {
					written = 0 // a transaction has syncs
				}
				t.Logf("%d bytes and %d syncs an hour", written, synced)
				assert.LessOrEqual(t, written, c.bytes)
				assert.LessOrEqual(t, synced, c.syncs)
				require.NoError(t, l.Close())
			})
		})
	}
}
