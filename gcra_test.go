package stint

import (
	"go/parser"
	"go/token"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// walk is an example from one of the sources: limits, and requests that pass
// all of the limits or spend from none. boulder.yml says what the keys of a step
// mean.
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

// instant returns when request i comes. Rounding errors do not add up, so the
// last request is exactly at the end.
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
		for _, w := range loadWalks(t, filepath.Join("internal", "decidertest", "semantics", source+".yml")) {
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

// timeFor is exact, and rounds up.
func TestTimeFor(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	any := func() int64 { return rng.Int64() >> rng.IntN(63) }
	largest := 0
	for range 20_000 {
		ns, of, other := any(), rate{interval: 1 + any()>>1}, rate{interval: 1 + any()>>1}
		want := new(big.Int).Mul(big.NewInt(ns), big.NewInt(of.interval))
		want.Add(want, big.NewInt(other.interval-1)).Quo(want, big.NewInt(other.interval))
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
			largest++
		}
		requireInt(t, want, of.timeFor(ns, &other), "time")
	}
	require.Positive(t, largest)
}

// TestArithmeticImports: the arithmetic imports nothing that reads a clock, locks
// or stores.
func TestArithmeticImports(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "gcra.go", nil, parser.ImportsOnly)
	require.NoError(t, err)
	for _, spec := range file.Imports {
		require.Contains(t, []string{
			`"math/bits"`, `"github.com/stint-go/stint/internal/cache"`, `"github.com/stint-go/stint/internal/reciprocal"`,
		}, spec.Path.Value)
	}
}
