package stint

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (r *rig) bucket(key Key) Bucket {
	r.t.Helper()
	b, err := r.Bucket(key)
	require.NoError(r.t, err)
	return b
}

func TestBucket(t *testing.T) {
	store := &faultyStore{Store: openBolt(t, filepath.Join(t.TempDir(), "bucket.db"), testNames)}
	r := rigOn(t, store, testLimits(t), Options{MaxResident: 3})
	now := r.clock.ns.Load()
	save(t, store,
		Change{perID.Key("stored"), now + int64(30*time.Second)},
		Change{perID.Key("stored far ahead"), now + int64(time.Hour)},
		Change{perID.Key("stored and over"), now})
	r.spend(perID.Key("spent"), 2)
	r.spend(perID.Key("held"), 1)
	r.hold(perID.Key("held"), time.Hour)
	r.hold(perID.Key("full and held"), time.Hour)
	_, err := r.Reserve(single.Key("in line"), 3)
	require.ErrorIs(t, err, ErrCostOverBurst)
	for range 3 {
		_, err = r.Reserve(single.Key("in line"), 1)
		require.NoError(t, err)
	}
	limit, until := PerMinute(5), r.clock.Now().Add(time.Hour)
	before := r.Stats()
	for key, want := range map[Key]Bucket{
		perID.Key("nobody knows of"):  {Key{}, limit, 5, 0, time.Time{}},
		perID.Key("spent"):            {Key{}, limit, 3, 24 * time.Second, time.Time{}},
		perID.Key("held"):             {Key{}, limit, 4, 12 * time.Second, until},
		perID.Key("full and held"):    {Key{}, limit, 5, 0, until},
		perID.Key("stored"):           {Key{}, limit, 2, 30 * time.Second, time.Time{}},
		perID.Key("stored far ahead"): {Key{}, limit, 0, time.Minute, time.Time{}},
		perID.Key("stored and over"):  {Key{}, limit, 5, 0, time.Time{}},
		single.Key("in line"):         {Key{}, PerSecond(1), 0, 3 * time.Second, time.Time{}},
		everyone.Key(""):              {Key{}, PerHour(3), 3, 0, time.Time{}},
		off.Key("a"):                  {},
	} {
		want.Key = key
		require.Equal(t, want, r.bucket(key), key)
	}
	after := r.Stats()
	require.EqualValues(t, 3, after.Resident)
	require.Zero(t, after.Evictions, "it takes no room")
	require.Equal(t, before.Dirty, after.Dirty)
	require.Equal(t, before.Limits, after.Limits)
	r.clock.advance(2500 * time.Millisecond)
	require.Equal(t, Bucket{single.Key("in line"), PerSecond(1), 0, 500 * time.Millisecond, time.Time{}}, r.bucket(single.Key("in line")), "the line is over")

	for _, key := range []Key{nobody.Key("a"), {}} {
		_, err := r.Bucket(key)
		require.ErrorIs(t, err, ErrUnknownName)
	}
	for _, key := range []Key{perID.Key(""), everyone.Key("a"), perID.Key(strings.Repeat("x", maxIDLen+1))} {
		_, err := r.Bucket(key)
		require.ErrorIs(t, err, ErrInvalidID)
	}
	store.broken.Store(true)
	_, err = r.Bucket(perID.Key("stored"))
	require.ErrorIs(t, err, errDisk)
	require.EqualValues(t, 3, r.bucket(perID.Key("spent")).Remaining, "it is in memory")
	store.broken.Store(false)
	require.NoError(t, r.Close())
	_, err = r.Bucket(perID.Key("spent"))
	require.ErrorIs(t, err, ErrClosed)
	st := r.Stats()
	require.EqualValues(t, 2, st.Limits[Unknown].Errors)
	require.EqualValues(t, 4, st.Limits[perID].Errors)
	require.EqualValues(t, 1, st.Limits[everyone].Errors)
}

// What comes and goes while the store is asked is looked at again.
func TestBucketThatMoves(t *testing.T) {
	store := &loadHook{Store: NewMemStore()}
	r := rigOn(t, store, testLimits(t), Options{MaxResident: 1})
	key := perID.Key("a")
	store.after = func() {
		store.after = func() {}
		r.spend(key, 2)
		require.NoError(t, r.Flush())
		r.spend(perID.Key("b"), 1) // there is room for one
	}
	require.EqualValues(t, 3, r.bucket(key).Remaining)
	require.EqualValues(t, 1, r.Stats().Evictions)
}

// A line that is over leaves what the next decision will find.
func TestBucketAfterItsLine(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	r.spend(key, 5)
	_, err := r.Reserve(key, 1)
	require.NoError(t, err)
	defaults := testDefaults()
	defaults[perID] = PerMinute(5).WithBurst(1)
	require.NoError(t, r.SetLimits(limitsOf(t, testNames, defaults)))
	require.Equal(t, 24*time.Second, r.bucket(key).ResetAfter)
	r.clock.advance(12 * time.Second)
	require.Equal(t, 12*time.Second, r.bucket(key).ResetAfter)
	require.Equal(t, 12*time.Second, r.check(key, 0).ResetAfter)
}

// loadHook calls back after a load.
type loadHook struct {
	Store
	after func()
}

func (s *loadHook) Load(key Key) (int64, error) {
	tat, err := s.Store.Load(key)
	s.after()
	return tat, err
}

// since is how Health writes down when something began to fail.
func (r *rig) since() string { return " since " + r.clock.Now().UTC().Format(time.RFC3339) + ": " }

func TestHealthOfLoads(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	r := rigOn(t, store, testLimits(t), Options{})
	here, there := perID.Key("here"), perID.Key("there")
	r.spend(here, 1)
	for what, load := range map[string]func() error{
		"Check":  func() error { _, err := r.Check(there, 1); return err },
		"Bucket": func() error { _, err := r.Bucket(there); return err },
	} {
		since := r.since()
		store.broken.Store(true)
		for range 2 {
			require.ErrorIs(t, load(), errDisk, what)
			require.EqualError(t, r.Health(), "stint: no bucket loaded"+since+errDisk.Error(), what)
			r.clock.advance(time.Minute)
		}
		store.broken.Store(false)
		r.check(here, 1)
		require.ErrorIs(t, r.Health(), errDisk, "one in memory says nothing of the store")
		require.NoError(t, load(), what)
		require.NoError(t, r.Health(), what)
	}
}

// ailingStore is a Store with something wrong.
type ailingStore struct{ Store }

func (ailingStore) Health() error { return errFault }

// Health has what is wrong with the store, and waits for no flush.
func TestHealthOfStore(t *testing.T) {
	r := rigOn(t, ailingStore{NewMemStore()}, testLimits(t), Options{})
	r.flusher.mu.Lock()
	defer r.flusher.mu.Unlock()
	require.EqualError(t, r.Health(), errFault.Error())
}

// Health tells of a commit that failed.
func TestHealthOfCommit(t *testing.T) {
	limit := PerMinute(5)
	limit.Durability = Synced
	store := &faultyStore{Store: NewMemStore()}
	r := rigOn(t, store, limitsOf(t, testNames, map[Name]Limit{perID: limit}), Options{})
	r.spend(perID.Key("a"), 1)
	store.broken.Store(true)
	_, err := r.Spend(perID.Key("a"), 1)
	require.ErrorIs(t, err, ErrNotDurable)
	require.Error(t, r.Health())
}

// A store that fails is the last that Buckets tells, and no trouble of the Limiter's.
func TestBucketsOfAStoreThatFails(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	r := rigOn(t, store, testLimits(t), Options{})
	r.spend(perID.Key("a"), 1)
	require.NoError(t, r.Flush())
	store.broken.Store(true)
	var errs []error
	for _, err := range r.Buckets(perID) {
		errs = append(errs, err)
	}
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], errDisk)
	require.NoError(t, r.Health())
	store.broken.Store(false)
}
