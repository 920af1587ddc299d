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
	require.NoError(e, e.SetHold(key, time.Time{}))
	require.True(e, e.check(key, 1).Allowed)
	require.NoError(e, e.SetHold(key, time.Time{}), "it is not held")
	b, err := e.Bucket(key)
	require.NoError(e, err)
	require.True(e, b.HeldUntil.IsZero())
}

func caseHoldSet(e *env) {
	e.open()
	key := plain.Key("a")
	e.hold(key, time.Second)
	for _, d := range []time.Duration{time.Minute, time.Hour, time.Second, time.Second} { // longer, shorter, the same
		require.NoError(e, e.SetHold(key, e.clock.now().Add(d)))
		e.heldFor(key, d)
	}
	e.clock.pass(time.Second)
	require.EqualValues(e, 5, e.spend(key, 1).Remaining)
	e.hold(key, time.Hour)
	require.NoError(e, e.SetHold(key, e.clock.now().Add(-time.Second)), "a time that has passed")
	require.True(e, e.check(key, 1).Allowed)
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
	require.NoError(e, e.SetHold(key, time.Time{}))
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
		d, err := e.Refund(stint.Request{Key: key, Cost: 1, Spent: inFuture})
		require.NoError(e, err)
		require.True(e, d.Allowed, "a refund to a held bucket")
		e.heldFor(key, time.Hour)
	}
	for _, key := range []stint.Key{shut.Key("a"), plain.Key("bad")} {
		e.hold(key, time.Hour)
		require.Equal(e, e.at(stint.Decision{RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64, Key: key, Limit: stint.Blocked}),
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
	d, err := e.Wait(e.Context(), key.Cost(4))
	require.NoError(e, err)
	require.False(e, d.At().Before(before) || d.At().After(e.Now()), "%v, between %v and %v", d.At(), before, e.Now())
	want := e.decision(key, 4*token, 0)
	want.Taken = 4
	want.SetAt(d.At())
	require.Equal(e, want, d)
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
	names := usualNames()
	names[queued] = stint.NameSpec{Label: "queued", Limit: stint.Limit{Burst: 6, Count: 1, Period: time.Hour, Queue: 3}}
	e.openWith(limitsOf(e, names), nil) // no turn comes
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
	require.Eventually(e, func() bool { return e.check(key, 1).RetryAfter > 3*time.Hour }, 20*time.Second,
		time.Millisecond, "three are in the queue")
	require.ErrorIs(e, errorOf(e.Wait(ctx, key.Cost(1))), stint.ErrQueueFull)
	cancel()
	for range 3 {
		require.ErrorIs(e, <-done, context.Canceled)
	}
	// A Wait ends with its context, and does not wait until its tokens are back.
	require.Eventually(e, func() bool { return e.check(key, 1).RetryAfter <= time.Hour }, 20*time.Second,
		time.Millisecond, "their tokens are back")
}

// caseWaitMiddle: whoever leaves the middle of a queue leaves no gap.
func caseWaitMiddle(e *env) {
	if !e.subject.has(Queues) {
		e.skip("%s has no queues", e.subject.Name)
	}
	e.openOwn()
	key := queued.Key("a")
	e.spend(key, 6)
	done := make(chan error, 1)
	var leave [3]context.CancelFunc
	for i := range leave {
		var ctx context.Context
		ctx, leave[i] = context.WithCancel(e.Context())
		defer leave[i]()
		go func() {
			if err := errorOf(e.Wait(ctx, key.Cost(1))); i == 1 {
				done <- err
			}
		}()
		last := time.Duration(i+1) * token
		require.Eventually(e, func() bool { return e.check(key, 0).RetryAfter == last }, 20*time.Second, time.Millisecond)
	}
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), key.Cost(1))), stint.ErrQueueFull)
	leave[1]()
	require.ErrorIs(e, <-done, context.Canceled)
	require.Eventually(e, func() bool { return e.check(key, 0).RetryAfter == 2*token }, 20*time.Second, time.Millisecond,
		"the last turn moves up")
	require.Equal(e, 3*token, e.check(key, 1).RetryAfter)
	soon, cancel := context.WithTimeout(e.Context(), time.Second)
	defer cancel()
	require.ErrorIs(e, errorOf(e.Wait(soon, key.Cost(1))), context.DeadlineExceeded, "the queue has space for one more")
	leave[0]()
	require.Eventually(e, func() bool { return e.check(key, 0).RetryAfter == token }, 20*time.Second, time.Millisecond)
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
	taken, d = spendUpTo(key, 3)
	require.Zero(e, taken)
	require.Equal(e, e.decision(key, 6*token, token), d, "the wait for the first token")
	taken, d = spendUpTo(key, 0)
	require.Zero(e, taken)
	require.True(e, d.Allowed, "it asks for none")
	taken, _ = spendUpTo(off.Key("a"), 9)
	require.EqualValues(e, 9, taken)
	taken, _ = spendUpTo(shut.Key("a"), 9)
	require.Zero(e, taken)
	e.clock.pass(3 * token)
	e.hold(key, time.Minute)
	taken, d = spendUpTo(key, 1)
	require.Zero(e, taken, "it is held")
	require.Equal(e, time.Minute, d.RetryAfter)
	for want, bad := range map[error]stint.Request{
		stint.ErrNegativeCost: {Key: key, Cost: -1}, stint.ErrUnknownName: {Key: stint.Name(99).Key("a"), Cost: 1},
		stint.ErrInvalidID: {Key: plain.Key(""), Cost: 1}, stint.ErrCostOverBurst: {Key: plain.Key("b"), Cost: 9, Leave: 6},
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
}

// A request that must leave tokens passes while there are more.
func caseLeave(e *env) {
	e.open()
	key, b := plain.Key("a"), plain.Key("b") // 6 a minute
	leaving := func(key stint.Key, cost, leave int64) stint.Request {
		return stint.Request{Key: key, Cost: cost, Leave: leave}
	}
	one := func(req stint.Request) stint.Decision {
		d, err := e.Do(e.Context(), []stint.Request{req}, nil)
		require.NoError(e, err)
		return e.rest(d, req.Cost)
	}
	require.Equal(e, e.decision(key, 2*token, 0), one(leaving(key, 2, 4)))
	require.Equal(e, e.decision(key, 2*token, token), one(leaving(key, 1, 4)), "it shows what the bucket has")
	e.clock.pass(token - 1)
	require.Equal(e, e.decision(key, token+1, 1), one(leaving(key, 1, 4)))
	e.clock.pass(1)
	require.Equal(e, e.decision(key, 2*token, 0), one(leaving(key, 1, 4)))
	require.Equal(e, e.decision(key, 2*token, token), one(leaving(key, 0, 5)), "a request that costs nothing, too")

	d, ds := e.together(leaving(b, 1, 0), leaving(key, 1, 4))
	require.Equal(e, e.decision(key, 2*token, token), d)
	require.Equal(e, []stint.Decision{e.decision(b, token, 0), d}, ds)
	spendOnly, check := leaving(key, 1, 4), leaving(key, 1, 3)
	spendOnly.Mode, check.Mode = stint.SpendOnly, stint.CheckOnly
	d, ds = e.together(leaving(b, 1, 0), spendOnly)
	require.Equal(e, []stint.Decision{d, e.decision(key, 2*token, token)}, ds)
	d, _ = e.together(check)
	require.True(e, d.Allowed)
	require.Equal(e, []int64{4, 5}, []int64{e.left(key), e.left(b)})

	upTo := leaving(key, math.MaxInt64, 1)
	upTo.Mode = stint.UpTo
	d, err := e.Do(e.Context(), []stint.Request{upTo}, nil)
	require.NoError(e, err)
	require.EqualValues(e, 3, d.Taken)
	require.Equal(e, e.decision(key, 5*token, token), e.spend(key, 2), "one is left")
	e.spend(key, 1)
	back, err := e.Refund(stint.Request{Key: key, Cost: 1, Leave: 6, Spent: inFuture})
	require.NoError(e, err, "a refund ignores it")
	require.EqualValues(e, 1, back.Remaining)

	require.True(e, one(leaving(off.Key("a"), 1, 100)).Allowed)
	require.False(e, one(leaving(shut.Key("a"), 1, 100)).Allowed)
	own := leaving(plain.Key("own"), 1, 90)
	own.Limit = stint.PerMinute(100)
	require.True(e, one(own).Allowed, "the limit is the request's")

	for _, reqs := range [][]stint.Request{{leaving(key, 3, 4)}, {leaving(b, 1, 0), leaving(key, 3, 4)}} {
		_, err = e.Do(e.Context(), reqs, nil)
		require.ErrorIs(e, err, stint.ErrCostOverBurst)
		require.ErrorContains(e, err, "3, which leave 4, of 6")
	}
	_, err = e.Do(e.Context(), []stint.Request{leaving(key, 1, -1)}, nil)
	require.ErrorContains(e, err, "Leave is -1")
	_, err = e.Wait(e.Context(), leaving(key, 1, 1))
	require.ErrorContains(e, err, "cannot queue")
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
