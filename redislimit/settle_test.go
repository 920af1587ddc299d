package redislimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// An outage between the spend of a bound and its settlement, or during either: what
// is settled goes to the bucket that decides then.
func TestSettleOverOutage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		begunAway, settledAway bool
		cost                   int64
		short, there, here     int64 // what is left
	}{
		"begun away, less":     {true, false, 2, 0, 10, 5},
		"begun away, more":     {true, false, 8, 0, 7, 5},
		"begun away, too many": {true, false, 18, 3, 0, 5},
		"settled away, more":   {false, true, 8, 0, 5, 7},
		"settled away, as is":  {false, true, 5, 0, 5, 10},
		"settled away, less":   {false, true, 2, 0, 5, 10},
		"both away, less":      {true, true, 2, 0, 10, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newTestClock()
			mine := own(t, stint.PerHour(10), clock.now)
			l, c := newAway(t, stint.PerHour(10), Options{Now: clock.now, RepeatDenials: -1, Away: mine})
			key := perID.Key("a")
			turn := func(away bool) {
				if c.mend(); away {
					c.fail(errCut)
					l.check(t, key, 1)
				} else {
					l.comesBack(t)
				}
				require.Equal(t, away, l.isAway())
			}
			turn(tc.begunAway)
			client := rules.Client{Limiter: l}
			bound, err := client.Begin(t.Context(), key, 5)
			require.NoError(t, err)
			turn(tc.settledAway)
			short, err := bound.Settle(tc.cost)
			require.NoError(t, err)
			require.Equal(t, tc.short, short)
			turn(false)
			require.Equal(t, tc.there, l.left(t, key))
			require.NoError(t, err)
			d, err := mine.Check(key, 0)
			require.NoError(t, err)
			require.Equal(t, tc.here, d.Remaining)
		})
	}
}
