package redislimit

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// Over many outages the server decides as a Limiter in memory that has none, and
// while it is away, Options.Away decides as a second one: nothing that one of them
// has spent is charged to the other.
func TestOutageHistory(t *testing.T) {
	t.Parallel()
	clock, limit, share := newTestClock(), stint.PerMinute(6), stint.PerMinute(6).DividedBy(2)
	shares := testLimits(t, share)
	l, cut := newAway(t, limit, Options{Now: clock.now, RepeatDenials: -1, Away: ownOf(t, shares, clock.now)})
	there, away := bothOf(t, 9, clock, l, testLimits(t, limit)), bothOf(t, 10, clock, l, shares)
	for range testlength.Of(400, 40) {
		for range there.rnd.IntN(20) {
			there.decide(share.Burst, true)
		}
		cut.fail(errCut)
		for range away.rnd.IntN(40) {
			away.decide(share.Burst, false)
		}
		if l.isAway() {
			for _, key := range away.keys {
				away.sameBucket(key)
			}
		}
		cut.mend()
		l.comesBack(t)
		for _, key := range there.keys {
			there.sameBucket(key)
		}
	}
	t.Logf("%d decisions of Options.Away, %d outages", l.Stats().AwayDecisions, l.Stats().Outages)
	require.Greater(t, l.Stats().AwayDecisions, int64(500))
}

// decide passes some time, and compares a random decision, for at most most tokens.
// While the server is away, a Reset is an error.
func (b *both) decide(most int64, resets bool) {
	b.Helper()
	scale := []time.Duration{0, time.Microsecond, time.Second, 20 * time.Second}[b.rnd.IntN(4)]
	if b.rnd.IntN(50) == 0 {
		scale = time.Hour
	}
	b.clock.pass(time.Duration(b.rnd.ExpFloat64() * float64(scale)))
	reqs := []stint.Request{b.request(true)}
	for range b.rnd.IntN(3) {
		reqs = append(reqs, b.request(true))
	}
	for i := range reqs {
		reqs[i].Leave = min(reqs[i].Leave, most)
		reqs[i].Cost = min(reqs[i].Cost, most-reqs[i].Leave) // more is ErrCostOverBurst there, and ErrAway while it is away
	}
	var want, got stint.Decision
	var err1, err2 error
	ds1, ds2 := make([]stint.Decision, len(reqs)), make([]stint.Decision, len(reqs))
	switch n := b.rnd.IntN(8); {
	case n == 0:
		want, err1 = b.local.Check(reqs[0].Key, reqs[0].Cost)
		got, err2 = b.remote.Check(reqs[0].Key, reqs[0].Cost)
	case n == 1:
		for i := range reqs {
			reqs[i].Spent = inFuture
			if b.rnd.IntN(2) == 0 {
				reqs[i].Spent = b.clock.now().Add(-time.Duration(b.rnd.Int64N(int64(time.Minute))))
			}
		}
		want, err1 = b.local.Refund(reqs...)
		got, err2 = b.remote.Refund(reqs...)
	case n == 2 && resets && b.rnd.IntN(8) == 0:
		err1, err2 = b.local.Reset(reqs[0].Key), b.remote.Reset(reqs[0].Key)
	case n == 3:
		reqs[0].Mode = stint.UpTo
		want, err1 = b.local.Do(context.Background(), reqs[:1], ds1)
		got, err2 = b.remote.Do(context.Background(), reqs[:1], ds2)
	default:
		want, err1 = b.local.Do(context.Background(), reqs, ds1)
		got, err2 = b.remote.Do(context.Background(), reqs, ds2)
	}
	require.Equal(b, err1 == nil, err2 == nil, "%v, %v", err1, err2)
	require.Equal(b, want, got, "%+v", reqs)
	require.Equal(b, ds1, ds2, "%+v", reqs)
}

// Callers go on while the line is cut and mended again and again. The clock stands
// still. The server has spent exactly what it admitted, and Options.Away what that
// admitted.
func TestBackUnderLoad(t *testing.T) {
	t.Parallel()
	const ids, burst, share = 4, 1_000_000_000, 100_000_000 // more than they can spend
	clock := newTestClock()
	mine := own(t, stint.PerHour(share), clock.now)
	l, c := newAway(t, stint.PerHour(burst), Options{Now: clock.now, Away: mine})
	var done atomic.Bool
	var there, away [ids]atomic.Int64 // admitted
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for !done.Load() {
				id := rnd.IntN(ids)
				d, err := l.Spend(perID.Key(strconv.Itoa(id)), 1)
				switch {
				case err != nil || !d.Allowed:
					t.Error(d, err)
					return
				case d.Limit.Burst == share:
					away[id].Add(1)
				default:
					there[id].Add(1)
				}
			}
		})
	}
	more := func(of *[ids]atomic.Int64) {
		all := func() (n int64) {
			for i := range of {
				n += of[i].Load()
			}
			return n
		}
		was := all()
		require.Eventually(t, func() bool { return all() >= was+200 }, time.Minute, 50*time.Microsecond)
	}
	for range testlength.Of(60, 8) {
		more(&there)
		c.fail(errCut)
		more(&away)
		c.mend()
		l.comesBack(t)
	}
	done.Store(true)
	callers.Wait()
	for i := range ids {
		key := perID.Key(strconv.Itoa(i))
		require.Equal(t, burst-there[i].Load(), l.left(t, key))
		b, err := mine.Bucket(key)
		require.NoError(t, err)
		require.Equal(t, share-away[i].Load(), b.Remaining)
	}
}

// Outages begin and end at any time of a call. Each call is decided, by the server or
// by Options.Away.
func TestShortOutages(t *testing.T) {
	t.Parallel()
	for _, durability := range []stint.Durability{stint.Flushed, stint.Leased} {
		t.Run(durability.String(), func(t *testing.T) {
			t.Parallel()
			limit := stint.PerHour(360_000_000_000) // tokens come back faster than they can be spent
			limit.Durability = durability
			l, _ := newAway(t, limit, Options{Away: own(t, stint.PerHour(limit.Count), nil)})
			var done atomic.Bool
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					for !done.Load() {
						d, err := l.Spend(perID.Key(strconv.Itoa(i)), 1)
						if err != nil || !d.Allowed {
							t.Error(d, err)
							return
						}
					}
				})
			}
			for range testlength.Of(2_000, 200) {
				l.watch.Whole.Begin(errCut)
				l.comesBack(t)
			}
			done.Store(true)
			callers.Wait()
		})
	}
}

// interrupted is a Client with an outage during a call that spends nothing.
type interrupted struct {
	line
	outage   atomic.Pointer[func()]
	deadline atomic.Pointer[time.Time] // of the last call
}

func (c *interrupted) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	deadline, _ := ctx.Deadline()
	c.deadline.Store(&deadline)
	if outage := c.outage.Swap(nil); outage != nil {
		(*outage)()
		return nil, ServerError("TRYAGAIN the slot moves")
	}
	return c.line.Eval(ctx, command, text, keys, args)
}

// If the server goes away and comes back during a call, and the call spent
// nothing, it is made again, in what is left of its time.
func TestOutageDuringCall(t *testing.T) {
	t.Parallel()
	for _, away := range []stint.Decider{nil, own(t, stint.PerHour(5), nil)} {
		server, prefix := commonServer(t)
		client := &interrupted{line: newLine()}
		client.rueidisClient = clientAt(t, server.url, 20*time.Second)
		l := newOn(t, client, testLimits(t, stint.PerHour(10)), Options{Prefix: prefix, Away: away})
		var first time.Time
		during := func() {
			first = *client.deadline.Load()
			l.watch.Whole.Begin(errCut)
			l.comesBack(t)
		}
		client.outage.Store(&during)
		require.EqualValues(t, 9, l.spend(t, perID.Key("a"), 1).Remaining)
		require.Equal(t, first, *client.deadline.Load())
	}
}
