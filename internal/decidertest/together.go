package decidertest

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func caseTogether(e *env) {
	e.open()
	a, b := plain.Key("a"), other.Key("a")
	reqs := []stint.Request{{Key: off.Key("x"), Cost: 9}, {Key: b, Cost: 1}, {Key: a, Cost: 3}, {Key: everyone.Key("")}}
	d, ds := e.together(reqs...)
	require.Equal(e, []stint.Decision{
		e.at(stint.Decision{Allowed: true, Remaining: math.MaxInt64, Key: off.Key("x"), Limit: stint.Unlimited}),
		e.decision(b, 15*time.Minute, 0), e.decision(a, 3*token, 0), e.decision(everyone.Key(""), 0, 0),
	}, ds)
	require.Equal(e, ds[1], d, "3 left each: the longer ResetAfter is stricter")
	d, _ = e.together(stint.Request{Key: b, Cost: 1}, stint.Request{Key: a, Cost: 2})
	require.Equal(e, e.decision(a, 5*token, 0), d, "the fewest left")
	ds = make([]stint.Decision, 3)
	_, err := e.Do(context.Background(), []stint.Request{{Key: a, Cost: 1}}, ds)
	require.NoError(e, err)
	ds[0] = e.rest(ds[0], 1)
	require.Equal(e, []stint.Decision{e.decision(a, 6*token, 0), {}, {}}, ds, "further decisions stay")
}

func caseTogetherDenied(e *env) {
	e.open()
	a, b, c := plain.Key("a"), other.Key("a"), plain.Key("c")
	e.spend(a, 6)
	e.spend(b, 4)
	d, ds := e.together(stint.Request{Key: c, Cost: 2}, stint.Request{Key: a, Cost: 2}, stint.Request{Key: b, Cost: 1})
	require.Equal(e, e.decision(b, time.Hour, 15*time.Minute), d, "the longest RetryAfter is the strictest")
	require.Equal(e, []stint.Decision{e.decision(c, 2*token, 0), e.decision(a, 6*token, 2*token), d}, ds,
		"the others are what Check returns")
	require.EqualValues(e, 6, e.left(c))
	e.clock.pass(d.RetryAfter)
	d, _ = e.together(stint.Request{Key: c, Cost: 2}, stint.Request{Key: a, Cost: 2}, stint.Request{Key: b, Cost: 1})
	require.True(e, d.Allowed)
}

func caseModes(e *env) {
	e.open()
	a, b, c := plain.Key("a"), plain.Key("b"), plain.Key("c")
	reqs := []stint.Request{{Key: a, Cost: 4, Mode: stint.SpendOnly}, {Key: b, Cost: 2, Mode: stint.CheckOnly}, {Key: c, Cost: 1}}
	d, ds := e.together(reqs...)
	require.Equal(e, ds[1], d, "SpendOnly takes no part")
	require.Equal(e, []stint.Decision{e.decision(a, 4*token, 0), e.decision(b, 2*token, 0), e.decision(c, token, 0)}, ds)
	require.Equal(e, []int64{2, 6, 5}, []int64{e.left(a), e.left(b), e.left(c)})
	d, ds = e.together(reqs...)
	require.True(e, d.Allowed)
	require.Equal(e, e.decision(a, 4*token, 2*token), ds[0], "denied alone")
	require.Equal(e, []int64{2, 6, 4}, []int64{e.left(a), e.left(b), e.left(c)})
	e.spend(b, 5)
	d, _ = e.together(reqs...)
	require.Equal(e, b, d.Key)
	require.False(e, d.Allowed)
	require.EqualValues(e, 4, e.left(c))
	d, _ = e.together(stint.Request{Key: a, Cost: 1, Mode: stint.SpendOnly})
	require.Equal(e, e.at(stint.Decision{Allowed: true, Remaining: math.MaxInt64}), d, "no request takes part")
	require.EqualValues(e, 1, e.left(a))
	d, _ = e.together(stint.Request{Key: a, Cost: 2, Mode: stint.CheckOnly})
	require.Equal(e, e.decision(a, 5*token, token), d)
}

func caseMany(e *env) {
	e.open()
	reqs := make([]stint.Request, 200)
	for i := range reqs {
		reqs[i] = stint.Request{Key: plain.Key(fmt.Sprint(i)), Cost: 3}
	}
	for call := range 3 {
		d, _ := e.together(reqs...)
		require.Equal(e, call < 2, d.Allowed)
	}
	_, err := e.Refund(justSpent(reqs[:100])...)
	require.NoError(e, err)
	require.Eventually(e, func() bool { return e.left(plain.Key("1")) == 3 }, 20*time.Second, time.Millisecond,
		"what a denied call took is back")
	require.Eventually(e, func() bool { return e.left(plain.Key("150")) == 0 }, 20*time.Second, time.Millisecond)
}

func caseNilDecisions(e *env) {
	e.open()
	a := plain.Key("a")
	d, err := e.Do(context.Background(), []stint.Request{{Key: a, Cost: 2}, {Key: other.Key("a"), Cost: 1}}, nil)
	require.NoError(e, err)
	require.Equal(e, other.Key("a"), d.Key)
	d, err = e.Do(context.Background(), []stint.Request{{Key: a, Cost: 1}}, nil)
	require.NoError(e, err)
	require.Equal(e, e.decision(a, 3*token, 0), e.rest(d, 1))
	_, err = e.Do(context.Background(), make([]stint.Request, 2), make([]stint.Decision, 1))
	require.Error(e, err, "too few decisions are a mistake")
}

func caseNoRequests(e *env) {
	e.open()
	want := e.at(stint.Decision{Allowed: true, Remaining: math.MaxInt64})
	d, _ := e.together()
	require.Equal(e, want, d)
	d, err := e.Refund()
	require.NoError(e, err)
	require.Equal(e, want, d)
}

func caseRefundSeveral(e *env) {
	e.open()
	a, b, c := plain.Key("a"), other.Key("a"), plain.Key("c")
	reqs := []stint.Request{{Key: a, Cost: 4}, {Key: b, Cost: 3}, {Key: c, Cost: 2, Mode: stint.CheckOnly}}
	e.spend(c, 1)
	e.together(reqs...)
	d, err := e.Refund(justSpent(reqs)...)
	require.NoError(e, err)
	require.True(e, d.Allowed)
	require.Equal(e, []int64{6, 4, 5}, []int64{e.left(a), e.left(b), e.left(c)}, "CheckOnly returns nothing")
	require.Equal(e, e.decision(b, 0, 0), d, "the fewest left")
	e.spend(a, 6)
	require.Error(e, errorOf(e.Refund(a.Cost(2))), "without Spent")
	d, err = e.Refund(stint.Request{Key: a, Cost: 2, Spent: inFuture})
	require.NoError(e, err)
	require.Equal(e, e.decision(a, 4*token, 0), d)
	d, err = e.Refund(stint.Request{Key: shut.Key("a"), Cost: 1, Spent: inFuture}, stint.Request{Key: off.Key("a"), Cost: 1, Spent: inFuture})
	require.NoError(e, err)
	require.True(e, d.Allowed)
}

func caseGiven(e *env) {
	e.open()
	key, given := plain.Key("a"), stint.PerMinute(3)
	ask := func(cost int64, l stint.Limit) stint.Decision {
		d, ds := e.together(stint.Request{Key: key, Cost: cost, Limit: l})
		require.Equal(e, d, ds[0])
		return d
	}
	d := ask(1, given)
	require.Equal(e, e.at(stint.Decision{Allowed: true, Remaining: 2, ResetAfter: 20 * time.Second, Key: key, Limit: given}), d)
	require.EqualValues(e, 4, e.left(key), "one bucket for both limits")
	require.True(e, ask(2, given).Allowed)
	d = ask(1, given)
	require.False(e, d.Allowed)
	require.Equal(e, 20*time.Second, d.RetryAfter)
	require.Equal(e, stint.Unlimited, ask(1, stint.Unlimited).Limit)
	require.Equal(e, stint.Blocked, ask(1, stint.Blocked).Limit)
	free := stint.Request{Key: off.Key("a"), Cost: 2, Limit: given}
	d, _ = e.together(free)
	require.Equal(e, e.at(stint.Decision{Allowed: true, Remaining: 1, ResetAfter: 40 * time.Second, Key: free.Key, Limit: given}), d)
	d, err := e.Refund(free.SpentAt(inFuture))
	require.NoError(e, err)
	require.EqualValues(e, 3, d.Remaining)
	d, ds := e.together(stint.Request{Key: plain.Key("b"), Cost: 3, Limit: given}, stint.Request{Key: off.Key("b"), Cost: 1, Limit: given})
	require.Equal(e, ds[0], d)
	require.Equal(e, []int64{0, 2}, []int64{ds[0].Remaining, ds[1].Remaining})
}

func caseGivenLevels(e *env) {
	e.open()
	for level := stint.Memory; level <= stint.Synced; level++ {
		given := stint.PerMinute(6)
		given.Durability = level
		for _, key := range []stint.Key{plain.Key(level.String()), off.Key(level.String())} {
			for n := range 7 {
				d, _ := e.together(stint.Request{Key: key, Cost: 1, Limit: given})
				require.Equal(e, n < 6, d.Allowed)
				d.Limit.Durability = level // zero stands for the Decider's own level
				require.Equal(e, given, d.Limit)
			}
		}
	}
}

func caseGivenMistakes(e *env) {
	e.open()
	for _, wrong := range []stint.Limit{{Burst: 5}, {Burst: -1, Count: 1, Period: 1}, {Burst: 1, Count: 1, Period: 1, Queue: -1},
		{Burst: 1, Count: 1, Period: 1, Durability: 9}} {
		var mistake *stint.ConfigError
		ds := []stint.Decision{{Allowed: true}, {Allowed: true}}
		_, err := e.Do(context.Background(), []stint.Request{{Key: plain.Key("a"), Cost: 1}, {Key: plain.Key("b"), Cost: 1, Limit: wrong}}, ds)
		require.ErrorAs(e, err, &mistake)
		require.Equal(e, make([]stint.Decision, 2), ds)
	}
	require.EqualValues(e, 6, e.left(plain.Key("a")))
}

// A refund with the instant of the spend returns only what time has not brought
// back.
func caseSpent(e *env) {
	e.open()
	key := plain.Key("a")
	spent := e.clock.now()
	e.spend(key, 6)
	e.clock.pass(4 * token)
	d, err := e.Refund(stint.Request{Key: key, Cost: 6, Spent: spent})
	require.NoError(e, err)
	require.Equal(e, e.decision(key, 0, 0), d)
	e.spend(key, 6)
	d, err = e.Refund(stint.Request{Key: key, Cost: 3, Spent: spent})
	require.NoError(e, err)
	require.Equal(e, e.decision(key, 6*token, 0), d, "time brought back more than 3 since then")
	d, err = e.Refund(stint.Request{Key: key, Cost: 5, Spent: spent})
	require.NoError(e, err)
	require.Equal(e, e.decision(key, 5*token, 0), d)
	d, err = e.Refund(stint.Request{Key: key, Cost: 2, Spent: e.clock.now()})
	require.NoError(e, err)
	require.Equal(e, e.decision(key, 3*token, 0), d)
}

// caseSlowWait refunds, and settles, after a Wait that took its tokens and returned
// after two more have come back, as one with a slow commit does.
func caseSlowWait(e *env) {
	e.open()
	wait := func(id string) (stint.Key, time.Time) {
		for n := int64(1); ; n++ { // some Deciders read the clock before they decide
			key := plain.Key(fmt.Sprint(id, n))
			e.clock.passAfter(n, 2*token)
			d, err := e.Wait(e.Context(), key.Cost(3))
			e.clock.passAfter(0, 0)
			require.NoError(e, err)
			if e.left(key) == 5 {
				require.True(e, e.spend(key, 5).Allowed)
				return key, d.At()
			}
			require.Less(e, n, int64(20), "no decision came before the time passed")
		}
	}
	key, spent := wait("refunded")
	_, err := e.Refund(key.Cost(3).SpentAt(spent))
	require.NoError(e, err)
	require.EqualValues(e, 1, e.left(key), "two of three tokens have come back with time")
}

// DoEach decides each request by itself. Later requests for a key see what earlier
// ones spent, and the error says by index what failed.
func caseEach(e *env) {
	e.open()
	l := method[interface {
		DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error
	}](e)
	key := plain.Key("a") // 6 a minute
	some := stint.Request{Key: key, Cost: 4, Mode: stint.UpTo}
	reqs := []stint.Request{
		some, plain.Key("b").Cost(7), some, {Key: key, Cost: -1}, {Key: key, Cost: 1, Mode: stint.CheckOnly},
		{Key: plain.Key("c"), Cost: 2, Mode: stint.SpendOnly}, plain.Key("").Cost(1), some, shut.Key("a").Cost(1),
	}
	ds := make([]stint.Decision, len(reqs))
	err := l.DoEach(e.Context(), reqs, ds)
	var each stint.EachError
	require.ErrorAs(e, err, &each)
	require.Len(e, each, len(reqs))
	wrong := map[int]error{1: stint.ErrCostOverBurst, 3: stint.ErrNegativeCost, 6: stint.ErrInvalidID}
	for i, err := range each {
		require.ErrorIs(e, err, wrong[i], "request %d", i)
		if err != nil {
			require.Zero(e, ds[i], "request %d", i)
			require.ErrorContains(e, each, fmt.Sprintf("request %d: ", i))
			continue
		}
		ds[i] = e.rest(ds[i], ds[i].Taken)
	}
	denied := e.decision(key, 6*token, token)
	require.Equal(e, []stint.Decision{
		e.decision(key, 4*token, 0), {}, e.decision(key, 6*token, 0), {}, denied,
		e.decision(plain.Key("c"), 2*token, 0), {}, denied, e.at(stint.Decision{Key: shut.Key("a"), Limit: stint.Blocked, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64}),
	}, ds)
	require.NoError(e, l.DoEach(e.Context(), reqs[:1], ds[:1]))
	require.NoError(e, l.DoEach(e.Context(), nil, nil))
	require.Error(e, l.DoEach(e.Context(), []stint.Request{key.Cost(0), plain.Key("c").Cost(1)}, ds[:1]))
	require.EqualValues(e, 4, e.left(plain.Key("c")), "nothing is decided without room for the decisions")
}
