package redislimit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// A lease lasts while the server is away. If the reply to a question is lost, so
// are the tokens: they stay spent and are not used.
func TestLeasedAway(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, c := newAway(t, leasedLimit(stint.PerHour(1000)), Options{Now: clock.now})
	key := perID.Key("a")
	used := l.fill(t, key, 50)
	c.fail(errCut)
	hand := l.inHand(key)
	require.ErrorIs(t, errorOf(l.Spend(key, 500)), ErrAway)
	require.ErrorIs(t, errorOf(l.Hold(key, clock.now().Add(time.Minute))), ErrAway)
	require.ErrorIs(t, l.Reset(key), ErrAway)
	require.Equal(t, hand, l.inHand(key), "a question that was not sent changes nothing")
	for range hand {
		require.True(t, l.spend(t, key, 1).Allowed)
	}
	require.ErrorIs(t, errorOf(l.Spend(key, 1)), ErrAway)
	c.mend()
	l.comesBack(t)
	used += hand + l.fill(t, key, 20)
	c.lose.Store(true)
	require.ErrorIs(t, errorOf(l.Spend(key, 300)), ErrNoAnswer)
	c.lose.Store(false)
	l.comesBack(t)
	require.Zero(t, l.inHand(key))
	require.Equal(t, 1000-used-300, l.left(t, key))
}

// While the server is away, a machine uses its lease first. Then Options.Away decides.
func TestLeasedThenAway(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, line := newAway(t, leasedLimit(stint.PerHour(800)), Options{Away: own(t, stint.PerHour(100), clock.now), Now: clock.now})
	key := perID.Key("a")
	const used = 500
	for range used {
		require.True(t, l.Allow(key))
	}
	l.settled(t)
	line.fail(errCut)
	hand := l.inHand(key)
	require.Greater(t, hand, int64(8))
	for range hand - 4 {
		require.EqualValues(t, 800, l.spend(t, key, 1).Limit.Burst)
	}
	require.EqualValues(t, 95, l.check(t, key, 5).Remaining, "the lease has too few")
	d := l.spendAll(t, key.Cost(5))
	require.Equal(t, []int64{100, 95}, []int64{d.Limit.Burst, d.Remaining})
	d = l.spendAll(t, stint.Request{Key: key, Cost: 10, Mode: stint.UpTo})
	require.Equal(t, []int64{100, 89, 10}, []int64{d.Limit.Burst, d.Remaining, d.Taken}, "4 of the lease, and 6")
	d = l.spendAll(t, stint.Request{Key: key, Cost: 100, Mode: stint.UpTo})
	require.Equal(t, []any{true, int64(89)}, []any{d.Allowed, d.Taken})
	require.False(t, l.spend(t, key, 1).Allowed)
	line.mend()
	l.comesBack(t)
	l.settled(t) // what asked for a grant may come to the server as late as now
	require.Equal(t, 800-used-hand, l.left(t, key)+l.inHand(key))
}

// If the call for a lease fails, or its answer is lost, Options.Away decides.
func TestLeaseFails(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{errCut, fmt.Errorf("%w: lost", ErrNoAnswer)} {
		for _, away := range []bool{true, false} {
			clock := newTestClock()
			o := Options{Now: clock.now}
			if away {
				o.Away = own(t, stint.PerHour(700), clock.now)
			}
			l, line := newAway(t, leasedLimit(stint.PerHour(800)), o)
			key := perID.Key("a")
			for range 100 {
				require.True(t, l.Allow(key))
			}
			l.settled(t)
			line.fail(cause)
			d, err := l.Spend(key, l.inHand(key)+1)
			if !away {
				require.ErrorIs(t, err, errors.Unwrap(cause))
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []any{true, int64(700)}, []any{d.Allowed, d.Limit.Burst})
		}
	}
}

// A key that is not a bucket leads to an error that names it.
func TestLeasedForeignKeys(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s, prefix := commonServer(t)
	l, _ := leaseNode(t, clock, prefix, stint.PerHour(1000))
	name := l.opts.keyOf(perID.Key("a"))
	s.cli("SET", name, "x")
	_, err := l.Spend(perID.Key("a"), 1)
	require.ErrorContains(t, err, fmt.Sprintf("key %q has a value that is not a bucket's", name))
	s.cli("DEL", name)
	s.cli("RPUSH", name, "x")
	require.ErrorContains(t, errorOf(l.Spend(perID.Key("a"), 1)), fmt.Sprintf("key %q is no string", name))
	require.ErrorContains(t, l.Health(), name)
}

// If the server refuses a command before the script has written, the lease keeps
// its tokens. If it refuses one after that, the call is ErrNoAnswer.
func TestLeasedRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l := s.limiter(t, testLimits(t, leasedLimit(stint.PerHour(1000))), func(o *Options) {
		o.Now, o.MaxLease = newTestClock().now, time.Hour
	})
	a := perID.Key("a")
	for range 6 {
		l.spend(t, a, 1)
	}
	l.settled(t)
	hand, there := l.inHand(a), l.left(t, a)
	require.Positive(t, hand)
	s.cli("ACL", "SETUSER", "default", "-get")
	require.ErrorIs(t, errorOf(l.Spend(a, hand+1)), script.ErrNothingRan)
	require.Equal(t, hand, l.inHand(a))
	s.cli("ACL", "SETUSER", "default", "+get")
	require.Equal(t, there, l.left(t, a))

	s.cli("ACL", "SETUSER", "default", "-del")
	const interval = int64(time.Hour / 1000)
	part := func(id string, args [12]int64) *script.LeaseRequest {
		return &script.LeaseRequest{Bucket: perID.Key(id), Since: &l.inForce.Load().since, Args: args}
	}
	now := script.Instant(l.opts.Now())
	s.cli("SET", l.opts.keyOf(perID.Key("full")), fmt.Sprint(now+interval, 0))
	err := l.lease([]*script.LeaseRequest{
		part("b", [12]int64{interval, 1000 * interval, 0, interval, interval, interval}),
		part("full", [12]int64{6: interval, interval, now}), // its key is deleted
	})
	require.ErrorIs(t, err, ErrNoAnswer)
	require.NotErrorIs(t, err, script.ErrNothingRan)
	require.Equal(t, int64(999), l.left(t, perID.Key("b")))
}
