package stint

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inBubble runs f with a limiter of the bubble's own clock, on a bbolt file: with one token a second, one at a time, of
// which at most 5 wait, for single, and the other test limits.
func inBubble(t *testing.T, f func(t *testing.T, l *Limiter)) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(filepath.Join(t.TempDir(), "buckets.db"), lineLimits(t), &Options{FlushInterval: time.Minute})
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		f(t, l)
	})
}

func lineLimits(t testing.TB) *Limits {
	defaults := testDefaults()
	line := PerSecond(1)
	line.Queue = 5
	defaults[single] = line
	return limitsOf(t, testNames, defaults)
}

// waiter is a goroutine in line.
type waiter struct {
	cancel context.CancelFunc
	err    error
	after  time.Duration // since it began
	done   atomic.Bool   // the last that is set
}

// wait begins to wait in line, and returns when its place is taken.
func wait(l *Limiter, key Key, cost int64) *waiter {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiter{cancel: cancel}
	begun := time.Now()
	go func() {
		w.err = l.Wait(ctx, key, cost)
		w.after = time.Since(begun)
		w.done.Store(true)
	}()
	synctest.Wait()
	return w
}

func (w *waiter) require(t *testing.T, after time.Duration) {
	t.Helper()
	require.True(t, w.done.Load())
	require.NoError(t, w.err)
	require.Equal(t, after, w.after)
}

func reserve(t *testing.T, l *Limiter, key Key, cost int64) Reservation {
	t.Helper()
	r, err := l.Reserve(key, cost)
	require.NoError(t, err)
	return r
}

func TestWait(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := single.Key("a")
		var line []*waiter
		for range 6 {
			line = append(line, wait(l, key, 1))
		}
		line[0].require(t, 0)
		require.ErrorIs(t, l.Wait(t.Context(), key, 1), ErrQueueFull)
		_, err := l.Reserve(key, 1)
		require.ErrorIs(t, err, ErrQueueFull)
		require.ErrorContains(t, err, "4:a, the next turn is in 6s")
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.False(t, d.Allowed, "a line stands")
		require.Equal(t, 6*time.Second, d.RetryAfter)
		d, err = l.Spend(key, 0)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, d.RetryAfter)
		require.False(t, d.Allowed, "not even for nothing")
		for i, w := range line[1:] {
			pass(time.Second - 1)
			require.False(t, w.done.Load())
			pass(1)
			w.require(t, time.Duration(i+1)*time.Second)
		}
		d, err = l.Spend(key, 1)
		require.NoError(t, err)
		require.Equal(t, time.Second, d.RetryAfter)
		pass(time.Second)
		require.True(t, l.Allow(key))
		require.Equal(t, LimitStats{Allowed: 7, Denied: 3, Errors: 2}, l.Stats().Limits[single])
	})
}

func TestReserve(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a") // a token in 12s
		require.Zero(t, reserve(t, l, key, 3).Delay())
		require.Zero(t, reserve(t, l, key, 2).Delay())
		first, second := reserve(t, l, key, 1), reserve(t, l, key, 5)
		require.Equal(t, 12*time.Second, first.Delay())
		require.Equal(t, 72*time.Second, second.Delay())
		pass(10 * time.Second)
		require.Equal(t, 2*time.Second, first.Delay())
		second.Cancel()
		second.Cancel()
		require.Equal(t, 14*time.Second, reserve(t, l, key, 1).Delay(), "behind the first")
		pass(14 * time.Second)
		require.Zero(t, first.Delay())
		require.Zero(t, Reservation{}.Delay())
		Reservation{}.Cancel()
	})
}

func TestWaitDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := single.Key("a")
		require.True(t, l.Allow(key))
		for range 3 {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second-1)
			err := l.Wait(ctx, key, 1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "stint: wait for 4:a: its turn would come too late: in 1s")
			require.Zero(t, time.Since(begun), "at once")
			cancel()
		}
		d, err := l.Check(key, 1)
		require.NoError(t, err)
		require.Equal(t, time.Second, d.RetryAfter, "nothing was taken")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+1)
		defer cancel()
		require.NoError(t, l.Wait(ctx, key, 1))
		cancel()
		require.ErrorIs(t, l.Wait(ctx, key, 1), context.Canceled)
	})
}

func TestWaitCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		wait(l, key, 5).require(t, 0)
		w := wait(l, key, 3) // in 36s
		pass(10 * time.Second)
		w.cancel()
		synctest.Wait()
		require.ErrorIs(t, w.err, context.Canceled)
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, d.RetryAfter, "as if it had never been there")
		l.directory.each(func(s *shard) { require.Empty(t, s.gates, "nor is there a line any more") })
	})
}

// admission is what was let through at an instant.
type admission struct {
	at   time.Duration
	cost int64
}

// requireExact requires that no stretch of time has more than the limit allows in it.
func requireExact(t *testing.T, limit Limit, log []admission) {
	t.Helper()
	for _, from := range log {
		for _, to := range log {
			if to.at < from.at {
				continue
			}
			sum := int64(0)
			for _, a := range log {
				if a.at >= from.at && a.at <= to.at {
					sum += a.cost
				}
			}
			require.LessOrEqual(t, time.Duration(sum-limit.Burst)*limit.Interval(), to.at-from.at, "%v", log)
		}
	}
}

// Whoever leaves the line, or is held in it: those who stay are as far apart as the limit wants.
func TestLineIsExact(t *testing.T) {
	for _, tc := range []struct {
		what string
		do   func(t *testing.T, l *Limiter, key Key, line []Reservation) (cancelled []int)
	}{
		{"one in the middle leaves", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			line[1].Cancel()
			return []int{1}
		}},
		{"all but the last leave", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			for _, r := range line[:3] {
				r.Cancel()
			}
			return []int{0, 1, 2}
		}},
		{"the last leaves", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			line[3].Cancel()
			return []int{3}
		}},
		{"the last leave, when the others have gone", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			pass(line[1].Delay() + 1)
			line[2].Cancel()
			line[3].Cancel()
			return []int{2, 3}
		}},
		{"what was spent before is given back", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			for range 2 {
				_, err := l.RefundAll(Request{Key: key, Cost: 1})
				require.NoError(t, err)
			}
			return nil
		}},
		{"it is held", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			require.NoError(t, l.Hold(key, time.Now().Add(5*time.Minute)))
			for range 3 {
				reserve(t, l, key, 1)
			}
			return nil
		}},
		{"it is held before anyone waits", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			for _, r := range line {
				r.Cancel()
			}
			require.NoError(t, l.Hold(key, time.Now().Add(5*time.Minute)))
			return []int{0, 1, 2, 3}
		}},
		{"it is held after some have gone", func(t *testing.T, l *Limiter, key Key, line []Reservation) []int {
			pass(line[1].Delay())
			require.NoError(t, l.Hold(key, time.Now().Add(5*time.Minute)))
			return nil
		}},
	} {
		for _, limit := range []Limit{PerMinute(5), PerMinute(5).WithBurst(1), PerMinute(5).WithBurst(2)} {
			inBubble(t, func(t *testing.T, l *Limiter) {
				require.NoError(t, l.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: limit})))
				key, begun := perID.Key("a"), time.Now()
				reserve(t, l, key, limit.Burst)
				log := []admission{{0, limit.Burst}}
				var line []Reservation
				for range 4 {
					line = append(line, reserve(t, l, key, 1))
				}
				gone := make(map[int]bool)
				for _, i := range tc.do(t, l, key, line) {
					gone[i] = true
				}
				changed, held := time.Now().UnixNano(), int64(0)
				if b := listBuckets(t, l.Buckets(perID))[key]; !b.HeldUntil.IsZero() {
					held = b.HeldUntil.UnixNano()
				}
				for range 6 {
					line = append(line, reserve(t, l, key, 1))
				}
				for i, r := range line {
					if !gone[i] {
						at := r.turn.At
						if at > changed { // not gone before it was held
							at = max(at, held)
						}
						log = append(log, admission{time.Duration(at - begun.UnixNano()), 1})
					}
				}
				if tc.what == "what was spent before is given back" {
					log[0].cost = max(0, log[0].cost-2)
				}
				requireExact(t, limit, log)
				pass(15 * time.Minute)
				for range sweepRounds + 1 {
					require.NoError(t, l.Flush())
				}
				require.Zero(t, l.Stats().Resident, "%s: all is as if nothing had been", tc.what)
			})
		}
	}
}

func TestSetLimitsKeepsPlaces(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := single.Key("a")
		line := []*waiter{wait(l, key, 1), wait(l, key, 1), wait(l, key, 1), wait(l, key, 1)}
		for i, limit := range []Limit{PerHour(1), PerSecond(1000)} {
			require.NoError(t, l.SetLimits(limitsOf(t, testNames, map[Name]Limit{single: limit})))
			d, err := l.Spend(key, 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "the line stands")
			require.GreaterOrEqual(t, d.Remaining, int64(0))
			pass(time.Second)
			line[i+1].require(t, time.Duration(i+1)*time.Second)
		}
		pass(time.Second)
		line[3].require(t, 3*time.Second)
		pass(time.Second)
		require.True(t, l.Allow(key), "by the new limit")
	})
}

func TestHoldDuringWait(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := single.Key("a")
		line := []*waiter{wait(l, key, 1), wait(l, key, 1), wait(l, key, 1)}
		require.NoError(t, l.Hold(key, time.Now().Add(10*time.Second)))
		pass(10*time.Second - 1)
		require.False(t, line[1].done.Load())
		pass(1)
		line[1].require(t, 10*time.Second)
		pass(time.Second)
		line[2].require(t, 11*time.Second)

		require.NoError(t, l.Hold(off.Key("a"), time.Now().Add(time.Second)))
		w := wait(l, off.Key("a"), 1)
		pass(time.Second)
		w.require(t, time.Second)
	})
}

func TestCloseWakesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := single.Key("a")
		line := []*waiter{wait(l, key, 1), wait(l, key, 1), wait(l, key, 1)}
		r := reserve(t, l, key, 1)
		require.NoError(t, l.Close())
		synctest.Wait()
		for _, w := range line[1:] {
			require.True(t, w.done.Load())
			require.ErrorIs(t, w.err, ErrClosed)
			require.Zero(t, w.after)
		}
		r.Cancel()
		require.Equal(t, 3*time.Second, r.Delay())
	})
}

func TestResetDuringWait(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := single.Key("a")
		line := []*waiter{wait(l, key, 1), wait(l, key, 1), wait(l, key, 1)}
		require.NoError(t, l.Reset(key))
		require.True(t, l.Allow(key))
		pass(time.Second)
		line[1].require(t, time.Second)
		line[2].cancel()
		synctest.Wait()
		require.ErrorIs(t, line[2].err, context.Canceled)
	})
}

// A wall clock that is set ahead brings the turns nearer.
func TestClockStepWakesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(NewMemStore(), lineLimits(t), nil)
		require.NoError(t, err)
		defer l.Close()
		wall := setWall(l.clock)
		key := perID.Key("a")
		wait(l, key, 5).require(t, 0)
		w := wait(l, key, 5)
		wall.Store(int64(50 * time.Second))
		pass(time.Second) // the flusher looks at the clock
		require.False(t, w.done.Load())
		pass(9 * time.Second)
		w.require(t, 10*time.Second)
	})
}

// A line that never ends does not grow: who has gone is not kept in it.
func TestLineThatStandsForEver(t *testing.T) {
	r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{single: PerSecond(1000).WithBurst(10)}), Options{})
	key := single.Key("a")
	r.spend(key, 10)
	for range 3 {
		reserve(t, r.Limiter, key, 1)
	}
	for range 10_000 {
		r.clock.advance(time.Millisecond)
		require.Equal(t, 3*time.Millisecond, reserve(t, r.Limiter, key, 1).Delay())
		require.False(t, r.spend(key, 1).Allowed)
	}
	s, _ := r.directory.shard(key)
	require.LessOrEqual(t, s.gates[key].queue.Len(), 4)
}

// A line that all leave leaves no bucket behind that is shut for longer than its tolerance.
func TestLineThatAllLeave(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	r.hold(key, 24*time.Hour)
	res := reserve(t, r.Limiter, key, 1)
	require.Equal(t, 24*time.Hour, res.Delay())
	res.Cancel()
	require.NoError(t, r.Hold(key, time.Time{}))
	d := r.check(key, 0)
	require.True(t, d.Allowed)
	require.LessOrEqual(t, d.ResetAfter, time.Minute)
}

// A bucket stays in memory while somebody is in its line: what the line was promised is more than one that is loaded may have taken.
func TestLineKeepsItsBucket(t *testing.T) {
	r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 4})
	key := single.Key("a") // a token in 1s, and one at a time
	for i := range 4 {
		require.Equal(t, time.Duration(i)*time.Second, reserve(t, r.Limiter, key, 1).Delay())
	}
	for i := range 50 {
		require.NoError(t, r.Flush()) // nothing but the line keeps it
		r.spend(perID.Key(fmt.Sprint(i)), 1)
	}
	require.GreaterOrEqual(t, r.Stats().Evictions, int64(40))
	s, h := r.directory.shard(key)
	_, resident := s.findLocked(key, h)
	require.True(t, resident)
	require.Equal(t, 4*time.Second, reserve(t, r.Limiter, key, 1).Delay())
}

// admit asks n times at one instant, and returns how often it was allowed.
func admit(l *Limiter, key Key, n int) (admitted int) {
	for range n {
		if l.Allow(key) {
			admitted++
		}
	}
	return admitted
}

// What a Reset has made good, a Cancel does not give back again.
func TestCancelAfterReset(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a") // 5 at once, a token in 12s
		reserve(t, l, key, 5)
		r := reserve(t, l, key, 5)
		require.NoError(t, l.Reset(key)) // full: 5 tokens
		admitted := admit(l, key, 5)
		r.Cancel()
		admitted += admit(l, key, 5)
		require.Equal(t, 5, admitted, "at one instant, since the reset")
	})
}

// The same by a Wait whose context ends.
func TestWaitEndsAfterReset(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		reserve(t, l, key, 5)
		w := wait(l, key, 5)
		require.NoError(t, l.Reset(key))
		admitted := admit(l, key, 5)
		w.cancel()
		synctest.Wait()
		require.ErrorIs(t, w.err, context.Canceled)
		admitted += admit(l, key, 5)
		require.Equal(t, 5, admitted, "at one instant, since the reset")
	})
}

// Cancel gives back what was taken, by whatever limit that was.
func TestCancelAfterSetLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		use := func(limit Limit) {
			require.NoError(t, l.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: limit})))
		}
		use(PerSecond(10))          // a token in 100ms
		r := reserve(t, l, key, 10) // takes 1s of TAT
		use(PerMinute(10))          // a token in 6s
		admitted := admit(l, key, 20)
		require.Equal(t, 9, admitted)
		r.Cancel()
		admitted += admit(l, key, 20)
		require.LessOrEqual(t, admitted, 10, "at one instant, of 10")
	})
}

// Cancel in a hold that ends early.
func TestCancelInHold(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		require.NoError(t, l.Hold(key, time.Now().Add(time.Hour)))
		reserve(t, l, key, 1).Cancel()
		require.NoError(t, l.Hold(key, time.Time{}))
		d, err := l.Check(key, 0)
		require.NoError(t, err)
		require.EqualValues(t, 5, d.Remaining, "nothing is spent")
	})
}

// Queue bounds the line of a held bucket too.
func TestQueueOfHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		line := PerMinute(100)
		line.Queue = 5
		require.NoError(t, l.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: line})))
		key := perID.Key("a")
		require.NoError(t, l.Hold(key, time.Now().Add(time.Hour)))
		n := 0
		for ; n < 1000; n++ {
			if _, err := l.Reserve(key, 1); err != nil {
				require.ErrorIs(t, err, ErrQueueFull)
				break
			}
		}
		require.Equal(t, 5, n, "wait in line")
	})
}

// A limit that is off allows.
func TestOffWithLine(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		require.NoError(t, l.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: PerHour(1)})))
		key := perID.Key("a")
		for range 10 {
			reserve(t, l, key, 1)
		}
		require.NoError(t, l.SetLimits(limitsOf(t, testNames, map[Name]Limit{})))
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed, "%+v", d)
	})
}

// A Wait that is too late at once is a call that returned an error.
func TestWaitErrorsCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		reserve(t, l, key, 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, l.Wait(ctx, key, 1))
		require.EqualValues(t, 1, l.Stats().Limits[perID].Errors)
	})
}

// A commit that fails gives back what its reservations took, and nothing of what others spent.
func TestFailedLine(t *testing.T) {
	limit := PerSecond(1).WithBurst(3)
	limit.Durability = Synced
	store := newGateStore()
	r := rigOn(t, store, limitsOf(t, testNames, map[Name]Limit{perID: limit}), Options{})
	key := perID.Key("a")
	r.spend(key, 2)
	store.close()
	store.fail(errDisk)
	done := make(chan error)
	saves := store.count()
	go func() { _, err := r.Spend(perID.Key("b"), 1); done <- err }() // a commit that is under way: the three share the next
	for store.count() == saves {
		runtime.Gosched()
	}
	for i := range int64(3) { // the first comes at once, the others are in line
		go func() { _, err := r.Reserve(key, i+1); done <- err }()
		for {
			b, err := r.Bucket(key)
			require.NoError(t, err)
			if b.ResetAfter == time.Duration([]int64{3, 5, 8}[i])*time.Second {
				break
			}
		}
	}
	store.open()
	for range 4 {
		require.ErrorIs(t, <-done, ErrNotDurable)
	}
	b, err := r.Bucket(key)
	require.NoError(t, err)
	require.EqualValues(t, 1, b.Remaining, "2 of 3 are spent")
}

// A Reset that returns nil has ended the queue on disk, too.
func TestResetOfAQueueIsDurable(t *testing.T) {
	for _, name := range []Name{leased, synced} {
		store, clock := newGateStore(), newGridClock()
		l := newLevels(t, store, levelLimits(t, Limit{Burst: 10, Count: 1, Period: time.Second}, nil), clock, 0)
		key := name.Key("a")
		requireSpends(t, l, key, 10)
		_, err := l.Reserve(key, 10)
		require.NoError(t, err)
		_, err = l.Refund(key, 10) // the bucket is full, except for the queue
		require.NoError(t, err)
		require.NotZero(t, store.has(t, key))
		require.NoError(t, l.Reset(key))
		require.Zero(t, store.has(t, key))
		require.NoError(t, l.Close())
	}
}

// Cancel withholds no more than a lease after a crash.
func TestCancelIsDurable(t *testing.T) {
	for _, name := range []Name{leased, synced} {
		store, clock := newGateStore(), newGridClock()
		l := newLevels(t, store, levelLimits(t, Limit{Burst: 100, Count: 1, Period: time.Second}, nil), clock, 0)
		key := name.Key("a")
		requireSpends(t, l, key, 100)
		r, err := l.Reserve(key, 50)
		require.NoError(t, err)
		r.Cancel()
		require.LessOrEqual(t, store.has(t, key), clock.Now().Add(100*time.Second+100*time.Second/8).UnixNano())
		require.NoError(t, l.Close())
	}
}
