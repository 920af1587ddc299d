package stint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/share"
	"github.com/stint-go/stint/internal/testlength"
)

// The Names of the tests of shares.
const (
	shareTotal Name = iota + 1
	shareTenant
	shareFloor
	sharePlain
)

var shareNames = Names{
	shareTotal:  {Label: "Total", ID: Shared},
	shareTenant: {Label: "Tenant", Parent: shareTotal, Floor: shareFloor},
	shareFloor:  {Label: "TenantFloor"},
	sharePlain:  {Label: "Plain", Limit: PerSecond(5)},
}

var (
	acme, globex, initech = shareTenant.Key("acme"), shareTenant.Key("globex"), shareTenant.Key("initech")
	acmeFloor             = shareFloor.Key("acme")
	theTotal              = shareTotal.Key("")
)

// shareLimits returns a total of 1000 at a level. acme and globex have floors
// of 100 tokens each.
func shareLimits(t testing.TB, level Durability) *Limits {
	at := func(l Limit) Limit { l.Durability = level; return l }
	defaults := map[Name]Limit{shareTotal: at(PerSecond(1000)), shareTenant: at(PerSecond(600))}
	return limitsOf(t, shareNames, defaults,
		Override{Key: shareFloor.Key("acme"), Limit: at(PerSecond(200).WithBurst(100))},
		Override{Key: shareFloor.Key("globex"), Limit: at(PerSecond(200).WithBurst(100))},
	)
}

func shareRig(t testing.TB, level Durability) *rig {
	return rigOn(t, NewMemStore(), shareLimits(t, level), Options{})
}

// levels returns what floor, ceiling and total of an id have left.
func (r *rig) levels(id string) [3]int64 {
	return [3]int64{r.bucket(shareFloor.Key(id)).Remaining, r.bucket(shareTenant.Key(id)).Remaining,
		r.bucket(theTotal).Remaining}
}

func TestShare(t *testing.T) {
	run := func(name string, test func(t *testing.T, r *rig)) {
		for level := Memory; level <= Synced; level++ {
			t.Run(fmt.Sprint(name, "/", level), func(t *testing.T) { test(t, shareRig(t, level)) })
		}
	}
	// drain leaves 200 tokens in the total, which are kept for the floors.
	drain := func(r *rig) {
		r.take(initech, 600)
		r.take(shareTenant.Key("umbrella"), 200)
	}
	run("who pays", func(t *testing.T, r *rig) {
		d := r.spend(acme, 30)
		require.True(t, d.Allowed)
		require.Equal(t, acme, d.Key, "the ceiling has fewer left than the total lends")
		require.EqualValues(t, 570, d.Remaining)
		require.Equal(t, [3]int64{70, 570, 970}, r.levels("acme"))
		r.take(acme, 170) // more than the floor has: a loan
		require.Equal(t, [3]int64{70, 400, 800}, r.levels("acme"))
		r.take(initech, 600)
		d = r.spend(initech, 0)
		require.EqualValues(t, 0, d.Remaining)
		d = r.spend(shareTenant.Key("umbrella"), 1)
		require.False(t, d.Allowed)
		require.Equal(t, theTotal, d.Key)
		require.Equal(t, PerSecond(1000), Limit{Burst: d.Limit.Burst, Count: d.Limit.Count, Period: d.Limit.Period})
		require.Equal(t, time.Millisecond, d.RetryAfter)
		r.take(globex, 100)
		d = r.spend(acme, 71) // 1 ms until the floor has them, 72 ms until the total has 271
		require.Equal(t, acmeFloor, d.Key)
		require.Equal(t, 5*time.Millisecond, d.RetryAfter)
		r.take(acme, 70)
		require.EqualValues(t, 30, r.bucket(theTotal).Remaining, "the 30 that acme spent first")
	})
	// A denied decision has the state of a bucket from which nothing was spent.
	run("denied", func(t *testing.T, r *rig) {
		r.take(initech, 600)
		umbrella := shareTenant.Key("umbrella")
		r.take(umbrella, 100) // the total has 300, of which it lends 100
		for range 2 {         // the second finds all buckets in memory
			want := r.bucket(theTotal).ResetAfter
			for _, d := range []Decision{r.spend(umbrella, 150), r.check(umbrella, 150), r.spend(theTotal, 150)} {
				require.False(t, d.Allowed)
				require.Equal(t, theTotal, d.Key)
				require.Equal(t, 50*time.Millisecond, d.RetryAfter)
				require.Equal(t, want, d.ResetAfter)
				require.EqualValues(t, 100, d.Remaining)
			}
			require.Equal(t, [3]int64{0, 500, 300}, r.levels("umbrella"))
		}
		r.take(acme, 60) // its floor has 40, and the total 240, of which it lends 40
		for range 2 {
			d := r.spend(acme, 41) // 1 ms until the total lends them, 5 ms until the floor has one more
			require.Equal(t, theTotal, d.Key)
			require.Equal(t, time.Millisecond, d.RetryAfter)
			require.EqualValues(t, 40, d.Remaining)
			require.Equal(t, r.bucket(theTotal).ResetAfter, d.ResetAfter)
		}
	})
	run("check", func(t *testing.T, r *rig) {
		drain(r)
		for _, cost := range []int64{0, 1, 100, 101} {
			c := r.check(acme, cost)
			before := r.levels("acme")
			require.Equal(t, before, r.levels("acme"))
			d := r.spend(acme, cost)
			if c.Allowed {
				c.Taken = cost
			}
			require.Equal(t, c, d)
			r.refund(acme, cost)
		}
	})
	run("refund", func(t *testing.T, r *rig) {
		r.take(acme, 50)
		r.refund(acme, 50)
		require.Equal(t, [3]int64{100, 600, 1000}, r.levels("acme"), "an own request")
		r.take(initech, 500)
		r.refund(initech, 500)
		require.Equal(t, [3]int64{0, 600, 1000}, r.levels("initech"), "a loan")
		r.take(acme, 100)
		r.take(acme, 50) // a loan
		r.refund(acme, 20)
		require.Equal(t, [3]int64{20, 470, 870}, r.levels("acme"), "the floor first")
	})
	run("late refund", func(t *testing.T, r *rig) {
		drain(r)
		spent := r.Now()
		r.take(acme, 100)
		r.take(globex, 100)
		r.clock.Advance(50 * time.Millisecond) // 50 have come back to the total, and 10 to each floor
		for _, key := range []Key{acme, globex} {
			r.decided(r.Refund(Request{Key: key, Cost: 100, Spent: spent}))
			r.decided(r.Refund(Request{Key: key, Cost: 100, Spent: r.clock.Now().Add(-100 * time.Millisecond)}))
		}
		require.Equal(t, [3]int64{60, 600, 150}, r.levels("acme"), "the floor regains 50, as the total does")
		require.Equal(t, [3]int64{60, 600, 150}, r.levels("globex"))
		r.decided(r.Refund(Request{Key: acme, Cost: 100, Spent: time.Unix(0, 1)}))
		require.Equal(t, [3]int64{60, 600, 150}, r.levels("acme"), "all are back")
	})
	run("total", func(t *testing.T, r *rig) {
		_, err := r.Spend(theTotal, 801)
		require.ErrorIs(t, err, ErrCostOverBurst)
		require.ErrorContains(t, err, "801 of 800 for Total", "it keeps 200")
		r.take(theTotal, 800)
		r.take(acme, 100)
		require.EqualValues(t, 0, r.check(theTotal, 0).Remaining)
		require.ErrorIs(t, errorOf(r.Spend(theTotal, 1001)), ErrCostOverBurst)
	})
	run("together", func(t *testing.T, r *rig) {
		d := r.spendAll(Request{Key: sharePlain.Key("a"), Cost: 6 - 1}, Request{Key: acme, Cost: 10})
		require.True(t, d.Allowed)
		d = r.spendAll(Request{Key: acme, Cost: 10}, Request{Key: sharePlain.Key("a"), Cost: 1})
		require.False(t, d.Allowed)
		require.Equal(t, sharePlain.Key("a"), d.Key)
		require.Equal(t, [3]int64{90, 590, 990}, r.levels("acme"), "all or nothing")
		d = r.spendAll(Request{Key: acme, Cost: 10, Mode: SpendOnly}, Request{Key: sharePlain.Key("b"), Cost: 1})
		require.Equal(t, [3]int64{80, 580, 980}, r.levels("acme"))
		require.Equal(t, sharePlain.Key("b"), d.Key)
		d = r.spendAll(Request{Key: acme, Cost: 581, Mode: SpendOnly}, Request{Key: sharePlain.Key("b"), Cost: 1})
		require.True(t, d.Allowed)
		r.spendAll(Request{Key: acme, Cost: 580, Mode: CheckOnly}, Request{Key: sharePlain.Key("b"), Cost: 1})
		require.Equal(t, [3]int64{80, 580, 980}, r.levels("acme"))
		for _, twice := range [][]Request{
			{acme.Cost(1), acme.Cost(1)}, {acme.Cost(1), theTotal.Cost(1), theTotal.Cost(1)},
			{acme.Cost(1), Request{Key: acmeFloor, Mode: CheckOnly}},
		} {
			require.ErrorIs(t, errorOf(r.SpendAll(twice...)), ErrDuplicateKey)
		}
	})
	run("holds", func(t *testing.T, r *rig) {
		r.hold(acmeFloor, time.Hour)
		r.take(acme, 10)
		require.Equal(t, [3]int64{100, 590, 990}, r.levels("acme"), "a loan")
		r.hold(theTotal, 2*time.Hour)
		require.Equal(t, 2*time.Hour, r.spend(globex, 1).RetryAfter)
	})
	run("a held floor", func(t *testing.T, r *rig) {
		r.take(initech, 600)
		r.take(shareTenant.Key("umbrella"), 150) // the total has 250, and lends 50
		r.hold(acmeFloor, time.Hour)
		require.EqualValues(t, 50, r.check(acme, 0).Remaining, "the floor pays nothing")
		require.True(t, r.check(acme, 50).Allowed)
		require.False(t, r.check(acme, 51).Allowed)
		d := r.spendUpTo(acme, 1000)
		require.True(t, d.Allowed)
		require.EqualValues(t, 50, d.Taken)
		require.Equal(t, [3]int64{100, 550, 200}, r.levels("acme"))
	})
	run("errors", func(t *testing.T, r *rig) {
		for _, key := range []Key{acme, theTotal, acmeFloor} {
			require.ErrorIs(t, errorOf(r.Reserve(key.Cost(1))), errors.ErrUnsupported)
		}
		require.ErrorIs(t, errorOf(r.Spend(shareTenant.Key(""), 1)), ErrInvalidID)
		require.ErrorIs(t, r.DoEach(context.Background(), []Request{{Key: acme, Cost: 601}}, make([]Decision, 1)), ErrCostOverBurst)
	})
	run("stats", func(t *testing.T, r *rig) {
		drain(r)
		require.True(t, r.Allow(acme))
		ds := make([]Decision, 2)
		require.NoError(t, r.DoEach(context.Background(), []Request{{Key: acme, Cost: 99}, {Key: acme, Cost: 1}}, ds))
		require.True(t, ds[0].Allowed)
		require.False(t, ds[1].Allowed)
		st := r.Stats().Limits
		require.Equal(t, LimitStats{Allowed: 4, Denied: 1}, st[shareTenant])
		require.Equal(t, LimitStats{Allowed: 2}, st[shareFloor])
		require.Equal(t, LimitStats{Allowed: 4, Denied: 1}, st[shareTotal])
	})
	run("memory", func(t *testing.T, r *rig) {
		drain(r)
		r.take(acme, 60)
		require.NoError(t, r.Flush())
		want := r.levels("acme")
		r.evictAll()
		require.Zero(t, r.Stats().Resident)
		require.Equal(t, want, r.levels("acme"))
		require.False(t, r.spend(acme, 41).Allowed)
		r.take(acme, 40)
		r.clock.Advance(time.Hour)
		for range sweepRounds + 1 {
			require.NoError(t, r.Flush())
		}
		require.Zero(t, r.Stats().Resident, "full buckets leave memory")
	})
}

// Overrides and limits change at run time only if the floors still fit.
func TestShareLimitsChange(t *testing.T) {
	r := shareRig(t, Flushed)
	set := func(id string, l Limit) error {
		return r.SetOverrides(Override{Key: shareFloor.Key(id), Limit: l})
	}
	require.NoError(t, set("initech", PerSecond(600)))
	total, floor, kept, ok := r.Limits().Share(acme)
	require.True(t, ok)
	require.Equal(t, []Key{theTotal, acmeFloor}, []Key{total, floor})
	require.EqualValues(t, 800, kept)
	mistakes := func(err error) (texts []string) {
		require.Error(t, err)
		for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
			var m *share.Mistake
			require.ErrorAs(t, err, &m)
			texts = append(texts, err.Error())
		}
		return texts
	}
	require.Equal(t, []string{
		"stint: Total: the bursts of the floors of Tenant add up to 1000: want less than its burst, 1000",
		"stint: Total: the floors of Tenant add up to 1050/1s: want no more than its 1000/1s",
	}, mistakes(set("umbrella", PerSecond(50).WithBurst(200))))
	require.Equal(t, []string{
		`stint: TenantFloor: the burst for "initech" is 601, above that of the ceiling, Tenant: 600`,
		`stint: TenantFloor: the rate for "initech", 601/1s, is above that of the ceiling, Tenant: 600/1s`,
		"stint: Total: the floors of Tenant add up to 1001/1s: want no more than its 1000/1s",
	}, mistakes(set("initech", PerSecond(601))))
	require.Equal(t, []string{"stint: TenantFloor: a floor of Tenant is blocked: want a limit"},
		mistakes(set("acme", Blocked)))
	require.NotEmpty(t, mistakes(r.SetOverrides(Override{Key: shareTenant.Key("acme"), Limit: PerSecond(50)})))
	require.NotEmpty(t, mistakes(r.SetOverrides(Override{Key: shareTotal.Key(""), Limit: PerSecond(999)})))
	_, _, kept, _ = r.Limits().Share(acme)
	require.EqualValues(t, 800, kept, "nothing has changed")

	require.NoError(t, r.SetOverrides(
		Override{Key: shareTenant.Key("acme"), Limit: PerSecond(50)},
		Override{Key: shareFloor.Key("acme")},
	))
	require.NoError(t, r.SetOverrides(Override{Key: shareTenant.Key("globex"), Limit: Blocked}))
	_, floor, kept, _ = r.Limits().Share(acme)
	require.Zero(t, floor)
	require.EqualValues(t, 700, kept)
	r.take(acme, 50)
	blocked := Decision{Key: globex, Limit: Blocked, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64}
	require.Equal(t, blocked, r.spend(globex, 1))
	require.Equal(t, blocked, r.check(globex, 0))
	require.Equal(t, Decision{Key: globex, Limit: Blocked, Allowed: true}, r.refund(globex, 0))

	other := Names{}
	for name, spec := range shareNames {
		spec.Parent, spec.Floor, spec.Limit = 0, 0, Unlimited
		other[name] = spec
	}
	require.ErrorContains(t, r.SetLimits(limitsOf(t, other, nil)), "its Parent or Floor")
	require.NoError(t, r.SetLimits(shareLimits(t, Flushed)))
	require.ErrorContains(t, r.Declare(Names{9: {Label: "Late", Parent: shareTotal}}), "declare it with NewLimits")
	require.NoError(t, r.Declare(Names{9: {Label: "Late"}}))
	require.Equal(t, [3]int64{100, 600, 950}, r.levels("globex"))
	_, _, _, ok = r.Limits().Share(theTotal)
	require.False(t, ok)
}

// A total that is lowered may have less than the floors. No floor goes into debt.
func TestShareTotalLowered(t *testing.T) {
	r := shareRig(t, Flushed)
	r.take(initech, 600)
	r.take(shareTenant.Key("umbrella"), 150)
	require.NoError(t, r.SetOverrides(Override{Key: shareTotal.Key(""), Limit: PerSecond(1000).WithBurst(500)}))
	require.Equal(t, [3]int64{100, 600, 0}, r.levels("acme"), "750 of 500 were used")
	require.False(t, r.spend(acme, 100).Allowed)
	r.clock.Advance(100 * time.Millisecond)
	r.take(acme, 100)
}

// The first request that comes cuts down what a lowered total has lent, also for
// those after it in one call, and even if it only checks.
func TestShareTotalLoweredOnce(t *testing.T) {
	for level := Memory; level <= Synced; level++ {
		r := shareRig(t, level)
		r.take(initech, 600)
		r.take(shareTenant.Key("umbrella"), 200)
		lowered := PerSecond(1000).WithBurst(201)
		lowered.Durability = level
		with, err := r.Limits().With(Override{Key: theTotal, Limit: lowered})
		require.NoError(t, err)
		require.NoError(t, r.SetLimits(with))
		ds := make([]Decision, 2)
		r.decided(r.Do(t.Context(), []Request{{Key: globex, Cost: 1, Mode: CheckOnly}, acme.Cost(2)}, ds))
		require.Equal(t, 2*time.Millisecond, ds[1].RetryAfter, "the total is empty")
		require.Equal(t, r.check(acme, 2), ds[1])
	}
}

// With keeps the same sums as NewLimits computes from the same limits.
func TestShareSumsStay(t *testing.T) {
	ls := shareLimits(t, Flushed)
	for i := range 50 {
		var err error
		ls, err = ls.With(Override{Key: shareFloor.Key(fmt.Sprint("t", i%7)), Limit: PerSecond(int64(1 + i%9))})
		require.NoError(t, err)
	}
	overrides := slices.Collect(ls.Overrides(shareFloor))
	defaults := map[Name]Limit{shareTotal: PerSecond(1000), shareTenant: PerSecond(600)}
	again := limitsOf(t, shareNames, defaults, overrides...)
	require.Len(t, again.totals, 1)
	require.Equal(t, again.totals[0].Burst(), ls.totals[0].Burst())
	intervals := func(yield func(int64) bool) {
		for o := range ls.Overrides(shareFloor) {
			if !yield(int64(o.Limit.Interval())) {
				return
			}
		}
	}
	longest := func(ls *Limits) int { // interval of a total that the floors fit into
		return sort.Search(1e9, func(i int) bool { return !ls.totals[0].FitsRate(int64(i)+1, intervals) })
	}
	require.Equal(t, longest(again), longest(ls))
	require.Less(t, longest(ls), int(1e9))
}

// With checks what comes of all overrides together, in whatever order they are
// given, and reports the same mistakes each time.
func TestShareWith(t *testing.T) {
	ls := shareLimits(t, Flushed)
	floor := func(id string, l Limit) Override { return Override{Key: shareFloor.Key(id), Limit: l} }
	ceiling := Override{Key: shareTenant.Key("acme"), Limit: PerSecond(900), Comment: "large"}
	moved := []Override{floor("acme", PerSecond(850).WithBurst(800)), ceiling, floor("globex", PerSecond(50).WithBurst(50))}
	for range 20 {
		rand.Shuffle(len(moved), func(i, k int) { moved[i], moved[k] = moved[k], moved[i] })
		with, err := ls.With(moved...)
		require.NoError(t, err)
		require.EqualValues(t, 850, with.totals[0].Burst())
		require.NoError(t, errorOf(with.With(floor("umbrella", PerSecond(200)), floor("acme", PerSecond(100)))))

		wrong := []Override{floor("globex", PerSecond(700)), floor("acme", PerSecond(800)), floor("initech", Blocked)}
		rand.Shuffle(len(wrong), func(i, k int) { wrong[i], wrong[k] = wrong[k], wrong[i] })
		_, err = ls.With(wrong...)
		require.EqualError(t, err, strings.Join([]string{
			"stint: TenantFloor: a floor of Tenant is blocked: want a limit",
			`stint: TenantFloor: the burst for "acme" is 800, above that of the ceiling, Tenant: 600`,
			`stint: TenantFloor: the burst for "globex" is 700, above that of the ceiling, Tenant: 600`,
			`stint: TenantFloor: the rate for "acme", 800/1s, is above that of the ceiling, Tenant: 600/1s`,
			`stint: TenantFloor: the rate for "globex", 700/1s, is above that of the ceiling, Tenant: 600/1s`,
			"stint: Total: the bursts of the floors of Tenant add up to 1500: want less than its burst, 1000",
			"stint: Total: the floors of Tenant add up to 1500/1s: want no more than its 1000/1s",
		}, "\n"))
	}
	require.EqualValues(t, 200, ls.totals[0].Burst(), "the old Limits are as they were")
	_, err := ls.With(floor("acme", PerSecond(10)), floor("acme", PerSecond(20)))
	require.EqualError(t, err, `stint: TenantFloor: id "acme" is overridden already, as "acme"`)
	same, err := ls.With()
	require.NoError(t, err)
	require.Equal(t, 2, same.CountOverrides(shareFloor))
}

// Options.KeepOverrides keeps floors and ceilings that fit together, in whatever
// order and with whatever comments SetOverrides put them in force.
func TestShareKeepOverrides(t *testing.T) {
	for range 20 { // the plans are in a map
		r := rigOn(t, NewMemStore(), shareLimits(t, Flushed), Options{KeepOverrides: true})
		set := func(key Key, l Limit, comment string) {
			require.NoError(t, r.SetOverrides(Override{key, l, comment}))
		}
		set(shareFloor.Key("globex"), PerSecond(50).WithBurst(50), "small")
		set(acme, PerSecond(900), "its ceiling")
		set(shareFloor.Key("acme"), PerSecond(880).WithBurst(850), "its floor")
		set(theTotal, PerSecond(990), "")
		require.NoError(t, r.SetLimits(shareLimits(t, Flushed)))
		_, _, kept, ok := r.Limits().Share(acme)
		require.True(t, ok)
		require.EqualValues(t, 900, kept)
	}
}

// The mistake says what the floors promise in the period of the total, and how
// that is too much.
func TestShareSumText(t *testing.T) {
	for _, c := range []struct {
		total, floor Limit // of acme, globex and initech
		want         string
	}{
		{PerSecond(1000), PerSecond(400), "1200/1s: want no more than its 1000/1s"},
		{PerMinute(60), PerMinute(21), "63/1m: want no more than its 60/1m"},
		{PerMinute(60), PerSecond(2), "360/1m: want no more than its 60/1m"},
		{PerSecond(1), PerMinute(25), "1.25/1s: want no more than its 1/1s"},
		{PerSecond(1), Limit{Burst: 1, Count: 4, Period: 11 * time.Second}, "1.091/1s: want no more than its 1/1s"},
		{PerSecond(1), Limit{Burst: 1, Count: 100001, Period: 300 * 1000 * time.Second},
			"1.00001/1s: want no more than its 1/1s"},
		{PerSecond(3e6), PerSecond(11e5), "3300000/1s: want no more than its 3000000/1s"},
		{PerSecond(3), PerSecond(1), "3/1s: want no more than its 3/1s, rounded to a token each 333.333334ms"},
	} {
		defaults := map[Name]Limit{shareTotal: c.total.WithBurst(1000), shareTenant: c.floor.WithBurst(100)}
		_, err := NewLimits(shareNames.WithLimits(defaults),
			Override{Key: shareFloor.Key("acme"), Limit: c.floor.WithBurst(1)},
			Override{Key: shareFloor.Key("globex"), Limit: c.floor.WithBurst(1)},
			Override{Key: shareFloor.Key("initech"), Limit: c.floor.WithBurst(1)},
		)
		require.EqualError(t, err, "stint: Total: the floors of Tenant add up to "+c.want)
	}
}

// Requests of one total are decided in their order, each as if those before it had
// spent, and spend together or not at all. Those with SpendOnly come last. A twin
// with the same buckets takes them one after the other. RetryAfter is exact.
func TestSharesOfOneTotal(t *testing.T) {
	t.Parallel()
	keys := []Key{acme, globex, initech, theTotal, sharePlain.Key("a")}
	allowed, denied := 0, 0
	for seed := range uint64(testlength.Of(4_000, 120)) {
		rng := rand.New(rand.NewPCG(seed, 2))
		level := Memory + Durability(seed%4)
		r := shareRig(t, level)
		for range 12 {
			require.NoError(t, r.Flush())
			store := NewMemStore()
			for name := range shareNames {
				for c, err := range r.disk.All(name) {
					require.NoError(t, err)
					require.NoError(t, store.Save([]Change{c}))
				}
			}
			if rng.IntN(4) == 0 {
				r.evictAll()
			}
			twin := rigAt(t, r.clock, store, r.Limits(), Options{})
			rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			var reqs []Request
			for _, key := range keys[:2+rng.IntN(len(keys)-1)] {
				cost := rng.Int64N([]int64{40, 200}[rng.IntN(2)]) // all together are not over the burst
				if key.Name == sharePlain {
					cost %= 3
				}
				reqs = append(reqs, Request{Key: key, Cost: cost, Mode: Mode(max(0, rng.IntN(6)-3))})
			}
			refund := rng.IntN(4) == 0
			want := make([]Decision, len(reqs))
			all := true
			for _, last := range []bool{false, true} {
				for i, req := range reqs {
					switch {
					case refund && !last:
						req.Spent = JustSpent
						want[i] = twin.decided(twin.Refund(req))
					case refund || last != (req.Mode == SpendOnly):
					case req.Mode == CheckOnly:
						want[i] = twin.check(req.Key, req.Cost)
						all = all && want[i].Allowed
					case !last:
						want[i] = twin.spend(req.Key, req.Cost)
						all = all && want[i].Allowed
					case all:
						want[i] = twin.spend(req.Key, req.Cost)
					}
				}
			}
			before := [][3]int64{r.levels("acme"), r.levels("globex")}
			got := make([]Decision, len(reqs))
			if refund {
				for i := range reqs {
					reqs[i].Spent = JustSpent
				}
				r.decided(r.Refund(reqs...))
			} else {
				d := r.decided(r.Do(t.Context(), reqs, got))
				require.Equal(t, all, d.Allowed, "seed %d", seed)
				lacks := false // a share that was denied before
				for i := range got {
					if all || reqs[i].Mode != SpendOnly {
						if !all {
							want[i].Taken = 0
						}
						if lacks && reqs[i].Key.Name != sharePlain { // the twin did not spend for those before it
							require.GreaterOrEqual(t, got[i].RetryAfter, want[i].RetryAfter)
							continue
						}
						require.Equal(t, want[i], got[i], "seed %d: %+v", seed, reqs)
						lacks = lacks || !got[i].Allowed && reqs[i].Key.Name != sharePlain && reqs[i].Mode == CheckAndSpend
					}
				}
			}
			if !all {
				denied++
				require.Equal(t, before, [][3]int64{r.levels("acme"), r.levels("globex")}, "seed %d: %+v", seed, reqs)
				retry := r.decided(r.SpendAll(reqs...)).RetryAfter
				r.clock.Advance(retry - 1)
				require.EqualValues(t, 1, r.decided(r.SpendAll(reqs...)).RetryAfter, "seed %d: %+v", seed, reqs)
				r.clock.Advance(1)
				require.True(t, r.decided(r.SpendAll(reqs...)).Allowed, "seed %d: %+v", seed, reqs)
			} else {
				allowed++
				for _, key := range keys {
					require.Equal(t, twin.bucket(key), r.bucket(key), "seed %d: %+v", seed, reqs)
				}
				require.Equal(t, twin.levels("acme"), r.levels("acme"))
				require.Equal(t, twin.levels("globex"), r.levels("globex"))
				require.Equal(t, twin.levels("initech"), r.levels("initech"))
			}
			require.NoError(t, twin.Close())
			r.clock.Advance(time.Duration(rng.Int64N(int64(time.Second / 4))))
		}
		require.NoError(t, r.Close())
	}
	require.Positive(t, min(allowed, denied))
}

// Shares of one total cannot spend more of it together than one of them could.
func TestSharesOverBurst(t *testing.T) {
	hooli := shareTenant.Key("hooli")
	for _, c := range []struct {
		reqs []Request
		want string // after "stint: cost over burst: "; "" if it is no error
	}{
		{[]Request{initech.Cost(400), hooli.Cost(400)}, ""},
		{[]Request{initech.Cost(400), hooli.Cost(401)}, "801 of 800 for Total"},
		{[]Request{initech.Cost(400), theTotal.Cost(401)}, "801 of 800 for Total"},
		{[]Request{initech.Cost(400), hooli.Cost(400), acme.Cost(100), globex.Cost(100)}, ""},
		{[]Request{initech.Cost(400), hooli.Cost(400), acme.Cost(101)}, "901 of 800 for Total"},
		{[]Request{initech.Cost(400), {Key: hooli, Cost: 401, Mode: SpendOnly}}, ""}, // it does not spend
		{[]Request{{Key: initech, Cost: 600, Mode: CheckOnly}, hooli.Cost(600)}, ""},
	} {
		r := shareRig(t, Flushed)
		d, err := r.SpendAll(c.reqs...)
		if c.want == "" {
			require.True(t, r.decided(d, err).Allowed, c.reqs)
			continue
		}
		require.ErrorIs(t, err, ErrCostOverBurst)
		require.EqualError(t, err, "stint: cost over burst: "+c.want)
		require.Equal(t, [3]int64{100, 600, 1000}, r.levels("acme"))
	}
}

// After a failed commit a floor has no tokens that the total lacks: what a floor
// paid stays paid, and what the total got back stays.
func TestShareFailedCommit(t *testing.T) {
	for _, c := range []struct {
		name      string
		op        func(r *rig) (Decision, error)
		alone     [3]int64 // floor, ceiling and total after the failure
		disturbed [3]int64 // if another tenant spends 10 before the failure
	}{
		{"spend", func(r *rig) (Decision, error) { return r.Spend(acme, 30) },
			[3]int64{30, 560, 960}, [3]int64{30, 560, 920}},
		{"spend of two", func(r *rig) (Decision, error) { return r.SpendAll(acme.Cost(30), initech.Cost(20)) },
			[3]int64{30, 560, 960}, [3]int64{30, 560, 900}},
		{"refund of two", func(r *rig) (Decision, error) {
			return r.Refund(initech.Cost(10).SpentAt(JustSpent), acme.Cost(20).SpentAt(JustSpent))
		}, [3]int64{60, 560, 990}, [3]int64{60, 560, 980}},
		{"refund", func(r *rig) (Decision, error) { return r.Refund(acme.Cost(30).SpentAt(JustSpent)) },
			[3]int64{60, 560, 990}, [3]int64{60, 560, 980}},
	} {
		for _, disturbed := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, "/disturbed=", disturbed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := shareRig(t, Synced)
					r.take(acme, 40)
					r.disk.shut()
					var wg sync.WaitGroup
					wg.Go(func() {
						require.ErrorIs(t, errorOf(c.op(r)), ErrNotDurable)
					})
					synctest.Wait()
					if disturbed {
						wg.Go(func() { r.take(globex, 10) })
						synctest.Wait()
					}
					r.disk.gate <- errDisk
					r.disk.open()
					wg.Wait()
					want := c.alone
					if disturbed {
						want = c.disturbed
					}
					require.Equal(t, want, r.levels("acme"))
					spends := r.Stats().Limits[shareTenant].Allowed
					require.EqualValues(t, map[bool]int{false: 1, true: 2}[disturbed], spends)
					require.Equal(t, spends, r.Stats().Limits[shareTotal].Allowed)
					held := r.levels("acme")[0] + r.levels("globex")[0]
					require.LessOrEqual(t, held, want[2])
					require.NoError(t, r.Close())
				})
			})
		}
	}
}

// Tenants spend and refund while saves hang, which then succeed or fail, one after
// the other. Each bucket lacks what was acknowledged, and at most what failed
// besides. The floors never hold more than the total. A crash forgets nothing
// that was acknowledged. Time stands still.
func TestShareFlights(t *testing.T) {
	t.Parallel()
	type call struct {
		tenant Key
		cost   int64 // below 0: a refund
		err    error
		done   bool
	}
	failed := 0
	for seed := range uint64(testlength.Of(2_400, 60)) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			r := shareRig(t, []Durability{Leased, Synced}[seed%2])
			hooli := shareTenant.Key("hooli")
			tenants := []Key{acme, globex, initech, hooli}
			// Loans have taken all that the floors do not keep.
			calls := []*call{{initech, 600, nil, true}, {hooli, 200, nil, true}}
			for _, c := range calls {
				r.take(c.tenant, c.cost)
			}
			for range 5 {
				r.disk.shut()
				for range 1 + rng.IntN(6) {
					c := &call{tenant: tenants[rng.IntN(3)], cost: 1 + rng.Int64N(40)}
					known := int64(0) // what the tenant has used for certain
					for _, o := range calls {
						if o.tenant == c.tenant && (o.cost < 0 || o.done && o.err == nil) {
							known += o.cost
						}
					}
					if back := min(c.cost, known); back > 0 && rng.IntN(3) == 0 {
						c.cost = -back
					}
					calls = append(calls, c)
					plain := Request{Key: sharePlain.Key("a"), Cost: int64(rng.IntN(2))}
					go func() {
						var d Decision
						if c.cost < 0 {
							_, c.err = r.Refund(c.tenant.Cost(-c.cost).SpentAt(JustSpent))
						} else if d, c.err = r.SpendAll(Request{Key: c.tenant, Cost: c.cost}, plain); c.err == nil && !d.Allowed {
							c.cost = 0
						}
						c.done = true
					}()
					synctest.Wait()
					if rng.IntN(3) == 0 {
						select {
						case r.disk.gate <- []error{nil, errDisk}[rng.IntN(2)]:
							synctest.Wait()
						default: // no save is under way
						}
					}
				}
				if rng.IntN(2) == 0 {
					select {
					case r.disk.gate <- errDisk:
					default:
					}
				}
				r.disk.open()
				synctest.Wait()
				var least, most [5]int64 // of each tenant, and of all
				for _, c := range calls {
					require.True(t, c.done)
					for _, i := range []int{slices.Index(tenants, c.tenant), len(tenants)} {
						if c.err == nil || c.cost < 0 {
							least[i] += c.cost
						}
						if c.err == nil || c.cost > 0 {
							most[i] += c.cost
						}
					}
					if c.err != nil {
						require.ErrorIs(t, c.err, ErrNotDurable)
						failed++
					}
				}
				requireUsed := func(r *rig, most [5]int64) {
					for i, key := range append(tenants, theTotal) {
						b := r.bucket(key)
						used := b.Limit.Burst - b.Remaining
						require.True(t, least[i] <= used && used <= most[i], "seed %d, %v: %d are used, want %d to %d",
							seed, key, used, least[i], most[i])
					}
				}
				requireUsed(r, most)
				held := r.levels("acme")[0] + r.levels("globex")[0]
				require.LessOrEqual(t, held, r.bucket(theTotal).Remaining, "seed %d: what the floors hold", seed)
				after := r.next(r.Limits()) // as after a crash
				requireUsed(after, [5]int64{1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40})
				after.disk.fail(errDisk, "save")
				after.Close()
			}
			require.NoError(t, r.Close())
		})
	}
	require.Greater(t, failed, 50)
}

// Many callers at once, while floors come and go: nothing deadlocks, and time
// stands still, so no more is spent than the total holds.
func TestShareConcurrency(t *testing.T) {
	for _, level := range []Durability{Memory, Leased} {
		r := shareRig(t, level)
		var callers sync.WaitGroup
		var spent, own atomic.Int64
		for n := range 8 {
			callers.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(n), 0))
				for range 200 {
					key := []Key{acme, globex, initech}[rng.IntN(3)]
					var d Decision
					var err error
					cost := rng.Int64N(4)
					switch n % 4 {
					case 0:
						d, err = r.SpendAll(Request{Key: sharePlain.Key(fmt.Sprint(rng.Int())), Cost: 1}, Request{Key: key, Cost: cost})
					case 1:
						floor := PerSecond(1 + rng.Int64N(9))
						err = r.SetOverrides(Override{Key: shareFloor.Key("initech"), Limit: floor})
					default:
						d, err = r.Spend(key, cost)
					}
					if d.Allowed {
						spent.Add(cost)
					}
					if err != nil {
						panic(err)
					}
					if n == 0 {
						own.Store(r.Stats().Limits[shareFloor].Allowed)
					}
				}
			})
		}
		callers.Wait()
		require.Equal(t, spent.Load(), 1000-r.bucket(theTotal).Remaining)
		require.Positive(t, own.Load())
	}
}

// Shares of a DoEach wait for their commits together.
func TestShareEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := shareRig(t, Synced)
		r.disk.shut()
		reqs := []Request{acme.Cost(1), globex.Cost(2), initech.Cost(3)}
		ended := begin(func() error { return r.DoEach(context.Background(), reqs, make([]Decision, 3)) })
		require.EqualValues(t, 599, r.bucket(acme).Remaining)
		require.EqualValues(t, 597, r.bucket(initech).Remaining, "it does not wait for the commit of the first")
		r.disk.open()
		require.NoError(t, <-ended)
		require.LessOrEqual(t, r.disk.count(), 2)
		require.NoError(t, r.Close())
	})
}

// Shares of a DoEach wait for space in memory once, whether their ceilings
// need it or only their floors.
func TestShareEachWithoutSpace(t *testing.T) {
	for _, ceiling := range []Limit{Unlimited, PerSecond(600)} {
		synctest.Test(t, func(t *testing.T) {
			var reqs []Request
			var overrides []Override
			for i := range 20 {
				id := fmt.Sprint(i)
				overrides = append(overrides, Override{Key: shareFloor.Key(id), Limit: PerSecond(1)})
				reqs = append(reqs, Request{Key: shareTenant.Key(id), Cost: 1})
			}
			defaults := map[Name]Limit{shareTotal: PerSecond(1000), shareTenant: ceiling}
			limits := limitsOf(t, shareNames, defaults, overrides...)
			r := rigOn(t, NewMemStore(), limits, Options{MaxResident: 1, CommitTimeout: 5 * time.Second})
			r.take(theTotal, 1)
			r.disk.shut()
			ds, begun := make([]Decision, len(reqs)), time.Now()
			err := r.DoEach(context.Background(), reqs, ds)
			require.ErrorIs(t, err, ErrFull)
			require.ErrorContains(t, err, "request 19:")
			require.Equal(t, 5*time.Second, time.Since(begun), "%v", ceiling)
			r.disk.open()
			synctest.Wait()
			require.NoError(t, r.DoEach(context.Background(), reqs, ds))
			require.EqualValues(t, 979, r.bucket(theTotal).Remaining)
			require.NoError(t, r.Close())
		})
	}
}

// UpTo takes what a share's three buckets have, and the Decision says so.
func TestUpTo(t *testing.T) {
	const all, tenant, floor Name = 1, 2, 3
	lim := rigOn(t, NewMemStore(), limitsOf(t, Names{
		all: {Label: "all", ID: Shared, Limit: PerHour(10)}, floor: {Label: "floor"},
		tenant: {Label: "tenant", Limit: PerHour(8), Parent: all, Floor: floor},
	}, nil, Override{Key: floor.Key("acme"), Limit: PerHour(3)}), Options{})
	for _, step := range []struct {
		id         string
		cost, want int64
	}{
		{"other", 5, 5}, {"other", 5, 2}, {"other", 1, 0}, // 3 of the total are kept for acme
		{"acme", 2, 2}, {"third", 0, 0}, {"acme", 9, 1}, {"acme", 9, 0}, {"third", 0, 0},
	} {
		d := lim.spendUpTo(tenant.Key(step.id), step.cost)
		require.Equal(t, step.want, d.Taken, "%s %d", step.id, step.cost)
		if step.id == "acme" || step.id == "other" {
			require.True(t, d.Allowed)
			continue
		}
		require.False(t, d.Allowed, "the total has less than it keeps, so no other may go")
		require.Equal(t, lim.check(tenant.Key(step.id), 0), d)
	}
	lim.hold(tenant.Key("acme"), time.Hour)
	require.NoError(t, lim.Reset(all.Key(""), floor.Key("acme")))
	d := lim.spendUpTo(tenant.Key("acme"), 1)
	require.Zero(t, d.Taken)
	require.False(t, d.Allowed)
	for cost := range int64(2) {
		_, err := lim.SpendAll(Request{Key: floor.Key("acme"), Cost: cost, Mode: UpTo})
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	_, err := lim.SpendAll(Request{Key: tenant.Key("acme"), Cost: -1, Mode: UpTo})
	require.ErrorIs(t, err, ErrNegativeCost)
}

// firstTree returns limits without a tree, and with one.
func firstTree(t *testing.T, total int64) (plain, tree *Limits) {
	names := Names{9: {Label: "plain", Limit: PerHour(5)}}
	plain = limitsOf(t, names, nil)
	names[1] = NameSpec{Label: "total", ID: Shared, Limit: PerHour(total)}
	names[2] = NameSpec{Label: "class", Limit: PerHour(100), Parent: 1}
	return plain, limitsOf(t, names, nil)
}

// A tree that SetLimits brings is in force for every call.
func TestFirstTree(t *testing.T) {
	plain, tree := firstTree(t, 3)
	req := Name(2).Key("x").Cost(1)
	for call, spend := range map[string]func(l *Limiter) (bool, error){
		"Allow":    func(l *Limiter) (bool, error) { return l.Allow(req.Key), nil },
		"Spend":    func(l *Limiter) (bool, error) { d, err := l.Spend(req.Key, 1); return d.Allowed, err },
		"SpendAll": func(l *Limiter) (bool, error) { d, err := l.SpendAll(req); return d.Allowed, err },
		"SpendAll of two": func(l *Limiter) (bool, error) {
			d, err := l.SpendAll(req, Request{Key: Name(9).Key("x"), Cost: 0})
			return d.Allowed, err
		},
		"DoEach": func(l *Limiter) (bool, error) {
			ds := make([]Decision, 1)
			err := l.DoEach(t.Context(), []Request{req}, ds)
			return ds[0].Allowed, err
		},
	} {
		r := rigOn(t, NewMemStore(), plain, Options{})
		require.NoError(t, r.SetLimits(tree))
		admitted := 0
		for range 10 {
			allowed, err := spend(r.Limiter)
			require.NoError(t, err)
			if allowed {
				admitted++
			}
		}
		require.Equal(t, 3, admitted, call)
	}
}

// No call spends from a class alone while the tree comes. It is a matter of
// nanoseconds: one round in 3,000 found it.
func TestFirstTreeMeanwhile(t *testing.T) {
	t.Parallel()
	plain, tree := firstTree(t, 1)
	class, other := Name(2).Key("x").Cost(1), Name(9).Key("x").Cost(0)
	for range testlength.Of(30_000, 300) {
		r := rigOn(t, NewMemStore(), plain, Options{})
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for i := range 4 {
			callers.Go(func() {
				for range 200 {
					var d Decision
					if i%2 == 0 {
						d, _ = r.Spend(class.Key, 1)
					} else {
						d, _ = r.SpendAll(class, other)
					}
					if d.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		require.NoError(t, r.SetLimits(tree))
		callers.Wait()
		require.LessOrEqual(t, admitted.Load(), int64(1))
		require.NoError(t, r.Close())
	}
}

// A call that brought the parts of one share, and then finds that new limits have
// made another of its requests a share, does not bring them again.
func TestSecondClass(t *testing.T) {
	t.Parallel()
	names := Names{1: {Label: "total", ID: Shared, Limit: PerHour(1000)}, 2: {Label: "class", Limit: PerHour(1000), Parent: 1, Floor: 4},
		4: {Label: "floor"}}
	floor := Override{Key: Name(4).Key("x"), Limit: PerHour(10)}
	one := limitsOf(t, names, nil, floor)
	names[3] = NameSpec{Label: "second", Limit: PerHour(1000), Parent: 1}
	two := limitsOf(t, names, nil, floor)
	for range 300 {
		r := rigOn(t, NewMemStore(), one, Options{})
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 200 {
					if _, err := r.SpendAll(Name(2).Key("x").Cost(1), Name(3).Key("x").Cost(1)); err != nil {
						require.ErrorIs(t, err, ErrUnknownName)
					}
				}
			})
		}
		require.NoError(t, r.SetLimits(two))
		callers.Wait()
		require.NoError(t, r.Close())
	}
}

// A SpendOnly request that is alone has no part in the decision.
func TestShareSpendOnly(t *testing.T) {
	r := rigOn(t, NewMemStore(), limitsOf(t, Names{1: {Label: "total", ID: Shared, Limit: PerHour(2)},
		2: {Label: "class", Limit: PerHour(5), Parent: 1}}, nil), Options{})
	only := Request{Key: Name(2).Key("x"), Cost: 1, Mode: SpendOnly}
	for _, left := range []int64{1, 0, 0} {
		d := r.spendAll(only)
		require.Equal(t, Decision{Allowed: true, Remaining: math.MaxInt64}, d)
		require.Equal(t, left, r.left(only.Key))
	}
}

// A Name can leave the limits and come back as a share while a call loads a bucket.
func TestBecomesShare(t *testing.T) {
	one, total := Name(1).Key("x"), NameSpec{Label: "total", ID: Shared, Limit: PerHour(500)}
	other := limitsOf(t, Names{9: {Label: "other", Limit: PerHour(5)}}, nil)
	// change puts limits in force as the bucket of a key is loaded for the n-th time.
	change := func(r *rig, key Key, n int, to ...*Limits) {
		r.disk.on(func(op storeOp) error {
			if op.name == "load" && !op.done && op.key == key {
				if n--; n == 0 {
					for _, limits := range to {
						require.NoError(t, r.SetLimits(limits))
					}
				}
			}
			return nil
		})
	}
	t.Run("Wait for a quota", func(t *testing.T) {
		share := limitsOf(t, Names{1: {Label: "one", Limit: PerHour(5), Parent: 3}, 3: total}, nil)
		r := rigOn(t, NewMemStore(), limitsOf(t, Names{1: {Label: "one", Limit: EachHour(5, time.UTC)}}, nil), Options{})
		change(r, one, 3, other, share)
		require.ErrorIs(t, errorOf(r.Wait(t.Context(), one.Cost(2))), errors.ErrUnsupported)
		require.EqualValues(t, 5, r.left(one))
		require.EqualValues(t, 1, r.Stats().Limits[1].Errors)
	})
	t.Run("a request for another Name keeps its Limit", func(t *testing.T) {
		names := Names{1: {Label: "one", Limit: PerHour(5)}, 2: {Label: "two", Limit: PerHour(5)}}
		r := rigOn(t, NewMemStore(), limitsOf(t, names, nil), Options{})
		names[2], names[3] = NameSpec{Label: "two", Limit: PerHour(5), Parent: 3}, total
		share := limitsOf(t, names, nil)
		names[1] = NameSpec{Label: "one", Limit: PerHour(100)}
		more := limitsOf(t, names, nil)
		without := limitsOf(t, Names{1: {Label: "one", Limit: PerHour(5)}}, nil)
		step := 0
		r.disk.on(func(op storeOp) error {
			switch {
			case op.name != "load" || op.done:
			case op.key == Name(2).Key("x") && step == 0:
				step++
				require.NoError(t, r.SetLimits(without))
				require.NoError(t, r.SetLimits(share))
			case op.key == Name(3).Key("") && step == 1:
				step++
				require.NoError(t, r.SetLimits(more))
			}
			return nil
		})
		_, err := r.SpendAll(Request{Key: one, Cost: 50, Limit: PerHour(5)}, Name(2).Key("x").Cost(1))
		require.ErrorIs(t, err, ErrCostOverBurst, "the request brought 5 an hour")
		require.Equal(t, 2, step)
	})
	t.Run("a total", func(t *testing.T) {
		share := limitsOf(t, Names{1: {Label: "one", Limit: PerHour(5), Parent: 3}, 3: {Label: "total", ID: Shared, Limit: PerHour(5)}}, nil)
		r := rigOn(t, NewMemStore(), limitsOf(t, Names{3: {Label: "total", ID: Shared, Limit: PerHour(5)}}, nil), Options{})
		change(r, Name(3).Key(""), 1, other, share)
		_, err := r.SpendAll(Request{Key: Name(3).Key(""), Cost: 1, Limit: PerHour(5)})
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}

// Errors count for the limit of the request, in whatever order its shards are locked.
func TestErrorsOfShares(t *testing.T) {
	limits := limitsOf(t, Names{1: {Label: "total", ID: Shared, Limit: PerHour(30)},
		2: {Label: "class", Limit: PerHour(20), Parent: 1, Floor: 3}, 3: {Label: "floor"}}, nil,
		Override{Key: Name(3).Key("x"), Limit: PerHour(5)})
	for range 20 { // each has another seed of its hashes
		r := rigOn(t, NewMemStore(), limits, Options{})
		require.ErrorIs(t, errorOf(r.Spend(Name(2).Key("x"), 21)), ErrCostOverBurst)
		for name, st := range r.Stats().Limits {
			require.EqualValues(t, map[Name]int64{2: 1}[name], st.Errors, name)
		}
		require.NoError(t, r.Close())
	}
}
