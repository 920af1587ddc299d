package rules

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// If one rule denies, the decisions of the others have the state without the
// request.
func TestDecisionsOfADenial(t *testing.T) {
	for _, limits := range [][2]stint.Limit{
		{stint.PerMinute(2), stint.EachDay(5, time.UTC)}, {stint.PerMinute(5), stint.EachDay(2, time.UTC)},
		{stint.Blocked, stint.EachDay(5, time.UTC)}, {stint.Blocked, stint.PerHour(5)}, {stint.PerHour(2), stint.Unlimited},
	} {
		lim := newLimiterAt(t, func() time.Time { return noon }, stint.Names{ofA: {Label: "a", Limit: limits[0]}, ofB: {Label: "b", Limit: limits[1]}})
		d := New(lim, nil, rule(ofA, ruleOf{Cost: 1}), rule(ofB, ruleOf{Cost: 1}))
		for n := range 3 {
			p, decision := pass(t, d, req{ctx: t.Context()})
			require.Equal(t, n < 2 && limits[0] != stint.Blocked, decision.Allowed)
			for shown := range p.Each {
				want, err := lim.Check(shown.RuleKey, 0)
				require.NoError(t, err)
				require.Equal(t, want.Remaining, shown.Remaining)
				require.Equal(t, want.ResetAfter, shown.ResetAfter)
			}
			p.Leave()
		}
	}
}

// watched is a Decider that counts the calls that decide, each of which may be a
// round trip, and keeps the context of the last one.
type watched struct {
	stint.Decider
	calls int
	ctx   context.Context
}

func (w *watched) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	w.calls++
	w.ctx = ctx
	return w.Decider.Do(ctx, reqs, ds)
}

// All rules that can deny are decided in one call, with the context of the request:
// if its client is gone, it does not wait for the disk.
func TestOneCall(t *testing.T) {
	all := []ruleOf{
		rule(ofA, ruleOf{Cost: 2}), rule(free, ruleOf{Cost: 1}), rule(ofB, ruleOf{Cost: 1, Count: isFailed}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for n := 1; n <= len(all); n++ {
		lim := &watched{Decider: newLimiter(t)}
		d := New(lim, nil, all[:n]...)
		for _, allowed := range []bool{true, true, false} {
			lim.calls, lim.ctx = 0, nil
			p, decision := pass(t, d, req{ctx: ctx})
			require.Equal(t, 1, lim.calls, "%d rules", n)
			require.Equal(t, ctx, lim.ctx)
			require.Equal(t, allowed, decision.Allowed)
			if allowed {
				require.Len(t, Decisions(p.Context()), n)
			}
			p.Leave()
		}
	}
	lim := &watched{Decider: newLimiter(t)}
	pass(t, New(lim, nil, rule(ofA, ruleOf{Shadow: true})), req{ctx: ctx, cost: 1})
	require.Equal(t, ctx, lim.ctx)
}

// A missing place is why a request was denied, unless only a Shadow rule wanted one.
func TestVerdict(t *testing.T) {
	full := InFlight{Limit: 1, Running: 1, Denied: true}
	over := InFlight{Limit: 1, Running: 2, Denied: true, Shadow: true}
	for _, c := range []struct {
		allowed, shadow bool
		inFlight        InFlight
		want            Verdict
	}{
		{true, false, InFlight{}, Verdict{}},
		{false, false, InFlight{}, Verdict{Denied: true}},
		{true, true, InFlight{}, Verdict{Shadow: true}},
		{false, true, InFlight{}, Verdict{Denied: true, Shadow: true}},
		{false, false, full, Verdict{Denied: true, InFlight: true}},
		{true, true, over, Verdict{Denied: true, Shadow: true, InFlight: true}},
		{true, false, over, Verdict{Denied: true, Shadow: true, InFlight: true}},
		{false, false, over, Verdict{Denied: true}},
	} {
		d := Decision{Shadow: c.shadow, InFlight: c.inFlight}
		d.Allowed = c.allowed
		require.Equal(t, c.want, d.Verdict(), "%+v", c)
	}
}
