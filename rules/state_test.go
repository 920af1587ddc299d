package rules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

const (
	ofA stint.Name = 1 + iota
	ofB
	free
)

// newLimiter returns a Limiter whose buckets have five tokens, and whose clock
// stands still.
func newLimiter(t testing.TB) *stint.Limiter {
	now := time.Now()
	return newLimiterAt(t, func() time.Time { return now })
}

// newLimiterAt is newLimiter with a clock, and with other limits if there are any.
func newLimiterAt(t testing.TB, now func() time.Time, others ...stint.Names) *stint.Limiter {
	names := stint.Names{
		ofA: {Label: "a", Limit: stint.PerHour(5)}, ofB: {Label: "b", Limit: stint.PerHour(5)},
		free: {Label: "free", Limit: stint.Unlimited},
	}
	for _, other := range others {
		maps.Copy(names, other)
	}
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: now})
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	return lim
}

const failed = 1 // an outcome

func isFailed(outcome int) bool { return outcome == failed }

// seen is what a program sees of a request: the decisions, and what is left of
// the first bucket.
func seen(t testing.TB, lim *stint.Limiter, p *Pass[req, int]) string {
	text := ""
	for _, d := range Decisions(p.Context()) {
		text += fmt.Sprintf("%s allowed:%t after:%t cost:%d, ", d.Label, d.Allowed, d.After, d.Cost)
	}
	return fmt.Sprintf("%s%d left", text, left(t, lim, ofA.Key("x")))
}

// left returns the tokens of a bucket.
func left(t testing.TB, lim *stint.Limiter, key stint.Key) int64 {
	t.Helper()
	b, err := lim.Bucket(key)
	require.NoError(t, err)
	return b.Remaining
}

// req is a request for the bucket x of a limit.
type req struct {
	ctx  context.Context
	cost int64
	err  error // instead of a key
}

func (r req) Context() context.Context { return r.ctx }

// rule returns a rule with the key x of a limit, and the cost of the request.
func rule(name stint.Name, as Rule[req, int]) Rule[req, int] {
	as.Key = func(r req) (stint.Key, error) { return name.Key("x"), r.err }
	if as.Cost == 0 {
		as.CostFunc = func(r req) int64 { return r.cost }
	}
	return as
}

// errorsOf returns Options that note the errors.
func errorsOf(errs *[]error) *Options[req] {
	return &Options[req]{Observers: []Observer[req]{{Error: func(_ req, err error) { *errs = append(*errs, err) }}}}
}

// begin begins a request of a cost at a door with a rule for ofA.
func begin(t testing.TB, lim stint.Decider, cost int64, as Rule[req, int]) *Pass[req, int] {
	t.Helper()
	p, _ := pass(t, New(lim, nil, rule(ofA, as)), req{ctx: t.Context(), cost: cost})
	return p
}

// pass begins a request at a door, without an error. It is used after Leave.
func pass(t testing.TB, d *Door[req, int], r req) (*Pass[req, int], stint.Decision) {
	t.Helper()
	p, decision, err := d.Begin(r)
	require.NoError(t, err)
	if p != nil {
		p.keep()
	}
	return p, decision
}

func end(p *Pass[req, int], outcome int) {
	p.End(outcome)
	p.Leave()
}

type ruleOf = Rule[req, int]

// each of these requests shows that a transition happens: without it, want is
// something else.
var requests = map[[2]int]struct {
	run  func(t testing.TB, lim *stint.Limiter) string
	want string
}{
	{int(pending), int(deny)}: {func(t testing.TB, lim *stint.Limiter) string {
		lim.Spend(ofA.Key("x"), 5)
		return seen(t, lim, begin(t, lim, 2, ruleOf{}))
	}, "a allowed:false after:false cost:2, 0 left"},
	{int(pending), int(check)}: {func(t testing.TB, lim *stint.Limiter) string {
		return seen(t, lim, begin(t, lim, 2, ruleOf{Count: isFailed}))
	}, "a allowed:true after:true cost:2, 5 left"},
	{int(pending), int(spend)}: {func(t testing.TB, lim *stint.Limiter) string {
		return seen(t, lim, begin(t, lim, 2, ruleOf{}))
	}, "a allowed:true after:false cost:2, 3 left"},
	{int(checked), int(spend)}: {func(t testing.TB, lim *stint.Limiter) string { // otherwise there is nothing to refund
		p := begin(t, lim, 2, ruleOf{Count: isFailed, Refund: isFailed})
		end(p, failed)
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:2, 5 left"},
	{int(spent), int(refund)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, lim, 2, ruleOf{Refund: isFailed})
		end(p, failed)
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:2, 5 left"},
	{int(spent), int(settle)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, lim, 2, ruleOf{Settle: true})
		short, err := Settle(p.Context(), ofA, 9)
		return fmt.Sprint(seen(t, lim, p), short, err)
	}, "a allowed:true after:false cost:5, 0 left4 <nil>"},
	{int(denied), int(settle)}: {func(t testing.TB, lim *stint.Limiter) string {
		lim.Spend(ofA.Key("x"), 4)
		p := begin(t, lim, 2, ruleOf{Settle: true, Shadow: true})
		short, err := Settle(p.Context(), ofA, 3)
		return fmt.Sprint(seen(t, lim, p), short, err)
	}, "a allowed:false after:false cost:2, 1 left3 <nil>"},
}

// TestTransitions walks the table. Each transition has a request that shows it,
// and shows something else without it. No other event changes a state.
func TestTransitions(t *testing.T) {
	for from := range state(states) {
		for on := range event(events) {
			r, ok := requests[[2]int{int(from), int(on)}]
			require.Equal(t, next[from][on] != pending, ok, "%d, %d: a transition has a request", from, on)
			if !ok {
				a := part[req, int]{state: from}
				require.False(t, a.to(on))
				require.Equal(t, from, a.state)
				continue
			}
			require.Equal(t, r.want, r.run(t, newLimiter(t)))
			after := next[from][on]
			next[from][on] = pending
			require.NotEqual(t, r.want, r.run(t, newLimiter(t)), "without %d, %d", from, on)
			next[from][on] = after
		}
	}
}

// Of two events that exclude each other, the first counts.
func TestFirstEvent(t *testing.T) {
	lim := newLimiter(t)
	both := ruleOf{Settle: true, Refund: isFailed}
	p := begin(t, lim, 3, both)
	end(p, failed)
	_, err := Settle(p.Context(), ofA, 1)
	require.ErrorIs(t, err, ErrSettled)
	require.Equal(t, "a allowed:true after:false cost:3, 5 left", seen(t, lim, p))

	p = begin(t, lim, 3, both)
	_, err = Settle(p.Context(), ofA, 1)
	require.NoError(t, err)
	end(p, failed)
	require.Equal(t, "a allowed:true after:false cost:1, 4 left", seen(t, lim, p))
	for _, name := range []stint.Name{ofB, 99} {
		_, err = Settle(p.Context(), name, 1)
		require.ErrorIs(t, err, ErrNotSettled)
	}

	p = begin(t, lim, 3, both)
	end(p, 0) // the handler has returned
	_, err = Settle(p.Context(), ofA, -1)
	require.ErrorIs(t, err, stint.ErrNegativeCost)
	_, err = Settle(p.Context(), ofA, 3)
	require.NoError(t, err, "a negative cost may be corrected")
}

// Of many settlements at the same time, one counts.
func TestSettleConcurrent(t *testing.T) {
	lim := newLimiter(t)
	p := begin(t, lim, 3, ruleOf{Settle: true})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			Settle(p.Context(), ofA, 2)
			Decisions(p.Context())
		})
	}
	all.Wait()
	require.Equal(t, "a allowed:true after:false cost:2, 3 left", seen(t, lim, p))
}

// A request spends from a bucket once at one door, and at each door.
func TestOneBucket(t *testing.T) {
	lim := newLimiter(t)
	var errs []error
	d := New(lim, nil, rule(ofA, ruleOf{Shadow: true, Cost: 3}), rule(ofA, ruleOf{Cost: 1}),
		rule(ofA, ruleOf{InFlight: 1, Cost: 2}))
	p, _ := pass(t, d, req{ctx: t.Context()})
	require.Equal(t, "a allowed:true after:false cost:1, 4 left", seen(t, lim, p), "the first that can deny spends")
	for r := range InFlightOf(lim) {
		require.Equal(t, Running{Key: ofA.Key("x"), Running: 1}, r, "and the bound of another one counts")
	}
	d = New(lim, errorsOf(&errs), rule(ofA, ruleOf{Cost: 1}), rule(ofB, ruleOf{Shadow: true, Cost: 9}))
	inner, decision := pass(t, d, req{ctx: p.Context()})
	require.True(t, decision.Allowed)
	require.Equal(t, "a allowed:true after:false cost:1, a allowed:true after:false cost:1, 3 left", seen(t, lim, inner),
		"the cost of the Shadow rule is over the burst, so that there is no decision")
	require.ErrorIs(t, errors.Join(errs...), stint.ErrCostOverBurst)
	var all []*Pass[req, int]
	for of := inner.Outer(); of != nil; of = of.Inner() {
		all = append(all, of)
	}
	require.Equal(t, []*Pass[req, int]{p, inner}, all)
	inner.Leave()
	p.Leave()
	p.Leave()
	require.Empty(t, slices.Collect(InFlightOf(lim)))
}

// Of several bounds on requests in flight with one key, the first counts, and that
// of a Shadow rule is the last.
func TestOneBound(t *testing.T) {
	lim := newLimiter(t)
	d := New(lim, nil, rule(free, ruleOf{InFlight: 9, Shadow: true}), rule(free, ruleOf{InFlight: 1}),
		rule(free, ruleOf{InFlight: 9}))
	p, _ := pass(t, d, req{ctx: t.Context()})
	_, second := pass(t, d, req{ctx: t.Context()})
	require.False(t, second.Allowed)
	d = New(lim, nil, rule(ofA, ruleOf{InFlight: 1}), rule(free, ruleOf{InFlight: 1}))
	_, second = pass(t, d, req{ctx: t.Context()})
	require.False(t, second.Allowed)
	require.Equal(t, []Running{{Key: free.Key("x"), Running: 1}}, slices.Collect(InFlightOf(lim)))
	p.Leave()
	require.Empty(t, slices.Collect(InFlightOf(lim)))

	shadow := New(lim, nil, rule(free, ruleOf{InFlight: 1, Shadow: true}))
	for running := range int64(2) {
		p, _ := pass(t, shadow, req{ctx: t.Context()})
		defer p.Leave()
		require.Equal(t, InFlight{Limit: 1, Running: running + 1, Denied: running == 1, Shadow: true}, Decisions(p.Context())[0].InFlight)
	}
}

// Each request may have a bound of its own. 0 means none.
func TestInFlightFunc(t *testing.T) {
	lim := newLimiter(t)
	most := int64(-1)
	d := New(lim, nil, rule(free, ruleOf{InFlightFunc: func(req) int64 { return most }}))
	ask := func(allowed bool) {
		t.Helper()
		p, decision := pass(t, d, req{ctx: t.Context()})
		require.Equal(t, allowed, decision.Allowed, "with the bound %d", most)
		t.Cleanup(p.Leave)
	}
	ask(false)
	for _, most = range []int64{2, 2, 3, 0} {
		ask(true)
	}
	for _, most = range []int64{3, 1, -1} {
		ask(false)
	}
}

// A request waits for its place as long as the rule and its context allow, and
// spends nothing until it has it.
func TestInFlightWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := newLimiter(t)
		d := New(lim, nil, rule(ofA, ruleOf{Cost: 1, InFlight: 1, InFlightWait: time.Hour, InFlightQueue: 1}))
		passed, begun := make(chan bool), time.Now()
		wait := func(ctx context.Context) {
			go func() {
				p, decision, err := d.Begin(req{ctx: ctx})
				passed <- err == nil && decision.Allowed
				p.Leave()
			}()
			synctest.Wait()
		}
		first, _ := pass(t, d, req{ctx: t.Context()})
		gone, cancel := context.WithCancel(t.Context())
		wait(gone)
		_, full := pass(t, d, req{ctx: t.Context()})
		require.False(t, full.Allowed, "one waits already")
		cancel()
		require.False(t, <-passed)
		require.Zero(t, time.Since(begun), "neither has waited for long")
		wait(t.Context())
		require.Equal(t, "a allowed:true after:false cost:1, 4 left", seen(t, lim, first))
		first.Leave()
		require.True(t, <-passed)
		require.Equal(t, "3 left", fmt.Sprint(left(t, lim, ofA.Key("x")), " left"))
		synctest.Wait()
		require.Empty(t, slices.Collect(InFlightOf(lim)))
	})
}

// A request that is denied its tokens gives its place back at once: to answer it may
// take long.
func TestDeniedPlace(t *testing.T) {
	lim := newLimiter(t)
	begin(t, lim, 5, ruleOf{}).Leave()
	_, decision := pass(t, New(lim, nil, rule(ofA, ruleOf{Cost: 1, InFlight: 1})), req{ctx: t.Context()})
	require.False(t, decision.Allowed)
	require.Empty(t, slices.Collect(InFlightOf(lim)))
}

// A rule that counts, and finds no tokens any more, has nothing to refund.
func TestRefundOfNothing(t *testing.T) {
	lim := newLimiter(t)
	p := begin(t, lim, 2, ruleOf{Count: isFailed, Refund: isFailed})
	begin(t, lim, 5, ruleOf{}).Leave()
	end(p, failed)
	require.Zero(t, left(t, lim, ofA.Key("x")))
}

// A request of which an observer panics has no place.
func TestPanic(t *testing.T) {
	lim := newLimiter(t)
	opts := &Options[req]{Observers: []Observer[req]{{Decisions: func(req, []Decision) { panic("oops") }}}}
	d := New(lim, opts, rule(free, ruleOf{InFlight: 1}))
	require.PanicsWithValue(t, "oops", func() { d.Begin(req{ctx: t.Context()}) })
	require.Empty(t, slices.Collect(InFlightOf(lim)))
}

// If the Refund of a rule panics, no rule has refunded, and each can do so later.
func TestPanicOfRefund(t *testing.T) {
	lim, panics := newLimiter(t), true
	d := New(lim, nil, rule(ofA, ruleOf{Cost: 1, Refund: func(int) bool { return true }}),
		rule(ofB, ruleOf{Cost: 1, Refund: func(int) bool {
			if panics {
				panic("oops")
			}
			return true
		}}))
	p, _ := pass(t, d, req{ctx: t.Context()})
	require.PanicsWithValue(t, "oops", func() { p.End(failed) })
	panics = false
	p.End(failed)
	for _, name := range []stint.Name{ofA, ofB} {
		require.EqualValues(t, 5, left(t, lim, name.Key("x")))
	}
}

// After an error of the Limiter, a request that passes because of FailOpen has its
// places until it leaves, and another one has none.
func TestFailed(t *testing.T) {
	lim := newLimiter(t)
	var errs []error
	opts := errorsOf(&errs)
	rs := []ruleOf{rule(free, ruleOf{InFlight: 1, Settle: true}), rule(ofB, ruleOf{Shadow: true})}
	lim.Close()
	_, _, err := New(lim, opts, rs...).Begin(req{ctx: t.Context(), cost: 1})
	require.ErrorIs(t, err, stint.ErrClosed)
	require.Len(t, errs, 1)
	opts.FailOpen = true
	p, d := pass(t, New(lim, opts, rs...), req{ctx: t.Context(), cost: 1})
	require.True(t, d.Allowed)
	require.ErrorIs(t, errs[1], stint.ErrClosed)
	require.Empty(t, Decisions(p.Context()))
	_, err = Settle(p.Context(), free, 1)
	require.ErrorIs(t, err, ErrNotSettled)
	for r := range InFlightOf(lim) {
		require.EqualValues(t, 1, r.Running)
	}
	end(p, failed)
	require.Empty(t, slices.Collect(InFlightOf(lim)))
}

// Errors say whose fault they are.
func TestErrors(t *testing.T) {
	lim := newLimiter(t)
	require.PanicsWithValue(t, "rules: New: no limiter", func() { New[req, int]((*stint.Limiter)(nil), nil) })
	require.Panics(t, func() { New(lim, nil, ruleOf{}) })
	for _, ru := range []ruleOf{{InFlight: -1}, {Cost: -1}, {Settle: true, LockOut: 1}, {Settle: true, Count: isFailed}} {
		require.Panics(t, func() { New(lim, nil, rule(ofA, ru)) })
	}
	own := errors.New("own")
	for _, tc := range []struct {
		rule                 ruleOf
		found                error
		applies, fails, told bool
	}{
		{ruleOf{}, nil, true, false, false},
		{ruleOf{}, ErrNoID, false, true, true},
		{ruleOf{}, own, false, true, true},
		{ruleOf{Optional: true}, fmt.Errorf("the token names no account: %w", ErrNoID), false, false, false},
		{ruleOf{Optional: true}, own, false, true, true},
		{ruleOf{Shadow: true}, own, false, false, true},
	} {
		for _, open := range []bool{false, true} {
			var errs []error
			opts := errorsOf(&errs)
			opts.FailOpen = open
			p, _, err := New(lim, opts, rule(free, tc.rule)).Begin(req{ctx: t.Context(), cost: 1, err: tc.found})
			fails := tc.fails && (!open || tc.found == ErrNoID)
			require.Equal(t, [3]bool{tc.applies, fails, tc.told}, [3]bool{p != nil, err != nil, len(errs) == 1}, "%v", tc)
		}
	}
	for name, want := range map[stint.Name]error{ofA: stint.ErrCostOverBurst, 99: stint.ErrUnknownName} {
		_, _, err := New(lim, nil, rule(name, ruleOf{})).Begin(req{ctx: t.Context(), cost: 6})
		require.ErrorIs(t, err, want)
	}
	require.Nil(t, Decisions(t.Context()))
	_, err := Settle(t.Context(), ofA, 1)
	require.ErrorIs(t, err, ErrNotSettled)
	_, err = new(Client).Begin(t.Context(), ofA.Key("x"), 1)
	require.Error(t, err)
}

// A denied pass is used again, without an allocation. What it had is gone.
func TestDenied(t *testing.T) {
	lim := newLimiter(t)
	lim.Spend(ofA.Key("x"), 5)
	sometimes := rule(ofB, ruleOf{Optional: true, Shadow: true, InFlight: 9})
	d := New(lim, nil, rule(free, ruleOf{InFlight: 9}), rule(ofA, ruleOf{Cost: 1}), sometimes)
	d.rules[0].Key = func(req) (stint.Key, error) { return free.Key("x"), nil }
	d.rules[1].Key = func(req) (stint.Key, error) { return ofA.Key("x"), nil }
	ask := func(err error) (all []Decision) {
		p, decision, got := d.Begin(req{ctx: t.Context(), cost: 1, err: err})
		require.NoError(t, got)
		require.False(t, decision.Allowed)
		for of := range p.Each {
			all = append(all, *of)
		}
		p.Leave()
		p.Leave()
		return all
	}
	three, two := ask(nil), ask(ErrNoID)
	require.Len(t, three, 3)
	require.Equal(t, three[:2], two)
	for range 10 {
		require.Equal(t, two, ask(ErrNoID))
		require.Equal(t, three, ask(nil))
	}
	require.Empty(t, slices.Collect(InFlightOf(lim)))
	if testlength.Race {
		return // it makes a sync.Pool forget
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p, _, _ := d.Begin(req{ctx: t.Context(), cost: 1})
		p.Leave()
	}))
}
