package redislimit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// timeClient calls a function before it gives the answer to TIME.
type timeClient struct {
	*rueidisClient
	told func()
}

func (c *timeClient) Do(ctx context.Context, args ...string) (any, error) {
	reply, err := c.rueidisClient.Do(ctx, args...)
	if told := c.told; args[0] == "TIME" && told != nil {
		c.told = nil
		told()
	}
	return reply, err
}

// A bucket that is made while SetLimits asks for the server's time, which buckets
// made before are compared with, waits no longer than an empty one either.
func TestShorterLimitsMeanwhile(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	c := &timeClient{rueidisClient: clientAt(t, s.url, 20*time.Second)}
	l := newOn(t, c, testLimits(t, stint.PerDay(10)), Options{RepeatDenials: -1, Prefix: prefix})
	key, shorter := perID.Key("a"), stint.PerMinute(10)
	c.told = func() {
		require.True(t, l.spend(t, key, 10).Allowed)
	}
	require.NoError(t, l.SetLimits(testLimits(t, shorter)))
	require.Nil(t, c.told)
	b, err := l.Bucket(key)
	require.NoError(t, err)
	require.Zero(t, b.Remaining)
	require.LessOrEqual(t, b.ResetAfter, shorter.Tolerance())
}
