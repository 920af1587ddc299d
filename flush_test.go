package stint

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/testlength"
)

func TestFlush(t *testing.T) {
	t.Run("a full bucket with a hold is not saved", func(t *testing.T) {
		r, key := newRig(t), perID.Key("a")
		r.spend(key, 1)
		require.EqualValues(t, 1, r.Stats().Dirty)
		r.hold(key, time.Hour)
		r.clock.Advance(time.Hour - 1)
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
		require.Positive(t, r.Stats().Dirty)
		require.Less(t, r.Stats().Dirty, int64(n))
		require.NoError(t, r.Flush())
		require.NoError(t, r.Health())
		require.Zero(t, r.Stats().Dirty)
		require.Equal(t, FlushFailed, (<-events).Kind)
		require.Equal(t, FlushRecovered, (<-events).Kind)
	})
	t.Run("not after Close", func(t *testing.T) { // another process may have the file
		r := newLevels(t, ten)
		r.take(flushed.Key("a"), 1)
		require.NoError(t, r.Close())
		r.disk.shut()
		require.ErrorIs(t, r.cache.Flush(0), ErrClosed)
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
			require.ErrorIs(t, errorOf(r.Spend(perID.Key("b"), 1)), errDisk, "a bucket that must be loaded")
			require.Len(t, events, 1, "the first failure in a row")
			require.Equal(t, FlushFailed, events[0].Kind)
			require.ErrorIs(t, events[0].Err, errDisk)
			require.ErrorIs(t, r.Health(), errDisk)
			st := r.Stats().Flush
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
}

// TestFirstChange: the first change after a quiet interval is saved within
// milliseconds. That takes no more saves than a flush at fixed instants would, each
// of which saves what has changed since the one before.
func TestFirstChange(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, time.Minute} {
		for _, every := range []time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond,
			1500 * time.Millisecond, 10 * time.Second, 90 * time.Second} {
			t.Run(fmt.Sprint(interval, " ", every), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := &rig{t: t, disk: &fakeStore{Store: NewMemStore()}}
					var err error
					limits := limitsOf(t, Names{perID: {Label: "A", Limit: PerDay(10)}}, nil) // nothing refills meanwhile
					r.Limiter, err = New(r.disk, limits, &Options{FlushInterval: interval})
					require.NoError(t, err)
					defer r.Limiter.Close()
					begun, fixed, quietUntil := time.Now(), map[time.Duration]bool{}, time.Time{}
					for i := 0; time.Since(begun) < 5*time.Minute; i++ {
						if every == 0 {
							pass(time.Minute)
							continue
						}
						key := perID.Key(fmt.Sprint(i))
						fixed[time.Since(begun)/interval] = true
						first := time.Now().After(quietUntil)
						r.take(key, 1)
						if first {
							pass(2 * quietPause)
							require.NotZero(t, r.stored(key), "%v after the first", time.Since(begun))
							quietUntil = time.Now().Add(2 * interval) // the next flush finds nothing only after that
							pass(every - 2*quietPause)
							continue
						}
						if every < 2*interval {
							quietUntil = time.Now().Add(2 * interval)
						}
						pass(every)
					}
					pass(2 * interval)
					require.LessOrEqual(t, r.Stats().Flush.Saves, int64(len(fixed)+1)) // one more: the last comes after the end
					require.Zero(t, r.Stats().Dirty)
				})
			})
		}
	}
	for _, every := range []time.Duration{10 * time.Millisecond, 300 * time.Millisecond, 1700 * time.Millisecond, 10300 * time.Millisecond} {
		t.Run(fmt.Sprint("what is full again soon, ", every), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := New(NewMemStore(), limitsOf(t, Names{perID: {Label: "A", Limit: PerSecond(100)}}, nil), nil)
				require.NoError(t, err)
				defer l.Close()
				for begun := time.Now(); time.Since(begun) < time.Minute; pass(every) {
					l.Spend(perID.Key("a"), 1)
				}
				if every > 10*time.Millisecond { // otherwise a flush may come between a spend and its token
					require.Zero(t, l.Stats().Flush.Saves, "a flush at a fixed instant finds it full")
				}
				require.LessOrEqual(t, l.Stats().Flush.Saves, int64(61))
			})
		})
	}
	t.Run("a request that changes two", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, err := New(NewMemStore(), limitsOf(t, Names{perID: {Label: "A", Limit: PerDay(10)}}, nil), nil)
			require.NoError(t, err)
			defer l.Close()
			for i := range 2 {
				l.Spend(perID.Key(fmt.Sprint(i)), 1)
				pass(time.Millisecond)
			}
			pass(time.Minute)
			require.EqualValues(t, 1, l.Stats().Flush.Saves)
		})
	})
	t.Run("not again and again while the disk fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := &rig{t: t, disk: &fakeStore{Store: NewMemStore()}}
			var err error
			r.Limiter, err = New(r.disk, testLimits(t), nil)
			require.NoError(t, err)
			defer r.Limiter.Close()
			r.disk.fail(errDisk)
			for i := range 100 {
				r.Spend(perID.Key(fmt.Sprint(i)), 1)
				pass(100 * time.Millisecond)
			}
			require.Less(t, r.Stats().Flush.Failures, int64(6))
			r.disk.fail(nil)
		})
	})
}

// setWall replaces the wall clock of c by one that is so far ahead of time.Now.
func setWall(c *clock.Clock) *atomic.Int64 {
	ahead := new(atomic.Int64)
	c.SetWall(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	return ahead
}

// TestClockSteps is about the events. Package clock has the tests of the steps.
func TestClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps []string
		l, err := New(NewMemStore(), testLimits(t), &Options{OnEvent: func(e Event) {
			require.Equal(t, ClockStepped, e.Kind)
			steps = append(steps, strings.TrimPrefix(e.Err.Error(), "stint: the wall clock stepped by "))
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
		require.Equal(t, []string{"-1h0m0s", "1h0m0s", "24h0m0s"}, steps)
		st := l.Stats()
		require.Equal(t, []int64{2, 1}, []int64{st.Forward, st.Backward})
		require.Equal(t, begun+int64(24*time.Hour+64*time.Second+250*time.Millisecond-1), l.clock.Now())
	})
}

// TestMakeSpace: if all buckets in memory are dirty, a new one waits for one
// save of a part of them, and not for the whole flush.
func TestMakeSpace(t *testing.T) {
	const resident, part = 1000, 50
	synctest.Test(t, func(t *testing.T) {
		r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: resident})
		r.disk.most = part
		for i := range resident {
			r.take(flushed.Key(fmt.Sprint(i)), 1)
		}
		for round := range 10 {
			r.disk.shut()
			done := begin(func() error { return errorOf(r.Spend(flushed.Key(fmt.Sprint("new ", round)), 1)) })
			require.Empty(t, done, "it waits for space")
			saving := r.disk.latest()
			require.Less(t, len(saving), 4*part)
			dirty := r.Stats().Dirty
			var used []Key // far apart
			for i := range 5 {
				used = append(used, saving[i*len(saving)/5].Key)
				r.take(used[i], 0)
			}
			r.disk.gate <- nil
			synctest.Wait()
			require.Len(t, done, 1, "one save is enough")
			require.NoError(t, <-done)
			require.Greater(t, r.Stats().Dirty, dirty-4*part)
			require.LessOrEqual(t, r.Stats().Resident, int64(resident-part/2+len(used)))
			loads := r.Stats().Loads
			for _, key := range used {
				r.take(key, 0)
			}
			require.LessOrEqual(t, r.Stats().Loads, loads+3,
				"buckets that were used during the save stay, unless a removal moves them past the hand")
			r.disk.open()
			for i := 0; r.Stats().Resident < resident; i++ {
				r.take(flushed.Key(fmt.Sprint(round, " more ", i)), 1)
			}
			r.evictAll() // all are dirty now, or leave memory
			for i := 0; r.Stats().Resident < resident; i++ {
				r.take(flushed.Key(fmt.Sprint(round, " again ", i)), 1)
			}
		}
	})
}

// TestMakeSpaceAfterFailure: while the disk fails, a call that waits for space
// tries to save a few buckets only, until a save succeeds.
func TestMakeSpaceAfterFailure(t *testing.T) {
	const resident = 1000
	r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: resident})
	for i := range resident {
		r.take(flushed.Key(fmt.Sprint(i)), 1)
	}
	r.disk.fail(errDisk, "save")
	for call := range 20 {
		require.ErrorIs(t, errorOf(r.Spend(flushed.Key("new"), 1)), ErrFull)
		if call > 0 {
			require.Less(t, len(r.disk.latest()), 2*64)
		}
	}
	require.ErrorIs(t, r.Flush(), errDisk)
	require.Len(t, r.disk.latest(), resident, "another flush tries to save all")
	r.disk.fail(nil)
	r.take(flushed.Key("new"), 1)
	require.Less(t, len(r.disk.latest()), 2*64)
	for i := 0; r.disk.count() < 23; i++ {
		r.take(flushed.Key(fmt.Sprint("more ", i)), 1)
	}
	require.Greater(t, len(r.disk.latest()), resident/2)
}

// TestFloodSparesOthers: buckets that are used more than once stay in memory during
// a flood of ids that ask once, although the flood's saves save them, too.
func TestFloodSparesOthers(t *testing.T) {
	const resident, flood, others = 1000, 10_000, 20
	r := rigOn(t, NewMemStore(), levelLimits(t, Limit{Burst: 1000, Count: 1, Period: time.Hour}), Options{MaxResident: resident})
	r.disk.most = 50
	for i := range flood {
		r.take(flushed.Key(fmt.Sprint(i)), 1)
		r.take(flushed.Key(fmt.Sprint("other ", i%others)), int64(i/others%2)) // each 20 new ids
	}
	require.LessOrEqual(t, r.Stats().Loads, int64(flood+3*others))
	require.LessOrEqual(t, r.Stats().Resident, int64(resident))
}

// TestMaxResident: calls look for space before they load, so each request of the
// calls under way may add a bucket above the bound. The next call makes space
// again.
func TestMaxResident(t *testing.T) {
	const resident = 100
	for _, c := range []struct{ calls, requests int }{{20, 1}, {1, 20}} {
		t.Run(fmt.Sprintf("%d calls of %d", c.calls, c.requests), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: resident})
				for i := range resident - 1 {
					r.take(flushed.Key(fmt.Sprint(i)), 1)
				}
				loading := make(chan struct{})
				r.disk.on(func(op storeOp) error {
					if op.name == "load" && !op.done {
						<-loading
					}
					return nil
				})
				done := make(chan error, c.calls)
				for call := range c.calls {
					reqs := make([]Request, c.requests)
					for i := range reqs {
						reqs[i] = Request{Key: flushed.Key(fmt.Sprint("new ", call, " ", i)), Cost: 1}
					}
					go func() { done <- errorOf(r.SpendAll(reqs...)) }()
				}
				synctest.Wait()
				close(loading)
				for range c.calls {
					require.NoError(t, <-done)
				}
				require.EqualValues(t, resident-1+20, r.Stats().Resident)
				r.take(flushed.Key("next"), 1)
				require.LessOrEqual(t, r.Stats().Resident, int64(resident))
			})
		})
	}
}

// TestMakeSpaceInUse: a bucket that is used during each save leaves once it is not.
func TestMakeSpaceInUse(t *testing.T) {
	r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: 1})
	used := flushed.Key("used")
	r.take(used, 1)
	saves := 0
	r.disk.on(func(op storeOp) error {
		if op.name == "save" && !op.done && saves < 5 {
			saves++
			r.take(used, 1)
		}
		return nil
	})
	r.take(flushed.Key("other"), 1)
	require.Equal(t, 5, saves)
}

// Callers that outnumber MaxResident take turns, as long as buckets can leave.
func TestFewResident(t *testing.T) {
	t.Parallel()
	for most := 1; most <= 3; most++ {
		for _, name := range []Name{flushed, synced} {
			l, err := New(NewMemStore(), levelLimits(t, PerHour(1000)), &Options{MaxResident: most, CommitTimeout: time.Hour})
			require.NoError(t, err)
			var all sync.WaitGroup
			for g := range 16 {
				all.Go(func() {
					for i := range testlength.Of(1000, 200) {
						if _, err := l.Spend(name.Key(fmt.Sprint(g, " ", i%100)), 1); err != nil {
							t.Error(most, err)
							return
						}
					}
				})
			}
			all.Wait()
			require.NoError(t, l.Close())
		}
	}
}

// A flush that is delayed after it has read the clock returns no tokens.
func TestDelayedFlush(t *testing.T) {
	for skip := range int64(3) {
		t.Run(fmt.Sprint("reading ", skip+1), func(t *testing.T) {
			r, key := newLevels(t, ten), flushed.Key("a")
			r.hold(key, 5*time.Second)
			held, release := r.clock.Hold(skip)
			flushed := make(chan error, 1)
			go func() { flushed <- r.Flush() }()
			select {
			case <-held:
			case err := <-flushed: // it reads the clock fewer times
				release()
				flushed <- err
			}
			r.clock.Advance(10 * time.Second)
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
