package redislimit

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
)

// example is one of testdata/semantics of the root; boulder.yml there says what
// the fields of a step mean.
type example struct {
	Name   string
	Limits []struct {
		Burst, Count int64
		Period       time.Duration
	}
	Steps []struct {
		At, Every, Over time.Duration
		Repeat, Cost    *int64
		Allowed         int64
		Remaining       *int64
		RetryAfter      *time.Duration `yaml:"retry_after"`
		ResetAfter      *time.Duration `yaml:"reset_after"`
	}
}

// TestSemantics checks that both kinds of Decider answer as the sources do.
func TestSemantics(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testdata/semantics/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var examples []example
		require.NoError(t, yaml.Unmarshal(text, &examples))
		for _, e := range examples {
			t.Run(filepath.Base(file)+"/"+e.Name, func(t *testing.T) {
				t.Parallel()
				names, defaults := stint.Names{}, map[stint.Name]stint.Limit{}
				for i, l := range e.Limits {
					name := stint.Name(i + 1)
					names[name] = stint.NameSpec{Label: "limit" + string(rune('a'+i))}
					defaults[name] = stint.Limit{Burst: l.Burst, Count: l.Count, Period: l.Period}
				}
				limits, err := stint.NewLimits(names, defaults, nil)
				require.NoError(t, err)
				clock := newTestClock()
				s, prefix := commonServer(t)
				local, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: clock.now})
				require.NoError(t, err)
				defer local.Close()
				e.run(t, clock, local)
				clock = newTestClock()
				e.run(t, clock, s.limiter(t, limits, func(o *Options) { o.Prefix, o.Now = prefix, clock.now }))
			})
		}
	}
}

func (e *example) run(t *testing.T, clock *testClock, lim stint.Decider) {
	t.Helper()
	orOne := func(n *int64) int64 {
		if n == nil {
			return 1
		}
		return *n
	}
	begin := clock.now()
	for n, s := range e.Steps {
		allowed, repeat := int64(0), orOne(s.Repeat)
		var last stint.Decision
		for i := range repeat {
			at := s.At + s.Every*time.Duration(i)
			if s.Over > 0 {
				at = s.At + time.Duration(int64(s.Over)*i/(repeat-1))
			}
			clock.pass(begin.Add(at).Sub(clock.now()))
			reqs := make([]stint.Request, len(e.Limits))
			for j := range reqs {
				reqs[j] = stint.Request{Key: stint.Name(j + 1).Key("id"), Cost: orOne(s.Cost)}
			}
			var err error
			last, err = lim.SpendTogether(reqs, make([]stint.Decision, len(reqs)))
			require.NoError(t, err)
			if last.Allowed {
				allowed++
			}
		}
		remaining, reset := int64(math.MaxInt64), time.Duration(0)
		for j := range e.Limits {
			b, err := lim.Bucket(stint.Name(j + 1).Key("id"))
			require.NoError(t, err)
			remaining, reset = min(remaining, b.Remaining), max(reset, b.ResetAfter)
		}
		require.Equal(t, s.Allowed, allowed, "step %d: allowed", n+1)
		if s.Remaining != nil {
			require.Equal(t, *s.Remaining, remaining, "step %d: remaining", n+1)
		}
		if s.RetryAfter != nil {
			require.Equal(t, *s.RetryAfter, last.RetryAfter, "step %d: retry_after", n+1)
		}
		if s.ResetAfter != nil {
			require.Equal(t, *s.ResetAfter, reset, "step %d: reset_after", n+1)
		}
	}
}
