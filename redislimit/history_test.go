package redislimit

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// both are a Limiter at the server and one in memory, by the same clock.
type both struct {
	*testing.T
	clock  *testClock
	remote *Limiter
	local  *stint.Limiter
	keys   []stint.Key
	rnd    *rand.Rand
}

func newBoth(t *testing.T, seed uint64) *both {
	clock := newTestClock()
	b := &both{T: t, clock: clock, rnd: rand.New(rand.NewPCG(seed, 20))}
	b.remote = newLimiter(t, stint.PerMinute(5), func(o *Options) { o.Now = clock.now })
	var err error
	b.local, err = stint.New(stint.NewMemStore(), testLimits(t, stint.PerMinute(5)), &stint.Options{Now: clock.now})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.local.Close()) })
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
	if given && b.rnd.IntN(3) == 0 {
		r.Limit = []stint.Limit{stint.PerMinute(8), stint.PerHour(2), stint.Blocked, stint.Unlimited}[b.rnd.IntN(4)]
	}
	return r
}

// sameError requires that both fail or neither. If several requests of a call
// are wrong, either may be named.
func (b *both) sameError(want, got error, together bool) {
	b.Helper()
	require.Equal(b, want == nil, got == nil, "%v, %v", want, got)
	for _, e := range []error{stint.ErrNegativeCost, stint.ErrCostOverBurst, stint.ErrDuplicateKey} {
		if !together {
			require.Equal(b, errors.Is(want, e), errors.Is(got, e), "%v, %v", want, got)
		}
	}
}

// step carries one random operation out on both, and compares.
func (b *both) step(given bool) {
	b.Helper()
	b.clock.pass(time.Duration(b.rnd.ExpFloat64() * float64([]time.Duration{0, time.Microsecond, time.Second,
		20 * time.Second, time.Hour}[b.rnd.IntN(5)])))
	r := b.request(given)
	var want, got stint.Decision
	var err1, err2 error
	op := b.rnd.IntN(12)
	switch op {
	case 0, 1, 2:
		want, err1 = b.local.Spend(r.Key, r.Cost)
		got, err2 = b.remote.Spend(r.Key, r.Cost)
	case 3:
		want, err1 = b.local.Check(r.Key, r.Cost)
		got, err2 = b.remote.Check(r.Key, r.Cost)
	case 4, 5, 6:
		reqs := []stint.Request{r}
		for range b.rnd.IntN(4) {
			reqs = append(reqs, b.request(given))
		}
		ds1, ds2 := make([]stint.Decision, len(reqs)), make([]stint.Decision, len(reqs))
		want, err1 = b.local.SpendTogether(reqs, ds1)
		got, err2 = b.remote.SpendTogether(reqs, ds2)
		require.Equal(b, ds1, ds2, "%+v", reqs)
	case 7:
		want, err1 = b.local.Refund(r.Key, r.Cost)
		got, err2 = b.remote.Refund(r.Key, r.Cost)
	case 8:
		other := b.request(given)
		want, err1 = b.local.RefundAll(r, other)
		got, err2 = b.remote.RefundAll(r, other)
	case 9:
		if b.rnd.IntN(4) > 0 {
			return
		}
		err1, err2 = b.local.Reset(r.Key), b.remote.Reset(r.Key)
	case 10:
		if _, limited := b.local.Limits().For(r.Key); !limited || b.rnd.IntN(8) > 0 {
			return // only memory can hold it
		}
		until := b.clock.now().Add(time.Duration(b.rnd.Int64N(int64(time.Minute))) - 10*time.Second)
		err1, err2 = b.local.Hold(r.Key, until), b.remote.Hold(r.Key, until)
	case 11:
		if given || b.rnd.IntN(8) > 0 {
			return
		}
		b.clock.pass(time.Microsecond) // the unit of a generation
		next := []stint.Limit{stint.PerMinute(5), stint.PerMinute(50), stint.PerHour(9), stint.Unlimited,
			stint.Blocked, stint.PerSecond(6)}[b.rnd.IntN(6)]
		limits := testLimits(b, next)
		if next == stint.Unlimited { // only memory sees holds without a limit
			require.NoError(b, b.local.Reset(b.keys...))
			require.NoError(b, b.remote.Reset(b.keys...))
		}
		err1, err2 = b.local.SetLimits(limits), b.remote.SetLimits(limits)
		for _, key := range b.keys { // a bucket is cut down when it is used next
			b.remote.Check(key, 0)
		}
	}
	b.sameError(err1, err2, op >= 4 && op <= 8)
	require.Equal(b, want, got, "%+v", r)
	bucket1, err1 := b.local.Bucket(r.Key)
	bucket2, err2 := b.remote.Bucket(r.Key)
	require.NoError(b, err1)
	require.NoError(b, err2)
	if l, _ := b.local.Limits().For(r.Key); l == (stint.Limit{}) || l == stint.Blocked {
		bucket1.ResetAfter, bucket2.ResetAfter = 0, 0 // only the local one knows it without a limit
	}
	bucket1.HeldUntil, bucket2.HeldUntil = bucket1.HeldUntil.UTC(), bucket2.HeldUntil.UTC()
	require.Equal(b, bucket1, bucket2)
}

// TestHistory compares random histories at the server with those in memory. A
// Request's own limit and changed limits are in different histories, because
// with both, memory cuts a bucket down at another time.
func TestHistory(t *testing.T) {
	steps := 2_000
	if long {
		steps = 100_000
	}
	for _, given := range []bool{false, true} {
		name := "changed limits"
		if given {
			name = "limits of requests"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBoth(t, 7)
			for range steps {
				b.step(given)
			}
		})
	}
}
