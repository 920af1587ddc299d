package redislimit

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A server that is so far away that Open's questions take longer than one Timeout
// together is not away, and its clock is compared.
func TestOpenFarAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &farAway{modelServer: newModelServer(70 * time.Millisecond)}
		l, err := New(c, testLimits(t, stint.PerHour(20)), &Options{Timeout: 100 * time.Millisecond})
		require.NoError(t, err)
		require.Zero(t, l.Stats().Outages)
		require.ErrorIs(t, l.Health(), ErrClock)
		require.NoError(t, l.Close())

		c.refuses = true
		_, err = New(c, testLimits(t, stint.PerHour(20)), &Options{Timeout: 100 * time.Millisecond})
		require.ErrorContains(t, err, "NOPERM")
		require.NotErrorIs(t, err, ErrAway)
	})
}

// farAway takes a round trip for every question. Its clock is an hour behind.
type farAway struct {
	*modelServer
	refuses bool // scripts
}

func (c *farAway) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	if c.refuses {
		return after(ctx, c.trip, nil, ServerError("NOPERM this user has no permissions to run the 'evalsha' command"))
	}
	return c.modelServer.Eval(ctx, command, text, keys, args)
}

func (c *farAway) Do(ctx context.Context, args ...string) (any, error) {
	reply, err := c.modelServer.Do(ctx, args...)
	if args[0] == "TIME" {
		reply = []any{strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10), "0"}
	}
	return after(ctx, c.trip, reply, err)
}
