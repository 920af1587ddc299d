package redislimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// line is a Client whose line to the server can be cut. Calls then fail with
// the error that cut has. While lose is set, replies of scripts are lost.
type line struct {
	*rueidisClient
	cut  *atomic.Pointer[error]
	lose *atomic.Bool
}

func newLine() line { return line{cut: new(atomic.Pointer[error]), lose: new(atomic.Bool)} }

func (c line) fail(err error) { c.cut.Store(&err) }
func (c line) mend()          { c.cut.Store(nil) }

func (c line) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	if err := c.cut.Load(); err != nil {
		return nil, *err
	}
	reply, err := c.rueidisClient.Eval(ctx, command, script, keys, args)
	if c.lose.Load() && err == nil {
		return nil, fmt.Errorf("%w: lost", ErrNoAnswer)
	}
	return reply, err
}

func (c line) EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
	timeout time.Duration) (any, int, error) {
	if err := c.cut.Load(); err != nil {
		return nil, 0, *err
	}
	return c.rueidisClient.EvalWait(ctx, command, script, keys, args, replicas, timeout)
}

func (c line) Do(ctx context.Context, args ...string) (any, error) {
	if err := c.cut.Load(); err != nil {
		return nil, *err
	}
	return c.rueidisClient.Do(ctx, args...)
}

func (c line) DoEach(ctx context.Context, args ...string) ([]any, error) {
	if err := c.cut.Load(); err != nil {
		return nil, *err
	}
	return c.rueidisClient.DoEach(ctx, args...)
}

// node opens a Limiter on the line.
func (c line) node(t *testing.T, limits *stint.Limits, opts Options) *Limiter {
	t.Helper()
	s, _ := commonServer(t)
	c.rueidisClient = clientAt(t, s.url, 20*time.Second)
	return newOn(t, c, limits, opts)
}

// own returns a Limiter of this machine's own for Options.Away, with a limit on every
// Name that is declared here. now is its clock; nil: the system's.
func own(t *testing.T, limit stint.Limit, now func() time.Time) *stint.Limiter {
	t.Helper()
	return ownOf(t, testLimits(t, limit), now)
}

func ownOf(t *testing.T, limits *stint.Limits, now func() time.Time) *stint.Limiter {
	t.Helper()
	l, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: now})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// newAway returns a Limiter with a line that can be cut.
func newAway(t *testing.T, limit stint.Limit, opts Options) (*Limiter, line) {
	t.Helper()
	if opts.Prefix == "" {
		opts.Prefix = newPrefix(t)
	}
	c := newLine()
	return c.node(t, testLimits(t, limit), opts), c
}

func (l *Limiter) comesBack(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return !l.isAway() }, time.Minute, 100*time.Microsecond)
}

func (l *Limiter) left(t *testing.T, key stint.Key) int64 {
	t.Helper()
	b, err := l.Bucket(key)
	require.NoError(t, err)
	return b.Remaining
}

var errCut = fmt.Errorf("%w: cut", ErrAway)

// If a call may have spent and Options.Away cannot decide, the error is
// ErrNoAnswer, although the server is away now.
func TestAwayUnsure(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]stint.Limit{
		"flushed": stint.PerHour(100), "leased": leasedLimit(stint.PerHour(100)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, line := newAway(t, limit, Options{Away: own(t, stint.PerHour(2), nil)})
			line.fail(fmt.Errorf("%w: connection reset", ErrNoAnswer))
			_, err := l.Spend(perID.Key("a"), 3)
			require.ErrorIs(t, err, ErrNoAnswer)
			require.NotErrorIs(t, err, ErrAway)
			require.ErrorContains(t, err, "cost over burst: 3 of 2 for perID:a")
			require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 3)), ErrAway)
			require.True(t, l.spend(t, perID.Key("a"), 2).Allowed)
			line.mend()
			l.comesBack(t)
		})
	}
}

// While the server is away, Options.Away decides by its own limits. Holds and resets
// are errors. When the server is back, nothing is charged.
func TestAway(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	var events []string
	mine := own(t, stint.PerHour(3), clock.now)
	l, c := newAway(t, stint.PerHour(9), Options{Away: mine, Now: clock.now,
		OnEvent: func(e Event) {
			events = append(events, map[bool]string{true: "server back", false: "server away"}[e.Err == nil])
		}})
	require.NoError(t, l.Health())
	require.Equal(t, int64(6), l.spend(t, perID.Key("a"), 3).Remaining)
	c.fail(errCut)
	clock.pass(time.Second)

	d := l.spend(t, perID.Key("a"), 1)
	want := stint.Decision{Key: perID.Key("a"), Allowed: true, Taken: 1, Limit: stint.PerHour(3), Remaining: 2,
		ResetAfter: 20 * time.Minute}
	want.SetAt(clock.now())
	require.Equal(t, want, d)
	require.Equal(t, 20*time.Minute, l.check(t, perID.Key("a"), 3).RetryAfter)
	require.Equal(t, 20*time.Minute, mine.Limits().Names()[perID].Limit.Interval(), "that is one token of its own")
	d = l.refund(t, perID.Key("a").Cost(1).SpentAt(inFuture))
	require.Equal(t, int64(3), d.Remaining)
	l.spend(t, perID.Key("a"), 1)
	b, err := l.Bucket(perID.Key("a"))
	require.NoError(t, err)
	require.Equal(t, stint.Bucket{Key: perID.Key("a"), Limit: stint.PerHour(3), Remaining: 2, ResetAfter: 20 * time.Minute}, b)
	_, err = l.Spend(perID.Key("a"), 4)
	require.ErrorIs(t, err, ErrAway, "its own limit never has so many")
	require.NotErrorIs(t, err, stint.ErrCostOverBurst, "but the limit does")
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 10)), stint.ErrCostOverBurst)
	d = l.spendAll(t, stint.Request{Key: perID.Key("c"), Cost: 5, Limit: stint.PerDay(5)})
	require.Equal(t, []any{true, int64(0), stint.PerDay(5)}, []any{d.Allowed, d.Remaining, d.Limit}, "a given limit decides")
	d = l.spendAll(t, stint.Request{Key: perID.Key("d"), Cost: 5, Mode: stint.UpTo})
	require.Equal(t, []any{true, int64(3)}, []any{d.Allowed, d.Taken})

	d = l.spendAll(t, stint.Request{Key: perID.Key("f"), Cost: 2, Leave: 2, Mode: stint.UpTo})
	require.Equal(t, []any{true, int64(1), int64(2)}, []any{d.Allowed, d.Taken, d.Remaining})
	require.False(t, l.spendAll(t, stint.Request{Key: perID.Key("f"), Cost: 1, Leave: 2}).Allowed)

	require.False(t, l.spend(t, shut.Key("a"), 1).Allowed)
	require.True(t, l.spend(t, off.Key("a"), 1).Allowed)
	require.ErrorIs(t, errorOf(l.Hold(perID.Key("a"), clock.now().Add(time.Hour))), ErrAway)
	require.ErrorIs(t, l.SetHold(perID.Key("a"), time.Time{}), ErrAway)
	require.ErrorIs(t, l.Reset(perID.Key("a")), ErrAway)
	require.NoError(t, errorOf(mine.Hold(perID.Key("e"), clock.now().Add(time.Hour))))
	require.Equal(t, time.Hour, l.spend(t, perID.Key("e"), 1).RetryAfter, "a hold of its own denies")
	b, err = l.Bucket(perID.Key("e"))
	require.NoError(t, err)
	require.True(t, clock.now().Add(time.Hour).Equal(b.HeldUntil))

	ds := make([]stint.Decision, 3)
	d, err = l.Do(context.Background(), []stint.Request{{Key: perID.Key("a"), Cost: 2}, {Key: other.Key("a"), Cost: 1},
		{Key: perID.Key("b"), Cost: 1, Mode: stint.SpendOnly}}, ds)
	require.NoError(t, err)
	require.Equal(t, ds[0], d)
	require.Equal(t, []int64{0, 6, 2}, []int64{ds[0].Remaining, ds[1].Remaining, ds[2].Remaining})
	d, err = l.Do(context.Background(), []stint.Request{{Key: perID.Key("a"), Cost: 1}, {Key: other.Key("a"), Cost: 1}}, ds)
	require.NoError(t, err)
	require.Equal(t, ds[0], d)
	require.False(t, d.Allowed)
	require.EqualValues(t, 6, l.left(t, other.Key("a")), "all or none")

	clock.pass(time.Second)
	require.ErrorIs(t, l.Health(), ErrAway)
	for _, text := range []string{"since 2021-02-03T04:05:07Z", "Options.Away decides"} {
		require.ErrorContains(t, l.Health(), text)
	}
	st := l.Stats()
	require.Equal(t, []int64{1, 17}, []int64{st.Outages, st.AwayDecisions})
	require.Equal(t, time.Second, st.Away)
	require.Equal(t, clock.now().Add(-time.Second), st.AwaySince)
	c.mend()
	l.comesBack(t)
	require.Equal(t, int64(6), l.left(t, perID.Key("a")), "nothing is charged")
	require.Equal(t, int64(9), l.left(t, perID.Key("b")))
	require.NoError(t, l.Health())
	require.Equal(t, time.Second, l.Stats().Away)
	require.Zero(t, l.Stats().AwaySince)
	require.NoError(t, l.Close())
	require.Equal(t, []string{"server away", "server back"}, events)
	require.NoError(t, errorOf(mine.Check(perID.Key("a"), 1)), "it belongs to the caller")
}

// AwayOpen admits everything but what is Blocked. Without an Away, decisions are
// errors.
func TestAwayOpenOrNone(t *testing.T) {
	t.Parallel()
	l, c := newAway(t, stint.PerHour(9), Options{Away: AwayOpen})
	c.fail(errCut)
	for range 20 {
		d := l.spend(t, perID.Key("a"), 7)
		want := stint.Decision{Allowed: true, Taken: 7, Remaining: math.MaxInt64, Key: perID.Key("a"), Limit: stint.Unlimited}
		want.SetAt(d.At())
		require.Equal(t, want, d)
	}
	require.Zero(t, l.check(t, perID.Key("a"), 7).Taken)
	require.False(t, l.spend(t, shut.Key("a"), 1).Allowed)
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 10)), stint.ErrCostOverBurst)
	require.True(t, l.refund(t, perID.Key("a").Cost(1).SpentAt(l.Now())).Allowed)
	require.EqualValues(t, 3, l.spendAll(t, stint.Request{Key: perID.Key("a"), Cost: 3, Mode: stint.UpTo}).Taken)
	b, err := l.Bucket(perID.Key("a"))
	require.NoError(t, err)
	require.Equal(t, stint.Bucket{Key: perID.Key("a"), Limit: stint.Unlimited}, b)
	_, err = l.Wait(t.Context(), perID.Key("a").Cost(9))
	require.NoError(t, err)
	require.ErrorContains(t, l.Health(), "requests pass without a limit")
	c.mend()
	l.comesBack(t)
	require.EqualValues(t, 9, l.left(t, perID.Key("a")))

	l, c = newAway(t, stint.PerHour(9), Options{})
	c.fail(errCut)
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), ErrAway)
	require.ErrorIs(t, errorOf(l.Refund(perID.Key("a").Cost(1).SpentAt(l.Now()))), ErrAway)
	require.ErrorIs(t, errorOf(l.Bucket(perID.Key("a"))), ErrAway)
	require.ErrorIs(t, errorOf(l.Wait(t.Context(), perID.Key("a").Cost(1))), ErrAway)
	require.ErrorContains(t, l.Health(), "decisions are errors")
	require.Zero(t, l.Stats().AwayDecisions)
}

// A call for buckets in several slots of a cluster is decided by Options.Away in one
// step, unless Options.Atomic is set: then it is an error, away or not.
func TestAwayTogether(t *testing.T) {
	t.Parallel()
	mine := own(t, stint.PerHour(4), nil)
	for _, atomic := range []bool{false, true} {
		l, c := newAway(t, stint.PerHour(8), Options{Away: mine, Atomic: atomic})
		l.server.SetCluster(true) // one server takes keys of any slots
		c.fail(errCut)
		l.spend(t, perID.Key("x"), 1)
		d, err := l.SpendAll(perID.Key("a").Cost(1), perID.Key("b").Cost(1))
		if atomic {
			require.ErrorIs(t, err, ErrCrossSlot)
			continue
		}
		require.NoError(t, err)
		require.True(t, d.Allowed)
		allowed := mine.Stats().Limits[perID].Allowed
		require.False(t, l.spendAll(t, perID.Key("a").Cost(1), perID.Key("b").Cost(4)).Allowed)
		require.EqualValues(t, 3, l.left(t, perID.Key("a")), "nothing was spent")
		require.Equal(t, allowed, mine.Stats().Limits[perID].Allowed, "not even to be returned")
	}
}

// failing is a Store that keeps nothing.
type failing struct{ stint.Store }

func (failing) Save([]stint.Change) error { return io.ErrShortWrite }

// canceled is a Decider whose answers are lost.
type canceled struct{ stint.Decider }

func (canceled) Do(context.Context, []stint.Request, []stint.Decision) (stint.Decision, error) {
	return stint.Decision{}, context.Canceled
}

// If Options.Away is closed, or has other Names, limits or ids, nothing was spent,
// and the error is ErrAway alone: this Limiter is open, and the request is right. If
// Away may have spent, it says so.
func TestAwayFails(t *testing.T) {
	t.Parallel()
	closed := own(t, stint.PerHour(9), nil)
	require.NoError(t, closed.Close())
	names, err := stint.NewLimits(stint.Names{other: {Label: "other", Limit: stint.PerHour(1)}})
	require.NoError(t, err)
	ids, err := stint.NewLimits(stint.Names{perID: {Label: "perID", IDs: stint.Single, Limit: stint.PerHour(1)}})
	require.NoError(t, err)
	synced := stint.PerHour(9)
	synced.Durability = stint.Synced
	broken, err := stint.New(failing{stint.NewMemStore()}, testLimits(t, synced), nil)
	require.NoError(t, err)
	t.Cleanup(func() { broken.Close() })
	key := perID.Key("a")
	for name, c := range map[string]struct {
		away stint.Decider
		err  error
		says string
	}{
		"closed":      {closed, ErrAway, "closed"},
		"no name":     {ownOf(t, names, nil), ErrAway, "unknown name"},
		"other ids":   {ownOf(t, ids, nil), ErrAway, "invalid id"},
		"less":        {own(t, stint.PerHour(2), nil), ErrAway, "3 of 2"},
		"not durable": {broken, stint.ErrNotDurable, "Options.Away failed"},
		"unknown":     {canceled{broken}, context.Canceled, "Options.Away failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, line := newAway(t, stint.PerHour(9), Options{Away: c.away})
			line.fail(errCut)
			calls := map[string]error{
				"Spend":    errorOf(l.Spend(key, 3)),
				"SpendAll": errorOf(l.SpendAll(key.Cost(3), stint.Request{Key: shut.Key("a"), Mode: stint.SpendOnly})),
				"Wait":     errorOf(l.Wait(t.Context(), key.Cost(3))),
			}
			if c.err == ErrAway && name != "less" {
				calls["Refund"] = errorOf(l.Refund(key.Cost(3).SpentAt(inFuture)))
				calls["Bucket"] = errorOf(l.Bucket(key))
			}
			for call, err := range calls {
				require.ErrorIs(t, err, c.err, call)
				require.ErrorContains(t, err, c.says, call)
				for _, is := range []error{ErrAway, stint.ErrClosed, stint.ErrUnknownName, stint.ErrInvalidID, stint.ErrCostOverBurst} {
					require.Equal(t, is == c.err, errors.Is(err, is), "%s: %v", call, err)
				}
			}
			line.mend()
			l.comesBack(t)
			require.EqualValues(t, 9, l.left(t, key))
		})
	}
}

// The instant of a spend is one of the server's clock. Options.Away gets it by its
// own.
func TestAwayClock(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-time.Hour, 0, time.Hour} {
		clock, there := newTestClock(), newTestClock()
		there.pass(by)
		l, c := newAway(t, stint.PerHour(60), Options{Away: own(t, stint.PerHour(60), clock.now), Now: there.now})
		c.fail(errCut)
		key, spent := perID.Key("a"), l.Now()
		d := l.spend(t, key, 60)
		require.True(t, d.At().Equal(there.now()), "%v", d.At())
		clock.pass(10 * time.Minute)
		there.pass(10 * time.Minute)
		d = l.refund(t, key.Cost(30).SpentAt(spent))
		require.EqualValues(t, 10+20, d.Remaining, "ten have come back by themselves")
	}
}

// Wait tries again when the server is back, although Options.Away has told it to
// wait for longer.
func TestWaitWhileAway(t *testing.T) {
	t.Parallel()
	l, c := newAway(t, stint.PerHour(9), Options{Away: own(t, stint.PerHour(1), nil)})
	c.fail(errCut)
	key := perID.Key("a")
	_, err := l.Wait(t.Context(), key.Cost(1))
	require.NoError(t, err, "its own limiter has a token")
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, errorOf(l.Wait(short, key.Cost(1))), context.DeadlineExceeded, "and no second one in time")
	done := make(chan error)
	decisions := l.Stats().AwayDecisions
	go func() { done <- errorOf(l.Wait(t.Context(), key.Cost(1))) }()
	require.Eventually(t, func() bool { return l.Stats().AwayDecisions > decisions }, time.Minute, time.Millisecond)
	c.mend()
	require.NoError(t, <-done)
	require.EqualValues(t, 8, l.left(t, key))
}

// SetLimits leaves the limits of Options.Away alone. A Name that it does not have is
// ErrAway.
func TestSetLimitsWhileAway(t *testing.T) {
	t.Parallel()
	l, c := newAway(t, stint.PerHour(8), Options{Away: own(t, stint.PerHour(4), nil)})
	c.fail(errCut)
	require.Equal(t, int64(3), l.spend(t, perID.Key("a"), 1).Remaining)
	limits, err := stint.NewLimits(stint.Names{perID: {Label: "perID", Limit: stint.PerHour(2)},
		77: {Label: "new", Limit: stint.PerHour(6)}})
	require.NoError(t, err)
	require.NoError(t, l.SetLimits(limits))
	require.Equal(t, int64(2), l.spend(t, perID.Key("a"), 1).Remaining, "of its own four")
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 3)), stint.ErrCostOverBurst, "of the new limit")
	require.ErrorIs(t, errorOf(l.Spend(stint.Name(77).Key("a"), 1)), ErrAway)
	c.mend()
	l.comesBack(t)
	require.EqualValues(t, 2, l.left(t, perID.Key("a")))
	require.EqualValues(t, 6, l.left(t, stint.Name(77).Key("a")))
}

// Some errors mean that the server is away. The others are errors of one call.
func TestAwayBegins(t *testing.T) {
	t.Parallel()
	late := fmt.Errorf("%w: %w", ErrNoAnswer, context.DeadlineExceeded)
	for name, c := range map[string]struct {
		err  error
		away bool
	}{
		"refused":     {errCut, true},
		"reset":       {fmt.Errorf("%w: connection reset", ErrNoAnswer), true},
		"time-out":    {late, true},
		"READONLY":    {ServerError("READONLY You can't write against a read only replica."), true},
		"LOADING":     {ServerError("LOADING Redis is loading the dataset in memory"), true},
		"MASTERDOWN":  {ServerError("MASTERDOWN Link with MASTER is down"), true},
		"CLUSTERDOWN": {ServerError("CLUSTERDOWN The cluster is down"), true},
		"MISCONF":     {ServerError("MISCONF Errors writing to the AOF file: No space left on device"), true},
		"NOAUTH":      {ServerError("NOAUTH Authentication required."), false},
		"NOPERM":      {ServerError("NOPERM this user has no permissions"), false},
		"WRONGTYPE":   {ServerError("WRONGTYPE Operation against a key"), false},
		"OOM":         {ServerError("OOM command not allowed"), false},
		"script":      {ServerError("ERR user_script:1: attempt to index a nil value"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, line := newAway(t, stint.PerHour(100), Options{Away: own(t, stint.PerHour(50), nil)})
			l.spend(t, perID.Key("a"), 1)
			line.fail(c.err)
			if name == "time-out" { // a probe finds that it is away
				if _, err := l.Spend(perID.Key("a"), 1); err == nil {
					require.True(t, l.isAway(), "the probe was faster than the call")
				} else {
					require.ErrorIs(t, err, late)
				}
				eventually(t, "the server is away", l.isAway)
			}
			for range 5 {
				_, err := l.Spend(perID.Key("a"), 1)
				require.Equal(t, c.away, l.isAway())
				if c.away {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, c.err)
					require.Error(t, l.Health())
				}
			}
			line.mend()
			l.comesBack(t)
			l.spend(t, perID.Key("a"), 1)
		})
	}
}

// The answers of httplimit while the server is away.
func TestHTTPWhileAway(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	for _, c := range []struct {
		name     string
		away     stint.Decider
		failOpen bool
		want     []int
		policy   string
	}{
		{"its own limiter", own(t, stint.PerHour(4).DividedBy(2), clock.now), false, []int{200, 200, 429}, `"perID";q=2;w=3600`},
		{"none", nil, false, []int{503, 503, 503}, ""},
		{"none, and httplimit fails open", nil, true, []int{200, 200, 200}, ""},
		{"open", AwayOpen, false, []int{200, 200, 200}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, line := newAway(t, stint.PerHour(4), Options{Away: c.away, Now: clock.now})
			h := httplimit.Middleware(l, &httplimit.Options{FailOpen: c.failOpen}, httplimit.Rule{Key: httplimit.ByIP(perID)})(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			line.fail(errCut)
			var got []int
			for range c.want {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				got = append(got, w.Code)
				require.Equal(t, c.policy, w.Header().Get("RateLimit-Policy"))
				if w.Code == 429 {
					require.Equal(t, "1800", w.Header().Get("Retry-After"))
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// Close ends a probe. A Limiter that was opened while the server was away needs
// no call to notice that the server is back.
func TestOpenWhileAway(t *testing.T) {
	t.Parallel()
	limits := testLimits(t, stint.PerHour(8))
	c := newLine()
	c.fail(errors.New("no route"))
	mine := own(t, stint.PerHour(4), nil)
	l := c.node(t, limits, Options{Away: mine})
	require.Equal(t, int64(3), l.spend(t, perID.Key("a"), 1).Remaining)
	require.NoError(t, l.Close())
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), stint.ErrClosed)
	l = c.node(t, limits, Options{Away: mine})
	require.Equal(t, int64(2), l.spend(t, perID.Key("a"), 1).Remaining)
	require.ErrorIs(t, l.Health(), ErrAway)
	c.mend()
	l.comesBack(t)
}

// A replica answers, but cannot decide. So it counts as away until it becomes a
// primary.
func TestReplicaIsAway(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--replicaof", "127.0.0.1 1")
	l := s.limiter(t, testLimits(t, stint.PerHour(8)), func(o *Options) { o.Away = own(t, stint.PerHour(4), nil) })
	for range 4 {
		require.True(t, l.spend(t, perID.Key("a"), 1).Allowed)
		require.True(t, l.isAway())
	}
	require.ErrorContains(t, l.Health(), "READONLY")
	s.cli("REPLICAOF", "NO", "ONE")
	l.comesBack(t)
	require.Equal(t, int64(8), l.left(t, perID.Key("a")))
}
