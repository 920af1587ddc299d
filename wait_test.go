package stint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/modeltest"
)

// inLine runs a test in a bubble, with a limiter on the bubble's time: single
// lets one through each second, and at most 5 may queue.
func inLine(t *testing.T, name string, test func(t *testing.T, r *rig)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			queue := PerSecond(1)
			queue.Queue = 5
			limits := limitsOf(t, testNames, map[Name]Limit{perID: PerMinute(5), single: queue})
			test(t, rigOn(t, NewMemStore(), limits, Options{Now: time.Now}))
		})
	})
}

// waiter is a goroutine in a queue.
type waiter struct {
	cancel context.CancelFunc
	err    error
	after  time.Duration // since it began
	done   atomic.Bool   // set last
}

// wait starts a waiter, and returns when it has its place.
func (r *rig) wait(key Key, cost int64) *waiter {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiter{cancel: cancel}
	begun := time.Now()
	go func() {
		_, w.err = r.Wait(ctx, key.Cost(cost))
		w.after = time.Since(begun)
		w.done.Store(true)
	}()
	synctest.Wait()
	return w
}

// waiters starts n waiters for one token each.
func (r *rig) waiters(key Key, n int) (ws []*waiter) {
	for range n {
		ws = append(ws, r.wait(key, 1))
	}
	return ws
}

func (w *waiter) require(t *testing.T, after time.Duration) {
	t.Helper()
	require.True(t, w.done.Load())
	require.NoError(t, w.err)
	require.Equal(t, after, w.after)
}

func TestWait(t *testing.T) {
	key := single.Key("a")
	inLine(t, "first come, first served", func(t *testing.T, r *rig) {
		ws := r.waiters(key, 6)
		ws[0].require(t, 0)
		require.ErrorIs(t, errorOf(r.Wait(t.Context(), key.Cost(1))), ErrQueueFull)
		_, err := r.Reserve(key.Cost(1))
		require.ErrorIs(t, err, ErrQueueFull)
		require.ErrorContains(t, err, "Single:a, the next turn is in 6s")
		require.Equal(t, 6*time.Second, r.spend(key, 1).RetryAfter, "Spend does not pass the queue")
		require.Equal(t, 5*time.Second, r.spend(key, 0).RetryAfter, "even for no tokens")
		for i, w := range ws[1:] {
			pass(time.Second - 1)
			require.False(t, w.done.Load())
			pass(1)
			w.require(t, time.Duration(i+1)*time.Second)
		}
		require.Equal(t, time.Second, r.spend(key, 1).RetryAfter)
		pass(time.Second)
		r.take(key, 1)
		require.Equal(t, LimitStats{Allowed: 7, Denied: 3, Errors: 2}, r.Stats().Limits[single])
	})
	inLine(t, "deadline", func(t *testing.T, r *rig) {
		r.take(key, 1)
		for range 3 {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second-1)
			_, err := r.Wait(ctx, key.Cost(1))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "stint: wait for Single:a: its turn would come too late: in 1s")
			require.Zero(t, time.Since(begun), "at once")
			cancel()
		}
		require.EqualValues(t, 3, r.Stats().Limits[single].Errors)
		require.Equal(t, time.Second, r.check(key, 1).RetryAfter, "nothing was taken")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+1)
		defer cancel()
		require.NoError(t, errorOf(r.Wait(ctx, key.Cost(1))))
		cancel()
		require.ErrorIs(t, errorOf(r.Wait(ctx, key.Cost(1))), context.Canceled)
	})
	inLine(t, "cancelled", func(t *testing.T, r *rig) {
		key := perID.Key("a")
		r.wait(key, 5).require(t, 0)
		w := r.wait(key, 3) // its turn is in 36 s
		pass(10 * time.Second)
		w.cancel()
		synctest.Wait()
		require.ErrorIs(t, w.err, context.Canceled)
		require.Equal(t, 2*time.Second, r.spend(key, 1).RetryAfter, "as without it")
		requireNoGates(t, r.Limiter)
	})
	inLine(t, "some leave", func(t *testing.T, r *rig) {
		for position := 1; position <= 5; position++ {
			ws := r.waiters(key, 6)
			ws[0].require(t, 0)
			ws[position].cancel()
			synctest.Wait()
			require.ErrorIs(t, ws[position].err, context.Canceled)
			last := r.wait(key, 1)
			for i, w := range append(slices.Delete(ws[1:], position-1, position), last) {
				pass(time.Second)
				w.require(t, time.Duration(i+1)*time.Second)
			}
			pass(time.Second)
			require.True(t, r.check(key, 1).Allowed)
		}
	})
	inLine(t, "the turn comes at once if the first leaves", func(t *testing.T, r *rig) {
		key := perID.Key("a")
		r.wait(key, 2).require(t, 0)
		first, second := r.wait(key, 5), r.wait(key, 3)
		require.False(t, second.done.Load())
		first.cancel()
		synctest.Wait()
		second.require(t, 0)
	})
	inLine(t, "who has left is not counted", func(t *testing.T, r *rig) {
		r.take(key, 1)
		ws := r.waiters(key, 5)
		require.ErrorIs(t, errorOf(r.Wait(t.Context(), key.Cost(1))), ErrQueueFull)
		for _, w := range ws[:4] {
			w.cancel()
		}
		synctest.Wait()
		require.Equal(t, 2*time.Second, r.check(key, 1).RetryAfter)
		for range 4 {
			r.wait(key, 1)
		}
		require.ErrorIs(t, errorOf(r.Wait(t.Context(), key.Cost(1))), ErrQueueFull)
	})
	inLine(t, "a hold that ended early is not counted", func(t *testing.T, r *rig) {
		r.take(key, 1)
		r.hold(key, time.Hour)
		w := r.wait(key, 1)
		require.NoError(t, r.SetHold(key, time.Time{}))
		next := r.wait(key, 1)
		pass(time.Hour)
		w.require(t, time.Hour)
		pass(time.Second)
		next.require(t, time.Hour+time.Second)
	})
	inLine(t, "impatient callers", func(t *testing.T, r *rig) {
		const elapsed = 100 * time.Second
		got, end := atomic.Int64{}, time.Now().Add(elapsed)
		for i := range 5 {
			go func() {
				time.Sleep(time.Duration(i) * 370 * time.Millisecond)
				for time.Now().Before(end) && t.Context().Err() == nil {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(1501*time.Millisecond, cancel) // nobody leaves at the instant of a turn
					_, err := r.Wait(ctx, key.Cost(1))
					if cancel(); err == nil {
						got.Add(1)
					} else if !errors.Is(err, context.Canceled) { // a loop that does not wait would stop the bubble's time
						t.Error(err)
						return
					}
				}
			}()
		}
		pass(elapsed - time.Millisecond)
		require.LessOrEqual(t, r.check(key, 1).RetryAfter, 6*time.Second, "five wait")
		require.EqualValues(t, 100, got.Load())
		pass(10 * time.Second)
	})
	inLine(t, "hold", func(t *testing.T, r *rig) {
		ws := r.waiters(key, 3)
		r.hold(key, 10*time.Second)
		pass(10*time.Second - 1)
		require.False(t, ws[1].done.Load())
		pass(1)
		ws[1].require(t, 10*time.Second)
		pass(time.Second)
		ws[2].require(t, 11*time.Second)
		r.hold(off.Key("a"), time.Second)
		w := r.wait(off.Key("a"), 1)
		pass(time.Second)
		w.require(t, time.Second)
	})
	inLine(t, "close", func(t *testing.T, r *rig) {
		ws := r.waiters(key, 3)
		place := r.reserve(key, 1)
		require.NoError(t, r.Close())
		synctest.Wait()
		for _, w := range ws[1:] {
			require.True(t, w.done.Load())
			require.ErrorIs(t, w.err, ErrClosed)
			require.Zero(t, w.after)
		}
		place.Cancel()
		require.Equal(t, 3*time.Second, place.Delay())
	})
	inLine(t, "reset", func(t *testing.T, r *rig) {
		ws := r.waiters(key, 3)
		require.NoError(t, r.Reset(key))
		r.take(key, 1)
		pass(time.Second)
		ws[1].require(t, time.Second)
		ws[2].cancel()
		synctest.Wait()
		require.ErrorIs(t, ws[2].err, context.Canceled)
	})
	inLine(t, "new limits", func(t *testing.T, r *rig) {
		ws := r.waiters(key, 4)
		for i, limit := range []Limit{PerHour(1), PerSecond(1000)} {
			require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{single: limit})))
			require.False(t, r.spend(key, 1).Allowed, "the queue keeps its times")
			pass(time.Second)
			ws[i+1].require(t, time.Duration(i+1)*time.Second)
		}
		pass(time.Second)
		ws[3].require(t, 3*time.Second)
		pass(time.Second)
		require.True(t, r.Allow(key), "by the new limit")
	})
	t.Run("a step of the wall clock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, err := New(NewMemStore(), testLimits(t), nil)
			require.NoError(t, err)
			defer l.Close()
			wall := setWall(l.clock)
			r, key := &rig{Limiter: l, t: t}, perID.Key("a")
			r.wait(key, 5).require(t, 0)
			w := r.wait(key, 5)
			wall.Store(int64(50 * time.Second))
			pass(time.Second) // the flusher follows the clock
			require.False(t, w.done.Load())
			pass(9 * time.Second)
			w.require(t, 10*time.Second)
		})
	})
}

func TestReserve(t *testing.T) {
	key := perID.Key("a") // a token in 12 s
	inLine(t, "places", func(t *testing.T, r *rig) {
		require.Zero(t, r.reserve(key, 3).Delay())
		require.Zero(t, r.reserve(key, 2).Delay())
		first, second := r.reserve(key, 1), r.reserve(key, 5)
		require.Equal(t, 12*time.Second, first.Delay())
		require.Equal(t, 72*time.Second, second.Delay())
		pass(10 * time.Second)
		require.Equal(t, 2*time.Second, first.Delay())
		second.Cancel()
		second.Cancel()
		require.Equal(t, 14*time.Second, r.reserve(key, 1).Delay(), "behind the first")
		pass(14 * time.Second)
		require.Zero(t, first.Delay())
	})
	t.Run("a queue that never ends does not grow", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: PerSecond(1000).WithBurst(10)}), Options{})
		r.spend(key, 10)
		for range 3 {
			r.reserve(key, 1)
		}
		for range 2_000 {
			r.clock.Advance(time.Millisecond)
			require.Equal(t, 3*time.Millisecond, r.reserve(key, 1).Delay())
			require.False(t, r.spend(key, 1).Allowed)
		}
		s, _ := r.cache.Shard(uint16(key.Name), key.ID)
		require.LessOrEqual(t, s.GateLocked(cacheKey(key)).Queue.Len(), 4)
	})
}

// TestResetQueue resets a bucket that is full, except for its queue. When Reset
// returns nil, the disk has the bucket without the queue. If Reset fails, the
// queue stays.
func TestResetQueue(t *testing.T) {
	for _, name := range []Name{leased, synced} {
		r, key := newLevels(t, ten), name.Key("a")
		r.take(key, 10)
		r.reserve(key, 10)
		r.refund(key, 10)
		require.NotZero(t, r.stored(key))
		before := r.check(key, 1)
		r.disk.fail(errDisk, "save")
		require.ErrorIs(t, r.Reset(key), ErrNotDurable)
		require.Equal(t, before, r.check(key, 1))
		r.disk.fail(nil)
		require.NoError(t, r.Reset(key))
		require.Zero(t, r.stored(key))
	}
}

// TestResetHold: a Hold fails, but the store has the hold. The flush that is to
// delete it fails, too. A Reset during that flush returns nil, so a crash does
// not bring the hold back.
func TestResetHold(t *testing.T) {
	r, key := newLevels(t, ten), synced.Key("a")
	r.disk.on(func(op storeOp) error {
		if op.name == "save" && op.done {
			return errDisk
		}
		return nil
	})
	require.ErrorIs(t, errorOf(r.Hold(key, r.clock.Now().Add(time.Hour))), ErrNotDurable)
	reset := make(chan error, 1)
	r.disk.on(func(op storeOp) error {
		if op.name != "save" {
			return nil
		}
		r.disk.on(nil)
		go func() { reset <- r.Reset(key) }()
		for len(reset) == 0 && !inCommit(r.Limiter, key) { // until it has ended, or waits for its commit
			runtime.Gosched()
		}
		return errDisk
	})
	require.ErrorIs(t, r.Flush(), errDisk)
	require.NoError(t, <-reset)
	require.True(t, r.next(levelLimits(t, ten)).check(key, 1).Allowed)
}

// TestFailedReset: a bucket waits no longer than an empty one of its
// limit, also after a reset of it has failed.
func TestFailedReset(t *testing.T) {
	r, key := newLevels(t, hundred), synced.Key("a")
	save(t, r.disk, Change{key, r.tat(1000)})
	r.disk.fail(errDisk, "save")
	require.ErrorIs(t, r.Reset(key), ErrNotDurable)
	require.Equal(t, time.Hour, r.check(key, 1).RetryAfter)
}

// A Reset empties the bucket's queue. A Wait that ends after that gives nothing
// back, because its turn was not charged. The same is true if the Reset fails.
func TestWaitReset(t *testing.T) {
	for _, name := range []Name{inMemory, flushed, leased, synced} {
		key := name.Key("a")
		inBubbleNamed(t, fmt.Sprint(Durability(name)), func(t *testing.T, r *rig) {
			r.take(key, 10)
			w := r.wait(key, 8)
			require.NoError(t, r.Reset(key))
			r.take(key, 10)
			w.cancel()
			synctest.Wait()
			require.ErrorIs(t, w.err, context.Canceled)
			require.EqualValues(t, 0, r.left(key))
		})
		if name < leased {
			continue
		}
		inBubbleNamed(t, fmt.Sprint(Durability(name), ", which fails"), func(t *testing.T, r *rig) {
			r.take(key, 10)
			w := r.wait(key, 8)
			r.disk.shut()
			reset := begin(func() error { return r.Reset(key) })
			w.cancel()
			synctest.Wait()
			r.disk.gate <- errDisk
			require.ErrorIs(t, <-reset, ErrNotDurable)
			r.disk.open()
			synctest.Wait()
			require.ErrorIs(t, w.err, context.Canceled)
			require.Equal(t, time.Second, r.check(key, 1).RetryAfter, "all 10 are spent, and nobody waits")
		})
	}
}

// ctx ends during the commit of a Wait, and the commit of what Wait gives back
// fails. The tokens are back in memory, and the next flush saves them.
func TestWaitGiveBackFails(t *testing.T) {
	for _, name := range []Name{leased, synced} {
		for _, limit := range []Limit{{Burst: 10, Count: 1, Period: time.Hour}, EachMonth(10, nil)} {
			t.Run(fmt.Sprint(Durability(name), "/", limit), func(t *testing.T) {
				inBubble(t, limit, Options{}, func(t *testing.T, r *rig) {
					key := name.Key("a")
					r.disk.shut()
					w := r.wait(key, 4)
					w.cancel()
					r.disk.gate <- nil
					r.disk.gate <- errDisk
					r.disk.open()
					synctest.Wait()
					require.ErrorIs(t, w.err, context.Canceled)
					require.EqualValues(t, 0, r.spent(key))
					require.NoError(t, r.Flush())
					require.EqualValues(t, 0, r.next(r.Limits()).spent(key))
				})
			})
		}
	}
}

// Midnight passes while Wait loads the bucket. What it gives back belongs to the
// day of the spend.
func TestWaitGiveBackPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, quota := modeltest.NewClock(), EachDay(10, nil)
		clock.Set(time.Date(2026, 11, 23, 23, 59, 59, 0, time.UTC).UnixNano())
		quota.Durability = Synced
		r := rigAt(t, clock, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: quota}), Options{})
		key := perID.Key("a")
		loads := 0
		r.disk.on(func(op storeOp) error {
			if op.key != key || op.done {
				return nil
			}
			if loads++; loads == 3 { // of the spend: two come before it
				clock.Advance(2 * time.Second)
			}
			return nil
		})
		r.disk.shut()
		w := r.wait(key, 4)
		require.Equal(t, 3, loads)
		w.cancel()
		r.disk.open()
		synctest.Wait()
		require.ErrorIs(t, w.err, context.Canceled)
		require.EqualValues(t, 0, r.spent(key))
	})
}

// A rolling limit becomes a quota that follows the calendar: what waits is
// charged at once. A Wait that ends later gives nothing back to any period.
func TestWaitBecomesQuota(t *testing.T) {
	key := perID.Key("a")
	for _, day := range []bool{false, true} {
		t.Run(fmt.Sprint("in the next period=", day), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
				r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: PerDay(10)}), Options{Now: time.Now})
				r.take(key, 10)
				w := r.wait(key, 10) // its turn comes at the next midnight
				pass(12 * time.Hour)
				quota := EachDay(12, nil).StartingAt(18 * time.Hour)
				require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: quota}))
				require.EqualValues(t, 12, r.spent(key), "5 of the 10, and those that wait")
				if day {
					pass(7 * time.Hour)
					require.EqualValues(t, 0, r.spent(key))
					r.take(key, 12)
				}
				w.cancel()
				synctest.Wait()
				require.ErrorIs(t, w.err, context.Canceled)
				require.EqualValues(t, 12, r.spent(key))
			})
		})
	}
}

// The same while the commit of a Reset is under way that has emptied the queue:
// if it fails, what waited is charged, and the quota has no queue.
func TestWaitBecomesQuotaInReset(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails=", fails), func(t *testing.T) {
			inBubble(t, ten, Options{}, func(t *testing.T, r *rig) {
				key := synced.Key("a")
				r.take(key, 10)
				r.reserve(key, 5)
				left := r.reserve(key, 3)
				r.disk.shut()
				reset := begin(func() error { return r.Reset(key) })
				left.Cancel()
				quota := EachDay(20, nil).withLevel(Synced)
				_, load, err := r.setOverrides([]Override{{Key: key, Limit: quota}}, nil) // it waits for no save
				require.NoError(t, err)
				require.Nil(t, load)
				require.EqualValues(t, 0, r.spent(key))
				want := int64(0)
				if fails {
					r.disk.gate <- errDisk
					require.ErrorIs(t, <-reset, ErrNotDurable)
					want = 15
				}
				r.disk.open()
				if !fails {
					require.NoError(t, <-reset)
				}
				require.EqualValues(t, want, r.spent(key))
				require.Empty(t, slices.Collect(r.Held()), "a quota has no queue")
				r.take(key, 20-want)
			})
		})
	}
}

// The turn of a Wait at a bucket without a limit takes nothing, so nothing comes
// back if there is a limit when it ends.
func TestWaitBecomesLimited(t *testing.T) {
	inLine(t, "held", func(t *testing.T, r *rig) {
		key := off.Key("a")
		r.hold(key, time.Hour)
		w := r.wait(key, 3)
		require.NoError(t, r.SetOverrides(Override{Key: off.Key("a"), Limit: PerHour(5)}))
		require.NoError(t, r.SetHold(key, time.Time{}))
		r.take(key, 5)
		w.cancel()
		synctest.Wait()
		require.ErrorIs(t, w.err, context.Canceled)
		require.EqualValues(t, 0, r.left(key))
	})
}

// TestCancelOfLeased: what a Cancel returns is on disk, except for a lease.
func TestCancelOfLeased(t *testing.T) {
	r, key := newLevels(t, hundred), leased.Key("a")
	r.take(key, 50)
	r.reserve(key, 100).Cancel()
	require.LessOrEqual(t, r.stored(key), r.tat(50)+100*hour/8)
}

// inBubbleNamed runs a subtest in a bubble, with the limit ten at each level.
func inBubbleNamed(t *testing.T, name string, test func(t *testing.T, r *rig)) {
	t.Run(name, func(t *testing.T) { inBubble(t, ten, Options{CommitTimeout: 5 * time.Second}, test) })
}

// A Wait whose context ends is no error, even if the tokens cannot be given back.
func TestWaitEndsUncounted(t *testing.T) {
	limit := PerHour(5)
	limit.Durability = Synced
	r := rigOn(t, NewMemStore(), limitsOf(t, Names{1: {Label: "one", Limit: limit}}, nil), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	saves := 0
	r.disk.on(func(op storeOp) error {
		if op.name == "save" && !op.done {
			cancel()
			if saves++; saves > 1 {
				return errDisk
			}
		}
		return nil
	})
	require.ErrorIs(t, errorOf(r.Wait(ctx, Name(1).Key("x").Cost(2))), context.Canceled)
	require.Zero(t, r.Stats().Limits[1].Errors)
	r.disk.on(nil)
}

// A Reset whose commit fails puts the queue back that it found, without the
// turns that were left since.
func TestResetFails(t *testing.T) {
	key := synced.Key("a")
	// prepare empties the bucket, queues two requests of 5, and resets it. The
	// Reset fails when `fail` is called.
	prepare := func(t *testing.T, r *rig) (places [2]Reservation, fail func()) {
		r.take(key, 10)
		for i := range places {
			places[i] = r.reserve(key, 5)
		}
		r.disk.shut()
		reset := begin(func() error { return r.Reset(key) })
		return places, func() {
			r.disk.gate <- errDisk
			require.ErrorIs(t, <-reset, ErrNotDurable)
			r.disk.open()
			synctest.Wait()
			eachGate(r.Limiter, func(_ Key, g *cache.Gate) {
				require.Equal(t, g.Queue.Len() > 0, g.BusyLocked(), "a reset in a commit")
			})
		}
	}
	inBubbleNamed(t, "the queue is back", func(t *testing.T, r *rig) {
		places, fail := prepare(t, r)
		fail()
		require.Equal(t, 5*time.Second, places[0].Delay())
		require.Equal(t, 11*time.Second, r.check(key, 1).RetryAfter)
		r.clock.Advance(10 * time.Second)
		require.EqualValues(t, 0, r.left(key), "both turns are charged")
	})
	inBubbleNamed(t, "one turn has left", func(t *testing.T, r *rig) {
		places, fail := prepare(t, r)
		places[1].Cancel()
		fail()
		require.Equal(t, 6*time.Second, r.check(key, 1).RetryAfter)
		r.clock.Advance(5 * time.Second)
		r.clock.Advance(time.Second)
		r.take(key, 1)
	})
	inBubbleNamed(t, "both have left", func(t *testing.T, r *rig) {
		places, fail := prepare(t, r)
		places[0].Cancel()
		places[1].Cancel()
		fail()
		require.Equal(t, time.Second, r.check(key, 1).RetryAfter)
		r.clock.Advance(time.Second)
		r.take(key, 1)
	})
	inBubbleNamed(t, "a turn has left, and a hold comes", func(t *testing.T, r *rig) {
		places, fail := prepare(t, r)
		places[0].Cancel()
		held := begin(func() error { return errorOf(r.Hold(key, r.Now().Add(7*time.Second))) })
		fail()
		require.NoError(t, <-held)
		require.Equal(t, 7*time.Second, places[1].Delay(), "it moves up, to the end of the hold")
		require.Equal(t, 7*time.Second, r.check(key, 1).RetryAfter)
	})
	inBubbleNamed(t, "other limits come", func(t *testing.T, r *rig) {
		places, fail := prepare(t, r)
		done := make(chan error, 1)
		// The overrides of one id are in force before the save has ended, and those of
		// others too.
		slow := Limit{Burst: 10, Count: 1, Period: 2 * time.Second, Durability: Synced}
		go func() { done <- r.SetOverrides(Override{Key: synced.Key("a"), Limit: slow}) }()
		for limit := r.Limits().For(key); limit != slow; limit = r.Limits().For(key) {
			runtime.Gosched()
		}
		require.NoError(t, r.SetOverrides(Override{Key: synced.Key("b"), Limit: Blocked}))
		require.False(t, r.spend(synced.Key("b"), 1).Allowed)
		fail()
		require.NoError(t, <-done)
		require.Equal(t, 5*time.Second, places[0].Delay(), "turns keep their times")
		r.clock.Advance(10 * time.Second)
		require.EqualValues(t, 0, r.left(key), "at the new rate")
	})
	inBubbleNamed(t, "the turn's own commit fails, too", func(t *testing.T, r *rig) {
		r.take(key, 10)
		r.disk.shut()
		reserved := begin(func() error { return errorOf(r.Reserve(key.Cost(5))) })
		reset := begin(func() error { return r.Reset(key) })
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-reserved, ErrNotDurable)
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-reset, ErrNotDurable)
		r.disk.open()
		require.Equal(t, time.Second, r.check(key, 1).RetryAfter, "the turn belongs to no caller")
	})
}

// TestWaitClose: the context of a Wait ends during the commit, and the Limiter is
// closed before the commit has ended. If Wait returns the error of the context,
// nothing stays spent.
func TestWaitClose(t *testing.T) {
	for _, limit := range []Limit{PerHour(10), EachYear(10, nil)} {
		t.Run(limit.String(), func(t *testing.T) {
			inBubble(t, limit, Options{}, func(t *testing.T, r *rig) {
				key := synced.Key("a")
				r.disk.shut()
				w := r.wait(key, 3)
				w.cancel()
				closed := begin(r.Close)
				r.disk.gate <- nil
				r.disk.open()
				require.NoError(t, <-closed)
				synctest.Wait()
				require.ErrorIs(t, w.err, context.Canceled)
				require.ErrorIs(t, errorOf(r.Wait(t.Context(), key.Cost(3))), ErrClosed)
				require.EqualValues(t, 10, r.next(r.Limits()).bucket(key).Remaining)
			})
		})
	}
}

// A reservation can be cancelled while its Name has no limits.
func TestCancelWithoutLimits(t *testing.T) {
	r, key := newLevels(t, PerMinute(1)), flushed.Key("a")
	var places []Reservation
	for range 10 {
		places = append(places, r.reserve(key, 1))
	}
	without := limitsOf(t, Names{9: {Label: "other", Limit: Unlimited}}, nil)
	for _, limits := range []*Limits{without, r.Limits()} {
		require.NoError(t, r.SetLimits(limits))
		for _, place := range places {
			place.Cancel()
		}
	}
	require.LessOrEqual(t, r.check(key, 1).RetryAfter, time.Minute)
	require.LessOrEqual(t, r.reserve(key, 1).Delay(), time.Minute)
}

// The first in the line for a quota does not sleep through tokens that come before
// the period ends, and those behind it do not either.
func TestWaitForEarlierTokens(t *testing.T) {
	takeAll := func(r *rig, key Key) { r.take(key, 10) }
	for name, c := range map[string]struct {
		empty, refill func(r *rig, key Key)
		within        time.Duration
	}{
		"a larger limit, set for the id": {takeAll, func(r *rig, key Key) {
			require.NoError(r.t, r.SetOverrides(Override{Key: key, Limit: EachMonth(1000, nil)}))
		}, 0},
		"a larger limit, set for all": {takeAll, func(r *rig, key Key) {
			require.NoError(r.t, r.SetLimits(levelLimits(r.t, EachMonth(1000, nil))))
		}, 0},
		"a hold that is released": {func(r *rig, key Key) { r.hold(key, time.Hour) }, func(r *rig, key Key) {
			require.NoError(r.t, r.SetHold(key, time.Time{}))
		}, lookEvery},
		"a reset":  {takeAll, func(r *rig, key Key) { require.NoError(r.t, r.Reset(key)) }, lookEvery},
		"a refund": {takeAll, func(r *rig, key Key) { r.refund(key, 2) }, lookEvery},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, EachMonth(10, nil), Options{}, func(t *testing.T, r *rig) {
				key := flushed.Key("a")
				c.empty(r, key)
				var waits [2]chan error
				for i := range waits {
					waits[i] = begin(func() error { return errorOf(r.Wait(t.Context(), key.Cost(1))) })
				}
				<-time.After(10*time.Minute + time.Second) // the first in the line has just looked
				begun := time.Now()
				c.refill(r, key)
				require.NoError(t, <-waits[0])
				require.NoError(t, <-waits[1])
				require.LessOrEqual(t, time.Since(begun), c.within)
			})
		})
	}
}

// Who waits first for a quota of the calendar is served first if a rate takes its
// place.
func TestWaitForRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		day := limitsOf(t, Names{1: {Label: "a", Limit: EachDay(1, nil)}}, nil)
		l := rigOn(t, NewMemStore(), day, Options{Now: time.Now})
		defer l.Close()
		key := Name(1).Key("x")
		l.take(key, 1)
		served := make(chan int, 12)
		wait := func(who int) {
			go func() {
				if _, err := l.Wait(t.Context(), key.Cost(1)); err == nil {
					served <- who
				}
			}()
			time.Sleep(time.Second)
		}
		wait(0)
		wait(1)
		require.NoError(t, l.SetLimits(limitsOf(t, Names{1: {Label: "a", Limit: PerMinute(1)}}, nil)))
		for who := range 10 {
			wait(2 + who)
		}
		for who := range 12 {
			require.Equal(t, who, <-served)
		}
	})
}

// A Mode that there is not is refused, except by calls that ignore it.
func TestIgnoredMode(t *testing.T) {
	r := newRig(t)
	plain := Request{Key: perID.Key("x"), Cost: 1, Mode: UpTo + 1}
	require.NoError(t, errorOf(r.Reserve(plain)))
	require.ErrorContains(t, r.DoEach(t.Context(), []Request{plain}, make([]Decision, 1)), "there is no Mode")
}
