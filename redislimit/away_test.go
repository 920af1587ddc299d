package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
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

// filed returns the options of one of some nodes, which has a file, and the clock in
// them.
func filed(t *testing.T, nodes int) (Options, *testClock) {
	t.Helper()
	clock := newTestClock()
	return Options{Prefix: newPrefix(t), Nodes: nodes, Now: clock.now, RepeatDenials: -1,
		Local: filepath.Join(t.TempDir(), "local.db")}, clock
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

// If a call may have spent and this machine cannot decide by itself, the error is
// ErrNoAnswer, although the server is away now.
func TestAwayUnsure(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]stint.Limit{
		"flushed": stint.PerHour(100), "leased": leasedLimit(stint.PerHour(100)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, line := newAway(t, limit, Options{Nodes: 50})
			line.fail(fmt.Errorf("%w: connection reset", ErrNoAnswer))
			_, err := l.Spend(perID.Key("a"), 3)
			require.ErrorIs(t, err, ErrNoAnswer)
			require.NotErrorIs(t, err, ErrAway)
			require.ErrorContains(t, err, "perID:a asks for 3 tokens, and the share of this machine is 2")
			require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 3)), ErrAway)
			require.True(t, l.spend(t, perID.Key("a"), 2).Allowed)
			line.mend()
			l.comesBack(t)
		})
	}
}

// Options.Away and AwayFor determine the decisions while the server is away.
func TestAway(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	var events []string
	l, c := newAway(t, stint.PerHour(9), Options{Nodes: 3, Now: clock.now, Prefix: "",
		AwayFor: map[stint.Name]Away{other: AwayOpen, everyone: AwayClosed},
		OnEvent: func(e Event) {
			events = append(events, map[bool]string{true: "server back", false: "server away"}[e.Err == nil])
		}})
	require.NoError(t, l.Health())
	require.Equal(t, int64(6), l.spend(t, perID.Key("a"), 3).Remaining)
	c.fail(errCut)
	clock.pass(time.Second)

	d := l.spend(t, perID.Key("a"), 1)
	require.True(t, d.Allowed)
	require.Equal(t, stint.PerHour(9).DividedBy(3), d.Limit, "the share is the limit")
	require.Equal(t, int64(1), d.Remaining, "a third of the six that were left is two")
	require.Equal(t, 2*20*time.Minute-time.Second, d.ResetAfter)
	require.Equal(t, 20*time.Minute-time.Second, l.check(t, perID.Key("a"), 2).RetryAfter)
	d = l.refund(t, perID.Key("a").Cost(1).SpentAt(stint.JustSpent))
	require.Equal(t, int64(2), d.Remaining)
	b, err := l.Bucket(perID.Key("a"))
	require.NoError(t, err)
	require.Equal(t, stint.Bucket{Key: perID.Key("a"), Limit: d.Limit, Remaining: 2, ResetAfter: d.ResetAfter}, b)
	_, err = l.Spend(perID.Key("a"), 4)
	require.ErrorIs(t, err, ErrAway, "the share never has so many")
	require.NotErrorIs(t, err, stint.ErrCostOverBurst, "but the limit does")

	require.ErrorIs(t, errorOf(l.Spend(everyone.Key(""), 1)), ErrAway)
	_, err = l.SpendAll(stint.Request{Key: perID.Key("a"), Cost: 1}, stint.Request{Key: everyone.Key(""), Cost: 1})
	require.ErrorIs(t, err, ErrAway)
	require.Equal(t, int64(2), l.left(t, perID.Key("a")), "and nothing is spent")
	for range 20 {
		d := l.spend(t, other.Key("a"), 7)
		require.Equal(t, stint.Decision{Allowed: true, Taken: 7, Remaining: math.MaxInt64, Key: other.Key("a")}, d)
	}
	require.False(t, l.spend(t, shut.Key("a"), 1).Allowed)
	require.ErrorIs(t, errorOf(l.Hold(perID.Key("a"), clock.now().Add(time.Hour))), ErrAway)
	require.ErrorIs(t, l.Reset(perID.Key("a")), ErrAway)

	ds := make([]stint.Decision, 3)
	d, err = l.Do(context.Background(), []stint.Request{{Key: perID.Key("a"), Cost: 2}, {Key: other.Key("a"), Cost: 1},
		{Key: perID.Key("b"), Cost: 1, Mode: stint.SpendOnly}}, ds)
	require.NoError(t, err)
	require.Equal(t, ds[0], d)
	require.Equal(t, []int64{0, math.MaxInt64, 2}, []int64{ds[0].Remaining, ds[1].Remaining, ds[2].Remaining})

	clock.pass(time.Second)
	require.ErrorIs(t, l.Health(), ErrAway)
	for _, text := range []string{"since 2021-02-03T04:05:07Z", "with 1/3 of", "without a limit", "are errors"} {
		require.ErrorContains(t, l.Health(), text)
	}
	st := l.Stats()
	require.Equal(t, []int64{1, 21}, []int64{st.Outages, st.AwayOpen})
	require.Equal(t, time.Second, st.Away)
	require.Positive(t, st.AwayShare)
	c.mend()
	l.comesBack(t)
	require.Equal(t, int64(4), l.left(t, perID.Key("a")), "two more are spent, and two seconds have brought none back")
	require.Equal(t, int64(8), l.left(t, perID.Key("b")))
	require.NoError(t, l.Health())
	require.Equal(t, int64(2), l.Stats().Charged)
	require.Equal(t, time.Second, l.Stats().Away)
	require.Zero(t, l.Stats().AwaySince)
	require.NoError(t, l.Close())
	require.Equal(t, []string{"server away", "server back"}, events)
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
			l, line := newAway(t, stint.PerHour(100), Options{Nodes: 2})
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

// Open returns an error for a mistake in the options.
func TestAwayOptions(t *testing.T) {
	t.Parallel()
	limits := testLimits(t, stint.PerHour(8))
	large, err := stint.NewLimits(stint.Names{40_000: {Label: "large", Limit: stint.PerHour(1)}})
	require.NoError(t, err)
	for want, c := range map[string]struct {
		limits *stint.Limits
		opts   Options
	}{
		"Options.Nodes is -1":                   {limits, Options{Nodes: -1}},
		"AwayShare needs Options.Nodes":         {limits, Options{Away: AwayShare}},
		"Options.Away is 9":                     {limits, Options{Away: 9}},
		"Options.AwayFor is 0 for 3":            {limits, Options{AwayFor: map[stint.Name]Away{3: 0}}},
		"Options.Local is only for AwayShare":   {limits, Options{Local: "x"}},
		"number 40000, want a number under 327": {large, Options{Nodes: 2}},
		"no such file or directory":             {limits, Options{Nodes: 2, Local: filepath.Join(t.TempDir(), "x", "y")}},
	} {
		require.ErrorContains(t, errorOf(Open("redis://127.0.0.1:1", c.limits, &c.opts)), want)
	}
	l := openAt(t, "redis://127.0.0.1:1", large, Options{})
	require.NoError(t, l.Close())
}

// The answers of httplimit while the server is away.
func TestHTTPWhileAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		away     Away
		failOpen bool
		want     []int
		policy   string
	}{
		{"share", AwayShare, false, []int{200, 200, 429}, `"perID";q=2;w=3600`},
		{"closed", AwayClosed, false, []int{503, 503, 503}, ""},
		{"closed, and httplimit fails open", AwayClosed, true, []int{200, 200, 200}, ""},
		{"open", AwayOpen, false, []int{200, 200, 200}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			clock := newTestClock()
			l, line := newAway(t, stint.PerHour(4), Options{Nodes: 2, Away: c.away, Now: clock.now})
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
	l := c.node(t, limits, Options{Nodes: 2})
	require.Equal(t, int64(3), l.spend(t, perID.Key("a"), 1).Remaining)
	require.NoError(t, l.Close())
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), stint.ErrClosed)
	l = c.node(t, limits, Options{Nodes: 2})
	require.ErrorIs(t, l.Health(), ErrAway)
	c.mend()
	l.comesBack(t)
}

// A replica answers, but cannot decide. So it counts as away until it becomes a
// primary.
func TestReplicaIsAway(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--replicaof", "127.0.0.1 1")
	l := s.limiter(t, testLimits(t, stint.PerHour(8)), func(o *Options) { o.Nodes = 2 })
	for range 4 {
		require.True(t, l.spend(t, perID.Key("a"), 1).Allowed)
		require.True(t, l.isAway())
	}
	require.ErrorContains(t, l.Health(), "READONLY")
	s.cli("REPLICAOF", "NO", "ONE")
	l.comesBack(t)
	require.Equal(t, int64(4), l.left(t, perID.Key("a")))
}
