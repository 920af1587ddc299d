package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// takeOut leaves what a Check of cost 0 says.
func TestTakeOut(t *testing.T) {
	const name stint.Name = 1
	for _, limit := range []stint.Limit{
		stint.PerHour(5), stint.EachDay(5, time.UTC), stint.Unlimited, stint.PerHour(1),
	} {
		limits, err := stint.NewLimits(stint.Names{name: {Label: "a", Limit: limit}})
		require.NoError(t, err)
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
		require.NoError(t, err)
		for range 6 {
			want, err := lim.Check(name.Key("a"), 0)
			require.NoError(t, err)
			got, err := lim.Check(name.Key("a"), 1)
			require.NoError(t, err)
			if !got.Allowed {
				want = got
			}
			takeOut(&got, 1)
			require.Equal(t, want, got, limit)
			_, err = lim.Spend(name.Key("a"), 1)
			require.NoError(t, err)
		}
		require.NoError(t, lim.Close())
	}
}
