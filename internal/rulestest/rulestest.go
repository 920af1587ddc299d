// Package rulestest tests the rules of a door, such as HTTP or gRPC
// middleware, with every kind of limit: each case of a rule on a plain limit, a
// Single one, shares of a total, quotas by the calendar, an override, each
// durability, and a limit that is Blocked or Unlimited. It is for tests only.
//
// rulestest.go has the kinds and the surroundings, cases.go the cases, subjects.go the Deciders, http.go the door of package httplimit, and
// direct.go that of package rules alone.
package rulestest

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/rules"
	"github.com/stint-go/stint/shares"
)

// Rule is a rule of the door. Its key is the id of the request under Name.
type Rule struct {
	Name     stint.Name
	Cost     int64 // 0 means 1
	Free     bool  // costs nothing
	Leave    int64
	Count    bool // spends after the handler, if the Outcome is Failed
	Refund   bool // refunds if the Outcome is Broken
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

// Handle does what the handler of a request does before it answers. layer has the
// rules of the innermost door.
func (r *Request) Handle(ctx context.Context, layer []Rule) {
	if r.Inside != nil {
		r.Inside()
	}
	for _, cost := range r.Settle {
		for _, ru := range layer {
			rules.Settle(ctx, ru.Name, cost)
		}
	}
}

// RulesOf returns the rules of a layer, with the KeyFuncs of a door for a limit
// with ids and for a Single one, and its functions for Count and Refund.
func RulesOf[R rules.Request, O any](
	lim stint.Decider, layer []Rule, byID, shared func(stint.Name) rules.KeyFunc[R], count, refund func(O) bool,
) (all []rules.Rule[R, O]) {
	for _, ru := range layer {
		as := rules.Rule[R, O]{Key: byID(ru.Name), Cost: ru.Cost, Leave: ru.Leave, LockOut: ru.LockOut,
			Optional: ru.Optional, Shadow: ru.Shadow, Settle: ru.Settle, InFlight: ru.InFlight}
		if spec, _ := lim.Limits().Spec(ru.Name); spec.IDs == stint.Single {
			as.Key = shared(ru.Name)
		}
		if ru.Free {
			as.CostFunc = func(R) int64 { return 0 }
		}
		if ru.Count {
			as.Count = count
		}
		if ru.Refund {
			as.Refund = refund
		}
		all = append(all, as)
	}
	return all
}

// A Door returns a function that serves a request behind layers of rules, the
// outermost first. The function reports whether the request reached the
// handler. The door of a rule with Settle reports the costs under its Name. A
// door that has no such rules returns nil.
type Door func(t testing.TB, lim stint.Decider, layers ...[]Rule) func(Request) (passed bool)

// The Names of the kinds of limits.
const (
	own    stint.Name = 1 + iota // the limit of the rule
	second                       // of a second rule: the same limit
	total                        // of which the rule has a share
	floor
)

// each is the limit of every kind: five in a stretch that no test is as long as.
const each = 5

// kind is a kind of limit.
type kind struct {
	limit    stint.Limit
	shared   bool // one bucket for all ids
	parent   bool // the limit is a share of a total
	strict   bool // the total has as many tokens as the limit, and is slower: it decides
	floor    bool
	override bool                  // the limit is that of the ids, and others have one more token
	only     bool                  // the limit is that of the ids, and others have none
	cases    map[string]func(*env) // nil means tokenCases
}

var kinds = map[string]kind{
	"plain":                   {limit: stint.PerHour(each)},
	"memory":                  {limit: at(stint.Memory, stint.PerHour(each))},
	"flushed":                 {limit: at(stint.Flushed, stint.PerHour(each))},
	"leased":                  {limit: at(stint.Leased, stint.PerHour(each))},
	"synced":                  {limit: at(stint.Synced, stint.PerHour(each))},
	"override":                {limit: stint.PerHour(each), override: true},
	"override only":           {limit: stint.PerHour(each), only: true},
	"override only, calendar": {limit: stint.EachDay(each, time.UTC), only: true},
	"override only, share":    {limit: stint.PerHour(each), only: true, parent: true},
	"shared":                  {limit: stint.PerHour(each), shared: true},
	"shared, synced":          {limit: at(stint.Synced, stint.PerHour(each)), shared: true},
	"share of a total":        {limit: stint.PerHour(each), parent: true},
	"share of a strict total": {limit: stint.PerHour(each), parent: true, strict: true},
	"share with a floor":      {limit: stint.PerHour(each), parent: true, floor: true},
	"share, synced":           {limit: at(stint.Synced, stint.PerHour(each)), parent: true, floor: true},
	"calendar":                {limit: stint.EachDay(each, time.UTC)},
	"calendar, synced":        {limit: at(stint.Synced, stint.EachDay(each, time.UTC))},
	"blocked":                 {limit: stint.Blocked, cases: blockedCases},
	"unlimited":               {limit: stint.Unlimited, cases: unlimitedCases},
}

func at(level stint.Durability, l stint.Limit) stint.Limit {
	l.Durability = level
	return l
}

// tokens returns how many tokens the total has.
func (k kind) tokens() int64 {
	if k.strict {
		return each
	}
	return 2 * each
}

// limits returns the limits of a kind.
func (k kind) limits(t testing.TB) *stint.Limits {
	spec, other := stint.NameSpec{Label: "own"}, stint.NameSpec{Label: "second"}
	if k.shared {
		spec.IDs, other.IDs = stint.Single, stint.Single
	}
	names, defaults := stint.Names{}, map[stint.Name]stint.Limit{own: k.limit, second: k.limit}
	var overrides []stint.Override
	if k.override || k.only {
		for name := range defaults {
			overrides = append(overrides, stint.Override{Key: name.Key("a"), Limit: k.limit},
				stint.Override{Key: name.Key("another"), Limit: k.limit})
			if defaults[name] = stint.Unlimited; k.override {
				defaults[name] = k.limit.WithBurst(each + 1)
			}
		}
	}
	if k.parent {
		names[total] = stint.NameSpec{Label: "total", IDs: stint.Single}
		defaults[total] = stint.Limit{Burst: k.tokens(), Count: k.tokens(), Period: time.Hour}
		if k.strict {
			defaults[total] = stint.Limit{Burst: k.tokens(), Count: k.tokens(), Period: 2 * time.Hour}
		}
		if k.floor {
			names[floor] = stint.NameSpec{Label: "floor", Limit: stint.Unlimited}
			defaults[floor] = stint.Unlimited
			overrides = append(overrides, stint.Override{Key: floor.Key("a"), Limit: stint.PerHour(2)})
		}
	}
	names[own], names[second] = spec, other
	limits, err := stint.NewLimits(names.WithLimits(defaults), overrides...)
	require.NoError(t, err)
	return limits
}

// env is a door in front of a Decider with one kind of limit, in one case.
type env struct {
	testing.TB
	kind    kind
	subject *decidertest.Subject
	lim     decidertest.Limiter
	above   stint.Decider // lim, or shares of a total above it
	door    Door
	clock   atomic.Int64
}

// start is noon, so that no day ends in a test.
var start = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func (e *env) now() time.Time       { return start.Add(time.Duration(e.clock.Load())) }
func (e *env) pass(d time.Duration) { e.clock.Add(int64(d)) }

// behind returns the door with layers of rules, or skips the case if the door
// has no such rules.
func (e *env) behind(layers ...[]Rule) func(Request) bool {
	do := e.door(e, e.above, layers...)
	if do == nil {
		e.Skip("the door has no such rules")
	}
	return do
}

// needs skips the case if the Decider lacks something by design.
func (e *env) needs(f decidertest.Feature) {
	if slices.Contains(e.subject.Lacks, f) {
		e.Skipf("%s has no %s", e.subject.Name, f)
	}
}

func (e *env) key(id string) stint.Key { return e.keyOf(own, id) }

func (e *env) keyOf(name stint.Name, id string) stint.Key {
	if e.kind.shared {
		id = ""
	}
	return name.Key(id)
}

// hold is a hold by an operator.
func (e *env) hold(id string, d time.Duration) {
	_, err := e.lim.Hold(e.key(id), e.now().Add(d))
	require.NoError(e, err)
}

// take spends tokens beside the requests.
func (e *env) take(key stint.Key, n int64) {
	e.Helper()
	_, err := e.lim.Do(context.Background(), []stint.Request{key.Cost(n)}, nil)
	require.NoError(e, err)
}

func (e *env) requireBucket(want int64, key stint.Key) {
	e.Helper()
	b, err := e.lim.Bucket(key)
	require.NoError(e, err)
	require.Equal(e, want, b.Remaining, "left in %v", key)
}

// requireLeft requires what is left of the bucket of an id, and that its total
// has spent the same.
func (e *env) requireLeft(want int64, id string) {
	e.Helper()
	e.requireBucket(want, e.key(id))
	if e.kind.parent {
		e.requireBucket(e.kind.tokens()-each+want, total.Key(""))
	}
}

// requireHeld requires that the bucket of an id is held for so long, and that
// nothing else is.
func (e *env) requireHeld(want time.Duration, id string) {
	e.Helper()
	keys := []stint.Key{e.key(id), e.keyOf(second, id)}
	if !e.kind.shared {
		keys = append(keys, own.Key("one more"))
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

// Run tests the rules of a door with every kind of limit that a Subject
// supports.
func Run(t *testing.T, door Door, s *decidertest.Subject) {
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		if k.limit.FollowsCalendar() && slices.Contains(s.Lacks, decidertest.Calendars) {
			continue
		}
		t.Run(name, func(t *testing.T) { k.run(t, door, s) })
	}
}

// run tests the rules of a door with one kind of limit. The cases share a
// Decider whose buckets are reset, because a new one may cost a file and its
// syncs. A case has a new Decider if it changes overrides, or the case before it
// failed or moved the clock, which a guest notices late.
func (k kind) run(t *testing.T, door Door, s *decidertest.Subject) {
	cases, share := k.cases, k.cases == nil
	if share {
		cases = tokenCases
	}
	e := &env{kind: k, subject: s, door: door}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		if e.lim == nil || !share || t.Failed() || e.clock.Load() != 0 || !e.reset(t) {
			e.clock.Store(0)
			e.lim = e.open(t)
			e.above = e.kind.above(t, e.lim)
		}
		t.Run(name, func(t *testing.T) {
			e.TB = t
			cases[name](e)
		})
	}
}

// reset makes the buckets of all cases full, and ends their holds. It returns false
// if the Decider has no resets.
func (e *env) reset(t *testing.T) bool {
	if _, ok := e.lim.(resetter); !ok || slices.Contains(e.subject.Lacks, decidertest.Holds) {
		return false
	}
	e.fill(t)
	return true
}

type resetter interface{ Reset(keys ...stint.Key) error }

// fill makes the buckets of all cases full, and ends their holds.
func (e *env) fill(t testing.TB) {
	var keys []stint.Key
	for _, id := range []string{"a", "another", "one more"} {
		keys = append(keys, e.keyOf(own, id), e.keyOf(second, id))
	}
	if e.kind.parent {
		keys = append(keys, total.Key(""))
	}
	if e.kind.floor {
		keys = append(keys, floor.Key("a"))
	}
	require.NoError(t, e.lim.(resetter).Reset(keys...))
}

// above returns the Decider of the doors.
func (k kind) above(t testing.TB, lim stint.Decider) stint.Decider {
	if !k.parent {
		return lim
	}
	tree := shares.Tree{Total: total, Class: own}
	if k.floor {
		tree.Floor = floor
	}
	d, err := shares.New(lim, tree)
	require.NoError(t, err)
	return d
}

// open returns a new Decider, and closes it at the end of the test.
func (e *env) open(t *testing.T) decidertest.Limiter {
	lim, err := e.subject.Open(t, decidertest.Config{Limits: e.kind.limits(t), Now: e.now, Level: stint.Flushed, Folder: decidertest.Folder(t)})
	require.NoError(t, err)
	if c, ok := lim.(interface{ Close() error }); ok {
		t.Cleanup(func() { c.Close() })
	}
	return lim
}
