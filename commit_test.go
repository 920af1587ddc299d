package stint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inBubble runs a test in a bubble, with a limit at each level.
func inBubble(t *testing.T, limit Limit, opts Options, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := rigOn(t, NewMemStore(), levelLimits(t, limit), opts)
		test(t, r)
		require.NoError(t, r.Close())
	})
}

// TestCommit is about what waits for a commit. Package groupcommit has the
// tests of how callers share one.
func TestCommit(t *testing.T) {
	late := Options{CommitTimeout: 5 * time.Second}
	run := func(name string, opts Options, test func(t *testing.T, r *rig)) {
		t.Run(name, func(t *testing.T) { inBubble(t, hundred, opts, test) })
	}
	run("callers share a save", Options{}, func(t *testing.T, r *rig) {
		begun := time.Now() // in a bubble time passes when all goroutines wait
		r.take(synced.Key("first"), 1)
		require.Zero(t, time.Since(begun), "a lone caller does not wait for others")
		r.disk.shut()
		var wg sync.WaitGroup
		spend := func(key Key) { wg.Go(func() { r.take(key, 1) }) }
		spend(synced.Key("second"))
		synctest.Wait() // its commit is under way
		for i := range 50 {
			spend(synced.Key(fmt.Sprint(i)))
			spend(leased.Key(fmt.Sprint(i)))
			spend(synced.Key("same"))
			wg.Go(func() { r.hold(flushed.Key(fmt.Sprint(i/2)), time.Hour) })
		}
		synctest.Wait()
		require.Equal(t, 2, r.disk.count())
		r.disk.open()
		wg.Wait()
		require.Len(t, r.disk.latest(), 126, "each bucket and each hold once")
		st := r.Stats().Commit
		require.EqualValues(t, 3, st.Commits)
		require.EqualValues(t, 128, st.Buckets)
		require.EqualValues(t, 50, st.Leases)
		require.EqualValues(t, 50, r.spent(synced.Key("same")))
		require.Equal(t, r.tat(50), r.stored(synced.Key("same")))
		require.Equal(t, r.tat(1), r.stored(holdKey(flushed.Key("7"))))
	})
	for verdict, left := range map[error]int64{nil: 7, errDisk: 0} {
		run(fmt.Sprintf("a timeout, then %v", verdict), late, func(t *testing.T, r *rig) {
			key := synced.Key("a")
			r.disk.shut()
			begun := time.Now()
			d, err := r.Spend(key, 7)
			require.ErrorIs(t, err, ErrNotDurable)
			require.Zero(t, d)
			require.Equal(t, 5*time.Second, time.Since(begun))
			require.EqualValues(t, 7, r.spent(key), "the commit may yet come")
			r.disk.gate <- verdict
			synctest.Wait()
			require.Equal(t, left, r.spent(key))
			r.disk.open()
			require.NoError(t, r.Flush())
			require.Equal(t, left != 0, r.stored(key) == r.tat(left))
		})
	}
	run("timeouts leave no goroutines", late, func(t *testing.T, r *rig) {
		key, held := synced.Key("a"), flushed.Key("a")
		r.disk.shut()
		before := runtime.NumGoroutine()
		for i := range 20 {
			_, err := r.Spend(key, 1)
			require.ErrorIs(t, err, ErrNotDurable)
			require.ErrorIs(t, r.Hold(held, r.Now().Add(time.Duration(i+1)*time.Hour)), ErrNotDurable)
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), before+1)
		reset := make(chan error, 1)
		go func() { reset <- r.Reset(held) }()
		synctest.Wait()
		require.Empty(t, reset, "the holds may yet come")
		r.disk.open()
		require.NoError(t, <-reset)
		r.take(held, 1)
		require.Zero(t, r.stored(holdKey(held)))
		require.EqualValues(t, 20, r.spent(key))
	})
	run("a context ends during the commit", Options{}, func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.disk.shut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- r.Wait(ctx, key, 100) }()
		pass(2 * time.Second)
		r.disk.open()
		require.ErrorIs(t, <-ended, context.DeadlineExceeded)
		require.EqualValues(t, 100, r.spent(key), "its turn had come")
	})
	run("the store fails", Options{}, func(t *testing.T, r *rig) {
		covered := leased.Key("covered")
		r.take(covered, 1)
		r.disk.fail(errDisk, "save")
		for range 3 {
			for name := range levelNames {
				if name <= flushed {
					r.take(name.Key("a"), 1)
					continue
				}
				d, err := r.Spend(name.Key("a"), 1)
				require.ErrorIs(t, err, ErrNotDurable)
				require.Zero(t, d)
				require.False(t, r.Allow(name.Key("a")))
				require.Zero(t, r.spent(name.Key("a")), "the tokens are returned")
			}
			require.Error(t, r.flusher.flush(false))
		}
		require.EqualValues(t, 12, r.Stats().Commit.Failures)
		r.take(covered, 10) // asks for the next lease
		_, err := r.Spend(covered, 10)
		require.ErrorIs(t, err, ErrNotDurable, "its lease does not cover it")
		require.EqualValues(t, 11, r.spent(covered))
		require.ErrorIs(t, r.Stats().Commit.Err, errDisk)
		r.disk.fail(nil)
		for name := range levelNames {
			want := int64(100)
			if name <= flushed {
				want = 97
			}
			r.take(name.Key("a"), want)
			require.False(t, r.Allow(name.Key("a")))
		}
		require.NoError(t, r.Stats().Commit.Err)
	})
	for _, name := range []Name{leased, synced} {
		run(fmt.Sprintf("a failed commit that is on file/%v", Durability(name)), Options{}, func(t *testing.T, r *rig) {
			key := name.Key("a")
			r.disk.shut()
			done := make(chan error, 1)
			go func() { _, err := r.Spend(key, 40); done <- err }()
			synctest.Wait()
			r.disk.gate <- errLate
			require.ErrorIs(t, <-done, ErrNotDurable)
			synctest.Wait()
			require.Zero(t, r.spent(key))
			r.disk.open()
			require.NoError(t, r.Close())
			require.Zero(t, r.next(r.Limits()).spent(key), "what is returned in memory is returned on file")
		})
	}
	run("a commit that fails while the Limiter closes", Options{}, func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.disk.shut()
		spent, closed := make(chan error, 1), make(chan error, 1)
		go func() { _, err := r.Spend(key, 4); spent <- err }()
		synctest.Wait()
		go func() { closed <- r.Close() }()
		synctest.Wait()
		r.disk.gate <- errDisk
		r.disk.open()
		require.ErrorIs(t, <-spent, ErrNotDurable)
		require.NoError(t, <-closed)
		require.Zero(t, r.next(r.Limits()).spent(key))
	})
	run("a bucket stays in memory", Options{}, func(t *testing.T, r *rig) {
		r.take(synced.Key("a"), 1)
		r.disk.shut()
		for _, key := range []Key{synced.Key("a"), leased.Key("a")} {
			go r.Spend(key, 1)
		}
		synctest.Wait()
		r.clock.advance(1000 * time.Hour) // both are full again
		r.evictAll(true)
		r.directory.each(func(s *shard) { s.expireLocked(r.Limiter.clock.Now()) })
		require.EqualValues(t, 2, r.Stats().Resident)
		r.disk.open()
		synctest.Wait()
		r.directory.each(func(s *shard) { require.Empty(t, s.pending) })
	})
}

func TestLease(t *testing.T) {
	r := newLevels(t, hundred)
	key := leased.Key("a")
	covers := func(tokens int64) {
		t.Helper()
		r.rest()
		require.GreaterOrEqual(t, r.stored(key), r.tat(tokens))
		require.LessOrEqual(t, r.stored(key), r.tat(tokens)+100*hour/8)
	}
	saves := 0
	for tokens := int64(1); tokens <= 100; tokens++ {
		before := r.stored(key)
		r.take(key, 1)
		covers(tokens)
		if r.stored(key) != before {
			saves++
		}
		require.Equal(t, saves, r.disk.count(), "token %d: a save if the next half begins", tokens)
	}
	require.LessOrEqual(t, saves, 18)
	require.GreaterOrEqual(t, saves, 15)
	require.EqualValues(t, saves, r.Stats().Commit.Leases)
	for tokens := int64(99); tokens > 0; tokens-- {
		r.refund(key, 1)
		covers(tokens)
	}
	r.refund(key, 1)
	r.rest()
	require.Zero(t, r.stored(key), "a full bucket is not stored")
	require.LessOrEqual(t, r.disk.count(), 2*saves)

	r.take(key, 60)
	r.take(key, 1)
	r.rest()
	count := r.disk.count()
	require.NoError(t, r.flusher.flush(false))
	require.Equal(t, count, r.disk.count(), "a flush leaves a lease alone")
	require.Greater(t, r.stored(key), r.tat(61))
	require.NoError(t, r.Flush())
	require.Equal(t, r.tat(61), r.stored(key), "Flush saves what is spent")
	r.take(key, 1)
	require.Equal(t, count+2, r.disk.count(), "then the next spend takes a lease")
	covers(62)
	require.NoError(t, r.Reset(key))
	require.Zero(t, r.stored(key))
	r.take(key, 33)
	require.Greater(t, r.stored(key), r.tat(33))
	require.NoError(t, r.Close())
	require.Equal(t, r.tat(33), r.stored(key), "Close saves what is spent")
	require.EqualValues(t, 33, r.next(r.Limits()).spent(key))
}

// TestRenewal is about leases that are renewed while half of them is left. Half
// a lease of hundred is 6.25 tokens.
func TestRenewal(t *testing.T) {
	run := func(name string, test func(t *testing.T, r *rig)) {
		t.Run(name, func(t *testing.T) { inBubble(t, hundred, Options{}, test) })
	}
	rest := func() { pass(renewalPause) } // package groupcommit has the tests of the pause
	key := leased.Key("a")
	run("only the first spend waits", func(t *testing.T, r *rig) {
		r.take(key, 1)
		require.Equal(t, r.tat(0)+25*hour/2, r.stored(key))
		r.take(key, 5)
		rest()
		require.Equal(t, 1, r.disk.count())

		r.disk.shut()
		r.take(key, 1) // in the second half
		r.take(key, 5)
		rest()
		require.EqualValues(t, 2, r.Stats().Commit.Leases, "the third half is asked for once")
		require.Equal(t, []Change{{key, r.tat(0) + 75*hour/4}}, r.disk.latest())
		answered := make(chan struct{}, 2)
		spend := func() {
			r.take(key, 1)
			answered <- struct{}{}
		}
		go spend()
		rest()
		require.Empty(t, answered, "no lease that is not saved covers a spend")
		r.disk.gate <- nil
		rest()
		require.Equal(t, 3, r.disk.count())
		require.Empty(t, answered, "it is in a later commit")
		go spend()
		rest()
		require.Empty(t, answered)
		r.disk.open()
		<-answered
		<-answered
		require.Equal(t, 4, r.disk.count())
		require.Equal(t, r.tat(25), r.stored(key), "the store has the next half as well")
	})
	run("a failed renewal is tried again", func(t *testing.T, r *rig) {
		r.take(key, 6)
		r.disk.fail(errDisk, "save")
		for i := range 2 { // the lease covers both
			r.take(key, 1)
			rest()
			require.Equal(t, 2+i, r.disk.count())
		}
		require.ErrorIs(t, r.Stats().Commit.Err, errDisk)
		r.disk.fail(nil)
		r.take(key, 1)
		rest()
		require.Equal(t, r.tat(0)+75*hour/4, r.stored(key))
		require.EqualValues(t, 9, r.spent(key))
		require.NoError(t, r.Close())
		require.Equal(t, r.tat(9), r.stored(key))
	})
}

// TestLevelChange changes a limit's level while it is in use. The next decision
// is held to the new level, and Close saves everything.
func TestLevelChange(t *testing.T) {
	key := flushed.Key("a")
	limitsAt := func(level Durability) *Limits {
		limit := hundred
		limit.Durability = level
		return limitsOf(t, Names{flushed: {Label: "flushed"}}, map[Name]Limit{flushed: limit})
	}
	for from := Memory; from <= Synced; from++ {
		for to := Memory; to <= Synced; to++ {
			t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
				r := rigOn(t, NewMemStore(), limitsAt(from), Options{})
				r.take(key, 20)
				r.take(key, 1)
				require.NoError(t, r.SetLimits(limitsAt(to)))
				require.EqualValues(t, 21, r.spent(key))
				count := r.disk.count()
				r.take(key, 1)
				if to < Leased {
					require.Equal(t, count, r.disk.count())
				} else {
					require.Equal(t, count+1, r.disk.count())
					require.GreaterOrEqual(t, r.stored(key), r.tat(22))
					require.LessOrEqual(t, r.stored(key), r.tat(22)+100*hour/8)
				}
				require.NoError(t, r.flusher.flush(false))
				if to == Flushed || to == Synced {
					require.Equal(t, r.tat(22), r.stored(key))
				}
				require.NoError(t, r.Close())
				require.Equal(t, r.tat(22), r.stored(key))
			})
		}
	}
}

// TestExactAfterClose shows that the store has what was spent before a Flush,
// and after Close to the nanosecond, whatever commits are under way.
func TestExactAfterClose(t *testing.T) {
	rounds := 5
	if long {
		rounds = 100
	}
	for range rounds {
		r := newLevels(t, Limit{Burst: 1e6, Count: 1, Period: time.Minute})
		reqs := []Request{{flushed.Key("a"), 1, 0}, {synced.Key("a"), 1, 0}, {leased.Key("a"), 1, 0}}
		var spent [3]atomic.Int64
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for n := w; ; n++ {
					from, to := 0, len(reqs)
					if n%3 == 0 {
						from = n / 3 % 3
						to = from + 1
					}
					cost, call := int64(1), r.SpendAll
					if w == 0 && to-from == 1 && from > 0 && n%5 == 4 && spent[from].Load() > 10 {
						cost, call = -1, r.RefundAll
					}
					if _, err := call(reqs[from:to]...); err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
					for i := from; i < to; i++ {
						spent[i].Add(cost)
					}
				}
			})
		}
		for range 40 {
			before := spent[0].Load()
			require.NoError(t, r.Flush())
			require.LessOrEqual(t, r.tat(0)+before*int64(time.Minute), max(r.stored(reqs[0].Key), r.tat(0)))
		}
		require.NoError(t, r.Close())
		wg.Wait()
		for i, req := range reqs {
			require.Equal(t, r.tat(0)+spent[i].Load()*int64(time.Minute), max(r.stored(req.Key), r.tat(0)), "%v", req.Key)
		}
	}
}

// A caller stops waiting for a commit when its context ends. The decision stands
// as if it had not.
func TestSpendAllContext(t *testing.T) {
	tenHours := Limit{Burst: 10, Count: 1, Period: time.Hour}
	run := func(name string, test func(t *testing.T, r *rig)) {
		t.Run(name, func(t *testing.T) { inBubble(t, tenHours, Options{}, test) })
	}
	key := synced.Key("a")
	stopped := func(t *testing.T, r *rig, cost int64) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := r.SpendAllContext(ctx, Request{Key: key, Cost: cost}, Request{Key: synced.Key("b"), Cost: 1})
			done <- err
		}()
		synctest.Wait()
		cancel()
		err := <-done // a deadlock if it waits for the save
		require.ErrorIs(t, err, ErrNotDurable)
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, cost, r.spent(key), "until the commit fails")
	}
	run("the commit comes", func(t *testing.T, r *rig) {
		r.disk.shut()
		stopped(t, r, 3)
		r.disk.open()
		synctest.Wait()
		require.EqualValues(t, 3, r.spent(key))
		require.Equal(t, r.tat(3), r.stored(key))
	})
	run("the commit fails", func(t *testing.T, r *rig) {
		r.disk.shut()
		stopped(t, r, 3)
		r.disk.gate <- errDisk
		synctest.Wait()
		require.Zero(t, r.spent(key))
		r.disk.open()
	})
	run("the context has ended before", func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.disk.shut()
		_, err := r.SpendAllContext(ctx, Request{Key: key, Cost: 10})
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 10, r.spent(key), "a client that goes early spends like others")
		d, err := r.SpendAllContext(ctx, Request{Key: key, Cost: 1})
		require.NoError(t, err, "a denial waits for nothing")
		require.False(t, d.Allowed)
		d, err = r.SpendAllContext(ctx, Request{Key: flushed.Key("a"), Cost: 1})
		require.NoError(t, err)
		require.True(t, d.Allowed)
		r.disk.open()
	})
}
