package decidertest

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// The names of limits that share a total.
const (
	total stint.Name = 20 + iota
	class
	floor
)

func shareNames() stint.Names {
	names := usualNames()
	names[total] = stint.NameSpec{Label: "total", ID: stint.Shared, Limit: stint.PerMinute(6)}
	names[class] = stint.NameSpec{Label: "class", Limit: stint.PerMinute(5), Parent: total, Floor: floor}
	names[floor] = stint.NameSpec{Label: "floor", Limit: stint.Unlimited}
	return names
}

func caseShares(e *env) {
	limits := limitsOf(e, shareNames(), stint.Override{Key: floor.Key("a"), Limit: stint.PerMinute(2)})
	if !e.subject.has(Shares) {
		_, err := e.tryOpen(limits, newClock())
		require.ErrorIs(e, err, errors.ErrUnsupported)
		return
	}
	e.openWith(limits, newClock())
	a, b, t := class.Key("a"), class.Key("b"), total.Key("")
	d := e.spend(b, 1)
	require.True(e, d.Allowed)
	d = e.spend(b, 4)
	require.False(e, d.Allowed, "two tokens of the total are kept for a")
	require.Equal(e, t, d.Key, "the bucket that decided")
	require.Equal(e, d, e.check(b, 4))
	require.True(e, e.spend(b, 3).Allowed)
	d, ds := e.together(stint.Request{Key: a, Cost: 2}, stint.Request{Key: plain.Key("x"), Cost: 1})
	require.True(e, d.Allowed, "a has its floor: %+v", ds)
	require.False(e, e.spend(a, 1).Allowed)
	require.Zero(e, e.left(t))
	d, err := e.Refund(stint.Request{Key: b, Cost: 3, Spent: stint.JustSpent})
	require.NoError(e, err)
	require.True(e, d.Allowed)
	require.EqualValues(e, 3, e.left(t), "a refund reaches the total")
	d = e.spend(t, 1)
	require.True(e, d.Allowed, "the total is spent from directly")
	require.Equal(e, t, d.Key)
	f := floor.Key("a")
	_, err = e.Spend(f, 1)
	require.ErrorIs(e, err, errors.ErrUnsupported)
	require.Equal(e, f, e.check(f, 1).Key, "a floor is only checked")
	require.EqualValues(e, 0, e.left(f))
	_, err = e.Refund(stint.Request{Key: f, Cost: 1, Spent: stint.JustSpent})
	require.ErrorIs(e, err, errors.ErrUnsupported)
	for _, key := range []stint.Key{a, b, t} {
		require.ErrorIs(e, errorOf(e.Wait(e.Context(), key.Cost(1))), errors.ErrUnsupported)
	}
	require.EqualValues(e, 2, e.left(t))
	for _, wrong := range []stint.Request{{Key: f, Cost: 1}, {Key: t, Cost: 1, Limit: stint.PerMinute(3)},
		{Key: b, Cost: 1, Limit: stint.EachDay(3, time.UTC)}} {
		ds := []stint.Decision{{Allowed: true}, {Allowed: true}}
		_, err = e.Do(context.Background(), []stint.Request{{Key: plain.Key("x"), Cost: 1}, wrong}, ds)
		require.ErrorIs(e, err, errors.ErrUnsupported, "%+v", wrong)
		require.Equal(e, make([]stint.Decision, 2), ds)
	}
	require.EqualValues(e, 2, e.left(t), "nothing was spent")
	e.clock.pass(time.Hour)
	require.True(e, e.spend(b, 1).Allowed)
	d, ds = e.together(stint.Request{Key: b, Cost: 2}, stint.Request{Key: t, Cost: 2})
	require.False(e, d.Allowed, "both take from the total: %+v", ds)
	require.Equal(e, []any{t, true, false}, []any{d.Key, ds[0].Allowed, ds[1].Allowed})
	require.EqualValues(e, 5, e.left(t), "nothing was spent")
	e.clock.pass(time.Hour)
	_, err = e.Do(context.Background(), []stint.Request{{Key: b, Cost: 3}, {Key: t, Cost: 2}}, nil)
	require.ErrorIs(e, err, stint.ErrCostOverBurst, "the total never lends both")
	d, ds = e.together(stint.Request{Key: b, Cost: 2}, stint.Request{Key: t, Cost: 1}, stint.Request{Key: a, Cost: 2})
	require.True(e, d.Allowed, "%+v", ds)
	require.EqualValues(e, 1, e.left(t))
	_, err = e.Refund(stint.Request{Key: b, Cost: 2, Spent: stint.JustSpent}, stint.Request{Key: a, Cost: 2, Spent: stint.JustSpent})
	require.NoError(e, err)
	require.EqualValues(e, 5, e.left(t))
	for _, cost := range []int64{-1, 7} {
		want := map[int64]error{-1: stint.ErrNegativeCost, 7: stint.ErrCostOverBurst}[cost]
		_, err = e.Spend(b, cost)
		require.ErrorIs(e, err, want)
	}
	caseSharesHeld(e, a, b, t)
	if m, ok := e.Limiter.(interface{ SetLimits(*stint.Limits) error }); ok {
		names := shareNames()
		names[class] = stint.NameSpec{Label: "class", Limit: stint.PerMinute(5)}
		require.Error(e, m.SetLimits(limitsOf(e, names)), "a limit keeps its Parent")
	}
}

// caseSharesHeld holds shares, and then their total.
func caseSharesHeld(e *env, a, b, t stint.Key) {
	e.clock.pass(time.Hour)
	once := stint.Request{Key: b, Cost: 1, Limit: stint.PerMinute(1)}
	d, _ := e.together(once)
	require.True(e, d.Allowed, "a share may have a given limit")
	require.EqualValues(e, 5, e.left(t))
	d, _ = e.together(once)
	require.False(e, d.Allowed)
	require.Equal(e, []any{b, once.Limit}, []any{d.Key, d.Limit})
	e.clock.pass(time.Hour)
	e.hold(b, time.Hour)
	e.heldFor(b, time.Hour)
	require.True(e, e.spend(a, 1).Allowed, "a hold on a share holds no other")
	until, err := e.Hold(b, e.clock.now().Add(time.Minute))
	require.NoError(e, err)
	require.True(e, e.clock.now().Add(time.Hour).Equal(until))
	require.NoError(e, e.Release(b))
	require.True(e, e.spend(b, 1).Allowed)
	until, err = e.Hold(t, e.clock.now().Add(time.Hour))
	require.NoError(e, err)
	require.True(e, e.clock.now().Add(time.Hour).Equal(until))
	for _, key := range []stint.Key{a, b, t} {
		d := e.spend(key, 1)
		require.Equal(e, time.Hour, d.RetryAfter, "a hold on the total holds all")
		require.Equal(e, t, d.Key)
		found, err := e.Bucket(key)
		require.NoError(e, err)
		require.Equal(e, key == t, !found.HeldUntil.IsZero(), "Bucket tells of its own hold")
	}
	d = e.spendUpTo(b, 3)
	require.Zero(e, d.Taken)
	require.Equal(e, t, d.Key)
	if m, ok := e.Limiter.(interface{ Reset(...stint.Key) error }); ok {
		require.NoError(e, m.Reset(t))
		require.EqualValues(e, 6, e.left(t))
		require.True(e, e.spend(b, 1).Allowed)
	}
}

func caseSetLimits(e *env) {
	e.openOwn()
	m := method[interface{ SetLimits(*stint.Limits) error }](e)
	key, idle := plain.Key("a"), plain.Key("idle")
	e.spend(key, 6)
	less := limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: {Burst: 2, Count: 6, Period: time.Minute}}))
	e.clock.pass(time.Second)
	require.NoError(e, m.SetLimits(less))
	require.Same(e, less, e.Limits())
	require.Equal(e, e.decision(idle, token, 0), e.spend(idle, 1))
	if !e.subject.has(Clamps) {
		require.Equal(e, 49*time.Second, e.spend(key, 1).RetryAfter)
		e.skip("with %s, SetLimits leaves buckets as they are", e.subject.Name)
	}
	require.Equal(e, token, e.spend(key, 1).RetryAfter, "no longer than an empty bucket of the new limit")
	more := limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: {Burst: 6, Count: 6, Period: 6 * time.Second}}))
	e.clock.pass(time.Second)
	require.NoError(e, m.SetLimits(more))
	require.EqualValues(e, 6, e.limitOf(key).Burst)
	e.check(key, 1) // some Deciders shorten a bucket when it is next used
	e.clock.pass(6 * time.Second)
	require.True(e, e.spend(key, 6).Allowed)
	wrong := usualNames()
	spec := wrong[plain]
	spec.Label = "different"
	wrong[plain] = spec
	if err := m.SetLimits(limitsOf(e, wrong)); err != nil { // a server does not store labels
		require.ErrorIs(e, err, stint.ErrNameMismatch)
		require.Same(e, more, e.Limits())
	}
	require.Error(e, m.SetLimits(nil))
}

func caseSetOverrides(e *env) {
	e.openOwn()
	m := method[interface {
		SetOverrides(overrides ...stint.Override) error
	}](e)
	key := plain.Key("a")
	e.spend(key, 6)
	require.NoError(e, m.SetOverrides(stint.Override{Key: key, Limit: stint.Blocked}))
	require.Equal(e, stint.Blocked, e.spend(key, 1).Limit)
	require.EqualValues(e, 6, e.spend(plain.Key("b"), 1).Limit.Burst)
	require.NoError(e, m.SetOverrides(stint.Override{Key: key}))
	require.Equal(e, e.decision(key, 6*token, token), e.spend(key, 1))
	require.NoError(e, m.SetOverrides(stint.Override{Key: key, Limit: stint.Unlimited}))
	require.True(e, e.spend(key, 100).Allowed)
	if e.subject.has(Clamps) { // what was used stays used
		other := plain.Key("b")
		e.spend(other, 4)
		require.NoError(e, m.SetOverrides(stint.Override{Key: other, Limit: stint.PerMinute(60)}))
		require.EqualValues(e, 55, e.left(other))
		require.NoError(e, m.SetOverrides(stint.Override{Key: other, Limit: stint.PerMinute(3)}))
		require.EqualValues(e, 0, e.left(other))
	}
	var mistake *stint.ConfigError
	require.ErrorAs(e, m.SetOverrides(stint.Override{Key: key, Limit: stint.Limit{Burst: 5}}), &mistake)
	require.True(e, e.spend(key, 100).Allowed)
}

func caseCalendar(e *env) {
	daily := stint.EachDay(6, time.UTC)
	limits := limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: daily}))
	c := newClock() // 04:05 UTC
	if !e.subject.has(Calendars) {
		_, err := e.tryOpen(limits, c)
		require.ErrorIs(e, err, errors.ErrUnsupported)
		e.open()
		_, err = e.Do(context.Background(), []stint.Request{{Key: plain.Key("a"), Cost: 1, Limit: daily}}, nil)
		require.ErrorIs(e, err, errors.ErrUnsupported)
		return
	}
	e.openWith(limits, c)
	key := plain.Key("a")
	start, end := daily.PeriodAt(c.now())
	require.Equal(e, 24*time.Hour, end.Sub(start))
	left := func() time.Duration { return end.Sub(c.now()) }
	d := e.spend(key, 4)
	require.True(e, d.Allowed)
	require.EqualValues(e, 2, d.Remaining)
	require.Equal(e, left(), d.ResetAfter)
	require.EqualValues(e, 2, e.left(key))
	c.pass(12 * time.Hour)
	d = e.spend(key, 3)
	require.False(e, d.Allowed, "no token comes back before the next day")
	require.Equal(e, left(), d.RetryAfter)
	d, err := e.Refund(stint.Request{Key: key, Cost: 1, Spent: stint.JustSpent})
	require.NoError(e, err)
	require.EqualValues(e, 3, d.Remaining)
	require.ErrorIs(e, e.tooMany(key), stint.ErrCostOverBurst)
	c.pass(left() - 1)
	require.Equal(e, time.Duration(1), e.check(key, 4).RetryAfter)
	c.pass(1)
	require.True(e, e.spend(key, 6).Allowed)
	require.False(e, e.spend(key, 1).Allowed)
	e.hold(key, 30*time.Hour)
	require.Equal(e, 30*time.Hour, e.spend(key, 1).RetryAfter)

	b, spent := plain.Key("b"), c.now()
	e.spend(b, 3)
	c.pass(24 * time.Hour)
	require.Equal(e, 6*time.Hour, e.spend(key, 1).RetryAfter, "a hold goes on in the next period")
	e.spend(b, 4)
	d, err = e.Refund(stint.Request{Key: b, Cost: 3, Spent: spent})
	require.NoError(e, err)
	require.EqualValues(e, 2, d.Remaining, "tokens of an earlier period are gone")
	d, err = e.Refund(stint.Request{Key: b, Cost: 1, Spent: c.now()})
	require.NoError(e, err)
	require.EqualValues(e, 3, d.Remaining)
	_, end = daily.PeriodAt(c.now())
	d, _ = e.together(stint.Request{Key: b, Cost: 4}, stint.Request{Key: other.Key("b"), Cost: 1})
	require.Equal(e, left(), d.RetryAfter)
	require.EqualValues(e, 4, e.left(other.Key("b")), "all or nothing")
	require.EqualValues(e, 3, e.spendUpTo(b, 9).Taken)
}

// caseCalendarOthers has calendars with given limits and with waiting callers.
func caseCalendarOthers(e *env) {
	if !e.subject.has(Calendars) {
		e.skip("%s has no calendars", e.subject.Name)
	}
	daily := stint.EachDay(6, time.UTC)
	e.openWith(limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: daily})), newClock())
	_, end := daily.PeriodAt(e.clock.now())
	left := func() time.Duration { return end.Sub(e.clock.now()) }

	free := stint.Request{Key: off.Key("a"), Cost: 4, Limit: daily}
	d, _ := e.together(free)
	require.Equal(e, stint.Decision{Allowed: true, Remaining: 2, ResetAfter: left(), Key: free.Key, Limit: daily}, d)
	e.clock.pass(time.Hour)
	d, _ = e.together(free)
	require.False(e, d.Allowed)
	require.Equal(e, left(), d.RetryAfter)
	e.hold(free.Key, 30*time.Hour)
	d, _ = e.together(free)
	require.Equal(e, 30*time.Hour, d.RetryAfter, "a hold outlasts the period")
	key := plain.Key("a")
	rolling, _ := e.together(stint.Request{Key: key, Cost: 3, Limit: stint.PerMinute(3)})
	require.True(e, rolling.Allowed, "a rolling limit for one request")

	e.spend(plain.Key("b"), 6)
	soon, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(e, errorOf(e.Wait(soon, plain.Key("b").Cost(1))), context.DeadlineExceeded, "the next period is after the deadline")
	require.NoError(e, soon.Err(), "it fails at once")
	require.NoError(e, errorOf(e.Wait(e.Context(), plain.Key("c").Cost(2))))
	require.EqualValues(e, 4, e.left(plain.Key("c")))
	over, cancel := context.WithCancel(e.Context())
	cancel()
	require.ErrorIs(e, errorOf(e.Wait(over, plain.Key("c").Cost(1))), context.Canceled)
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), plain.Key("c").Cost(7))), stint.ErrCostOverBurst)
	require.EqualValues(e, 4, e.left(plain.Key("c")))
	d, err := e.Refund(stint.Request{Key: plain.Key("c"), Cost: 9, Spent: stint.JustSpent})
	require.NoError(e, err)
	require.EqualValues(e, 6, d.Remaining)
}

func (e *env) tooMany(key stint.Key) error {
	_, err := e.Spend(key, 7)
	return err
}
