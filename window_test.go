package stint

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/gcra"
)

// TestWithinWindow holds the limit to its promise: no window has more than n.
func TestWithinWindow(t *testing.T) {
	newRateOf := func(t *testing.T, n, period int64) gcra.Rate {
		l := WithinWindow(n, time.Duration(period))
		require.NoError(t, l.Validate())
		r, _, _ := gcra.New(l.Burst, l.Count, period)
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
					next, wait := r.Spend(tat, 1000+now, 1)
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
	t.Run("large ones", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(3, 4))
		for range 300 {
			n := 1 + rnd.Int64N(1<<rnd.IntN(13))
			period := n * (1 + rnd.Int64N(1e9))
			r := newRateOf(t, n, period)
			type spent struct{ at, cost int64 }
			var inWindow []spent
			now, tat, sum := int64(1e15), int64(0), int64(0)
			for range 3 * n {
				cost := 1 + rnd.Int64N(r.Burst)
				next, wait := r.Spend(tat, now, cost)
				if tat = next; wait == 0 {
					inWindow, sum = append(inWindow, spent{now, cost}), sum+cost
				}
				for inWindow[0].at <= now-period {
					sum -= inWindow[0].cost
					inWindow = inWindow[1:]
				}
				require.LessOrEqual(t, sum, n, "%d in %d", n, period)
				switch rnd.IntN(20) {
				case 0:
					now += rnd.Int64N(period)
				case 1:
				default:
					now += max(wait, 1) // as soon as it can be admitted
				}
			}
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
