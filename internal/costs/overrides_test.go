package costs

import (
	"fmt"
	"runtime"
	"testing"

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

// TestOverridesHeap holds an override to 250 bytes, its id included.
func TestOverridesHeap(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const n = 50_000
	before := heap()
	limits := millionLimits(t, n)
	require.Less(t, (heap()-before)/n, uint64(250))
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
