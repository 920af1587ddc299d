package decidertest

import (
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
	limits := limitsOf(e, shareNames(), nil, map[stint.Name][]stint.Override{
		floor: {{IDs: []stint.OverrideID{{ID: "a"}}, Limit: stint.PerMinute(2)}}})
	if !e.subject.has(Shares) {
		_, err := e.tryOpen(limits, newClock())
		require.ErrorIs(e, err, stint.ErrShare)
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
	d, err := e.RefundAll(stint.Request{Key: b, Cost: 3})
	require.NoError(e, err)
	require.True(e, d.Allowed)
	require.EqualValues(e, 3, e.left(t), "a refund reaches the total")
	d = e.spend(t, 1)
	require.True(e, d.Allowed, "the total is spent from directly")
	require.Equal(e, t, d.Key)
	_, err = e.Spend(floor.Key("a"), 1)
	require.ErrorIs(e, err, stint.ErrShare)
	_, err = e.RefundAll(stint.Request{Key: floor.Key("a"), Cost: 1})
	require.ErrorIs(e, err, stint.ErrShare)
	require.ErrorIs(e, e.Wait(e.Context(), b, 1), stint.ErrShare)
	e.hold(t, time.Hour)
	require.Equal(e, time.Hour, e.spend(b, 1).RetryAfter, "a hold on the total holds all")
	if m, ok := e.Decider.(interface{ SetLimits(*stint.Limits) error }); ok {
		names := shareNames()
		names[class] = stint.NameSpec{Label: "class", Limit: stint.PerMinute(5)}
		require.Error(e, m.SetLimits(limitsOf(e, names, nil, nil)), "a limit keeps its Parent")
	}
}

func caseSetLimits(e *env) {
	e.open()
	m := method[interface{ SetLimits(*stint.Limits) error }](e)
	key, idle := plain.Key("a"), plain.Key("idle")
	e.spend(key, 6)
	less := limitsOf(e, usualNames(), map[stint.Name]stint.Limit{plain: {Burst: 2, Count: 6, Period: time.Minute}}, nil)
	e.clock.pass(time.Second)
	require.NoError(e, m.SetLimits(less))
	require.Same(e, less, e.Limits())
	require.Equal(e, e.decision(idle, token, 0), e.spend(idle, 1))
	if !e.subject.has(Clamps) {
		require.Equal(e, 49*time.Second, e.spend(key, 1).RetryAfter)
		e.skip("with %s, SetLimits leaves buckets as they are", e.subject.Name)
	}
	require.Equal(e, token, e.spend(key, 1).RetryAfter, "no longer than an empty bucket of the new limit")
	more := limitsOf(e, usualNames(), map[stint.Name]stint.Limit{plain: {Burst: 6, Count: 6, Period: 6 * time.Second}}, nil)
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
	if err := m.SetLimits(limitsOf(e, wrong, nil, nil)); err != nil { // a server does not store labels
		require.ErrorIs(e, err, stint.ErrNameMismatch)
		require.Same(e, more, e.Limits())
	}
	require.Error(e, m.SetLimits(nil))
}

func caseSetOverrides(e *env) {
	e.open()
	m := method[interface {
		SetOverrides(id stint.OverrideID, limits map[stint.Name]stint.Limit) error
	}](e)
	key, id := plain.Key("a"), stint.OverrideID{ID: "a"}
	e.spend(key, 6)
	require.NoError(e, m.SetOverrides(id, map[stint.Name]stint.Limit{plain: stint.Blocked}))
	require.Equal(e, stint.Blocked, e.spend(key, 1).Limit)
	require.EqualValues(e, 6, e.spend(plain.Key("b"), 1).Limit.Burst)
	require.NoError(e, m.SetOverrides(id, map[stint.Name]stint.Limit{plain: {}}))
	require.Equal(e, e.decision(key, 6*token, token), e.spend(key, 1))
	require.NoError(e, m.SetOverrides(id, map[stint.Name]stint.Limit{plain: stint.Unlimited}))
	require.True(e, e.spend(key, 100).Allowed)
	if e.subject.has(Clamps) { // what was used stays used
		other := stint.OverrideID{ID: "b"}
		e.spend(plain.Key("b"), 4)
		require.NoError(e, m.SetOverrides(other, map[stint.Name]stint.Limit{plain: stint.PerMinute(60)}))
		require.EqualValues(e, 55, e.left(plain.Key("b")))
		require.NoError(e, m.SetOverrides(other, map[stint.Name]stint.Limit{plain: stint.PerMinute(3)}))
		require.EqualValues(e, 0, e.left(plain.Key("b")))
	}
	var mistake *stint.ConfigError
	require.ErrorAs(e, m.SetOverrides(id, map[stint.Name]stint.Limit{plain: {Burst: 5}}), &mistake)
	require.True(e, e.spend(key, 100).Allowed)
}

func caseCalendar(e *env) {
	daily := stint.EachDay(6, time.UTC)
	limits := limitsOf(e, usualNames(), map[stint.Name]stint.Limit{plain: daily}, nil)
	c := newClock() // 04:05 UTC
	if !e.subject.has(Calendars) {
		_, err := e.tryOpen(limits, c)
		require.ErrorIs(e, err, stint.ErrCalendar)
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
	d, err := e.RefundAll(stint.Request{Key: key, Cost: 1})
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
	d, err = e.RefundAll(stint.Request{Key: b, Cost: 3, Spent: spent})
	require.NoError(e, err)
	require.EqualValues(e, 2, d.Remaining, "tokens of an earlier period are gone")
	d, err = e.RefundAll(stint.Request{Key: b, Cost: 1, Spent: c.now()})
	require.NoError(e, err)
	require.EqualValues(e, 3, d.Remaining)
	_, end = daily.PeriodAt(c.now())
	d, _ = e.together(stint.Request{Key: b, Cost: 4}, stint.Request{Key: other.Key("b"), Cost: 1})
	require.Equal(e, left(), d.RetryAfter)
	require.EqualValues(e, 4, e.left(other.Key("b")), "all or nothing")
	taken, _, err := method[interface {
		SpendUpTo(key stint.Key, cost int64) (int64, stint.Decision, error)
	}](e).SpendUpTo(b, 9)
	require.NoError(e, err)
	require.EqualValues(e, 3, taken)
}

func (e *env) tooMany(key stint.Key) error {
	_, err := e.Spend(key, 7)
	return err
}
