package redislimit

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// If a reply is lost after the script ran, the error is ErrNoAnswer, and the
// spend is not sent again. A proxy cuts the connection in place of each reply.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	n := testlength.Of[int64](10_000, 300)
	s := startServer(t)
	p := newProxy(t, s)
	limits := testLimits(t, stint.Limit{Burst: n, Count: 1, Period: time.Hour})
	l := openAt(t, p.url, limits, Options{})
	l.check(t, perID.Key("a"), 1)
	for range n {
		p.cut.Store(true)
		_, err := l.Spend(perID.Key("a"), 1)
		require.ErrorIs(t, err, ErrNoAnswer)
		require.NotErrorIs(t, err, ErrAway)
		require.False(t, p.cut.Load(), "the proxy saw the reply, so the script ran")
		l.comesBack(t)
	}
	require.Zero(t, l.left(t, perID.Key("a")))
	require.Equal(t, n+3, s.scripts(), "with that of Open, the Check and the Bucket")
}

// If the slot of one bucket denies or fails, the tokens spent in other slots are
// returned.
func TestUndo(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l := newLimiter(t, stint.PerHour(4), func(o *Options) { o.Now = clock.now })
	l.server.SetCluster(true) // one server takes keys of any slots
	a, b, c := perID.Key("a"), perID.Key("b"), perID.Key("c")
	left := func(key stint.Key) int64 { return l.left(t, key) }
	l.spend(t, b, 4)
	ds := make([]stint.Decision, 3)
	d, err := l.Do(context.Background(), []stint.Request{
		{Key: a, Cost: 2}, {Key: b, Cost: 1}, {Key: c, Mode: stint.SpendOnly, Cost: 3},
	}, ds)
	require.NoError(t, err)
	require.Equal(t, b, d.Key)
	require.False(t, d.Allowed)
	require.Equal(t, []bool{true, false, true}, []bool{ds[0].Allowed, ds[1].Allowed, ds[2].Allowed})
	require.Eventually(t, func() bool { return left(a) == 4 && left(c) == 4 }, 10*time.Second, time.Millisecond)
	require.Zero(t, left(b))

	d = l.spendAll(t, stint.Request{Key: a, Cost: 2}, stint.Request{Key: c, Cost: 3})
	require.True(t, d.Allowed)
	require.Equal(t, c, d.Key)
	require.Equal(t, []int64{2, 1}, []int64{left(a), left(c)})

	l.opts.Atomic = true
	_, err = l.SpendAll(stint.Request{Key: a, Cost: 1}, stint.Request{Key: c, Cost: 1})
	require.ErrorIs(t, err, ErrCrossSlot)
	require.Equal(t, []int64{2, 1}, []int64{left(a), left(c)})
	d, err = l.SpendAll(stint.Request{Key: a, Cost: 1}, stint.Request{Key: other.Key("a"), Cost: 1})
	require.NoError(t, err)
	require.True(t, d.Allowed, "all limits on one id are in one slot")
}

// An undo returns all tokens, at the server or to Options.Away, except those that have
// come back by themselves: all were taken at 0:00 and are back an hour later, when
// another call takes them.
func TestLateUndo(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"at the server": false, "away": true} {
		for _, pass := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(name, " after ", pass), func(t *testing.T) {
				t.Parallel()
				clock, limit := newTestClock(), stint.PerHour(4)
				mine := own(t, limit, clock.now)
				l, c := newAway(t, limit, Options{Now: clock.now, RepeatDenials: -1, Away: mine})
				if away {
					c.fail(errCut)
				}
				trips := l.spendTogether(t, 4, "a")
				clock.pass(pass)
				require.Equal(t, pass > 0, l.spend(t, perID.Key("a"), 4).Allowed)
				l.undo(trips)
				require.NoError(t, l.Close())
				if !away {
					l = c.node(t, testLimits(t, limit), Options{Prefix: l.opts.Prefix, Now: clock.now})
					require.Equal(t, pass == 0, l.left(t, perID.Key("a")) == 4)
					return
				}
				d, err := mine.Check(perID.Key("a"), 0)
				require.NoError(t, err)
				require.Equal(t, pass == 0, d.Remaining == 4, d.Remaining)
			})
		}
	}
}

// spendTogether spends as SpendAll does, but leaves the outcome to the caller.
func (l *Limiter) spendTogether(t *testing.T, cost int64, ids ...string) []*script.Trip {
	t.Helper()
	var asks []*script.Request
	for _, id := range ids {
		r, err := l.request(l.inForce.Load(), &stint.Request{Key: perID.Key(id), Cost: cost}, script.Spend)
		require.NoError(t, err)
		asks = append(asks, &r)
	}
	trips := l.trips(script.Spend, asks, time.Now())
	l.carryOutAll(t.Context(), trips)
	for _, trip := range trips {
		require.NoError(t, trip.Err)
	}
	return trips
}

// Synced waits for a replica. If there is none, the error is ErrNotDurable.
func TestSynced(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	primary := startServer(t, "--port", port, "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
	limits := testLimits(t, stint.PerHour(1000))
	l := primary.limiter(t, limits, func(o *Options) { o.Durability, o.Timeout = stint.Synced, 2*time.Second })
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), stint.ErrNotDurable)
	replica := startServer(t, "--replicaof", "127.0.0.1 "+port)
	require.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(replica.cli("INFO", "replication")), "master_link_status:up")
	}, 20*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := l.Spend(perID.Key("b"), 1)
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	require.NotNil(t, replica.cli("GET", l.opts.keyOf(perID.Key("b"))))
	d := l.spendAll(t, stint.Request{Key: perID.Key("c"), Cost: 1}, stint.Request{Key: other.Key("c"), Cost: 1})
	require.True(t, d.Allowed)
	require.NotNil(t, replica.cli("GET", l.opts.keyOf(other.Key("c"))))

	// A failover to the replica forgets nothing that was answered.
	answered := int64(0)
	for range 200 {
		if d, err := l.Spend(everyone.Key(""), 1); err == nil && d.Allowed {
			answered++
		}
	}
	require.Positive(t, answered)
	primary.kill()
	replica.cli("REPLICAOF", "NO", "ONE")
	after := replica.limiter(t, limits, nil)
	require.LessOrEqual(t, after.left(t, everyone.Key("")), 1000-answered)
}

// Wait spends as soon as the tokens are there, and fails if it cannot.
func TestWait(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, stint.Limit{Burst: 1, Count: 100, Period: time.Second}, nil)
	for range 5 {
		require.NoError(t, errorOf(l.Wait(t.Context(), perID.Key("a").Cost(1))))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.spend(t, other.Key("a"), 7)
	require.ErrorIs(t, errorOf(l.Wait(ctx, other.Key("a").Cost(7))), context.DeadlineExceeded)
	require.ErrorIs(t, errorOf(l.Wait(ctx, shut.Key("a").Cost(1))), stint.ErrBlocked)
	cancel()
	require.ErrorIs(t, errorOf(l.Wait(ctx, perID.Key("a").Cost(1))), context.Canceled)
	done := make(chan error)
	go func() { done <- errorOf(l.Wait(context.Background(), other.Key("a").Cost(7))) }()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-done, stint.ErrClosed)
}

const processEnv = "REDISLIMIT_TEST_PROCESS"

// Several processes that share one bucket admit at most what its limit allows.
func TestProcesses(t *testing.T) {
	limit := stint.Limit{Burst: 50, Count: 2000, Period: time.Second}
	if url := os.Getenv(processEnv); url != "" {
		processOf(t, url, limit)
		return
	}
	t.Parallel()
	run := time.Second
	if testlength.Long {
		run = 30 * time.Second
	}
	s := startServer(t)
	l := s.limiter(t, testLimits(t, limit), nil)
	l.check(t, perID.Key("a"), 1)
	begin := l.Now()
	var processes sync.WaitGroup
	var admitted atomic.Int64
	for range 4 {
		processes.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestProcesses$", "-test.v")
			cmd.Env = append(os.Environ(), processEnv+"="+s.url, "REDISLIMIT_TEST_RUN="+run.String())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Error(err, string(out))
			}
			_, text, _ := strings.Cut(string(out), "admitted=")
			n, err := strconv.ParseInt(strings.Fields(text + " x")[0], 10, 64)
			if err != nil {
				t.Error(err, string(out))
			}
			admitted.Add(n)
		})
	}
	processes.Wait()
	l.check(t, other.Key("b"), 1)                      // reads the server's time
	elapsed := l.Now().Sub(begin) + 5*time.Millisecond // the error of Now
	most := limit.Burst + int64(elapsed/limit.Interval())
	t.Logf("admitted %d of at most %d in %v: %.2f %%", admitted.Load(), most, elapsed,
		100*float64(admitted.Load())/float64(most))
	require.LessOrEqual(t, admitted.Load(), most)
	require.Positive(t, admitted.Load())
}

func processOf(t *testing.T, url string, limit stint.Limit) {
	run, err := time.ParseDuration(os.Getenv("REDISLIMIT_TEST_RUN"))
	require.NoError(t, err)
	l := openAt(t, url, testLimits(t, limit), Options{RepeatDenials: -1})
	ctx, cancel := context.WithTimeout(t.Context(), run)
	defer cancel()
	var callers sync.WaitGroup
	var admitted atomic.Int64
	for range 16 {
		callers.Go(func() {
			for ctx.Err() == nil {
				d, err := l.Spend(perID.Key("a"), 1)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	callers.Wait()
	fmt.Printf("admitted=%d \n", admitted.Load())
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
