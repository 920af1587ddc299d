package stint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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
		require.EqualError(t, errorOf(New(NewMemStore(), limits, opts)), want)
		require.EqualError(t, errorOf(Open(filepath.Join(t.TempDir(), "buckets.db"), limits, opts)), want)
	}
	require.EqualError(t, errorOf(New(NewMemStore(), nil, nil)), "stint: New: no limits")
	require.EqualError(t, errorOf(New(nil, limits, nil)), "stint: New: no store")
	require.EqualError(t, errorOf(Open("", limits, nil)), "stint: open: the path is empty")
	_, err := Open(filepath.Join(t.TempDir(), "buckets.db"), nil, nil)
	require.EqualError(t, err, "stint: Open: no limits")

	for _, op := range []string{"declare", "all"} {
		broken := &fakeStore{Store: NewMemStore()}
		broken.fail(errDisk, op)
		require.ErrorIs(t, errorOf(New(broken, limits, nil)), errDisk, op)
	}
	mem := NewMemStore()
	save(t, mem, Change{Unknown.Key("no key"), 1})
	require.ErrorIs(t, errorOf(New(mem, limits, nil)), ErrCorrupt)
}

func TestClose(t *testing.T) {
	// The suite of Deciders has the other calls.
	t.Run("every call returns ErrClosed", func(t *testing.T) {
		r := newRig(t)
		r.spend(perID.Key("a"), 1)
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		for _, key := range []Key{perID.Key("a"), perID.Key("never seen"), everyone.Key(""), off.Key("a")} {
			require.ErrorIs(t, errorOf(r.Spend(key, 1)), ErrClosed)
			require.ErrorIs(t, errorOf(r.Reserve(key.Cost(1))), ErrClosed)
			require.ErrorIs(t, r.DoEach(context.Background(), []Request{key.Cost(1)}, make([]Decision, 1)), ErrClosed)
			require.False(t, r.Allow(key) && !r.opts.FailOpen)
		}
		require.ErrorIs(t, r.Flush(), ErrClosed)
		for _, err := range r.Buckets(perID) {
			require.ErrorIs(t, err, ErrClosed)
		}
		r.Stats()
		r.Health()
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
		r.disk.after("load", func() { require.NoError(t, r.Close()) })
		require.ErrorIs(t, errorOf(r.Spend(perID.Key("a"), 1)), ErrClosed)
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
		closing := make(chan struct{})
		r.disk.on(func(op storeOp) error {
			switch {
			case op.name == "save":
				return errDisk
			case op.name == "close" && !op.done:
				close(closing)
			}
			return nil
		})
		go func() { closed <- r.Close() }()
		<-closing // then Close waits for the listener
		close(goOn)
		require.ErrorIs(t, <-set, ErrClosed)
		require.ErrorIs(t, <-closed, errDisk)
	})
}

// TestNoSpace is about a Limiter that has MaxResident buckets in memory.
func TestNoSpace(t *testing.T) {
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
		require.ErrorIs(t, errorOf(r.Spend(perID.Key("b"), 1)), ErrFull)
		tries := r.disk.count()
		r.take(off.Key("b"), 1)
		require.False(t, r.spend(everyone.Key(""), 1).Allowed)
		require.False(t, r.spendGiven(perID.Key("b"), 1, Blocked).Allowed)
		require.True(t, r.spendGiven(perID.Key("b"), 1, Unlimited).Allowed)
		require.ErrorIs(t, errorOf(r.Spend(nobody.Key("b"), 1)), ErrUnknownName)
		require.ErrorIs(t, errorOf(r.Spend(perID.Key(""), 1)), ErrInvalidID)
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
				require.ErrorIs(t, errorOf(r.Spend(flushed.Key("b"), 1)), ErrFull)
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
			require.ErrorContains(t, err, "requests 0 to 49: ")
			require.ErrorIs(t, err, ErrUnknownName)
			each := eachOf(t, err, len(reqs))
			for i, want := range map[int]error{0: ErrFull, 60: ErrUnknownName, 70: nil, 80: nil, 81: nil, 99: ErrFull} {
				require.ErrorIs(t, each[i], want)
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
		r.disk.after("load", func() {
			r.take(key, 60)
			require.NoError(t, r.Flush())
			r.evictAll()
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
		require.ErrorIs(t, errorOf(r.Spend(Name(78).Key("a"), 1)), ErrUnknownName)
	}
	require.NoError(t, r.SetLimits(limitsOf(t, Names{79: spec("New")}, nil)))
	require.EqualValues(t, 0, r.spend(Name(79).Key("a"), 1).Remaining)
	require.ErrorIs(t, errorOf(r.Spend(key, 1)), ErrUnknownName, "no longer declared")
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
		select {
		case err := <-begin(call):
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
		require.Equal(t, r.clock.Nanos()+int64(5*time.Second), r.stored(key))
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
		declared := begin(func() error { return r.Declare(Names{8: {Label: "late"}}) })
		key := flushed.Key("b")
		done(t, block(r, key))
		require.False(t, r.Allow(key))
		held <- nil
		require.NoError(t, <-declared)
		require.False(t, r.Allow(key), "Declare keeps an override that came meanwhile")
		set := begin(func() error { return r.SetLimits(limitsOf(t, names, defaults)) })
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

func TestEventLogValue(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	logged := func(e Event) string {
		var out strings.Builder
		slog.New(slog.NewTextHandler(&out, nil)).Info("stint", "event", e)
		_, text, _ := strings.Cut(out.String(), "msg=stint ")
		return strings.TrimSuffix(text, "\n")
	}
	const prefix = "event.time=2026-03-01T12:00:00.000Z"
	for _, c := range []struct {
		event Event
		want  string
	}{
		{Event{Kind: FlushFailed, Time: at, Err: errors.New("disk full")},
			`event.kind="flush failed" ` + prefix + ` event.error="disk full"`},
		{Event{Kind: FlushRecovered, Time: at}, `event.kind="flush recovered" ` + prefix},
		{Event{Kind: 99, Time: at}, "event.kind=EventKind(99) " + prefix},
		{Event{Kind: FileSetAside, Time: at, Err: ErrCorrupt, Path: "quota.db.corrupt-1"},
			`event.kind="file set aside" ` + prefix + fmt.Sprintf(" event.error=%q", ErrCorrupt) +
				" event.path=quota.db.corrupt-1"},
	} {
		assert.Equal(t, c.want, logged(c.event))
	}
}

// An error of a call names the bucket by the label of its limit, as limits
// files and metrics do.
func TestErrorsNameTheLabel(t *testing.T) {
	const logins, everyone, daily, off, held Name = 1, 2, 3, 4, 5
	queue, commits := PerMinute(3), PerMinute(3)
	queue.Queue, commits.Durability = 1, Synced
	r := rigOn(t, NewMemStore(), limitsOf(t, Names{
		logins: {Label: "Logins", Limit: queue}, everyone: {Label: "Everyone", IDs: Single, Limit: PerMinute(3)},
		daily: {Label: "Daily", Limit: EachDay(3, nil)}, off: {Label: "Off", Limit: Blocked},
		held: {Label: "Held", Limit: commits},
	}, nil), Options{})
	bob := logins.Key("bob")
	soon, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	r.take(bob, 3)
	r.reserve(bob, 1)
	r.take(daily.Key("bob"), 3)
	each := []Request{bob.Cost(4)}
	r.disk.fail(errDisk, "save")
	for _, c := range []struct {
		err, kind error
		text      string
	}{
		{errorOf(r.Spend(bob, -1)), ErrNegativeCost, "stint: negative cost: -1 for Logins:bob"},
		{errorOf(r.Check(Name(9).Key("bob"), -1)), ErrNegativeCost, "stint: negative cost: -1 for 9:bob"},
		{errorOf(r.Spend(bob, 4)), ErrCostOverBurst, "stint: cost over burst: 4 of 3 for Logins:bob"},
		{errorOf(r.Spend(everyone.Key(""), 4)), ErrCostOverBurst, "stint: cost over burst: 4 of 3 for Everyone"},
		{r.DoEach(t.Context(), each, make([]Decision, 1)),
			ErrCostOverBurst, "request 0: stint: cost over burst: 4 of 3 for Logins:bob"},
		{errorOf(r.SpendAll(bob.Cost(0), bob.Cost(0))), ErrDuplicateKey, "stint: duplicate key: Logins:bob"},
		{errorOf(r.Reserve(bob.Cost(1))), ErrQueueFull, "stint: queue is full: Logins:bob, the next turn is in 40s"},
		{errorOf(r.Reserve(off.Key("bob").Cost(1))), ErrBlocked, "stint: id is blocked: Off:bob"},
		{errorOf(r.Reserve(daily.Key("bob").Cost(1))),
			errors.ErrUnsupported, "stint: not for quotas that follow the calendar: Daily:bob has no queue"},
		{errorOf(r.Wait(soon, daily.Key("bob").Cost(1))),
			context.DeadlineExceeded, "stint: wait for Daily:bob: its turn would come too late: in "},
		{errorOf(r.Hold(held.Key("bob"), r.clock.Now().Add(time.Hour))), errDisk, "stint: hold Held:bob: "},
	} {
		require.ErrorIs(t, c.err, c.kind)
		require.ErrorContains(t, c.err, c.text)
	}
}

// TestBucketStates compares what Bucket and Buckets say of buckets in memory,
// in the store, and in both.
func TestBucketStates(t *testing.T) {
	r := newRig(t)
	half := r.clock.Nanos() + int64(30*time.Second)
	save(t, r.disk, Change{perID.Key("stored"), half}, Change{perID.Key("both"), half},
		Change{perID.Key("far ahead"), r.tat(1)},
		Change{perID.Key("over"), r.tat(0)})
	r.spend(perID.Key("both"), 1)
	r.spend(perID.Key("unflushed"), 2)
	queued, longest := single.Key("in a queue"), strings.Repeat("x", maxIDLen)
	for range 3 {
		r.reserve(queued, 1)
	}
	r.hold(perID.Key(longest), time.Hour)
	limit, until, none := PerMinute(5), r.clock.Now().Add(time.Hour), time.Time{}
	listed := make(map[Key]Bucket)
	before := r.Stats()
	for key, want := range map[Key]Bucket{
		perID.Key("stored"):     {Key{}, limit, 2, 30 * time.Second, none},
		perID.Key("both"):       {Key{}, limit, 1, 42 * time.Second, none},
		perID.Key("far ahead"):  {Key{}, limit, 0, time.Minute, none},
		perID.Key("over"):       {Key{}, limit, 5, 0, none},
		perID.Key("unflushed"):  {Key{}, limit, 3, 24 * time.Second, none},
		perID.Key("never seen"): {Key{}, limit, 5, 0, none},
		perID.Key(longest):      {Key{}, limit, 5, 0, until},
		queued:                  {Key{}, PerSecond(1), 0, 3 * time.Second, none},
		off.Key("a"):            {Limit: Unlimited},
	} {
		want.Key = key
		require.Equal(t, want, r.bucket(key), key)
		if key.Name == perID && (want.ResetAfter != 0 || want.HeldUntil != none) {
			listed[key] = want
		}
	}
	after := r.Stats()
	after.Loads = before.Loads
	require.Equal(t, before, after, "Bucket changes nothing")
	for _, err := range []error{errDisk, nil, nil} {
		require.Equal(t, listed, r.listed(perID))
		r.disk.fail(err, "save")
		require.ErrorIs(t, r.Flush(), err)
	}
	for b := range r.Buckets(perID) {
		require.Contains(t, listed, b.Key)
		break
	}
	require.Empty(t, r.listed(Unknown), "holds are no buckets")
	require.Empty(t, r.listed(nobody))
}

func TestBucket(t *testing.T) {
	t.Run("errors", func(t *testing.T) {
		r := newRig(t)
		r.spend(perID.Key("spent"), 2)
		for _, tc := range []struct {
			key  Key
			want error
		}{
			{nobody.Key("a"), ErrUnknownName}, {Key{}, ErrUnknownName}, {perID.Key(""), ErrInvalidID},
			{everyone.Key("a"), ErrInvalidID}, {perID.Key(strings.Repeat("x", maxIDLen+1)), ErrInvalidID},
		} {
			require.ErrorIs(t, errorOf(r.Bucket(tc.key)), tc.want)
		}
		r.disk.fail(errDisk)
		require.ErrorIs(t, errorOf(r.Bucket(perID.Key("stored"))), errDisk)
		require.EqualValues(t, 3, r.bucket(perID.Key("spent")).Remaining, "it is in memory")
		st := r.Stats()
		require.EqualValues(t, 2, st.Limits[Unknown].Errors)
		require.EqualValues(t, 3, st.Limits[perID].Errors)
		require.EqualValues(t, 1, st.Limits[everyone].Errors)
	})
	t.Run("a bucket that comes and goes while it is loaded", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 1})
		key := perID.Key("a")
		r.disk.after("load", func() {
			r.spend(key, 2)
			require.NoError(t, r.Flush())
			r.spend(perID.Key("b"), 1) // there is room for one
		})
		require.EqualValues(t, 3, r.bucket(key).Remaining)
		require.EqualValues(t, 1, r.Stats().Evictions)
	})
}

func TestBuckets(t *testing.T) {
	t.Run("a store that fails", func(t *testing.T) {
		r := newRig(t)
		r.disk.fail(errDisk)
		var errs []error
		for _, err := range r.Buckets(perID) {
			errs = append(errs, err)
		}
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], errDisk)
		require.NoError(t, r.Health())
		r.disk.fail(nil)
	})
	t.Run("during a save", func(t *testing.T) {
		r := newRig(t)
		for i := range 10 {
			r.spend(perID.Key(fmt.Sprint(i)), 1)
		}
		var during []int
		r.disk.on(func(op storeOp) error {
			if op.name == "save" {
				during = append(during, len(r.listed(perID)))
			}
			return nil
		})
		require.NoError(t, r.Flush())
		require.Equal(t, []int{10, 10}, during)
	})
	for _, fails := range []error{nil, errDisk} {
		t.Run(fmt.Sprintf("saved and evicted meanwhile, then %v", fails), func(t *testing.T) {
			r := newRig(t)
			r.spend(perID.Key("a"), 5)
			r.disk.after("all", func() {
				r.disk.fail(fails, "load")
				require.NoError(t, r.Flush())
				r.evictAll()
				require.Zero(t, r.Stats().Resident)
			})
			for b, err := range r.Buckets(perID) {
				require.ErrorIs(t, err, fails)
				require.Equal(t, fails == nil, b.Key == perID.Key("a"))
			}
		})
	}
}

// Prefetch changes nothing, whatever the key is.
func TestPrefetch(t *testing.T) {
	r := newRig(t)
	keys := []Key{perID.Key("a"), perID.Key("never seen"), everyone.Key(""), nobody.Key("a"), {},
		perID.Key(strings.Repeat("x", maxIDLen)), perID.Key(strings.Repeat("x", maxIDLen+1))}
	prefetch := func() {
		for _, key := range keys {
			r.Prefetch(key)
		}
	}
	prefetch()
	r.spend(perID.Key("a"), 2)
	r.disk.fail(errDisk) // it reads nothing
	before := r.Stats()
	prefetch()
	require.Equal(t, before, r.Stats())
	require.EqualValues(t, 3, r.bucket(perID.Key("a")).Remaining)
	r.disk.fail(nil)
	require.NoError(t, r.Close())
	prefetch()
}

func TestStats(t *testing.T) {
	r := newRig(t)
	a := perID.Key("a")
	for range 7 {
		r.Spend(a, 1)
	}
	r.Spend(a, 6)
	r.Spend(nobody.Key("a"), 1)
	r.Spend(nobody.Key("b"), 1)
	for range 2 {
		r.spendAll(Request{Key: single.Key("a"), Cost: 1}, Request{Key: everyone.Key(""), Cost: 1})
	}
	r.spend(off.Key("a"), 1)
	require.NoError(t, r.Flush())
	want := map[Name]LimitStats{
		Unknown: {Errors: 2}, perID: {Allowed: 5, Denied: 2, Errors: 1}, everyone: {Allowed: 1},
		single: {Allowed: 1, Denied: 1}, off: {Allowed: 1}, other: {},
	}
	st := r.Stats()
	require.Equal(t, want, st.Limits)
	require.EqualValues(t, 3, st.Resident)
	require.EqualValues(t, 1, st.Flush.Saves)
	require.EqualValues(t, 3, st.Flush.Buckets)
	require.NoError(t, r.SetLimits(limitsOf(t, testNames, nil)))
	require.Equal(t, want, r.Stats().Limits, "counts outlive limits")
	require.NoError(t, r.SetLimits(limitsOf(t, nil, nil)))
	require.Equal(t, want[perID], r.Stats().Limits[perID], "and names")
	require.NoError(t, r.Close())
	require.Equal(t, want[perID], r.Stats().Limits[perID], "and the Limiter")
}

func TestHealth(t *testing.T) {
	t.Run("loads", func(t *testing.T) {
		r := newRig(t)
		here, there := perID.Key("here"), perID.Key("there")
		r.spend(here, 1)
		for name, load := range map[string]func() error{
			"Check":  func() error { _, err := r.Check(there, 1); return err },
			"Bucket": func() error { _, err := r.Bucket(there); return err },
		} {
			since := r.clock.Now().UTC().Format(time.RFC3339)
			r.disk.fail(errDisk)
			for range 2 {
				require.ErrorIs(t, load(), errDisk, name)
				require.EqualError(t, r.Health(), "stint: no bucket loaded since "+since+": "+errDisk.Error())
				r.clock.Advance(time.Minute)
			}
			r.disk.fail(nil)
			r.check(here, 1)
			require.ErrorIs(t, r.Health(), errDisk, "a bucket in memory needs no load")
			require.NoError(t, load(), name)
			require.NoError(t, r.Health(), name)
		}
	})
	t.Run("the store's, during a flush", func(t *testing.T) {
		r := newRig(t)
		r.disk.health = errDisk
		r.take(perID.Key("a"), 1)
		r.disk.shut()
		flushed := make(chan error)
		go func() { flushed <- r.Flush() }()
		for r.cache.Stats().Saving.IsZero() {
			runtime.Gosched()
		}
		require.EqualError(t, r.Health(), errDisk.Error())
		r.disk.open()
		require.NoError(t, <-flushed)
	})
	t.Run("commits", func(t *testing.T) {
		inBubble(t, hundred, Options{}, func(t *testing.T, r *rig) {
			key := synced.Key("a")
			r.take(key, 1)
			r.disk.fail(errDisk, "save")
			require.ErrorIs(t, errorOf(r.Spend(key, 1)), ErrNotDurable)
			require.ErrorIs(t, r.Health(), errDisk)
			r.tick()
			require.EqualValues(t, 1, r.Stats().Flush.Failures)
			r.disk.fail(nil)
			r.take(key, 1) // saves what the flush could not
			r.tick()
			require.NoError(t, r.Health())
		})
	})
}

// TestCostZero: a request that costs nothing passes, however much was used, unless
// the bucket is held, has a queue, or is Blocked. It changes no TAT.
func TestCostZero(t *testing.T) {
	key := perID.Key("a")
	for name, c := range map[string]struct{ from, to Limit }{
		"quota":   {EachDay(100, nil), EachDay(50, nil)},
		"rolling": {PerDay(100), PerDay(100).WithBurst(50)},
		"zone":    {EachDay(100, nil), EachDay(50, zoneOf(t, "Asia/Kathmandu"))},
	} {
		for _, given := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/given ", given), func(t *testing.T) {
				r := rigFrom(t, "2026-11-23T12:00:00Z", c.from)
				r.take(key, 80)
				zero := Request{Key: key}
				if given {
					zero.Limit = c.to
				} else {
					require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: c.to})))
				}
				for _, mode := range []Mode{CheckAndSpend, CheckOnly, SpendOnly, UpTo} {
					zero.Mode, zero.Cost = mode, 0
					d := r.spendAll(zero)
					require.True(t, d.Allowed, "mode %d: %v", mode, d.RetryAfter)
					require.Zero(t, d.Taken)
					require.True(t, d.Remaining == 0 || mode == SpendOnly)
				}
				zero.Mode, zero.Cost = CheckAndSpend, 1
				require.False(t, r.spendAll(zero).Allowed)
				zero.Cost = 0
				r.hold(key, time.Minute)
				require.Equal(t, time.Minute, r.spendAll(zero).RetryAfter)
			})
		}
	}
	t.Run("in a lane", func(t *testing.T) {
		r := newRig(t)
		r.take(key, 1)
		Promote(r.Limiter, key)
		r.clock.Advance(time.Hour)
		was := r.cache.Lane(r.locate(key).hash).TAT()
		require.True(t, r.spend(key, 0).Allowed)
		require.Equal(t, was, r.cache.Lane(r.locate(key).hash).TAT())
	})
}
