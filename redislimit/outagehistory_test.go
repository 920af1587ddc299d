package redislimit

import (
	"context"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// A single node decides over many outages as a Limiter in memory that has none.
// While the server is away, its home flushes, and other buckets take its memory.
func TestOutageHistory(t *testing.T) {
	t.Parallel()
	outages := testlength.Of(200, 20)
	for name, local := range map[string]string{"memory": "", "file": filepath.Join(t.TempDir(), "local.db")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, limit := newTestClock(), stint.PerMinute(5)
			l, cut := newAway(t, limit, Options{Nodes: 1, Now: clock.now, RepeatDenials: -1, Local: local,
				LocalOptions: stint.Options{MaxResident: 256, CommitTimeout: time.Minute}})
			b := bothOf(t, 9, clock, l, testLimits(t, limit))
			for range outages {
				for range b.rnd.IntN(20) {
					b.decide(mayGive)
				}
				cut.fail(errCut)
				for range b.rnd.IntN(40) {
					b.decide(mayTake)
					switch b.rnd.IntN(20) {
					case 0:
						require.NoError(t, b.remote.node.Local.Flush())
					case 1:
						if local != "" { // without a file seen buckets are forgotten
							b.crowd()
						}
					}
				}
				cut.mend()
				b.remote.comesBack(t)
				for _, key := range b.keys {
					b.sameBucket(key)
				}
			}
			st := b.remote.Stats()
			t.Logf("%d decisions here, %d buckets charged, %d evicted", st.AwayShare, st.Charged, st.Local.Evictions)
			require.Positive(t, st.Charged)
			require.Equal(t, local != "", st.Local.Evictions > 0)
		})
	}
}

// What decide may draw. While the server is away, a Reset is an error, and a
// refund gives back at most what this machine has spent since.
const (
	mayTake   = iota // checks and spends
	mayRefund        // and refunds
	mayGive          // and resets
)

// decide passes some time, and compares a random decision.
func (b *both) decide(may int) {
	b.Helper()
	scale := []time.Duration{0, time.Microsecond, time.Second, 20 * time.Second}[b.rnd.IntN(4)]
	if b.rnd.IntN(50) == 0 {
		scale = time.Hour
	}
	b.clock.pass(time.Duration(b.rnd.ExpFloat64() * float64(scale)))
	reqs := []stint.Request{b.request(false)}
	for range b.rnd.IntN(3) {
		reqs = append(reqs, b.request(false))
	}
	var want, got stint.Decision
	var err1, err2 error
	ds1, ds2 := make([]stint.Decision, len(reqs)), make([]stint.Decision, len(reqs))
	switch n := b.rnd.IntN(6); {
	case n == 0:
		want, err1 = b.local.Check(reqs[0].Key, reqs[0].Cost)
		got, err2 = b.remote.Check(reqs[0].Key, reqs[0].Cost)
	case n == 1 && may >= mayRefund:
		want, err1 = b.local.Refund(reqs[0].Key.Cost(reqs[0].Cost).SpentAt(stint.JustSpent))
		got, err2 = b.remote.Refund(reqs[0].Key.Cost(reqs[0].Cost).SpentAt(stint.JustSpent))
	case n == 2 && may >= mayGive && b.rnd.IntN(8) == 0:
		err1, err2 = b.local.Reset(reqs[0].Key), b.remote.Reset(reqs[0].Key)
	default:
		want, err1 = b.local.Do(context.Background(), reqs, ds1)
		got, err2 = b.remote.Do(context.Background(), reqs, ds2)
	}
	require.Equal(b, err1 == nil, err2 == nil, "%v, %v", err1, err2)
	require.Equal(b, want, got, "%+v", reqs)
	require.Equal(b, ds1, ds2, "%+v", reqs)
}

// crowd makes buckets leave the memory of the home, into its file.
func (b *both) crowd() {
	b.Helper()
	for i := range 600 {
		_, err := b.remote.node.Local.Raise(stint.Request{Key: perID.Key("crowd" + strconv.Itoa(i)),
			Limit: stint.Limit{Burst: 1, Count: 1, Period: script.MaxTolerance, Durability: stint.Flushed}},
			b.clock.now().Add(time.Minute))
		require.NoError(b, err)
	}
}

// A refund does not end a hold on this machine.
func TestRefundLeavesHold(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, c := newAway(t, stint.PerHour(10), Options{Nodes: 1, Now: clock.now, RepeatDenials: -1})
	key := perID.Key("a")
	l.spend(t, key, 5)
	c.fail(errCut)
	l.check(t, key, 1)
	c.mend()
	l.comesBack(t)
	require.NoError(t, errorOf(l.Hold(key, clock.now().Add(time.Hour))))
	require.Eventually(t, func() bool {
		b, err := l.node.Local.Bucket(away.OwnKey(key))
		return err == nil && !b.HeldUntil.IsZero()
	}, time.Minute, time.Millisecond)
	l.refund(t, key.Cost(3).SpentAt(stint.JustSpent))
	c.fail(errCut)
	require.Equal(t, time.Hour, l.spend(t, key, 1).RetryAfter)
	require.EqualValues(t, 8, l.left(t, key))
	c.mend()
	l.comesBack(t)
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
	for _, nodes := range []int{0, 2} {
		server, prefix := commonServer(t)
		client := &interrupted{line: newLine()}
		client.rueidisClient = clientAt(t, server.url, 20*time.Second)
		l := newOn(t, client, testLimits(t, stint.PerHour(10)), Options{Prefix: prefix, Nodes: nodes})
		var first time.Time
		during := func() {
			first = *client.deadline.Load()
			l.node.Whole.Begin(errCut)
			l.comesBack(t)
		}
		client.outage.Store(&during)
		require.EqualValues(t, 9, l.spend(t, perID.Key("a"), 1).Remaining)
		require.Equal(t, first, *client.deadline.Load())
	}
}
