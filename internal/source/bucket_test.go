package source

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// TestState compares what the command computes from the TATs of a file with what
// the Limiter that wrote them says.
func TestState(t *testing.T) {
	const Requests stint.Name = 1
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, limit := range []stint.Limit{
		stint.EachDay(10, nil), stint.PerMinute(10), stint.EachYear(10, nil), stint.EachDay(10, tokyo).StartingAt(4 * time.Hour),
	} {
		limits, err := stint.NewLimits(stint.Names{Requests: {Label: "Requests", Limit: limit}})
		require.NoError(t, err)
		store := stint.NewMemStore()
		l, err := stint.New(store, limits, &stint.Options{Now: func() time.Time { return now }})
		require.NoError(t, err)
		d, err := l.Spend(Requests.Key("a"), 7)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		tat, err := store.Load(Requests.Key("a"))
		require.NoError(t, err)
		remaining, reset := state(limit, time.Unix(0, tat), now)
		require.Equal(t, d.Remaining, remaining, limit)
		require.Equal(t, d.ResetAfter, reset, limit)
		remaining, reset = state(limit, time.Time{}, now)
		require.EqualValues(t, 10, remaining, limit)
		require.Zero(t, reset, limit)
	}
	remaining, reset := state(stint.Unlimited, now, now)
	require.Zero(t, remaining)
	require.Zero(t, reset)
}
