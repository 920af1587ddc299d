package share

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// floors is some floors, and their sum.
type floors struct {
	Sum
	bursts, intervals []int64
}

func (f *floors) add(burst, interval int64) {
	f.Add(1, burst, interval)
	f.bursts, f.intervals = append(f.bursts, burst), append(f.intervals, interval)
}

func (f *floors) remove(i int) {
	f.Add(-1, f.bursts[i], f.intervals[i])
	f.bursts, f.intervals = slices.Delete(f.bursts, i, i+1), slices.Delete(f.intervals, i, i+1)
}

// A Sum adds up the floors in it, in whatever order floors were added and
// removed.
func TestSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 500 {
		var f floors
		for range 1 + rng.IntN(12) {
			f.add(1+rng.Int64N(1<<rng.IntN(62)), 1+rng.Int64N(1<<rng.IntN(62)))
			if rng.IntN(3) == 0 && len(f.bursts) > 1 {
				f.remove(rng.IntN(len(f.bursts)))
			}
		}
		burst, exact := new(big.Int), new(big.Rat)
		for i := range f.bursts {
			burst.Add(burst, big.NewInt(f.bursts[i]))
			exact.Add(exact, big.NewRat(1, f.intervals[i]))
		}
		if burst.IsInt64() {
			require.Equal(t, burst.Int64(), f.Burst())
		} else {
			require.EqualValues(t, int64(math.MaxInt64), f.Burst())
		}
		require.False(t, f.FitsBurst(f.Burst()))
		// The interval at which it just fits, and its neighbours.
		inverse := new(big.Rat).Inv(exact)
		just := new(big.Int).Quo(inverse.Num(), inverse.Denom()).Int64()
		for _, interval := range []int64{just - 1, just, just + 1} {
			if interval > 0 {
				want := exact.Cmp(big.NewRat(1, interval)) <= 0
				require.Equal(t, want, f.FitsRate(interval, slices.Values(f.intervals)), "%v of %d", f.intervals, interval)
			}
		}
	}
}

// Floors that regain exactly as much as the total fit. If one interval is a
// nanosecond shorter, they do not.
func TestSumOfAll(t *testing.T) {
	for _, whole := range [][]int64{{1}, {2, 2}, {3, 3, 3}, {2, 3, 6}, {3e9, 3e9, 3e9}, {2, 4, 8, 16, 32, 32}} {
		var f, more floors
		for i, interval := range whole {
			f.add(1, 7*interval)
			more.add(1, 7*interval-int64(btoi(i == 0)))
		}
		total := int64(7)
		if whole[0] == 3e9 {
			total = 7e9
		}
		require.True(t, f.FitsRate(total, slices.Values(f.intervals)))
		require.False(t, more.FitsRate(total, slices.Values(more.intervals)))
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestWaits(t *testing.T) {
	for _, c := range []struct {
		w     Waits
		retry int64
		floor bool // the decision shows the floor, which has 9 tokens; the total can lend 10
	}{
		{Waits{0, 0, 0, 0}, 0, false},
		{Waits{0, 0, 0, 5}, 0, false},
		{Waits{0, 7, 0, 5}, 5, false},
		{Waits{0, 3, 0, 5}, 3, true},
		{Waits{9, 3, 0, 5}, 9, true},
		{Waits{0, Never, 0, 5}, 5, false},
		{Waits{0, 0, 2, 5}, 2, false}, // an own request waits for the total, so that is shown
		{Waits{0, Never, 0, Never}, Never, false},
	} {
		require.Equal(t, c.retry, c.w.RetryAfter(), "%+v", c.w)
		require.Equal(t, c.floor, c.w.ShowsFloor(9, 10), "%+v", c.w)
	}
	require.True(t, (&Waits{}).ShowsFloor(11, 10), "both pay, and the floor has more left")
	require.True(t, (&Waits{Floor: 7}).ShowsFloor(11, 10), "the total lends, and the floor has more left")
}
