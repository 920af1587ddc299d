package cache

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/table"
)

// FuzzLease: a lease covers the TAT, and is at most an eighth of τ ahead.
func FuzzLease(f *testing.F) {
	const century = math.MaxInt64 - EndOfTime
	for _, tolerance := range []int64{0, 1, 15, 16, 17, 1e9, 10800e9, 100 * 3600e9, century - 1, century} {
		for _, tat := range []int64{0, 1, 1e9, 1_767_225_600e9, 1_800_000_000e9 + 1, EndOfTime - 1, EndOfTime, EndOfTime + 1, math.MaxInt64} {
			f.Add(tolerance, tat)
		}
	}
	f.Fuzz(func(t *testing.T, tolerance, tat int64) {
		tolerance, tat = int64(uint64(tolerance)%(century+1)), tat&math.MaxInt64
		lease := NewLease(tolerance)
		end, next := lease.of(tat)
		require.LessOrEqual(t, tat, end)
		require.LessOrEqual(t, end, next)
		require.LessOrEqual(t, next-tat, tolerance/8)
		if next > end {
			require.Zero(t, end%(next-end))
			require.Less(t, end-tat, next-end)
		}
	})
}

// How many spends of one token each wait for a commit until a bucket is empty, if
// each commit has ended before the next spend: docs/choosing.md says it.
func TestSmallLeases(t *testing.T) {
	waits := func(burst, interval int64) (n int) {
		lease, tat, flags := NewLease(burst*interval), int64(1_800_000_000e9), uint64(0)
		for range burst {
			to := tat + interval
			stored, when := lease.renew(tat, to, flags)
			if when == needFirst {
				n++
			}
			if _, next := lease.of(to); when != needNone && stored == next && next > to {
				flags = table.Covered | table.Ahead
			}
			tat = to
		}
		return n
	}
	const calendar, rolling = 1, 60e9
	for burst := int64(1); burst <= 100; burst++ {
		got, ofQuota := waits(burst, rolling), waits(burst, calendar)
		switch {
		case burst <= 8:
			require.EqualValues(t, burst, got, burst)
		case burst < 16:
			require.Less(t, int64(got), burst, burst)
		default:
			require.LessOrEqual(t, got, 1, burst)
		}
		if burst < 16 {
			require.EqualValues(t, burst, ofQuota, burst)
		} else {
			require.LessOrEqual(t, ofQuota, 1, burst)
		}
	}
}
