package decidertest

import (
	"context"
	"fmt"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Config is how a case wants its Decider.
type Config struct {
	Limits *stint.Limits
	Now    func() time.Time // the clock of all decisions; nil: the system's
	Level  stint.Durability // of limits that name none
	Folder string           // for a Decider in a file; its name is short enough for a socket, and no other's
}

// Limiter is what the suite tests: a Decider with the short forms of its calls.
type Limiter interface {
	stint.Decider
	Spend(key stint.Key, cost int64) (stint.Decision, error)
	Check(key stint.Key, cost int64) (stint.Decision, error)
}

// Subject is a kind of Decider.
type Subject struct {
	// Name is the Subject's name in messages.
	Name string

	// Open returns a new Decider, with the buckets of the closed one that had the
	// same Folder, and otherwise with full ones. The test closes it. The error is
	// that of the function that refuses the limits.
	Open func(t testing.TB, c Config) (Limiter, error)

	// InFile says that the buckets are in a file in the Folder: nothing becomes
	// durable once that is gone. Forgets says that a closed Decider's buckets are
	// gone with it.
	InFile, Forgets bool

	// Unanswered is the error of a call that is under way for too long when the
	// Decider is closed, and may have been carried out. It is nil if there is none.
	Unanswered error

	// Lacks has what the Decider does not support by design.
	Lacks []Feature
}

// Feature is something that not every Decider supports.
type Feature string

// The features.
const (
	Calendars     Feature = "quotas by the calendar"    // Open returns errors.ErrUnsupported
	Queues        Feature = "queues"                    // waiting callers are not served in order, and Spend passes them
	Holds         Feature = "holds and resets"          // Hold, SetHold and Reset return an error
	HeldFreeIDs   Feature = "holds on unlimited ids"    // Hold returns an error, and decisions pass
	OwnClock      Feature = "the clock of decisions"    // Now goes on by the monotonic clock between decisions
	Clamps        Feature = "limits that end waits"     // SetLimits leaves buckets as they are
	LaterCuts     Feature = "cuts by requests"          // SetLimits itself cuts buckets down to a smaller limit
	LeasedFigures Feature = "exact figures with leases" // Remaining is that of the last lease
)

func (s *Subject) has(f Feature) bool { return !slices.Contains(s.Lacks, f) }

// A testCase checks one rule.
type testCase struct {
	name string
	run  func(e *env)
	// methods of Decider that the case calls
	methods []string
}

// Run runs every case at every level.
func Run(t *testing.T, s *Subject) {
	t.Run("methods", func(t *testing.T) {
		for m := range reflect.TypeFor[Limiter]().Methods() {
			require.True(t, slices.ContainsFunc(cases, func(c testCase) bool { return slices.Contains(c.methods, m.Name) }),
				"no case of the suite says that it calls %s", m.Name)
		}
	})
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			all := &common{T: t}
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) { s.runCase(t, &c, level, all) })
			}
		})
	}
}

// runCase runs a case.
func (s *Subject) runCase(t *testing.T, c *testCase, level stint.Durability, all *common) {
	r := &result{T: t}
	done := make(chan struct{})
	go func() { // FailNow ends this goroutine, and not the test
		defer close(done)
		c.run(&env{result: r, subject: s, level: level, common: all})
	}()
	<-done
	switch {
	case r.skipped != "":
		t.Skip(r.skipped)
	case r.failed.Load():
		all.Limiter = nil // the next case has a new one
		t.FailNow()
	}
}

// result is a require.TestingT whose FailNow ends the goroutine of a case.
type result struct {
	*testing.T
	failed  atomic.Bool
	skipped string
}

func (r *result) Errorf(format string, args ...any) {
	r.failed.Store(true)
	r.T.Helper()
	r.T.Errorf(format, args...)
}

func (r *result) FailNow() {
	r.failed.Store(true)
	runtime.Goexit()
}

func (r *result) skip(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// Clock stands still until pass moves it.
type clock struct {
	ns       atomic.Int64
	readings atomic.Int64 // until later passes
	later    atomic.Int64
}

func newClock() *clock {
	c := new(clock)
	c.ns.Store(time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC).UnixNano())
	return c
}

func (c *clock) pass(d time.Duration) { c.ns.Add(int64(d)) }

func (c *clock) now() time.Time {
	now := time.Unix(0, c.ns.Load())
	if c.readings.Add(-1) == 0 {
		c.ns.Add(c.later.Load())
	}
	return now
}

// passAfter lets a time pass once the clock has been read n times more; 0 means
// never.
func (c *clock) passAfter(n int64, d time.Duration) {
	c.later.Store(int64(d))
	c.readings.Store(n)
}

// common is what cases of a level have in common, because a new Decider may cost
// a file with syncs.
type common struct {
	*testing.T // of the level
	Limiter
	clock *clock
}

// env is the surroundings of a case.
type env struct {
	*result
	Limiter
	subject *Subject
	config  Config
	level   stint.Durability
	clock   *clock // nil: the system's
	common  *common
}

// open gives the case the Decider that it has in common with others, with the
// usual limits and a clock that stands still. Two days pass first: then all
// buckets are full, and no hold lasts. The case does not change its limits, and
// neither closes nor breaks it.
func (e *env) open() {
	c := e.common
	if c.Limiter == nil {
		c.clock = newClock()
		d, err := e.subject.Open(c.T, Config{Limits: usualLimits(e), Level: e.level, Now: c.clock.now, Folder: Folder(c.T)})
		require.NoError(e, err)
		c.Limiter = d
	}
	c.clock.pass(48 * time.Hour)
	e.Limiter, e.clock = c.Limiter, c.clock
}

// openOwn opens a Decider as open does, for this case alone.
func (e *env) openOwn() { e.openWith(usualLimits(e), newClock()) }

// openWith opens a Decider for this case alone. c may be nil: then the clock is
// the system's.
func (e *env) openWith(limits *stint.Limits, c *clock) {
	d, err := e.tryOpen(limits, c)
	require.NoError(e, err)
	e.Limiter, e.clock = d, c
}

func (e *env) tryOpen(limits *stint.Limits, c *clock) (Limiter, error) {
	e.config = Config{Limits: limits, Level: e.level, Folder: Folder(e.T)}
	if c != nil {
		e.config.Now = c.now
	}
	return e.subject.Open(e.T, e.config)
}

// Folder makes a folder whose name is short enough for a socket in it.
func Folder(t testing.TB) string {
	folder, err := os.MkdirTemp("", "decider")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// method returns the Decider as a type that has further methods, or skips the
// case.
func method[M any](e *env) M {
	m, ok := e.Limiter.(M)
	if !ok {
		e.skip("%T does not have the methods of %v", e.Limiter, reflect.TypeFor[M]())
	}
	return m
}

// The names of the usual limits. Buckets of fewer than 8 tokens have no lease,
// so their figures are exact at every level.
const (
	plain stint.Name = 1 + iota
	everyone
	other
	off
	shut
	queued
	leasable
)

// token is the interval of the limits that are 6 a minute.
const token = 10 * time.Second

func usualNames() stint.Names {
	return stint.Names{
		plain:    {Label: "plain", Limit: stint.PerMinute(6)},
		everyone: {Label: "everyone", IDs: stint.Single, Limit: stint.PerMinute(6)},
		other:    {Label: "other", Limit: stint.PerHour(4)},
		off:      {Label: "off", Limit: stint.Unlimited},
		shut:     {Label: "shut", Limit: stint.Blocked},
		queued:   {Label: "queued", Limit: stint.Limit{Burst: 6, Count: 6, Period: time.Minute, Queue: 3}},
		leasable: {Label: "leasable", Limit: stint.PerMinute(600)},
	}
}

func usualLimits(e *env) *stint.Limits {
	return limitsOf(e, usualNames(),
		stint.Override{Key: plain.Key("vip"), Limit: stint.PerMinute(7)},
		stint.Override{Key: plain.Key("free"), Limit: stint.Unlimited},
		stint.Override{Key: plain.Key("bad"), Limit: stint.Blocked},
	)
}

func limitsOf(e *env, names stint.Names, overrides ...stint.Override) *stint.Limits {
	limits, err := stint.NewLimits(names, overrides...)
	require.NoError(e, err)
	return limits
}

// limitOf returns the configured limit of a key.
func (e *env) limitOf(key stint.Key) stint.Limit {
	l := e.Limits().For(key)
	return l
}

func (e *env) spend(key stint.Key, cost int64) stint.Decision {
	d, err := e.Spend(key, cost)
	require.NoError(e, err)
	return e.rest(d, cost)
}

// rest checks what the decision on a spend says it took, and returns the decision
// without that.
func (e *env) rest(d stint.Decision, cost int64) stint.Decision {
	if !d.Allowed {
		cost = 0
	}
	require.Equal(e, cost, d.Taken)
	d.Taken = 0
	return d
}

func (e *env) check(key stint.Key, cost int64) stint.Decision {
	d, err := e.Check(key, cost)
	require.NoError(e, err)
	return d
}

func (e *env) together(reqs ...stint.Request) (stint.Decision, []stint.Decision) {
	ds := make([]stint.Decision, len(reqs))
	d, err := e.Do(context.Background(), reqs, ds)
	require.NoError(e, err)
	for i := range ds {
		cost := reqs[i].Cost
		if !d.Allowed || !ds[i].Allowed || reqs[i].Mode == stint.CheckOnly {
			cost = 0
		}
		require.Equal(e, cost, ds[i].Taken)
		if ds[i].Key == d.Key && ds[i].Stricter(&d) == d.Stricter(&ds[i]) {
			require.Equal(e, d.Taken, ds[i].Taken)
		}
		ds[i].Taken = 0
	}
	d.Taken = 0
	return d, ds
}

// left returns the tokens of a bucket.
func (e *env) left(key stint.Key) int64 {
	b, err := e.Bucket(key)
	require.NoError(e, err)
	require.Equal(e, key, b.Key)
	return b.Remaining
}

// decision returns what a bucket of 6 a minute answers: used is the time until
// it is full, and wait is RetryAfter.
func (e *env) decision(key stint.Key, used, wait time.Duration) stint.Decision {
	l := e.limitOf(key)
	return e.at(stint.Decision{Allowed: wait == 0, Remaining: int64((l.Tolerance() - used) / l.Interval()), RetryAfter: wait,
		ResetAfter: used, Key: key, Limit: l})
}

// at returns a decision as one that is made now.
func (e *env) at(d stint.Decision) stint.Decision {
	d.SetAt(e.clock.now())
	return d
}

// hold holds a key for a time. If the Decider has no holds, hold skips the case.
func (e *env) hold(key stint.Key, d time.Duration) {
	_, err := e.Hold(key, e.clock.now().Add(d))
	if !e.subject.has(Holds) {
		require.Error(e, err)
		e.skip("%s has no holds", e.subject.Name)
	}
	require.NoError(e, err)
}

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }

// inFuture is the Spent of a refund of a whole cost: it counts as the present.
var inFuture = time.Unix(0, math.MaxInt64)

// justSpent returns the requests of a refund of the whole costs.
func justSpent(reqs []stint.Request) []stint.Request {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		reqs[i].Spent = inFuture
	}
	return reqs
}
