package decidertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// exported has the errors of package stint.
var exported = map[string]error{
	"ErrLocked": stint.ErrLocked, "ErrCorrupt": stint.ErrCorrupt, "ErrFormat": stint.ErrFormat,
	"ErrNameMismatch": stint.ErrNameMismatch, "ErrGone": stint.ErrGone, "ErrClosed": stint.ErrClosed,
	"ErrUnknownName": stint.ErrUnknownName, "ErrInvalidID": stint.ErrInvalidID,
	"ErrNegativeCost": stint.ErrNegativeCost, "ErrCostOverBurst": stint.ErrCostOverBurst,
	"ErrDuplicateKey": stint.ErrDuplicateKey, "ErrQueueFull": stint.ErrQueueFull, "ErrBlocked": stint.ErrBlocked,
	"ErrNotDurable": stint.ErrNotDurable, "ErrFull": stint.ErrFull,
}

// elsewhere says why no case meets an error, or which case meets it.
var elsewhere = map[string]string{
	"ErrLocked":  "of Open, which is not part of Decider",
	"ErrCorrupt": "of Open, or of a damaged file",
	"ErrFormat":  "of Open",
	"ErrFull":    "needs a full memory and a store that fails: each package tests it",

	"ErrNameMismatch": "case set limits",
	"ErrGone":         "case errors, not durable",
	"ErrNotDurable":   "case errors, not durable",
	"ErrClosed":       "case errors, closed",
	"ErrQueueFull":    "case wait, queue",
	"ErrBlocked":      "case wait",
}

// mistakes has the error of each mistaken request.
var mistakes = map[string][]stint.Request{
	"ErrUnknownName": {{Key: stint.Name(99).Key("a"), Cost: 1}, {Key: stint.Key{ID: "a"}, Cost: 1}},
	"ErrInvalidID": {{Key: plain.Key(""), Cost: 1}, {Key: everyone.Key("a"), Cost: 1},
		{Key: plain.Key(strings.Repeat("x", 513)), Cost: 1}},
	"ErrNegativeCost":  {{Key: plain.Key("a"), Cost: -1}, {Key: off.Key("a"), Cost: -1}, {Key: shut.Key("a"), Cost: -1}},
	"ErrCostOverBurst": {{Key: plain.Key("a"), Cost: 7}, {Key: plain.Key("vip"), Cost: 8}},
}

func caseErrors(e *env) {
	e.open()
	full := stint.Decision{Allowed: true}
	for name, reqs := range mistakes {
		for _, req := range reqs {
			want := exported[name]
			d, err := e.Spend(req.Key, req.Cost)
			require.ErrorIs(e, err, want, "Spend %+v", req)
			require.Zero(e, d)
			if label := usualNames()[req.Key.Name].Label; label != "" && name != "ErrInvalidID" {
				require.ErrorContains(e, err, label, "errors name limits by their labels")
			}
			d, err = e.Check(req.Key, req.Cost)
			require.ErrorIs(e, err, want, "Check %+v", req)
			require.Zero(e, d)
			for _, more := range [][]stint.Request{{req}, {{Key: plain.Key("b"), Cost: 1}, req}} {
				ds := []stint.Decision{full, full}[:len(more)]
				d, err = e.Do(context.Background(), more, ds)
				require.ErrorIs(e, err, want, "Do %+v", more)
				require.Zero(e, d)
				require.Equal(e, make([]stint.Decision, len(more)), ds, "an error never comes with permission")
				if !errors.Is(want, stint.ErrCostOverBurst) {
					d, err = e.Refund(justSpent(more)...)
					require.ErrorIs(e, err, want, "Refund %+v", more)
					require.Zero(e, d)
				}
			}
			ds := []stint.Decision{full}
			d, err = e.Do(e.Context(), []stint.Request{req}, ds)
			require.ErrorIs(e, err, want, "Do %+v", req)
			require.Zero(e, d)
			require.Zero(e, ds[0])
			if req.Key != shut.Key("a") || want != stint.ErrNegativeCost { // which of the two errors is open
				require.ErrorIs(e, errorOf(e.Wait(e.Context(), req.Key.Cost(req.Cost))), want, "Wait %+v", req)
			}
			if name == "ErrUnknownName" || name == "ErrInvalidID" {
				_, err = e.Bucket(req.Key)
				require.ErrorIs(e, err, want, "Bucket %+v", req)
				require.ErrorIs(e, errorOf(e.Hold(req.Key, e.clock.now().Add(time.Hour))), want, "Hold %+v", req)
				require.ErrorIs(e, e.SetHold(req.Key, time.Time{}), want, "SetHold %+v", req)
			}
		}
	}
	twice := []stint.Request{{Key: plain.Key("b"), Cost: 1}, {Key: other.Key("b"), Cost: 1}, {Key: plain.Key("b"), Cost: 1}}
	ds := []stint.Decision{full, full, full}
	_, err := e.Do(context.Background(), twice, ds)
	require.ErrorIs(e, err, stint.ErrDuplicateKey)
	require.ErrorContains(e, err, "plain:b")
	require.Equal(e, make([]stint.Decision, 3), ds)
	_, err = e.Refund(justSpent(twice)...)
	require.ErrorIs(e, err, stint.ErrDuplicateKey)
	_, err = e.Do(context.Background(), []stint.Request{{Key: plain.Key("b"), Cost: 1, Mode: stint.UpTo + 1}}, nil)
	require.ErrorContains(e, err, "Mode")
	require.EqualValues(e, 6, e.left(plain.Key("b")), "nothing was spent")
	require.EqualValues(e, 4, e.left(other.Key("b")))
}

// A decision that the store cannot make durable is an error. At the other levels
// decisions go on.
func caseNotDurable(e *env) {
	if !e.subject.InFile {
		e.skip("%s has no store that could fail", e.subject.Name)
	}
	e.openOwn()
	used := plain.Key("used")
	e.spend(used, 6)
	require.NoError(e, os.RemoveAll(e.config.Folder))
	e.noticed()
	require.ErrorIs(e, errorOf(e.Hold(plain.Key("a"), e.clock.now().Add(time.Hour))), stint.ErrNotDurable, "at every level")
	require.True(e, e.check(plain.Key("a"), 0).Allowed, "it is not held")
	if e.level < stint.Leased {
		require.True(e, e.spend(plain.Key("a"), 1).Allowed)
		require.NoError(e, errorOf(e.Wait(e.Context(), plain.Key("a").Cost(1))))
		_, err := e.Refund(stint.Request{Key: used, Cost: 2, Spent: inFuture})
		require.NoError(e, err)
		require.EqualValues(e, 2, e.left(used))
		return
	}
	d, err := e.Spend(plain.Key("a"), 1)
	require.ErrorIs(e, err, stint.ErrNotDurable)
	require.ErrorIs(e, err, stint.ErrGone, "the reason")
	require.Zero(e, d)
	require.ErrorIs(e, errorOf(e.Wait(e.Context(), plain.Key("a").Cost(1))), stint.ErrNotDurable)
	d, err = e.Refund(stint.Request{Key: used, Cost: 2, Spent: inFuture})
	require.ErrorIs(e, err, stint.ErrNotDurable)
	require.Zero(e, d)
	ds := []stint.Decision{{Allowed: true}, {Allowed: true}}
	d, err = e.Do(context.Background(), []stint.Request{{Key: plain.Key("a"), Cost: 1}, {Key: plain.Key("b"), Cost: 1}}, ds)
	require.ErrorIs(e, err, stint.ErrNotDurable)
	require.Zero(e, d)
	require.Equal(e, make([]stint.Decision, 2), ds)
	d, err = e.Check(plain.Key("a"), 1)
	require.NoError(e, err, "Check waits for no store")
	require.True(e, d.Allowed)
}

// noticed waits until a save has noticed that the store is broken.
func (e *env) noticed() {
	for n := 0; ; n++ {
		if _, err := e.Hold(other.Key(fmt.Sprint(n)), e.clock.now().Add(time.Hour)); err != nil {
			require.ErrorIs(e, err, stint.ErrNotDurable)
			return
		}
	}
}

// A commit that fails at the settlement: the bound stays spent, and nothing
// beside it is.
func caseSettleNotDurable(e *env) {
	if !e.subject.InFile {
		e.skip("%s has no store that could fail", e.subject.Name)
	}
	e.openOwn()
	key := plain.Key("a")
	client := rules.Client{Limiter: e.Limiter}
	less, err := client.Begin(e.Context(), key, 2)
	require.NoError(e, err)
	more, err := client.Begin(e.Context(), key, 1)
	require.NoError(e, err)
	require.NoError(e, os.RemoveAll(e.config.Folder))
	e.noticed()
	short, err := more.Settle(3)
	if e.level < stint.Leased {
		require.NoError(e, err)
		require.Zero(e, short)
		require.EqualValues(e, 1, e.left(key))
		return
	}
	require.ErrorIs(e, err, stint.ErrNotDurable)
	require.EqualValues(e, 2, short)
	require.EqualValues(e, 3, e.left(key))
	short, err = less.Settle(0)
	require.Zero(e, short)
	if err != nil {
		require.ErrorIs(e, err, stint.ErrNotDurable)
	}
	left := e.left(key)
	require.True(e, left == 5 || err != nil && left == 3, "the rest is returned, or the bound stays: %d left, %v", left, err)
}

func caseClosed(e *env) {
	e.openOwn()
	e.spend(plain.Key("a"), 1)
	limits := e.Limits()
	m := method[interface{ Close() error }](e)
	require.NoError(e, m.Close())
	for _, key := range []stint.Key{plain.Key("a"), off.Key("a"), shut.Key("a")} {
		d, err := e.Spend(key, 1)
		require.ErrorIs(e, err, stint.ErrClosed, "Spend %v", key)
		require.Zero(e, d)
		_, err = e.Check(key, 1)
		require.ErrorIs(e, err, stint.ErrClosed, "Check %v", key)
		_, err = e.Refund(stint.Request{Key: key, Cost: 1, Spent: inFuture})
		require.ErrorIs(e, err, stint.ErrClosed, "Refund %v", key)
		_, err = e.Bucket(key)
		require.ErrorIs(e, err, stint.ErrClosed, "Bucket %v", key)
		require.ErrorIs(e, errorOf(e.Wait(e.Context(), key.Cost(1))), stint.ErrClosed, "Wait %v", key)
		d, err = e.Do(e.Context(), []stint.Request{{Key: key, Cost: 1}}, nil)
		require.ErrorIs(e, err, stint.ErrClosed, "Do %v", key)
		require.Zero(e, d)
	}
	ds := []stint.Decision{{Allowed: true}, {Allowed: true}}
	_, err := e.Do(context.Background(), []stint.Request{{Key: plain.Key("a"), Cost: 1}, {Key: other.Key("b"), Cost: 1}}, ds)
	require.ErrorIs(e, err, stint.ErrClosed)
	require.Equal(e, make([]stint.Decision, 2), ds)
	_, err = e.Do(context.Background(), nil, nil)
	require.ErrorIs(e, err, stint.ErrClosed)
	require.ErrorIs(e, errorOf(e.Hold(plain.Key("a"), time.Now().Add(time.Hour))), stint.ErrClosed)
	require.ErrorIs(e, e.SetHold(plain.Key("a"), time.Time{}), stint.ErrClosed)
	if m, ok := e.Limiter.(interface {
		SetOverrides(...stint.Override) error
	}); ok {
		require.ErrorIs(e, m.SetOverrides(stint.Override{Key: plain.Key("a"), Limit: stint.Blocked}),
			stint.ErrClosed)
	}
	if m, ok := e.Limiter.(interface{ SetLimits(*stint.Limits) error }); ok {
		require.ErrorIs(e, m.SetLimits(limits), stint.ErrClosed)
	}
	if m, ok := e.Limiter.(interface{ Reset(...stint.Key) error }); ok {
		require.ErrorIs(e, m.Reset(plain.Key("a")), stint.ErrClosed)
	}
	require.Same(e, limits, e.Limits())
	require.NoError(e, m.Close(), "a second Close returns what the first did")
}
