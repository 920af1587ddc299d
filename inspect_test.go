package stint

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBucketStates compares what Bucket and Buckets say of buckets in memory,
// in the store, and in both.
func TestBucketStates(t *testing.T) {
	r := newRig(t)
	half := r.clock.ns.Load() + int64(30*time.Second)
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
		off.Key("a"):            {},
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
			_, err := r.Bucket(tc.key)
			require.ErrorIs(t, err, tc.want)
		}
		r.disk.fail(errDisk)
		_, err := r.Bucket(perID.Key("stored"))
		require.ErrorIs(t, err, errDisk)
		require.EqualValues(t, 3, r.bucket(perID.Key("spent")).Remaining, "it is in memory")
		st := r.Stats()
		require.EqualValues(t, 2, st.Limits[Unknown].Errors)
		require.EqualValues(t, 3, st.Limits[perID].Errors)
		require.EqualValues(t, 1, st.Limits[everyone].Errors)
	})
	t.Run("a bucket that comes and goes while it is loaded", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 1})
		key := perID.Key("a")
		r.disk.on(func(op storeOp) error {
			if op.done {
				r.disk.on(nil)
				r.spend(key, 2)
				require.NoError(t, r.Flush())
				r.spend(perID.Key("b"), 1) // there is room for one
			}
			return nil
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
			r.disk.on(func(op storeOp) error {
				if op.name == "all" && op.done {
					r.disk.fail(fails, "load")
					require.NoError(t, r.Flush())
					r.evictAll()
					require.Zero(t, r.Stats().Resident)
				}
				return nil
			})
			for b, err := range r.Buckets(perID) {
				require.ErrorIs(t, err, fails)
				require.Equal(t, fails == nil, b.Key == perID.Key("a"))
			}
		})
	}
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
				r.clock.advance(time.Minute)
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
		for r.Stats().Saving.IsZero() {
			runtime.Gosched()
		}
		require.EqualError(t, r.Health(), errDisk.Error())
		r.disk.open()
		require.NoError(t, <-flushed)
	})
	t.Run("commits", func(t *testing.T) {
		r, key := newLevels(t, hundred), synced.Key("a")
		r.take(key, 1)
		r.disk.fail(errDisk, "save")
		_, err := r.Spend(key, 1)
		require.ErrorIs(t, err, ErrNotDurable)
		require.ErrorIs(t, r.Health(), errDisk)
		require.Error(t, r.cache.FlushDue())
		r.disk.fail(nil)
		r.take(key, 1) // saves what the flush could not
		require.NoError(t, r.cache.FlushDue())
		require.NoError(t, r.Health())
	})
}
