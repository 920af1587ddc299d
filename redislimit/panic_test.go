package redislimit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// panicking is a Client whose library panics in one of the methods.
type panicking struct {
	slow
	in string
}

func (c *panicking) enter(method string) {
	if c.in == method {
		panic("panic in " + method)
	}
}

func (c *panicking) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	c.enter("Eval")
	return c.slow.Eval(ctx, command, script, keys, args)
}

func (c *panicking) EvalWait(ctx context.Context, command, script string, keys, args []string, _ int,
	_ time.Duration) (any, int, error) {
	c.enter("EvalWait")
	reply, err := c.slow.Eval(ctx, command, script, keys, args)
	return reply, 1, err
}

func (c *panicking) Do(ctx context.Context, args ...string) (any, error) {
	c.enter("Do")
	return c.slow.Do(ctx, args...)
}

func (c *panicking) IsCluster() bool {
	c.enter("IsCluster")
	return false
}

func (c *panicking) DoEach(ctx context.Context, args ...string) ([]any, error) {
	c.enter("DoEach")
	reply, err := c.slow.Do(ctx, args...)
	return []any{reply}, err
}

// A panic of the client library is an error of the call, and the program goes on.
func TestClientPanics(t *testing.T) {
	t.Parallel()
	for method, durability := range map[string]stint.Durability{
		"Eval": stint.Flushed, "EvalWait": stint.Synced, "Do": stint.Flushed, "DoEach": stint.Flushed, "IsCluster": stint.Flushed,
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			limit := stint.PerHour(20)
			limit.Durability = durability
			c := &panicking{in: method}
			l := newOn(t, c, testLimits(t, limit), Options{})
			_, err := l.Spend(perID.Key("a"), 1)
			switch method {
			case "EvalWait": // Open has not called it
				require.ErrorIs(t, err, ErrNoAnswer)
				require.ErrorContains(t, err, "the client library panicked: panic in EvalWait")
			case "IsCluster":
				require.NoError(t, err)
			default:
				require.ErrorIs(t, err, ErrAway)
			}
		})
	}
}
