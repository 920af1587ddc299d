package rules

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

const (
	ofA stint.Name = 1 + iota
	ofB
	free
)

// newLimiter returns a Limiter whose buckets have five tokens, and whose clock
// stands still.
func newLimiter(t testing.TB) *stint.Limiter {
	limits, err := stint.NewLimits(stint.Names{ofA: {Label: "a"}, ofB: {Label: "b"}, free: {Label: "free"}}.WithLimits(map[stint.Name]stint.Limit{ofA: stint.PerHour(5), ofB: stint.PerHour(5), free: stint.Unlimited}))
	require.NoError(t, err)
	now := time.Now()
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	return lim
}

const failed = 1 // an outcome

func isFailed(outcome int) bool { return outcome == failed }

// seen is what a program sees of a request: the decisions, and what is left of
// the first bucket.
func seen(t testing.TB, lim *stint.Limiter, ctx context.Context) string {
	text := ""
	for _, d := range Decisions(ctx) {
		text += fmt.Sprintf("%s allowed:%t after:%t cost:%d, ", d.Label, d.Allowed, d.After, d.Cost)
	}
	b, err := lim.Bucket(ofA.Key("x"))
	require.NoError(t, err)
	return fmt.Sprintf("%s%d left", text, b.Remaining)
}

// each of these requests shows that a transition happens: without it, want is
// something else.
var requests = map[[2]int]struct {
	run  func(t testing.TB, lim *stint.Limiter) string
	want string
}{
	{int(pending), int(postpone)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{}), Ask{Key: ofA.Key("x"), Cost: 2, Later: true})
		return seen(t, lim, p)
	}, "5 left"},
	{int(pending), int(deny)}: {func(t testing.TB, lim *stint.Limiter) string {
		lim.Spend(ofA.Key("x"), 5)
		p := begin(t, New(lim, Rule{}), Ask{Key: ofA.Key("x"), Cost: 2})
		return seen(t, lim, p)
	}, "a allowed:false after:false cost:2, 0 left"},
	{int(pending), int(check)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{Count: isFailed}), Ask{Key: ofA.Key("x"), Cost: 2})
		return seen(t, lim, p)
	}, "a allowed:true after:true cost:2, 5 left"},
	{int(pending), int(spend)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{}), Ask{Key: ofA.Key("x"), Cost: 2})
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:2, 3 left"},
	{int(postponed), int(piece)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{}), Ask{Key: ofA.Key("x"), Later: true})
		spendPiece(t, p, 3)
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:3, 2 left"},
	{int(postponed), int(deny)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{}), Ask{Key: ofA.Key("x"), Later: true, InFlight: -1})
		return seen(t, lim, p)
	}, "a allowed:false after:false cost:0, 5 left"},
	{int(piecewise), int(piece)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{}), Ask{Key: ofA.Key("x"), Later: true})
		spendPiece(t, p, 3)
		spendPiece(t, p, 1)
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:1, 1 left"},
	{int(checked), int(spend)}: {func(t testing.TB, lim *stint.Limiter) string { // otherwise there is nothing to refund
		p := begin(t, New(lim, Rule{Count: isFailed, Refund: isFailed}), Ask{Key: ofA.Key("x"), Cost: 2})
		end(t, p, failed)
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:2, 5 left"},
	{int(spent), int(refund)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{Refund: isFailed}), Ask{Key: ofA.Key("x"), Cost: 2})
		end(t, p, failed)
		return seen(t, lim, p)
	}, "a allowed:true after:false cost:2, 5 left"},
	{int(spent), int(settle)}: {func(t testing.TB, lim *stint.Limiter) string {
		p := begin(t, New(lim, Rule{Settle: true}), Ask{Key: ofA.Key("x"), Cost: 2})
		short, err := Settle(p, ofA, 9)
		return fmt.Sprint(seen(t, lim, p), short, err)
	}, "a allowed:true after:false cost:5, 0 left4 <nil>"},
	{int(denied), int(settle)}: {func(t testing.TB, lim *stint.Limiter) string {
		lim.Spend(ofA.Key("x"), 4)
		p := begin(t, New(lim, Rule{Settle: true, Shadow: true}), Ask{Key: ofA.Key("x"), Cost: 2})
		short, err := Settle(p, ofA, 3)
		return fmt.Sprint(seen(t, lim, p), short, err)
	}, "a allowed:false after:false cost:2, 1 left3 <nil>"},
}

func begin(t testing.TB, d *Door, asks ...Ask) *Pass {
	p, _, err := d.Begin(t.Context(), func(err error) { require.NoError(t, err) }, asks...)
	require.NoError(t, err)
	return p
}

func end(t testing.TB, p *Pass, outcome int) {
	p.End(outcome, func(err error) { require.NoError(t, err) })
	p.Leave()
}

func spendPiece(t testing.TB, p *Pass, cost int64) {
	_, _, err := p.Spend(t.Context(), func(int) (int64, bool) { return cost, true }, nil)
	require.NoError(t, err)
}

// TestTransitions walks the table. Each transition has a request that shows it,
// and shows something else without it. No other event changes a state.
func TestTransitions(t *testing.T) {
	for from := range state(states) {
		for on := range event(events) {
			r, ok := requests[[2]int{int(from), int(on)}]
			require.Equal(t, next[from][on] != pending, ok, "%d, %d: a transition has a request", from, on)
			if !ok {
				a := Part{state: from}
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
	d := New(lim, Rule{Settle: true, Refund: isFailed})
	p := begin(t, d, Ask{Key: ofA.Key("x"), Cost: 3})
	end(t, p, failed)
	_, err := Settle(p, ofA, 1)
	require.ErrorIs(t, err, ErrSettled)
	require.Equal(t, "a allowed:true after:false cost:3, 5 left", seen(t, lim, p))

	p = begin(t, d, Ask{Key: ofA.Key("x"), Cost: 3})
	_, err = Settle(p, ofA, 1)
	require.NoError(t, err)
	end(t, p, failed)
	require.Equal(t, "a allowed:true after:false cost:1, 4 left", seen(t, lim, p))
	for _, name := range []stint.Name{ofB, 99} {
		_, err = Settle(p, name, 1)
		require.ErrorIs(t, err, ErrNotSettled)
	}
	_, err = Settle(p, ofA, -1)
	require.ErrorIs(t, err, stint.ErrNegativeCost)
}

// A request spends from a bucket once at one door, and at each door.
func TestOneBucket(t *testing.T) {
	lim := newLimiter(t)
	d := New(lim, Rule{Shadow: true}, Rule{}, Rule{InFlight: 1})
	x := ofA.Key("x")
	p := begin(t, d, Ask{Key: x, Cost: 3}, Ask{Rule: 1, Key: x, Cost: 1}, Ask{Rule: 2, Key: x, Cost: 2})
	require.Equal(t, "a allowed:true after:false cost:1, 4 left", seen(t, lim, p), "the first that can deny spends")
	for r := range InFlightOf(lim) {
		require.Equal(t, Running{Key: x, Running: 1}, r, "and the bound of another one counts")
	}
	inner, decision, err := d.Begin(p, nil, Ask{Rule: 1, Key: x, Cost: 1}, Ask{Key: ofB.Key("x"), Cost: 9})
	require.NoError(t, err)
	require.True(t, decision.Allowed)
	require.Equal(t, "a allowed:true after:false cost:1, a allowed:true after:false cost:1, 3 left", seen(t, lim, inner),
		"the cost of the Shadow rule is over the burst, so that there is no decision")
	inner.Leave()
	p.Leave()
	p.Leave()
	for r := range InFlightOf(lim) {
		t.Errorf("%v is left", r)
	}
}

// After an error of the Limiter, a request has its places until it leaves, if the
// door lets it pass.
func TestFailed(t *testing.T) {
	lim := newLimiter(t)
	d := New(lim, Rule{InFlight: 1, Settle: true}, Rule{Shadow: true})
	lim.Close()
	asks := []Ask{{Key: free.Key("x"), Cost: 1}, {Rule: 1, Key: ofB.Key("x"), Cost: 1}}
	_, _, err := d.Begin(t.Context(), nil, asks...)
	require.ErrorIs(t, err, stint.ErrClosed)
	require.False(t, IsInvalid(err))
	var parts []Part
	for i := range asks {
		ok, err := d.Resolve(&asks[i], nil)
		require.NoError(t, err)
		require.True(t, ok)
		parts = d.Add(parts, &asks[i])
	}
	_, err = d.Decide(t.Context(), parts, nil)
	require.ErrorIs(t, err, stint.ErrClosed)
	p := new(Pass)
	p.Carry(t.Context(), d, parts)
	require.Empty(t, Decisions(p))
	_, err = Settle(p, free, 1)
	require.ErrorIs(t, err, ErrNotSettled)
	for r := range InFlightOf(lim) {
		require.EqualValues(t, 1, r.Running)
	}
	end(t, p, failed)
	for r := range InFlightOf(lim) {
		t.Errorf("%v is left", r)
	}
}

// Errors say whose fault they are.
func TestErrors(t *testing.T) {
	lim := newLimiter(t)
	require.PanicsWithValue(t, "rules: New: no limiter", func() { New((*stint.Limiter)(nil)) })
	for _, ru := range []Rule{{InFlight: -1}, {Settle: true, LockOut: 1}, {Settle: true, Count: isFailed}} {
		require.Panics(t, func() { New(lim, ru) })
	}
	own := errors.New("own")
	d := New(lim, Rule{}, Rule{Optional: true}, Rule{Shadow: true})
	for _, tc := range []struct {
		rule          int
		found         error
		ok, fails, to bool
	}{
		{0, nil, true, false, false}, {0, ErrNoID, false, true, false}, {0, own, false, true, false},
		{1, ErrNoID, false, false, false}, {1, own, false, true, false}, {2, own, false, false, true},
	} {
		reported := false
		ok, err := d.Resolve(&Ask{Rule: tc.rule, Key: ofA.Key("x"), Err: tc.found}, func(error) { reported = true })
		require.Equal(t, [3]bool{tc.ok, tc.fails, tc.to}, [3]bool{ok, err != nil, reported}, "%v", tc)
		require.Equal(t, tc.fails && tc.found == ErrNoID, IsInvalid(err))
	}
	_, _, err := d.Begin(t.Context(), nil, Ask{Key: ofA.Key("x"), Cost: 6})
	require.True(t, IsInvalid(err), "more than the burst: %v", err)
	_, _, err = d.Begin(t.Context(), nil, Ask{Key: stint.Name(99).Key("x"), Cost: 1})
	require.ErrorIs(t, err, stint.ErrUnknownName)
	require.False(t, IsInvalid(err))
	require.Nil(t, Decisions(t.Context()))
	_, err = Settle(t.Context(), ofA, 1)
	require.ErrorIs(t, err, ErrNotSettled)
}
