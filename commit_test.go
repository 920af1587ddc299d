package stint

import (
	"bytes"
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

	"github.com/stint-go/stint/internal/table"
	"github.com/stint-go/stint/internal/testlength"
)

// inBubble runs a test in a bubble of synctest, with a limit at each level.
func inBubble(t *testing.T, limit Limit, opts Options, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := rigOn(t, NewMemStore(), levelLimits(t, limit), opts)
		test(t, r)
		require.NoError(t, r.Close())
	})
}

// goroutines returns how many goroutines the caller's bubble keeps: those that
// are on their way out end first. Tests that run beside this one have others.
func goroutines(t *testing.T) int {
	t.Helper()
	synctest.Wait()
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)] // the caller's is the first
	header, _, _ := bytes.Cut(stacks, []byte("\n"))
	_, bubble, ok := bytes.Cut(header, []byte("synctest bubble "))
	require.True(t, ok, "%s", header)
	return bytes.Count(stacks, append([]byte("synctest bubble "), bubble...))
}

// TestCommit is about what waits for a commit. Package groupcommit has the
// tests of how callers share one.
func TestCommit(t *testing.T) {
	late := Options{CommitTimeout: 5 * time.Second}
	run := func(name string, opts Options, test func(t *testing.T, r *rig)) {
		t.Run(name, func(t *testing.T) { inBubble(t, hundred, opts, test) })
	}
	run("stats", late, func(t *testing.T, r *rig) {
		r.take(synced.Key("a"), 1)
		require.True(t, r.spendAll(synced.Key("a").Cost(1), synced.Key("b").Cost(1), leased.Key("c").Cost(1)).Allowed)
		st := r.Stats()
		require.Equal(t, []int64{2, 4, 0, 1}, []int64{st.Commit.Saves, st.Commit.Buckets, st.Commit.Failures, r.cache.Stats().Leases})
		require.NoError(t, r.Health())
		r.disk.on(func(storeOp) error { return errDisk })
		require.ErrorIs(t, errorOf(r.Spend(synced.Key("a"), 1)), ErrNotDurable)
		r.disk.on(nil)
		st = r.Stats()
		require.Equal(t, []int64{2, 4, 1}, []int64{st.Commit.Saves, st.Commit.Buckets, st.Commit.Failures})
		require.ErrorIs(t, r.Health(), errDisk)
	})
	run("timeouts leave no goroutines", late, func(t *testing.T, r *rig) {
		key, held := synced.Key("a"), flushed.Key("a")
		r.disk.shut()
		before := goroutines(t)
		for i := range 20 {
			require.ErrorIs(t, errorOf(r.Spend(key, 1)), ErrNotDurable)
			require.ErrorIs(t, errorOf(r.Hold(held, r.Now().Add(time.Duration(i+1)*time.Hour))), ErrNotDurable)
		}
		require.LessOrEqual(t, goroutines(t), before+1)
		reset := begin(func() error { return r.Reset(held) })
		require.Empty(t, reset, "the holds may yet come")
		r.disk.open()
		require.NoError(t, <-reset)
		r.take(held, 1)
		require.Zero(t, r.stored(holdKey(held)))
		require.EqualValues(t, 20, r.spent(key))
	})
	for name, used := range map[string]int64{"the tokens are there": 0, "the turn comes during the commit": 40} {
		run("a context ends during the commit of a Wait, "+name, Options{}, func(t *testing.T, r *rig) {
			key := synced.Key("a")
			r.take(key, used)
			r.disk.shut()
			ctx, cancel := context.WithCancel(t.Context())
			ended := begin(func() error { return errorOf(r.Wait(ctx, key.Cost(100))) })
			r.clock.Advance(time.Duration(used) * time.Hour)
			cancel()
			r.disk.open()
			require.ErrorIs(t, <-ended, context.Canceled)
			require.Zero(t, r.spent(key), "the caller does not go")
			require.LessOrEqual(t, r.stored(key), r.tat(0))
		})
	}
	for name, used := range map[string]int64{"the tokens are there": 0, "the turn comes during the commit": 1} {
		run("Wait says when it took the tokens, "+name, Options{}, func(t *testing.T, r *rig) {
			key := synced.Key("a")
			r.take(key, used)
			begun := r.Now()
			r.disk.shut()
			spent := make(chan time.Time)
			go func() {
				d, err := r.Wait(t.Context(), key.Cost(100))
				require.NoError(t, err)
				spent <- d.At()
			}()
			synctest.Wait()
			r.clock.Advance(10 * time.Hour) // the commit takes as long
			r.disk.open()
			require.Equal(t, begun.Add(time.Duration(used)*time.Hour), <-spent)
		})
	}
	each := func(r *rig) (reqs []Request, ds []Decision) {
		for _, id := range []string{"a", "b", "a", "c"} {
			reqs = append(reqs, Request{Key: synced.Key(id), Cost: 1}, Request{Key: flushed.Key(id), Cost: 1})
		}
		return append(reqs, Request{Key: nobody.Key("x"), Cost: 1}), make([]Decision, len(reqs)+1)
	}
	run("DoEach waits for its requests together", Options{}, func(t *testing.T, r *rig) {
		reqs, ds := each(r)
		r.disk.shut()
		ended := begin(func() error { return r.DoEach(context.Background(), reqs, ds) })
		// The first request may be in a commit alone.
		for _, id := range []string{"a", "b", "c"} {
			require.EqualValues(t, map[string]int{"a": 2, "b": 1, "c": 1}[id], r.spent(synced.Key(id)))
		}
		r.disk.open()
		err := <-ended
		require.ErrorContains(t, err, "request 8: ")
		require.LessOrEqual(t, r.disk.count(), 2)
		require.EqualValues(t, 98, ds[4].Remaining)
		require.Equal(t, r.tat(2), r.stored(synced.Key("a")))
	})
	run("a commit of a DoEach fails", Options{}, func(t *testing.T, r *rig) {
		reqs, ds := each(r)
		r.disk.fail(errDisk, "save")
		err := r.DoEach(context.Background(), reqs, ds)
		for i, err := range eachOf(t, err, len(reqs)) {
			if i%2 == 1 {
				require.NoError(t, err)
				continue
			}
			require.Error(t, err)
			require.Equal(t, i < 8, errors.Is(err, ErrNotDurable))
			require.Zero(t, ds[i])
		}
		require.True(t, ds[1].Allowed)
		// The first request may be in a commit alone: then what it spent stays spent,
		// because the second one had built on it when its commit failed.
		require.LessOrEqual(t, r.spent(synced.Key("a")), int64(1))
		require.Zero(t, r.spent(synced.Key("b")))
		require.EqualValues(t, 2, r.spent(flushed.Key("a")))
		r.disk.fail(nil)
	})
	run("DoEach times out once", late, func(t *testing.T, r *rig) {
		reqs, ds := each(r)
		r.disk.shut()
		r.disk.on(func(op storeOp) error {
			if op.key == synced.Key("b") && !op.done {
				synctest.Wait() // the first request is being saved, and the others are in the next commit
			}
			return nil
		})
		begun := time.Now()
		err := r.DoEach(context.Background(), reqs, ds)
		eachOf(t, err, len(reqs))
		require.ErrorIs(t, err, ErrNotDurable)
		require.Equal(t, late.CommitTimeout, time.Since(begun))
		r.disk.on(nil)
		r.disk.open()
	})
	run("a failed commit", Options{}, func(t *testing.T, r *rig) {
		r.disk.fail(errDisk, "save")
		require.ErrorIs(t, errorOf(r.Spend(synced.Key("a"), 1)), ErrNotDurable)
		require.Zero(t, r.Stats().Limits[synced].Allowed)
		require.EqualValues(t, 1, r.Stats().Dirty, "it may be on file")
		r.disk.fail(nil)
	})
	run("a commit that fails while the Limiter closes", Options{}, func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.disk.shut()
		spent := begin(func() error { return errorOf(r.Spend(key, 4)) })
		closed := begin(r.Close)
		r.disk.gate <- errDisk
		r.disk.open()
		require.ErrorIs(t, <-spent, ErrNotDurable)
		require.NoError(t, <-closed)
		require.Zero(t, r.next(r.Limits()).spent(key))
	})
}

// TestLease counts the saves of a lease. The random model knows what it covers.
func TestLease(t *testing.T) {
	inBubble(t, hundred, Options{}, testLease)
}

func testLease(t *testing.T, r *rig) {
	key := leased.Key("a")
	for range 100 {
		r.take(key, 1)
		r.rest()
	}
	saves := r.disk.count()
	require.LessOrEqual(t, saves, 18)
	require.GreaterOrEqual(t, saves, 15)
	require.EqualValues(t, saves, r.cache.Stats().Leases)
	for range 100 {
		r.refund(key, 1)
		r.rest()
	}
	require.Zero(t, r.stored(key), "a full bucket is not stored")
	require.LessOrEqual(t, r.disk.count(), 2*saves)

	r.take(key, 60)
	r.rest()
	count := r.disk.count()
	r.tick()
	require.Equal(t, count, r.disk.count(), "a flush leaves a lease alone")
	require.Greater(t, r.stored(key), r.tat(60))
	require.NoError(t, r.Flush())
	require.Equal(t, r.tat(60), r.stored(key), "Flush saves what is spent")
	r.take(key, 1)
	require.Equal(t, count+2, r.disk.count(), "then the next spend takes a lease")
	require.NoError(t, r.Close())
	require.Equal(t, r.tat(61), r.stored(key), "Close saves what is spent")
}

// TestRenewal is about a lease that is renewed while half of it is left: only
// the first spend waits. With the limit hundred, half a lease is 6.25 tokens.
func TestRenewal(t *testing.T) {
	rest := func() { pass(renewalPause) } // package groupcommit has the tests of the pause
	key := leased.Key("a")
	inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
		r.take(key, 1)
		require.Equal(t, r.tat(0)+25*hour/2, r.stored(key))
		r.take(key, 5)
		rest()
		require.Equal(t, 1, r.disk.count())

		r.disk.shut()
		r.take(key, 1) // in the second half
		r.take(key, 5)
		rest()
		require.EqualValues(t, 2, r.cache.Stats().Leases, "the third half is asked for once")
		require.Equal(t, []Change{{key, r.tat(0) + 75*hour/4}}, r.disk.latest())
		answered := make(chan struct{}, 1)
		go func() {
			r.take(key, 1)
			answered <- struct{}{}
		}()
		rest()
		require.Empty(t, answered, "a lease covers a spend only once it is saved")
		r.disk.gate <- nil
		rest()
		require.Equal(t, 3, r.disk.count(), "it is in a later commit")
		r.disk.open()
		<-answered
		require.Equal(t, r.tat(25), r.stored(key), "the store has the next half as well")
	})
}

// A flush has saved the exact TAT of a bucket, and then a commit saves a lease in
// its place. The lease is not the bucket's last word: the next flush saves the
// exact TAT again. Otherwise eviction would withhold tokens without a crash.
func TestLeaseAfterFlush(t *testing.T) {
	inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
		key := leased.Key("a")
		r.take(key, 1)
		r.disk.shut()
		flushed, refunded := begin(r.Flush), make(chan error, 1)
		require.Equal(t, []Change{{key, r.tat(1)}}, r.disk.latest(), "the flush is in its save")
		go func() { // it changes nothing, but waits until the store has that
			refunded <- errorOf(r.Refund(key.Cost(1).SpentAt(r.Now().Add(-100 * time.Hour))))
		}()
		for joined := false; !joined; runtime.Gosched() { // synctest.Wait would wait for the commit, which waits for the flush
			joined = inCommit(r.Limiter, key)
		}
		require.Empty(t, refunded)
		r.disk.open()
		require.NoError(t, <-flushed)
		require.NoError(t, <-refunded)
		require.Greater(t, r.stored(key), r.tat(1), "the commit has saved a lease")

		require.NoError(t, r.Flush())
		require.Equal(t, r.tat(1), r.stored(key))
		r.evictAll()
		require.Zero(t, r.Stats().Resident)
		require.EqualValues(t, 1, r.spent(key))
	})
}

// A commit fails that had taken a bucket from one TAT to another. The bucket was
// full in between, because of a refund that needed no commit, and now it has the
// second TAT again, because of a spend that was acknowledged. That spend is not
// taken back.
func TestFailedCommitAfterRefund(t *testing.T) {
	inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
		key := flushed.Key("a")
		r.disk.shut()
		failed := begin(func() error { return errorOf(r.SpendAll(key.Cost(30), synced.Key("a").Cost(1))) })
		r.refund(key, 100)
		r.take(key, 30)
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-failed, ErrNotDurable)
		r.disk.open()
		require.EqualValues(t, 30, r.spent(key))
		require.NoError(t, r.Flush())
		require.Equal(t, r.tat(30), r.stored(key))
	})
}

// A commit fails that spent of a bucket which has spent more since, without a commit.
// Both stay spent: a token that comes back twice is worse than one that is lost.
func TestFailedCommitAfterSpend(t *testing.T) {
	inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
		key := flushed.Key("a")
		r.disk.shut()
		failed := begin(func() error { return errorOf(r.SpendAll(key.Cost(30), synced.Key("a").Cost(1))) })
		r.take(key, 10)
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-failed, ErrNotDurable)
		r.disk.open()
		require.EqualValues(t, 40, r.spent(key))
	})
}

// A call that waits for no commit finds nothing to change, because a change in a
// commit has done so already. It was acknowledged, so that change stays even if
// its commit fails.
func TestAnswerBuildsOnFailedCommit(t *testing.T) {
	key := flushed.Key("a")
	run := func(name string, test func(t *testing.T, r *rig)) {
		t.Run(name, func(t *testing.T) { inBubble(t, hundred, Options{}, test) })
	}
	fail := func(t *testing.T, r *rig, call func() error, then func()) {
		r.disk.shut()
		failed := begin(call)
		then()
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-failed, ErrNotDurable)
		r.disk.open()
	}
	run("a refund on a reset", func(t *testing.T, r *rig) {
		r.take(key, 30)
		r.hold(key, time.Hour) // for the reset to need a commit
		fail(t, r, func() error { return r.Reset(key) }, func() { r.refund(key, 10) })
		require.LessOrEqual(t, r.spent(key), int64(20))
	})
}

// A bucket is refunded, the limits change, and then the commit of the refund fails.
func TestFailedCommitAfterOtherLimits(t *testing.T) {
	key := synced.Key("a")
	for name, c := range map[string]struct {
		change func(t *testing.T, r *rig) error
		left   int64
		reset  time.Duration
	}{
		"SetLimits": {func(t *testing.T, r *rig) error { // no request waits longer than for an empty bucket
			return r.SetLimits(levelLimits(t, ten))
		}, 0, 10 * time.Second},
		"SetOverrides": {func(_ *testing.T, r *rig) error { // what was used stays used
			limit := Limit{Burst: 1000, Count: 1, Period: time.Second, Durability: Synced}
			return r.SetOverrides(Override{Key: synced.Key("a"), Limit: limit})
		}, 970, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
				r.take(key, 30)
				r.disk.shut()
				failed := begin(func() error { return errorOf(r.Refund(key.Cost(30).SpentAt(inFuture))) })
				was, changed := r.Limits(), make(chan error, 1)
				go func() { changed <- c.change(t, r) }()
				for r.Limits() == was { // the limits are in force before a save of SetOverrides
					runtime.Gosched()
				}
				for joined := false; !joined; runtime.Gosched() {
					joined = inCommit(r.Limiter, key) && ruleInForce(r.Limiter, key)
				}
				r.disk.gate <- errDisk
				require.ErrorIs(t, <-failed, ErrNotDurable)
				r.disk.open()
				require.NoError(t, <-changed)
				d := r.check(key, 0)
				require.Equal(t, c.left, d.Remaining)
				require.Equal(t, c.reset, d.ResetAfter)
			})
		})
	}
}

// TestExactAfterClose shows that after a Flush the store has all that was spent
// before it, and after Close every TAT to the nanosecond, whatever commits are
// under way.
func TestExactAfterClose(t *testing.T) {
	rounds := 5
	if testlength.Long {
		rounds = 100
	}
	for range rounds {
		r := newLevels(t, Limit{Burst: 1e6, Count: 1, Period: time.Minute})
		reqs := []Request{{Key: flushed.Key("a"), Cost: 1}, {Key: synced.Key("a"), Cost: 1}, {Key: leased.Key("a"), Cost: 1}}
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
					if _, err := r.SpendAll(reqs[from:to]...); err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
					for i := from; i < to; i++ {
						spent[i].Add(1)
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

// A caller stops waiting for a commit when its context ends. The decision
// stands as if the context had not ended.
func TestDoContext(t *testing.T) {
	tenHours := Limit{Burst: 10, Count: 1, Period: time.Hour}
	run := func(name string, test func(t *testing.T, r *rig)) {
		t.Run(name, func(t *testing.T) { inBubble(t, tenHours, Options{}, test) })
	}
	key := synced.Key("a")
	stopped := func(t *testing.T, r *rig, cost int64) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := begin(func() error {
			return errorOf(r.Do(ctx, []Request{key.Cost(cost), synced.Key("b").Cost(1)}, make([]Decision, 2)))
		})
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
		require.ErrorIs(t, errorOf(r.Do(ctx, []Request{key.Cost(10)}, nil)), context.Canceled)
		require.EqualValues(t, 10, r.spent(key), "a client that goes early spends like others")
		d, err := r.Do(ctx, []Request{key.Cost(1)}, nil)
		require.NoError(t, err, "a denial waits for nothing")
		require.False(t, d.Allowed)
		d, err = r.Do(ctx, []Request{flushed.Key("a").Cost(1)}, nil)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		r.disk.open()
	})
}

// inCommit reports whether a bucket is in a commit that has not ended.
func inCommit(l *Limiter, key Key) bool {
	s, h := l.cache.Shard(uint16(key.Name), key.ID)
	s.LockFast()
	defer s.UnlockFast()
	i, ok := s.Find(uint16(key.Name), key.ID, h)
	return ok && s.At(i).Has(table.Pending)
}

// ruleInForce reports whether a bucket is held to the newest limit.
func ruleInForce(l *Limiter, key Key) bool {
	s, h := l.cache.Shard(uint16(key.Name), key.ID)
	s.LockFast()
	defer s.UnlockFast()
	rule, _ := l.limits.Load().resolve(key)
	i, ok := s.Find(uint16(key.Name), key.ID, h)
	return ok && s.At(i).Rule() == rule
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
	spend := func(key Key) func(r *rig) bool {
		return func(r *rig) bool { return allowed(r.Spend(key, 1)) }
	}
	promoted := func(r *rig) { require.True(t, promote(r.Limiter, key)) }
	retired := func(r *rig) { r.Stats() }
	fresh, third := flushed.Key("new"), flushed.Key("third")
	for name, c := range map[string]struct {
		key                  Key
		call                 func(r *rig) bool
		first, before, after func(r *rig) // of all; before and after the other spend
	}{
		"Allow":                {key: key, call: func(r *rig) bool { return r.Allow(key) }},
		"Spend":                {key: key, call: spend(key)},
		"Spend, not in memory": {key: fresh, call: spend(fresh)},
		"Spend, lane":          {key: key, call: spend(key), first: promoted},
		"Spend, lane that denies": {key: key, call: spend(key), first: func(r *rig) {
			promoted(r)
			r.take(key, 2)
			require.False(t, r.Allow(key))
			r.clock.Advance(2 * time.Hour)
		}},
		"Spend, new lane":     {key: key, call: spend(key), before: promoted},
		"Spend, old lane":     {key: key, call: spend(key), first: promoted, after: retired},
		"Spend, lane between": {key: key, call: spend(key), before: promoted, after: retired},
		"Spend, after SpendAll": {key: third, call: spend(key), before: func(r *rig) {
			r.spendAll(key.Cost(1), other.Cost(1))
		}},
		"Spend, faster limit": {key: third, call: spend(key), first: func(r *rig) { r.take(key, 1) }, before: func(r *rig) {
			require.NoError(t, r.SetOverrides(Override{Key: key, Limit: Limit{Burst: 2, Count: 1, Period: time.Hour / 2}}))
		}},
		"Check":       {key: key, call: func(r *rig) bool { return allowed(r.Check(key, 1)) }},
		"Check, lane": {key: key, call: func(r *rig) bool { return allowed(r.Check(key, 1)) }, first: promoted},
		"SpendAll": {key: key, call: func(r *rig) bool {
			return allowed(r.SpendAll(key.Cost(1), other.Cost(1)))
		}},
		"DoEach":                {key: key, call: each(Request{Key: other, Cost: 1}, Request{Key: key, Cost: 1})},
		"DoEach, lane":          {key: key, call: each(Request{Key: key, Cost: 1}), first: promoted},
		"DoEach, checks":        {key: key, call: each(Request{Key: key, Cost: 1, Mode: CheckOnly})},
		"DoEach, configured":    {key: key, call: each(Request{Key: key, Cost: 1, Limit: two})},
		"DoEach, given":         {key: key, call: each(Request{Key: key, Cost: 1, Limit: given})},
		"DoEach, leased":        {key: leased.Key("a"), call: each(Request{Key: leased.Key("a"), Cost: 1})},
		"DoEach, synced":        {key: synced.Key("a"), call: each(Request{Key: synced.Key("a"), Cost: 1})},
		"DoEach, not in memory": {key: fresh, call: each(Request{Key: fresh, Cost: 1})},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLevels(t, two)
			do := func(f func(r *rig)) {
				if f != nil {
					f(r)
				}
			}
			for _, k := range []Key{key, other, leased.Key("a"), synced.Key("a")} {
				r.spend(k, 1)
				r.refund(k, 1) // it is full, and in memory
			}
			do(c.first)
			held, release := r.clock.Hold(0)
			first := make(chan bool, 1)
			go func() { first <- c.call(r) }()
			<-held
			r.clock.Advance(time.Microsecond)
			do(c.before)
			require.True(t, r.Allow(c.key))
			do(c.after)
			release()
			require.True(t, <-first)
		})
	}
}

// Cancel says if its commit fails. The tokens are back in memory all the same.
func TestCancelThatFails(t *testing.T) {
	inBubble(t, Limit{Burst: 2, Count: 1, Period: time.Hour}, Options{}, func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.take(key, 2)
		place := r.reserve(key, 1)
		r.disk.fail(errDisk, "save")
		require.ErrorIs(t, place.Cancel(), ErrNotDurable)
		require.NoError(t, place.Cancel(), "a second one does nothing")
		r.disk.fail(nil)
		r.clock.Advance(time.Hour)
		r.take(key, 1)
		place = r.reserve(key, 1)
		require.NoError(t, place.Cancel())
	})
}

// Cancel gives back no token twice, nor does a commit that fails.
func TestReturnedTwice(t *testing.T) {
	limit := Limit{Burst: 20, Count: 1, Period: time.Second}
	t.Run("cancel", func(t *testing.T) {
		r, key := newLevels(t, limit), flushed.Key("a")
		first, second := r.reserve(key, 10), r.reserve(key, 10)
		r.clock.Advance(time.Second)
		first.Cancel()
		r.clock.Advance(7 * time.Second)
		r.take(key, 5)
		r.clock.Advance(time.Second)
		second.Cancel()
		require.LessOrEqual(t, r.left(key), int64(16))
	})
	t.Run("commits that fail", func(t *testing.T) {
		inBubble(t, limit, Options{}, func(t *testing.T, r *rig) {
			key := synced.Key("a")
			r.disk.shut()
			spend := func(cost int64) chan error {
				return begin(func() error { return errorOf(r.Spend(key, cost)) })
			}
			first, second := spend(10), spend(10)
			r.clock.Advance(time.Second)
			r.disk.gate <- errDisk
			require.ErrorIs(t, <-first, ErrNotDurable)
			synctest.Wait() // the second commit is under way
			r.clock.Advance(7 * time.Second)
			third := spend(5)
			r.clock.Advance(time.Second)
			r.disk.gate <- errDisk
			require.ErrorIs(t, <-second, ErrNotDurable)
			r.disk.open()
			require.NoError(t, <-third)
			require.LessOrEqual(t, r.left(key), int64(16))
		})
	})
}

// An acknowledged change is on disk, even if an earlier call made the change in
// memory and then failed, so that the acknowledged call found nothing to
// change. In TestFaultTable the calls come one after the other. Here they come
// at once.
func TestAcknowledgement(t *testing.T) {
	calls := map[string]func(r *rig, key Key) error{
		"Reset":  func(r *rig, key Key) error { return r.Reset(key) },
		"Refund": func(r *rig, key Key) error { _, err := r.Refund(key.Cost(10).SpentAt(inFuture)); return err },
		"Hold":   func(r *rig, key Key) error { return r.SetHold(key, time.Time{}) },
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
						errs[i] = begin(func() error { return call(r, key) })
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
