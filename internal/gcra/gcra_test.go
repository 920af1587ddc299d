package gcra

import (
	"go/parser"
	"go/token"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/modeltest"
)

// timeFor is exact, and rounds up.
func TestTimeFor(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	any := func() int64 { return rng.Int64() >> rng.IntN(63) }
	largest := 0
	for range 20_000 {
		ns, of, other := any(), Rate{Interval: 1 + any()>>1}, Rate{Interval: 1 + any()>>1}
		want := new(big.Int).Mul(big.NewInt(ns), big.NewInt(of.Interval))
		want.Add(want, big.NewInt(other.Interval-1)).Quo(want, big.NewInt(other.Interval))
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
			largest++
		}
		requireInt(t, want, of.timeFor(ns, &other), "time")
	}
	require.Positive(t, largest)
}

// The arithmetic imports nothing that reads a clock, locks or stores.
func TestArithmeticImports(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "gcra.go", nil, parser.ImportsOnly)
	require.NoError(t, err)
	for _, spec := range file.Imports {
		require.Contains(t, []string{`"math/bits"`, `"github.com/stint-go/stint/internal/reciprocal"`}, spec.Path.Value)
	}
}

const century = 36525 * 24 * 60 * 60 * 1_000_000_000

// limitSeeds are limits at and around the corners of what is accepted.
var limitSeeds = [][3]int64{
	{20, 20, 1e9},
	{300, 600, 10800e9},
	{1, 300, 1e9}, // T rounded up
	{7, 3, 10},
	{1, 1, 1},
	{century, 1, 1},
	{century, math.MaxInt64, math.MaxInt64},
	{1, 1, century},
	{1, 3, math.MaxInt64},
	{2, 2, century - 1},
	{century / 2, 1, 2},
	{1 << 31, 1, 1 << 30},
}

var instantSeeds = []int64{
	math.MinInt64, -1, 0, 1, 1_767_225_600e9, 1_767_225_600e9 + 1, EndOfTime - 1, EndOfTime, EndOfTime + 1,
	math.MaxInt64,
}

// fold returns n, or, if it is outside of [low, high], a number inside.
func fold(n, low, high int64) int64 {
	if low <= n && n <= high {
		return n
	}
	return low + int64(uint64(n)%(uint64(high)-uint64(low)+1))
}

// foldRate makes a valid limit of any three numbers.
func foldRate(t *testing.T, burst, count, period int64) (r Rate, b, c, p int64) {
	p = fold(period, 1, math.MaxInt64)
	c = fold(count, (p-1)/century+1, p)
	b = fold(burst, 1, century/((p-1)/c+1))
	r, field, want := NewRate(b, c, p)
	require.Empty(t, field, "%d per %d, burst %d: %s", c, p, b, want)
	return r, b, c, p
}

func bound(now int64) int64 { return min(max(now, 0), math.MaxInt64-century) }

func sum(a, b int64) *big.Int { return new(big.Int).Add(big.NewInt(a), big.NewInt(b)) }

func requireInt(t *testing.T, want *big.Int, got int64, what string) {
	t.Helper()
	require.Zero(t, want.Cmp(big.NewInt(got)), "%s: want %v, got %d", what, want, got)
}

// addStates seeds f with each limit in several states and with several costs.
func addStates(f *testing.F) {
	for i, l := range limitSeeds {
		for j, now := range instantSeeds {
			for _, ahead := range []int64{-1, 0, 1, 50e6, 1e9 - 50e6, 1e9 - 50e6 + 1, 1e9, century} {
				f.Add(l[0], l[1], l[2], now+ahead, now, int64(i+j)%3)
			}
			for _, tat := range []int64{math.MinInt64, 0, math.MaxInt64} {
				f.Add(l[0], l[1], l[2], tat, now, l[0])
			}
		}
	}
}

// FuzzRate accepts a limit if and only if every number of it is in range. Then
// its parts are exact.
func FuzzRate(f *testing.F) {
	for _, l := range limitSeeds {
		f.Add(l[0], l[1], l[2], l[0])
		f.Add(l[0]+1, l[1], l[2], l[0]/2)
		f.Add(l[0], l[1]+1, l[2], int64(1))
		f.Add(l[0], l[1], l[2]+1, int64(0))
	}
	for _, n := range []int64{math.MinInt64, -1, 0, math.MaxInt64} {
		f.Add(n, int64(1), int64(1), n)
		f.Add(int64(1), n, int64(1), n)
		f.Add(int64(1), int64(1), n, n)
		f.Add(n, n, n, n)
	}
	f.Fuzz(func(t *testing.T, burst, count, period, free int64) {
		r, field, want := NewRate(burst, count, period)
		bad, interval := "", new(big.Int)
		switch {
		case burst < 1:
			bad = "burst"
		case period < 1:
			bad = "period"
		case count < 1 || count > period:
			bad = "count"
		default:
			interval.Sub(sum(period, count), big.NewInt(1)).Div(interval, big.NewInt(count))
			if new(big.Int).Mul(interval, big.NewInt(burst)).Cmp(big.NewInt(century)) > 0 {
				bad = "burst"
			}
		}
		require.Equal(t, bad, field)
		require.Equal(t, bad == "", want == "")
		if bad != "" {
			require.Zero(t, r)
			return
		}
		require.Equal(t, burst, r.Burst)
		requireInt(t, interval, r.Interval, "T")
		requireInt(t, interval.Mul(interval, big.NewInt(burst)), r.Tolerance, "τ")

		// remaining divides by multiplication, which is hardest beside whole tokens.
		free = fold(free, 0, r.Tolerance)
		whole := free / r.Interval * r.Interval
		for _, n := range []int64{free, whole - 1, whole, whole + 1, whole + r.Interval - 1, r.Tolerance - 1, r.Tolerance} {
			if n >= 0 && n <= r.Tolerance {
				require.Equal(t, n/r.Interval, r.Remaining(r.Tolerance-n, 0), "%d ÷ %d", n, r.Interval)
			}
		}
	})
}

// keeping holds a spend that must leave some tokens to one that takes these, too.
func keeping(t *testing.T, r *Rate, tat, now, cost, leave int64) {
	_, whole := r.Spend(tat, now, cost+leave, 0)
	next, wait := r.Spend(tat, now, cost, leave)
	require.Equal(t, whole, wait)
	if wait == 0 {
		part, _ := r.Spend(tat, now, cost, 0)
		require.Equal(t, part, next)
		require.GreaterOrEqual(t, r.Remaining(next, now), leave)
	} else {
		require.Equal(t, tat, next, "a denial changes nothing")
	}
}

// FuzzLaws holds single steps to the laws of the arithmetic, from any state.
// FuzzHistory compares whole histories to a model.
func FuzzLaws(f *testing.F) {
	addStates(f)
	f.Fuzz(func(t *testing.T, burst, count, period, tat, now, cost int64) {
		r, burst, _, _ := foldRate(t, burst, count, period)
		leave := fold(cost>>7, 0, burst)
		cost = fold(cost, 0, burst-leave)
		keeping(t, &r, tat, now, cost, leave)
		spent, retryAfter := r.Spend(tat, now, cost, 0)
		place, delay, ok := r.Reserve(tat, now, cost)
		clamped := r.Clamp(tat, now)
		now = bound(now)
		after := sum(max(now, tat), cost*r.Interval)

		// RetryAfter is exact: a nanosecond earlier is too early. What costs nothing
		// passes at any time.
		if cost == 0 || after.Cmp(sum(now, r.Tolerance)) <= 0 {
			require.Zero(t, retryAfter)
			requireInt(t, after, spent, "TAT")
			require.Equal(t, max(now, tat), r.Refund(spent, now, cost), "a refund undoes a spend")
		} else {
			require.Equal(t, tat, spent, "a denial changes nothing")
			requireInt(t, new(big.Int).Sub(after, sum(now, r.Tolerance)), retryAfter, "RetryAfter")
			if retryAfter <= EndOfTime-now {
				_, left := r.Spend(tat, now+retryAfter, cost, 0)
				require.Zero(t, left)
				_, left = r.Spend(tat, now+retryAfter-1, cost, 0)
				require.Equal(t, int64(1), left)
			}
		}

		// A place in the queue is the spend that is allowed when its turn comes.
		if cost > 0 {
			require.Equal(t, retryAfter, delay)
		}
		require.Equal(t, after.IsInt64(), ok)
		if !ok {
			require.Equal(t, tat, place)
		} else {
			requireInt(t, after, place, "TAT")
			if delay <= EndOfTime-now {
				spent, retryAfter = r.Spend(tat, now+delay, cost, 0)
				require.Equal(t, place, spent)
				require.Zero(t, retryAfter)
			}
			_, behind, _ := r.Reserve(place, now, 0)
			require.Equal(t, delay, behind, "the next one does not go first")
			require.Equal(t, max(now, tat), r.Refund(place, now, cost), "leaving the queue")
		}

		// A refund never brings more than a full bucket.
		given := r.Refund(tat, now, fold(tat, 0, math.MaxInt64))
		require.True(t, given == tat || given >= now && given < tat)
		require.LessOrEqual(t, r.Remaining(tat, now), r.Remaining(given, now))

		// After the clamp no wait is longer than that at an empty bucket.
		require.Equal(t, clamped, r.Clamp(clamped, now))
		require.LessOrEqual(t, resetAfter(clamped, now), r.Tolerance)
		if resetAfter(tat, now) <= r.Tolerance {
			require.Equal(t, tat, clamped)
		} else {
			requireInt(t, sum(now, r.Tolerance), clamped, "TAT")
		}
		n := r.Remaining(tat, now)
		require.True(t, 0 <= n && n <= burst, "remaining %d of %d", n, burst)
		require.Equal(t, r.Remaining(clamped, now), n)
	})
}

// part returns n·b/255.
func part(n int64, b byte) int64 { return n/255*int64(b) + n%255*int64(b)/255 }

// add returns a + b, or the end of the int64s on that side.
func add(a, b int64) int64 {
	switch s := a + b; {
	case a > 0 && b > 0 && s < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && s >= 0:
		return math.MinInt64
	default:
		return s
	}
}

// step returns the time after a step of a history: ahead or back, by
// nanoseconds, tokens or burst, or one of the seeds.
func step(r Rate, now int64, kind, size byte) int64 {
	switch kind % 8 {
	case 0:
		return now
	case 1:
		return add(now, int64(size))
	case 2:
		return add(now, part(r.Interval, size))
	case 3:
		return add(now, min(r.Tolerance, int64(size)*min(r.Interval, century/255)))
	case 4:
		return add(now, part(r.Tolerance, size))
	case 5:
		return add(now, -int64(size))
	case 6:
		return add(now, -part(r.Tolerance, size))
	}
	return instantSeeds[int(size)%len(instantSeeds)]
}

// FuzzHistory compares every decision of a history to a model in rationals.
func FuzzHistory(f *testing.F) {
	spree := []byte{
		0x00, 0, 1, 0x00, 0, 1, 0x01, 5, 255, 0x12, 255, 1, 0x22, 254, 1, 0x34, 255, 0, 0x0a, 0, 3, 0x0c, 0, 255, 0x0c, 0,
		255,
		0x2d, 1, 7, 0x09, 1, 255, 0x0e, 0, 0, 0x34, 90, 2, 0x15, 9, 1, 0x46, 100, 2, 0x0f, 0, 0, 0x07, 1, 255, 0x7f, 9, 0,
	}
	greedy := []byte{0x00, 0, 255} // all there is, then each token as it comes back
	for range 20 {
		greedy = append(greedy, 0x20, 255, 2)
	}
	extremes := []byte{
		0x70, 9, 0, 0x70, 8, 0, 0x70, 9, 0, 0x7c, 9, 0, 0x70, 0, 0, 0x7a, 7, 0, 0x70, 2, 0, 0x7e, 1, 0, 0x70, 6, 0, 0x7c,
		7, 0,
		0x7c, 7, 0, 0x7c, 7, 0, 0x7c, 7, 0, 0x70, 7, 0,
	}
	for _, l := range limitSeeds {
		for _, now := range instantSeeds {
			f.Add(l[0], l[1], l[2], now, spree)
			f.Add(l[0], l[1], l[2], now, extremes)
			f.Add(l[0], l[1], l[2], now, greedy)
		}
	}
	f.Fuzz(func(t *testing.T, burst, count, period, now int64, script []byte) {
		r, burst, count, period := foldRate(t, burst, count, period)
		m := modeltest.NewTokens(burst, count, period)
		tat := int64(0)
		for n := 0; len(script) >= 3 && n < 48; n, script = n+1, script[3:] {
			now = step(r, now, script[0]>>4, script[1])
			cost := min(int64(script[2]/2), burst)
			if script[2]%2 == 1 {
				cost = part(burst, script[2])
			}
			switch op := script[0] % 16; {
			case op < 9:
				leave := int64(0)
				if op >= 6 {
					leave = (burst - cost) / int64(op)
				}
				next, retryAfter := r.Spend(tat, now, cost, leave)
				require.Equal(t, m.Spend(now, cost, leave), retryAfter, "spend %d at %d, and leave %d", cost, now, leave)
				tat = next
			case op < 12:
				tat = r.Refund(tat, now, cost)
				m.Refund(now, cost)
			case op < 14:
				next, delay, ok := r.Reserve(tat, now, cost)
				wantDelay, wantOK := m.Reserve(now, cost)
				require.Equal(t, wantOK, ok, "reserve %d at %d", cost, now)
				require.Equal(t, wantDelay, delay, "reserve %d at %d", cost, now)
				tat = next
			case op == 14:
				tat = r.Clamp(tat, now)
				m.Clamp(now)
			}
			require.Equal(t, m.Remaining(now), r.Remaining(tat, now), "remaining at %d", now)
			require.Equal(t, m.ResetAfter(now), resetAfter(tat, now), "resetAfter at %d", now)
		}
	})
}
