package stint

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/clock"
)

func TestFlush(t *testing.T) {
	t.Run("a full bucket with a hold is not saved", func(t *testing.T) {
		r, key := newRig(t), perID.Key("a")
		r.spend(key, 1)
		require.EqualValues(t, 1, r.Stats().Dirty)
		r.hold(key, time.Hour)
		r.clock.advance(time.Hour - 1)
		require.NoError(t, r.Flush())
		require.EqualValues(t, 1, r.Stats().Resident)
		require.Zero(t, r.Stats().Dirty)
	})
	t.Run("one of its saves fails", func(t *testing.T) {
		events := make(chan Event, 10)
		r := rigOn(t, NewMemStore(), testLimits(t), Options{OnEvent: func(e Event) { events <- e }})
		n := maxSave + 1000
		for i := range n {
			r.Spend(perID.Key(fmt.Sprint(i)), 1)
		}
		r.disk.on(func(storeOp) error {
			r.disk.on(nil)
			return errDisk
		})
		require.ErrorIs(t, r.Flush(), errDisk)
		require.ErrorIs(t, r.Health(), errDisk)
		require.ErrorIs(t, r.Stats().Flush.Err, errDisk)
		require.Positive(t, r.Stats().Dirty)
		require.Less(t, r.Stats().Dirty, int64(n))
		require.NoError(t, r.Flush())
		require.NoError(t, r.Health())
		require.Zero(t, r.Stats().Dirty)
		require.Equal(t, FlushFailed, (<-events).Kind)
		require.Equal(t, FlushRecovered, (<-events).Kind)
	})
	inBubbleNamed(t, "a bucket stays in memory until it is saved", func(t *testing.T, r *rig) {
		key := flushed.Key("a")
		r.take(key, 6)
		r.disk.shut()
		go r.cache.FlushDue()
		synctest.Wait()
		r.evictAll()
		r.disk.gate <- errDisk
		r.disk.open()
		synctest.Wait()
		require.EqualValues(t, 6, r.spent(key))
		require.NoError(t, r.cache.FlushDue())
		r.evictAll()
		require.Zero(t, r.Stats().Resident)
		require.EqualValues(t, 6, r.spent(key))
	})
	t.Run("not after Close", func(t *testing.T) { // another process may have the file
		r := newLevels(t, ten)
		r.take(flushed.Key("a"), 1)
		require.NoError(t, r.Close())
		r.disk.shut()
		require.ErrorIs(t, r.cache.Flush(), ErrClosed)
	})
}

// TestFlusher is about the flushes that come by themselves, and their events.
func TestFlusher(t *testing.T) {
	key := perID.Key("a")
	t.Run("a store that fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var events []Event
			r := rigOn(t, NewMemStore(), testLimits(t), Options{
				Now: time.Now, FlushInterval: time.Second, OnEvent: func(e Event) { events = append(events, e) },
			})
			r.take(key, 1)
			pass(1500 * time.Millisecond)
			require.NoError(t, r.Health())
			saved := r.stored(key)
			require.NotZero(t, saved)

			r.disk.fail(errDisk)
			failed := time.Now()
			r.take(key, 1)
			pass(5 * time.Second)
			r.take(key, 1)
			_, err := r.Spend(perID.Key("b"), 1)
			require.ErrorIs(t, err, errDisk, "a bucket that must be loaded")
			require.Len(t, events, 1, "the first failure in a row")
			require.Equal(t, FlushFailed, events[0].Kind)
			require.ErrorIs(t, events[0].Err, errDisk)
			require.ErrorIs(t, r.Health(), errDisk)
			st := r.Stats().Flush
			require.ErrorIs(t, st.Err, errDisk)
			require.Greater(t, st.Failures, int64(1), "it is tried again")
			require.Less(t, st.Failures, int64(5), "not at every tick")
			require.WithinRange(t, events[0].Time, failed, failed.Add(time.Second))
			require.ErrorContains(t, r.Health(), "since "+events[0].Time.UTC().Format(time.RFC3339))

			r.disk.fail(nil)
			require.Equal(t, saved, r.stored(key))
			pass(10 * time.Second)
			require.Len(t, events, 2)
			require.Equal(t, FlushRecovered, events[1].Kind)
			r.check(perID.Key("b"), 1)
			require.NoError(t, r.Health())
			require.EqualValues(t, 1, r.Stats().Limits[perID].Errors)
			require.Equal(t, saved+2*int64(12*time.Second), r.stored(key))
			saves := r.disk.count()
			pass(5 * time.Second)
			require.Equal(t, saves, r.disk.count(), "it is saved once")
		})
	})
	t.Run("one event at a time", func(t *testing.T) {
		told := 0 // the race detector sees two calls at once
		r := rigOn(t, NewMemStore(), testLimits(t), Options{FlushInterval: time.Millisecond, OnEvent: func(Event) { told++ }})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 100 {
					r.disk.fail([]error{nil, errDisk}[i%2])
					r.Spend(key, int64(i%2))
					r.events.emit(Event{Kind: ClockStepped})
					r.Flush()
				}
			})
		}
		wg.Wait()
		r.disk.fail(nil)
		require.NoError(t, r.Close())
		require.Positive(t, told, "a slow listener misses some")
	})
	t.Run("steps of the wall clock", testClockSteps)
}

// setWall replaces the wall clock of c by one that is so far ahead of time.Now.
func setWall(c *clock.Clock) *atomic.Int64 {
	ahead := new(atomic.Int64)
	c.SetWall(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	return ahead
}

// testClockSteps is about the events. Package clock has the tests of the steps.
func testClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps []time.Duration
		l, err := New(NewMemStore(), testLimits(t), &Options{OnEvent: func(e Event) {
			require.Equal(t, ClockStepped, e.Kind)
			steps = append(steps, e.Step)
		}})
		require.NoError(t, err)
		defer l.Close()
		r, wall, key := &rig{Limiter: l, t: t}, setWall(l.clock), perID.Key("a")
		begun := time.Now().UnixNano()
		r.take(key, 5)
		set := func(ahead time.Duration) {
			wall.Add(int64(ahead))
			pass(time.Second)
		}
		set(250*time.Millisecond - 1) // drift is followed, and is no event
		require.Empty(t, steps)
		set(-time.Hour)
		require.Equal(t, 10*time.Second+1-250*time.Millisecond, r.spend(key, 1).RetryAfter, "time does not go back")
		set(time.Hour)
		set(24 * time.Hour)
		pass(time.Minute)
		require.Equal(t, []time.Duration{-time.Hour, time.Hour, 24 * time.Hour}, steps)
		st := l.Stats()
		require.Equal(t, []int64{2, 1}, []int64{st.Forward, st.Backward})
		require.Equal(t, begun+int64(24*time.Hour+64*time.Second+250*time.Millisecond-1), l.clock.Now())
	})
}
