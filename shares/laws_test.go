package shares_test

import (
	"cmp"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/sharestest"
	"github.com/stint-go/stint/internal/testlength"
)

var randomHistories = flag.Int("histories", 0, "random histories of TestLaws; a million take minutes")

// TestLaws checks the laws of docs/shares.md in random histories.
func TestLaws(t *testing.T) {
	t.Parallel()
	sharestest.Laws(t, cmp.Or(*randomHistories, testlength.Of(20_000, 1000)), true,
		func(limits *stint.Limits, clock *modeltest.Clock) (stint.Decider, func(*stint.Limits) error) {
			l, err := stint.New(stint.NewMemStore(), limits,
				&stint.Options{Now: clock.Now, FlushInterval: time.Hour, Durability: stint.Memory})
			require.NoError(t, err)
			return l, l.SetLimits
		})
}

func TestMutants(t *testing.T) { sharestest.Mutants(t) }
