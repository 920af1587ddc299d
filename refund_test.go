package stint

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	clock := newSimClock()
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
				clock.advance(time.Duration(rng.Int64N(int64(15 * time.Second))))
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
		clock.advance(54 * time.Second)
		d, err := lim.Spend(key, 900)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		clock.advance(6 * time.Second)
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
				clock.advance(tc.ago)
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
	lim, err := New(NewMemStore(), limits, &Options{Now: newSimClock().Now})
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
