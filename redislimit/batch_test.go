package redislimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// gate is a Client that holds script calls of some keys back, and may lose
// replies.
type gate struct {
	*rueidisClient
	holds sync.Map     // by key: a channel, which is closed to let the calls go on
	lose  string       // a key whose calls lose their replies
	held  atomic.Int64 // calls that it has held back
	calls atomic.Int64
	wrap  atomic.Pointer[plainCluster] // refuses calls before they come here
}

func (g *gate) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	if held, ok := g.holds.Load(keys[0]); ok {
		g.held.Add(1)
		<-held.(chan struct{})
	}
	if text == script.ProbeText {
		return g.rueidisClient.Eval(ctx, command, text, keys, args)
	}
	if c := g.wrap.Load(); c != nil {
		if err := c.refuses(keys); err != nil {
			return nil, err
		}
	}
	g.calls.Add(1)
	reply, err := g.rueidisClient.Eval(ctx, command, text, keys, args)
	if err == nil && slices.Contains(keys, g.lose) {
		return nil, ErrNoAnswer
	}
	return reply, err
}

// gated returns a Limiter behind a gate. The clock stands still.
func (s *server) gated(t *testing.T, l stint.Limit, change func(*Options)) (*Limiter, *gate, *testClock) {
	t.Helper()
	clock := newTestClock()
	g := &gate{rueidisClient: clientAt(t, s.url, 20*time.Second)}
	opts := &Options{Prefix: newPrefix(t), Now: clock.now}
	if change != nil {
		change(opts)
	}
	lim := newOn(t, g, testLimits(t, l), *opts)
	lim.server.Pace = time.Hour     // only full calls begin early
	lim.check(t, perID.Key("a"), 1) // from now on the server knows the script
	return lim, g, clock
}

// exact returns a gated Limiter that asks the server for every decision.
func (s *server) exact(t *testing.T) (*Limiter, *gate) {
	l, g, _ := s.gated(t, stint.PerHour(20), func(o *Options) { o.RepeatDenials = -1 })
	return l, g
}

func until(done func() bool) {
	for !done() {
		runtime.Gosched()
	}
}

// together starts the operations in order while calls are held back, so that all
// that need the server share one call. It returns the number of calls that they
// took.
func (g *gate) together(t *testing.T, l *Limiter, operations ...func()) int64 {
	t.Helper()
	var running sync.WaitGroup
	var keys []stint.Key
	var opens []chan struct{}
	for i := range script.MinCalls {
		keys = append(keys, other.Key(fmt.Sprintf("held back %d", i)))
		opens = append(opens, make(chan struct{}))
		g.holds.Store(l.opts.keyOf(keys[i]), opens[i])
	}
	held := g.held.Load()
	for i, key := range keys {
		running.Go(func() {
			if _, err := l.Check(key, 1); err != nil {
				t.Error(err)
			}
		})
		until(func() bool { return g.held.Load() == held+int64(i)+1 }) // no operation can join it any more
	}
	for _, operation := range operations {
		before := l.server.Waiting()
		var ended atomic.Bool
		running.Go(func() {
			operation()
			ended.Store(true)
		})
		until(func() bool { return l.server.Waiting() > before || ended.Load() })
	}
	waiting := l.server.Waiting()
	before := g.calls.Load()
	close(opens[0])
	until(func() bool { return l.server.Waiting() == 0 }) // all are in the next call
	for _, open := range opens[1:] {
		close(open)
	}
	running.Wait()
	g.holds.Clear()
	if waiting == 0 {
		require.Equal(t, before+script.MinCalls, g.calls.Load())
	}
	return g.calls.Load() - before - script.MinCalls
}

// Callers that arrive while calls are under way share the next one. On one
// bucket they are served in order, and each has an answer of its own.
func TestBatch(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l, g := s.exact(t)
	ds := make([]stint.Decision, 30)
	var spends []func()
	for i := range ds {
		spends = append(spends, func() {
			var err error
			if ds[i], err = l.Spend(perID.Key("a"), 1); err != nil {
				t.Error(err)
			}
		})
	}
	require.Equal(t, int64(1), g.together(t, l, spends...))
	for i, d := range ds {
		require.Equal(t, i < 20, d.Allowed)
		require.Equal(t, max(0, 19-int64(i)), d.Remaining)
	}
	require.Empty(t, l.Health())
}

// Callers share a call only if they have the same limits in force.
func TestBatchLimits(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l, g := s.exact(t)
	spend := func() {
		if _, err := l.Spend(perID.Key("a"), 1); err != nil {
			t.Error(err)
		}
	}
	change := func() {
		if err := l.SetLimits(testLimits(t, stint.PerHour(10))); err != nil {
			t.Error(err)
		}
	}
	require.Equal(t, int64(2), g.together(t, l, spend, spend, change, spend, spend))
	require.Equal(t, int64(7), l.left(t, perID.Key("a")), "two of 3 minutes, and two of 6")
}

// A key that is not a bucket is an error of its own request only.
func TestBatchForeignKey(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l, g := s.exact(t)
	foreign, list := l.opts.keyOf(perID.Key("foreign")), l.opts.keyOf(other.Key("list"))
	s.cli("SET", foreign, "x")
	s.cli("RPUSH", list, "x")
	var errs [5]error
	var ds [5]stint.Decision
	calls := g.together(t, l,
		func() { ds[0], errs[0] = l.Spend(perID.Key("a"), 1) },
		func() { ds[1], errs[1] = l.Spend(perID.Key("foreign"), 1) },
		func() {
			ds[2], errs[2] = l.SpendAll(stint.Request{Key: perID.Key("a"), Cost: 1},
				stint.Request{Key: other.Key("list"), Cost: 1})
		},
		func() {
			ds[3], errs[3] = l.SpendAll(stint.Request{Key: perID.Key("a"), Cost: 1},
				stint.Request{Key: perID.Key("b"), Cost: 1})
		},
		func() { ds[4], errs[4] = l.Check(perID.Key("a"), 1) },
	)
	require.Equal(t, int64(1), calls)
	require.ErrorContains(t, errs[1], fmt.Sprintf("key %q has a value", foreign))
	require.ErrorContains(t, errs[2], fmt.Sprintf("key %q is no string", list))
	require.Equal(t, []error{nil, nil, nil}, []error{errs[0], errs[3], errs[4]})
	require.Equal(t, []int64{19, 0, 0, 18, 17},
		[]int64{ds[0].Remaining, ds[1].Remaining, ds[2].Remaining, ds[3].Remaining, ds[4].Remaining})
	require.Equal(t, "x", s.cli("GET", foreign))
}

// If the reply is lost, every caller of the call gets an error, and nothing is
// sent again.
func TestBatchLost(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l, g := s.exact(t)
	var errs [12]error
	var spends []func()
	for i := range errs {
		spends = append(spends, func() { _, errs[i] = l.Spend(perID.Key("a"), 1) })
	}
	g.lose = l.opts.keyOf(perID.Key("a"))
	require.Equal(t, int64(1), g.together(t, l, spends...))
	g.lose = ""
	for _, err := range errs {
		require.ErrorIs(t, err, ErrNoAnswer)
	}
	l.comesBack(t)
	require.Equal(t, int64(8), l.left(t, perID.Key("a")))
}

// If the server refuses the request of one caller, the other callers of the call
// get their answers.
func TestBatchRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l, g := s.exact(t)
	l.spend(t, perID.Key("a"), 5)
	s.cli("CONFIG", "SET", "maxmemory", "1")
	var errs [4]error
	var ds [4]stint.Decision
	calls := g.together(t, l,
		func() { ds[0], errs[0] = l.Spend(perID.Key("a"), 1) },
		func() { ds[1], errs[1] = l.Check(perID.Key("a"), 1) },
		func() { ds[2], errs[2] = l.Refund(perID.Key("a").Cost(5).SpentAt(inFuture)) },
		func() { ds[3], errs[3] = l.Spend(perID.Key("b"), 1) },
	)
	require.Equal(t, int64(5), calls, "together, and then each by itself")
	require.ErrorContains(t, errs[0], "OOM")
	require.NoError(t, errs[1])
	require.NoError(t, errs[2])
	require.ErrorContains(t, errs[3], "OOM")
	s.cli("CONFIG", "SET", "maxmemory", "0")
	require.Equal(t, int64(20), l.left(t, perID.Key("a")))
}

// plainCluster is a Client of a cluster that does not say that it is one.
type plainCluster struct {
	Client
	refused atomic.Int64
}

func (c *plainCluster) refuses(keys []string) error {
	for _, key := range keys {
		if script.Slot(key) != script.Slot(keys[0]) {
			c.refused.Add(1)
			return ServerError("CROSSSLOT Keys in request don't hash to the same slot")
		}
	}
	return nil
}

// The Limiter learns that the server is a cluster from the first call with keys
// of several slots. No caller notices.
func TestBatchCrossSlot(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l, g := s.exact(t)
	c := &plainCluster{Client: g}
	g.wrap.Store(c)
	var spends []func()
	for i := range 10 {
		spends = append(spends, func() {
			d, err := l.Spend(perID.Key(fmt.Sprint(i/2)), 1)
			if err != nil || !d.Allowed {
				t.Error(d, err)
			}
		}, func() {
			d, err := l.SpendAll(stint.Request{Key: perID.Key(fmt.Sprint(i)), Cost: 1},
				stint.Request{Key: other.Key("x" + fmt.Sprint(i)), Cost: 1})
			if err != nil || !d.Allowed {
				t.Error(d, err)
			}
		})
	}
	g.together(t, l, spends...)
	require.True(t, l.server.IsCluster())
	require.Positive(t, c.refused.Load())
	for i := range 10 {
		b, err := l.Bucket(perID.Key(fmt.Sprint(i)))
		require.NoError(t, err)
		want := int64(19)
		if i < 5 {
			want = 17
		}
		require.Equal(t, want, b.Remaining)
	}
}

// In a cluster, callers share calls of one slot, and do not wait for calls of
// another.
func TestBatchSlots(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l, g := s.exact(t)
	l.server.SetCluster(true) // one server takes keys of any slots
	a, b := perID.Key("a"), perID.Key("b")
	goOn := make(chan struct{})
	g.holds.Store(l.opts.keyOf(a), goOn)
	before, held := g.calls.Load(), g.held.Load()
	var running sync.WaitGroup
	spend := func(key stint.Key) {
		if _, err := l.Spend(key, 1); err != nil {
			t.Error(err)
		}
	}
	for i := range script.MinCalls {
		running.Go(func() { spend(a) })
		until(func() bool { return g.held.Load() == held+int64(i)+1 })
	}
	for i := range 3 {
		running.Go(func() { spend(a) })
		until(func() bool { return l.server.Waiting() == i+1 })
	}
	var ended atomic.Bool
	running.Go(func() {
		spend(b)
		ended.Store(true)
	})
	until(func() bool { return l.server.Waiting() > 3 || ended.Load() })
	if !ended.Load() {
		t.Error("a caller waits for calls of another slot")
	}
	goOn <- struct{}{} // one call ends: if two did, each could let a waiting caller lead
	until(func() bool { return l.server.Waiting() == 0 })
	close(goOn)
	running.Wait()
	require.Equal(t, before+script.MinCalls+2, g.calls.Load())
}

// slow is a server that takes its time, by the clock of the test.
type slow struct {
	takes time.Duration
	calls int
	mu    sync.Mutex
}

func (c *slow) Eval(ctx context.Context, _, _ string, keys, _ []string) (any, error) {
	c.mu.Lock()
	c.calls++
	takes := c.takes
	c.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return "1700000000 0" + strings.Repeat(" 1 1700000000 0 0 0 0 0", len(keys)), nil
}

func (c *slow) Do(_ context.Context, args ...string) (any, error) {
	if args[0] == "INFO" {
		return "redis_mode:standalone", nil
	}
	return []any{"1700000000", "0"}, nil
}

func (c *slow) Close() {}

// No call takes longer than its Timeout, however many calls wait before it.
func TestBatchTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &slow{takes: 30 * time.Millisecond}
		const timeout = 100 * time.Millisecond
		l := newOn(t, c, testLimits(t, stint.PerHour(20)), Options{Timeout: timeout, RepeatDenials: -1})
		var away atomic.Int64 // calls that were not sent because the server is away
		// check lets callers arrive, and compares how many calls were decided,
		// were not sent and had no answer.
		check := func(want [3]int, callers int, every time.Duration, calls int) (got [3]int) {
			t.Helper()
			var mu sync.Mutex
			spend := func(i int) {
				begin := time.Now()
				_, err := l.Spend(perID.Key(fmt.Sprint(i)), 1)
				took := time.Since(begin)
				mu.Lock()
				defer mu.Unlock()
				if took > timeout {
					t.Errorf("a call took %v", took)
				}
				switch {
				case err == nil:
					got[0]++
				case errors.Is(err, ErrBusy):
					got[1]++
				case errors.Is(err, ErrAway):
					got[1]++
					away.Add(1)
				case errors.Is(err, ErrNoAnswer):
					got[2]++
				default:
					t.Error(err)
				}
			}
			var running sync.WaitGroup
			for i := range callers {
				running.Go(func() {
					time.Sleep(time.Duration(i) * every)
					for range max(1, calls) {
						spend(i)
					}
				})
			}
			running.Wait()
			if calls == 1 {
				require.Equal(t, want, got)
			}
			return got
		}
		check([3]int{500, 0, 0}, 500, time.Millisecond, 1)
		require.Less(t, c.calls, 450, "callers that come a millisecond apart share calls")

		// Two callers begin calls, and each 64 after them another, up to 32. At 30 ms the
		// others share two more.
		check([3]int{1000, 0, 0}, 1000, 0, 1)
		// When 32 calls are under way, the next ones take up to 256 callers. At 60 ms all
		// callers that are left have less than half of their time.
		got := check([3]int{}, 30_000, 0, 0)
		require.Zero(t, got[2])
		require.Greater(t, got[0], 6000)
		require.LessOrEqual(t, got[0], 2*32*256, "the calls and their size are bounded")
		require.False(t, l.isAway(), "the server answers")
		require.Zero(t, away.Load(), "these calls are ErrBusy")
		check([3]int{1, 0, 0}, 1, 0, 1)

		take := func(d time.Duration) { // a probe may read it
			c.mu.Lock()
			defer c.mu.Unlock()
			c.takes = d
		}
		take(time.Hour)
		got = check([3]int{}, 500, 0, 0)
		require.Zero(t, got[0])
		require.False(t, l.isAway(), "it may be slow")
		time.Sleep(timeout)
		synctest.Wait()
		require.True(t, l.isAway(), "neither callers nor a probe had an answer")
		check([3]int{0, 1000, 0}, 1000, 0, 1)
		take(time.Millisecond)
		time.Sleep(time.Second)
		check([3]int{10, 0, 0}, 10, 0, 1)

		for _, takes := range []time.Duration{time.Hour, 90 * time.Millisecond, 60 * time.Millisecond} {
			take(takes)
			check([3]int{}, 100, time.Millisecond, 20) // callers that come back at once
		}
	})
}
