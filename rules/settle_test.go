package rules

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
)

// requireLaw: in any stretch, what requests used is at most burst + elapsed ÷
// interval. Of a quota that follows the calendar, it is at most the quota in any
// period.
func requireLaw(t *testing.T, l stint.Limit, log []modeltest.Admission) {
	t.Helper()
	if !l.FollowsCalendar() {
		require.NoError(t, modeltest.Excess(l.Burst, l.Interval(), log))
		return
	}
	sums := map[time.Time]int64{}
	for _, a := range log {
		start, _ := l.PeriodAt(time.Unix(0, a.After))
		sums[start] += a.Cost
		require.LessOrEqual(t, sums[start], l.Burst, "in the period from %v: %v", start, log)
	}
}

// Requests of a random length, with a bound and a true cost: the law holds for true
// costs over every stretch. A cost up to the bound counts at admission. The part
// over the bound counts when it is settled, because the bucket cannot know it
// before. Each settlement changes the bucket by as much as it should.
func TestSettleLaw(t *testing.T) {
	for _, l := range []stint.Limit{
		stint.PerMinute(1000), stint.PerMinute(20_000), {Burst: 3000, Count: 100, Period: time.Second},
		stint.EachHour(5000, time.UTC), stint.EachDay(3000, time.UTC),
	} {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			settleHistories(t, l, testlength.Of(10_000, 200))
		})
	}
}

// slowRefund runs a function in each Refund.
type slowRefund struct {
	stint.Decider
	during func()
}

func (s *slowRefund) Refund(spends ...stint.Request) (stint.Decision, error) {
	s.during()
	return s.Decider.Refund(spends...)
}

// Of two settlements at the same time one settles all doors, and the other none.
func TestSettleConcurrentDoors(t *testing.T) {
	lim := &slowRefund{Decider: newLimiter(t)}
	d := New(lim, nil, rule(ofA, ruleOf{Cost: 2, Settle: true}))
	outer, _ := pass(t, d, req{ctx: t.Context()})
	inner, _ := pass(t, d, req{ctx: outer.Context()})
	var second error
	ended := make(chan struct{})
	lim.during = func() { // the first one is settling a door
		lim.during = func() {}
		go func() {
			defer close(ended)
			_, second = Settle(inner.Context(), ofA, 0)
		}()
		for range 1000 {
			runtime.Gosched()
		}
	}
	_, err := Settle(inner.Context(), ofA, 1)
	require.NoError(t, err)
	<-ended
	require.ErrorIs(t, second, ErrSettled)
	require.EqualValues(t, 3, left(t, lim.Decider.(*stint.Limiter), ofA.Key("x")), "both doors have the cost of the first")
}

func settleHistories(t *testing.T, l stint.Limit, histories int) {
	const bound = 1000
	now, rng, clock := noon, rand.New(rand.NewPCG(35, 1)), modeltest.NewClock()
	until := func(at time.Time) { now = at; clock.Set(at.UnixNano()) }
	until(noon)
	lim := newLimiterAt(t, clock.Now, stint.Names{ofA: {Label: "a", Limit: l}})
	d := New(lim, nil, rule(ofA, ruleOf{Cost: bound, Settle: true}))
	bucket := func() stint.Bucket {
		b, err := lim.Bucket(ofA.Key("x"))
		require.NoError(t, err)
		return b
	}
	shorts, later := 0, 0
	for range histories {
		if _, end := l.PeriodAt(now); l.FollowsCalendar() { // it ends soon
			until(end.Add(-time.Duration(rng.Int64N(int64(3 * time.Minute)))))
		}
		var log []modeltest.Admission
		var running []func() // each settles a request
		for step := 0; step < 32 || len(running) > 0; step++ {
			until(now.Add(time.Duration(rng.Int64N(int64(10 * time.Second)))))
			if n := len(running); n > 0 && (step >= 32 || rng.IntN(2) == 0) {
				i := rng.IntN(n)
				running[i]()
				running = slices.Delete(running, i, i+1)
				continue
			}
			p, decision := pass(t, d, req{ctx: t.Context()})
			if !decision.Allowed {
				continue
			}
			begun, index := now, len(log)
			log = append(log, modeltest.At(now.UnixNano(), bound))
			running = append(running, func() {
				before, cost := bucket(), rng.Int64N(1501)
				short, err := Settle(p.Context(), ofA, cost)
				require.NoError(t, err)
				require.Equal(t, max(0, cost-bound-before.Remaining), short)
				shorts += int(short)
				log[index].Cost = min(cost, bound)
				log = append(log, modeltest.At(now.UnixNano(), max(0, cost-bound)-short))
				switch more, after := cost-bound-short, bucket(); {
				case l.FollowsCalendar():
					if _, end := l.PeriodAt(begun); more < 0 && !now.Before(end) {
						later++
						more = 0 // nothing returns to a later period
					}
					require.Equal(t, before.Remaining-more, after.Remaining)
				case more < 0: // but what time has brought back does not return
					back := max(0, time.Duration(-more)*l.Interval()-now.Sub(begun))
					require.Equal(t, max(0, before.ResetAfter-back), after.ResetAfter)
				default:
					require.Equal(t, before.ResetAfter+time.Duration(more)*l.Interval(), after.ResetAfter)
				}
			})
		}
		requireLaw(t, l, log)
		until(now.Add(25 * time.Hour)) // the bucket is full
	}
	require.Equal(t, l.FollowsCalendar(), later > 0, "some are settled in a later period of the calendar")
	require.Equal(t, l.Burst <= 5000, shorts > 0, "some true costs are over the bound, and not there")
}
