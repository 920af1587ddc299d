package redislimit

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// staged is a Client whose answers a test makes.
type staged struct {
	slow
	eval atomic.Pointer[func(ctx context.Context, text string, keys, args []string) (any, error)]
}

func (c *staged) Eval(ctx context.Context, _, text string, keys, args []string) (any, error) {
	return (*c.eval.Load())(ctx, text, keys, args)
}

// does says what Eval does from now on.
func (c *staged) does(f func(ctx context.Context, text string, keys, args []string) (any, error)) {
	c.eval.Store(&f)
}

// after waits, and returns the answer unless ctx ends before.
func after(ctx context.Context, d time.Duration, reply any, err error) (any, error) {
	select {
	case <-time.After(d):
		return reply, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// leaseSHA is the script of leases.
var leaseSHA = script.Leasing.SHA

// allows is the answer of the script to n spends of a call, or of one SpendAll.
func allows(n int) string {
	return "1700000000 0" + strings.Repeat(" 1 1700000000 0 0 0 0 0", n)
}

// A call has one Timeout for all that it waits for.
func TestTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	type timer func(func() error) error
	run := func(name string, limit stint.Limit, o Options, f func(*testing.T, *Limiter, *staged, timer)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := new(staged)
				c.does(func(_ context.Context, _ string, keys, _ []string) (any, error) { return allows(len(keys)), nil })
				o.Timeout, o.RepeatDenials = timeout, -1
				l := newOn(t, c, testLimits(t, limit), o)
				t.Cleanup(func() {
					c.does(func(context.Context, string, []string, []string) (any, error) { return nil, errCut })
					require.NoError(t, l.Close())
				})
				f(t, l, c, func(call func() error) error {
					begin := time.Now()
					err := call()
					if took := time.Since(begin); took > timeout {
						t.Errorf("it took %v: %v", took, err)
					}
					return err
				})
			})
		})
	}
	spend := func(l *Limiter) func() error {
		return func() error {
			_, err := l.Spend(perID.Key("a"), 1)
			return err
		}
	}

	run("keys of several slots", stint.PerHour(20), Options{}, func(t *testing.T, l *Limiter, c *staged, timed timer) {
		c.does(func(ctx context.Context, _ string, keys, _ []string) (any, error) {
			if len(keys) > 1 {
				return after(ctx, 40*time.Millisecond, nil, ServerError("CROSSSLOT Keys in request don't hash to the same slot"))
			}
			return after(ctx, 70*time.Millisecond, allows(1), nil)
		})
		err := timed(func() error {
			_, err := l.SpendAll(stint.Request{Key: perID.Key("a"), Cost: 1}, stint.Request{Key: perID.Key("b"), Cost: 1})
			return err
		})
		require.ErrorIs(t, err, ErrNoAnswer)
	})

	leased := leasedLimit(stint.PerMinute(10_000))
	run("a lease, and then a trip", leased, Options{}, func(t *testing.T, l *Limiter, c *staged, timed timer) {
		for range 2 { // then it is in demand
			require.NoError(t, timed(spend(l)))
		}
		c.does(func(ctx context.Context, text string, keys, _ []string) (any, error) {
			if text == leaseSHA {
				return after(ctx, 40*time.Millisecond, nil, ServerError("TRYAGAIN Multiple keys request during rehashing of slot"))
			}
			return after(ctx, 70*time.Millisecond, allows(len(keys)), nil)
		})
		require.ErrorIs(t, timed(spend(l)), ErrNoAnswer)
	})

	run("a hold, and the lease that goes back", leased, Options{}, func(t *testing.T, l *Limiter, c *staged, timed timer) {
		lease := []any{"1700000000000000000", "6000000000", "1700000006000000000", "0", ""} // 1,000 tokens
		for range 4 {
			c.does(func(_ context.Context, text string, keys, _ []string) (any, error) {
				if text == leaseSHA {
					return lease, nil
				}
				return allows(len(keys)), nil
			})
			require.NoError(t, timed(spend(l)))
		}
		synctest.Wait()
		require.Positive(t, l.inHand(perID.Key("a")))
		c.does(func(ctx context.Context, text string, keys, _ []string) (any, error) {
			if text == leaseSHA {
				return after(ctx, 70*time.Millisecond, lease, nil)
			}
			return after(ctx, 70*time.Millisecond, allows(1), nil)
		})
		require.NoError(t, timed(func() error { return errorOf(l.Hold(perID.Key("a"), time.Now().Add(time.Hour))) }))
	})
}
