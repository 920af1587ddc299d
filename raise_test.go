package stint

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// TestRaise has what the model of TestWorlds leaves out: given limits, limits that are
// missing, totals, and what a restart finds.
func TestRaise(t *testing.T) {
	t.Run("given limits", func(t *testing.T) {
		r := newRig(t)
		req := Request{Key: perID.Key("a"), Limit: PerHour(10)}
		full, err := r.Raise(req, r.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, time.Hour, full.Sub(r.Now()))
		req.Limit = PerMinute(1)
		again, err := r.Raise(req, r.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, full, again, "a smaller limit does not lower it")
		req.Limit, req.Key = PerMinute(1), off.Key("a")
		for range 2 {
			full, err = r.Raise(req, r.Now().Add(time.Hour))
			require.NoError(t, err)
			require.Equal(t, time.Minute, full.Sub(r.Now()), "at most an empty bucket")
			require.NoError(t, r.Close())
			r = r.next(r.Limits())
		}
	})
	t.Run("a turn with a smaller limit comes after it", func(t *testing.T) {
		r := newLevels(t, ten)
		key := inMemory.Key("a")
		r.take(key, 5)
		_, err := r.Reserve(Request{Key: key, Cost: 1, Limit: PerSecond(1)})
		require.NoError(t, err)
		full, err := r.Raise(Request{Key: key}, r.Now().Add(10*time.Second))
		require.NoError(t, err)
		r.clock.advance(5 * time.Second)
		require.GreaterOrEqual(t, r.check(key, 0).ResetAfter, full.Sub(r.Now()), "the turn gives nothing back")
	})
	t.Run("no limit", func(t *testing.T) {
		r := newRig(t)
		full, err := r.Raise(Request{Key: off.Key("a")}, r.Now().Add(time.Hour))
		require.NoError(t, err)
		require.False(t, full.After(r.Now()))
		require.Zero(t, r.Stats().Resident)
	})
	t.Run("a time that has passed reads", func(t *testing.T) {
		r := newRig(t)
		full, err := r.Raise(Request{Key: perID.Key("a")}, r.Now())
		require.NoError(t, err)
		require.False(t, full.After(r.Now()))
		require.Zero(t, r.Stats().Resident, "a full bucket takes no space")
		r.take(perID.Key("a"), 2)
		full, err = r.Raise(Request{Key: perID.Key("a")}, time.Time{})
		require.NoError(t, err)
		require.Equal(t, r.check(perID.Key("a"), 0).ResetAfter, full.Sub(r.Now()))
	})
	t.Run("a full bucket is full now", func(t *testing.T) {
		r := newRig(t)
		for _, past := range []time.Duration{0, time.Hour} {
			full, err := r.Raise(Request{Key: perID.Key("a")}, r.Now().Add(-past))
			require.NoError(t, err)
			require.True(t, full.Equal(r.Now()), "%v", full)
		}
		r.take(perID.Key("a"), 1)
		r.clock.advance(time.Hour)
		full, err := r.Raise(Request{Key: perID.Key("a")}, time.Time{})
		require.NoError(t, err)
		require.True(t, full.Equal(r.Now()), "%v", full)
	})
	t.Run("a quota of the calendar", func(t *testing.T) {
		clock := newSimClock()
		clock.ns.Store(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC).UnixNano())
		r := rigAt(t, clock, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: EachDay(10, nil)}), Options{})
		midnight := r.Now().Add(12 * time.Hour)
		for _, c := range []struct {
			full time.Time
			left int64
		}{
			{midnight.Add(-time.Hour), 10}, {midnight, 10}, {midnight.Add(3), 7}, {midnight.Add(time.Hour), 0},
		} {
			key := perID.Key(c.full.String())
			_, err := r.Raise(Request{Key: key}, c.full)
			require.NoError(t, err)
			require.Equal(t, c.left, r.left(key))
		}
	})
	t.Run("no limit, whatever is in memory", func(t *testing.T) {
		r := newRig(t)
		for i, limit := range []Limit{Unlimited, Blocked} {
			key := perID.Key(fmt.Sprint(i))
			raise := func() {
				t.Helper()
				full, err := r.Raise(Request{Key: key}, r.Now().Add(time.Hour))
				require.NoError(t, err)
				require.True(t, full.Equal(r.Now()), "%v", full)
			}
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: limit}))
			raise()
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: PerHour(1)}))
			r.take(key, 1)
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: limit}))
			raise()
		}
	})
	for level := leased; level <= synced; level++ {
		inBubbleNamed(t, fmt.Sprint(Durability(level), ", an equal one is in a commit that fails"),
			func(t *testing.T, r *rig) {
				key := level.Key("a")
				full := r.Now().Add(5 * time.Second)
				r.disk.shut()
				var errs [2]chan error
				for i := range errs {
					errs[i] = make(chan error, 1)
					go func() { _, err := r.Raise(Request{Key: key}, full); errs[i] <- err }()
					synctest.Wait()
				}
				require.Empty(t, errs[1], "the store does not have it yet")
				r.disk.gate <- errDisk
				require.ErrorIs(t, <-errs[0], ErrNotDurable)
				r.disk.open()
				require.NoError(t, <-errs[1])
				require.LessOrEqual(t, r.next(r.Limits()).left(key), int64(5), "as after a crash")
			})
	}
	t.Run("errors", func(t *testing.T) {
		r := newRig(t)
		_, err := r.Raise(Request{Key: Key{99, "a"}}, r.Now())
		require.ErrorIs(t, err, ErrUnknownName)
		_, err = r.Raise(Request{Key: perID.Key("a"), Limit: Limit{Burst: -1}}, r.Now())
		require.ErrorAs(t, err, new(*ConfigError))
		limits, err := NewLimits(Names{
			1: {Label: "total", ID: Shared, Limit: PerHour(100)}, 2: {Label: "share", Limit: PerHour(10), Parent: 1},
		})
		require.NoError(t, err)
		l, err := New(NewMemStore(), limits, nil)
		require.NoError(t, err)
		defer l.Close()
		for _, key := range []Key{{2, "a"}, {1, ""}} {
			_, err = l.Raise(Request{Key: key}, l.Now().Add(time.Hour))
			require.ErrorIs(t, err, ErrShare)
		}
	})
}

// TestDividedBy holds the laws of a divided limit: n of them admit no more than
// the whole, at once and in the long run.
func TestDividedBy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 5))
	any := func(most int64) int64 { return 1 + rnd.Int64N(1+rnd.Int64N(min(most, math.MaxInt64-1))) }
	checked := 0
	for range testlength.Of(200_000, 20_000) {
		l := Limit{Burst: any(1e6), Count: any(1e6), Period: time.Duration(any(math.MaxInt64)), Queue: rnd.Int64N(9),
			Durability: Durability(rnd.IntN(5))}
		if l.Validate() != nil {
			continue
		}
		checked++
		n := any([]int64{3, 100, math.MaxInt64}[rnd.IntN(3)])
		s := l.DividedBy(n)
		require.NoError(t, s.Validate(), "%v of %d", l, n)
		require.Equal(t, max(1, l.Burst/n), s.Burst)
		require.Equal(t, l.Durability, s.Durability)
		require.Equal(t, l.Queue == 0, s.Queue == 0)
		whole := new(big.Int).Mul(big.NewInt(int64(l.Interval())), big.NewInt(n))
		if century := big.NewInt(100 * 36525 * 24 * 3600 * 1e7); whole.Cmp(century) > 0 {
			require.Equal(t, century.Int64(), int64(s.Interval()))
		} else {
			require.Equal(t, whole.Int64(), int64(s.Interval()), "%v of %d", l, n)
		}
		if l.Burst%n == 0 {
			require.Equal(t, l.Tolerance(), s.Tolerance(), "%v of %d", l, n)
		}
	}
	require.Greater(t, checked, 1000)
	for _, l := range []Limit{Unlimited, Blocked, {}, PerHour(5)} {
		for _, n := range []int64{1, 0, -1} {
			require.Equal(t, l, l.DividedBy(n))
		}
		if l.Count == 0 {
			require.Equal(t, l, l.DividedBy(3))
		}
	}
}
