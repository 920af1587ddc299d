package stint_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// tenAnHour is a limit whose bucket refills in ten hours.
func tenAnHour(level stint.Durability) stint.Limit {
	return stint.Limit{Burst: 10, Count: 1, Period: time.Hour, Durability: level}
}

// A call has its answer before its lease is renewed: if the renewal fails, what
// was spent stays spent.
func TestFailedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
		limit := tenAnHour(stint.Leased)
		limit.Burst = 100
		l := openOnly(t, store, limit, clock.Now)
		require.Equal(t, 1, spends(t, l, only.Key("a"), 1))
		store.broken.Store(true)
		for spent := int64(1); ; spent++ {
			require.Equal(t, 100-spent, remaining(t, l, only.Key("a")))
			failures := l.Stats().Commit.Failures
			_, err := l.SpendAll(stint.Request{Key: only.Key("a"), Cost: 1})
			time.Sleep(time.Second) // the renewal comes by itself
			if err != nil {
				require.ErrorIs(t, err, stint.ErrNotDurable)
				require.Positive(t, failures, "nothing was renewed")
				return
			}
		}
	})
}

// waiting returns a Limiter with a bucket that is full, but for a turn that
// waits.
func waiting(t *testing.T, store stint.Store, clock *heldClock) *stint.Limiter {
	l := openOnly(t, store, tenAnHour(stint.Synced), clock.Now)
	require.Equal(t, 10, spends(t, l, only.Key("a"), 10))
	_, err := l.Reserve(only.Key("a"), 10)
	require.NoError(t, err)
	_, err = l.Refund(only.Key("a"), 5)
	require.NoError(t, err)
	clock.advance(6 * time.Hour)
	return l
}

func TestResetOfAQueue(t *testing.T) {
	key := only.Key("a")
	t.Run("saved", func(t *testing.T) {
		clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
		l := waiting(t, store, clock)
		require.NoError(t, l.Reset(key))
		require.EqualValues(t, 10, remaining(t, l, key))
		store.broken.Store(true) // it crashes
		after := openOnly(t, store.MemStore, tenAnHour(stint.Synced), clock.Now)
		require.EqualValues(t, 10, remaining(t, after, key))
	})
	t.Run("failed", func(t *testing.T) {
		clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
		l := waiting(t, store, clock)
		before, err := l.Check(key, 1)
		require.NoError(t, err)
		store.broken.Store(true)
		require.ErrorIs(t, l.Reset(key), stint.ErrNotDurable)
		d, err := l.Check(key, 1)
		require.NoError(t, err)
		require.Equal(t, before, d)
	})
}

// A bucket waits no longer than an empty one of its limit, also after a reset
// of it has failed.
func TestFailedResetClamps(t *testing.T) {
	clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
	first := openOnly(t, stint.Store(store), tenAnHour(stint.Synced), clock.Now)
	require.Equal(t, 10, spends(t, first, only.Key("a"), 10))
	limit := tenAnHour(stint.Synced)
	limit.Period = time.Second
	l := openOnly(t, store, limit, clock.Now)
	store.broken.Store(true)
	require.ErrorIs(t, l.Reset(only.Key("a")), stint.ErrNotDurable)
	d, err := l.Check(only.Key("a"), 1)
	require.NoError(t, err)
	require.Equal(t, time.Second, d.RetryAfter)
}

// What a Cancel returns is returned after a crash, too.
func TestCancelOfLeased(t *testing.T) {
	clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
	l := openOnly(t, store, tenAnHour(stint.Leased), clock.Now)
	require.Equal(t, 5, spends(t, l, only.Key("a"), 5))
	r, err := l.Reserve(only.Key("a"), 10)
	require.NoError(t, err)
	require.Equal(t, 5*time.Hour, r.Delay())
	r.Cancel()
	store.broken.Store(true) // it crashes
	after := openOnly(t, store.MemStore, tenAnHour(stint.Leased), clock.Now)
	require.GreaterOrEqual(t, remaining(t, after, only.Key("a")), int64(3)) // a lease is 1.25
}

// A TAT that a look has clamped counts as changed once its tokens are asked
// for, also by a SpendAll that another bucket denies.
func TestDeniedGroupKeepsClamp(t *testing.T) {
	clock, store := newHeldClock(), stint.NewMemStore()
	limit := tenAnHour(stint.Flushed)
	limit.Period = time.Second
	now := clock.Now()
	require.NoError(t, store.Save([]stint.Change{{Key: only.Key("a"), TAT: now.Add(time.Hour).UnixNano()}}))
	l := openOnly(t, store, limit, clock.Now)
	require.Zero(t, remaining(t, l, only.Key("a")))
	require.Equal(t, 10, spends(t, l, only.Key("b"), 10))
	clock.advance(2 * time.Second)
	d, err := l.SpendAll(stint.Request{Key: only.Key("a"), Cost: 1}, stint.Request{Key: only.Key("b"), Cost: 3})
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.NoError(t, l.Flush())
	tat, err := store.Load(only.Key("a"))
	require.NoError(t, err)
	require.Equal(t, now.Add(10*time.Second).UnixNano(), tat)
}
