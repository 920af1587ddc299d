// Package rulestest tests the rules of a door, such as HTTP or gRPC
// middleware, with every kind of limit: each case of a rule on a plain limit, a
// Shared one, shares of a total, quotas by the calendar and each durability. It
// is for tests only.
package rulestest

import (
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
)

// Rule is a rule of the door. Its key is the id of the request under Name.
type Rule struct {
	Name     stint.Name
	Cost     int64 // 0 means 1
	Count    bool  // spends after the handler, if the Outcome is Failed
	Refund   bool  // refunds if the Outcome is Broken
	LockOut  time.Duration
	Optional bool // skips requests without an id
	Shadow   bool
	Settle   bool
	InFlight int64
}

// Outcome is the answer of a handler.
type Outcome string

// The outcomes.
const (
	OK     Outcome = "ok"     // such as 200
	Failed Outcome = "failed" // such as 401: rules with Count spend
	Broken Outcome = "broken" // such as 500: rules with Refund refund
)

// Request is a request, and what its handler does.
type Request struct {
	ID      string  // "" means none
	Outcome Outcome // OK if it is ""
	Settle  []int64 // costs that the handler reports for each rule with Settle, in turn
	Inside  func()  // called by the handler before it answers; may be nil
}

// A Door returns a function that serves a request behind layers of rules, the
// outermost first. The function reports whether the request reached the
// handler. The door of a rule with Settle reports the costs under its Name.
type Door func(t testing.TB, lim stint.Decider, layers ...[]Rule) func(Request) (passed bool)

// The Names of the kinds of limits.
const (
	own   stint.Name = 1 + iota // the limit of the rule
	total                       // its Parent, for shares
	floor
)

// each is the limit of every kind: five in a stretch that no test is as long as.
const each = 5

// kind is a kind of limit.
type kind struct {
	limit  stint.Limit
	shared bool // one bucket for all ids
	parent bool
	floor  bool
}

var kinds = map[string]kind{
	"plain":              {limit: stint.PerHour(each)},
	"memory":             {limit: at(stint.Memory)},
	"flushed":            {limit: at(stint.Flushed)},
	"leased":             {limit: at(stint.Leased)},
	"synced":             {limit: at(stint.Synced)},
	"shared":             {limit: stint.PerHour(each), shared: true},
	"share of a total":   {limit: stint.PerHour(each), parent: true},
	"share with a floor": {limit: stint.PerHour(each), parent: true, floor: true},
	"calendar":           {limit: stint.EachDay(each, time.UTC)},
}

func at(level stint.Durability) stint.Limit {
	l := stint.PerHour(each)
	l.Durability = level
	return l
}

// limits returns the limits of a kind. A total has twice as many tokens.
func (k kind) limits(t testing.TB) *stint.Limits {
	spec := stint.NameSpec{Label: "own"}
	if k.shared {
		spec.ID = stint.Shared
	}
	names, defaults := stint.Names{}, map[stint.Name]stint.Limit{own: k.limit}
	overrides := map[stint.Name][]stint.Override{}
	if k.parent {
		spec.Parent = total
		names[total] = stint.NameSpec{Label: "total", ID: stint.Shared}
		defaults[total] = stint.PerHour(2 * each)
		if k.floor {
			spec.Floor = floor
			names[floor] = stint.NameSpec{Label: "floor"}
			overrides[floor] = []stint.Override{{IDs: []stint.OverrideID{{ID: "a"}}, Limit: stint.PerHour(2)}}
		}
	}
	names[own] = spec
	limits, err := stint.NewLimits(names, defaults, overrides)
	require.NoError(t, err)
	return limits
}

// env is a door in front of a Decider with one kind of limit.
type env struct {
	testing.TB
	kind  kind
	lim   stint.Decider
	door  Door
	clock atomic.Int64
}

// start is noon, so that no day ends in a test.
var start = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func (e *env) now() time.Time { return start.Add(time.Duration(e.clock.Load())) }

func (e *env) key(id string) stint.Key {
	if e.kind.shared {
		id = ""
	}
	return own.Key(id)
}

// requireLeft requires what is left of the bucket of an id, and that its total
// has spent the same.
func (e *env) requireLeft(want int64, id string) {
	e.Helper()
	b, err := e.lim.Bucket(e.key(id))
	require.NoError(e, err)
	require.Equal(e, want, b.Remaining, "left in %v", b.Key)
	if e.kind.parent {
		b, err := e.lim.Bucket(total.Key(""))
		require.NoError(e, err)
		require.Equal(e, want+each, b.Remaining, "left in the total")
	}
}

// requireHeld requires that the bucket of an id is held for so long, and that
// nothing else is.
func (e *env) requireHeld(want time.Duration, id string) {
	e.Helper()
	keys := []stint.Key{e.key(id)}
	if !e.kind.shared {
		keys = append(keys, own.Key("another"))
	}
	if e.kind.parent {
		keys = append(keys, total.Key(""))
	}
	for _, key := range keys {
		b, err := e.lim.Bucket(key)
		require.NoError(e, err)
		held := time.Duration(0)
		if !b.HeldUntil.IsZero() {
			held = b.HeldUntil.Sub(e.now())
		}
		// The clock of a guest goes on between decisions.
		require.InDelta(e, want.Minutes(), held.Minutes(), 1, "hold of %v", key)
		want = 0
	}
}

// passed returns how many of n requests passed.
func passed(n int, do func(Request) bool, r Request) (count int) {
	for range n {
		if do(r) {
			count++
		}
	}
	return count
}

var cases = map[string]func(e *env){
	"spends": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own}})
		require.Equal(e, each, passed(each+2, do, Request{ID: "a"}))
		e.requireLeft(0, "a")
	},
	"a cost, and one over the burst": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 2}})
		require.Equal(e, 2, passed(3, do, Request{ID: "a"}))
		e.requireLeft(1, "a")
		do = e.door(e, e.lim, []Rule{{Name: own, Cost: each + 1}})
		require.False(e, do(Request{ID: "a"}))
		e.requireLeft(1, "a")
	},
	"Count": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Count: true}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a"}))
		e.requireLeft(each, "a")
		require.Equal(e, each, passed(each+2, do, Request{ID: "a", Outcome: Failed}))
		e.requireLeft(0, "a")
		require.False(e, do(Request{ID: "a"}))
	},
	"Refund": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 2, Refund: true}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
		require.True(e, do(Request{ID: "a"}))
		e.requireLeft(each-2, "a")
	},
	"LockOut": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, LockOut: time.Hour}})
		require.Equal(e, each-1, passed(each-1, do, Request{ID: "a"}))
		e.requireHeld(0, "a")
		require.True(e, do(Request{ID: "a"}))
		e.requireHeld(time.Hour, "a")
		require.False(e, do(Request{ID: "a"}))
		if !e.kind.shared {
			require.True(e, do(Request{ID: "another"}))
		}
	},
	"LockOut beside a longer hold": func(e *env) {
		require.NoError(e, e.lim.Hold(e.key("a"), e.now().Add(2*time.Hour)))
		do := e.door(e, e.lim, []Rule{{Name: own, LockOut: time.Hour}})
		require.False(e, do(Request{ID: "a"}))
		e.requireHeld(2*time.Hour, "a")
	},
	"LockOut of counted failures": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Count: true, LockOut: time.Hour}})
		require.Equal(e, 8, passed(8, do, Request{ID: "a"}))
		require.Equal(e, each, passed(each, do, Request{ID: "a", Outcome: Failed}))
		e.requireHeld(time.Hour, "a")
	},
	"LockOut, refunded": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Refund: true, LockOut: time.Hour}})
		require.Equal(e, each-1, passed(each-1, do, Request{ID: "a"}))
		require.True(e, do(Request{ID: "a", Outcome: Broken}))
		e.requireHeld(0, "a")
	},
	"Shadow": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Shadow: true, LockOut: time.Hour}})
		require.Equal(e, each+3, passed(each+3, do, Request{ID: "a"}))
		e.requireLeft(0, "a")
		e.requireHeld(0, "a")
	},
	"Shadow, refunded": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Shadow: true, Refund: true}})
		require.Equal(e, each+3, passed(each+3, do, Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
	},
	"Optional": func(e *env) {
		if e.kind.shared {
			e.Skip("a Shared limit needs no id")
		}
		do := e.door(e, e.lim, []Rule{{Name: own, Optional: true}})
		require.True(e, do(Request{}))
		e.requireLeft(each, "a")
		require.True(e, do(Request{ID: "a"}))
		e.requireLeft(each-1, "a")
		do = e.door(e, e.lim, []Rule{{Name: own}})
		require.False(e, do(Request{}))
	},
	"nested": func(e *env) {
		ru := []Rule{{Name: own}}
		do := e.door(e, e.lim, ru, ru, ru)
		require.Equal(e, each, passed(each+1, do, Request{ID: "a"}))
		e.requireLeft(0, "a")
	},
	"nested in a Shadow rule": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Shadow: true}}, []Rule{{Name: own}})
		require.Equal(e, each, passed(each+1, do, Request{ID: "a"}))
		e.requireLeft(0, "a")
	},
	"Settle": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(4, "a")
		require.True(e, do(Request{ID: "a", Settle: []int64{0, 3}}), "the second call changes nothing")
		e.requireLeft(4, "a")
		require.True(e, do(Request{ID: "a"}), "the bound stays spent")
		e.requireLeft(1, "a")
		require.False(e, do(Request{ID: "a"}))
	},
	"Settle more than the bound": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{4}}))
		e.requireLeft(1, "a")
	},
	"Settle more than there is": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 3, Settle: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{9}}))
		e.requireLeft(0, "a")
	},
	"Settle, nested": func(e *env) {
		ru := []Rule{{Name: own, Cost: 3, Settle: true}}
		do := e.door(e, e.lim, ru, ru)
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(4, "a")
	},
	"Settle, refunded": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 3, Settle: true, Refund: true}})
		require.True(e, do(Request{ID: "a", Outcome: Broken}))
		e.requireLeft(each, "a")
	},
	"Settle, Shadow": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, Cost: 3, Settle: true, Shadow: true}})
		require.True(e, do(Request{ID: "a", Settle: []int64{1}}))
		e.requireLeft(4, "a")
	},
	"InFlight": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, InFlight: 1}})
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
		do := e.door(e, e.lim, []Rule{{Name: own, InFlight: 1}})
		require.Equal(e, each, passed(each+2, do, Request{ID: "a"}), "a denial keeps no place")
	},
	"InFlight, nested": func(e *env) {
		ru := []Rule{{Name: own, InFlight: 1}}
		do := e.door(e, e.lim, ru, ru)
		require.True(e, do(Request{ID: "a"}))
		e.requireLeft(each-1, "a")
	},
	"InFlight, Shadow": func(e *env) {
		do := e.door(e, e.lim, []Rule{{Name: own, InFlight: 1, Shadow: true}})
		inner := false
		require.True(e, do(Request{ID: "a", Inside: func() { inner = do(Request{ID: "a"}) }}))
		require.True(e, inner)
	},
}

// Run tests the rules of a door with every kind of limit that a Subject
// supports.
func Run(t *testing.T, door Door, s *decidertest.Subject) {
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		if k.parent && slices.Contains(s.Lacks, decidertest.Shares) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(cases)) {
				t.Run(name, func(t *testing.T) {
					e := &env{TB: t, kind: k, door: door}
					lim, err := s.Open(t, decidertest.Config{Limits: k.limits(t), Now: e.now, Level: stint.Flushed})
					require.NoError(t, err)
					if c, ok := lim.(interface{ Close() error }); ok {
						t.Cleanup(func() { c.Close() })
					}
					e.lim = lim
					cases[name](e)
				})
			}
		})
	}
}
