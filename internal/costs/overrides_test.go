package costs

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// millionLimits returns Limits of so many overrides.
func millionLimits(t testing.TB, n int) *stint.Limits {
	overrides := make([]stint.Override, n)
	for i := range overrides {
		id := fmt.Sprintf("key_%016x", uint64(i)*0x9E3779B97F4A7C15)
		overrides[i] = stint.Override{Key: flushed.Key(id), Limit: stint.PerMinute(50)}
	}
	limits, err := stint.NewLimits(stint.Names{flushed: {Label: "flushed", Limit: stint.PerMinute(5)}}, overrides...)
	require.NoError(t, err)
	return limits
}

// heapAlloc returns the bytes of the heap that are in use.
func heapAlloc() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestOverridesHeap holds an override to 250 bytes, its id included.
func TestOverridesHeap(t *testing.T) {
	const n = 50_000
	before := heapAlloc()
	limits := millionLimits(t, n)
	require.Less(t, (heapAlloc()-before)/n, uint64(250))
	allocs := testing.AllocsPerRun(100, func() {
		_, _ = limits.With(stint.Override{Key: flushed.Key("key_0"), Limit: stint.Blocked})
	})
	require.Less(t, allocs, 50.0, "With copies what leads to one id")
	require.Equal(t, n, limits.CountOverrides(flushed))
}

func BenchmarkMillionOverrides(b *testing.B) {
	const n = 1_000_000
	b.Run("NewLimits", func(b *testing.B) {
		for b.Loop() {
			millionLimits(b, n)
		}
	})
	limits := millionLimits(b, n)
	ids := make([]string, 1<<10)
	for i := range ids {
		ids[i] = fmt.Sprintf("key_%016x", uint64(i*977)*0x9E3779B97F4A7C15)
	}
	b.Run("For", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			limits.For(flushed.Key(ids[i%len(ids)]))
		}
	})
	l, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(b, err)
	defer l.Close()
	for i := range 200_000 {
		l.Allow(flushed.Key(fmt.Sprintf("key_%016x", uint64(i)*0x9E3779B97F4A7C15)))
	}
	b.Run("SetOverrides", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			plan := stint.Override{Key: flushed.Key(ids[i%len(ids)]), Limit: stint.PerMinute(int64(10 + i%3))}
			require.NoError(b, l.SetOverrides(plan))
		}
	})
}

// BenchmarkPlans changes the plan of each id of a file with SetLimits, there and
// back. It reports the seconds of a change, the bytes of the heap that it takes at
// its end for each id, and the longest of the decisions that are made meanwhile, one
// a millisecond.
func BenchmarkPlans(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if n > 100_000 && testing.Short() {
				b.Skip("it takes half a minute")
			}
			var plans [2]*stint.Limits
			for i := range plans {
				overrides := make([]stint.Override, n)
				for j := range overrides {
					overrides[j] = stint.Override{Key: flushed.Key(fmt.Sprint(j)), Limit: stint.PerDay(int64(1_000 + 19_000*i))}
				}
				var err error
				plans[i], err = stint.NewLimits(stint.Names{flushed: {Label: "flushed", Limit: stint.PerDay(10)}}, overrides...)
				require.NoError(b, err)
			}
			l, err := stint.Open(filepath.Join(b.TempDir(), "plans.db"), plans[0], nil)
			require.NoError(b, err)
			defer l.Close()
			for i := range n {
				_, err := l.Spend(flushed.Key(fmt.Sprint(i)), 1_000)
				require.NoError(b, err)
			}
			require.NoError(b, l.Flush())
			heap := heapAlloc()
			var longest time.Duration
			var callers sync.WaitGroup
			stop := make(chan struct{})
			callers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
					begun := time.Now()
					_, err := l.Spend(flushed.Key(fmt.Sprint(i*7919%n)), 0)
					longest = max(longest, time.Since(begun))
					if err != nil {
						b.Error(err)
					}
				}
			})
			changes := 0
			for b.Loop() {
				changes++
				require.NoError(b, l.SetLimits(plans[changes%2]))
			}
			close(stop)
			callers.Wait()
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
			b.ReportMetric(max(0, float64(heapAlloc())-float64(heap))/float64(n), "heap-B/id")
			d, err := l.Check(flushed.Key("7"), 0)
			require.NoError(b, err)
			require.InDelta(b, 19_000*(changes%2), d.Remaining, 100, "tokens come back meanwhile")
		})
	}
}
