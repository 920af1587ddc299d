package stint

import (
	"context"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDo(t *testing.T) {
	a, b, shared, free := perID.Key("a"), perID.Key("b"), everyone.Key(""), off.Key("x")
	reqs := []Request{{Key: free, Cost: 1}, {Key: shared, Cost: 1}, {Key: a, Cost: 2}, {Key: b, Cost: 1}}
	modes := []Request{{Key: b, Cost: 6, Mode: SpendOnly}, {Key: a, Cost: 1, Mode: CheckOnly}, {Key: shared, Cost: 1}}
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
				require.Contains(t, ds, d)
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
	t.Run("modes", func(t *testing.T) {
		r := newRig(t)
		modes[0].Cost = 5
		ds := make([]Decision, 3)
		d := r.decided(r.Do(context.Background(), modes, ds))
		require.Equal(t, ds[2], d)
		require.Equal(t, []int64{0, 4, 2}, []int64{ds[0].Remaining, ds[1].Remaining, ds[2].Remaining})
		d = r.decided(r.Do(context.Background(), modes, ds))
		require.True(t, d.Allowed)
		require.Equal(t, time.Minute, ds[0].RetryAfter, "SpendOnly may be denied alone")
	})
	t.Run("errors", func(t *testing.T) {
		r := newRig(t)
		full := Decision{Allowed: true}
		ds := []Decision{full, full}
		_, err := r.Do(context.Background(), reqs, ds)
		require.ErrorContains(t, err, "4 requests, and space for 2 decisions")
		_, err = r.Do(context.Background(), []Request{{Key: a, Cost: 1}, {Key: b, Cost: 6}}, ds)
		require.ErrorIs(t, err, ErrCostOverBurst)
		require.Equal(t, []Decision{{}, {}}, ds, "an error never comes with permission")
		require.EqualValues(t, 5, r.left(a))
		levels := newLevels(t, hundred)
		both := []Request{{Key: synced.Key("a"), Cost: 1}, {Key: flushed.Key("a"), Cost: 1}}
		levels.disk.fail(errDisk, "save")
		ds = []Decision{full, full}
		_, err = levels.Do(context.Background(), both, ds)
		require.ErrorIs(t, err, ErrNotDurable)
		require.Equal(t, []Decision{{}, {}}, ds)
	})
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
			place, err := r.Reserve(req)
			require.NoError(t, err)
			require.Zero(t, place.Delay())
			require.NoError(t, errorOf(r.Wait(t.Context(), req)))
			d := r.decided(r.Refund(Request{Key: key, Cost: 1, Limit: twenty, Spent: JustSpent}))
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
		r.clock.advance(d.RetryAfter)
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
		require.Equal(t, Decision{Allowed: true, Taken: 1000, Remaining: math.MaxInt64, Key: key}, d)
		require.EqualValues(t, int64(math.MaxInt64), r.spendGiven(key, 1, Blocked).RetryAfter)
		require.EqualValues(t, 5, r.left(key))
		_, err := r.Reserve(Request{Key: key, Cost: 1, Limit: Blocked})
		require.ErrorIs(t, err, ErrBlocked)
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
				r := newLevels(t, hundred)
				key := configured.Key("a")
				saved := func(want bool, when string) {
					t.Helper()
					require.Equal(t, want, r.stored(key) >= r.clock.ns.Load()+int64(r.check(key, 0).ResetAfter),
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
					require.NoError(t, r.cache.FlushDue())
					saved(level > Memory || configured > inMemory, "after a tick")
				}
				place, err := r.Reserve(Request{Key: key, Cost: 60, Limit: given.withLevel(level)})
				require.NoError(t, err)
				require.NotZero(t, place.Delay())
				if level >= Leased {
					saved(true, "in the queue")
				}
				place.Cancel()
				if level >= Leased {
					require.Equal(t, r.clock.ns.Load()+int64(r.check(key, 0).ResetAfter), r.stored(key), "after Cancel")
				}
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
				_, err := r.SpendAll(Request{Key: key, Cost: 1, Limit: ten})
				require.ErrorIs(t, err, want)
			}
		}
		require.EqualValues(t, 5, r.left(key))
	})
	t.Run("a queue of several limits", func(t *testing.T) {
		r := newRig(t)
		r.take(key, 5)
		slow, fast := PerMinute(1), PerSecond(10) // 60 s and 100 ms a token
		reserve := func(limit Limit) Reservation {
			place, err := r.Reserve(Request{Key: key, Cost: 1, Limit: limit})
			require.NoError(t, err)
			return place
		}
		first, second, third := reserve(slow), reserve(fast), reserve(Limit{})
		require.Equal(t, 60*time.Second, first.Delay(), "an empty bucket of 5 refills in 60 s")
		require.Equal(t, 119100*time.Millisecond, second.Delay())
		require.GreaterOrEqual(t, third.Delay(), second.Delay())
		r.clock.advance(first.Delay())
		require.Zero(t, first.Delay())
		second.Cancel()
		third.Cancel()
		require.Equal(t, 60*time.Second, r.check(key, 0).ResetAfter, "the first turn was charged at its own rate")
	})
}

// isZero looks at every field of a Limit.
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
						_, err := r.Check(key, 1)
						require.NoError(t, err)
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

func TestLimitIsZero(t *testing.T) {
	var zero Limit
	require.True(t, zero.isZero())
	for _, l := range []Limit{{Burst: 1}, {Count: 1}, {Period: 1}, {Queue: 1}, {Durability: 1}, {calendar: 1}, {kind: blockedKind}} {
		require.False(t, l.isZero(), "%+v", l)
	}
	require.Equal(t, 7, reflect.TypeFor[Limit]().NumField(), "isZero must know the new field")
}
