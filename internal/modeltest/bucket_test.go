package modeltest

import (
	"math/rand/v2"
	"testing"
	"time"
)

const second = int64(time.Second)

// tenTokens is a limit that returns a token each second.
var tenTokens = Limit{Burst: 10, Count: 1, Period: time.Second}

// do carries a request out on a bucket whose TAT is known.
func (b *Bucket) do(l Limit, now int64, op Op, cost int64) Decision {
	b.Rate = l
	b.advance(now)
	lo, hi := b.Decide(l, true, now, op, cost, 0)
	b.TAT = b.after(l, now, op, cost, lo, hi, lo.Decision)
	return lo.Decision
}

// wait takes a turn that waits, or the tokens at once.
func (b *Bucket) wait(l Limit, now, cost int64) (at int64) {
	b.Rate = l
	b.advance(now)
	span, _ := b.Reserve(l, now, cost)
	if at = span.Lo; at == now {
		b.do(l, now, Spend, cost)
	} else {
		b.Queue = append(b.Queue, &Turn{At: at, Cost: cost})
	}
	return at
}

// TestBucket compares the model with figures from pencil and paper. Times are
// in seconds, and instants count from second 100. Each step changes a bucket of
// ten tokens.
func TestBucket(t *testing.T) {
	type step struct {
		at       int64
		op       Op
		cost     int64
		allowed  bool
		retry    int64 // of Reserve: how long it waits
		left     int64
		fullIn   int64
		holdTill int64
	}
	for name, steps := range map[string][]step{
		"a burst, and then one a second": {
			{0, Spend, 10, true, 0, 0, 10, 0},
			{0, Spend, 1, false, 1, 0, 10, 0},
			{1, Spend, 1, true, 0, 0, 10, 0},
			{3, Spend, 3, false, 1, 2, 8, 0},
		},
		"a refund gives no more than was spent": {
			{0, Spend, 4, true, 0, 6, 4, 0},
			{1, Refund, 2, true, 0, 9, 1, 0},
			{1, Refund, 20, true, 0, 10, 0, 0},
			{5, Spend, 10, true, 0, 0, 10, 0},
		},
		"a check changes nothing": {
			{0, Check, 10, true, 0, 0, 10, 0},
			{0, Check, 0, true, 0, 10, 0, 0},
		},
		"newcomers decide on what the queue leaves": {
			{0, Spend, 10, true, 0, 0, 10, 0},
			{0, Reserve, 3, true, 3, 0, 13, 0},
			{1, Spend, 1, false, 3, 0, 12, 0},
			{1, Reserve, 2, true, 4, 0, 14, 0},
			{3, Spend, 1, false, 3, 0, 12, 0},
			{5, Spend, 1, false, 1, 0, 10, 0},
			{6, Spend, 1, true, 0, 0, 10, 0},
		},
		"a refund moves no turn": {
			{0, Spend, 10, true, 0, 0, 10, 0},
			{0, Reserve, 5, true, 5, 0, 15, 0},
			{0, Refund, 10, true, 0, 0, 10, 0},
			{5, Spend, 5, true, 0, 0, 10, 0},
		},
		"a hold denies, and spends nothing": {
			{0, Spend, 4, true, 0, 6, 4, 0},
			{1, Spend, 1, false, 5, 7, 3, 6},
			{6, Spend, 10, true, 0, 0, 10, 6},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b Bucket
			for i, s := range steps {
				now := (100 + s.at) * second
				if b.Hold = 0; s.holdTill > 0 {
					b.Hold = (100 + s.holdTill) * second
				}
				want := Decision{s.allowed, s.left, time.Duration(s.retry * second),
					time.Duration(s.fullIn * second)}
				var got Decision
				if s.op == Reserve {
					at := b.wait(tenTokens, now, s.cost)
					got = b.do(tenTokens, now, Check, 0)
					got.Allowed, got.RetryAfter = true, time.Duration(at-now)
				} else {
					got = b.do(tenTokens, now, s.op, s.cost)
				}
				if got != want {
					t.Errorf("step %d: %+v, want %+v", i, got, want)
				}
			}
		})
	}
}

// Bucket and Tokens agree, over any history.
func TestBucketAgainstTokens(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 200 {
		l := Limit{Burst: 1 + rnd.Int64N(20), Count: 1 + rnd.Int64N(7)}
		l.Period = time.Duration(l.Count + rnd.Int64N(1e6))
		tokens, now := NewTokens(l.Burst, l.Count, int64(l.Period)), 100*second
		var b Bucket
		for range 200 {
			now += rnd.Int64N(3 * l.T())
			cost := rnd.Int64N(l.Burst + 1)
			retry := int64(0)
			d := b.do(l, now, []Op{Spend, Refund}[rnd.IntN(2)], cost)
			if d2 := d; !d2.Allowed {
				retry = tokens.Spend(now, cost, 0)
			} else if before := tokens.ResetAfter(now); int64(d.ResetAfter) > before || cost == 0 {
				retry = tokens.Spend(now, cost, 0)
			} else {
				tokens.Refund(now, cost)
			}
			if retry != int64(d.RetryAfter) || tokens.Remaining(now) != d.Remaining ||
				tokens.ResetAfter(now) != int64(d.ResetAfter) {
				t.Fatalf("%+v, tokens: %d left, full in %d", d, tokens.Remaining(now),
					tokens.ResetAfter(now))
			}
		}
	}
}

// Law reports histories that break the law, and no others.
func TestLaw(t *testing.T) {
	type admission struct{ at, cost int64 }
	for name, tc := range map[string]struct {
		admitted []admission
		refund   admission
		broken   bool
	}{
		"a burst":         {admitted: []admission{{0, 10}}},
		"a burst and one": {admitted: []admission{{0, 10}, {0, 1}}, broken: true},
		"one a second":    {admitted: []admission{{0, 10}, {1, 1}, {2, 1}, {3, 1}}},
		"one too early": {admitted: []admission{{0, 10}, {1, 1}, {2, 2}},
			broken: true},
		"full again":        {admitted: []admission{{0, 10}, {10, 10}}},
		"no more than full": {admitted: []admission{{0, 1}, {100, 11}}, broken: true},
		"a refund": {admitted: []admission{{0, 10}, {1, 5}},
			refund: admission{1, 4}},
		"a refund of less": {admitted: []admission{{0, 10}, {1, 5}},
			refund: admission{1, 3}, broken: true},
		"a refund that came long after": {admitted: []admission{{0, 10}, {11, 11}},
			refund: admission{11, 10}, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			law, broken := NewLaw(tenTokens), false
			for i, a := range tc.admitted {
				if i == 1 {
					law.Refund(tc.refund.at*second, tc.refund.cost)
				}
				broken = law.Admit(a.at*second, a.cost) != nil || broken
			}
			if broken != tc.broken {
				t.Errorf("broken: %v", broken)
			}
		})
	}
}

// Law, a replay, agrees with Excess, a check of all pairs of admissions.
func TestLawAgainstAllPairs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 1000 {
		l := Limit{Burst: 1 + rnd.Int64N(5), Count: 1, Period: 3}
		law, broken, now := NewLaw(l), false, int64(0)
		var log []Admission
		for range 8 {
			now += rnd.Int64N(12)
			log = append(log, At(now, rnd.Int64N(3)))
			broken = law.Admit(now, log[len(log)-1].Cost) != nil || broken
		}
		if err := Excess(l.Burst, l.Period, log); (err != nil) != broken {
			t.Fatalf("%v: broken %v, all pairs say %v", log, broken, err)
		}
	}
}
