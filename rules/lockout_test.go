package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Each lock-out is twice as long as the one before, up to the longest.
func TestGrowth(t *testing.T) {
	for name, tc := range map[string]struct {
		first, most time.Duration
		want        []time.Duration
	}{
		"not a power of two": {time.Hour, 3 * time.Hour, []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour}},
		"the longest, twice": {time.Nanosecond << 61, 1<<63 - 1, []time.Duration{1 << 61, 1 << 62, 1<<63 - 1}},
		"below one":          {time.Hour, time.Minute, []time.Duration{time.Hour, time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			g := growth{tc.first, tc.most}
			last := time.Duration(0)
			for _, want := range tc.want {
				last = g.next(last)
				require.Equal(t, want, last)
			}
			require.Equal(t, max(tc.first, tc.most), g.next(last))
		})
	}
}

// betweenCalls is a Limiter in which something happens after a bucket was read.
type betweenCalls struct {
	*stint.Limiter
	last stint.Key
	then func()
}

func (b betweenCalls) Bucket(key stint.Key) (stint.Bucket, error) {
	found, err := b.Limiter.Bucket(key)
	if key == b.last {
		b.then()
	}
	return found, err
}

// A longer hold stays, even if it comes between the last look at the bucket and
// the lock-out.
func TestHoldBesideAnother(t *testing.T) {
	const logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{logins: {Label: "logins", Limit: stint.PerHour(5)}})
	require.NoError(t, err)
	key := logins.Key("a")
	for last, g := range map[stint.Key]growth{key: {first: time.Hour}, countKey(key): {time.Hour, 24 * time.Hour}} {
		t.Run(last.ID, func(t *testing.T) {
			now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
			lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
			require.NoError(t, err)
			defer lim.Close()
			operators := now.Add(48 * time.Hour)
			between := betweenCalls{lim, last, func() { _, err := lim.Hold(key, operators); require.NoError(t, err) }}
			b, err := between.Bucket(key)
			require.NoError(t, err)
			until, err := g.hold(between, b, now)
			require.NoError(t, err)
			require.True(t, operators.Equal(until), "it is locked out until %v", until)
			b, err = lim.Bucket(key)
			require.NoError(t, err)
			require.True(t, operators.Equal(b.HeldUntil), "held until %v", b.HeldUntil)
		})
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

// Two processes that lock an id out at the same time double its lock-out once,
// whatever the one does between two calls of the other.
func TestHoldInTwoProcesses(t *testing.T) {
	const logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{logins: {Label: "logins", Limit: stint.PerHour(5)}})
	require.NoError(t, err)
	key := logins.Key("a")
	g := growth{time.Hour, 24 * time.Hour}
	for n := 1; ; n++ {
		now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
		lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
		require.NoError(t, err)
		defer lim.Close()
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
		last, forgotten, err := lastLockOut(lim, key)
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, last, "call %d", n)
		require.Equal(t, 26*time.Hour, forgotten.Sub(now))
		if b.n > 0 { // it makes fewer calls
			require.Greater(t, n, 6)
			return
		}
	}
}

// What an earlier version has stored, a hold on countKey alone, is no length. A
// lock-out is remembered although its Max ends after the last instant of a file.
func TestLastLockOut(t *testing.T) {
	const logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{logins: {Label: "logins", Limit: stint.PerHour(5)}})
	require.NoError(t, err)
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	defer lim.Close()
	key := logins.Key("a")
	g := growth{time.Hour, 1<<63 - 1}
	_, err = lim.Hold(countKey(key), now.Add(48*time.Hour+7))
	require.NoError(t, err)
	for _, want := range []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour} {
		until, err := g.hold(lim, stint.Bucket{Key: key}, now)
		require.NoError(t, err)
		require.Equal(t, want, until.Sub(now))
		now = until.Add(time.Minute)
	}
}

// After a reset of what is remembered, and under a smaller LockOutMax, the next
// lock-out is as long as if there had been none before.
func TestForgottenLockOuts(t *testing.T) {
	const logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{logins: {Label: "logins", Limit: stint.PerHour(5)}})
	require.NoError(t, err)
	key := logins.Key("a")
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	defer lim.Close()
	lockOut := func(g growth) time.Duration { // and goes to its end
		b, err := lim.Bucket(key)
		require.NoError(t, err)
		until, err := g.hold(lim, b, now)
		require.NoError(t, err)
		length := until.Sub(now)
		now = until
		return length
	}
	day := growth{time.Minute, 24 * time.Hour}
	for lockOut(day) < day.most {
	}
	require.NoError(t, lim.Reset(key, countKey(key))) // as LockOutMax says
	require.Equal(t, time.Minute, lockOut(day))
	require.Equal(t, 2*time.Minute, lockOut(day))

	shorter := growth{time.Minute, 10 * time.Minute}
	for _, want := range []time.Duration{4, 8, 10, 10} {
		require.Equal(t, want*time.Minute, lockOut(shorter))
	}
	now = now.Add(11 * time.Minute)
	require.Equal(t, time.Minute, lockOut(shorter), "LockOutMax has passed since the last one")
}
