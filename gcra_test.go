package stint

import (
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// walk is an example of one of the sources: limits that a request has to pass,
// all of them or none, and requests. testdata/semantics/boulder.yml says what
// the keys of a step mean.
type walk struct {
	Name   string
	Limits []struct {
		Burst, Count int64
		Period       time.Duration
	}
	Steps []walkStep
}

type walkStep struct {
	At          time.Duration
	Repeat      *int64
	Every, Over time.Duration
	Cost        *int64

	Allowed    *int64
	Remaining  *int64
	RetryAfter *time.Duration `yaml:"retry_after"`
	ResetAfter *time.Duration `yaml:"reset_after"`
}

func (s walkStep) repeat() int64 { return orOne(s.Repeat) }

// instant returns when request i comes. Rounding does not add up, so the last
// one is at the end.
func (s walkStep) instant(i int64) time.Duration {
	if s.Over > 0 {
		return s.At + time.Duration(int64(s.Over)*i/(s.repeat()-1))
	}
	return s.At + s.Every*time.Duration(i)
}

func orOne(n *int64) int64 {
	if n == nil {
		return 1
	}
	return *n
}

func loadWalks(t *testing.T, file string) (walks []walk) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(&walks))
	return walks
}

func TestSemantics(t *testing.T) {
	for _, source := range []string{
		"boulder", "cheat_sheet", "flux", "token_bucket", "leaky_bucket", "dual_leaky_bucket",
	} {
		for _, w := range loadWalks(t, filepath.Join("testdata", "semantics", source+".yml")) {
			t.Run(source+"/"+w.Name, func(t *testing.T) { runWalk(t, w) })
		}
	}
}

func runWalk(t *testing.T, w walk) {
	require.NotEmpty(t, w.Limits)
	require.NotEmpty(t, w.Steps)
	const t0 = 1_767_225_600 * time.Second
	rates, tats := make([]rate, len(w.Limits)), make([]int64, len(w.Limits))
	for i, l := range w.Limits {
		r, field, want := newRate(l.Burst, l.Count, int64(l.Period))
		require.Empty(t, field, want)
		rates[i] = r
	}
	last := time.Duration(0)
	for n, s := range w.Steps {
		require.LessOrEqual(t, last, s.At, "step %d comes before the one above it", n+1)
		require.NotNil(t, s.Allowed, "step %d does not say how many are allowed", n+1)
		allowed, remaining, retryAfter, reset := int64(0), int64(0), time.Duration(0), time.Duration(0)
		for i := range s.repeat() {
			last = s.instant(i)
			now := int64(t0 + last)
			next := make([]int64, len(rates))
			retryAfter = 0
			for j := range rates {
				tat, retry := rates[j].spend(tats[j], now, orOne(s.Cost))
				next[j], retryAfter = tat, max(retryAfter, time.Duration(retry))
			}
			if retryAfter == 0 {
				tats, allowed = next, allowed+1
			}
			remaining, reset = math.MaxInt64, 0
			for j := range rates {
				remaining = min(remaining, rates[j].remaining(tats[j], now))
				reset = max(reset, time.Duration(resetAfter(tats[j], now)))
			}
		}
		require.Equal(t, *s.Allowed, allowed, "step %d: allowed", n+1)
		if s.Remaining != nil {
			require.Equal(t, *s.Remaining, remaining, "step %d: remaining", n+1)
		}
		if s.RetryAfter != nil {
			require.Equal(t, *s.RetryAfter, retryAfter, "step %d: retry_after", n+1)
		}
		if s.ResetAfter != nil {
			require.Equal(t, *s.ResetAfter, reset, "step %d: reset_after", n+1)
		}
	}
}

// TestArithmeticImportsOnlyBits: it reads no clock, and locks and stores nothing.
func TestArithmeticImportsOnlyBits(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "gcra.go", nil, parser.ImportsOnly)
	require.NoError(t, err)
	require.Len(t, file.Imports, 1)
	require.Equal(t, `"math/bits"`, file.Imports[0].Path.Value)
}

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
				cost := 1 + rnd.Int64N(r.burst)
				next, wait := r.spend(tat, now, cost)
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
					now += max(wait, 1) // as soon as it can be
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
