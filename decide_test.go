package stint

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
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
		"Refund": func(key Key, cost int64) (Decision, error) { return r.Refund(key.Cost(cost).SpentAt(inFuture)) },
		"SpendAll": func(key Key, cost int64) (Decision, error) {
			return r.SpendAll(good, Request{Key: key, Cost: cost})
		},
		"SpendAll SpendOnly": func(key Key, cost int64) (Decision, error) {
			return r.SpendAll(Request{Key: key, Cost: cost, Mode: SpendOnly}, good)
		},
		"Refund of two": func(key Key, cost int64) (Decision, error) {
			return r.Refund(Request{Key: good.Key}, Request{Key: key, Cost: cost, Spent: inFuture})
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
	count := func(name Name) (all, ofName int64) {
		st := r.Stats().Limits
		for _, ls := range st {
			all += ls.Errors
		}
		if _, declared := r.Limits().Spec(name); !declared {
			name = Unknown
		}
		return all, st[name].Errors
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
				all, ofName := count(tc.key.Name)
				d, err := f(tc.key, tc.cost)
				require.ErrorIs(t, err, tc.want)
				require.True(t, strings.HasPrefix(err.Error(), "stint: ") || call == "DoEach", "%v", err)
				require.Zero(t, d)
				isAll, isOfName := count(tc.key.Name)
				require.Equal(t, all+1, isAll)
				require.Equal(t, ofName+1, isOfName)
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
	r.clock.Advance(-50 * 365 * 24 * time.Hour)
	r = r.next(r.Limits())
	for _, key := range []Key{key, end} {
		d := r.check(key, 1)
		require.Equal(t, 12*time.Second, d.RetryAfter)
		require.Equal(t, time.Minute, d.ResetAfter)
	}
	require.Equal(t, (50*365*24+1)*time.Hour, r.check(held, 1).RetryAfter, "a hold is not shortened")
	r.take(perID.Key("long ago"), 5)
	r.take(perID.Key("b"), 5)
	r.clock.Advance(time.Minute)
	r.take(key, 5)
}

// TestFastPath compares the fast path to the slow one, at every level: the same
// calls decide, count and save the same.
func TestFastPath(t *testing.T) {
	for name, spec := range levelNames {
		t.Run(spec.Label, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fast := newLevels(t, ten)
				slow := rigAt(t, fast.clock, NewMemStore(), fast.Limits(), Options{})
				rnd := rand.New(rand.NewPCG(uint64(name), 7))
				for range 1000 {
					fast.clock.Advance(time.Duration(rnd.Int64N(int64(3 * time.Second))))
					key, cost, mode := name.Key(fmt.Sprint(rnd.IntN(2))), rnd.Int64N(13)-1, CheckAndSpend
					ds := make([]Decision, 1)
					leave := int64(0)
					var err error
					switch rnd.IntN(6) {
					case 0:
						mode = CheckOnly
						ds[0], err = fast.Check(key, cost)
					case 1:
						cost = 1
						require.Equal(t, fast.check(key, 1).Allowed, fast.Allow(key))
						if ds[0], _ = slow.Check(key, 1); ds[0].Allowed { // as below
							ds[0].Taken = 1
						}
					case 2:
						leave = rnd.Int64N(13) - 1
						if err = fast.DoEach(context.Background(), []Request{{Key: key, Cost: cost, Leave: leave}}, ds); err != nil {
							err = eachOf(t, err, 1)[0]
						}
					case 3:
						leave = rnd.Int64N(13) - 1
						ds[0], err = fast.Do(context.Background(), []Request{{Key: key, Cost: cost, Leave: leave}}, nil)
					default:
						ds[0], err = fast.Spend(key, cost)
					}
					var want Decision
					one := []Request{{Key: key, Cost: cost, Leave: leave, Mode: mode}}
					wantErr := slow.slowPath(context.Background(), one, &want, nil, false)
					require.Equal(t, want, ds[0])
					require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err))
					require.Equal(t, slow.bucket(key), fast.bucket(key))
					fast.rest()
					slow.rest()
					require.Equal(t, slow.stored(key), fast.stored(key))
				}
				require.Equal(t, slow.Stats().Limits, fast.Stats().Limits)
			})
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
		"Refund":          func() { r.Refund(b.Cost(1).SpentAt(inFuture)) },
		"SpendAll":        func() { r.SpendAll(three...) },
		"SpendAll denied": func() { r.SpendAll(denied...) },
		"SpendAll literal": func() {
			r.SpendAll(Request{Key: a, Cost: 1}, Request{Key: b, Cost: 1},
				Request{Key: c, Cost: 1})
		},
		"Refund of three": func() { r.Refund(refunds...) },
		"DoEach":          func() { r.DoEach(context.Background(), three, ds) },
		"DoEach literal":  func() { r.DoEach(context.Background(), []Request{{Key: a, Cost: 1}, {Key: b, Cost: 1}}, ds) },
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

func TestDo(t *testing.T) {
	a, b, shared, free := perID.Key("a"), perID.Key("b"), everyone.Key(""), off.Key("x")
	reqs := []Request{{Key: free, Cost: 1}, {Key: shared, Cost: 1}, {Key: a, Cost: 2}, {Key: b, Cost: 1}}
	for name, path := range map[string][]Request{"fast path": reqs[1:], "slow path": reqs} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for range 2 { // on buckets that are not in memory, and on those that are
				r.spendAll(path...)
				r.decided(r.Refund(justSpent(path)...))
			}
			ds := make([]Decision, len(path)+1)
			for call := range 3 {
				var want []Decision
				for _, req := range path {
					want = append(want, r.check(req.Key, req.Cost))
				}
				d := r.decided(r.Do(context.Background(), path, ds))
				require.Equal(t, call < 2, d.Allowed)
				require.Contains(t, timeless(ds), d)
				for i := range path {
					if d.Allowed {
						want[i].Taken = path[i].Cost
					}
				}
				require.Equal(t, want, ds[:len(path)], "call %d", call)
			}
			require.Zero(t, ds[len(path)])
			require.EqualValues(t, 3, r.left(b), "the third call spent nothing")
		})
	}
}

// spendGiven spends under a limit that the caller gives.
func (r *rig) spendGiven(key Key, cost int64, limit Limit) Decision {
	r.t.Helper()
	return r.spendAll(Request{Key: key, Cost: cost, Limit: limit})
}

// withLevel returns the limit at a level.
func (l Limit) withLevel(level Durability) Limit {
	l.Durability = level
	return l
}

// TestGivenLimit is about Request.Limit. The worlds give limits, too.
func TestGivenLimit(t *testing.T) {
	key := perID.Key("a")
	ten, twenty := PerMinute(10), PerMinute(20) // tokens of 6 and 3 s

	t.Run("in every call", func(t *testing.T) {
		for _, loaded := range []bool{false, true} {
			r := newRig(t)
			if loaded {
				r.take(key, 1)
				r.refund(key, 1)
			}
			req := Request{Key: key, Cost: 3, Limit: twenty}
			ds := make([]Decision, 1)
			require.Equal(t, Decision{true, 3, 17, 0, 9 * time.Second, key, twenty, 0}, r.spendAll(req))
			require.NoError(t, r.DoEach(context.Background(), []Request{req}, ds))
			require.EqualValues(t, 14, ds[0].Remaining)
			r.decided(r.Do(context.Background(), []Request{req}, ds))
			require.EqualValues(t, 11, ds[0].Remaining)
			require.Zero(t, r.place(req).Delay())
			require.NoError(t, errorOf(r.Wait(t.Context(), req)))
			d := r.decided(r.Refund(Request{Key: key, Cost: 1, Limit: twenty, Spent: inFuture}))
			require.Equal(t, Decision{true, 0, 6, 0, 42 * time.Second, key, twenty, 0}, d)
			req.Mode = CheckOnly
			require.EqualValues(t, 3, r.spendAll(req).Remaining)
			require.NoError(t, r.DoEach(context.Background(), []Request{req}, ds))
			require.EqualValues(t, 3, ds[0].Remaining)
			require.Equal(t, Decision{true, 0, 1, 0, 42 * time.Second, key, PerMinute(5), 0}, r.check(key, 0), "the other limit")
		}
	})
	t.Run("the sum stays below the larger", func(t *testing.T) {
		r := newRig(t)
		larger := PerHour(20) // an empty bucket refills in an hour, those of the others in a minute
		require.True(t, r.spendGiven(key, 20, larger).Allowed)
		for _, d := range []Decision{r.spendGiven(key, 1, ten), r.spend(key, 1), r.check(key, 1)} {
			require.False(t, d.Allowed)
			require.Zero(t, d.Remaining)
			require.Equal(t, time.Hour, d.ResetAfter)
		}
		require.Equal(t, 3*time.Minute, r.spendGiven(key, 1, larger).RetryAfter, "the smaller ones did not refill it")
		d := r.spendGiven(key, 1, ten)
		require.Equal(t, 59*time.Minute+6*time.Second, d.RetryAfter)
		r.clock.Advance(d.RetryAfter)
		require.True(t, r.spendGiven(key, 1, ten).Allowed, "RetryAfter is exact")
	})
	t.Run("Reset loads no bucket that is in memory", func(t *testing.T) {
		r, free := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 1}), off.Key("a")
		require.True(t, r.spendGiven(free, 10, ten).Allowed)
		r.disk.fail(errDisk)
		require.NoError(t, r.Reset(free))
		require.EqualValues(t, 9, r.spendGiven(free, 1, ten).Remaining)
		require.ErrorIs(t, r.Reset(off.Key("b")), ErrFull)
	})
	t.Run("clamped when it is loaded", func(t *testing.T) {
		r := newRig(t)
		r.spendGiven(key, 20, PerHour(20))
		require.NoError(t, r.Close())
		for limit, want := range map[Limit]time.Duration{
			PerHour(20): time.Hour, PerHour(20).WithBurst(10): 30 * time.Minute, PerSecond(1): time.Minute,
			Unlimited: time.Minute,
		} {
			store := newMemStore()
			store.tats[key] = r.stored(key)
			r := rigAt(t, r.clock, store, testLimits(t), Options{})
			r.spendGiven(key, 1, limit)
			require.Equal(t, want, r.check(key, 0).ResetAfter, "by the larger of %v and 5/1m", limit)
		}
	})
	t.Run("kept when Names are declared, and when other limits change", func(t *testing.T) {
		r := newRig(t)
		day := Request{Key: perID.Key("a"), Cost: 100, Limit: PerDay(100)}
		require.True(t, r.spendAll(day).Allowed)
		full := r.check(day.Key, 0).ResetAfter
		require.NoError(t, r.Declare(Names{99: {Label: "Late"}}))
		require.Equal(t, full, r.check(day.Key, 0).ResetAfter)
		limits, err := r.Limits().With(Override{Key: perID.Key("b"), Limit: PerHour(7)})
		require.NoError(t, err)
		require.NoError(t, r.SetLimits(limits))
		require.Equal(t, full, r.check(day.Key, 0).ResetAfter)
		day.Cost = 1
		require.False(t, r.spendAll(day).Allowed)
	})
	t.Run("instead of no limit, and no limit instead", func(t *testing.T) {
		r := newRig(t)
		for _, key := range []Key{off.Key("a"), perID.Key("blocked")} {
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("blocked"), Limit: Blocked}))
			for left := int64(9); left >= 0; left-- {
				require.Equal(t, left, r.spendGiven(key, 1, ten).Remaining)
			}
			require.Equal(t, 6*time.Second, r.spendGiven(key, 1, ten).RetryAfter)
			require.NoError(t, r.Flush())
			r.evictAll()
			require.Equal(t, 6*time.Second, r.spendGiven(key, 1, ten).RetryAfter, "the file has it")
		}
		d := r.spendGiven(key, 1000, Unlimited)
		require.Equal(t, Decision{Allowed: true, Taken: 1000, Remaining: math.MaxInt64, Key: key, Limit: Unlimited}, d)
		require.EqualValues(t, int64(math.MaxInt64), r.spendGiven(key, 1, Blocked).RetryAfter)
		require.EqualValues(t, 5, r.left(key))
		require.ErrorIs(t, errorOf(r.Reserve(Request{Key: key, Cost: 1, Limit: Blocked})), ErrBlocked)
		require.NoError(t, errorOf(r.Wait(t.Context(), Request{Key: key, Cost: 1000, Limit: Unlimited})))
		r.hold(key, time.Hour)
		for _, limit := range []Limit{ten, Unlimited, {}} {
			require.Equal(t, time.Hour, r.spendGiven(key, 1, limit).RetryAfter)
		}
	})
	t.Run("at its own level", func(t *testing.T) {
		given := Limit{Burst: 60, Count: 1, Period: 2 * time.Hour}
		for configured := range levelNames {
			for level := Memory; level <= Synced; level++ {
				inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
					key := configured.Key("a")
					saved := func(want bool, when string) {
						t.Helper()
						require.Equal(t, want, r.stored(key) >= r.clock.Nanos()+int64(r.check(key, 0).ResetAfter),
							"%v in place of %v, %s", level, Durability(configured), when)
					}
					for range 3 { // the third finds half a lease used up
						r.take(key, 4)
						require.True(t, r.spendGiven(key, 5, given.withLevel(level)).Allowed)
						if level >= Leased {
							saved(true, "at once")
						}
						if configured >= leased {
							r.take(key, 1)
							saved(true, "after one at the configured level")
						}
						r.spendGiven(key, 1, given.withLevel(level))
						r.tick()
						saved(level > Memory || configured > inMemory, "after a tick")
					}
					place := r.place(Request{Key: key, Cost: 60, Limit: given.withLevel(level)})
					require.NotZero(t, place.Delay())
					if level >= Leased {
						saved(true, "in the queue")
					}
					place.Cancel()
					if level >= Leased {
						require.Equal(t, r.clock.Nanos()+int64(r.check(key, 0).ResetAfter), r.stored(key), "after Cancel")
					}
				})
			}
		}
	})
	t.Run("the configured one", func(t *testing.T) {
		r := newLevels(t, hundred)
		for n := range 20 {
			require.NoError(t, r.DoEach(context.Background(), []Request{{Key: leased.Key("a"), Cost: 1, Limit: hundred.withLevel(Leased)}}, make([]Decision, 1)))
			r.spendGiven(leased.Key("a"), 1, hundred.withLevel(Leased))
			require.LessOrEqual(t, r.disk.count(), 2+n/2, "leases last for several requests")
		}
	})
	t.Run("a commit that fails", func(t *testing.T) {
		r := newRig(t)
		r.disk.fail(errDisk, "save")
		for _, key := range []Key{key, off.Key("a")} {
			_, err := r.SpendAll(Request{Key: key, Cost: 1, Limit: ten.withLevel(Synced)})
			require.ErrorIs(t, err, ErrNotDurable)
			require.Zero(t, r.Stats().Limits[key.Name].Allowed)
			require.EqualValues(t, 10, r.spendAll(Request{Key: key, Limit: ten}).Remaining, "the token is back")
		}
	})
	t.Run("mistakes", func(t *testing.T) {
		r := newRig(t)
		for _, limit := range []Limit{{Burst: 5}, {Count: 1, Period: 1}, ten.withLevel(9), {Burst: 1, Count: 2, Period: 1},
			{Burst: math.MaxInt64, Count: 1, Period: math.MaxInt64}, {Burst: 1, Count: 1, Period: 1, Queue: -1}} {
			req := Request{Key: key, Cost: 1, Limit: limit}
			_, err := r.SpendAll(req)
			_, err2 := r.Reserve(req)
			err3 := r.DoEach(context.Background(), []Request{req}, make([]Decision, 1))
			for _, err := range []error{err, err2, err3, errorOf(r.Wait(t.Context(), req))} {
				var config *ConfigError
				require.ErrorAs(t, err, &config)
			}
		}
		for key, want := range map[Key]error{nobody.Key("a"): ErrUnknownName, everyone.Key("a"): ErrInvalidID,
			perID.Key(""): ErrInvalidID} {
			for range 2 {
				require.ErrorIs(t, errorOf(r.SpendAll(Request{Key: key, Cost: 1, Limit: ten})), want)
			}
		}
		require.EqualValues(t, 5, r.left(key))
	})
	t.Run("a queue of several limits", func(t *testing.T) {
		r := newRig(t)
		r.take(key, 5)
		slow, fast := PerMinute(1), PerSecond(10) // 60 s and 100 ms a token
		reserve := func(limit Limit) Reservation { return r.place(Request{Key: key, Cost: 1, Limit: limit}) }
		first, second, third := reserve(slow), reserve(fast), reserve(Limit{})
		require.Equal(t, 60*time.Second, first.Delay(), "an empty bucket of 5 refills in 60 s")
		require.Equal(t, 119100*time.Millisecond, second.Delay())
		require.GreaterOrEqual(t, third.Delay(), second.Delay())
		r.clock.Advance(first.Delay())
		require.Zero(t, first.Delay())
		second.Cancel()
		third.Cancel()
		require.Equal(t, 60*time.Second, r.check(key, 0).ResetAfter, "the first turn was charged at its own rate")
	})
}

// A Reset of a bucket that a Synced or Leased given limit has emptied is durable,
// whatever the level of the configured limit.
func TestResetOfGiven(t *testing.T) {
	for _, level := range []Durability{Leased, Synced} {
		for _, key := range []Key{off.Key("a"), perID.Key("a")} {
			for _, evicted := range []string{"no", "yes", "and loaded by a Check"} {
				for _, held := range []bool{false, true} {
					r := newRig(t)
					limit := PerHour(5)
					limit.Durability = level
					require.True(t, r.spendAll(Request{Key: key, Cost: 5, Limit: limit}).Allowed)
					if held {
						r.hold(key, time.Minute)
					}
					if evicted != "no" {
						require.NoError(t, r.Flush())
						r.evictAll()
						require.Zero(t, r.Stats().Resident)
					}
					if evicted == "and loaded by a Check" {
						require.NoError(t, errorOf(r.Check(key, 1)))
					}
					require.NoError(t, r.Reset(key))
					require.Zero(t, r.stored(key), "%v, %v, evicted %v, held %v", level, key, evicted, held)

					require.True(t, r.spendAll(Request{Key: key, Cost: 5, Limit: limit}).Allowed)
					r.disk.fail(errDisk, "save")
					require.ErrorIs(t, r.Reset(key), ErrNotDurable)
					r.disk.fail(nil)
				}
			}
		}
	}
}

// isZero looks at every field of a Limit.
func TestLimitIsZero(t *testing.T) {
	var zero Limit
	require.True(t, zero.isZero())
	for _, l := range []Limit{{Burst: 1}, {Count: 1}, {Period: 1}, {Queue: 1}, {Durability: 1}, {calendar: 1}, {kind: blockedKind}} {
		require.False(t, l.isZero(), "%+v", l)
	}
	require.Equal(t, 7, reflect.TypeFor[Limit]().NumField(), "isZero must know the new field")
}

// A refund that costs tokens needs Spent.
func TestRefundWithoutSpent(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	r.take(key, 3)
	for _, reqs := range [][]Request{{key.Cost(1)}, {perID.Key("b").Cost(1).SpentAt(inFuture), key.Cost(1)}} {
		require.ErrorContains(t, errorOf(r.Refund(reqs...)), "no Spent")
		require.EqualValues(t, 2, r.left(key))
	}
	for _, req := range []Request{{Key: key}, {Key: key, Cost: 2, Mode: CheckOnly}} {
		require.EqualValues(t, 2, r.decided(r.Refund(req)).Remaining)
	}
	require.EqualValues(t, 5, r.decided(r.Refund(key.Cost(9).SpentAt(inFuture))).Remaining)
}

// TestLimitsCheck compares what Check says of a request with what a Limiter does.
func TestLimitsCheck(t *testing.T) {
	r := newRig(t)
	key, wrong := perID.Key("a"), Limit{Burst: 1}
	spent := r.Now()
	for _, req := range []Request{
		key.Cost(1), key.Cost(11), key.Cost(-1), {Key: key, Mode: UpTo + 1}, {Key: key, Cost: 1, Leave: -1},
		{Key: key, Cost: 2, Leave: 3}, {Key: key, Cost: 2, Leave: 4}, {Key: key, Cost: 11, Mode: UpTo}, {Key: key, Cost: 11, Mode: UpTo, Leave: 10},
		{Key: key, Cost: 1, Limit: wrong}, {Key: key, Cost: 11, Limit: PerDay(20)}, {Key: key, Cost: 11, Limit: Unlimited},
		{Key: key, Cost: 11, Limit: Blocked}, Name(99).Key("a").Cost(1), perID.Key("").Cost(1),
		perID.Key(strings.Repeat("x", maxIDLen+1)).Cost(1), off.Key("a").Cost(99),
		key.Cost(11).SpentAt(spent), {Key: key, Cost: 1, Mode: CheckOnly, Leave: -1},
	} {
		limit, err := r.Limits().Check(&req, false)
		_, want := r.SpendAll(req)
		requireSame(t, want, err, "%+v", req)
		if err == nil {
			require.Equal(t, r.Limits().For(req.Key), limit)
		}
		if req.Mode != UpTo {
			_, err = r.Limits().Check(&req, true)
			_, want = r.Refund(req)
			requireSame(t, want, err, "refund %+v", req)
		}
	}
}

func requireSame(t *testing.T, want, got error, format string, args ...any) {
	t.Helper()
	if want == nil {
		require.NoErrorf(t, got, format, args...)
	} else {
		require.EqualErrorf(t, got, want.Error(), format, args...)
	}
}
