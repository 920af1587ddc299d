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

// What a commit that failed gives back is not what somebody in line waits for.
func TestGiveBackLeavesTheLineItsTokens(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, _ *simClock) {
		key := synced.Key("a")
		store.close()
		go l.Spend(key, 5)
		synctest.Wait()
		var r Reservation
		go func() { r, _ = l.Reserve(key, 10) }() // its turn comes in 5s
		synctest.Wait()
		store.gate <- refuse
		store.open()
		synctest.Wait()
		require.Equal(t, 15*time.Second, resetAfterOf(t, l, key))
		require.Equal(t, 5*time.Second, r.Delay())
	})
}

// A reservation whose commit fails gives back all that it took: nobody waits for it any more.
func TestGiveBackOfAReservation(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, _ *simClock) {
		key := synced.Key("a")
		requireSpends(t, l, key, 5)
		store.close()
		go l.Reserve(key, 10)
		synctest.Wait()
		store.gate <- refuse
		store.open()
		synctest.Wait()
		require.Equal(t, 5*time.Second, resetAfterOf(t, l, key))
		requireSpends(t, l, key, 5)
	})
}

// A Reset has given back already what was spent before it.
func TestGiveBackAfterReset(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, _ *simClock) {
		key := synced.Key("a")
		store.close()
		go l.Spend(key, 5)
		synctest.Wait()
		go l.Reset(key)
		synctest.Wait()
		go l.Spend(key, 10)
		synctest.Wait()
		store.gate <- refuse
		store.open()
		synctest.Wait()
		require.Equal(t, 10*time.Second, resetAfterOf(t, l, key))
		st := l.Stats().Limits[synced]
		require.EqualValues(t, 1, st.Allowed, "the one that was not made durable is not counted")
		require.EqualValues(t, 1, st.Errors)
	})
}

// A Reset of another bucket, in the same shard, has nothing to do with it.
func TestGiveBackAfterResetOfAnother(t *testing.T) {
	limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, _ *simClock) {
		key := synced.Key("a")
		var other Key
		for i := 0; other == (Key{}); i++ {
			k := synced.Key(fmt.Sprint(i))
			shard, hash := l.table.shard(key)
			if s, h := l.table.shard(k); s == shard && s.resetsOf(h) != s.resetsOf(hash) {
				other = k
			}
		}
		store.close()
		go l.Spend(key, 5)
		synctest.Wait()
		go l.Reset(other)
		synctest.Wait()
		store.gate <- refuse
		store.open()
		synctest.Wait()
		require.Zero(t, resetAfterOf(t, l, key))
	})
}

// A smaller limit has given back already what was spent before it, whenever the commit of that fails.
func TestGiveBackAfterSetLimits(t *testing.T) {
	l := newLevels(t, newGateStore(), levelLimits(t, hundred, nil), newGridClock(), 0)
	key := synced.Key("a")
	requireSpends(t, l, key, 95)
	now := l.clock.now()
	p := place{key: key, batch: new(batch), took: 5 * int64(time.Hour), next: now + 95*int64(time.Hour)}
	require.NoError(t, p.locate(l.table))
	p.reset = *p.shard.resetsOf(p.hash)
	require.NoError(t, l.SetLimits(levelLimits(t, Limit{Burst: 10, Count: hundred.Count, Period: hundred.Period}, nil)))
	require.EqualValues(t, 10, spent(t, l, key))
	p.shard.mu.Lock()
	b, _ := p.slotLocked()
	p.shard.giveBackLocked(b, &p, now)
	p.shard.mu.Unlock()
	require.EqualValues(t, 10, spent(t, l, key))
	require.NoError(t, l.Close())
}

// Those whose tokens were in the same commit are given back all of them, whoever hears of its failure first.
func TestGiveBackOfSeveral(t *testing.T) {
	for _, second := range []func(l *Limiter, key Key){
		func(l *Limiter, key Key) { l.Reserve(key, 10) },
		func(l *Limiter, key Key) { l.Spend(key, 10) },
	} {
		limitToTen(t, func(t *testing.T, l *Limiter, store *gateStore, _ *simClock) {
			key := synced.Key("a")
			store.close()
			go l.Spend(synced.Key("other"), 1) // is in a commit while the next is made up
			synctest.Wait()
			go second(l, key)
			synctest.Wait()
			go l.Reserve(key, 10)
			synctest.Wait()
			store.gate <- carryOut
			synctest.Wait()
			store.gate <- refuse
			store.open()
			synctest.Wait()
			requireSpends(t, l, key, 10)
		})
	}
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
		require.GreaterOrEqual(t, store.has(t, key), clock.Now().Add(time.Hour+time.Minute).UnixNano())
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
		l := newLevels(t, store, levelLimits(t, ten, nil), newSimClock(), 1)
		l.opts.CommitTimeout = 5 * time.Second
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
		store.gate <- carryOut // the first, and then all of the others
		synctest.Wait()
		d, err := l.Check(key, 1)
		require.NoError(t, err)
		require.Equal(t, time.Hour, d.RetryAfter)
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
		require.Equal(t, 5*time.Second, r.Delay())
		store.open()
		synctest.Wait()
		require.Equal(t, time.Hour, r.Delay())
		require.Equal(t, clock.Now().Add(time.Hour+10*time.Second).UnixNano(), store.has(t, key))
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
		requireSpends(t, l, key, 10)
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
