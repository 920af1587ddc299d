package rules

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// takeOut leaves what a Check of cost 0 says.
func TestTakeOut(t *testing.T) {
	for _, limit := range []stint.Limit{
		stint.PerHour(5), stint.EachDay(5, time.UTC), stint.Unlimited, stint.PerHour(1),
	} {
		now := noon
		lim := newLimiterAt(t, &now, stint.Names{ofA: {Label: "a", Limit: limit}})
		for range 6 {
			want, err := lim.Check(ofA.Key("a"), 0)
			require.NoError(t, err)
			got, err := lim.Check(ofA.Key("a"), 1)
			require.NoError(t, err)
			if !got.Allowed {
				want = got
			}
			takeOut(&got, 1)
			require.Equal(t, want, got, limit)
			_, err = lim.Spend(ofA.Key("a"), 1)
			require.NoError(t, err)
		}
	}
}

// If one rule denies, the decisions of the others have the state without the
// request.
func TestDecisionsOfADenial(t *testing.T) {
	for _, limits := range [][2]stint.Limit{
		{stint.PerMinute(2), stint.EachDay(5, time.UTC)}, {stint.PerMinute(5), stint.EachDay(2, time.UTC)},
		{stint.Blocked, stint.EachDay(5, time.UTC)},
	} {
		now := noon
		lim := newLimiterAt(t, &now, stint.Names{ofA: {Label: "a", Limit: limits[0]}, ofB: {Label: "b", Limit: limits[1]}})
		d := New(lim, nil, rule(ofA, ruleOf{Cost: 1}), rule(ofB, ruleOf{Cost: 1}))
		for n := range 3 {
			p, decision, err := d.Begin(req{ctx: t.Context()})
			require.NoError(t, err)
			require.Equal(t, n < 2 && !limits[0].IsBlocked(), decision.Allowed)
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

// callCounter is a Decider that counts the calls that decide, each of which may be
// a round trip.
type callCounter struct {
	stint.Decider
	calls int
}

func (c *callCounter) Do(
	ctx context.Context, reqs []stint.Request, ds []stint.Decision,
) (stint.Decision, error) {
	c.calls++
	return c.Decider.Do(ctx, reqs, ds)
}

// All rules that can deny are decided in one call.
func TestOneCall(t *testing.T) {
	all := []ruleOf{
		rule(ofA, ruleOf{Cost: 2}), rule(free, ruleOf{Cost: 1}), rule(ofB, ruleOf{Cost: 1, Count: isFailed}),
	}
	for n := 1; n <= len(all); n++ {
		counter := &callCounter{Decider: newLimiter(t)}
		d := New(counter, nil, all[:n]...)
		for _, allowed := range []bool{true, true, false} {
			counter.calls = 0
			p, decision, err := d.Begin(req{ctx: t.Context()})
			require.NoError(t, err)
			require.Equal(t, 1, counter.calls, "%d rules", n)
			require.Equal(t, allowed, decision.Allowed)
			if allowed {
				require.Len(t, Decisions(p), n)
			}
			p.Leave()
		}
	}
}
