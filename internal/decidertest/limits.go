package decidertest

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/shares"
)

// The names of limits that share a total.
const (
	total stint.Name = 20 + iota
	class
	floor
)

// caseShares is about package shares above the Decider.
func caseShares(e *env) {
	names := usualNames()
	names[total] = stint.NameSpec{Label: "total", IDs: stint.Single, Limit: stint.PerMinute(6)}
	names[class] = stint.NameSpec{Label: "class", Limit: stint.PerMinute(5)}
	names[floor] = stint.NameSpec{Label: "floor", Limit: stint.Unlimited}
	e.openWith(limitsOf(e, names, stint.Override{Key: floor.Key("a"), Limit: stint.PerMinute(2)}), newClock())
	s, err := shares.New(e.Limiter, shares.Tree{Total: total, Class: class, Floor: floor})
	require.NoError(e, err)
	a, b, t, f := class.Key("a"), class.Key("b"), total.Key(""), floor.Key("a")
	do := func(reqs ...stint.Request) (stint.Decision, []stint.Decision) {
		ds := make([]stint.Decision, len(reqs))
		d, err := s.Do(e.Context(), reqs, ds)
		require.NoError(e, err)
		return d, ds
	}
	spend := func(key stint.Key, cost int64) stint.Decision {
		d, err := s.Spend(key, cost)
		require.NoError(e, err)
		return e.rest(d, cost)
	}
	require.True(e, spend(b, 1).Allowed)
	d := spend(b, 4)
	require.False(e, d.Allowed, "two tokens of the total are kept for a")
	require.Equal(e, t, d.Key, "the bucket that decided")
	require.EqualValues(e, 3, d.Remaining, "what the total lends")
	checked, err := s.Check(b, 4)
	require.NoError(e, err)
	require.Equal(e, d, checked)
	require.True(e, spend(b, 3).Allowed)
	d, ds := do(stint.Request{Key: a, Cost: 2}, stint.Request{Key: plain.Key("x"), Cost: 1})
	require.True(e, d.Allowed, "a has its floor: %+v", ds)
	require.False(e, spend(a, 1).Allowed)
	require.Zero(e, e.left(t))
	d, err = s.Refund(stint.Request{Key: b, Cost: 3, Spent: inFuture})
	require.NoError(e, err)
	require.True(e, d.Allowed)
	require.EqualValues(e, 3, e.left(t), "a refund reaches the total")
	require.True(e, spend(t, 1).Allowed, "the total is spent from directly")
	require.False(e, spend(t, 1).Allowed, "but not what is kept")
	for _, wrong := range [][]stint.Request{{{Key: f, Cost: 1}}, {{Key: a, Cost: 1}, {Key: b, Cost: 1}}, {{Key: a, Cost: 1}, {Key: t, Cost: 1}},
		{{Key: plain.Key("x"), Cost: 1}, {Key: a, Cost: 1, Mode: stint.UpTo}}} {
		ds := []stint.Decision{{Allowed: true}, {Allowed: true}}
		_, err = s.Do(e.Context(), wrong, ds)
		require.Error(e, err, "%+v", wrong)
		require.Equal(e, make([]stint.Decision, len(wrong)), ds[:len(wrong)])
	}
	_, err = s.Refund(stint.Request{Key: f, Cost: 1, Spent: inFuture})
	require.ErrorIs(e, err, errors.ErrUnsupported)
	for _, key := range []stint.Key{a, b, t, f} {
		require.ErrorIs(e, errorOf(s.Wait(e.Context(), key.Cost(1))), errors.ErrUnsupported)
	}
	require.EqualValues(e, 2, e.left(t), "nothing was spent")

	e.clock.pass(time.Hour)
	for _, passes := range []bool{true, false} { // a share that takes no part
		d, ds = do(stint.Request{Key: b, Cost: 4, Mode: stint.SpendOnly}, stint.Request{Key: plain.Key("x"), Cost: 1})
		require.Equal(e, []any{true, plain.Key("x")}, []any{d.Allowed, d.Key})
		require.Equal(e, []bool{passes, true}, []bool{ds[0].Allowed, ds[1].Allowed})
		require.Equal(e, []int64{2, 1}, []int64{e.left(t), e.left(b)})
	}
	e.clock.pass(time.Hour)
	d, _ = do(stint.Request{Key: b, Cost: 9, Mode: stint.UpTo})
	require.Equal(e, []any{true, int64(4)}, []any{d.Allowed, d.Taken}, "what the total lends")
	d, _ = do(stint.Request{Key: a, Cost: 9, Mode: stint.UpTo})
	require.Equal(e, []any{true, int64(2)}, []any{d.Allowed, d.Taken}, "the floor")
	d, _ = do(stint.Request{Key: a, Cost: 9, Mode: stint.UpTo})
	require.False(e, d.Allowed)
	require.Equal(e, 3*token, d.RetryAfter, "as long as for the floor, or for what the total lends")
	_, err = s.Spend(b, 7)
	require.ErrorIs(e, err, stint.ErrCostOverBurst)
	caseSharesHeld(e, s, a, b, t)
}

// caseSharesHeld holds shares, and then their total.
func caseSharesHeld(e *env, s *shares.Decider, a, b, t stint.Key) {
	if !e.subject.has(Holds) {
		return
	}
	spend := func(key stint.Key, cost int64) stint.Decision {
		d, err := s.Spend(key, cost)
		require.NoError(e, err)
		return d
	}
	e.clock.pass(time.Hour)
	e.hold(b, time.Hour)
	e.heldFor(b, time.Hour)
	require.False(e, spend(b, 1).Allowed)
	require.True(e, spend(a, 1).Allowed, "a hold on a share holds no other")
	e.clock.pass(time.Hour)
	e.hold(floor.Key("a"), time.Hour)
	require.True(e, spend(a, 1).Allowed, "a held floor does not pay, and the total lends")
	require.EqualValues(e, 5, e.left(t))
	e.hold(t, time.Hour)
	for _, key := range []stint.Key{a, b, t} {
		d := spend(key, 1)
		require.Equal(e, []any{time.Hour, t}, []any{d.RetryAfter, d.Key}, "a hold on the total holds all")
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

// caseCalendarZones: what was used of a quota stays used in one of another zone,
// start or unit, whether that is configured, given, or the limit of another process.
func caseCalendarZones(e *env) {
	if !e.subject.has(Calendars) {
		e.skip("%s has no quotas by the calendar", e.subject.Name)
	}
	quota := stint.EachDay(60, time.UTC)
	limits := func(l stint.Limit) *stint.Limits {
		return limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: l}))
	}
	c := newClock()
	e.openWith(limits(quota), c)
	kathmandu, west := time.FixedZone("", 20700), time.FixedZone("", -7*3600)
	others := []stint.Limit{
		stint.EachDay(60, kathmandu), quota, stint.EachDay(60, west).StartingAt(time.Hour), stint.EachMonth(60, west), quota,
	}
	key, used := plain.Key("a"), int64(4)
	e.spend(key, used)
	requireLeft := func(d stint.Decision, l stint.Limit) {
		require.Equal(e, 60-used, d.Remaining, "%v", l)
		_, end := l.PeriodAt(c.now())
		require.Equal(e, end.Sub(c.now()), d.ResetAfter, "%v", l)
	}
	for _, l := range others {
		d, _ := e.together(stint.Request{Key: key, Cost: 2, Limit: l})
		used += 2
		requireLeft(d, l)
		d, err := e.Refund(stint.Request{Key: key, Cost: 1, Limit: l, Spent: c.now()})
		require.NoError(e, err)
		used--
		requireLeft(d, l)
		requireLeft(e.check(key, 0), quota)
	}
	m := method[interface{ SetLimits(*stint.Limits) error }](e)
	for _, l := range others {
		require.NoError(e, m.SetLimits(limits(l)))
		requireLeft(e.check(key, 0), l)
		used++
		requireLeft(e.spend(key, 1), l)
	}
	d, _ := e.together(stint.Request{Key: key, Cost: 60 - used, Limit: others[0]})
	require.True(e, d.Allowed)
	require.False(e, e.spend(key, 1).Allowed)
	_, end := quota.PeriodAt(c.now())
	c.pass(end.Sub(c.now()))
	require.True(e, e.spend(key, 60).Allowed, "the configured quota's day has begun")
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
	d, err := e.Refund(stint.Request{Key: key, Cost: 1, Spent: inFuture})
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
	require.Equal(e, e.at(stint.Decision{Allowed: true, Remaining: 2, ResetAfter: left(), Key: free.Key, Limit: daily}), d)
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
	d, err := e.Refund(stint.Request{Key: plain.Key("c"), Cost: 9, Spent: inFuture})
	require.NoError(e, err)
	require.EqualValues(e, 6, d.Remaining)
}

func (e *env) tooMany(key stint.Key) error {
	_, err := e.Spend(key, 7)
	return err
}
