package rulestest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
)

// tokenCases are those of limits that count tokens. None changes overrides: they
// share a Decider.
var tokenCases = map[string]func(e *env){
	"spends": func(e *env) {
		do := e.behind([]Rule{{Name: own}})
		require.Equal(e, each, passed(each+2, do, Request{ID: "a"}))
		e.requireLeft(0, "a")
	},
	"a cost, and one over the burst": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 2}})
		require.Equal(e, 2, passed(3, do, Request{ID: "a"}))
		e.requireLeft(1, "a")
		do = e.behind([]Rule{{Name: own, Cost: each + 1}})
		require.False(e, do(Request{ID: "a"}))
		e.requireLeft(1, "a")
	},
	"Leave": func(e *env) {
		do := e.behind([]Rule{{Name: own, Leave: 2}})
		require.Equal(e, each-2, passed(each, do, Request{ID: "a"}))
		e.requireLeft(2, "a")
		require.False(e, e.behind([]Rule{{Name: own, Count: true, Leave: 2}})(Request{ID: "a"}))
		require.False(e, e.behind([]Rule{{Name: own, Leave: each}})(Request{ID: "another"}), "it can never pass")
		require.Equal(e, 2, passed(each, e.behind([]Rule{{Name: own}}), Request{ID: "a"}), "others take what it leaves")
		e.requireLeft(0, "a")
	},
	"Count": func(e *env) {
		do := e.behind([]Rule{{Name: own, Count: true}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a"}))
		e.requireLeft(each, "a")
		require.Equal(e, each, passed(each+2, do, Request{ID: "a", Outcome: Failed}))
		e.requireLeft(0, "a")
		require.False(e, do(Request{ID: "a"}))
	},
	"Refund": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 2, Refund: true}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
		require.True(e, do(Request{ID: "a"}))
		e.requireLeft(each-2, "a")
	},
	"LockOut": func(e *env) {
		e.needs(decidertest.Holds)
		do := e.behind([]Rule{{Name: own, LockOut: time.Hour}})
		require.Equal(e, each-1, passed(each-1, do, Request{ID: "a"}))
		e.requireHeld(0, "a")
		require.True(e, do(Request{ID: "a"}))
		e.requireHeld(time.Hour, "a")
		require.False(e, do(Request{ID: "a"}))
		if !e.kind.shared && !e.kind.strict {
			require.True(e, do(Request{ID: "another"}))
		}
	},
	"LockOut beside a longer hold": func(e *env) {
		e.needs(decidertest.Holds)
		e.hold("a", 2*time.Hour)
		do := e.behind([]Rule{{Name: own, LockOut: time.Hour}})
		require.False(e, do(Request{ID: "a"}))
		e.requireHeld(2*time.Hour, "a")
	},
	"LockOut of counted failures": func(e *env) {
		e.needs(decidertest.Holds)
		do := e.behind([]Rule{{Name: own, Count: true, LockOut: time.Hour}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a"}))
		require.Equal(e, each, passed(each, do, Request{ID: "a", Outcome: Failed}))
		e.requireHeld(time.Hour, "a")
	},
	"LockOut, refunded": func(e *env) {
		e.needs(decidertest.Holds)
		do := e.behind([]Rule{{Name: own, Refund: true, LockOut: time.Hour}})
		require.Equal(e, each-1, passed(each-1, do, Request{ID: "a"}))
		require.True(e, do(Request{ID: "a", Outcome: Broken}))
		e.requireHeld(0, "a")
	},
	"Shadow": func(e *env) {
		do := e.behind([]Rule{{Name: own, Shadow: true, LockOut: time.Hour}})
		require.Equal(e, each+3, passed(each+3, do, Request{ID: "a"}))
		e.requireLeft(0, "a")
		e.requireHeld(0, "a")
	},
	"Shadow, refunded": func(e *env) {
		do := e.behind([]Rule{{Name: own, Shadow: true, Refund: true}})
		require.Equal(e, each+3, passed(each+3, do, Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
	},
	"Optional": func(e *env) {
		if e.kind.shared {
			e.Skip("a Single limit needs no id")
		}
		do := e.behind([]Rule{{Name: own, Optional: true}})
		require.True(e, do(Request{}))
		e.requireLeft(each, "a")
		require.True(e, do(Request{ID: "a"}))
		e.requireLeft(each-1, "a")
		do = e.behind([]Rule{{Name: own}})
		require.False(e, do(Request{}))
	},
	"nested, each spends": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 2, Refund: true}}, []Rule{{Name: own, Shadow: true}}, []Rule{{Name: own, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(1, "a")
		require.False(e, do(Request{ID: "a"}), "the outer one denies")
		e.requireLeft(1, "a")
	},
	"nested, each takes a place": func(e *env) {
		one := []Rule{{Name: own, InFlight: 1}}
		require.False(e, e.behind(one, one)(Request{ID: "a"}))
		e.requireLeft(each-1, "a")
		two := []Rule{{Name: own, InFlight: 2}}
		require.True(e, e.behind(two, two)(Request{ID: "a"}))
		e.requireLeft(each-3, "a")
	},
	"Settle": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(4, "a")
		require.True(e, do(Request{ID: "a", Settle: []int64{0, 3}}), "the second call changes nothing")
		e.requireLeft(4, "a")
		require.True(e, do(Request{ID: "a"}), "the bound stays spent")
		e.requireLeft(1, "a")
		require.False(e, do(Request{ID: "a"}))
	},
	"Settle more than the bound": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{4}}))
		e.requireLeft(1, "a")
	},
	"Settle more than there is": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{9}}))
		e.requireLeft(0, "a")
	},
	"Settle, nested": func(e *env) { // it settles each
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true}}, []Rule{{Name: own, Cost: 2, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(each-2, "a")
	},
	"Settle, refunded": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true, Refund: true}})
		require.True(e, do(Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
	},
	"Settle, Shadow": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true, Shadow: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(4, "a")
	},
	"InFlight": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1}})
		require.True(e, do(Request{ID: "a", Inside: func() {
			require.False(e, do(Request{ID: "a"}), "one runs already")
			if !e.kind.shared {
				require.True(e, do(Request{ID: "another"}))
			}
		}}))
		require.True(e, do(Request{ID: "a"}), "none runs any more")
		if e.kind.shared || !e.kind.parent {
			e.requireLeft(each-2, "a")
		}
	},
	"InFlight without tokens": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1}})
		require.Equal(e, each, passed(each+2, do, Request{ID: "a"}), "a denial keeps no place")
	},
	"InFlight, the second of two rules has no place": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 2}, {Name: second, InFlight: 1}})
		require.True(e, do(Request{ID: "a", Inside: func() {
			require.False(e, do(Request{ID: "a"}))
			e.requireBoth(each-1, each-1)
			require.True(e, e.behind([]Rule{{Name: own, InFlight: 2}})(Request{ID: "a"}), "the first gave its place back")
		}}))
	},
	"InFlight, Shadow": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1, Shadow: true}})
		inner := false
		require.True(e, do(Request{ID: "a", Inside: func() { inner = do(Request{ID: "a"}) }}))
		require.True(e, inner)
	},
	"Count, Shadow": func(e *env) {
		do := e.behind([]Rule{{Name: own, Count: true, Shadow: true}})
		require.Equal(e, each+3, passed(each+3, do, Request{ID: "a", Outcome: Failed}))
		e.requireLeft(0, "a")
	},
	"Refund of a slow handler": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: each, Refund: true}})
		require.True(e, do(Request{ID: "a", Outcome: Broken, Inside: e.slow}))
		e.requireBucket(e.afterSlow(), e.key("a"))
	},
	"Settle after a while": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: each, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{0}, Inside: e.slow}))
		e.requireBucket(e.afterSlow(), e.key("a"))
	},
	"limits that flip there and back between two requests": func(e *env) {
		less, back := e.flips()
		do := e.behind([]Rule{{Name: own}})
		require.Equal(e, 3, passed(3, do, Request{ID: "a"}))
		for range 10 {
			less()
			back()
		}
		e.requireLeft(each-3, "a")
		for range 10 {
			less()
			require.False(e, do(Request{ID: "a"}))
			back()
		}
		b, err := e.lim.Bucket(e.key("a"))
		require.NoError(e, err)
		if e.kind.limit.FollowsCalendar() {
			require.EqualValues(e, each-3, b.Remaining, "what was used stays used until the period ends")
		} else { // the bucket may be cut down to an empty one of the smaller limit
			require.Contains(e, []int64{each - 3, each - few}, b.Remaining)
		}
		require.LessOrEqual(e, int64(passed(each, do, Request{ID: "a"})), b.Remaining)
	},
	"limits that flip there and back while a handler runs": func(e *env) {
		less, back := e.flips()
		flips := func() {
			for range 10 {
				less()
				back()
			}
		}
		do := e.behind([]Rule{{Name: own, Refund: true}})
		require.Equal(e, each+2, passed(each+2, do, Request{ID: "a", Outcome: Broken, Inside: flips}))
		e.requireLeft(each, "a")
		if do := e.door(e, e.above, []Rule{{Name: own, Cost: 3, Settle: true}}); do != nil {
			require.Equal(e, 2, passed(2, do, Request{ID: "a", Inside: flips, Settle: []int64{1}}))
			e.requireLeft(each-2, "a")
		}
	},
	"a cost of 0 under limits that shrank": func(e *env) {
		less, back := e.flips()
		do, free := e.behind([]Rule{{Name: own}}), e.behind([]Rule{{Name: own, Free: true}})
		require.Equal(e, each-1, passed(each-1, do, Request{ID: "a"}))
		less()
		require.False(e, do(Request{ID: "a"}))
		require.True(e, free(Request{ID: "a"}))
		back()
	},
	"a zone that changes": func(e *env) {
		if !e.kind.limit.FollowsCalendar() {
			e.Skip("the limit has no zone")
		}
		do, set := e.behind([]Rule{{Name: own}}), e.setLimits()
		require.Equal(e, 3, passed(3, do, Request{ID: "a"}))
		moved := e.kind
		moved.limit = at(moved.limit.Durability, stint.EachDay(each, time.FixedZone("", 20700)))
		set(moved)
		e.requireLeft(each-3, "a")
		require.True(e, do(Request{ID: "a"}))
		set(e.kind)
		require.Equal(e, each-4, passed(each, do, Request{ID: "a"}))
	},
	"a queue that waiters leave": func(e *env) {
		e.needs(decidertest.Queues)
		if e.kind.limit.FollowsCalendar() {
			e.Skip("a quota has no queue")
		}
		key := e.key("a")
		e.take(key, each)
		requireTokens := func(n time.Duration) { // that come back before one is there for others
			e.Helper()
			require.Eventually(e, func() bool {
				d, err := e.lim.Check(key, 1)
				return err == nil && (d.RetryAfter-n*e.kind.limit.Interval()).Abs() < time.Minute // a guest's clock goes on
			}, 20*time.Second, time.Millisecond, "%d tokens", n)
		}
		wait := func(ahead time.Duration) (leave func()) {
			ctx, cancel := context.WithCancel(context.Background())
			var waiter sync.WaitGroup
			waiter.Go(func() { e.lim.Wait(ctx, key.Cost(1)) })
			requireTokens(ahead + 1)
			return func() { cancel(); waiter.Wait() }
		}
		first, second, third := wait(1), wait(2), wait(3)
		defer third()
		second()
		requireTokens(3)
		first()
		requireTokens(2)
		do := e.behind([]Rule{{Name: own}})
		e.pass(e.kind.limit.Interval())
		require.False(e, do(Request{ID: "a"}), "the third has that token")
		e.pass(e.kind.limit.Interval())
		require.True(e, do(Request{ID: "a"}))
		require.False(e, do(Request{ID: "a"}))
	},
	"LockOut beside an operator's hold that comes meanwhile": func(e *env) {
		e.needs(decidertest.Holds)
		do := e.behind([]Rule{{Name: own, Cost: each, LockOut: time.Hour}})
		require.True(e, do(Request{ID: "a", Inside: func() { e.hold("a", 2*time.Hour) }}))
		e.requireHeld(2*time.Hour, "a")
	},
	"LockOut of an empty total": func(e *env) {
		e.needs(decidertest.Holds)
		if !e.kind.parent {
			e.Skip("it has no total")
		}
		free := e.kind.tokens()
		if e.kind.floor {
			free -= 2
		}
		do := e.behind([]Rule{{Name: own, LockOut: time.Hour}})
		e.take(total.Key(""), free-1)
		require.True(e, do(Request{ID: "another"}), "the last token of the total")
		require.False(e, do(Request{ID: "another"}))
		e.requireHeld(0, "another")
	},
	"a hold": func(e *env) {
		e.needs(decidertest.Holds)
		e.hold("a", 2*time.Hour)
		for _, ru := range []Rule{{Name: own}, {Name: own, Count: true}, {Name: own, Refund: true}} {
			require.False(e, e.behind([]Rule{ru})(Request{ID: "a"}))
		}
		require.True(e, e.behind([]Rule{{Name: own, Shadow: true}})(Request{ID: "a"}))
		e.requireLeft(each, "a")
		e.requireHeld(2*time.Hour, "a")
	},
	"a hold that comes meanwhile": func(e *env) {
		e.needs(decidertest.Holds)
		held := func() { e.hold("a", 2*time.Hour) }
		do := e.behind([]Rule{{Name: own, Cost: 3, Refund: true}})
		require.True(e, do(Request{ID: "a", Outcome: Broken, Inside: held}))
		e.requireLeft(each, "a")
		e.requireHeld(2*time.Hour, "a")
		require.NoError(e, e.lim.SetHold(e.key("a"), time.Time{}))
		do = e.behind([]Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}, Inside: held}))
		e.requireLeft(each-1, "a")
		e.requireHeld(2*time.Hour, "a")
	},
	"two rules": func(e *env) {
		do := e.behind([]Rule{{Name: own}, {Name: second}})
		require.Equal(e, each, passed(each+1, do, Request{ID: "a"}))
		e.requireBoth(0, 0)
	},
	"two rules, the second denies": func(e *env) {
		require.True(e, e.behind([]Rule{{Name: second, Cost: each}})(Request{ID: "a"}))
		require.False(e, e.behind([]Rule{{Name: own}, {Name: second}})(Request{ID: "a"}))
		e.requireBoth(each, 0)
	},
	"two rules, one of them Shadow": func(e *env) {
		require.True(e, e.behind([]Rule{{Name: second, Cost: each}})(Request{ID: "a"}))
		require.True(e, e.behind([]Rule{{Name: own}, {Name: second, Shadow: true}})(Request{ID: "a"}))
		e.requireBoth(each-1, 0)
	},
	"two rules, one of them counts": func(e *env) {
		do := e.behind([]Rule{{Name: own, Count: true}, {Name: second}})
		require.True(e, do(Request{ID: "a"}))
		require.True(e, do(Request{ID: "a", Outcome: Failed}))
		e.requireBoth(each-1, each-2)
	},
	"two rules, refunded": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 2, Refund: true}, {Name: second, Refund: true}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a", Outcome: Broken}))
		e.requireBoth(each, each)
	},
	"two rules, one of them refunded": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 2, Refund: true}, {Name: second}})
		require.True(e, do(Request{ID: "a", Outcome: Broken}))
		e.requireBoth(each, each-1)
	},
	"two rules in two layers": func(e *env) {
		do := e.behind([]Rule{{Name: own}}, []Rule{{Name: second}})
		require.Equal(e, each, passed(each, do, Request{ID: "a"}))
		e.requireBoth(0, 0)
	},
	"Settle beside another rule": func(e *env) {
		do := e.behind([]Rule{{Name: own, Cost: 3, Settle: true}, {Name: second}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireBoth(each-1, each-1)
	},
	"InFlight, Count": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1, Count: true}})
		require.True(e, do(Request{ID: "a", Outcome: Failed, Inside: func() {
			require.False(e, do(Request{ID: "a", Outcome: Failed}))
		}}))
		e.requireLeft(each-1, "a")
	},
	"InFlight, Refund": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1, Refund: true}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
	},
	"InFlight, Settle": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1, Cost: 3, Settle: true}})
		require.Equal(e, 2, passed(2, do, Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(each-2, "a")
	},
	"InFlight, LockOut": func(e *env) {
		e.needs(decidertest.Holds)
		do := e.behind([]Rule{{Name: own, InFlight: 1, LockOut: time.Hour}})
		require.True(e, do(Request{ID: "a", Inside: func() { require.False(e, do(Request{ID: "a"})) }}))
		e.requireHeld(0, "a")
		require.Equal(e, each-1, passed(each+1, do, Request{ID: "a"}))
		e.requireHeld(time.Hour, "a")
	},
}

// few is the burst of the smaller limit of flips.
const few = 2

// flips returns functions that put a smaller limit in force, and the usual one
// again.
func (e *env) flips() (less, back func()) {
	e.needs(decidertest.LaterCuts)
	set, smaller := e.setLimits(), e.kind
	smaller.limit.Burst = few
	if smaller.limit.FollowsCalendar() {
		smaller.limit.Count = few
	}
	return func() { set(smaller) }, func() { set(e.kind) }
}

// setLimits returns a function that puts the limits of a kind in force.
func (e *env) setLimits() func(kind) {
	m, ok := e.lim.(interface{ SetLimits(*stint.Limits) error })
	if !ok {
		e.Skipf("%s has no limits that change", e.subject.Name)
	}
	return func(k kind) { require.NoError(e, m.SetLimits(k.limits(e))) }
}

// slow is a handler that takes an hour. After 48 minutes another request spends
// four tokens, if they are there.
func (e *env) slow() {
	e.pass(48 * time.Minute)
	e.take(e.key("a"), 4)
	e.pass(12 * time.Minute)
}

// afterSlow returns what is left of a bucket after slow, if all tokens were
// spent before it, and none were used. A calendar brings none back in that time.
func (e *env) afterSlow() int64 {
	if e.kind.limit.FollowsCalendar() {
		return each
	}
	return each - 4
}

// requireBoth requires what is left of both limits of "a", and that the total
// has spent what the first has.
func (e *env) requireBoth(ofOwn, ofSecond int64) {
	e.Helper()
	e.requireBucket(ofOwn, e.key("a"))
	e.requireBucket(ofSecond, e.keyOf(second, "a"))
	if e.kind.parent {
		e.requireBucket(e.kind.tokens()-each+ofOwn, total.Key(""))
	}
}

// blockedCases are those of a limit that is Blocked.
var blockedCases = map[string]func(e *env){
	"denies": func(e *env) {
		for name, ru := range map[string]Rule{
			"a rule": {}, "Count": {Count: true}, "Refund": {Refund: true}, "LockOut": {LockOut: time.Hour},
			"Optional": {Optional: true}, "InFlight": {InFlight: 1}, "Settle": {Cost: 3, Settle: true}, "Leave": {Leave: 1},
		} {
			ru.Name = own
			do := e.door(e, e.above, []Rule{ru})
			if do == nil {
				continue
			}
			for range 2 {
				require.False(e, do(Request{ID: "a"}), name)
			}
		}
		e.requireHeld(0, "a")
	},
	"Optional, without an id": func(e *env) {
		require.True(e, e.behind([]Rule{{Name: own, Optional: true}})(Request{}))
	},
	"Shadow": func(e *env) {
		for _, ru := range []Rule{{}, {Count: true}, {Refund: true}, {LockOut: time.Hour}} {
			ru.Name, ru.Shadow = own, true
			for _, outcome := range []Outcome{OK, Failed, Broken} {
				require.True(e, e.behind([]Rule{ru})(Request{ID: "a", Outcome: outcome}))
			}
		}
		e.requireHeld(0, "a")
	},
	"nested": func(e *env) {
		require.False(e, e.behind([]Rule{{Name: second, Shadow: true}}, []Rule{{Name: own}})(Request{ID: "a"}))
	},
	"meanwhile": func(e *env) { // it is blocked by an override while a handler runs
		m, ok := e.lim.(interface {
			SetOverrides(...stint.Override) error
		})
		if !ok {
			e.Skipf("%s has no overrides that change", e.subject.Name)
		}
		for n, ru := range []Rule{{Refund: true}, {Count: true}, {Cost: 3, Settle: true}, {LockOut: time.Hour}} {
			ru.Name = own
			do := e.door(e, e.above, []Rule{ru})
			if do == nil {
				continue
			}
			var settle []int64
			if ru.Settle {
				settle = []int64{1}
			}
			for _, outcome := range []Outcome{OK, Failed, Broken} {
				id := fmt.Sprint(outcome, n)
				set := func(l stint.Limit) {
					require.NoError(e, m.SetOverrides(stint.Override{Key: own.Key(id), Limit: l}))
				}
				set(stint.PerHour(each))
				require.True(e, do(Request{ID: id, Outcome: outcome, Settle: settle, Inside: func() { set(stint.Blocked) }}))
				require.False(e, do(Request{ID: id}))
				e.requireHeld(0, id)
			}
		}
	},
}

// unlimitedCases are those of a limit that is Unlimited.
var unlimitedCases = map[string]func(e *env){
	"passes": func(e *env) {
		for name, ru := range map[string]Rule{
			"a rule": {}, "a cost": {Cost: 1 << 40}, "Count": {Count: true}, "Refund": {Refund: true},
			"LockOut": {LockOut: time.Hour}, "Optional": {Optional: true}, "Shadow": {Shadow: true},
			"Settle": {Cost: 3, Settle: true},
		} {
			ru.Name = own
			do := e.door(e, e.above, []Rule{ru})
			if do == nil {
				continue
			}
			for _, outcome := range []Outcome{OK, Failed, Broken} {
				settle := []int64{9}
				if !ru.Settle {
					settle = nil
				}
				require.Equal(e, each+2, passed(each+2, do, Request{ID: "a", Outcome: outcome, Settle: settle}), name)
			}
		}
		e.requireHeld(0, "a")
		b, err := e.lim.Bucket(e.key("a"))
		require.NoError(e, err)
		require.Equal(e, stint.Unlimited, b.Limit)
	},
	"a hold": func(e *env) {
		e.needs(decidertest.Holds)
		e.needs(decidertest.HeldFreeIDs)
		e.hold("a", 2*time.Hour)
		require.False(e, e.behind([]Rule{{Name: own}})(Request{ID: "a"}))
		require.True(e, e.behind([]Rule{{Name: own}})(Request{ID: "another"}))
	},
	"InFlight": func(e *env) {
		do := e.behind([]Rule{{Name: own, InFlight: 1}})
		require.True(e, do(Request{ID: "a", Inside: func() {
			require.False(e, do(Request{ID: "a"}))
			require.True(e, do(Request{ID: "another"}))
		}}))
		require.True(e, do(Request{ID: "a"}))
	},
	"beside a limit": func(e *env) {
		m, ok := e.lim.(interface {
			SetOverrides(...stint.Override) error
		})
		if !ok {
			e.Skipf("%s has no overrides that change", e.subject.Name)
		}
		require.NoError(e, m.SetOverrides(stint.Override{Key: second.Key("a"), Limit: stint.PerHour(each)}))
		do := e.behind([]Rule{{Name: own}, {Name: second, Refund: true}})
		require.Equal(e, each, passed(each+1, do, Request{ID: "a"}))
		e.requireBucket(0, second.Key("a"))
	},
}
