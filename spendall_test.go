package stint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// keysOfOneShard returns n keys whose buckets share a shard with perID's 0.
func keysOfOneShard(l *Limiter, n int) (keys []Key) {
	s, _ := l.cache.Shard(uint16(perID), "0")
	for i := 0; len(keys) < n; i++ {
		key := perID.Key(fmt.Sprint(i))
		if other, _ := l.cache.Shard(uint16(perID), key.ID); other == s {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestSpendAll(t *testing.T) {
	a, b := perID.Key("a"), perID.Key("b")

	t.Run("costs of 0 change nothing", func(t *testing.T) {
		r := newRig(t)
		r.spendAll(a.Cost(1), b.Cost(1))
		require.NoError(t, r.Flush())
		require.True(t, r.spendAll(Request{Key: a, Cost: 0}, Request{Key: b, Cost: 0}).Allowed)
		require.Zero(t, r.Stats().Dirty)
		r.spendAll(Request{Key: a, Cost: 0}, Request{Key: b, Cost: 1})
		require.EqualValues(t, 1, r.Stats().Dirty)
	})
	// Slots that are inserted move others of the shard.
	t.Run("many in one shard", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 0))
		r := newRig(t)
		want := make(map[Key]int64)
		keys := keysOfOneShard(r.Limiter, 60)
		for _, key := range keys {
			want[key] = 5
		}
		for n := 1; n < len(keys); n += 3 {
			var reqs []Request
			for _, i := range rnd.Perm(n)[:1+rnd.IntN(n)] {
				cost := rnd.Int64N(min(want[keys[i]], 2) + 1)
				reqs = append(reqs, Request{Key: keys[i], Cost: cost})
				want[keys[i]] -= cost
			}
			require.True(t, r.spendAll(reqs...).Allowed)
			require.ErrorIs(t, errorOf(r.SpendAll(append(reqs, reqs[rnd.IntN(len(reqs))])...)), ErrDuplicateKey)
			for _, key := range keys {
				require.Equal(t, want[key], r.left(key), "%d keys", n)
			}
		}
	})
	t.Run("one save", func(t *testing.T) {
		r := newLevels(t, hundred)
		keys := []Key{inMemory.Key("a"), flushed.Key("a"), leased.Key("a"), synced.Key("a")}
		var reqs []Request
		for i, key := range keys {
			reqs = append(reqs, Request{Key: key, Cost: int64(i + 1)})
		}
		reqs = append(reqs, Request{Key: synced.Key("b"), Cost: 1, Mode: CheckOnly})
		require.True(t, r.spendAll(reqs...).Allowed)
		require.Equal(t, 1, r.disk.count())
		require.Len(t, r.disk.latest(), 4)
		for i, key := range keys {
			if key.Name == leased {
				require.GreaterOrEqual(t, r.stored(key), r.tat(3))
			} else {
				require.Equal(t, r.tat(int64(i+1)), r.stored(key))
			}
		}
		require.NoError(t, errorOf(r.Refund(justSpent(reqs)...)))
		require.Equal(t, 2, r.disk.count())
		require.Zero(t, r.stored(synced.Key("a")))
		r.spendAll(reqs[:2]...)
		require.Equal(t, 2, r.disk.count(), "none of them waits for a commit")

		r.disk.fail(errDisk, "save")
		d, err := r.SpendAll(reqs...)
		require.ErrorIs(t, err, ErrNotDurable)
		require.ErrorIs(t, err, errDisk)
		require.Zero(t, d)
		r.disk.fail(nil)
		for i, spent := range []int64{1, 2, 0, 0} {
			require.Equal(t, spent, r.spent(keys[i]), "the tokens of the failed commit are returned")
		}
	})
}

// A request for a bucket in memory loads nothing, whatever the others need.
func TestSpendAllInMemory(t *testing.T) {
	t.Run("beside an id without a limit", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 1})
		r.take(perID.Key("a"), 1)
		r.disk.fail(errDisk)
		loads := r.Stats().Loads
		r.spendAll(Request{Key: perID.Key("a"), Cost: 1}, Request{Key: off.Key("b"), Cost: 1})
		require.Equal(t, loads, r.Stats().Loads)
		require.Zero(t, r.disk.count(), "nobody needs space")
		require.EqualValues(t, 3, r.left(perID.Key("a")))
	})
	t.Run("beside a bucket that cannot be read", func(t *testing.T) {
		r := newRig(t)
		r.take(perID.Key("a"), 1)
		r.disk.fail(errDisk)
		loads := r.Stats().Loads
		_, err := r.SpendAll(Request{Key: perID.Key("a"), Cost: 1}, Request{Key: perID.Key("b"), Cost: 1})
		require.ErrorIs(t, err, errDisk)
		require.Equal(t, loads+1, r.Stats().Loads)
		require.EqualValues(t, 4, r.left(perID.Key("a")))
	})
}

// Two requests for one key are refused wherever they stand, also if the buckets
// are in memory.
func TestSpendAllDuplicates(t *testing.T) {
	r := newRig(t)
	var keys []Key
	for i := range few + 1 {
		keys = append(keys, perID.Key(fmt.Sprint(i)))
		require.True(t, r.spend(keys[i], 1).Allowed)
	}
	for n := 2; n <= len(keys); n++ {
		for i := range n {
			for j := range i {
				var reqs []Request
				for _, key := range keys[:n] {
					reqs = append(reqs, Request{Key: key, Cost: 1})
				}
				reqs[i].Key = keys[j]
				require.ErrorIs(t, errorOf(r.SpendAll(reqs...)), ErrDuplicateKey, "%d and %d of %d", j, i, n)
			}
		}
	}
	for _, key := range keys {
		require.EqualValues(t, 4, r.left(key))
	}
}

// TestSpendAllCounts: Stats count each request of a call that passes, and of one that
// is denied those that deny it, on the fast path and on the slow one.
func TestSpendAllCounts(t *testing.T) {
	for level := Memory; level <= Synced; level++ {
		r, name := newLevels(t, ten), Name(level)
		a, b, full := name.Key("a").Cost(1), name.Key("b").Cost(1), name.Key("full").Cost(10)
		as := func(req Request, mode Mode) Request { req.Mode = mode; return req }
		for _, call := range []struct {
			allowed bool
			reqs    []Request
			counts  LimitStats // all so far
		}{
			{true, []Request{name.Key("a").Cost(10), b}, LimitStats{Allowed: 2}},
			{false, []Request{a, b}, LimitStats{Allowed: 2, Denied: 1}},
			{false, []Request{a, as(full, SpendOnly), as(b, CheckOnly)}, LimitStats{Allowed: 2, Denied: 2}},
			{true, []Request{b, as(a, SpendOnly), as(full, CheckOnly)}, LimitStats{Allowed: 3, Denied: 3}},
			{true, []Request{full}, LimitStats{Allowed: 4, Denied: 3}},
			{false, []Request{as(a, SpendOnly), b, full}, LimitStats{Allowed: 4, Denied: 4}},
		} {
			require.Equal(t, call.allowed, r.spendAll(call.reqs...).Allowed)
			require.Equal(t, call.counts, r.Stats().Limits[name], "%v %v", level, call)
		}
	}
}

// eachOf returns the errors of a DoEach of n requests, by index.
func eachOf(t testing.TB, err error, n int) EachError {
	t.Helper()
	var each EachError
	require.ErrorAs(t, fmt.Errorf("wrapped: %w", err), &each)
	require.Len(t, each, n)
	return each
}

func TestDoEach(t *testing.T) {
	t.Run("decisions and errors", func(t *testing.T) {
		r := newRig(t)
		a, b := perID.Key("a"), perID.Key("b")
		reqs := []Request{
			{Key: a, Cost: 2}, {Key: b, Cost: 1}, {Key: a, Cost: 2, Mode: SpendOnly}, {Key: nobody.Key("x"), Cost: 1},
			{Key: a, Cost: 1, Mode: CheckOnly}, {Key: a, Cost: 2}, {Key: perID.Key("c"), Cost: 6}, {Key: a, Cost: 1},
		}
		ds := make([]Decision, len(reqs)+1)
		for i := range ds {
			ds[i].Allowed = true
		}
		err := r.DoEach(context.Background(), reqs, ds)
		require.ErrorIs(t, err, ErrUnknownName)
		require.ErrorIs(t, err, ErrCostOverBurst)
		each := eachOf(t, err, len(reqs))
		for i, want := range map[int]error{3: ErrUnknownName, 6: ErrCostOverBurst} {
			require.ErrorIs(t, each[i], want)
			require.ErrorContains(t, err, fmt.Sprintf("request %d: %v", i, each[i]))
		}
		limit, now := PerMinute(5), r.clock.Nanos()
		require.Equal(t, []Decision{
			{true, 2, 3, 0, 24 * time.Second, a, limit, now},
			{true, 1, 4, 0, 12 * time.Second, b, limit, now},
			{true, 2, 1, 0, 48 * time.Second, a, limit, now},
			{},
			{true, 0, 0, 0, 60 * time.Second, a, limit, now},
			{false, 0, 1, 12 * time.Second, 48 * time.Second, a, limit, now},
			{},
			{true, 1, 0, 0, 60 * time.Second, a, limit, now},
			{Allowed: true},
		}, ds)
		require.Error(t, r.DoEach(context.Background(), reqs, ds[:3]))
		require.EqualValues(t, 4, r.left(b), "nothing is spent if the decisions do not fit")
		require.NoError(t, r.DoEach(context.Background(), nil, nil))
	})
	// Time goes on while the first bucket is loaded. The second is not decided
	// on as it was when DoEach began.
	first, late := single.Key("first"), perID.Key("late")
	for _, tc := range []struct {
		name       string
		before     func(r *rig)
		meanwhile  func(r *rig)
		allowed    bool
		retryAfter time.Duration
	}{
		{"a bucket that is loaded later", func(r *rig) {
			save(r.t, r.disk, Change{late, r.clock.Now().Add(70 * time.Second).UnixNano()})
		}, func(*rig) {}, false, 12 * time.Second},
		{"a bucket that was spent and swept", func(*rig) {}, func(r *rig) {
			r.take(late, 1)
			r.clock.Advance(13 * time.Second)
			r.tick()
		}, true, 12 * time.Second},
		{"a bucket whose hold has ended", func(r *rig) { r.hold(late, time.Second) }, func(r *rig) {
			r.clock.Advance(50 * time.Second)
			r.take(late, 5)
		}, false, 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				tc.before(r)
				r.disk.on(func(op storeOp) error {
					if op.name == "load" && op.key == first && !op.done {
						r.disk.on(nil)
						tc.meanwhile(r)
						r.clock.Advance(10 * time.Second)
					}
					return nil
				})
				ds := make([]Decision, 2)
				require.NoError(t, r.DoEach(context.Background(), []Request{{Key: first, Cost: 1}, {Key: late, Cost: 5}}, ds))
				require.Equal(t, tc.allowed, ds[1].Allowed)
				d := r.spend(late, 1)
				require.False(t, d.Allowed)
				require.Equal(t, tc.retryAfter, d.RetryAfter)
			})
		})
	}
}
