package stint_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// These sequences once admitted more than the limit, stranded a caller, or
// acknowledged what a crash then undid.

var errBroken = errors.New("the disk is broken")

// heldClock is a clock that a test moves. One reading can be held: its caller
// gets the time at which it asked, and gets it late.
type heldClock struct {
	ns      atomic.Int64
	skip    atomic.Int64 // readings until the one to hold
	reading atomic.Pointer[heldReading]
}

type heldReading struct{ held, release chan struct{} }

func newHeldClock() *heldClock {
	c := &heldClock{}
	c.ns.Store(1_800_000_000e9)
	return c
}

func (c *heldClock) Now() time.Time {
	now := c.ns.Load()
	if r := c.reading.Load(); r != nil && c.skip.Add(-1) < 0 && c.reading.CompareAndSwap(r, nil) {
		close(r.held)
		<-r.release
	}
	return time.Unix(0, now)
}

// hold holds the reading after skip others.
func (c *heldClock) hold(skip int64) (held <-chan struct{}, release func()) {
	r := &heldReading{make(chan struct{}), make(chan struct{})}
	c.skip.Store(skip)
	c.reading.Store(r)
	return r.held, sync.OnceFunc(func() {
		c.reading.Store(nil)
		close(r.release)
	})
}

func (c *heldClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// gatedStore is a MemStore whose saves wait for a verdict while the gate is
// closed, and fail while it is broken.
type gatedStore struct {
	*stint.MemStore
	gate   atomic.Pointer[chan error]
	broken atomic.Bool
}

func (s *gatedStore) Save(changes []stint.Change) error {
	if gate := s.gate.Load(); gate != nil {
		if err := <-*gate; err != nil {
			return err
		}
	}
	if s.broken.Load() {
		return errBroken
	}
	return s.MemStore.Save(changes)
}

func (s *gatedStore) closeGate() (verdicts chan error) {
	verdicts = make(chan error)
	s.gate.Store(&verdicts)
	return verdicts
}

// openGate lets the waiting save pass, and all later ones.
func (s *gatedStore) openGate() {
	if gate := s.gate.Swap(nil); gate != nil {
		close(*gate)
	}
}

const only stint.Name = 1

func onlyLimits(t *testing.T, limit stint.Limit) *stint.Limits {
	t.Helper()
	limits, err := stint.NewLimits(stint.Names{only: {Label: "only"}, 2: {Label: "other", Limit: stint.Unlimited}},
		map[stint.Name]stint.Limit{only: limit}, nil)
	require.NoError(t, err)
	return limits
}

func openOnly(t *testing.T, store stint.Store, limit stint.Limit,
	now func() time.Time) *stint.Limiter {
	t.Helper()
	l, err := stint.New(store, onlyLimits(t, limit),
		&stint.Options{FlushInterval: 1e6 * time.Hour, CommitTimeout: time.Hour, Now: now})
	require.NoError(t, err)
	t.Cleanup(func() {
		if gated, ok := store.(*gatedStore); ok {
			gated.openGate()
		}
		l.Close()
	})
	return l
}

func spends(t *testing.T, l *stint.Limiter, key stint.Key, n int) (admitted int) {
	for range n {
		d, err := l.Spend(key, 1)
		if err != nil {
			t.Error(err)
		}
		if d.Allowed {
			admitted++
		}
	}
	return admitted
}

func remaining(t *testing.T, l *stint.Limiter, key stint.Key) int64 {
	t.Helper()
	d, err := l.Check(key, 0)
	require.NoError(t, err)
	return d.Remaining
}

// A flush that is delayed after it has read the clock returns no tokens.
func TestDelayedFlush(t *testing.T) {
	for skip := range int64(3) {
		t.Run(fmt.Sprint("reading ", skip+1), func(t *testing.T) {
			clock := newHeldClock()
			limit := stint.Limit{Burst: 10, Count: 1, Period: time.Second}
			l := openOnly(t, stint.NewMemStore(), limit, clock.Now)
			key := only.Key("a")
			require.NoError(t, l.Hold(key, clock.Now().Add(5*time.Second)))
			held, release := clock.hold(skip)
			flushed := make(chan error, 1)
			go func() { flushed <- l.Flush() }()
			select {
			case <-held:
			case err := <-flushed: // it reads the clock fewer times
				release()
				flushed <- err
			}
			clock.advance(10 * time.Second)
			admitted := make(chan int, 1)
			go func() { admitted <- spends(t, l, key, 20) }()
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
			require.Zero(t, spends(t, l, key, 10),
				"tokens after the delayed flush, at the same instant")
			require.NoError(t, l.Close())
		})
	}
}

// As TestDelayedFlush, with the real clock, and with flushes that the scheduler
// delays.
func TestDelayedFlushRealClock(t *testing.T) {
	const burst, interval = 50, time.Microsecond
	limit := stint.Limit{Burst: burst, Count: 1, Period: interval}
	l, err := stint.New(stint.NewMemStore(), onlyLimits(t, limit),
		&stint.Options{FlushInterval: 200 * time.Microsecond, CommitTimeout: time.Hour})
	require.NoError(t, err)
	key := only.Key("a")
	rounds := 2_000
	if stint.Long {
		rounds = 50_000
	}
	var over atomic.Bool
	var others sync.WaitGroup
	others.Go(func() {
		defer over.Store(true)
		for range rounds {
			if err := l.Hold(key, l.Now().Add(100*time.Microsecond)); err != nil {
				t.Error(err)
				return
			}
			for begun := time.Now(); time.Since(begun) < 150*time.Microsecond; {
				spends(t, l, only.Key("noise"), 1)
			}
		}
	})
	// An admission lies between the instants before and after its call. So any row
	// of admissions must keep the law over the longest time that it may have
	// taken.
	begun := l.Now() // the law is kept by the Limiter's clock
	admitted, least, excess := time.Duration(0), time.Duration(1<<62), time.Duration(0)
	for !over.Load() {
		before := l.Now().Sub(begun)
		if !l.Allow(key) {
			continue
		}
		least = min(least, admitted*interval-before)
		admitted++
		excess = max(excess, admitted*interval-l.Now().Sub(begun)-least-burst*interval)
	}
	others.Wait()
	require.NoError(t, l.Close())
	require.LessOrEqual(t, int64(excess/interval), int64(0), "tokens more than burst + elapsed ÷ T")
}

// Cancel gives back no token twice, nor does a commit that fails.
func TestReturnedTwice(t *testing.T) {
	limit := stint.Limit{Burst: 20, Count: 1, Period: time.Second}
	key := only.Key("a")
	t.Run("cancel", func(t *testing.T) {
		clock := newHeldClock()
		l := openOnly(t, stint.NewMemStore(), limit, clock.Now)
		var rs [2]stint.Reservation
		for i := range rs {
			var err error
			rs[i], err = l.Reserve(key, 10)
			require.NoError(t, err)
		}
		clock.advance(time.Second)
		rs[0].Cancel()
		clock.advance(7 * time.Second)
		require.Equal(t, 5, spends(t, l, key, 5))
		clock.advance(time.Second)
		rs[1].Cancel()
		require.LessOrEqual(t, remaining(t, l, key), int64(16))
	})
	t.Run("commits that fail", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
			limit := limit
			limit.Durability = stint.Synced
			l := openOnly(t, store, limit, clock.Now)
			verdicts := store.closeGate()
			spend := func(cost int64) chan error {
				done := make(chan error, 1)
				go func() {
					_, err := l.Spend(key, cost)
					done <- err
				}()
				synctest.Wait()
				return done
			}
			first, second := spend(10), spend(10)
			clock.advance(time.Second)
			verdicts <- errBroken
			require.ErrorIs(t, <-first, stint.ErrNotDurable)
			synctest.Wait() // the second commit is under way
			clock.advance(7 * time.Second)
			third := spend(5)
			clock.advance(time.Second)
			verdicts <- errBroken
			require.ErrorIs(t, <-second, stint.ErrNotDurable)
			store.openGate()
			require.NoError(t, <-third)
			require.LessOrEqual(t, remaining(t, l, key), int64(16))
		})
	})
}

// Calls that only look at a bucket under another limit change nothing in the
// file.
func TestCheckUnderAnotherLimit(t *testing.T) {
	for name, look := range map[string]func(l *stint.Limiter, key stint.Key) error{
		"Check": func(l *stint.Limiter, key stint.Key) error { _, err := l.Check(key, 1); return err },
		"CheckOnly": func(l *stint.Limiter, key stint.Key) error {
			_, err := l.SpendAll(stint.Request{Key: key, Cost: 1, Mode: stint.CheckOnly})
			return err
		},
		"Bucket": func(l *stint.Limiter, key stint.Key) error { _, err := l.Bucket(key); return err },
	} {
		t.Run(name, func(t *testing.T) {
			clock, store, key := newHeldClock(), stint.NewMemStore(), only.Key("a")
			l := openOnly(t, store, stint.PerHour(100), clock.Now)
			require.Equal(t, 100, spends(t, l, key, 100))
			require.NoError(t, l.Close())

			l = openOnly(t, store, stint.PerSecond(1), clock.Now)
			require.NoError(t, look(l, key))
			clock.advance(2 * time.Second)
			for range 130 { // each shard's turn comes
				require.NoError(t, l.Flush())
			}
			require.NoError(t, l.Close())
			require.Zero(t, remaining(t, openOnly(t, store, stint.PerHour(100), clock.Now), key))
		})
	}
}

// A reservation can be cancelled while its Name has no limits.
func TestCancelWithoutLimits(t *testing.T) {
	clock, key := newHeldClock(), only.Key("a")
	limit := stint.PerMinute(1)
	l := openOnly(t, stint.NewMemStore(), limit, clock.Now)
	var rs []stint.Reservation
	for range 10 {
		r, err := l.Reserve(key, 1)
		require.NoError(t, err)
		rs = append(rs, r)
	}
	without, err := stint.NewLimits(stint.Names{2: {Label: "other", Limit: stint.Unlimited}}, nil, nil)
	require.NoError(t, err)
	for _, limits := range []*stint.Limits{without, onlyLimits(t, limit)} {
		require.NoError(t, l.SetLimits(limits))
		for _, r := range rs {
			r.Cancel()
		}
	}
	d, err := l.Check(key, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, d.RetryAfter, time.Minute)
	r, err := l.Reserve(key, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Delay(), time.Minute)
}

// An acknowledged change is on disk, even if an earlier call made the change in
// memory and then failed, so that the acknowledged call found nothing to
// change. In TestFaultTable the calls come one after the other. Here they come
// at once.
func TestAcknowledgement(t *testing.T) {
	key := only.Key("a")
	calls := map[string]func(l *stint.Limiter) error{
		"Reset":  func(l *stint.Limiter) error { return l.Reset(key) },
		"Refund": func(l *stint.Limiter) error { _, err := l.Refund(key, 10); return err },
		"RefundAll": func(l *stint.Limiter) error {
			_, err := l.RefundAll(stint.Request{Key: key, Cost: 10})
			return err
		},
		"Hold": func(l *stint.Limiter) error { return l.Hold(key, time.Time{}) },
	}
	for _, level := range []stint.Durability{stint.Leased, stint.Synced} {
		limit := stint.Limit{Burst: 10, Count: 1, Period: time.Hour, Durability: level}
		for name, call := range calls {
			t.Run(fmt.Sprint(level, "/", name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
					l := openOnly(t, store, limit, clock.Now)
					if name == "Hold" {
						require.NoError(t, l.Hold(key, clock.Now().Add(time.Hour)))
					} else {
						require.Equal(t, 10, spends(t, l, key, 10))
					}
					verdicts := store.closeGate()
					var errs [2]chan error
					for i := range errs {
						errs[i] = make(chan error, 1)
						go func() { errs[i] <- call(l) }()
						synctest.Wait()
					}
					verdicts <- errBroken
					select { // the second may be in a commit of its own
					case verdicts <- nil:
					case err := <-errs[1]:
						errs[1] <- err
					}
					store.openGate()
					require.ErrorIs(t, <-errs[0], stint.ErrNotDurable)
					err := <-errs[1]
					store.broken.Store(true) // it crashes
					after := openOnly(t, store.MemStore, limit, clock.Now)
					if err == nil {
						require.EqualValues(t, 10, remaining(t, after, key), "it was acknowledged, and is not on disk")
						d, err := after.Check(key, 1)
						require.NoError(t, err)
						require.True(t, d.Allowed)
					}
				})
			})
		}
	}
}
