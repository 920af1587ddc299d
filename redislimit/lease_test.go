package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

func leasedLimit(l stint.Limit) stint.Limit {
	l.Durability = stint.Leased
	return l
}

// settled waits until no lease of the Limiter has a question under way.
func (l *Limiter) settled(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return !l.leases.Busy() }, 20*time.Second, 100*time.Microsecond)
}

// inHand returns the tokens of a bucket that the node may use without a trip.
func (l *Limiter) inHand(key stint.Key) int64 {
	limit := l.Limits().For(key)
	r := script.Request{Bucket: key, Limit: limit, Cost: math.MaxInt64, Need: math.MaxInt64}
	l.leases.Check(&r)
	return (math.MaxInt64 - r.Need) / int64(limit.Interval())
}

// leaseNode returns a node that has leases and uses the prefix.
func leaseNode(t *testing.T, clock *testClock, prefix string, limit stint.Limit) (*Limiter, *counter) {
	t.Helper()
	return newCounted(t, leasedLimit(limit), func(o *Options) {
		o.Now, o.Prefix, o.MaxLease = clock.now, prefix, time.Hour
	})
}

// While no other node spends, leases change no decision.
func TestLeasedAlone(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, c := leaseNode(t, clock, newPrefix(t), stint.PerHour(800))
	key := perID.Key("a")
	before := c.calls.Load()
	for i := range int64(800) {
		d := l.spend(t, key, 1)
		want := stint.Decision{Allowed: true, Taken: 1, Key: key, Limit: leasedLimit(stint.PerHour(800)),
			Remaining: 799 - i, ResetAfter: time.Duration(i+1) * time.Hour / 800}
		want.SetAt(clock.now())
		require.Equal(t, want, d)
		l.settled(t)
		require.LessOrEqual(t, l.inHand(key), int64(100), "an eighth")
	}
	trips := c.calls.Load() - before
	t.Logf("%d trips for 800 decisions", trips)
	require.Less(t, trips, int64(80))
	d := l.spend(t, key, 1)
	require.False(t, d.Allowed)
	require.Equal(t, time.Hour/800, d.RetryAfter)
	require.Equal(t, time.Hour, d.ResetAfter)
	before = c.calls.Load()
	require.Equal(t, 2*time.Hour/800, l.spend(t, key, 2).RetryAfter)
	require.Equal(t, before, c.calls.Load(), "a denial is repeated without a trip")
}

// Together, nodes with leases never have more than the burst. Close returns the
// tokens that they have not used.
func TestLeasedNodes(t *testing.T) {
	t.Parallel()
	clock, prefix := newTestClock(), newPrefix(t)
	key, used := perID.Key("a"), int64(0)
	var nodes []*Limiter
	for range 4 {
		l, _ := leaseNode(t, clock, prefix, stint.PerHour(1000))
		nodes = append(nodes, l)
	}
	for i := range 600 {
		if nodes[i%4].spend(t, key, int64(i%3)).Allowed {
			used += int64(i % 3)
		}
	}
	require.Equal(t, int64(600), used)
	for i, n := range nodes {
		n.settled(t)
		if i > 0 {
			require.NoError(t, n.Close())
		}
		_, err := n.Spend(key, 1)
		require.Equal(t, i > 0, errors.Is(err, stint.ErrClosed))
		if i == 0 {
			used++
		}
	}
	nodes[0].settled(t)
	require.Equal(t, 1000-used-nodes[0].inHand(key), nodes[0].left(t, key))
	d := nodes[0].spend(t, key, 1000-used)
	require.True(t, d.Allowed, "a call that needs more than the lease hands it back")
	require.Zero(t, d.Remaining)
	require.Zero(t, nodes[0].inHand(key))
	require.False(t, nodes[0].spend(t, key, 1).Allowed)
}

// fill spends until the node has a lease of some tokens. It returns what it
// spent.
func (l *Limiter) fill(t *testing.T, key stint.Key, tokens int64) (used int64) {
	t.Helper()
	for ; l.inHand(key) < tokens; used++ {
		require.True(t, l.spend(t, key, 1).Allowed)
		l.settled(t)
	}
	return used
}

// A lease ends after MaxLease at the latest. Its unused tokens then go back, less
// those that have come back by themselves.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l := newLimiter(t, leasedLimit(stint.PerHour(3600)), func(o *Options) {
		o.Now, o.MaxLease = clock.now, 5*time.Second
	})
	key := perID.Key("a")
	used := l.fill(t, key, 200)
	hand := l.inHand(key)
	require.Equal(t, 3600-used-hand, l.left(t, key))
	l.leases.GiveBack(false)
	require.Equal(t, hand, l.inHand(key), "it has not ended")
	clock.pass(5*time.Second - 1)
	require.Equal(t, hand, l.inHand(key))
	clock.pass(1)
	require.Zero(t, l.inHand(key))
	require.Equal(t, 3600-used-hand+5, l.left(t, key), "five are back by time")
	l.leases.GiveBack(false)
	left := l.left(t, key)
	require.LessOrEqual(t, left, 3600-used+5)
	require.GreaterOrEqual(t, left, 3600-used)
	l.leases.GiveBack(true)
	require.Equal(t, left, l.left(t, key), "nothing goes back twice")
}

// SpendAll takes from the leases if each bucket has one, and from all or none.
func TestLeasedTogether(t *testing.T) {
	t.Parallel()
	clock, prefix := newTestClock(), newPrefix(t)
	l, c := leaseNode(t, clock, prefix, stint.PerHour(1000))
	a, b := perID.Key("a"), everyone.Key("")
	reqs := []stint.Request{{Key: a, Cost: 2}, {Key: b, Cost: 1}, {Key: perID.Key("c"), Cost: 1, Mode: stint.CheckOnly}}
	used := int64(0)
	for range 20 {
		require.True(t, l.spendAll(t, reqs...).Allowed)
		used++
		l.settled(t)
	}
	l.fill(t, perID.Key("c"), 10)
	spentA, spentB := 2*used+l.fill(t, a, 60), used+l.fill(t, b, 60)
	before := c.calls.Load()
	ds := make([]stint.Decision, 3)
	for range 10 {
		d, err := l.Do(context.Background(), reqs, ds)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, b.Name, ds[1].Key.Name)
	}
	require.Equal(t, before, c.calls.Load(), "no trip")
	spentA, spentB = spentA+20, spentB+10
	require.Equal(t, []int64{1000 - spentA, 1000 - spentB}, []int64{ds[0].Remaining, ds[1].Remaining})
	handA, handB := l.inHand(a), l.inHand(b)
	require.False(t, l.spendAll(t, stint.Request{Key: a, Cost: 1}, stint.Request{Key: b, Cost: 1000}).Allowed)
	l.settled(t)
	require.Equal(t, handA, l.inHand(a), "from none")
	require.GreaterOrEqual(t, l.inHand(b), handB)
	require.NoError(t, l.Close())
	after, _ := leaseNode(t, clock, prefix, stint.PerHour(1000))
	require.Equal(t, []int64{1000 - spentA, 1000 - spentB}, []int64{after.left(t, a), after.left(t, b)})
}

// Check, Refund, Reset and Hold of a bucket with a lease.
func TestLeasedOthers(t *testing.T) {
	t.Parallel()
	clock, prefix := newTestClock(), newPrefix(t)
	l, c := leaseNode(t, clock, prefix, stint.PerHour(1000))
	peer, _ := leaseNode(t, clock, prefix, stint.PerHour(1000))
	key := perID.Key("a")
	used := l.fill(t, key, 50)
	before := c.calls.Load()
	d := l.check(t, key, 50)
	require.True(t, d.Allowed)
	require.Equal(t, before, c.calls.Load(), "no trip")
	spent := l.spend(t, key, 50)
	require.EqualValues(t, 50, spent.Taken)
	spent.Taken = 0
	require.Equal(t, spent, d)
	l.settled(t)
	used += 50
	require.Equal(t, 1000-used, d.Remaining)
	require.True(t, l.check(t, key, 1000-used).Allowed, "the server and the lease together have them")
	require.False(t, l.check(t, key, 1001-used).Allowed)
	hand := l.inHand(key)
	l.refund(t, key.Cost(5).SpentAt(inFuture))
	require.Equal(t, 1000-used-hand+5, l.left(t, key))
	require.Equal(t, hand, l.inHand(key))

	require.NoError(t, errorOf(l.Hold(key, clock.now().Add(time.Minute))))
	require.Zero(t, l.inHand(key))
	d = l.spend(t, key, 1)
	require.Equal(t, []any{false, time.Minute}, []any{d.Allowed, d.RetryAfter})
	eventually(t, "the lease goes back", func() bool { return l.left(t, key) >= 1000-used+5 })
	require.NoError(t, l.Reset(key))
	require.Equal(t, int64(1000), l.left(t, key))

	// Another node notices at its next question, and then gives its lease back.
	l.fill(t, key, 50)
	require.NoError(t, errorOf(peer.Hold(key, clock.now().Add(time.Minute))))
	notices := int64(0)
	for ; ; notices++ {
		d := l.spend(t, key, 1)
		l.settled(t)
		if !d.Allowed {
			break
		}
	}
	require.LessOrEqual(t, notices, int64(125))
	require.Zero(t, l.inHand(key))
	require.NoError(t, l.Reset(key))
	l.fill(t, key, 50)
	require.NoError(t, l.Reset(key))
	require.Zero(t, l.inHand(key))
	l.leases.GiveBack(true)
	require.Equal(t, int64(1000), l.left(t, key))
}

// A lease that a Reset ends gives nothing back: its bucket is full, and what others
// spend after that is not the lease's.
func TestLeasedReset(t *testing.T) {
	t.Parallel()
	l, h, clock := hookedLimiter(t, leasedLimit(stint.PerHour(1000)))
	peer, _ := leaseNode(t, clock, l.opts.Prefix, stint.PerHour(1000))
	key := perID.Key("a")
	l.fill(t, key, 50)
	var d stint.Decision
	spendAll := sync.OnceFunc(func() { d, _ = peer.Spend(key, 1000) })
	h.before = func(op script.Op) {
		if op == "" { // of a lease
			spendAll()
		}
	}
	require.NoError(t, l.Reset(key))
	require.NoError(t, l.Close())
	spendAll()
	require.True(t, d.Allowed)
	require.Zero(t, peer.left(t, key))
}

// With other limits in force the old leases are dropped. A request's own limit
// has no lease, and neither has a limit with a small burst.
func TestLeasedLimits(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, c := leaseNode(t, clock, newPrefix(t), stint.PerHour(1000))
	key := perID.Key("a")
	l.fill(t, key, 50)
	require.NoError(t, l.SetLimits(l.Limits()))
	require.Positive(t, l.inHand(key))
	before := l.left(t, key)
	require.True(t, l.spendAll(t, stint.Request{Key: key, Cost: 1, Limit: leasedLimit(stint.PerHour(2000))}).Allowed)
	require.Less(t, l.left(t, key), before)
	clock.pass(time.Microsecond)
	require.NoError(t, l.SetLimits(testLimits(t, leasedLimit(stint.PerHour(500)))))
	require.Zero(t, l.inHand(key))
	l.fill(t, key, 5)
	require.NoError(t, l.SetLimits(testLimits(t, stint.Blocked)))
	require.False(t, l.spend(t, key, 1).Allowed)

	require.NoError(t, l.SetLimits(testLimits(t, leasedLimit(stint.PerHour(7)))))
	calls := c.calls.Load()
	for range 7 {
		l.spend(t, perID.Key("small"), 1)
	}
	require.Equal(t, int64(7), c.calls.Load()-calls)
	_, err := Open("redis://127.0.0.1:1", l.Limits(), &Options{MaxLease: -1})
	require.ErrorContains(t, err, "Options.MaxLease is -1ns")
}

// The shortest lease is as good as none.
func TestShortestLease(t *testing.T) {
	t.Parallel()
	l, _ := newCounted(t, leasedLimit(stint.PerHour(1000)), func(o *Options) { o.MaxLease, o.Now = 1, newTestClock().now })
	for i := range int64(20) {
		require.Equal(t, 999-i, l.spend(t, perID.Key("a"), 1).Remaining)
		l.settled(t)
	}
}

// Callers that find no tokens share a trip.
func TestLeasedCallersShare(t *testing.T) {
	t.Parallel()
	l, c := newCounted(t, leasedLimit(stint.PerHour(100_000)), nil)
	before := c.calls.Load()
	var callers sync.WaitGroup
	var allowed atomic.Int64
	for range 64 {
		callers.Go(func() {
			for range 50 {
				d, err := l.Spend(perID.Key("a"), 1)
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	require.Equal(t, int64(3200), allowed.Load())
	trips := c.calls.Load() - before
	t.Logf("%d trips for 3200 decisions of 64 callers", trips)
	require.Less(t, trips, int64(320))
}

// Close gives back the leases of many buckets, of any slots of a cluster.
func TestLeasesGoBack(t *testing.T) {
	t.Parallel()
	for _, cluster := range []bool{false, true} {
		clock, prefix := newTestClock(), newPrefix(t)
		l, _ := leaseNode(t, clock, prefix, stint.PerHour(1000))
		l.server.SetCluster(cluster) // one server takes keys of any slots
		used := make(map[stint.Key]int64)
		for i := range 150 {
			key := perID.Key(fmt.Sprint(i))
			used[key] = l.fill(t, key, 4)
		}
		require.NoError(t, l.Close())
		after, _ := leaseNode(t, clock, prefix, stint.PerHour(1000))
		for key, n := range used {
			require.Equal(t, 1000-n, after.left(t, key))
		}
	}
}
