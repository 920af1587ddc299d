package stint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

func TestAllow(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		t.Run(fmt.Sprint("fail open ", failOpen), func(t *testing.T) {
			r := rigOn(t, NewMemStore(), testLimits(t), Options{FailOpen: failOpen})
			key := perID.Key("a")
			require.True(t, r.Allow(off.Key("a")))
			require.Equal(t, failOpen, r.Allow(nobody.Key("a")))
			require.Equal(t, failOpen, r.Allow(perID.Key("")))
			r.disk.fail(errDisk)
			require.Equal(t, failOpen, r.Allow(key))
			r.disk.fail(nil)
			for range 5 { // the errors spent no token
				require.True(t, r.Allow(key))
			}
			require.False(t, r.Allow(key), "a denial is not an error")
			require.NoError(t, r.Close())
			require.Equal(t, failOpen, r.Allow(key))
		})
	}
}

func TestUnlimited(t *testing.T) {
	require.NoError(t, Unlimited.Validate())
	require.Zero(t, Unlimited.Interval())
	r := newRig(t)
	key := off.Key("a")
	want := Decision{Allowed: true, Remaining: math.MaxInt64, Key: key}
	for _, cost := range []int64{0, 1, math.MaxInt64} {
		require.Equal(t, want, r.check(key, cost))
		require.Equal(t, want, r.refund(key, cost))
		want := want
		want.Taken = cost
		require.Equal(t, want, r.spend(key, cost))
	}
	want.Taken = 7
	require.Equal(t, want, r.spendAll(Request{Key: key, Cost: 7}))
	want.Taken = 0
	require.Zero(t, r.Stats().Resident)
	r.hold(key, time.Minute)
	require.Equal(t, time.Minute, r.spend(key, 1).RetryAfter)
	require.Len(t, r.listed(off), 1)
}

// TestErrors holds every call to the same errors, each counted once, with
// nothing spent.
func TestErrors(t *testing.T) {
	r := newRig(t)
	tooLong := strings.Repeat("x", maxIDLen+1)
	good := Request{Key: perID.Key("good"), Cost: 1}
	none := func(err error) (Decision, error) { return Decision{}, err }
	calls := map[string]func(key Key, cost int64) (Decision, error){
		"Spend":  r.Spend,
		"Check":  r.Check,
		"Refund": func(key Key, cost int64) (Decision, error) { return r.Refund(key.Cost(cost).SpentAt(JustSpent)) },
		"SpendAll": func(key Key, cost int64) (Decision, error) {
			return r.SpendAll(good, Request{Key: key, Cost: cost})
		},
		"SpendAll SpendOnly": func(key Key, cost int64) (Decision, error) {
			return r.SpendAll(Request{Key: key, Cost: cost, Mode: SpendOnly}, good)
		},
		"Refund of two": func(key Key, cost int64) (Decision, error) {
			return r.Refund(Request{Key: good.Key}, Request{Key: key, Cost: cost, Spent: JustSpent})
		},
		"DoEach": func(key Key, cost int64) (Decision, error) {
			ds := []Decision{{Allowed: true}}
			err := r.DoEach(context.Background(), []Request{{Key: key, Cost: cost}}, ds)
			return ds[0], err
		},
		"Reserve": func(key Key, cost int64) (Decision, error) {
			_, err := r.Reserve(key.Cost(cost))
			return none(err)
		},
		"Wait":  func(key Key, cost int64) (Decision, error) { return none(errorOf(r.Wait(t.Context(), key.Cost(cost)))) },
		"Reset": func(key Key, _ int64) (Decision, error) { return none(r.Reset(key)) },
		"Hold":  func(key Key, _ int64) (Decision, error) { return none(errorOf(r.Hold(key, r.Now().Add(1)))) },
	}
	count := func() (n int64) {
		for _, ls := range r.Stats().Limits {
			n += ls.Errors
		}
		return n
	}
	for _, tc := range []struct {
		name string
		key  Key
		cost int64
		want error
	}{
		{"unknown name", nobody.Key("a"), 1, ErrUnknownName},
		{"name 0", Unknown.Key("a"), 1, ErrUnknownName},
		{"zero key", Key{}, 1, ErrUnknownName},
		{"no id", perID.Key(""), 1, ErrInvalidID},
		{"id of a shared limit", everyone.Key("a"), 1, ErrInvalidID},
		{"long id", perID.Key(tooLong), 1, ErrInvalidID},
		{"long id of an unknown name", nobody.Key(tooLong), 1, ErrInvalidID},
		{"negative cost", perID.Key("a"), -1, ErrNegativeCost},
		{"most negative cost", perID.Key("a"), math.MinInt64, ErrNegativeCost},
		{"cost over burst", perID.Key("a"), 6, ErrCostOverBurst},
		{"greatest cost", perID.Key("a"), math.MaxInt64, ErrCostOverBurst},
	} {
		for call, f := range calls {
			switch {
			case strings.HasPrefix(call, "Refund") && tc.want == ErrCostOverBurst:
				continue
			case (call == "Reset" || call == "Hold") && (tc.want == ErrCostOverBurst || tc.want == ErrNegativeCost):
				continue
			}
			t.Run(call+"/"+tc.name, func(t *testing.T) {
				before := count()
				d, err := f(tc.key, tc.cost)
				require.ErrorIs(t, err, tc.want)
				require.True(t, strings.HasPrefix(err.Error(), "stint: ") || call == "DoEach", "%v", err)
				require.Zero(t, d)
				require.Equal(t, before+1, count())
			})
		}
	}
	require.EqualValues(t, 5, r.left(good.Key))
	require.Len(t, r.Stats().Limits, len(testNames)+1, "one entry for all undeclared names")
	require.Zero(t, r.Stats().Limits[perID].Allowed)
	require.Empty(t, r.listed(perID))
}

func TestReset(t *testing.T) {
	r := newRig(t)
	a, b, c := perID.Key("a"), perID.Key("b"), perID.Key("c")
	for _, key := range []Key{a, b, c} {
		r.take(key, 5)
	}
	require.NoError(t, r.Reset(a, b, perID.Key("never used")))
	require.EqualValues(t, 0, r.left(c))
	require.Len(t, r.listed(perID), 1)
	require.ErrorIs(t, r.Reset(c, perID.Key(""), b), ErrInvalidID)
	require.EqualValues(t, 5, r.left(c), "keys before the one that fails are reset")
}

// TestClamp is about TATs further ahead than the limit allows, from a clock
// that was ahead.
func TestClamp(t *testing.T) {
	r := newRig(t)
	key, end, held := perID.Key("a"), perID.Key("end"), single.Key("held")
	r.take(key, 5)
	r.hold(held, time.Hour)
	require.NoError(t, r.Close())
	save(t, r.disk, Change{end, 1<<63 - 1}, Change{perID.Key("long ago"), -1 << 63},
		Change{holdKey(perID.Key("b")), -1 << 63})
	r.clock.advance(-50 * 365 * 24 * time.Hour)
	r = r.next(r.Limits())
	for _, key := range []Key{key, end} {
		d := r.check(key, 1)
		require.Equal(t, 12*time.Second, d.RetryAfter)
		require.Equal(t, time.Minute, d.ResetAfter)
	}
	require.Equal(t, (50*365*24+1)*time.Hour, r.check(held, 1).RetryAfter, "a hold is not shortened")
	r.take(perID.Key("long ago"), 5)
	r.take(perID.Key("b"), 5)
	r.clock.advance(time.Minute)
	r.take(key, 5)
}

// TestFastPath compares the fast path to the slow one, at every level: the same
// calls decide, count and save the same.
func TestFastPath(t *testing.T) {
	for name, spec := range levelNames {
		t.Run(spec.Label, func(t *testing.T) {
			fast := newLevels(t, ten)
			slow := rigAt(t, fast.clock, NewMemStore(), fast.Limits(), Options{})
			rnd := rand.New(rand.NewPCG(uint64(name), 7))
			for range 1000 {
				fast.clock.advance(time.Duration(rnd.Int64N(int64(3 * time.Second))))
				key, cost, op := name.Key(fmt.Sprint(rnd.IntN(2))), rnd.Int64N(13)-1, opSpend
				ds := make([]Decision, 1)
				var err error
				switch rnd.IntN(5) {
				case 0:
					op = opCheck
					ds[0], err = fast.Check(key, cost)
				case 1:
					cost = 1
					require.Equal(t, fast.check(key, 1).Allowed, fast.Allow(key))
					if ds[0], _ = slow.Check(key, 1); ds[0].Allowed { // as below
						ds[0].Taken = 1
					}
				case 2:
					if err = fast.DoEach(context.Background(), []Request{{Key: key, Cost: cost}}, ds); err != nil {
						err = errors.Unwrap(err.(interface{ Unwrap() []error }).Unwrap()[0])
					}
				default:
					ds[0], err = fast.Spend(key, cost)
				}
				want, wantErr := slow.slowPath(key, cost, op)
				require.Equal(t, want, ds[0])
				require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err))
				require.Equal(t, slow.bucket(key), fast.bucket(key))
				fast.rest()
				slow.rest()
				require.Equal(t, slow.stored(key), fast.stored(key))
			}
			require.Equal(t, slow.Stats().Limits, fast.Stats().Limits)
		})
	}
}

// TestDecisionAllocations counts what other goroutines allocate too, as the
// testing package does.
func TestDecisionAllocations(t *testing.T) {
	if testlength.Race {
		t.Skip("the race detector allocates")
	}
	r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: PerHour(1_000_000), single: PerDay(1)}),
		Options{Now: time.Now})
	a, b, c, gone, free := perID.Key("a"), perID.Key("some longer id"), perID.Key("c"), single.Key("a"), off.Key("a")
	three := []Request{{Key: a, Cost: 1}, {Key: b, Cost: 1}, {Key: c, Cost: 1}}
	denied := []Request{{Key: a, Cost: 1}, {Key: gone, Cost: 1}, {Key: c, Cost: 1, Mode: CheckOnly}}
	given := []Request{{Key: other.Key("a"), Cost: 1}, {Key: other.Key("b"), Cost: 1}}
	limits, n := []Limit{PerMinute(1e6), PerMinute(2e6), Unlimited, {}}, 0
	ds, refunds := make([]Decision, len(three)), justSpent(three)
	for name, call := range map[string]func(){
		"Allow":           func() { r.Allow(a) },
		"Allow denied":    func() { r.Allow(gone) },
		"Allow unlimited": func() { r.Allow(free) },
		"Spend":           func() { r.Spend(b, 1) },
		"Spend denied":    func() { r.Spend(gone, 1) },
		"Check":           func() { r.Check(b, 1) },
		"Check denied":    func() { r.Check(gone, 1) },
		"Check full":      func() { r.Check(perID.Key("nobody"), 1) },
		"Refund":          func() { r.Refund(b.Cost(1).SpentAt(JustSpent)) },
		"SpendAll":        func() { r.SpendAll(three...) },
		"SpendAll denied": func() { r.SpendAll(denied...) },
		"SpendAll literal": func() {
			r.SpendAll(Request{Key: a, Cost: 1}, Request{Key: b, Cost: 1},
				Request{Key: c, Cost: 1})
		},
		"Refund of three": func() { r.Refund(refunds...) },
		"DoEach":          func() { r.DoEach(context.Background(), three, ds) },
		"given limits": func() {
			n++
			given[0].Limit, given[1].Limit = limits[n%4], limits[n/4%4]
			r.SpendAll(given...)
			r.Do(context.Background(), given, ds)
			r.DoEach(context.Background(), given, ds)
		},
	} {
		call() // makes the buckets
		require.Zero(t, testing.AllocsPerRun(200, call), name)
	}
}

// TestStricter shows that decisions have one order: no two are stricter than
// each other, and the strictest does not depend on which comes first.
func TestStricter(t *testing.T) {
	var all []Decision
	numbers := []int64{0, 1, math.MaxInt64}
	for i := range 2 * 3 * 3 * 3 {
		wait := numbers[i/2%3]
		all = append(all, Decision{
			Allowed: wait == 0, RetryAfter: time.Duration(wait), Remaining: numbers[i/2/3%3],
			ResetAfter: time.Duration(numbers[i/2/9]), Key: Key{1, []string{"a", "b"}[i%2]},
		})
	}
	for _, a := range all {
		for _, b := range all {
			if a.Stricter(&b) == b.Stricter(&a) && a != b || a.Stricter(&b) != (a.RetryAfter > b.RetryAfter) && a.RetryAfter != b.RetryAfter ||
				a.Stricter(&b) != (a.Remaining < b.Remaining) && a.RetryAfter == b.RetryAfter && a.Remaining != b.Remaining {
				t.Errorf("%+v and %+v", a, b)
			}
			for _, c := range all {
				if a.Stricter(&b) && b.Stricter(&c) && !a.Stricter(&c) {
					t.Errorf("%+v, %+v and %+v", a, b, c)
				}
			}
		}
	}
}
