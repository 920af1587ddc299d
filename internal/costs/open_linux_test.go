package costs

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/worlds"
)

// forget removes a file from the page cache.
func forget(t testing.TB, path string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Sync())
	require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// BenchmarkOpenCold opens a file of 100,000 buckets that is not in the page
// cache, and decides once. MaxResident bounds the journal, which Open reads.
func BenchmarkOpenCold(b *testing.B) {
	const buckets = 100_000
	names := stint.Names{flushed: {Label: "flushed", Limit: stint.PerHour(60)}}
	limits := worlds.LimitsOf(b, names, nil)
	for _, resident := range []int{10_000, buckets} {
		for _, applied := range []bool{true, false} {
			b.Run(fmt.Sprintf("resident=%d/applied=%v", resident, applied), func(b *testing.B) {
				path, opts := worlds.Path(b), &stint.Options{MaxResident: resident}
				l, err := stint.Open(path, limits, opts)
				require.NoError(b, err)
				for i := range buckets {
					_, err := l.Spend(flushed.Key(fmt.Sprintf("client-%07d", i*7919%buckets)), 1)
					require.NoError(b, err)
				}
				require.NoError(b, l.Flush())
				journaled := l.Stats().File.Journaled
				if !applied {
					path = worlds.CopyOf(b, path) // as after a power cut
				}
				require.NoError(b, l.Close())
				if applied {
					store, err := boltstore.Open(path, map[uint16]string{uint16(flushed): "flushed"}, boltstore.Options{LockTimeout: worlds.LongLock})
					require.NoError(b, err)
					require.NoError(b, store.Compact())
					require.NoError(b, store.Close())
					journaled = 0
				}
				for b.Loop() {
					b.StopTimer()
					cold := worlds.CopyOf(b, path)
					forget(b, cold)
					b.StartTimer()
					l, err := stint.Open(cold, limits, opts)
					require.NoError(b, err)
					d, err := l.Spend(flushed.Key("client-0077777"), 1)
					b.StopTimer()
					require.NoError(b, err)
					require.EqualValues(b, 58, d.Remaining)
					require.NoError(b, l.Close())
					require.NoError(b, os.Remove(cold))
					b.StartTimer()
				}
				b.ReportMetric(float64(journaled), "journaled")
			})
		}
	}
}
