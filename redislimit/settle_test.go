package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// An outage between the spend of a bound and its settlement, or during either:
// when the server is back, it has spent no less than what was used, up to the
// tokens that were short.
func TestSettleOverOutage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settledAway bool
		cost        int64
		short, left int64 // when the server is back
	}{
		"between, less":        {false, 2, 0, 8},
		"between, more":        {false, 8, 0, 2},
		"between, too many":    {false, 12, 2, 0},
		"settled away, more":   {true, 8, 0, 2},
		"settled away, as is":  {true, 5, 0, 5},
		"settled away, less":   {true, 2, 0, 5},
		"settled away, so far": {true, 11, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newTestClock()
			l, c := newAway(t, stint.PerHour(10), Options{Nodes: 1, Now: clock.now, RepeatDenials: -1})
			key := perID.Key("a")
			client := rules.Client{Limiter: l}
			bound, err := client.Begin(t.Context(), key, 5)
			require.NoError(t, err)
			c.fail(errCut)
			l.check(t, key, 1)
			require.True(t, l.isAway())
			if !tc.settledAway {
				c.mend()
				l.comesBack(t)
			}
			short, err := bound.Settle(tc.cost)
			require.NoError(t, err)
			require.Equal(t, tc.short, short)
			if tc.settledAway {
				c.mend()
				l.comesBack(t)
			}
			require.Eventually(t, func() bool { return l.left(t, key) == tc.left }, time.Minute, time.Millisecond,
				"%d are left, want %d", l.left(t, key), tc.left)
		})
	}
}
