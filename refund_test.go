package stint

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
)

// keptCost is a request that was admitted, with the cost that it kept.
type keptCost struct {
	at   time.Duration
	kept int64
}

// excess returns by how many tokens the costs that were kept break the law: in
// any stretch they are at most burst + elapsed ÷ T, beside extra.
func excess(l Limit, all []keptCost, extra int64) int64 {
	worst := int64(0)
	for i := range all {
		sum := -extra
		for _, a := range all[i:] {
			sum += a.kept
			over := sum - l.Burst - int64((a.at-all[i].at)/l.Interval())
			worst = max(worst, over)
		}
	}
	return worst
}

// A caller spends a bound, and returns what it did not use after a while. The
// costs that it kept then obey the law of the limit, if each refund names the
// instant of its spend. Without that they do not.
func TestRefundSpent(t *testing.T) {
	t.Parallel()
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	clock := modeltest.NewClock()
	l := PerMinute(1000)
	limits, err := NewLimits(Names{perID: {Label: "id", Limit: l}})
	require.NoError(t, err)
	lim, err := New(NewMemStore(), limits, &Options{Now: clock.Now})
	require.NoError(t, err)
	defer lim.Close()
	start := clock.Now()
	broken := map[bool]int{}
	for _, known := range []bool{true, false} {
		rng := rand.New(rand.NewPCG(31, 20))
		for round := range rounds {
			key := perID.Key(fmt.Sprint(known, round))
			var all []keptCost
			open := map[int]Request{} // not settled, by index in all
			for range 24 {
				clock.Advance(time.Duration(rng.Int64N(int64(15 * time.Second))))
				if rng.IntN(3) > 0 {
					cost := 1 + rng.Int64N(l.Burst)
					now := lim.Now()
					if d, err := lim.Spend(key, cost); err == nil && d.Allowed {
						open[len(all)] = Request{Key: key, Cost: cost, Spent: now}
						all = append(all, keptCost{clock.Now().Sub(start), cost})
					}
					continue
				}
				for i, req := range open {
					delete(open, i)
					req.Cost = rng.Int64N(req.Cost + 1)
					if !known {
						req.Spent = JustSpent
					}
					_, err := lim.Refund(req)
					require.NoError(t, err)
					all[i].kept -= req.Cost
					break
				}
			}
			if over := excess(l, all, 0); over > 0 {
				broken[known]++
				require.False(t, known, "%d tokens over the law in %v", over, all)
			}
			require.NoError(t, lim.Reset(key))
		}
	}
	require.NotZero(t, broken[false], "refunds that name no instant break the law in some histories")
	t.Logf("without the instant, %d of %d histories break the law", broken[false], rounds)

	t.Run("a slow handler", func(t *testing.T) { // the example of the documentation
		key := perID.Key("slow")
		spent := lim.Now()
		_, err := lim.Spend(key, 1000)
		require.NoError(t, err)
		clock.Advance(54 * time.Second)
		d, err := lim.Spend(key, 900)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		clock.Advance(6 * time.Second)
		d, err = lim.Refund(Request{Key: key, Cost: 900, Spent: spent})
		require.NoError(t, err)
		require.EqualValues(t, 100, d.Remaining, "all 900 are back already")
	})
	for name, tc := range map[string]struct {
		ago  time.Duration
		cost int64
		want int64 // remaining of 1000, after a spend of 1000
	}{
		"at once":               {0, 400, 400},
		"a half is back":        {12 * time.Second, 400, 400}, // 200 with time, and 200
		"all are back":          {30 * time.Second, 400, 500},
		"more than was spent":   {0, 1 << 62, 1000},
		"spent in the future":   {-time.Hour, 400, 400},
		"spent before 1970":     {200 * 365 * 24 * time.Hour, 400, 0},
		"spent after the end":   {-200 * 365 * 24 * time.Hour, 400, 400},
		"less than an interval": {time.Millisecond, 1, 1}, // a part of a token, and the rest
	} {
		t.Run(name, func(t *testing.T) {
			key := perID.Key(name)
			now := lim.Now()
			_, err := lim.Spend(key, 1000)
			require.NoError(t, err)
			spent := now
			if tc.ago > 0 && tc.ago < time.Hour {
				clock.Advance(tc.ago)
			} else {
				spent = now.Add(-tc.ago)
			}
			d, err := lim.Refund(Request{Key: key, Cost: tc.cost, Spent: spent})
			require.NoError(t, err)
			require.Equal(t, tc.want, d.Remaining)
		})
	}
}

// UpTo takes what a share's three buckets have, and the Decision says so.
func TestUpTo(t *testing.T) {
	const all, tenant, floor Name = 1, 2, 3
	limits, err := NewLimits(Names{
		all: {Label: "all", ID: Shared}, tenant: {Label: "tenant", Parent: all, Floor: floor}, floor: {Label: "floor"},
	}.WithLimits(map[Name]Limit{all: PerHour(10), tenant: PerHour(8)}),
		Override{Key: floor.Key("acme"), Limit: PerHour(3)})
	require.NoError(t, err)
	lim, err := New(NewMemStore(), limits, &Options{Now: modeltest.NewClock().Now})
	require.NoError(t, err)
	defer lim.Close()
	for _, step := range []struct {
		id         string
		cost, want int64
	}{
		{"other", 5, 5}, {"other", 5, 2}, {"other", 1, 0}, // 3 of the total are kept for acme
		{"acme", 2, 2}, {"third", 0, 0}, {"acme", 9, 1}, {"acme", 9, 0}, {"third", 0, 0},
	} {
		d, err := lim.SpendAll(Request{Key: tenant.Key(step.id), Cost: step.cost, Mode: UpTo})
		require.NoError(t, err)
		require.Equal(t, step.want, d.Taken, "%s %d", step.id, step.cost)
		if step.id == "acme" || step.id == "other" {
			require.True(t, d.Allowed)
			continue
		}
		require.False(t, d.Allowed, "the total has less than it keeps, so no other may go")
		want, err := lim.Check(tenant.Key(step.id), 0)
		require.NoError(t, err)
		require.Equal(t, want, d)
	}
	require.NoError(t, errorOf(lim.Hold(tenant.Key("acme"), lim.Now().Add(time.Hour))))
	require.NoError(t, lim.Reset(all.Key(""), floor.Key("acme")))
	d, err := lim.SpendAll(Request{Key: tenant.Key("acme"), Cost: 1, Mode: UpTo})
	require.NoError(t, err)
	require.Zero(t, d.Taken)
	require.False(t, d.Allowed)
	for cost := range int64(2) {
		_, err = lim.SpendAll(Request{Key: floor.Key("acme"), Cost: cost, Mode: UpTo})
		require.ErrorIs(t, err, ErrShare)
	}
	_, err = lim.SpendAll(Request{Key: tenant.Key("acme"), Cost: -1, Mode: UpTo})
	require.ErrorIs(t, err, ErrNegativeCost)
}

// A refund that costs tokens needs Spent.
func TestRefundWithoutSpent(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	r.take(key, 3)
	for _, reqs := range [][]Request{{key.Cost(1)}, {perID.Key("b").Cost(1).SpentAt(JustSpent), key.Cost(1)}} {
		_, err := r.Refund(reqs...)
		require.ErrorContains(t, err, "no Spent")
		require.EqualValues(t, 2, r.left(key))
	}
	for _, req := range []Request{{Key: key}, {Key: key, Cost: 2, Mode: CheckOnly}} {
		require.EqualValues(t, 2, r.decided(r.Refund(req)).Remaining)
	}
	require.EqualValues(t, 5, r.decided(r.Refund(key.Cost(9).SpentAt(JustSpent))).Remaining)
}

// TestRaise has what the model of TestWorlds leaves out: given limits, limits that are
// missing, totals, and what a restart finds.
func TestRaise(t *testing.T) {
	t.Run("given limits", func(t *testing.T) {
		r := newRig(t)
		req := Request{Key: perID.Key("a"), Limit: PerHour(10)}
		full, err := r.Raise(req, r.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, time.Hour, full.Sub(r.Now()))
		req.Limit = PerMinute(1)
		again, err := r.Raise(req, r.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, full, again, "a smaller limit does not lower it")
		req.Limit, req.Key = PerMinute(1), off.Key("a")
		for range 2 {
			full, err = r.Raise(req, r.Now().Add(time.Hour))
			require.NoError(t, err)
			require.Equal(t, time.Minute, full.Sub(r.Now()), "at most an empty bucket")
			require.NoError(t, r.Close())
			r = r.next(r.Limits())
		}
	})
	t.Run("a turn with a smaller limit comes after it", func(t *testing.T) {
		r := newLevels(t, ten)
		key := inMemory.Key("a")
		r.take(key, 5)
		_, err := r.Reserve(Request{Key: key, Cost: 1, Limit: PerSecond(1)})
		require.NoError(t, err)
		full, err := r.Raise(Request{Key: key}, r.Now().Add(10*time.Second))
		require.NoError(t, err)
		r.clock.Advance(5 * time.Second)
		require.GreaterOrEqual(t, r.check(key, 0).ResetAfter, full.Sub(r.Now()), "the turn gives nothing back")
	})
	t.Run("no limit", func(t *testing.T) {
		r := newRig(t)
		full, err := r.Raise(Request{Key: off.Key("a")}, r.Now().Add(time.Hour))
		require.NoError(t, err)
		require.False(t, full.After(r.Now()))
		require.Zero(t, r.Stats().Resident)
	})
	t.Run("a time that has passed reads", func(t *testing.T) {
		r := newRig(t)
		full, err := r.Raise(Request{Key: perID.Key("a")}, r.Now())
		require.NoError(t, err)
		require.False(t, full.After(r.Now()))
		require.Zero(t, r.Stats().Resident, "a full bucket takes no space")
		r.take(perID.Key("a"), 2)
		full, err = r.Raise(Request{Key: perID.Key("a")}, time.Time{})
		require.NoError(t, err)
		require.Equal(t, r.check(perID.Key("a"), 0).ResetAfter, full.Sub(r.Now()))
	})
	t.Run("a full bucket is full now", func(t *testing.T) {
		r := newRig(t)
		for _, past := range []time.Duration{0, time.Hour} {
			full, err := r.Raise(Request{Key: perID.Key("a")}, r.Now().Add(-past))
			require.NoError(t, err)
			require.True(t, full.Equal(r.Now()), "%v", full)
		}
		r.take(perID.Key("a"), 1)
		r.clock.Advance(time.Hour)
		full, err := r.Raise(Request{Key: perID.Key("a")}, time.Time{})
		require.NoError(t, err)
		require.True(t, full.Equal(r.Now()), "%v", full)
	})
	t.Run("a quota of the calendar", func(t *testing.T) {
		clock := modeltest.NewClock()
		clock.Set(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC).UnixNano())
		r := rigAt(t, clock, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: EachDay(10, nil)}), Options{})
		midnight := r.Now().Add(12 * time.Hour)
		for _, c := range []struct {
			full time.Time
			left int64
		}{
			{midnight.Add(-time.Hour), 10}, {midnight, 10}, {midnight.Add(3), 7}, {midnight.Add(time.Hour), 0},
		} {
			key := perID.Key(c.full.String())
			_, err := r.Raise(Request{Key: key}, c.full)
			require.NoError(t, err)
			require.Equal(t, c.left, r.left(key))
		}
	})
	t.Run("no limit, whatever is in memory", func(t *testing.T) {
		r := newRig(t)
		for i, limit := range []Limit{Unlimited, Blocked} {
			key := perID.Key(fmt.Sprint(i))
			raise := func() {
				t.Helper()
				full, err := r.Raise(Request{Key: key}, r.Now().Add(time.Hour))
				require.NoError(t, err)
				require.True(t, full.Equal(r.Now()), "%v", full)
			}
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: limit}))
			raise()
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: PerHour(1)}))
			r.take(key, 1)
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: limit}))
			raise()
		}
	})
	for level := leased; level <= synced; level++ {
		inBubbleNamed(t, fmt.Sprint(Durability(level), ", an equal one is in a commit that fails"),
			func(t *testing.T, r *rig) {
				key := level.Key("a")
				full := r.Now().Add(5 * time.Second)
				r.disk.shut()
				var errs [2]chan error
				for i := range errs {
					errs[i] = make(chan error, 1)
					go func() { _, err := r.Raise(Request{Key: key}, full); errs[i] <- err }()
					synctest.Wait()
				}
				require.Empty(t, errs[1], "the store does not have it yet")
				r.disk.gate <- errDisk
				require.ErrorIs(t, <-errs[0], ErrNotDurable)
				r.disk.open()
				require.NoError(t, <-errs[1])
				require.LessOrEqual(t, r.next(r.Limits()).left(key), int64(5), "as after a crash")
			})
	}
	t.Run("errors", func(t *testing.T) {
		r := newRig(t)
		_, err := r.Raise(Request{Key: Key{99, "a"}}, r.Now())
		require.ErrorIs(t, err, ErrUnknownName)
		_, err = r.Raise(Request{Key: perID.Key("a"), Limit: Limit{Burst: -1}}, r.Now())
		require.ErrorAs(t, err, new(*ConfigError))
		limits, err := NewLimits(Names{
			1: {Label: "total", ID: Shared, Limit: PerHour(100)}, 2: {Label: "share", Limit: PerHour(10), Parent: 1},
		})
		require.NoError(t, err)
		l, err := New(NewMemStore(), limits, nil)
		require.NoError(t, err)
		defer l.Close()
		for _, key := range []Key{{2, "a"}, {1, ""}} {
			_, err = l.Raise(Request{Key: key}, l.Now().Add(time.Hour))
			require.ErrorIs(t, err, ErrShare)
		}
	})
}

// TestDividedBy holds the laws of a divided limit: n of them admit no more than
// the whole, at once and in the long run.
func TestDividedBy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 5))
	any := func(most int64) int64 { return 1 + rnd.Int64N(1+rnd.Int64N(min(most, math.MaxInt64-1))) }
	checked := 0
	for range testlength.Of(200_000, 20_000) {
		l := Limit{Burst: any(1e6), Count: any(1e6), Period: time.Duration(any(math.MaxInt64)), Queue: rnd.Int64N(9),
			Durability: Durability(rnd.IntN(5))}
		if l.Validate() != nil {
			continue
		}
		checked++
		n := any([]int64{3, 100, math.MaxInt64}[rnd.IntN(3)])
		s := l.DividedBy(n)
		require.NoError(t, s.Validate(), "%v of %d", l, n)
		require.Equal(t, max(1, l.Burst/n), s.Burst)
		require.Equal(t, l.Durability, s.Durability)
		require.Equal(t, l.Queue == 0, s.Queue == 0)
		whole := new(big.Int).Mul(big.NewInt(int64(l.Interval())), big.NewInt(n))
		if century := big.NewInt(100 * 36525 * 24 * 3600 * 1e7); whole.Cmp(century) > 0 {
			require.Equal(t, century.Int64(), int64(s.Interval()))
		} else {
			require.Equal(t, whole.Int64(), int64(s.Interval()), "%v of %d", l, n)
		}
		if l.Burst%n == 0 {
			require.Equal(t, l.Tolerance(), s.Tolerance(), "%v of %d", l, n)
		}
	}
	require.Greater(t, checked, 1000)
	for _, l := range []Limit{Unlimited, Blocked, {}, PerHour(5)} {
		for _, n := range []int64{1, 0, -1} {
			require.Equal(t, l, l.DividedBy(n))
		}
		if l.Count == 0 {
			require.Equal(t, l, l.DividedBy(3))
		}
	}
}
