package decidertest

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// cases has every case. Some have a Decider of their own, and the others share one.
var cases = []testCase{
	{"spend", caseSpend, []string{"Spend"}},
	{"check", caseCheck, []string{"Check"}},
	{"cost 0", caseCostZero, nil},
	{"cost 0, smaller limits", caseCostZeroSmaller, nil},
	{"limits and clock", caseLimits, []string{"Limits", "Now"}},
	{"unlimited", caseUnlimited, nil},
	{"blocked", caseBlocked, nil},
	{"overrides", caseOverrides, nil},
	{"bucket", caseBucket, []string{"Bucket"}},
	{"refund", caseRefund, nil},
	{"allow", caseAllow, nil},
	{"reset", caseReset, nil},
	{"all at once", caseAllAtOnce, nil},
	{"leases", caseLeases, nil},
	{"together", caseTogether, []string{"Do"}},
	{"together, denied", caseTogetherDenied, nil},
	{"together, modes", caseModes, nil},
	{"together, many", caseMany, nil},
	{"together, no decisions wanted", caseNilDecisions, nil},
	{"together, no requests", caseNoRequests, nil},
	{"refund, several", caseRefundSeveral, []string{"Refund"}},
	{"given limits", caseGiven, nil},
	{"given limits, levels", caseGivenLevels, nil},
	{"given limits, mistakes", caseGivenMistakes, nil},
	{"hold", caseHold, []string{"Hold"}},
	{"hold, together", caseHoldTogether, nil},
	{"hold, released", caseHoldReleased, []string{"SetHold"}},
	{"hold, set", caseHoldSet, []string{"SetHold"}},
	{"hold, unlimited id", caseHoldUnlimited, nil},
	{"hold, far ahead and long ago", caseHoldFar, nil},
	{"hold, extended", caseHoldExtended, nil},
	{"hold, kinds of limit", caseHoldKinds, nil},
	{"wait", caseWait, []string{"Wait"}},
	{"wait, held", caseWaitHeld, nil},
	{"wait, context", caseWaitContext, nil},
	{"wait, sleeps", caseWaitSleeps, nil},
	{"wait, queue", caseWaitQueue, nil},
	{"wait, the middle leaves", caseWaitMiddle, nil},
	{"contexts", caseContexts, nil},
	{"up to", caseUpTo, nil},
	{"each by itself", caseEach, nil},
	{"leave", caseLeave, nil},
	{"settle", caseSettle, nil},
	{"settle, not durable", caseSettleNotDurable, nil},
	{"refund all, after a while", caseSpent, nil},
	{"settle and refund after a slow wait", caseSlowWait, nil},
	{"calendar", caseCalendar, nil},
	{"calendar, given and waited for", caseCalendarOthers, nil},
	{"calendar, other zones", caseCalendarZones, nil},
	{"shares", caseShares, nil},
	{"stats after a group that was denied", caseStats, nil},
	{"set limits", caseSetLimits, nil},
	{"set overrides", caseSetOverrides, nil},
	{"errors", caseErrors, nil},
	{"errors, not durable", caseNotDurable, nil},
	{"errors, closed", caseClosed, nil},
	{"closed under each call", caseClosedUnder, nil},
	{"sources", caseSources, nil},
	{"history", caseHistory, nil},
}

func caseSpend(e *env) {
	e.open()
	for _, key := range []stint.Key{plain.Key("a"), everyone.Key(""), plain.Key("a b:c{}\n\xff"),
		plain.Key(strings.Repeat("x", 512))} {
		require.Equal(e, e.decision(key, token, 0), e.spend(key, 1))
		require.Equal(e, e.decision(key, 5*token, 0), e.spend(key, 4))
		require.Equal(e, e.decision(key, 5*token, token), e.spend(key, 2), "a denial takes nothing")
		require.Equal(e, e.decision(key, 6*token, 0), e.spend(key, 1))
		e.clock.pass(token - 1)
		require.Equal(e, e.decision(key, 5*token+1, 1), e.spend(key, 1))
		e.clock.pass(1)
		require.Equal(e, e.decision(key, 6*token, 0), e.spend(key, 1))
		e.clock.pass(time.Hour)
		require.Equal(e, e.decision(key, 6*token, 0), e.spend(key, 6), "it is full again, and no fuller")
	}
}

func caseCheck(e *env) {
	e.open()
	key := plain.Key("a")
	for range 3 {
		require.Equal(e, e.decision(key, 2*token, 0), e.check(key, 2))
	}
	e.spend(key, 5)
	for range 3 {
		require.Equal(e, e.decision(key, 5*token, token), e.check(key, 2))
		require.Equal(e, e.decision(key, 6*token, 0), e.check(key, 1))
	}
	require.EqualValues(e, 1, e.left(key))
}

func caseCostZero(e *env) {
	e.open()
	key := plain.Key("a")
	require.Equal(e, e.decision(key, 0, 0), e.spend(key, 0))
	e.spend(key, 6)
	require.Equal(e, e.decision(key, 6*token, 0), e.spend(key, 0), "it is allowed by an empty bucket")
	require.Equal(e, e.decision(key, 6*token, 0), e.check(key, 0))
	_, ds := e.together(stint.Request{Key: key}, stint.Request{Key: plain.Key("b"), Cost: 1})
	require.Equal(e, e.decision(key, 6*token, 0), ds[0])
}

// caseCostZeroSmaller: a request that costs nothing passes, however small the limit
// has become.
func caseCostZeroSmaller(e *env) {
	e.openOwn()
	key := plain.Key("a")
	e.spend(key, 5)
	smaller := e.limitOf(key)
	smaller.Burst, smaller.Count = 2, 2
	smaller.Period = 2 * token
	d, ds := e.together(stint.Request{Key: key, Limit: smaller}, stint.Request{Key: plain.Key("b"), Cost: 1})
	require.True(e, d.Allowed, "%v", ds)
	d, _ = e.together(stint.Request{Key: key, Limit: smaller, Mode: stint.CheckOnly})
	require.True(e, d.Allowed)
	d, err := e.Do(e.Context(), []stint.Request{{Key: key, Limit: smaller, Mode: stint.UpTo}}, nil)
	require.NoError(e, err)
	require.True(e, d.Allowed, "it asks for nothing")
	d, err = e.Do(e.Context(), []stint.Request{{Key: key, Limit: smaller, Cost: 2, Mode: stint.UpTo}}, nil)
	require.NoError(e, err)
	require.False(e, d.Allowed, "it takes nothing")
	require.Zero(e, d.Taken)
	d, _ = e.together(stint.Request{Key: key, Limit: smaller, Cost: 1})
	require.False(e, d.Allowed)
	if e.subject.has(Holds) {
		e.hold(key, time.Hour)
		d, _ = e.together(stint.Request{Key: key, Limit: smaller})
		require.False(e, d.Allowed)
	}
}

func caseLimits(e *env) {
	limits, c := usualLimits(e), newClock()
	e.openWith(limits, c)
	require.Same(e, limits, e.Limits())
	for range 2 {
		e.spend(plain.Key("a"), 1)
		if off := e.Now().Sub(c.now()); e.subject.has(OwnClock) {
			require.Zero(e, off)
			c.pass(time.Hour)
		} else {
			require.Less(e, off.Abs(), time.Minute)
		}
	}
}

func caseUnlimited(e *env) {
	e.open()
	for _, key := range []stint.Key{off.Key("a"), plain.Key("free")} {
		want := e.at(stint.Decision{Allowed: true, Remaining: math.MaxInt64, Key: key, Limit: stint.Unlimited})
		require.Equal(e, want, e.spend(key, math.MaxInt64))
		require.Equal(e, want, e.check(key, 1))
		b, err := e.Bucket(key)
		require.NoError(e, err)
		require.Equal(e, stint.Bucket{Key: key, Limit: stint.Unlimited}, b)
	}
}

func caseBlocked(e *env) {
	e.open()
	for _, key := range []stint.Key{shut.Key("a"), plain.Key("bad")} {
		want := e.at(stint.Decision{RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64, Key: key, Limit: stint.Blocked})
		for _, cost := range []int64{0, 1, math.MaxInt64} {
			require.Equal(e, want, e.spend(key, cost))
			require.Equal(e, want, e.check(key, cost))
		}
		b, err := e.Bucket(key)
		require.NoError(e, err)
		require.Equal(e, stint.Bucket{Key: key, Limit: stint.Blocked}, b)
		d, ds := e.together(stint.Request{Key: key, Cost: 1}, stint.Request{Key: plain.Key("a"), Cost: 1})
		require.Equal(e, want, d)
		require.Equal(e, want, ds[0])
		require.EqualValues(e, 6, e.left(plain.Key("a")))
	}
}

func caseOverrides(e *env) {
	e.open()
	key := plain.Key("vip")
	d := e.spend(key, 7)
	require.True(e, d.Allowed)
	require.Equal(e, stint.PerMinute(7), d.Limit)
	require.False(e, e.spend(key, 1).Allowed)
	require.True(e, e.spend(plain.Key("a"), 6).Allowed)
}

func caseBucket(e *env) {
	e.open()
	key := plain.Key("a")
	b, err := e.Bucket(key)
	require.NoError(e, err)
	require.Equal(e, stint.Bucket{Key: key, Limit: stint.PerMinute(6), Remaining: 6}, b)
	e.spend(key, 4)
	e.clock.pass(time.Second)
	for range 2 {
		b, err = e.Bucket(key)
		require.NoError(e, err)
		require.Equal(e, stint.Bucket{Key: key, Limit: stint.PerMinute(6), Remaining: 2, ResetAfter: 39 * time.Second}, b)
	}
}

func caseRefund(e *env) {
	e.open()
	key := plain.Key("a")
	refund := func(cost int64) stint.Decision {
		d, err := e.Refund(key.Cost(cost).SpentAt(inFuture))
		require.NoError(e, err)
		return d
	}
	e.spend(key, 6)
	require.Equal(e, e.decision(key, 4*token, 0), refund(2))
	require.Equal(e, e.decision(key, 4*token, 0), refund(0))
	require.EqualValues(e, 2, e.left(key))
	require.Equal(e, e.decision(key, 0, 0), refund(math.MaxInt64), "up to the burst")
	require.EqualValues(e, 6, e.left(key))
}

func caseAllow(e *env) {
	e.open()
	m := method[interface{ Allow(key stint.Key) bool }](e)
	for range 6 {
		require.True(e, m.Allow(plain.Key("a")))
	}
	require.False(e, m.Allow(plain.Key("a")))
	require.False(e, m.Allow(stint.Name(99).Key("a")), "an error does not admit")
}

func caseReset(e *env) {
	e.open()
	m := method[interface{ Reset(keys ...stint.Key) error }](e)
	a, b := plain.Key("a"), leasable.Key("b")
	e.spend(a, 6)
	e.spend(b, 600)
	e.hold(a, time.Hour)
	require.NoError(e, m.Reset(a, b, plain.Key("unused")))
	require.Equal(e, e.decision(a, 6*token, 0), e.spend(a, 6), "it has no hold")
	require.EqualValues(e, 600, e.left(b))
	require.NoError(e, m.Reset())

	e.spend(b, 600)
	limits := method[interface{ SetLimits(*stint.Limits) error }](e)
	unlimited := map[stint.Name]stint.Limit{leasable: stint.Unlimited}
	require.NoError(e, limits.SetLimits(limitsOf(e, usualNames().WithLimits(unlimited))))
	require.NoError(e, m.Reset(b), "it has no limit now")
	require.NoError(e, limits.SetLimits(usualLimits(e)))
	require.EqualValues(e, 600, e.left(b))
}

// Goroutines that ask at one instant get the burst and no more.
func caseAllAtOnce(e *env) {
	e.open()
	var admitted atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, 8*20)
	for range 8 {
		all.Go(func() {
			for i := range 20 {
				d, err := stint.Decision{}, error(nil)
				if i%2 == 0 {
					d, err = e.Spend(plain.Key("a"), 1)
				} else {
					d, err = e.Do(context.Background(), []stint.Request{{Key: plain.Key("a"), Cost: 1}, {Key: off.Key("x"), Cost: 1}}, make([]stint.Decision, 2))
				}
				if err != nil {
					errs <- err
				} else if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(e, err)
	}
	require.EqualValues(e, 6, admitted.Load())
}

// A bucket that is large enough for leases admits its burst and no more.
func caseLeases(e *env) {
	e.open()
	key, admitted, size := leasable.Key("a"), int64(0), int64(1)
	if e.level == stint.Synced { // has no leases, and each spend is a commit
		size = 10
	}
	for i := range 900 / size {
		cost := size * (1 + i%2)
		if e.spend(key, cost).Allowed {
			admitted += cost
		}
	}
	require.EqualValues(e, 600, admitted)
	e.clock.pass(time.Second) // 10 tokens
	admitted = 0
	for range 20 {
		if e.spend(key, 1).Allowed {
			admitted++
		}
	}
	require.EqualValues(e, 10, admitted)
}
