package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Each lock-out is twice as long as the one before, up to the longest.
func TestGrowth(t *testing.T) {
	for g, want := range map[growth][]time.Duration{
		{time.Hour, 3 * time.Hour}:            {time.Hour, 2 * time.Hour, 3 * time.Hour}, // not a power of two
		{time.Nanosecond << 61, 1<<63 - 1}:    {1 << 61, 1 << 62, 1<<63 - 1},             // the longest, twice
		{first: time.Hour, most: time.Minute}: {time.Hour, time.Hour},                    // below one
	} {
		last := time.Duration(0)
		for _, want := range append(want, max(g.first, g.most)) {
			last = g.next(last)
			require.Equal(t, want, last, "%v", g)
		}
	}
}

// beforeCall is a Limiter in which something happens before its n-th call.
type beforeCall struct {
	*stint.Limiter
	n    int
	then func()
}

func (b *beforeCall) step() {
	if b.n--; b.n == 0 {
		b.then()
	}
}

func (b *beforeCall) Bucket(key stint.Key) (stint.Bucket, error) {
	b.step()
	return b.Limiter.Bucket(key)
}

func (b *beforeCall) Hold(key stint.Key, until time.Time) (time.Time, error) {
	b.step()
	return b.Limiter.Hold(key, until)
}

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// A longer hold stays, even if it comes between two calls of the lock-out.
func TestHoldBesideAnother(t *testing.T) {
	key := ofA.Key("a")
	for calls, g := range map[int]growth{2: {first: time.Hour}, 5: {time.Hour, 24 * time.Hour}} {
		for n := 1; n <= calls; n++ { // the last one is Hold
			now := noon
			lim := newLimiterAt(t, &now)
			operators := now.Add(48 * time.Hour)
			between := &beforeCall{lim, n, func() { _, err := lim.Hold(key, operators); require.NoError(t, err) }}
			b, err := between.Bucket(key)
			require.NoError(t, err)
			until, err := g.hold(between, b, now)
			require.NoError(t, err)
			require.LessOrEqual(t, between.n, 0)
			require.True(t, operators.Equal(until), "call %d: it is locked out until %v", n, until)
			b, err = lim.Bucket(key)
			require.NoError(t, err)
			require.True(t, operators.Equal(b.HeldUntil), "call %d: held until %v", n, b.HeldUntil)
		}
	}
}

// Two processes that lock an id out at the same time double its lock-out once,
// whatever the one does between two calls of the other.
func TestHoldInTwoProcesses(t *testing.T) {
	key := ofA.Key("a")
	g := growth{time.Hour, 24 * time.Hour}
	for n := 1; ; n++ {
		now := noon
		lim := newLimiterAt(t, &now)
		lock := func(lim stint.Decider) {
			_, err := g.hold(lim, stint.Bucket{Key: key}, now)
			require.NoError(t, err)
		}
		lock(lim)
		now = now.Add(2 * time.Hour)
		b := &beforeCall{lim, n, func() { lock(lim) }}
		lock(b)
		held, err := lim.Bucket(key)
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, held.HeldUntil.Sub(now), "call %d", n)
		last, err := lastLockOut(lim, key)
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, last, "call %d", n)
		count, err := lim.Bucket(countKey(key))
		require.NoError(t, err)
		require.Equal(t, 26*time.Hour, count.HeldUntil.Sub(now))
		if b.n > 0 { // it makes fewer calls
			require.Greater(t, n, 6)
			return
		}
	}
}

// What is remembered of the lock-outs of an id, however long the id is.
func TestRememberedLockOuts(t *testing.T) {
	now := noon
	lim := newLimiterAt(t, &now)
	for _, id := range []string{"a", strings.Repeat("x", 512), strings.Repeat("x", 511)} {
		key := ofA.Key(id)
		lockOuts := func(g growth, minutes ...time.Duration) { // each goes to its end
			t.Helper()
			for _, want := range minutes {
				b, err := lim.Bucket(key)
				require.NoError(t, err)
				until, err := g.hold(lim, b, now)
				require.NoError(t, err)
				require.Equal(t, want*time.Minute, until.Sub(now))
				now = until
			}
		}
		// What an earlier version has stored, a hold on countKey alone, is no length.
		// A lock-out is remembered although its Max ends after the last instant of a
		// file.
		_, err := lim.Hold(countKey(key), now.Add(48*time.Hour+7))
		require.NoError(t, err)
		forever := growth{time.Hour, 1<<63 - 1}
		lockOuts(forever, 60, 120, 240)
		require.NoError(t, lim.Reset(key))
		lockOuts(forever, 480)
		require.NoError(t, lim.Reset(key, countKey(key))) // as LockOutMax says
		lockOuts(growth{time.Minute, 24 * time.Hour}, 1, 2)

		shorter := growth{time.Minute, 10 * time.Minute}
		lockOuts(shorter, 4, 8, 10, 10)
		now = now.Add(11 * time.Minute) // LockOutMax has passed since the last one
		lockOuts(shorter, 1)
		lockOuts(growth{first: time.Minute}, 1, 1)
	}
}
