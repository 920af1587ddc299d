package stint

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNew(t *testing.T) {
	limits := testLimits(t)
	for want, opts := range map[string]*Options{
		"stint: FlushInterval -1ns: want more than 0":                             {FlushInterval: -1},
		"stint: LockTimeout -1ns: want more than 0":                               {LockTimeout: -1},
		"stint: CommitTimeout -1ns: want more than 0":                             {CommitTimeout: -1},
		"stint: MaxResident -1: want more than 0":                                 {MaxResident: -1},
		"stint: Durability Durability(5): want Memory, Flushed, Leased or Synced": {Durability: 5},
	} {
		_, err := New(NewMemStore(), limits, opts)
		require.EqualError(t, err, want)
		_, err = Open(filepath.Join(t.TempDir(), "buckets.db"), limits, opts)
		require.EqualError(t, err, want)
	}
	_, err := New(NewMemStore(), nil, nil)
	require.EqualError(t, err, "stint: New: no limits")
	_, err = New(nil, limits, nil)
	require.EqualError(t, err, "stint: New: no store")
	_, err = Open("", limits, nil)
	require.EqualError(t, err, "stint: open: the path is empty")
	_, err = Open(filepath.Join(t.TempDir(), "buckets.db"), nil, nil)
	require.EqualError(t, err, "stint: Open: no limits")

	for _, op := range []string{"declare", "all"} {
		broken := &fakeStore{Store: NewMemStore()}
		broken.fail(errDisk, op)
		_, err = New(broken, limits, nil)
		require.ErrorIs(t, err, errDisk, op)
	}
	mem := NewMemStore()
	save(t, mem, Change{Unknown.Key("no key"), 1})
	_, err = New(mem, limits, nil)
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestEventKind(t *testing.T) {
	for kind, want := range map[EventKind]string{
		FlushFailed: "flush failed", FlushRecovered: "flush recovered", ClockStepped: "clock stepped",
		FileSetAside: "file set aside", 99: "EventKind(99)",
	} {
		require.Equal(t, want, kind.String())
	}
}

func TestClose(t *testing.T) {
	t.Run("every call returns ErrClosed", func(t *testing.T) {
		r := newRig(t)
		r.spend(perID.Key("a"), 1)
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		requireClosed(t, r.Limiter)
	})
	t.Run("failed save", func(t *testing.T) {
		r := newRig(t)
		r.spend(perID.Key("a"), 1)
		r.disk.fail(errDisk, "save", "close")
		err := r.Close()
		require.ErrorIs(t, err, errDisk)
		require.Equal(t, err, r.Close(), "a second Close returns what the first did")
	})
	t.Run("while a bucket is loaded", func(t *testing.T) {
		r := newRig(t)
		r.disk.on(func(op storeOp) error {
			if op.name == "load" && op.done {
				r.disk.on(nil)
				require.NoError(t, r.Close())
			}
			return nil
		})
		_, err := r.Spend(perID.Key("a"), 1)
		require.ErrorIs(t, err, ErrClosed)
	})
	t.Run("SetLimits by a listener for which Close waits", func(t *testing.T) {
		limits := testLimits(t)
		told, goOn := make(chan struct{}), make(chan struct{})
		set, closed := make(chan error, 1), make(chan error, 1)
		var r *rig
		r = rigOn(t, NewMemStore(), limits, Options{OnEvent: func(Event) {
			close(told)
			<-goOn
			set <- r.SetLimits(limits)
		}})
		r.take(perID.Key("a"), 1)
		r.disk.fail(errDisk)
		require.Error(t, r.Flush())
		<-told
		go func() { closed <- r.Close() }()
		<-r.events.silent // from now on Close waits for the listener
		close(goOn)
		require.ErrorIs(t, <-set, ErrClosed)
		require.ErrorIs(t, <-closed, errDisk)
	})
}

// requireClosed requires that every method returns ErrClosed.
func requireClosed(t testing.TB, l *Limiter) {
	t.Helper()
	for _, key := range []Key{perID.Key("a"), perID.Key("never seen"), everyone.Key(""), off.Key("a")} {
		calls := map[string]func() error{
			"Spend":     func() error { _, err := l.Spend(key, 1); return err },
			"Check":     func() error { _, err := l.Check(key, 1); return err },
			"Refund":    func() error { _, err := l.Refund(key.Cost(1).SpentAt(JustSpent)); return err },
			"Reset":     func() error { return l.Reset(key) },
			"SpendAll":  func() error { _, err := l.SpendAll(Request{Key: key, Cost: 1}); return err },
			"no spends": func() error { _, err := l.SpendAll(); return err },
			"DoEach": func() error {
				return l.DoEach(context.Background(), []Request{{Key: key, Cost: 1}}, make([]Decision, 1))
			},
			"Reserve":      func() error { _, err := l.Reserve(key.Cost(1)); return err },
			"Wait":         func() error { return errorOf(l.Wait(context.Background(), key.Cost(1))) },
			"Hold":         func() error { return errorOf(l.Hold(key, time.Now().Add(time.Hour))) },
			"Bucket":       func() error { _, err := l.Bucket(key); return err },
			"SetLimits":    func() error { return l.SetLimits(l.limits.Load()) },
			"SetOverrides": func() error { return l.SetOverrides(Override{Key: perID.Key("a"), Limit: Blocked}) },
			"Flush":        l.Flush,
		}
		for name, call := range calls {
			require.ErrorIs(t, call(), ErrClosed, name)
		}
		require.False(t, l.Allow(key) && !l.opts.FailOpen)
	}
	for _, err := range l.Buckets(perID) {
		require.ErrorIs(t, err, ErrClosed)
	}
	l.Stats()
	l.Health()
}

// testEvictOne is about a Limiter that has MaxResident buckets in memory.
func testEvictOne(t *testing.T) {
	t.Run("nothing can be saved", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: 8})
		r.disk.fail(errDisk, "save")
		for i := range 8 {
			r.take(flushed.Key(fmt.Sprint(i)), 10)
		}
		for saves := 1; saves <= 20; saves++ {
			d, err := r.Spend(flushed.Key("one more"), 1)
			require.ErrorIs(t, err, ErrFull)
			require.ErrorIs(t, err, errDisk)
			require.Zero(t, d)
			require.Equal(t, saves, r.disk.count(), "a call that waits for space tries once")
		}
		for i := range 8 {
			require.False(t, r.spend(flushed.Key(fmt.Sprint(i)), 1).Allowed)
		}
		require.ErrorIs(t, r.Health(), errDisk)
		require.ErrorIs(t, r.Close(), errDisk)
	})
	t.Run("a limit without buckets", func(t *testing.T) {
		limits := limitsOf(t, testNames, map[Name]Limit{perID: PerMinute(5), everyone: Blocked})
		r := rigOn(t, NewMemStore(), limits, Options{MaxResident: 1})
		r.disk.fail(errDisk, "save")
		r.take(perID.Key("a"), 1)
		_, err := r.Spend(perID.Key("b"), 1)
		require.ErrorIs(t, err, ErrFull)
		tries := r.disk.count()
		r.take(off.Key("b"), 1)
		require.False(t, r.spend(everyone.Key(""), 1).Allowed)
		require.False(t, r.spendGiven(perID.Key("b"), 1, Blocked).Allowed)
		require.True(t, r.spendGiven(perID.Key("b"), 1, Unlimited).Allowed)
		_, err = r.Spend(nobody.Key("b"), 1)
		require.ErrorIs(t, err, ErrUnknownName)
		_, err = r.Spend(perID.Key(""), 1)
		require.ErrorIs(t, err, ErrInvalidID)
		require.Equal(t, tries, r.disk.count(), "none of them needs space")
	})
	t.Run("all have queues", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), levelLimits(t, ten), Options{MaxResident: 2})
		for _, id := range []string{"a", "b"} {
			r.reserve(flushed.Key(id), 10)
			r.reserve(flushed.Key(id), 1)
		}
		_, err := r.Spend(flushed.Key("one more"), 1)
		require.ErrorIs(t, err, ErrFull)
		require.ErrorContains(t, err, "each with a queue")
	})
	t.Run("the disk does not answer", func(t *testing.T) {
		inBubble(t, ten, Options{MaxResident: 1, CommitTimeout: 5 * time.Second}, func(t *testing.T, r *rig) {
			r.take(flushed.Key("a"), 1)
			r.disk.shut()
			before := goroutines(t)
			for range 20 {
				begun := time.Now()
				_, err := r.Spend(flushed.Key("b"), 1)
				require.ErrorIs(t, err, ErrFull)
				require.Equal(t, 5*time.Second, time.Since(begun))
				r.take(flushed.Key("a"), 0) // it is in memory
			}
			require.LessOrEqual(t, goroutines(t), before+1)
			r.disk.open()
			synctest.Wait()
			r.take(flushed.Key("b"), 1)
		})
	})
	t.Run("the disk does not answer DoEach", func(t *testing.T) {
		inBubble(t, ten, Options{MaxResident: 1, CommitTimeout: 5 * time.Second}, func(t *testing.T, r *rig) {
			require.NoError(t, r.SetOverrides(Override{Key: flushed.Key("blocked"), Limit: Blocked}))
			r.take(flushed.Key("a"), 1)
			r.disk.shut()
			reqs := make([]Request, 100)
			for i := range reqs {
				reqs[i] = Request{Key: flushed.Key(fmt.Sprint(i)), Cost: 1}
			}
			reqs[50].Key = flushed.Key("a")
			reqs[60].Key = nobody.Key("a")
			reqs[70] = Request{Key: flushed.Key("blocked"), Cost: 1, Limit: Blocked} // it needs no bucket
			reqs[80].Limit, reqs[81].Limit = Blocked, Unlimited                      // nor do these
			ds, begun := make([]Decision, len(reqs)), time.Now()
			err := r.DoEach(context.Background(), reqs, ds)
			require.ErrorIs(t, err, ErrFull)
			require.ErrorContains(t, err, "request 0:")
			require.ErrorContains(t, err, "request 99:")
			require.ErrorIs(t, err, ErrUnknownName)
			for _, at := range []int{70, 80, 81} {
				require.NotContains(t, err.Error(), fmt.Sprintf("request %d:", at))
			}
			require.Equal(t, 5*time.Second, time.Since(begun), "the requests wait once")
			for i, d := range ds {
				require.Equal(t, i == 50 || i == 81, d.Allowed)
			}
			errs := int64(0)
			for _, limit := range r.Stats().Limits {
				errs += limit.Errors
			}
			require.EqualValues(t, 96, errs)
			r.disk.open()
			synctest.Wait()
			require.NoError(t, r.DoEach(context.Background(), reqs[:1], ds))
		})
	})
	t.Run("a bucket that comes and goes while it is loaded", func(t *testing.T) {
		r, key := newLevels(t, hundred), flushed.Key("a")
		r.disk.on(func(op storeOp) error {
			if op.name == "load" && op.done {
				r.disk.on(nil)
				r.take(key, 60)
				require.NoError(t, r.Flush())
				r.evictAll()
			}
			return nil
		})
		require.EqualValues(t, 39, r.spend(key, 1).Remaining)
	})
}

// TestSetLimits is about mistakes. The random model changes limits that are in
// use.
func TestSetLimits(t *testing.T) {
	key, path := perID.Key("a"), storePath(t)
	r := rigOn(t, openBolt(t, path, testNames), testLimits(t), Options{})
	r.spend(key, 5)
	require.EqualError(t, r.SetLimits(nil), "stint: SetLimits: no limits")
	spec := func(label string) NameSpec { return NameSpec{Label: label, Limit: PerHour(1)} }
	for _, names := range []Names{{perID: spec("Other")}, {77: spec("PerID")}, {perID: spec("Renamed"), 78: spec("New")}} {
		require.ErrorIs(t, r.SetLimits(limitsOf(t, names, nil)), ErrNameMismatch)
		require.False(t, r.spend(key, 1).Allowed, "the old limits are in force")
		_, err := r.Spend(Name(78).Key("a"), 1)
		require.ErrorIs(t, err, ErrUnknownName)
	}
	require.NoError(t, r.SetLimits(limitsOf(t, Names{79: spec("New")}, nil)))
	require.EqualValues(t, 0, r.spend(Name(79).Key("a"), 1).Remaining)
	_, err := r.Spend(key, 1)
	require.ErrorIs(t, err, ErrUnknownName, "no longer declared")
	again := testLimits(t)
	require.NoError(t, r.SetLimits(again))
	require.Same(t, again, r.Limits())
	require.False(t, r.spend(key, 1).Allowed, "declared again")
	require.NoError(t, r.Close())
	require.Equal(t, "New", openBolt(t, path, nil).store.Names()[79])
}

// While the disk hangs, an operator can put other limits in force, and block an
// id.
func TestSetLimitsWhileASaveHangs(t *testing.T) {
	done := func(t *testing.T, call func() error) {
		t.Helper()
		err := make(chan error, 1)
		go func() { err <- call() }()
		synctest.Wait()
		select {
		case err := <-err:
			require.NoError(t, err)
		default:
			require.Fail(t, "it waits for the disk")
		}
	}
	block := func(r *rig, key Key) func() error {
		return func() error { return r.SetOverrides(Override{Key: key.Name.Key(key.ID), Limit: Blocked}) }
	}
	inBubbleNamed(t, "in a save", func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.take(key, 3)
		r.disk.shut()
		spent := make(chan Decision, 1)
		go func() { d, _ := r.Spend(key, 4); spent <- d }()
		synctest.Wait()
		more := ten
		more.Burst = 20
		done(t, func() error { return r.SetLimits(levelLimits(t, more)) })
		require.EqualValues(t, 13, r.left(key))
		done(t, block(r, flushed.Key("b")))
		require.False(t, r.Allow(flushed.Key("b")))
		less := ten
		less.Burst = 5
		done(t, func() error { return r.SetLimits(levelLimits(t, less)) })
		require.EqualValues(t, 0, r.left(key))
		r.disk.gate <- errDisk
		require.Zero(t, <-spent)
		require.EqualValues(t, 0, r.left(key), "it was cut meanwhile: nothing is given back")
		r.disk.open()
		require.NoError(t, r.Flush())
		require.Equal(t, r.clock.ns.Load()+int64(5*time.Second), r.stored(key))
		require.Zero(t, r.Stats().Limits[synced].Denied)
		require.EqualValues(t, 1, r.Stats().Limits[synced].Allowed, "the failed one does not count")
	})
	inBubbleNamed(t, "while the store enters a Name", func(t *testing.T, r *rig) {
		held := make(chan error)
		r.disk.on(func(op storeOp) error {
			if op.name == "declare" && !op.done {
				return <-held
			}
			return nil
		})
		names := maps.Clone(levelNames)
		names[9] = NameSpec{Label: "new", Limit: PerHour(1)}
		defaults := map[Name]Limit{}
		for name := range levelNames {
			defaults[name] = ten
		}
		declared, set := make(chan error, 1), make(chan error, 1)
		go func() { declared <- r.Declare(Names{8: {Label: "late"}}) }()
		synctest.Wait()
		key := flushed.Key("b")
		done(t, block(r, key))
		require.False(t, r.Allow(key))
		held <- nil
		require.NoError(t, <-declared)
		require.False(t, r.Allow(key), "Declare keeps an override that came meanwhile")
		go func() { set <- r.SetLimits(limitsOf(t, names, defaults)) }()
		synctest.Wait()
		done(t, block(r, flushed.Key("c")))
		held <- errDisk
		require.ErrorIs(t, <-set, errDisk)
		require.False(t, r.Allow(key), "the old limits are in force")
		r.disk.on(nil)
		done(t, func() error { return r.SetLimits(limitsOf(t, names, defaults)) })
		require.True(t, r.Allow(key))
		r.take(Name(9).Key("a"), 1)
	})
}
