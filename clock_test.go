package stint

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/clock"
)

// setWall makes the wall clock of c one that is set by hand: so far ahead of the bubble's.
func setWall(c *clock.Clock) *atomic.Int64 {
	ahead := new(atomic.Int64)
	c.SetWall(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	return ahead
}

func TestClockStepped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []Event
		l, err := New(NewMemStore(), testLimits(t), &Options{OnEvent: func(e Event) { events = append(events, e) }})
		require.NoError(t, err)
		defer l.Close()
		wall := setWall(l.clock)
		begun := time.Now()
		key := perID.Key("a")
		spend := func(cost int64) Decision {
			d, err := l.Spend(key, cost)
			require.NoError(t, err)
			return d
		}
		spend(5)
		requireSteps := func(forward, backward int64, last time.Duration) {
			t.Helper()
			st := l.Stats()
			require.Equal(t, forward, st.Forward)
			require.Equal(t, backward, st.Backward)
			require.Len(t, events, int(forward+backward))
			if len(events) > 0 {
				require.Equal(t, ClockStepped, events[len(events)-1].Kind)
				require.Equal(t, last, events[len(events)-1].Step)
			}
		}

		// Drift is followed, and not spoken of.
		for range 10 {
			wall.Add(int64(250*time.Millisecond) - 1)
			pass(time.Second)
		}
		requireSteps(0, 0, 0)
		require.Equal(t, begun.UnixNano()+int64(10*time.Second)+wall.Load(), l.clock.Now())
		drift := wall.Load()

		// Back an hour: nothing.
		wall.Add(-int64(time.Hour))
		pass(time.Second)
		requireSteps(0, 1, -time.Hour)
		require.Equal(t, begun.UnixNano()+int64(11*time.Second)+drift, l.clock.Now(), "it never goes back")
		require.True(t, spend(1).Allowed)
		require.Equal(t, 13*time.Second-time.Duration(drift), spend(1).RetryAfter, "and goes on")

		// And up again: a step, and nothing that was not there before.
		wall.Add(int64(time.Hour))
		pass(time.Second)
		requireSteps(1, 1, time.Hour)
		require.Equal(t, begun.UnixNano()+int64(12*time.Second)+drift, l.clock.Now())

		// Ahead a day.
		wall.Add(int64(24 * time.Hour))
		pass(time.Second)
		requireSteps(2, 1, 24*time.Hour)
		require.Equal(t, begun.UnixNano()+int64(24*time.Hour+13*time.Second)+drift, l.clock.Now())
		require.Zero(t, spend(5).Remaining)
		pass(time.Minute)
		requireSteps(2, 1, 24*time.Hour)
	})
}

// A clock that was set back while nobody looked: nobody waits for longer than an empty bucket takes to refill.
func TestRestartWithTheClockBack(t *testing.T) {
	for _, back := range []time.Duration{time.Second, time.Hour, 50 * 365 * 24 * time.Hour} {
		store := NewMemStore()
		r := rigOn(t, store, testLimits(t), Options{})
		key := perID.Key("a")
		r.spend(key, 5)
		r.hold(single.Key("held"), time.Hour)
		require.NoError(t, r.Close())

		earlier := newSimClock()
		earlier.advance(-back)
		r = rigOn(t, store, testLimits(t), Options{Now: earlier.Now})
		r.clock = earlier
		require.Equal(t, time.Minute, r.check(key, 5).RetryAfter)
		require.Equal(t, time.Hour+back, r.check(single.Key("held"), 1).RetryAfter, "a hold is not shortened")
		earlier.advance(time.Minute)
		require.True(t, r.spend(key, 5).Allowed)
	}
}

// A look under a smaller limit, or while the clock is far behind, gives no tokens back. What is denied then stays clamped, so that who
// comes back when he was told to is admitted.
func TestOnlyASpendClampsOnFile(t *testing.T) {
	key := perID.Key("a")
	for name, c := range map[string]struct {
		ask     func(r *rig) Decision
		clamped bool
	}{
		"check":               {func(r *rig) Decision { return r.check(key, 1) }, false},
		"check twice":         {func(r *rig) Decision { r.check(key, 1); return r.check(key, 5) }, false},
		"look at all":         {func(r *rig) Decision { return r.spendAll(Request{key, 1, CheckOnly}) }, false},
		"spend":               {func(r *rig) Decision { return r.spend(key, 1) }, true},
		"spend after a check": {func(r *rig) Decision { r.check(key, 1); return r.spend(key, 1) }, true},
		"spend all":           {func(r *rig) Decision { return r.spendAll(Request{Key: key, Cost: 1}) }, true},
		"all after a check":   {func(r *rig) Decision { r.check(key, 1); return r.spendAll(Request{Key: key, Cost: 1}) }, true},
		"one of two, the same": {func(r *rig) Decision {
			return r.spendAll(Request{key, 1, CheckOnly}, Request{Key: perID.Key("b"), Cost: 1})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := NewMemStore()
			r := rigOn(t, store, testLimits(t), Options{})
			far := r.clock.Now().Add(23 * time.Hour).UnixNano()
			save(t, store, Change{key, far})
			want := r.clock.Now().Add(time.Minute).UnixNano()
			d := c.ask(r)
			require.False(t, d.Allowed)
			require.Equal(t, time.Minute, d.ResetAfter)
			require.NoError(t, r.Flush())
			tat, err := store.Load(key)
			require.NoError(t, err)
			if !c.clamped {
				want = far
			}
			require.Equal(t, want, tat)
			r.clock.advance(d.RetryAfter)
			require.True(t, r.spend(key, 1).Allowed, "who looked is told the same time as who spends")
		})
	}
}

// A file of a machine that took 2099 for now.
func TestFileOfTheFuture(t *testing.T) {
	store := NewMemStore()
	key := perID.Key("a")
	save(t, store, Change{key, time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()}, Change{perID.Key("end"), 1<<63 - 1},
		Change{perID.Key("long ago"), -1 << 63}, Change{holdKey(perID.Key("b")), -1 << 63})
	r := rigOn(t, store, testLimits(t), Options{})
	for _, key := range []Key{key, perID.Key("end")} {
		d := r.check(key, 1)
		require.Equal(t, 12*time.Second, d.RetryAfter)
		require.Equal(t, time.Minute, d.ResetAfter)
	}
	require.True(t, r.spend(perID.Key("long ago"), 5).Allowed)
	require.True(t, r.spend(perID.Key("b"), 5).Allowed, "held until before there was time")
	r.clock.advance(time.Minute)
	require.True(t, r.spend(key, 5).Allowed)
}
