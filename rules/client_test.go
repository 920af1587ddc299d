package rules

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// However many buckets refuse, a Client remembers a bounded number.
func TestRefusals(t *testing.T) {
	c := new(Client)
	now := time.Now()
	for i := range maxRefusals + 1000 {
		c.backOff(ofA.Key(fmt.Sprint(i)), now, now, time.Hour)
	}
	require.Len(t, c.refusals, maxRefusals)

	// It forgets none before there are so many.
	c, now = new(Client), now.Add(3*time.Hour)
	begun, next := now, make([]time.Time, 1500)
	asked := make([]int, len(next))
	for ; now.Before(begun.Add(66 * time.Second)); now = now.Add(time.Second) {
		for i := range next {
			if !now.Before(next[i]) {
				next[i] = now.Add(c.backOff(ofA.Key(fmt.Sprint(i)), now, now, time.Hour))
				asked[i]++
			}
		}
	}
	require.Equal(t, slices.Repeat([]int{7}, len(next)), asked, "after 0, 1, 3, 7, 15, 31 and 63 s")
}

// cancelling is a Decider whose context ends during a commit.
type cancelling struct {
	stint.Decider
	cancel context.CancelFunc
}

func (c cancelling) Wait(ctx context.Context, req stint.Request) (stint.Decision, error) {
	defer c.cancel()
	return c.Decider.Wait(ctx, req)
}

func (c cancelling) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	defer c.cancel()
	return c.Decider.Do(ctx, reqs, ds)
}

// A request that was not sent gets its tokens back. None of them came back while
// it waited for its turn.
func TestTurnRefund(t *testing.T) {
	for name, tc := range map[string]struct{ wait, cancelled bool }{
		"sent in vain": {true, false}, "cancelled in its commit": {false, true}, "cancelled after its turn": {true, true},
	} {
		for _, limit := range []stint.Limit{stint.PerSecond(1), stint.EachHour(1, time.UTC)} {
			synctest.Test(t, func(t *testing.T) {
				limits, err := stint.NewLimits(stint.Names{ofA: {Label: "a", Limit: limit}})
				require.NoError(t, err)
				// Without a flush each second, because the clock of the bubble goes on for
				// an hour.
				lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{FlushInterval: 24 * time.Hour})
				require.NoError(t, err)
				defer lim.Close()
				c, ctx := &Client{Limiter: lim, Wait: tc.wait}, t.Context()
				if tc.wait {
					lim.Spend(ofA.Key("x"), 1)
				}
				if tc.cancelled {
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					c.Limiter = cancelling{lim, cancel}
				}
				turn, err := c.Begin(ctx, ofA.Key("x"), 1)
				if tc.cancelled {
					require.ErrorIs(t, err, context.Canceled)
				} else {
					require.NoError(t, err)
					require.NoError(t, turn.Refund())
				}
				require.EqualValues(t, 1, left(t, lim, ofA.Key("x")), "%v: %s", limit, name)
			})
		}
	}
}

// A Turn returns its tokens once. If a handler and a deferred call both settled it, the
// bucket would gain tokens that were never spent.
func TestTurnSettlesOnce(t *testing.T) {
	for name, second := range map[string]func(*Turn) error{
		"Settle": func(turn *Turn) error { _, err := turn.Settle(1); return err },
		"Refund": (*Turn).Refund,
	} {
		lim := newLimiter(t)
		c := &Client{Limiter: lim}
		_, err := lim.Spend(ofA.Key("x"), 1)
		require.NoError(t, err)
		turn, err := c.Begin(t.Context(), ofA.Key("x"), 2)
		require.NoError(t, err)
		_, err = turn.Settle(1)
		require.NoError(t, err)
		require.ErrorIs(t, second(turn), ErrSettled, name)
		b, err := lim.Bucket(ofA.Key("x"))
		require.NoError(t, err)
		require.EqualValues(t, 2, b.Limit.Burst-b.Remaining, name)
	}
}
