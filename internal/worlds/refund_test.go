package worlds

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
)

// A caller spends a bound, and returns what it did not use after a while. The
// costs that it kept then obey the law of the limit, if each refund names the
// instant of its spend. Without that they do not.
func TestRefundSpent(t *testing.T) {
	t.Parallel()
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	clock := modeltest.NewClock()
	l := stint.PerMinute(1000)
	limits := LimitsOf(t, stint.Names{flushed: {Label: "id", Limit: l}}, nil)
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: clock.Now})
	require.NoError(t, err)
	defer lim.Close()
	broken := map[bool]int{}
	for _, known := range []bool{true, false} {
		rng := rand.New(rand.NewPCG(31, 20))
		for round := range rounds {
			key := flushed.Key(fmt.Sprint(known, round))
			var all []modeltest.Admission
			open := map[int]stint.Request{} // not settled, by index in all
			for range 24 {
				clock.Advance(time.Duration(rng.Int64N(int64(15 * time.Second))))
				if rng.IntN(3) > 0 {
					cost := 1 + rng.Int64N(l.Burst)
					if d, err := lim.Spend(key, cost); err == nil && d.Allowed {
						open[len(all)] = stint.Request{Key: key, Cost: cost, Spent: d.At()}
						all = append(all, modeltest.At(clock.Nanos(), cost))
					}
					continue
				}
				for i, req := range open {
					delete(open, i)
					req.Cost = rng.Int64N(req.Cost + 1)
					if !known {
						req.Spent = inFuture
					}
					_, err := lim.Refund(req)
					require.NoError(t, err)
					all[i].Cost -= req.Cost
					break
				}
			}
			if err := modeltest.Excess(l.Burst, l.Interval(), all); err != nil {
				broken[known]++
				require.False(t, known, "%v: %v", err, all)
			}
			require.NoError(t, lim.Reset(key))
		}
	}
	require.NotZero(t, broken[false], "refunds that name no instant break the law in some histories")
	t.Logf("without the instant, %d of %d histories break the law", broken[false], rounds)

	for name, tc := range map[string]struct {
		ago  time.Duration
		cost int64
		want int64 // remaining of 1000, after a spend of 1000
	}{
		"at once":               {0, 400, 400},
		"a half is back":        {12 * time.Second, 400, 400}, // 200 with time, and 200
		"all are back":          {30 * time.Second, 400, 500},
		"more than was spent":   {0, 1 << 62, 1000},
		"spent in the future":   {-time.Hour, 400, 400},
		"spent before 1970":     {200 * 365 * 24 * time.Hour, 400, 0},
		"spent after the end":   {-200 * 365 * 24 * time.Hour, 400, 400},
		"less than an interval": {time.Millisecond, 1, 1}, // a part of a token, and the rest
	} {
		t.Run(name, func(t *testing.T) {
			key := flushed.Key(name)
			now := lim.Now()
			_, err := lim.Spend(key, 1000)
			require.NoError(t, err)
			spent := now
			if tc.ago > 0 && tc.ago < time.Hour {
				clock.Advance(tc.ago)
			} else {
				spent = now.Add(-tc.ago)
			}
			d, err := lim.Refund(stint.Request{Key: key, Cost: tc.cost, Spent: spent})
			require.NoError(t, err)
			require.Equal(t, tc.want, d.Remaining)
		})
	}
}
