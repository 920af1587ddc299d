package stint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWithinWindow holds the limit to its promise: no window has more than n.
func TestWithinWindow(t *testing.T) {
	newRateOf := func(t *testing.T, n, period int64) rate {
		l := WithinWindow(n, time.Duration(period))
		require.NoError(t, l.Validate())
		r, _, _ := newRate(l.Burst, l.Count, period)
		return r
	}
	t.Run("every history of small ones", func(t *testing.T) {
		const period, end = 6, 15
		for n := int64(1); n <= period; n++ {
			r := newRateOf(t, n, period)
			most := int64(0)
			for asked := range 1 << end { // a bit for each nanosecond
				tat, admitted := int64(1000), [end]int64{}
				for now := range int64(end) {
					if asked>>now&1 == 0 {
						continue
					}
					next, wait := r.spend(tat, 1000+now, 1)
					if wait == 0 {
						admitted[now] = 1
					}
					tat = next
				}
				sum := int64(0)
				for now := range admitted {
					if sum += admitted[now]; now >= period {
						sum -= admitted[now-period]
					}
					most = max(most, sum)
				}
			}
			if period%n == 0 {
				require.Equal(t, n, most, "reaches n")
			}
			require.LessOrEqual(t, most, n)
		}
	})
	t.Run("share in the long run", func(t *testing.T) {
		for n := int64(1); n < 10_000; n++ {
			share := float64(time.Hour) / float64(WithinWindow(n, time.Hour).Interval()) / float64(n)
			require.GreaterOrEqual(t, share, 0.98-1e-6, n)
			require.True(t, n >= 50 || share > 1-1e-6, n)
		}
		require.Equal(t, Limit{Burst: 1, Count: 1, Period: time.Minute}, WithinWindow(1, time.Minute))
		require.Equal(t, Limit{Burst: 101, Count: 4900, Period: time.Hour}, WithinWindow(5000, time.Hour))
	})
	for _, l := range []Limit{WithinWindow(0, time.Hour), WithinWindow(-100, time.Hour), WithinWindow(1, 0),
		WithinWindow(2000, time.Microsecond)} {
		require.Error(t, l.Validate())
	}
}
