package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A request with UpTo and a small Limit of its own sees how empty the bucket is by
// the configured limit.
func TestUpToWithLimitSees(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l := newLimiter(t, stint.PerHour(10), func(o *Options) { o.Now, o.RepeatDenials = clock.now, -1 })
	key := perID.Key("a")
	l.spend(t, key, 10)
	for range 2 {
		d := l.spendAll(t, stint.Request{Key: key, Cost: 1, Limit: stint.PerSecond(1), Mode: stint.UpTo})
		require.Zero(t, d.Taken)
		require.Greater(t, d.RetryAfter, 59*time.Minute)
		clock.pass(time.Second)
	}
	require.False(t, l.spend(t, key, 1).Allowed)
}
