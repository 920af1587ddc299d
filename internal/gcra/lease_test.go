package gcra

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLease: a lease covers the TAT, and is at most an eighth of τ ahead.
func FuzzLease(f *testing.F) {
	for _, tolerance := range []int64{0, 1, 15, 16, 17, 1e9, 10800e9, 100 * 3600e9, century - 1, century} {
		for _, tat := range []int64{0, 1, 1e9, 1_767_225_600e9, 1_800_000_000e9 + 1, EndOfTime - 1, EndOfTime, EndOfTime + 1, math.MaxInt64} {
			f.Add(tolerance, tat)
		}
	}
	f.Fuzz(func(t *testing.T, tolerance, tat int64) {
		tolerance, tat = int64(uint64(tolerance)%(century+1)), tat&math.MaxInt64
		lease := newLease(tolerance)
		end, next := lease.Of(tat)
		require.LessOrEqual(t, tat, end)
		require.LessOrEqual(t, end, next)
		require.LessOrEqual(t, next-tat, tolerance/8)
		if next > end {
			require.Zero(t, end%(next-end))
			require.Less(t, end-tat, next-end)
		}
	})
}
