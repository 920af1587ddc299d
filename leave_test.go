package stint

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func leaving(key Key, cost, leave int64) Request { return Request{Key: key, Cost: cost, Leave: leave} }

// A request that must leave tokens is held to the bucket as it would be after the
// request.
func TestLeave(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a") // 5 an hour
	one := func(req Request) Decision {
		t.Helper()
		return r.decided(r.Do(context.Background(), []Request{req}, nil))
	}
	d := one(leaving(key, 1, 4))
	require.True(t, d.Allowed)
	require.EqualValues(t, 4, d.Remaining)
	require.EqualValues(t, 1, d.Taken)

	d = one(leaving(key, 1, 4))
	require.False(t, d.Allowed)
	require.EqualValues(t, 4, d.Remaining, "what the bucket has, not what the request may take")
	require.Equal(t, d.RetryAfter, one(leaving(key, 5, 0)).RetryAfter, "as long as a spend of both")
	wait := d.RetryAfter
	r.clock.Advance(wait - 1)
	require.Equal(t, time.Duration(1), one(leaving(key, 1, 4)).RetryAfter)
	r.clock.Advance(1)
	require.True(t, one(leaving(key, 1, 4)).Allowed)

	t.Run("others take what it leaves", func(t *testing.T) {
		require.False(t, one(leaving(key, 0, 5)).Allowed, "a request that costs nothing, too")
		r.take(key, 4)
		require.False(t, one(leaving(key, 1, 1)).Allowed)
		require.EqualValues(t, 4, r.refund(key, 4).Remaining)
	})
	t.Run("UpTo takes what is above it", func(t *testing.T) {
		d := one(Request{Key: key, Cost: math.MaxInt64, Leave: 1, Mode: UpTo})
		require.True(t, d.Allowed)
		require.EqualValues(t, 3, d.Taken)
		require.EqualValues(t, 1, d.Remaining)
		require.EqualValues(t, 4, r.refund(key, 3).Remaining)
	})
	t.Run("together", func(t *testing.T) {
		b := perID.Key("b")
		d := r.spendAll(leaving(b, 1, 0), leaving(key, 1, 4))
		require.False(t, d.Allowed)
		require.Equal(t, key, d.Key)
		d = r.spendAll(leaving(b, 1, 0), Request{Key: key, Cost: 1, Leave: 4, Mode: SpendOnly})
		require.True(t, d.Allowed)
		require.EqualValues(t, 4, r.left(key))
		require.EqualValues(t, 4, r.left(b))
		require.False(t, r.spendAll(Request{Key: key, Cost: 1, Leave: 4, Mode: CheckOnly}).Allowed)
		require.True(t, r.spendAll(Request{Key: key, Cost: 1, Leave: 3, Mode: CheckOnly}).Allowed)
	})
	t.Run("refund", func(t *testing.T) {
		d := r.decided(r.Refund(Request{Key: perID.Key("b"), Cost: 1, Leave: -1, Spent: inFuture}))
		require.EqualValues(t, 5, d.Remaining)
	})
	t.Run("no numbers", func(t *testing.T) {
		require.True(t, one(leaving(off.Key("a"), 1, 100)).Allowed)
		d := one(Request{Key: key, Cost: 1, Leave: 100, Limit: Blocked})
		require.Equal(t, time.Duration(math.MaxInt64), d.RetryAfter)
	})
}

func TestLeaveErrors(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a") // 5 an hour
	for _, reqs := range [][]Request{
		{leaving(key, 3, 3)},
		{leaving(perID.Key("b"), 1, 0), leaving(key, 3, 3)},
	} {
		_, err := r.SpendAll(reqs...)
		require.ErrorIs(t, err, ErrCostOverBurst)
		require.ErrorContains(t, err, "3, which leave 3, of 5")
	}
	for _, leave := range []int64{-1, math.MinInt64} {
		_, err := r.SpendAll(leaving(key, 1, leave))
		require.ErrorContains(t, err, "Leave is")
	}
	_, err := r.SpendAll(leaving(key, 1, math.MaxInt64))
	require.ErrorIs(t, err, ErrCostOverBurst)
	_, err = r.Reserve(leaving(key, 1, 1))
	require.ErrorContains(t, err, "cannot queue")
	_, err = r.Wait(t.Context(), leaving(key, 1, 1))
	require.ErrorContains(t, err, "cannot queue")
	require.EqualValues(t, 5, r.left(key))
}

func TestLeaveOfCalendar(t *testing.T) {
	r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: EachDay(10, nil)}), Options{})
	key := perID.Key("a")
	r.take(key, 7)
	d := r.spendAll(leaving(key, 1, 2))
	require.True(t, d.Allowed)
	d = r.spendAll(leaving(key, 1, 2))
	require.False(t, d.Allowed)
	require.EqualValues(t, 2, d.Remaining)
	_, end := EachDay(10, nil).PeriodAt(r.Now())
	require.Equal(t, end.Sub(r.Now()), d.RetryAfter)
	_, err := r.Wait(t.Context(), leaving(key, 1, 2))
	require.ErrorContains(t, err, "cannot queue")
	require.True(t, r.spend(key, 2).Allowed)
}
