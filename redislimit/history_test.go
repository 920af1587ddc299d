package redislimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/internal/testlength"
)

// both are a Limiter at the server and one in memory, by the same clock.
type both struct {
	*testing.T
	clock  *testClock
	remote *Limiter
	gate   *gate
	local  *stint.Limiter
	keys   []stint.Key
	rnd    *rand.Rand
}

func newBoth(t *testing.T, seed uint64, change func(*Options)) *both {
	s, _ := commonServer(t)
	l, gate, clock := s.gated(t, stint.PerMinute(5), change)
	b := bothOf(t, seed, clock, l, testLimits(t, stint.PerMinute(5)))
	b.gate = gate
	return b
}

// bothOf returns a Limiter beside one in memory that has the limits.
func bothOf(t *testing.T, seed uint64, clock *testClock, remote *Limiter, limits *stint.Limits) *both {
	t.Helper()
	local, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: clock.now})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, local.Close()) })
	b := &both{T: t, clock: clock, rnd: rand.New(rand.NewPCG(seed, 20)), remote: remote, local: local}
	for _, id := range []string{"a", "b", "c"} {
		b.keys = append(b.keys, perID.Key(id), other.Key(id))
	}
	b.keys = append(b.keys, everyone.Key(""), off.Key("a"), shut.Key("a"))
	return b
}

func (b *both) request(given bool) stint.Request {
	r := stint.Request{Key: b.keys[b.rnd.IntN(len(b.keys))], Cost: b.rnd.Int64N(9) - 1}
	if r.Mode = stint.Mode(b.rnd.IntN(5)); r.Mode > stint.SpendOnly {
		r.Mode = stint.CheckAndSpend
	}
	if b.rnd.IntN(5) == 0 {
		r.Leave = b.rnd.Int64N(4)
	}
	if given && b.rnd.IntN(3) == 0 {
		r.Limit = []stint.Limit{stint.PerMinute(8), stint.PerHour(2), stint.Blocked, stint.Unlimited}[b.rnd.IntN(4)]
	}
	return r
}

// sameError requires that both Limiters fail, or neither. If several requests of
// a call are wrong, the errors may name different ones.
func (b *both) sameError(want, got error, together bool) {
	b.Helper()
	require.Equal(b, want == nil, got == nil, "%v, %v", want, got)
	for _, e := range []error{stint.ErrNegativeCost, stint.ErrCostOverBurst, stint.ErrDuplicateKey} {
		if !together {
			require.Equal(b, errors.Is(want, e), errors.Is(got, e), "%v, %v", want, got)
		}
	}
}

// decider has the methods of both kinds of Limiter.
type decider interface {
	decidertest.Limiter
	Reset(keys ...stint.Key) error
}

// operation is a call that a history makes on a Limiter.
type operation struct {
	reqs []stint.Request
	run  func(lim decider, o *outcome)
}

type outcome struct {
	d   stint.Decision
	ds  []stint.Decision
	err error

	end int64
}

// draw returns a random operation.
func (b *both) draw(given bool) operation {
	r := b.request(given)
	o := operation{reqs: []stint.Request{r}}
	switch n := b.rnd.IntN(25); {
	case n < 6:
		o.run = func(lim decider, o *outcome) { o.d, o.err = lim.Spend(r.Key, r.Cost) }
	case n < 8:
		o.run = func(lim decider, o *outcome) { o.d, o.err = lim.Check(r.Key, r.Cost) }
	case n < 14:
		for range b.rnd.IntN(4) {
			o.reqs = append(o.reqs, b.request(given))
		}
		o.run = func(lim decider, out *outcome) {
			out.ds = make([]stint.Decision, len(o.reqs))
			out.d, out.err = lim.Do(context.Background(), o.reqs, out.ds)
		}
	case n < 16:
		o.run = func(lim decider, o *outcome) { o.d, o.err = lim.Refund(r.Key.Cost(r.Cost).SpentAt(inFuture)) }
	case n < 18:
		o.reqs = append(o.reqs, b.request(given))
		o.run = func(lim decider, out *outcome) { out.d, out.err = lim.Refund(justSpent(o.reqs)...) }
	case n == 22:
		o.reqs = justSpent(o.reqs)
		o.reqs[0].Spent = b.clock.now().Add(-time.Duration(b.rnd.Int64N(int64(time.Minute))))
		o.run = func(lim decider, out *outcome) { out.d, out.err = lim.Refund(o.reqs...) }
	case n == 23:
		o.reqs[0].Cost *= 1 + b.rnd.Int64N(2)
		o.reqs[0].Mode = stint.UpTo
		o.run = func(lim decider, out *outcome) { out.d, out.err = lim.Do(context.Background(), o.reqs, nil) }
	case n == 18 && b.rnd.IntN(2) == 0:
		o.run = func(lim decider, o *outcome) { o.err = lim.Reset(r.Key) }
	case n == 19 && b.rnd.IntN(4) == 0:
		if b.local.Limits().For(r.Key) == stint.Unlimited {
			return b.draw(given) // only memory can hold it
		}
		until := b.clock.now().Add(time.Duration(b.rnd.Int64N(int64(time.Minute))) - 10*time.Second)
		o.run = func(lim decider, o *outcome) {
			end, err := lim.Hold(r.Key, until)
			o.end, o.err = end.UnixNano(), err
		}
		if b.rnd.IntN(2) == 0 {
			o.run = func(lim decider, o *outcome) { o.err = lim.SetHold(r.Key, time.Time{}) }
		}
	default:
		return b.draw(given)
	}
	return o
}

// step passes some time, and carries random operations out on both. Several
// operations share a call to the server.
func (b *both) step(given bool, operations int) {
	b.Helper()
	b.clock.pass(time.Duration(b.rnd.ExpFloat64() * float64([]time.Duration{0, time.Microsecond, time.Second,
		20 * time.Second, time.Hour}[b.rnd.IntN(5)])))
	if !given && b.rnd.IntN(96/operations) == 0 {
		b.change()
	}
	all := make([]operation, operations)
	want, got := make([]outcome, operations), make([]outcome, operations)
	var remote []func()
	for i := range all {
		all[i] = b.draw(given)
		all[i].run(b.local, &want[i])
		remote = append(remote, func() { all[i].run(b.remote, &got[i]) })
	}
	if operations == 1 {
		remote[0]()
	} else {
		require.LessOrEqual(b, b.gate.together(b.T, b.remote, remote...), int64(1))
	}
	for i, o := range all {
		b.sameError(want[i].err, got[i].err, len(o.reqs) > 1)
		want[i].err, got[i].err = nil, nil
		require.Equal(b, want[i], got[i], "operation %d: %+v", i, o.reqs)
	}
	for _, o := range all {
		for _, r := range o.reqs {
			b.sameBucket(r.Key)
		}
	}
}

// change puts other limits in force.
func (b *both) change() {
	b.clock.pass(time.Microsecond) // the unit of a generation
	next := []stint.Limit{stint.PerMinute(5), stint.PerMinute(50), stint.PerHour(9), stint.Unlimited,
		stint.Blocked, stint.PerSecond(6)}[b.rnd.IntN(6)]
	limits := testLimits(b, next)
	if next == stint.Unlimited { // only memory sees holds without a limit
		require.NoError(b, b.local.Reset(b.keys...))
		require.NoError(b, b.remote.Reset(b.keys...))
	}
	require.NoError(b, b.local.SetLimits(limits))
	require.NoError(b, b.remote.SetLimits(limits))
	for _, key := range b.keys { // the first request under a smaller limit cuts a bucket
		b.local.Check(key, 0)
		b.remote.Check(key, 0)
	}
}

func (b *both) sameBucket(key stint.Key) {
	b.Helper()
	bucket1, err1 := b.local.Bucket(key)
	bucket2, err2 := b.remote.Bucket(key)
	require.NoError(b, err1)
	require.NoError(b, err2)
	if l := b.local.Limits().For(key); l == stint.Unlimited || l == stint.Blocked {
		bucket1.ResetAfter, bucket2.ResetAfter = 0, 0 // only the local one knows it without a limit
	}
	bucket1.HeldUntil, bucket2.HeldUntil = bucket1.HeldUntil.UTC(), bucket2.HeldUntil.UTC()
	require.Equal(b, bucket1, bucket2)
}

// TestHistory compares random histories at the server with those in memory. A
// Request's own limit and changed limits are in different histories, because
// with both, memory cuts a bucket down at another time.
func TestHistory(t *testing.T) {
	steps, batches := testlength.Of(100_000, 2_000), testlength.Of(5_000, 150)
	for _, given := range []bool{false, true} {
		name := "changed limits"
		if given {
			name = "limits of requests"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBoth(t, 7, nil)
			for range steps {
				b.step(given, 1)
			}
		})
		t.Run(name+", batches", func(t *testing.T) {
			t.Parallel()
			b := newBoth(t, 8, func(o *Options) { o.RepeatDenials = -1 })
			for range batches {
				b.step(given, 2+b.rnd.IntN(10))
			}
		})
	}
}
