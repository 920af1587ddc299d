// Package sharestest has the laws of package shares, for every kind of Decider below
// it. Only tests import it.
package sharestest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/shares"
)

// The laws of shares, on random histories. The model is exact rationals; it
// knows the rule of payment, and nothing of TATs.

// Open returns a Decider on full buckets by a clock, and a function that puts other
// limits in force.
type Open func(limits *stint.Limits, clock *modeltest.Clock) (d stint.Decider, set func(*stint.Limits) error)

// The Names of one tree; a Limiter has many. The twin is a second tree with the
// same limits. The plain class and total have no Parent.
const (
	treeTotal stint.Name = iota
	treeClass
	treeFloor
	twinTotal
	twinClass
	twinFloor
	plainTotal
	plainClass
	alongside // another limit
	treeNames
)

// lawTree is one tree with random limits.
type lawTree struct {
	first    stint.Name // its treeTotal
	total    stint.Limit
	other    stint.Limit
	ceilings []stint.Limit // by tenant
	floors   []stint.Limit // Unlimited: it has none
	kept     int64
	fits     bool // the floors promise no more than the total has
}

func (tr *lawTree) key(name stint.Name, tenant int) stint.Key {
	return (tr.first + name).Key(fmt.Sprint(tenant))
}

func every(interval, burst int64) stint.Limit {
	return stint.Limit{Burst: burst, Count: 1, Period: time.Duration(interval)}
}

func newLawTree(rng *rand.Rand, first stint.Name, fits bool) *lawTree {
	tr := &lawTree{first: first, fits: fits}
	tenants := 1 + rng.Int64N(4)
	interval := 1 + rng.Int64N(1<<rng.IntN(20))
	for range tenants {
		least := interval * tenants // so they add up to no more than the total
		floor := every(least+rng.Int64N(2)*rng.Int64N(least), 1+rng.Int64N(6))
		if rng.IntN(4) == 0 {
			floor = stint.Unlimited
		} else {
			tr.kept += floor.Burst
		}
		fast := 1 + rng.Int64N(least)
		tr.floors = append(tr.floors, floor)
		tr.ceilings = append(tr.ceilings, every(fast, 6+rng.Int64N(20)))
	}
	tr.total = every(interval, max(tr.kept, 5)+1+rng.Int64N(20)*rng.Int64N(2))
	if !fits {
		tr.total = every(interval*(1+rng.Int64N(4)), 1+rng.Int64N(9))
	}
	tr.other = every(1+rng.Int64N(3*interval), 6+rng.Int64N(30))
	return tr
}

// lawTrees returns a Decider with many trees.
func lawTrees(t *testing.T, open Open, rng *rand.Rand, clock *modeltest.Clock, n int, fits bool) (*shares.Decider, []*lawTree) {
	var all []*lawTree
	var trees []shares.Tree
	for i := range n {
		first := stint.Name(1 + i*int(treeNames))
		all = append(all, newLawTree(rng, first, fits))
		trees = append(trees, shares.Tree{Total: first + treeTotal, Class: first + treeClass, Floor: first + treeFloor},
			shares.Tree{Total: first + twinTotal, Class: first + twinClass, Floor: first + twinFloor})
	}
	limits := limitsOf(t, all, func(tr *lawTree) stint.Limit {
		if !tr.fits {
			return every(1, 1e6)
		}
		return tr.total
	})
	below, set := open(limits, clock)
	d, err := shares.New(below, trees...)
	require.NoError(t, err)
	if !fits {
		require.NoError(t, set(limitsOf(t, all, func(tr *lawTree) stint.Limit { return tr.total })))
	}
	return d, all
}

// limitsOf returns the limits of many trees.
func limitsOf(t *testing.T, all []*lawTree, total func(*lawTree) stint.Limit) *stint.Limits {
	names, overrides := stint.Names{}, []stint.Override{}
	for _, tr := range all {
		for name := range treeNames {
			spec := stint.NameSpec{Label: fmt.Sprint(tr.first + name), Limit: stint.Unlimited}
			switch name {
			case treeTotal, twinTotal, plainTotal:
				spec.IDs, spec.Limit = stint.Single, total(tr)
			case alongside:
				spec.Limit = tr.other
			}
			names[tr.first+name] = spec
		}
		for tenant := range tr.floors {
			id := fmt.Sprint(tenant)
			for _, name := range []stint.Name{treeClass, twinClass, plainClass} {
				overrides = append(overrides, stint.Override{Key: (tr.first + name).Key(id), Limit: tr.ceilings[tenant]})
			}
			for _, name := range []stint.Name{treeFloor, twinFloor} {
				if tr.floors[tenant] != stint.Unlimited {
					overrides = append(overrides, stint.Override{Key: (tr.first + name).Key(id), Limit: tr.floors[tenant]})
				}
			}
		}
	}
	limits, err := stint.NewLimits(names, overrides...)
	require.NoError(t, err)
	return limits
}

// mutant is a rule that breaks a law.
type mutant uint8

const (
	sound    mutant = iota
	keepNone        // a loan takes all that the total has
	askTotal        // a floor pays only if the total would lend
	askFloor        // a floor pays, whatever the total has
)

// lawHistory is one history of a tree, and what the model knows of it.
type lawHistory struct {
	*lawTree
	t        *testing.T
	l        *shares.Decider // nil: the model decides
	mutant   mutant
	broken   string // law, by a mutant
	rng      *rand.Rand
	clock    *modeltest.Clock
	total    *ratBucket
	other    *ratBucket
	ceilings []*ratBucket
	floors   []*ratBucket // nil: none
	demand   []*ratBucket // of tenants that ask for no more than their floor
	spent    []modeltest.Admission
	by       [][]modeltest.Admission
	sayWhen  bool // refunds say when the tokens were spent
	net      bool // tokens were refunded, so windows prove nothing
	own      int
	borrowed int
	denied   int
}

func newLawHistory(t *testing.T, l *shares.Decider, tr *lawTree, rng *rand.Rand, clock *modeltest.Clock) *lawHistory {
	now := clock.Nanos()
	h := &lawHistory{lawTree: tr, t: t, l: l, rng: rng, clock: clock,
		total: newRatBucket(tr.total, now), other: newRatBucket(tr.other, now)}
	for tenant, ceiling := range tr.ceilings {
		h.ceilings = append(h.ceilings, newRatBucket(ceiling, now))
		h.by = append(h.by, nil)
		var floor, demand *ratBucket
		if tr.floors[tenant] != stint.Unlimited {
			floor = newRatBucket(tr.floors[tenant], now)
			if rng.IntN(2) == 0 {
				demand = newRatBucket(tr.floors[tenant], now)
			}
		}
		h.floors, h.demand = append(h.floors, floor), append(h.demand, demand)
	}
	return h
}

func (h *lawHistory) now() int64 { return h.clock.Nanos() }

func (h *lawHistory) advance(ns int64) {
	h.clock.Advance(time.Duration(ns))
	h.total.advance(h.now())
	h.other.advance(h.now())
	for _, buckets := range [][]*ratBucket{h.ceilings, h.floors, h.demand} {
		for _, b := range buckets {
			if b != nil {
				b.advance(h.now())
			}
		}
	}
	held := new(big.Rat)
	for _, b := range h.floors {
		if b != nil {
			held.Add(held, &b.level)
		}
	}
	if h.total.level.Sign() < 0 {
		h.fail("no debt", "the total holds %v", &h.total.level)
	}
	if h.fits && h.total.level.Cmp(held) < 0 {
		h.fail("law 2", "the floors hold %v, the total %v", held, &h.total.level)
	}
}

// wait returns what the model says of a request: who pays, and when.
func (h *lawHistory) wait(tenant int, cost int64) (wait int64, own bool) {
	kept := h.kept
	if h.mutant == keepNone {
		kept = 0
	}
	pay, loan := int64(never), h.total.until(cost+kept)
	if f := h.floors[tenant]; f != nil {
		if pay = f.until(cost); h.mutant != askFloor {
			pay = max(pay, h.total.until(cost))
		}
		if h.mutant == askTotal {
			pay = max(pay, loan)
		}
	}
	return max(h.ceilings[tenant].until(cost), min(pay, loan)), pay == 0
}

func (h *lawHistory) step() {
	switch h.rng.IntN(6) {
	case 0:
		h.advance(1)
	case 1, 2:
		h.advance(h.rng.Int64N(2 * int64(h.lawTree.total.Interval())))
	case 3:
		h.advance(h.rng.Int64N(6 * int64(h.lawTree.ceilings[0].Interval())))
	}
	tenant, cost := h.rng.IntN(len(h.ceilings)), h.rng.Int64N(7)
	steady := h.demand[tenant]
	if steady != nil && !steady.has(cost) {
		return // more than a tenant within its floor asks for
	}
	wait, own := h.wait(tenant, cost)
	key := h.key(treeClass, tenant)
	if wait == never && h.l != nil {
		_, err := h.l.Spend(key, cost)
		require.ErrorIs(h.t, err, stint.ErrCostOverBurst)
		return
	}
	if steady != nil {
		if steady.take(cost); wait > 0 && h.fits {
			h.fail("law 3", "tenant %d, cost %d, is denied for %d ns", tenant, cost, wait)
		}
	}
	if h.l == nil {
		if wait == 0 {
			h.take(tenant, cost, own)
		}
		return
	}
	with := h.rng.IntN(4) == 0 && steady == nil
	if with {
		wait = max(wait, h.other.until(cost))
	}
	d := h.spend(key, tenant, cost, with)
	if d.Allowed != (wait == 0) || int64(d.RetryAfter) != wait {
		h.t.Fatalf("laws 5 and 7: tenant %d, cost %d: the model waits for %d ns: %+v", tenant, cost, wait, d)
	}
	if h.twins(tenant, cost, with, d); !d.Allowed {
		h.denied++
		h.retry(key, tenant, cost, with, wait)
		return
	}
	if with {
		h.other.take(cost)
	}
	h.take(tenant, cost, own)
	if h.rng.IntN(4) == 0 && !with {
		h.remains(key, d.Remaining)
	}
	h.spent = append(h.spent, modeltest.At(h.now(), cost))
	h.by[tenant] = append(h.by[tenant], modeltest.At(h.now(), cost))
	if steady == nil && h.rng.IntN(8) == 0 {
		h.refund(key, tenant, h.rng.Int64N(9))
	}
}

func (h *lawHistory) fail(law, format string, args ...any) {
	if h.mutant == sound {
		h.t.Fatalf(law+": "+format, args...)
	}
	h.broken = cmp.Or(h.broken, law)
}

// take charges an allowed request.
func (h *lawHistory) take(tenant int, cost int64, own bool) {
	h.ceilings[tenant].take(cost)
	h.total.take(cost)
	if own {
		h.floors[tenant].take(cost)
		h.own++
	} else {
		h.borrowed++
	}
}

// spend spends, alone or with another limit.
func (h *lawHistory) spend(key stint.Key, tenant int, cost int64, with bool) stint.Decision {
	var d stint.Decision
	var err error
	if with {
		d, err = h.do(stint.Request{Key: key, Cost: cost}, stint.Request{Key: h.key(alongside, 0), Cost: cost})
	} else {
		d, err = h.l.Spend(key, cost)
	}
	require.NoError(h.t, err)
	return d
}

func (h *lawHistory) do(reqs ...stint.Request) (stint.Decision, error) {
	return h.l.Do(context.Background(), reqs, nil)
}

// twins requires the same decision in another order of the requests. Without
// floors, it also requires that of SpendAll over ceiling and total.
func (h *lawHistory) twins(tenant int, cost int64, with bool, d stint.Decision) {
	reqs := []stint.Request{{Key: h.key(twinClass, tenant), Cost: cost}}
	if with {
		reqs = append(reqs, stint.Request{Key: h.key(alongside, 1), Cost: cost})
		slices.Reverse(reqs)
	}
	twin, err := h.do(reqs...)
	require.NoError(h.t, err)
	plain := d
	if h.kept == 0 {
		reqs = []stint.Request{{Key: h.key(plainClass, tenant), Cost: cost}, {Key: (h.first + plainTotal).Key(""), Cost: cost}}
		if with {
			reqs = append(reqs, stint.Request{Key: h.key(alongside, 2), Cost: cost})
		}
		plain, err = h.do(reqs...)
		require.NoError(h.t, err)
	}
	for law, other := range map[string]*stint.Decision{"law 8": &twin, "law 6": &plain} {
		if other.Key = d.Key; *other != d { // the limits tell the keys apart
			h.t.Fatalf("%s: %+v, want %+v", law, *other, d)
		}
	}
}

// remains requires that a request of all that remains would pass now, and none
// of more.
func (h *lawHistory) remains(key stint.Key, tokens int64) {
	d, err := h.l.Check(key, tokens)
	require.NoError(h.t, err)
	require.True(h.t, d.Allowed, "%d remained: %+v", tokens, d)
	d, err = h.l.Check(key, tokens+1)
	if err != nil {
		require.ErrorIs(h.t, err, stint.ErrCostOverBurst)
	}
	require.False(h.t, d.Allowed, "%d remained: %+v", tokens, d)
}

// retry requires that a request is denied one nanosecond before RetryAfter has
// passed, and allowed then.
func (h *lawHistory) retry(key stint.Key, tenant int, cost int64, with bool, wait int64) {
	if h.rng.IntN(3) > 0 {
		return
	}
	for i, passed := range []int64{wait - 1, 1} {
		h.advance(passed)
		other := stint.Request{Key: h.key(alongside, 0), Mode: stint.CheckOnly}
		if with {
			other.Cost = cost
		}
		d, err := h.do(stint.Request{Key: key, Cost: cost, Mode: stint.CheckOnly}, other)
		require.NoError(h.t, err)
		if d.Allowed != (i == 1) {
			h.t.Fatalf("law 7: tenant %d, cost %d, %d ns after a wait of %d: %+v", tenant, cost, i-1, wait, d)
		}
	}
}

// refund returns tokens to ceiling, floor and total. Half of the refunds say when
// the tokens were spent.
func (h *lawHistory) refund(key stint.Key, tenant int, tokens int64) {
	ago, spent := int64(0), h.clock.Now().Add(time.Hour) // later than the clock: nothing has come back
	if h.sayWhen && h.rng.IntN(2) == 0 {
		ago = h.rng.Int64N(1 + tokens*h.rng.Int64N(2*h.total.interval))
		spent = h.clock.Now().Add(-time.Duration(ago))
	}
	for _, key := range []stint.Key{
		key, h.key(twinClass, tenant), h.key(plainClass, tenant), (h.first + plainTotal).Key(""),
	} {
		_, err := h.l.Refund(stint.Request{Key: key, Cost: tokens, Spent: spent})
		require.NoError(h.t, err)
	}
	h.ceilings[tenant].giveLate(tokens, ago, nil)
	h.total.giveLate(tokens, ago, nil)
	if h.floors[tenant] != nil {
		h.floors[tenant].giveLate(tokens, ago, h.total)
	}
	h.net = true
}

// Laws checks the laws of docs/shares.md in random histories. If Now is not the clock of
// decisions, no refund says when the tokens were spent: the floor would get a little
// less than the model gives it.
func Laws(t *testing.T, histories int, clockOfDecisions bool, open Open) {
	const trees, each = 50, 4
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	clock := modeltest.NewClock()
	var own, borrowed, denied, net int
	for done := 0; done < histories; done += trees * each {
		l, all := lawTrees(t, open, rng, clock, trees, done/trees/each%3 < 2)
		for i := range trees * each {
			tr := all[i%trees]
			clock.Advance(time.Minute) // all buckets are full again
			h := newLawHistory(t, l, tr, rng, clock)
			h.sayWhen = clockOfDecisions
			for range 20 {
				h.step()
			}
			if own, borrowed, denied = own+h.own, borrowed+h.borrowed, denied+h.denied; h.net {
				net++
				continue
			}
			require.NoError(t, modeltest.Excess(tr.total.Burst, tr.total.Interval(), h.spent), "law 1")
			for tenant, spent := range h.by {
				c := tr.ceilings[tenant]
				require.NoError(t, modeltest.Excess(c.Burst, c.Interval(), spent), "law 4")
			}
		}
		if closer, ok := l.Decider.(io.Closer); ok {
			require.NoError(t, closer.Close())
		}
	}
	t.Logf("%d histories, %d with refunds; %d own, %d borrowed, %d denied", histories, net, own, borrowed, denied)
	require.Positive(t, min(own, borrowed, denied))
}

// Mutants requires that each mutant of the rule breaks the law that the changed
// part serves. So the histories would find such a mistake.
func Mutants(t *testing.T) {
	for rule, law := range map[mutant]string{keepNone: "law 2", askTotal: "law 3", askFloor: "no debt"} {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		clock := modeltest.NewClock()
		broken := map[string]int{}
		for range 300 {
			h := newLawHistory(t, nil, newLawTree(rng, 1, rule != askFloor), rng, clock)
			h.mutant = rule
			for range 20 {
				h.step()
			}
			broken[h.broken]++
		}
		t.Logf("mutant %d: %v", rule, broken)
		require.Positive(t, broken[law])
	}
}
