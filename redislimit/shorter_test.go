package redislimit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// If limits get shorter, a bucket waits no longer than an empty one of the new
// limit, on this machine while the server is away, and at the server afterwards.
// Plain buckets keep their TATs.
func TestShorterLimits(t *testing.T) {
	t.Parallel()
	shorter := stint.PerSecond(10)
	for name, c := range map[string]struct {
		nodes                int
		before, while, plain bool // when the limits change
	}{
		"before the outage":           {nodes: 1, before: true},
		"before it, and two machines": {nodes: 2, before: true},
		"while away":                  {nodes: 1, while: true},
		"while away, three machines":  {nodes: 3, while: true},
		"plain, before the outage":    {nodes: 1, before: true, plain: true},
		"plain, while away":           {nodes: 1, while: true, plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, key := newTestClock(), perID.Key("a")
			opts := Options{Nodes: c.nodes, Now: clock.now, RepeatDenials: -1, Prefix: newPrefix(t)}
			if c.plain {
				opts.Prefix, opts.PlainKeys = "", true
				key = perID.Key(t.Name())
			}
			line := newLine()
			l := line.node(t, testLimits(t, stint.PerDay(10)), opts)
			if c.while {
				line.fail(errCut)
			}
			require.True(t, l.spend(t, key, int64(10/c.nodes)).Allowed)
			clock.pass(time.Minute)
			require.NoError(t, l.SetLimits(testLimits(t, shorter)))
			line.fail(errCut)
			empty := shorter.DividedBy(int64(c.nodes)).Tolerance()
			for _, where := range []string{"away", "at the server"} {
				d := l.check(t, key, 1)
				if c.plain {
					require.Greater(t, d.RetryAfter, 23*time.Hour, where)
				} else {
					require.LessOrEqual(t, d.RetryAfter, empty, where)
				}
				clock.pass(2 * empty)
				require.Equal(t, !c.plain, l.spend(t, key, 1).Allowed, where)
				if where == "away" {
					line.mend()
					l.comesBack(t)
				}
			}
		})
	}
}

// So it is for what an earlier process has spent while the server was away.
func TestShorterLimitsAfterRestart(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		opts, clock := filed(t, 1)
		line := newLine()
		l := line.node(t, testLimits(t, stint.PerDay(10)), opts)
		line.fail(errCut)
		l.spend(t, perID.Key("a"), 10)
		require.NoError(t, l.Close())
		clock.pass(time.Minute)
		if back {
			line.mend()
		}
		l = line.node(t, testLimits(t, stint.PerSecond(10)), opts)
		for range 2 {
			require.LessOrEqual(t, l.check(t, perID.Key("a"), 10).RetryAfter, time.Second)
			clock.pass(time.Second)
			require.EqualValues(t, 10, l.left(t, perID.Key("a")))
			line.mend()
			l.comesBack(t)
		}
		require.NoError(t, l.Close())
	}
}

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
