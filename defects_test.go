package stint

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// These sequences once admitted more than the limit, stranded a caller, or
// acknowledged what a crash then undid.

// admitted spends n times one token, and returns how many were admitted.
func (r *rig) admitted(key Key, n int) (admitted int) {
	r.t.Helper()
	for range n {
		if r.Allow(key) {
			admitted++
		}
	}
	return admitted
}

// A flush that is delayed after it has read the clock returns no tokens.
func TestDelayedFlush(t *testing.T) {
	for skip := range int64(3) {
		t.Run(fmt.Sprint("reading ", skip+1), func(t *testing.T) {
			r, key := newLevels(t, ten), flushed.Key("a")
			r.hold(key, 5*time.Second)
			held, release := r.clock.hold(skip)
			flushed := make(chan error, 1)
			go func() { flushed <- r.Flush() }()
			select {
			case <-held:
			case err := <-flushed: // it reads the clock fewer times
				release()
				flushed <- err
			}
			r.clock.advance(10 * time.Second)
			admitted := make(chan int, 1)
			go func() { admitted <- r.admitted(key, 20) }()
			var first int
			select {
			case first = <-admitted:
			case <-time.After(time.Second): // the flush holds a lock that they need
				release()
				first = <-admitted
			}
			release()
			require.NoError(t, <-flushed)
			require.Equal(t, 10, first)
			require.Zero(t, r.admitted(key, 10), "tokens after the delayed flush, at the same instant")
		})
	}
}

// A caller reads the clock, and is interrupted. Another one then spends at a later
// instant. The first one still gets the token that is left.
func TestOvertaken(t *testing.T) {
	key, other := flushed.Key("a"), flushed.Key("b")
	allowed := func(d Decision, err error) bool { return err == nil && d.Allowed }
	each := func(reqs ...Request) func(*rig) bool {
		return func(r *rig) bool {
			ds := make([]Decision, len(reqs))
			return r.DoEach(context.Background(), reqs, ds) == nil && ds[len(ds)-1].Allowed
		}
	}
	two := Limit{Burst: 2, Count: 1, Period: time.Hour}
	given := two
	given.Burst = 3
	for name, c := range map[string]struct {
		key  Key
		lane bool
		call func(r *rig) bool
	}{
		"Allow":       {key, false, func(r *rig) bool { return r.Allow(key) }},
		"Spend":       {key, false, func(r *rig) bool { return allowed(r.Spend(key, 1)) }},
		"Spend, lane": {key, true, func(r *rig) bool { return allowed(r.Spend(key, 1)) }},
		"Check":       {key, false, func(r *rig) bool { return allowed(r.Check(key, 1)) }},
		"Check, lane": {key, true, func(r *rig) bool { return allowed(r.Check(key, 1)) }},
		"SpendAll": {key, false, func(r *rig) bool {
			return allowed(r.SpendAll(Request{Key: key, Cost: 1}, Request{Key: other, Cost: 1}))
		}},
		"DoEach":                {key, false, each(Request{Key: other, Cost: 1}, Request{Key: key, Cost: 1})},
		"DoEach, lane":          {key, true, each(Request{Key: key, Cost: 1})},
		"DoEach, checks":        {key, false, each(Request{Key: key, Cost: 1, Mode: CheckOnly})},
		"DoEach, configured":    {key, false, each(Request{Key: key, Cost: 1, Limit: two})},
		"DoEach, given":         {key, false, each(Request{Key: key, Cost: 1, Limit: given})},
		"DoEach, leased":        {leased.Key("a"), false, each(Request{Key: leased.Key("a"), Cost: 1})},
		"DoEach, synced":        {synced.Key("a"), false, each(Request{Key: synced.Key("a"), Cost: 1})},
		"DoEach, not in memory": {flushed.Key("new"), false, each(Request{Key: flushed.Key("new"), Cost: 1})},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLevels(t, two)
			for _, k := range []Key{key, other, leased.Key("a"), synced.Key("a")} {
				r.spend(k, 1)
				r.refund(k, 1) // it is full, and in memory
			}
			require.Equal(t, c.lane, c.lane && promote(r.Limiter, c.key))
			held, release := r.clock.hold(0)
			first := make(chan bool, 1)
			go func() { first <- c.call(r) }()
			<-held
			r.clock.advance(time.Microsecond)
			require.True(t, r.Allow(c.key))
			release()
			require.True(t, <-first)
		})
	}
}

// Cancel gives back no token twice, nor does a commit that fails.
func TestReturnedTwice(t *testing.T) {
	limit := Limit{Burst: 20, Count: 1, Period: time.Second}
	t.Run("cancel", func(t *testing.T) {
		r, key := newLevels(t, limit), flushed.Key("a")
		first, second := r.reserve(key, 10), r.reserve(key, 10)
		r.clock.advance(time.Second)
		first.Cancel()
		r.clock.advance(7 * time.Second)
		r.take(key, 5)
		r.clock.advance(time.Second)
		second.Cancel()
		require.LessOrEqual(t, r.left(key), int64(16))
	})
	t.Run("commits that fail", func(t *testing.T) {
		inBubble(t, limit, Options{}, func(t *testing.T, r *rig) {
			key := synced.Key("a")
			r.disk.shut()
			spend := func(cost int64) chan error {
				done := make(chan error, 1)
				go func() {
					_, err := r.Spend(key, cost)
					done <- err
				}()
				synctest.Wait()
				return done
			}
			first, second := spend(10), spend(10)
			r.clock.advance(time.Second)
			r.disk.gate <- errDisk
			require.ErrorIs(t, <-first, ErrNotDurable)
			synctest.Wait() // the second commit is under way
			r.clock.advance(7 * time.Second)
			third := spend(5)
			r.clock.advance(time.Second)
			r.disk.gate <- errDisk
			require.ErrorIs(t, <-second, ErrNotDurable)
			r.disk.open()
			require.NoError(t, <-third)
			require.LessOrEqual(t, r.left(key), int64(16))
		})
	})
}

// A smaller limit cuts a bucket when the first request comes, which may be a
// Check, and no sooner: a client that is told a RetryAfter is not told it again
// after a restart. Bucket, and a smaller limit that comes and goes, change nothing.
// It is the same for a bucket that is in memory, and for one that is not.
func TestSmallerLimit(t *testing.T) {
	key := flushed.Key("a")
	for name, c := range map[string]struct {
		look func(r *rig)
		left int64
	}{
		"Check":     {func(r *rig) { r.check(key, 1) }, 100},
		"CheckOnly": {func(r *rig) { r.spendAll(Request{Key: key, Cost: 1, Mode: CheckOnly}) }, 100},
		"Spend":     {func(r *rig) { require.False(r.t, r.spend(key, 1).Allowed) }, 100},
		"SpendAll":  {func(r *rig) { require.False(r.t, r.spendAll(Request{Key: key, Cost: 1}).Allowed) }, 100},
		"Bucket":    {func(r *rig) { require.Zero(r.t, r.bucket(key).Remaining) }, 0},
		"nothing":   {func(*rig) {}, 0},
	} {
		for how, change := range map[string]func(r *rig, limit Limit) *rig{
			"a restart": func(r *rig, limit Limit) *rig {
				require.NoError(t, r.Close())
				return r.next(levelLimits(t, limit))
			},
			"in memory": func(r *rig, limit Limit) *rig {
				require.NoError(t, r.SetLimits(levelLimits(t, limit)))
				return r
			},
			"not in memory": func(r *rig, limit Limit) *rig {
				require.NoError(t, r.Flush())
				r.evictAll()
				require.Zero(t, r.Stats().Resident)
				require.NoError(t, r.SetLimits(levelLimits(t, limit)))
				return r
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newLevels(t, PerHour(100))
				r.take(key, 100)
				r = change(r, PerSecond(1))
				c.look(r)
				r.clock.advance(2 * time.Second)
				for range 130 { // each shard's turn comes
					require.NoError(t, r.Flush())
				}
				require.Equal(t, c.left, change(r, PerHour(100)).left(key))
			})
		}
	}
	for name, again := range map[string]func(r *rig) *rig{
		"limits that are set again": func(r *rig) *rig {
			require.NoError(t, r.SetLimits(levelLimits(t, PerHour(10))))
			return r
		},
		"a restart": func(r *rig) *rig {
			require.NoError(t, r.Close())
			return r.next(levelLimits(t, PerHour(10)))
		},
	} {
		t.Run("Check after Check, "+name, func(t *testing.T) {
			r := newLevels(t, PerDay(10))
			r.take(key, 10)
			r = again(r)
			require.Equal(t, 6*time.Minute, r.check(key, 1).RetryAfter)
			for range 5 {
				r.clock.advance(time.Minute)
				r = again(r)
				require.False(t, r.check(key, 1).Allowed)
			}
			r.clock.advance(time.Minute)
			require.True(t, again(r).check(key, 1).Allowed)
		})
	}
	t.Run("from rolling to a large quota", func(t *testing.T) {
		key, day := perID.Key("a"), EachDay(mostQuota, nil)
		r := rigFrom(t, "2026-06-10T23:59:10Z", Limit{Burst: 100, Count: 1, Period: time.Second})
		r.take(key, 100) // full 50 s after midnight
		require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: day})))
		require.Zero(t, r.left(key))
	})
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

// An acknowledged change is on disk, even if an earlier call made the change in
// memory and then failed, so that the acknowledged call found nothing to
// change. In TestFaultTable the calls come one after the other. Here they come
// at once.
func TestAcknowledgement(t *testing.T) {
	calls := map[string]func(r *rig, key Key) error{
		"Reset":  func(r *rig, key Key) error { return r.Reset(key) },
		"Refund": func(r *rig, key Key) error { _, err := r.Refund(key.Cost(10).SpentAt(JustSpent)); return err },
		"Hold":   func(r *rig, key Key) error { return r.Release(key) },
	}
	for level := leased; level <= synced; level++ {
		for name, call := range calls {
			t.Run(fmt.Sprint(Durability(level), "/", name), func(t *testing.T) {
				inBubble(t, Limit{Burst: 10, Count: 1, Period: time.Hour}, Options{}, func(t *testing.T, r *rig) {
					key := level.Key("a")
					if name == "Hold" {
						r.hold(key, time.Hour)
					} else {
						r.take(key, 10)
					}
					r.disk.shut()
					var errs [2]chan error
					for i := range errs {
						errs[i] = make(chan error, 1)
						go func() { errs[i] <- call(r, key) }()
						synctest.Wait()
					}
					r.disk.gate <- errDisk
					select { // the second may be in a commit of its own
					case r.disk.gate <- nil:
					case err := <-errs[1]:
						errs[1] <- err
					}
					r.disk.open()
					require.ErrorIs(t, <-errs[0], ErrNotDurable)
					if <-errs[1] == nil {
						after := r.next(r.Limits()) // as after a crash
						require.EqualValues(t, 10, after.left(key), "it was acknowledged, and is not on disk")
						after.take(key, 1)
						require.NoError(t, after.Close())
					}
				})
			})
		}
	}
}
