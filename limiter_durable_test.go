package stint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// ten is a limit of which a token is worth a second.
var ten = Limit{Burst: 10, Count: 1, Period: time.Second}

// limitToTen runs a test in a bubble, with a Limiter of these.
func limitToTen(t *testing.T, test func(t *testing.T, l *Limiter, store *gateStore, clock *simClock)) {
	synctest.Test(t, func(t *testing.T) {
		store, clock := newGateStore(), newGridClock()
		l := newLevels(t, store, levelLimits(t, ten, nil), clock, 0)
		test(t, l, store, clock)
		require.NoError(t, l.Close())
	})
}

func resetAfterOf(t testing.TB, l *Limiter, key Key) time.Duration {
	t.Helper()
	d, err := l.Check(key, 0)
	require.NoError(t, err)
	return d.ResetAfter
}

// Holds that wait together share a save: many of them do not wait for one another.
func TestHoldsShareACommit(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, clock *simClock) {
		store.close()
		var held sync.WaitGroup
		for i := range 100 {
			held.Go(func() {
				require.NoError(t, l.Hold(flushed.Key(fmt.Sprint(i%50)), clock.Now().Add(time.Hour)))
			})
			if i == 0 {
				synctest.Wait() // its commit is under way: the others share the next
			}
		}
		synctest.Wait()
		store.open()
		held.Wait()
		require.Equal(t, 2, store.count())
		for i := range 50 {
			require.Equal(t, clock.Now().Add(time.Hour).UnixNano(), store.has(t, holdKey(flushed.Key(fmt.Sprint(i)))))
		}
	})
}

// A hold moves those in line, and the TAT behind them, on file too: they go when it is over, and a crash must not forget that.
func TestHoldOnALineIsDurable(t *testing.T) {
	for _, name := range []Name{leased, synced} {
		store, clock := newGateStore(), newGridClock()
		l := newLevels(t, store, levelLimits(t, Limit{Burst: 100, Count: 100, Period: time.Minute}, nil), clock, 0)
		key := name.Key("a")
		requireSpends(t, l, key, 100)
		r, err := l.Reserve(key, 10)
		require.NoError(t, err)
		require.Equal(t, 6*time.Second, r.Delay())
		require.NoError(t, l.Hold(key, clock.Now().Add(time.Hour)))
		require.Equal(t, time.Hour, r.Delay())
		require.GreaterOrEqual(t, store.has(t, key), clock.Now().Add(time.Hour+6*time.Second).UnixNano())
		clock.advance(time.Hour)
		_, err = l.Spend(key, 1)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

// Whoever waits for a disk that does not answer has an answer after CommitTimeout, and leaves no goroutine behind for each call.
func TestRoomOnADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevelsTimeout(t, store, levelLimits(t, ten, nil), newSimClock(), 1, 5*time.Second)
		requireSpends(t, l, flushed.Key("a"), 1)
		store.close()
		goroutines := runtime.NumGoroutine()
		for range 20 {
			begun := time.Now()
			_, err := l.Spend(flushed.Key("b"), 1)
			require.ErrorIs(t, err, ErrFull)
			require.Equal(t, 5*time.Second, time.Since(begun))
			requireSpends(t, l, flushed.Key("a"), 0) // what is in memory is decided
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+1)
		store.open()
		synctest.Wait()
		requireSpends(t, l, flushed.Key("b"), 1)
		require.NoError(t, l.Close())
	})
}

func TestHoldOnADiskThatDoesNotAnswer(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, clock *simClock) {
		key := flushed.Key("a")
		store.close()
		goroutines := runtime.NumGoroutine()
		for i := range 20 {
			require.ErrorIs(t, l.Hold(key, clock.Now().Add(time.Duration(i+1)*time.Hour)), ErrNotDurable)
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
		reset := make(chan error, 1)
		go func() { reset <- l.Reset(key) }()
		synctest.Wait()
		require.Empty(t, reset, "the holds may come yet")
		store.open()
		require.NoError(t, <-reset)
		requireSpends(t, l, key, 1)
		require.Zero(t, store.has(t, holdKey(key)))
	})
}

// A hold that comes late moves the line all the same, and leaves nothing to be waited for.
func TestLateHoldOnALine(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, clock *simClock) {
		key := synced.Key("a")
		requireSpends(t, l, key, 10)
		r := reserve(t, l, key, 5)
		store.close()
		require.ErrorIs(t, l.Hold(key, clock.Now().Add(time.Hour)), ErrNotDurable)
		require.Equal(t, time.Hour, r.Delay(), "it is in force at once")
		store.open()
		synctest.Wait()
		require.Equal(t, time.Hour, r.Delay())
		require.Equal(t, clock.Now().Add(time.Hour+5*time.Second).UnixNano(), store.has(t, key))
		require.Zero(t, l.Stats().Dirty)
		clock.advance(100 * time.Hour)
		for range 2 * sweepRounds {
			require.NoError(t, l.flusher.flush(false))
		}
		require.Zero(t, l.Stats().Resident)
	})
}

// Waiters whose commit is late leave no goroutines behind either.
func TestLateCommitsLeaveNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, clock := newGateStore(), newSimClock()
		l := newLevels(t, store, levelLimits(t, hundred, nil), clock, 0)
		store.close()
		before := runtime.NumGoroutine()
		for range 20 {
			_, err := l.Spend(synced.Key("a"), 1)
			require.ErrorIs(t, err, ErrNotDurable)
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
		store.open()
		synctest.Wait()
		require.EqualValues(t, 20, spent(t, l, synced.Key("a")))
		require.Zero(t, l.Stats().Dirty)
		require.NoError(t, l.Close())
	})
}

// A context that ends while a commit is waited for ends the wait, and its tokens are given back.
func TestWaitForACommitPastItsContext(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, _ *simClock) {
		key := synced.Key("a")
		store.close()
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errors.New("late"))
		defer cancel()
		ended := make(chan error)
		go func() { ended <- l.Wait(ctx, key, 10) }()
		pass(2 * time.Second)
		store.open()
		require.ErrorIs(t, <-ended, context.DeadlineExceeded)
		require.EqualValues(t, 10, spent(t, l, key), "its turn had come")
	})
}

// Nothing is saved behind Close: the file may be somebody else's by then.
func TestNoFlushAfterClose(t *testing.T) {
	store := newGateStore()
	l := newLevels(t, store, levelLimits(t, ten, nil), newSimClock(), 0)
	requireSpends(t, l, flushed.Key("a"), 1)
	require.NoError(t, l.Close())
	store.close() // a save would wait for ever
	require.ErrorIs(t, l.flusher.flush(true), ErrClosed)
}
