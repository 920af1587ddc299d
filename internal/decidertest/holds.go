package decidertest

import (
	"context"
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// heldFor requires that a key has a hold with that time to go.
func (e *env) heldFor(key stint.Key, want time.Duration) {
	for _, cost := range []int64{1, 0} {
		require.Equal(e, want, e.spend(key, cost).RetryAfter)
		require.Equal(e, want, e.check(key, cost).RetryAfter)
	}
	b, err := e.Bucket(key)
	require.NoError(e, err)
	if want == 0 {
		require.True(e, b.HeldUntil.IsZero(), "%v", b.HeldUntil)
	} else {
		until := e.clock.now().Add(want)
		require.True(e, until.Equal(b.HeldUntil), "held until %v, want %v", b.HeldUntil, until)
	}
}

func caseHold(e *env) {
	e.open()
	for _, key := range []stint.Key{plain.Key("a"), everyone.Key("")} {
		e.spend(key, 2)
		e.hold(key, time.Hour)
		e.heldFor(key, time.Hour)
		d := e.spend(key, 1)
		require.False(e, d.Allowed)
		require.Equal(e, key, d.Key)
		require.EqualValues(e, 4, d.Remaining, "the tokens stay")
		e.clock.pass(time.Hour - 1)
		e.heldFor(key, 1)
		e.clock.pass(1)
		require.Equal(e, e.decision(key, token, 0), e.spend(key, 1))
		e.clock.pass(time.Hour)
	}
	e.spend(plain.Key("b"), 6)
	e.hold(plain.Key("b"), time.Second)
	require.Equal(e, token, e.spend(plain.Key("b"), 1).RetryAfter, "the tokens come later")
	e.hold(leasable.Key("b"), time.Minute)
	e.heldFor(leasable.Key("b"), time.Minute)
}

func caseHoldTogether(e *env) {
	e.open()
	a, b := plain.Key("a"), plain.Key("b")
	e.hold(a, time.Hour)
	d, ds := e.together(stint.Request{Key: b, Cost: 1}, stint.Request{Key: a, Cost: 1})
	require.Equal(e, []time.Duration{time.Hour, 0, time.Hour}, []time.Duration{d.RetryAfter, ds[0].RetryAfter, ds[1].RetryAfter})
	require.Equal(e, a, d.Key)
	require.EqualValues(e, 6, e.left(b))
	d, ds = e.together(stint.Request{Key: b, Cost: 1}, stint.Request{Key: a, Cost: 1, Mode: stint.SpendOnly})
	require.True(e, d.Allowed)
	require.False(e, ds[1].Allowed)
	d, _ = e.together(stint.Request{Key: a, Cost: 1, Limit: stint.PerMinute(5)})
	require.Equal(e, time.Hour, d.RetryAfter, "a given limit is held, too")
}

func caseHoldReleased(e *env) {
	e.open()
	key := plain.Key("a")
	e.hold(key, 2*time.Hour)
	e.heldFor(key, 2*time.Hour)
	e.hold(key, time.Minute)
	e.heldFor(key, 2*time.Hour)
	require.NoError(e, e.Release(key))
	require.True(e, e.check(key, 1).Allowed)
	require.NoError(e, e.Release(key), "it is not held")
	b, err := e.Bucket(key)
	require.NoError(e, err)
	require.True(e, b.HeldUntil.IsZero())
}

func caseHoldUnlimited(e *env) {
	e.open()
	for _, key := range []stint.Key{off.Key("a"), plain.Key("free")} {
		if !e.subject.has(HeldFreeIDs) {
			require.Error(e, errorOf(e.Hold(key, e.clock.now().Add(time.Hour))))
			require.True(e, e.spend(key, 1).Allowed)
			continue
		}
		e.hold(key, time.Hour)
		e.heldFor(key, time.Hour)
		e.clock.pass(time.Hour)
		require.True(e, e.spend(key, 1).Allowed)
	}
}

func caseHoldFar(e *env) {
	e.open()
	key := plain.Key("a")
	e.hold(key, time.Hour)
	require.NoError(e, errorOf(e.Hold(key, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))))
	require.Greater(e, e.spend(key, 1).RetryAfter, 130*365*24*time.Hour)
	require.NoError(e, errorOf(e.Hold(key, time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC))))
	require.False(e, e.spend(key, 1).Allowed)
	require.NoError(e, e.Release(key))
	require.True(e, e.spend(key, 1).Allowed)
	end, err := e.Hold(key, time.Time{})
	require.NoError(e, err)
	require.Zero(e, end)
	require.True(e, e.spend(key, 1).Allowed)
}

func caseHoldExtended(e *env) {
	e.open()
	key := plain.Key("a")
	extend := func(d, want time.Duration) {
		until, err := e.Hold(key, e.clock.now().Add(d))
		if !e.subject.has(Holds) {
			require.Error(e, err)
			e.skip("%s has no holds", e.subject.Name)
		}
		require.NoError(e, err)
		require.True(e, e.clock.now().Add(want).Equal(until), "%v, want %v", until, e.clock.now().Add(want))
		e.heldFor(key, want)
	}
	extend(time.Minute, time.Minute)
	extend(time.Hour, time.Hour)
	extend(time.Minute, time.Hour)
	extend(-time.Hour, time.Hour)
	e.clock.pass(time.Hour)
	extend(time.Second, time.Second)
	_, err := e.Hold(stint.Name(99).Key("a"), e.Now())
	require.ErrorIs(e, err, stint.ErrUnknownName)
}

// caseHoldKinds holds a bucket of each kind of limit, and extends the hold.
func caseHoldKinds(e *env) {
	e.open()
	for _, key := range []stint.Key{plain.Key("a"), plain.Key("vip"), everyone.Key(""), queued.Key("a"), leasable.Key("a"),
		other.Key("a")} {
		e.hold(key, time.Minute)
		until, err := e.Hold(key, e.clock.now().Add(time.Hour))
		require.NoError(e, err)
		require.True(e, e.clock.now().Add(time.Hour).Equal(until))
		e.heldFor(key, time.Hour)
		soon, cancel := context.WithTimeout(e.Context(), time.Minute)
		require.ErrorIs(e, errorOf(e.Wait(soon, key.Cost(1))), context.DeadlineExceeded, "%v: its hold ends after the deadline", key)
		require.NoError(e, soon.Err(), "it fails at once")
		cancel()
		d, err := e.Refund(stint.Request{Key: key, Cost: 1, Spent: stint.JustSpent})
		require.NoError(e, err)
		require.True(e, d.Allowed, "a refund to a held bucket")
		e.heldFor(key, time.Hour)
	}
	for _, key := range []stint.Key{shut.Key("a"), plain.Key("bad")} {
		e.hold(key, time.Hour)
		require.Equal(e, stint.Decision{RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64, Key: key, Limit: stint.Blocked},
			e.check(key, 1), "it is blocked for longer")
	}
}

// caseWaitHeld waits for the end of a hold.
func caseWaitHeld(e *env) {
	e.openWith(usualLimits(e), nil)
	key := plain.Key("a")
	_, err := e.Hold(key, e.Now().Add(50*time.Millisecond))
	if !e.subject.has(Holds) {
		require.Error(e, err)
		e.skip("%s has no holds", e.subject.Name)
	}
	require.NoError(e, err)
	require.NoError(e, errorOf(e.Wait(e.Context(), key.Cost(1))))
	require.True(e, e.check(key, 1).Allowed, "it waited for the end of the hold")
	require.EqualValues(e, 5, e.left(key))
}

func caseWait(e *env) {
	e.open()
	key := plain.Key("a")
	before := e.Now()
	spent, err := e.Wait(e.Context(), key.Cost(4))
	require.NoError(e, err)
	require.False(e, spent.Before(before) || spent.After(e.Now()), "%v, between %v and %v", spent, before, e.Now())
	require.EqualValues(e, 2, e.left(key))
	require.NoError(e, errorOf(e.Wait(e.Context(), key.Cost(0))))
	require.NoError(e, errorOf(e.Wait(e.Context(), off.Key("a").Cost(4))))
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), shut.Key("a").Cost(1))), stint.ErrBlocked)
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), key.Cost(7))), stint.ErrCostOverBurst)
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), key.Cost(-1))), stint.ErrNegativeCost)
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), plain.Key("").Cost(1))), stint.ErrInvalidID)
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), stint.Name(99).Key("a").Cost(1))), stint.ErrUnknownName)
}

func caseWaitContext(e *env) {
	e.open()
	key := plain.Key("a")
	e.spend(key, 6)
	soon, cancel := context.WithTimeout(e.Context(), 5*time.Second)
	defer cancel()
	require.ErrorIs(e, errorOf(e.Wait(soon, key.Cost(1))), context.DeadlineExceeded, "the turn is after the deadline")
	require.NoError(e, soon.Err(), "it fails at once")
	over, cancel := context.WithCancel(e.Context())
	cancel()
	require.ErrorIs(e, errorOf(e.Wait(over, key.Cost(1))), context.Canceled)
	e.clock.pass(token)
	require.True(e, e.spend(key, 1).Allowed, "none took anything")
}

func caseWaitSleeps(e *env) {
	fast := stint.Limit{Burst: 2, Count: 1, Period: 20 * time.Millisecond}
	e.openWith(limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: fast})), nil)
	begun := time.Now()
	for range 5 {
		require.NoError(e, errorOf(e.Wait(e.Context(), plain.Key("a").Cost(1))))
	}
	require.GreaterOrEqual(e, time.Since(begun), 59*time.Millisecond)
	canceled, cancel := context.WithCancel(e.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	e.spend(other.Key("b"), 4)
	require.ErrorIs(e, errorOf(e.Wait(canceled, other.Key("b").Cost(1))), context.Canceled)
}

func caseWaitQueue(e *env) {
	e.openWith(usualLimits(e), nil)
	key := queued.Key("a")
	e.spend(key, 6)
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	done := make(chan error, 3)
	for range 3 {
		go func() { done <- errorOf(e.Wait(ctx, key.Cost(1))) }()
	}
	if !e.subject.has(Queues) {
		e.skip("%s has no queues", e.subject.Name)
	}
	require.Eventually(e, func() bool { return e.check(key, 1).RetryAfter > 35*time.Second }, 20*time.Second,
		time.Millisecond, "three are in the queue")
	require.ErrorIs(e, errorOf(e.Wait(ctx, key.Cost(1))), stint.ErrQueueFull)
	cancel()
	for range 3 {
		require.ErrorIs(e, <-done, context.Canceled)
	}
	// A Wait ends with its context, and does not wait until its tokens are back.
	require.Eventually(e, func() bool { return e.check(key, 1).RetryAfter < 11*time.Second }, 20*time.Second,
		time.Millisecond, "their tokens are back")
}

func caseContexts(e *env) {
	e.open()
	key := plain.Key("a")
	one := func(ctx context.Context, cost int64) (stint.Decision, error) {
		return e.Do(ctx, []stint.Request{key.Cost(cost)}, nil)
	}
	ds := make([]stint.Decision, 1)
	d, err := e.Do(e.Context(), []stint.Request{key.Cost(2)}, ds)
	require.NoError(e, err)
	require.Equal(e, e.decision(key, 2*token, 0), e.rest(d, 2))
	require.Equal(e, d, ds[0])
	_, err = one(e.Context(), 7)
	require.ErrorIs(e, err, stint.ErrCostOverBurst)
	over, cancel := context.WithCancel(e.Context())
	cancel()
	if d, err = one(over, 1); err == nil { // it was decided in time
		require.Equal(e, e.decision(key, 3*token, 0), e.rest(d, 1))
	} else {
		require.ErrorIs(e, err, context.Canceled)
		require.Zero(e, d)
	}
}

// spendUpTo takes up to cost tokens.
func (e *env) spendUpTo(key stint.Key, cost int64) stint.Decision {
	d, err := e.Do(e.Context(), []stint.Request{{Key: key, Cost: cost, Mode: stint.UpTo}}, nil)
	require.NoError(e, err)
	return d
}

func caseUpTo(e *env) {
	e.open()
	key := plain.Key("a")
	spendUpTo := func(key stint.Key, cost int64) (int64, stint.Decision) {
		d := e.spendUpTo(key, cost)
		require.Equal(e, key, d.Key)
		return d.Taken, d
	}
	taken, d := spendUpTo(key, 4)
	require.EqualValues(e, 4, taken)
	require.EqualValues(e, 2, d.Remaining)
	taken, d = spendUpTo(key, 4)
	require.EqualValues(e, 2, taken, "what is there")
	require.Zero(e, d.Remaining)
	taken, _ = spendUpTo(key, 1)
	require.Zero(e, taken)
	taken, _ = spendUpTo(off.Key("a"), 9)
	require.EqualValues(e, 9, taken)
	taken, _ = spendUpTo(shut.Key("a"), 9)
	require.Zero(e, taken)
	e.clock.pass(3 * token)
	e.hold(key, time.Minute)
	taken, _ = spendUpTo(key, 1)
	require.Zero(e, taken, "it is held")
	for want, bad := range map[error]stint.Request{
		stint.ErrNegativeCost: {Key: key, Cost: -1}, stint.ErrUnknownName: {Key: stint.Name(99).Key("a"), Cost: 1},
		stint.ErrInvalidID: {Key: plain.Key(""), Cost: 1},
	} {
		bad.Mode = stint.UpTo
		d, err := e.Do(e.Context(), []stint.Request{bad}, nil)
		require.ErrorIs(e, err, want)
		require.Zero(e, d)
	}
	ds := []stint.Decision{{Allowed: true}, {Allowed: true}}
	_, err := e.Do(e.Context(), []stint.Request{other.Key("b").Cost(1), {Key: key, Cost: 1, Mode: stint.UpTo}}, ds)
	require.Error(e, err, "it must be alone")
	require.Equal(e, make([]stint.Decision, 2), ds)
	require.EqualValues(e, 4, e.left(other.Key("b")))

	l, ok := e.Limiter.(interface {
		DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error
	})
	if !ok {
		return
	}
	c := stint.Request{Key: plain.Key("c"), Cost: 4, Mode: stint.UpTo}
	wrong := stint.Request{Key: plain.Key(""), Cost: 1, Mode: stint.UpTo}
	ds = make([]stint.Decision, 4)
	require.ErrorIs(e, l.DoEach(e.Context(), []stint.Request{c, c, wrong, c}, ds), stint.ErrInvalidID)
	require.Equal(e, []int64{4, 2, 0, 0}, []int64{ds[0].Taken, ds[1].Taken, ds[2].Taken, ds[3].Taken})
}

// A cost that is settled while the bucket is held, and while others queue.
func caseSettle(e *env) {
	e.open()
	key := plain.Key("a")
	client := rules.Client{Limiter: e.Limiter}
	bound := func() *rules.Turn {
		e.left(key) // a guest's clock follows that of its owner from the next answer on
		turn, err := client.Begin(e.Context(), key, 3)
		require.NoError(e, err)
		return turn
	}
	replace := func(turn *rules.Turn, cost, short int64) int64 {
		got, err := turn.Settle(cost)
		require.NoError(e, err)
		require.Equal(e, short, got)
		return e.left(key)
	}
	less, more := bound(), bound()
	require.Zero(e, replace(more, 5, 2), "there is nothing beside the bounds")
	require.EqualValues(e, 2, replace(less, 1, 0))
	e.clock.pass(4 * token)
	require.EqualValues(e, 6, replace(bound(), 0, 0))
	_, err := less.Settle(-1)
	require.ErrorIs(e, err, stint.ErrNegativeCost)

	held, more := bound(), bound()
	e.hold(key, time.Minute)
	replace(more, 4, 1)
	replace(held, 1, 0)
	e.heldFor(key, time.Minute)
	require.EqualValues(e, 2, e.left(key), "a hold ends no sooner, and keeps no token")

	key = queued.Key("a")
	less, more = bound(), bound()
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- errorOf(e.Wait(ctx, key.Cost(1))) }()
	if !e.subject.has(Queues) {
		e.skip("%s has no queues", e.subject.Name)
	}
	require.Eventually(e, func() bool { return e.check(key, 1).RetryAfter > token }, 20*time.Second, time.Millisecond,
		"one is in the queue")
	replace(more, 4, 1)
	replace(less, 1, 0)
	cancel()
	if err := <-done; err != nil {
		require.ErrorIs(e, err, context.Canceled)
		require.EqualValues(e, 2, e.left(key))
	} else { // the returned tokens were for the one in the queue
		require.EqualValues(e, 1, e.left(key))
	}
}
