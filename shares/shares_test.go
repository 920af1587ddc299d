package shares_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/shares"
)

const (
	total stint.Name = 1 + iota
	class
	floor
	other
)

var a, b, whole = class.Key("a"), class.Key("b"), total.Key("")

// limitsOf returns a total of 6 a minute, whose classes have 5, and what floors
// promise.
func limitsOf(t *testing.T, floors map[string]int64) *stint.Limits {
	limits, err := stint.NewLimits(stint.Names{
		total: {Label: "total", IDs: stint.Single, Limit: stint.PerMinute(6)},
		class: {Label: "class", Limit: stint.PerMinute(5)},
		floor: {Label: "floor", Limit: stint.Unlimited},
		other: {Label: "other", Limit: stint.PerMinute(6)},
	})
	require.NoError(t, err)
	for id, n := range floors {
		limits, err = limits.With(stint.Override{Key: floor.Key(id), Limit: stint.PerMinute(n)})
		require.NoError(t, err)
	}
	return limits
}

// interrupted is a Decider that calls a function before each call that decides.
type interrupted struct {
	*stint.Limiter
	before func()
}

func (l *interrupted) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	l.before()
	return l.Limiter.Do(ctx, reqs, ds)
}

// newShares returns a Decider whose clock stands still, and the one below.
func newShares(t *testing.T, floors map[string]int64) (*shares.Decider, *interrupted) {
	now := time.Now()
	lim, err := stint.New(stint.NewMemStore(), limitsOf(t, floors), &stint.Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	below := &interrupted{lim, func() {}}
	s, err := shares.New(below, shares.Tree{Total: total, Class: class, Floor: floor})
	require.NoError(t, err)
	return s, below
}

func left(t *testing.T, lim stint.Decider, key stint.Key) int64 {
	bucket, err := lim.Bucket(key)
	require.NoError(t, err)
	return bucket.Remaining
}

func upTo(t *testing.T, s *shares.Decider, key stint.Key, cost int64) int64 {
	d, err := s.Do(t.Context(), []stint.Request{{Key: key, Cost: cost, Mode: stint.UpTo}}, nil)
	require.NoError(t, err)
	return d.Taken
}

// Loans leave what the floors of the limits in force promise.
func TestKept(t *testing.T) {
	s, lim := newShares(t, map[string]int64{"a": 2})
	require.Equal(t, []int64{2, 2, 2, 0}, []int64{s.Kept(total), s.Kept(class), s.Kept(floor), s.Kept(other)})
	require.NoError(t, lim.SetLimits(limitsOf(t, map[string]int64{"a": 3, "b": 1})))
	require.Equal(t, int64(4), s.Kept(class))
	require.Equal(t, int64(2), upTo(t, s, class.Key("c"), 5))
}

// UpTo takes what the total lends if the floor is held, and what others leave if they
// spend between its look and its spend.
func TestUpTo(t *testing.T) {
	s, lim := newShares(t, map[string]int64{"a": 4})
	require.NoError(t, lim.SetHold(floor.Key("a"), lim.Now().Add(time.Hour)))
	require.Equal(t, int64(2), upTo(t, s, a, 5))

	s, lim = newShares(t, nil)
	calls := 0
	lim.before = func() {
		if calls++; calls == 2 { // the first one looks
			_, err := lim.Spend(whole, 3)
			require.NoError(t, err)
		}
	}
	require.Equal(t, int64(3), upTo(t, s, a, 5))

	s, lim = newShares(t, map[string]int64{"a": 2})
	calls = 0
	lim.before = func() {
		if calls++; calls == 2 {
			_, err := lim.Spend(whole, 5)
			require.NoError(t, err)
		}
	}
	require.Equal(t, int64(1), upTo(t, s, a, 5), "a look leaves nothing in the total, after a try that did")
}

// A loan says what the floor has if that would pass next, and a held floor has nothing
// and stops no loan.
func TestLoanFromFloor(t *testing.T) {
	s, lim := newShares(t, map[string]int64{"a": 2})
	_, err := s.Spend(a, 1)
	require.NoError(t, err)
	_, err = lim.Spend(whole, 1)
	require.NoError(t, err)
	d, err := s.Check(a, 2) // leaves 2 in the total, all of them kept, and 1 in the floor
	require.NoError(t, err)
	require.Equal(t, []any{true, floor.Key("a"), stint.PerMinute(2), int64(1)}, []any{d.Allowed, d.Key, d.Limit, d.Remaining})

	s, lim = newShares(t, map[string]int64{"a": 2})
	require.NoError(t, lim.SetHold(floor.Key("a"), lim.Now().Add(time.Hour)))
	for _, cost := range []int64{1, 3} { // the floor promises 2
		d, err := s.Spend(a, cost)
		require.NoError(t, err)
		require.Equal(t, []any{true, whole}, []any{d.Allowed, d.Key}, cost)
	}
	require.Equal(t, int64(2), left(t, lim, whole))
	s, lim = newShares(t, map[string]int64{"a": 5})
	require.NoError(t, lim.SetHold(floor.Key("a"), lim.Now().Add(time.Hour)))
	d, err = s.Check(a, 2) // the total lends 1
	require.NoError(t, err)
	require.Equal(t, []any{time.Hour, floor.Key("a"), int64(0)}, []any{d.RetryAfter, d.Key, d.Remaining})
}

// A Spend has nothing of a call before, whose memory it uses.
func TestSpendAfterDo(t *testing.T) {
	for range 10 { // a sync.Pool may forget
		s, _ := newShares(t, nil)
		d, err := s.Do(t.Context(), []stint.Request{{Key: a, Cost: 1, Leave: 4}}, nil)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		d, err = s.Spend(a, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed, "it must leave none")
	}
}

// An error is about the class, not about its parts.
func TestMistake(t *testing.T) {
	s, _ := newShares(t, map[string]int64{"a": 2})
	_, err := s.Spend(a, -1)
	require.ErrorIs(t, err, stint.ErrNegativeCost)
	require.ErrorContains(t, err, "class:a")
}

// A SpendOnly share takes no part in the decision.
func TestSpendOnly(t *testing.T) {
	s, _ := newShares(t, nil)
	share := stint.Request{Key: a, Cost: 1, Mode: stint.SpendOnly}
	d, err := s.Do(t.Context(), []stint.Request{share}, nil)
	require.NoError(t, err)
	require.Equal(t, []any{true, int64(math.MaxInt64)}, []any{d.Allowed, d.Remaining})
	ds := make([]stint.Decision, 2)
	d, err = s.Do(t.Context(), []stint.Request{share, other.Key("x").Cost(1)}, ds)
	require.NoError(t, err)
	require.Equal(t, other.Key("x"), d.Key)
	require.Equal(t, []int64{3, 1}, []int64{ds[0].Remaining, ds[0].Taken})
}

// A SpendOnly share that is denied stops no other request.
func TestSpendOnlyDenied(t *testing.T) {
	s, lim := newShares(t, map[string]int64{"a": 2})
	_, err := s.Spend(b, 3)
	require.NoError(t, err)
	ds := make([]stint.Decision, 2)
	d, err := s.Do(t.Context(), []stint.Request{
		{Key: b, Cost: 2, Mode: stint.SpendOnly}, {Key: other.Key("x"), Cost: 1},
	}, ds)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, true}, []bool{d.Allowed, ds[0].Allowed, ds[1].Allowed})
	require.Equal(t, []int64{3, 5}, []int64{left(t, lim, whole), left(t, lim, other.Key("x"))})
}

// A refund gives the total tokens of its own limit, whatever the ceiling was.
func TestRefundOfOwnLimit(t *testing.T) {
	s, lim := newShares(t, nil)
	req := stint.Request{Key: a, Cost: 5, Limit: stint.PerSecond(5)}
	d, err := s.Do(t.Context(), []stint.Request{req}, nil)
	require.NoError(t, err)
	require.Equal(t, int64(1), left(t, lim, whole))
	_, err = s.Refund(req.SpentAt(d.At()))
	require.NoError(t, err)
	require.Equal(t, int64(6), left(t, lim, whole))
}

// No share of a total has a queue.
func TestWait(t *testing.T) {
	s, _ := newShares(t, map[string]int64{"a": 2})
	for _, key := range []stint.Key{a, whole, floor.Key("a")} {
		_, err := s.Wait(t.Context(), key.Cost(1))
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	_, err := s.Wait(t.Context(), other.Key("x").Cost(1))
	require.NoError(t, err)
}
