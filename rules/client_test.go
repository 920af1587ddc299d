package rules

import (
	"context"
	"fmt"
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
	for i := range 100_000 { // two sweeps find too many
		now = now.Add(time.Millisecond)
		c.backOff(ofA.Key(fmt.Sprint("first ", i)), now, now, time.Hour)
	}
	require.LessOrEqual(t, len(c.refusals), maxRefusals)
	now = now.Add(3 * time.Hour)
	for i := range maxRefusals + 1 {
		c.backOff(ofA.Key(fmt.Sprint(i%900)), now, now, time.Hour)
	}
	for i := range maxRefusals {
		c.backOff(ofA.Key(fmt.Sprint(i)), now, now, time.Hour)
	}
	require.LessOrEqual(t, len(c.refusals), maxRefusals)
}

// cancelling is a Decider whose context ends during the commit of a Wait.
type cancelling struct {
	stint.Decider
	cancel context.CancelFunc
}

func (c cancelling) Wait(ctx context.Context, req stint.Request) (time.Time, error) {
	defer c.cancel()
	return c.Decider.Wait(ctx, req)
}

// A request that waited for its turn and was not sent gets its tokens back: none
// of them came back while it waited.
func TestTurnRefund(t *testing.T) {
	for _, limit := range []stint.Limit{stint.PerSecond(1), stint.EachHour(1, time.UTC)} {
		for _, cancelled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				limits, err := stint.NewLimits(stint.Names{ofA: {Label: "a", Limit: limit}})
				require.NoError(t, err)
				// Without a flush each second, because the clock of the bubble goes on for
				// an hour.
				lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{FlushInterval: 24 * time.Hour})
				require.NoError(t, err)
				defer lim.Close()
				lim.Spend(ofA.Key("x"), 1)
				c, ctx := &Client{Limiter: lim, Wait: true}, t.Context()
				if cancelled {
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					c.Limiter = cancelling{lim, cancel}
				}
				turn, err := c.Begin(ctx, ofA.Key("x"), 1)
				if cancelled {
					require.ErrorIs(t, err, context.Canceled)
				} else {
					require.NoError(t, err)
					require.NoError(t, turn.Refund())
				}
				b, err := lim.Bucket(ofA.Key("x"))
				require.NoError(t, err)
				require.EqualValues(t, 1, b.Remaining, "%v, cancelled: %v", limit, cancelled)
			})
		}
	}
}
