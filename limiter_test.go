package stint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// simClock is a clock that goes when it is told to.
type simClock struct{ ns atomic.Int64 }

func newSimClock() *simClock {
	c := &simClock{}
	c.ns.Store(1_780_000_000_000_000_000)
	return c
}

func (c *simClock) Now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *simClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// The Names that these tests declare, and the limits of most.
const (
	perID    Name = 1 // 5 a minute: a token in 12s
	everyone Name = 2 // 3 an hour, for all
	off      Name = 3 // no limit
	single   Name = 4 // one at a time, one a second
	other    Name = 5 // 100 a minute, at the level Memory
	nobody   Name = 99
)

var testNames = Names{
	perID:    {Label: "PerID", Limit: Unlimited},
	everyone: {Label: "Everyone", ID: Shared, Limit: Unlimited},
	off:      {Label: "Off", Limit: Unlimited},
	single:   {Label: "Single", Limit: Unlimited},
	other:    {Label: "Other", Limit: Unlimited},
}

func testDefaults() map[Name]Limit {
	inMemory := PerMinute(100)
	inMemory.Durability = Memory
	return map[Name]Limit{perID: PerMinute(5), everyone: PerHour(3), single: PerSecond(1), other: inMemory}
}

func testLimits(t testing.TB) *Limits { return limitsOf(t, testNames, testDefaults()) }

// rig is a limiter in a test, with a clock that the test moves.
type rig struct {
	*Limiter
	t     testing.TB
	clock *simClock
}

// rigOn returns a limiter on a store. It flushes when told to, and waits for a disk for as long as that takes, unless opts say
// otherwise.
func rigOn(t testing.TB, store Store, limits *Limits, opts Options) *rig {
	t.Helper()
	r := &rig{t: t, clock: newSimClock()}
	if opts.Now == nil {
		opts.Now = r.clock.Now
	}
	if opts.FlushInterval == 0 {
		opts.FlushInterval = 1000 * time.Hour
	}
	if opts.CommitTimeout == 0 {
		opts.CommitTimeout = time.Hour
	}
	var err error
	r.Limiter, err = New(store, limits, &opts)
	require.NoError(t, err)
	t.Cleanup(func() { r.Limiter.Close() })
	return r
}

func newRig(t testing.TB) *rig { return rigOn(t, NewMemStore(), testLimits(t), Options{}) }

func (r *rig) spend(key Key, cost int64) Decision {
	r.t.Helper()
	d, err := r.Spend(key, cost)
	require.NoError(r.t, err)
	requireSound(r.t, d)
	return d
}

func (r *rig) check(key Key, cost int64) Decision {
	r.t.Helper()
	d, err := r.Check(key, cost)
	require.NoError(r.t, err)
	requireSound(r.t, d)
	return d
}

func (r *rig) refund(key Key, cost int64) Decision {
	r.t.Helper()
	d, err := r.Refund(key, cost)
	require.NoError(r.t, err)
	requireSound(r.t, d)
	return d
}

func (r *rig) spendAll(reqs ...Request) Decision {
	r.t.Helper()
	d, err := r.SpendAll(reqs...)
	require.NoError(r.t, err)
	requireSound(r.t, d)
	return d
}

func (r *rig) hold(key Key, d time.Duration) {
	r.t.Helper()
	require.NoError(r.t, r.Hold(key, r.clock.Now().Add(d)))
}

// left returns how many tokens the bucket has, held or not.
func (r *rig) left(key Key) int64 {
	r.t.Helper()
	return r.check(key, 0).Remaining
}

// pass lets time pass in a bubble, and what comes with it happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// listBuckets returns what Buckets yields, and that none came twice.
func listBuckets(t testing.TB, seq iter.Seq2[Bucket, error]) map[Key]Bucket {
	t.Helper()
	all := make(map[Key]Bucket)
	for b, err := range seq {
		require.NoError(t, err)
		key := b.Key
		b.Key = Key{}
		require.NotContains(t, all, key)
		all[key] = b
	}
	return all
}

// requireSound requires what is true of every decision.
func requireSound(t testing.TB, d Decision) {
	t.Helper()
	require.Equal(t, d.Allowed, d.RetryAfter == 0, "%+v", d)
	require.GreaterOrEqual(t, d.RetryAfter, time.Duration(0))
	require.GreaterOrEqual(t, d.Remaining, int64(0))
	require.GreaterOrEqual(t, d.ResetAfter, time.Duration(0))
	if d.Limit.Burst > 0 {
		require.LessOrEqual(t, d.Remaining, d.Limit.Burst)
	}
}

// faultyStore is a store that fails when it is told to.
type faultyStore struct {
	Store
	broken atomic.Bool  // every operation fails
	ops    atomic.Int64 // so far
	failAt atomic.Int64 // the one that fails, from 1
}

var errDisk = errors.New("the disk is on fire")

func (s *faultyStore) fail() error {
	if n := s.ops.Add(1); s.broken.Load() || n == s.failAt.Load() {
		return errDisk
	}
	return nil
}

func (s *faultyStore) Load(key Key) (int64, error) {
	if err := s.fail(); err != nil {
		return 0, err
	}
	return s.Store.Load(key)
}

func (s *faultyStore) Save(changes []Change) error {
	if len(changes) == 0 {
		return nil
	}
	if err := s.fail(); err != nil {
		return err
	}
	return s.Store.Save(changes)
}

func (s *faultyStore) All(name Name) iter.Seq2[Change, error] {
	if err := s.fail(); err != nil {
		return func(yield func(Change, error) bool) { yield(Change{}, err) }
	}
	return s.Store.All(name)
}

func TestSpend(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	limit := PerMinute(5)
	for i := range int64(5) {
		require.Equal(t, Decision{true, 4 - i, 0, time.Duration(i+1) * 12 * time.Second, key, limit}, r.spend(key, 1))
	}
	denied := Decision{false, 0, 12 * time.Second, time.Minute, key, limit}
	require.Equal(t, denied, r.spend(key, 1))
	require.Equal(t, denied, r.spend(key, 1), "a denied request changes nothing")
	require.Equal(t, 36*time.Second, r.spend(key, 3).RetryAfter)
	r.clock.advance(12*time.Second - 1)
	require.Equal(t, time.Duration(1), r.spend(key, 1).RetryAfter)
	r.clock.advance(1)
	require.Equal(t, Decision{true, 0, 0, time.Minute, key, limit}, r.spend(key, 1))
	require.EqualValues(t, 4, r.spend(perID.Key("b"), 1).Remaining, "another's is its own")
	require.EqualValues(t, 2, r.spend(everyone.Key(""), 1).Remaining)
	r.clock.advance(time.Hour)
	require.Equal(t, Decision{true, 0, 0, time.Minute, key, limit}, r.spend(key, 5))
}

func TestAllow(t *testing.T) {
	r := newRig(t)
	for range 5 {
		require.True(t, r.Allow(perID.Key("a")))
	}
	require.False(t, r.Allow(perID.Key("a")))
	require.True(t, r.Allow(off.Key("a")))

	for _, failOpen := range []bool{false, true} {
		store := &faultyStore{Store: NewMemStore()}
		r := rigOn(t, store, testLimits(t), Options{FailOpen: failOpen})
		require.Equal(t, failOpen, r.Allow(nobody.Key("a")))
		require.Equal(t, failOpen, r.Allow(perID.Key("")))
		store.broken.Store(true)
		require.Equal(t, failOpen, r.Allow(perID.Key("a")))
		store.broken.Store(false)
		require.EqualValues(t, 5, r.left(perID.Key("a")), "nothing was spent")
		r.spend(perID.Key("a"), 5)
		require.False(t, r.Allow(perID.Key("a")), "a denial is not an error")
		require.NoError(t, r.Close())
		require.Equal(t, failOpen, r.Allow(perID.Key("a")))
	}
}

func TestCheck(t *testing.T) {
	store := NewMemStore()
	r := rigOn(t, store, testLimits(t), Options{})
	key := perID.Key("a")
	for range 3 {
		require.Equal(t, Decision{true, 3, 0, 24 * time.Second, key, PerMinute(5)}, r.check(key, 2), "as if")
	}
	require.Empty(t, listBuckets(t, r.Buckets(perID)))
	require.Zero(t, r.Stats().Resident, "it makes no bucket")
	r.spend(key, 4)
	require.Equal(t, r.check(key, 2), r.spend(key, 2))
	require.EqualValues(t, 1, r.left(key))
	require.Equal(t, r.check(key, 1), r.spend(key, 1))
	require.Equal(t, LimitStats{Allowed: 2, Denied: 1}, r.Stats().Limits[perID], "checks are not counted")
}

func TestRefund(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	full := Decision{true, 5, 0, 0, key, PerMinute(5)}
	require.Equal(t, full, r.refund(key, 3), "of a bucket that is not there")
	require.Empty(t, listBuckets(t, r.Buckets(perID)))
	r.spend(key, 4)
	require.Equal(t, Decision{true, 3, 0, 24 * time.Second, key, PerMinute(5)}, r.refund(key, 2))
	require.Equal(t, full, r.refund(key, 3), "never more than it holds")
	require.EqualValues(t, 0, r.spend(key, 5).Remaining)
	require.False(t, r.spend(key, 1).Allowed)
	r.clock.advance(time.Second)
	require.Equal(t, Decision{true, 1, 0, 47 * time.Second, key, PerMinute(5)}, r.refund(key, 1))
	require.Equal(t, full, r.refund(key, math.MaxInt64), "more than the burst, too")
	require.EqualValues(t, 0, r.spend(key, 5).Remaining)
	require.Equal(t, r.check(key, 0).Remaining, r.refund(key, 0).Remaining)
}

func TestOff(t *testing.T) {
	r := newRig(t)
	key := off.Key("a")
	want := Decision{Allowed: true, Remaining: math.MaxInt64, Key: key}
	for _, cost := range []int64{0, 1, math.MaxInt64} {
		require.Equal(t, want, r.spend(key, cost))
		require.Equal(t, want, r.check(key, cost))
		require.Equal(t, want, r.refund(key, cost))
	}
	require.Equal(t, want, r.spendAll(Request{Key: key, Cost: 7}))
	require.NoError(t, r.Wait(t.Context(), key, 7))
	require.NoError(t, r.Reset(key))
	require.Empty(t, listBuckets(t, r.Buckets(off)))
	require.Zero(t, r.Stats().Resident)

	r.hold(key, time.Minute)
	d := r.spend(key, 1)
	require.False(t, d.Allowed)
	require.Equal(t, time.Minute, d.RetryAfter)
	require.True(t, r.refund(key, 1).Allowed)
	require.Len(t, listBuckets(t, r.Buckets(off)), 1)
	r.clock.advance(time.Minute)
	require.Equal(t, want, r.spend(key, 1))
}

func TestErrors(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("x", maxIDLen+1)
	good := perID.Key("good")
	for _, tc := range []struct {
		what string
		key  Key
		cost int64
		want error
	}{
		{"unknown name", nobody.Key("a"), 1, ErrUnknownName},
		{"name 0", Unknown.Key("a"), 1, ErrUnknownName},
		{"name 0 without an id", Key{}, 1, ErrUnknownName},
		{"no id", perID.Key(""), 1, ErrInvalidID},
		{"an id where there is none", everyone.Key("a"), 1, ErrInvalidID},
		{"long id", perID.Key(long), 1, ErrInvalidID},
		{"long id of none", nobody.Key(long), 1, ErrInvalidID},
		{"negative cost", perID.Key("a"), -1, ErrNegativeCost},
		{"most negative cost", perID.Key("a"), math.MinInt64, ErrNegativeCost},
		{"cost over burst", perID.Key("a"), 6, ErrCostOverBurst},
		{"greatest cost", perID.Key("a"), math.MaxInt64, ErrCostOverBurst},
	} {
		calls := map[string]func() (Decision, error){
			"Spend": func() (Decision, error) { return r.Spend(tc.key, tc.cost) },
			"Check": func() (Decision, error) { return r.Check(tc.key, tc.cost) },
			"SpendAll": func() (Decision, error) {
				return r.SpendAll(Request{Key: good, Cost: 1}, Request{Key: tc.key, Cost: tc.cost})
			},
			"SpendAll, CheckOnly": func() (Decision, error) {
				return r.SpendAll(Request{Key: good, Cost: 1}, Request{Key: tc.key, Cost: tc.cost, Mode: CheckOnly})
			},
			"SpendAll, SpendOnly": func() (Decision, error) {
				return r.SpendAll(Request{Key: tc.key, Cost: tc.cost, Mode: SpendOnly}, Request{Key: good, Cost: 1})
			},
			"SpendEach": func() (Decision, error) {
				ds := []Decision{{Allowed: true}}
				err := r.SpendEach([]Request{{Key: tc.key, Cost: tc.cost}}, ds)
				return ds[0], err
			},
			"Reserve": func() (Decision, error) { _, err := r.Reserve(tc.key, tc.cost); return Decision{}, err },
			"Wait":    func() (Decision, error) { return Decision{}, r.Wait(context.Background(), tc.key, tc.cost) },
		}
		if tc.want != ErrCostOverBurst {
			calls["Refund"] = func() (Decision, error) { return r.Refund(tc.key, tc.cost) }
			calls["RefundAll"] = func() (Decision, error) {
				return r.RefundAll(Request{Key: good}, Request{Key: tc.key, Cost: tc.cost})
			}
			if tc.want != ErrNegativeCost {
				calls["Reset"] = func() (Decision, error) { return Decision{}, r.Reset(tc.key) }
				calls["Hold"] = func() (Decision, error) { return Decision{}, r.Hold(tc.key, r.clock.Now().Add(1)) }
			}
		}
		for name, call := range calls {
			before := r.Stats()
			d, err := call()
			require.ErrorIs(t, err, tc.want, "%s: %s", name, tc.what)
			require.True(t, strings.HasPrefix(err.Error(), "stint: ") || name == "SpendEach", "%v", err)
			require.Zero(t, d, "%s: %s", name, tc.what)
			after := r.Stats()
			count := func(st Stats) (n int64) {
				for _, ls := range st.Limits {
					n += ls.Errors
				}
				return n
			}
			require.Equal(t, count(before)+1, count(after), "%s: %s", name, tc.what)
			require.Equal(t, before.Limits[perID].Allowed, after.Limits[perID].Allowed, "%s: %s", name, tc.what)
		}
	}
	require.EqualValues(t, 5, r.left(good))
	require.Len(t, r.Stats().Limits, len(testNames)+1, "of the names that nobody declared there is one entry")
	require.Empty(t, listBuckets(t, r.Buckets(perID)))
}

func TestReset(t *testing.T) {
	store := NewMemStore()
	r := rigOn(t, store, testLimits(t), Options{})
	a, b, c := perID.Key("a"), perID.Key("b"), perID.Key("c")
	for _, key := range []Key{a, b, c} {
		r.spend(key, 5)
	}
	require.NoError(t, r.Reset(a, b, perID.Key("never used")))
	require.EqualValues(t, 5, r.left(a))
	require.EqualValues(t, 0, r.left(c))
	require.Len(t, listBuckets(t, r.Buckets(perID)), 1)
	require.NoError(t, r.Flush())
	require.Equal(t, []Change{{c, r.clock.ns.Load() + int64(time.Minute)}}, collect(t, store.All(perID)))
	require.ErrorIs(t, r.Reset(c, perID.Key("")), ErrInvalidID)
	require.EqualValues(t, 5, r.left(c), "those before the one that fails are reset")
	require.NoError(t, r.Reset())
	r.spend(c, 5)
	r.hold(c, time.Hour)
	require.NoError(t, r.Reset(c))
	require.True(t, r.spend(c, 5).Allowed)
	require.Empty(t, collect(t, store.All(Unknown)), "the end of the hold is durable at once")

	// Of a bucket that is in the store only.
	require.NoError(t, r.Close())
	r = rigOn(t, store, testLimits(t), Options{})
	require.NoError(t, r.Reset(c))
	require.EqualValues(t, 5, r.left(c))
	require.NoError(t, r.Close())
	require.Empty(t, collect(t, store.All(perID)))
}

func TestHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	clock := newSimClock()
	open := func() *rig {
		store := openBolt(t, path, testNames)
		r := rigOn(t, store, testLimits(t), Options{Now: clock.Now})
		r.clock = clock
		return r
	}
	r := open()
	key, shared := perID.Key("a"), everyone.Key("")
	requireHeld := func(key Key, want time.Duration) {
		t.Helper()
		for _, d := range []Decision{r.check(key, 1), r.spend(key, 1), r.check(key, 0), r.spendAll(Request{Key: key, Cost: 1})} {
			require.False(t, d.Allowed)
			require.Equal(t, want, d.RetryAfter)
		}
		require.True(t, r.refund(key, 0).Allowed)
	}
	r.hold(key, time.Hour)
	r.hold(shared, 2*time.Hour)
	requireHeld(key, time.Hour)
	requireHeld(shared, 2*time.Hour)
	require.EqualValues(t, 5, r.left(key), "a hold spends nothing")
	require.EqualValues(t, 4, r.spend(perID.Key("b"), 1).Remaining, "and holds nobody else")
	r.hold(key, 10*time.Minute)
	requireHeld(key, 10*time.Minute)
	r.hold(key, 90*time.Minute)
	requireHeld(key, 90*time.Minute)

	// Of two reasons to wait, the longer.
	r.spend(single.Key("a"), 1)
	r.hold(single.Key("a"), time.Second/2)
	require.Equal(t, time.Second, r.spend(single.Key("a"), 1).RetryAfter)
	require.Equal(t, time.Second/2, r.spend(single.Key("a"), 0).RetryAfter)
	r.hold(single.Key("a"), 2*time.Second)
	require.Equal(t, 2*time.Second, r.spend(single.Key("a"), 1).RetryAfter)

	// Among several.
	b := perID.Key("b")
	d := r.spendAll(Request{Key: b, Cost: 2}, Request{Key: key, Cost: 1})
	require.Equal(t, key, d.Key)
	require.Equal(t, 90*time.Minute, d.RetryAfter)
	require.EqualValues(t, 4, r.left(b), "one that is held spends for none")
	require.True(t, r.spendAll(Request{Key: b, Cost: 1}, Request{Key: key, Cost: 1, Mode: SpendOnly}).Allowed)
	require.False(t, r.spendAll(Request{Key: b, Cost: 1}, Request{Key: key, Cost: 1, Mode: CheckOnly}).Allowed)
	require.EqualValues(t, 3, r.left(b))
	require.EqualValues(t, 5, r.left(key))

	// It is in the file when Hold returns.
	for range 2 {
		require.NoError(t, r.Close())
		clock.advance(time.Minute)
		r = open()
	}
	requireHeld(key, 88*time.Minute)
	require.Equal(t, clock.Now().Add(88*time.Minute), listBuckets(t, r.Buckets(perID))[key].HeldUntil)
	requireHeld(shared, 118*time.Minute)
	require.NoError(t, r.Reset(key))
	require.True(t, r.spend(key, 1).Allowed)
	require.NoError(t, r.Hold(shared, clock.Now()), "one that is not after now ends it")
	require.True(t, r.spend(shared, 1).Allowed)
	require.NoError(t, r.Hold(perID.Key("never held"), time.Time{}))
	require.NoError(t, r.Close())
	r = open()
	require.EqualValues(t, 4, r.spend(key, 0).Remaining)

	// It goes when it is over, in memory and on disk.
	r.hold(key, time.Minute)
	r.hold(off.Key("a"), time.Minute)
	clock.advance(time.Minute - 1)
	requireHeld(key, 1)
	require.NoError(t, r.Flush())
	require.Len(t, collect(t, r.store.All(Unknown)), 2)
	clock.advance(1)
	require.True(t, r.spend(key, 1).Allowed)
	require.NoError(t, r.Flush())
	require.Empty(t, collect(t, r.store.All(Unknown)))
	r.directory.each(func(s *shard) { require.Empty(t, s.gates) })

	// Far ahead, and long ago.
	require.NoError(t, r.Hold(key, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.False(t, r.spend(key, 1).Allowed)
	require.NoError(t, r.Hold(key, time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.True(t, r.spend(key, 1).Allowed)
}

func TestHoldThatCannotBeSaved(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	r := rigOn(t, store, testLimits(t), Options{})
	key := perID.Key("a")
	r.spend(key, 1)
	store.broken.Store(true)
	require.ErrorIs(t, r.Hold(key, r.clock.Now().Add(time.Hour)), errDisk)
	require.True(t, r.spend(key, 1).Allowed, "it is not in force")
	store.broken.Store(false)
	r.hold(key, time.Hour)
	store.broken.Store(true)
	require.ErrorIs(t, r.Reset(key), errDisk)
	require.False(t, r.spend(key, 1).Allowed, "it is in force still")
}

func TestSpendAll(t *testing.T) {
	r := newRig(t)
	a, b, shared, free := perID.Key("a"), perID.Key("b"), everyone.Key(""), off.Key("x")
	one := func(key Key, mode Mode) Request { return Request{key, 1, mode} }

	d := r.spendAll(one(free, 0), one(a, 0), one(shared, 0))
	require.Equal(t, Decision{true, 2, 0, 20 * time.Minute, shared, PerHour(3)}, d, "the fewest left")
	require.Equal(t, free, r.spendAll(one(free, 0)).Key)
	r.spendAll(one(a, 0), one(shared, 0))
	r.spendAll(one(a, 0), one(shared, 0))
	d = r.spendAll(one(b, 0), one(a, 0), one(shared, 0))
	require.Equal(t, Decision{false, 0, 20 * time.Minute, time.Hour, shared, PerHour(3)}, d)
	require.EqualValues(t, 5, r.left(b), "when one denies, nothing is spent by any")
	require.EqualValues(t, 2, r.left(a))
	require.Equal(t, shared, r.spendAll(one(shared, 0), Request{a, 3, 0}).Key, "of the denied, the longest wait")
	require.Equal(t, a, r.spendAll(one(b, 0), Request{a, 3, 0}).Key)

	require.False(t, r.spendAll(one(b, 0), one(shared, CheckOnly)).Allowed, "a check takes part")
	require.False(t, r.spendAll(one(b, SpendOnly), one(shared, 0)).Allowed)
	require.EqualValues(t, 5, r.left(b), "what only spends does not spend when another denies")
	d = r.spendAll(one(b, CheckOnly))
	require.EqualValues(t, 4, d.Remaining)
	require.EqualValues(t, 5, r.left(b), "and spends nothing")
	d = r.spendAll(one(b, 0), one(shared, SpendOnly))
	require.True(t, d.Allowed, "what only spends takes no part")
	require.Equal(t, b, d.Key)
	require.EqualValues(t, 4, r.left(b))
	d = r.spendAll(Request{b, 2, SpendOnly}, one(a, 0))
	require.Equal(t, a, d.Key)
	require.EqualValues(t, 2, r.left(b), "but spends if it can")
	require.True(t, r.spendAll(Request{b, 3, SpendOnly}).Allowed, "nothing takes part")
	require.EqualValues(t, 2, r.left(b))
	require.Equal(t, Decision{Allowed: true, Remaining: math.MaxInt64}, r.spendAll())

	_, err := r.SpendAll(one(b, 0), one(a, 0), one(b, CheckOnly))
	require.ErrorIs(t, err, ErrDuplicateKey)
	require.EqualValues(t, 2, r.left(b))
	_, err = r.RefundAll(one(b, 0), one(b, SpendOnly))
	require.ErrorIs(t, err, ErrDuplicateKey)
}

// Of buckets in memory too, a cost is looked at before anything is spent, and nothing is not a spend.
func TestSpendAllOfResident(t *testing.T) {
	r := newRig(t)
	a, b := perID.Key("a"), perID.Key("b")
	r.spendAll(Request{a, 1, 0}, Request{b, 1, 0})
	_, err := r.SpendAll(Request{a, 1, 0}, Request{b, 6, 0})
	require.ErrorIs(t, err, ErrCostOverBurst)
	_, err = r.SpendAll(Request{a, 1, 0}, Request{b, -1, 0})
	require.ErrorIs(t, err, ErrNegativeCost)
	require.EqualValues(t, 4, r.left(a))
	require.EqualValues(t, 4, r.left(b))

	require.NoError(t, r.Flush())
	require.True(t, r.spendAll(Request{a, 0, 0}, Request{b, 0, 0}).Allowed)
	require.Zero(t, r.Stats().Dirty)
	r.spendAll(Request{a, 0, 0}, Request{b, 1, 0})
	require.EqualValues(t, 1, r.Stats().Dirty)
}

func TestSpendAllOfMany(t *testing.T) {
	r := newRig(t)
	for n := range 40 {
		var reqs []Request
		for i := range n {
			reqs = append(reqs, Request{Key: perID.Key(fmt.Sprintf("%d of %d, %0*d", i, n, i, 0)), Cost: 5})
		}
		require.True(t, r.spendAll(reqs...).Allowed)
		extra := Request{Key: perID.Key(fmt.Sprintf("%d more", n)), Cost: 1}
		if n > 0 {
			require.False(t, r.spendAll(append(slices.Clone(reqs[:1]), extra)...).Allowed)
			_, err := r.SpendAll(append(slices.Clone(reqs), reqs[n/2])...)
			require.ErrorIs(t, err, ErrDuplicateKey)
		}
		require.EqualValues(t, 5, r.left(extra.Key))
		_, err := r.RefundAll(reqs...)
		require.NoError(t, err)
		for _, req := range reqs {
			require.EqualValues(t, 5, r.left(req.Key))
		}
	}
}

// keysOfOneShard returns n keys whose buckets are in one shard, with those of the key 0.
func keysOfOneShard(l *Limiter, n int) (keys []Key) {
	s, _ := l.directory.shard(perID.Key("0"))
	for i := 0; len(keys) < n; i++ {
		key := perID.Key(fmt.Sprint(i))
		if other, _ := l.directory.shard(key); other == s {
			keys = append(keys, key)
		}
	}
	return keys
}

// Some of one shard have a slot, and others are given one, which moves those that have.
func TestSpendAllInOneShard(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		r := newRig(t)
		want := make(map[Key]int64)
		keys := keysOfOneShard(r.Limiter, 60)
		for _, key := range keys {
			want[key] = 5
		}
		for n := 1; n < len(keys); n += 3 {
			var reqs []Request
			for _, i := range rnd.Perm(n)[:1+rnd.IntN(n)] {
				reqs = append(reqs, Request{Key: keys[i], Cost: rnd.Int64N(min(want[keys[i]], 2) + 1)})
				want[keys[i]] -= reqs[len(reqs)-1].Cost
			}
			require.True(t, r.spendAll(reqs...).Allowed)
			for _, key := range keys {
				require.Equal(t, want[key], r.left(key), "seed %d, %d keys", seed, n)
			}
		}
	}
}

func TestRefundAll(t *testing.T) {
	r := newRig(t)
	a, b, shared := perID.Key("a"), perID.Key("b"), everyone.Key("")
	reqs := []Request{{a, 2, CheckAndSpend}, {b, 1, CheckOnly}, {shared, 1, SpendOnly}}
	require.True(t, r.spendAll(reqs...).Allowed)
	r.spend(b, 5)
	d, err := r.RefundAll(reqs...)
	require.NoError(t, err)
	requireSound(t, d)
	require.True(t, d.Allowed)
	require.EqualValues(t, 5, r.left(a), "whatever became of what was only checked")
	require.EqualValues(t, 0, r.left(b))
	require.EqualValues(t, 3, r.left(shared))
	require.Equal(t, b, d.Key)
	d, err = r.RefundAll()
	require.NoError(t, err)
	require.True(t, d.Allowed)
}

func TestSpendEach(t *testing.T) {
	r := newRig(t)
	a, b := perID.Key("a"), perID.Key("b")
	reqs := []Request{{a, 2, 0}, {b, 1, 0}, {a, 2, SpendOnly}, {nobody.Key("x"), 1, 0}, {a, 1, CheckOnly}, {a, 2, 0}, {perID.Key("c"), 6, 0}, {a, 1, 0}}
	ds := make([]Decision, len(reqs)+1)
	for i := range ds {
		ds[i].Allowed = true
	}
	err := r.SpendEach(reqs, ds)
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorIs(t, err, ErrCostOverBurst)
	require.ErrorContains(t, err, "request 3: ")
	require.ErrorContains(t, err, "request 6: ")
	limit := PerMinute(5)
	require.Equal(t, []Decision{
		{true, 3, 0, 24 * time.Second, a, limit},
		{true, 4, 0, 12 * time.Second, b, limit},
		{true, 1, 0, 48 * time.Second, a, limit},
		{},
		{true, 0, 0, 60 * time.Second, a, limit},
		{false, 1, 12 * time.Second, 48 * time.Second, a, limit},
		{},
		{true, 0, 0, 60 * time.Second, a, limit},
		{Allowed: true},
	}, ds)
	require.Error(t, r.SpendEach(reqs, ds[:3]))
	require.EqualValues(t, 4, r.left(b), "nothing is spent where the decisions do not fit")
	require.NoError(t, r.SpendEach(nil, nil))
}

// A bucket that was loaded while time went on is not given the time that has passed since the first of a SpendEach.
func TestSpendEachDoesNotTurnBackTheClock(t *testing.T) {
	mem := NewMemStore()
	clock := newSimClock()
	first, late := single.Key("first"), single.Key("late")
	save(t, mem, Change{late, clock.ns.Load() + int64(11*time.Second)}) // by then, an empty bucket
	r := rigOn(t, &slowStore{mem, clock, first, nil}, testLimits(t), Options{Now: clock.Now})
	ds := make([]Decision, 2)
	require.NoError(t, r.SpendEach([]Request{{first, 1, 0}, {late, 1, 0}}, ds))
	require.False(t, ds[1].Allowed)
	d := r.spend(late, 1)
	require.False(t, d.Allowed)
	require.Equal(t, time.Second, d.RetryAfter)
}

// A bucket that was spent from, and forgotten once it was past, since SpendEach began is not decided on as it was then.
func TestSpendEachDoesNotForget(t *testing.T) {
	clock := newSimClock()
	first, late := perID.Key("first"), single.Key("late")
	store := &slowStore{NewMemStore(), clock, first, nil}
	r := rigOn(t, store, testLimits(t), Options{Now: clock.Now})
	store.meanwhile = func() {
		store.meanwhile = nil // what is forgotten may have it load first anew
		r.spend(late, 1)
		clock.advance(3 * time.Second)
		require.NoError(t, r.flusher.flush(false))
	}
	ds := make([]Decision, 2)
	require.NoError(t, r.SpendEach([]Request{{first, 1, 0}, {late, 1, 0}}, ds))
	require.True(t, ds[1].Allowed)
	require.False(t, r.spend(late, 1).Allowed, "it has just been spent from")
}

// Nor is the TAT of one that was held brought back to what it could be then.
func TestSpendEachOfOneThatWasHeld(t *testing.T) {
	clock := newSimClock()
	first, held := single.Key("first"), perID.Key("held")
	store := &slowStore{NewMemStore(), clock, first, nil}
	r := rigOn(t, store, testLimits(t), Options{Now: clock.Now})
	r.hold(held, time.Second)
	store.meanwhile = func() {
		clock.advance(50 * time.Second)
		require.True(t, r.spend(held, 5).Allowed)
	}
	ds := make([]Decision, 2)
	require.NoError(t, r.SpendEach([]Request{{first, 1, 0}, {held, 1, 0}}, ds))
	require.Zero(t, r.left(held))
	require.False(t, r.spend(held, 1).Allowed)
}

// slowStore takes ten seconds to load one of the keys.
type slowStore struct {
	Store
	clock     *simClock
	slow      Key
	meanwhile func()
}

func (s *slowStore) Load(key Key) (int64, error) {
	if key == s.slow {
		if s.meanwhile != nil {
			s.meanwhile()
		}
		s.clock.advance(10 * time.Second)
	}
	return s.Store.Load(key)
}

func TestClose(t *testing.T) {
	r := newRig(t)
	r.spend(perID.Key("a"), 1)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	requireClosed(t, r.Limiter)
}

// requireClosed requires that every method knows that the limiter is closed.
func requireClosed(t testing.TB, l *Limiter) {
	t.Helper()
	for _, key := range []Key{perID.Key("a"), perID.Key("never seen"), everyone.Key(""), off.Key("a")} {
		calls := map[string]func() error{
			"Spend":     func() error { _, err := l.Spend(key, 1); return err },
			"Check":     func() error { _, err := l.Check(key, 1); return err },
			"Refund":    func() error { _, err := l.Refund(key, 1); return err },
			"Reset":     func() error { return l.Reset(key) },
			"SpendAll":  func() error { _, err := l.SpendAll(Request{Key: key, Cost: 1}); return err },
			"RefundAll": func() error { _, err := l.RefundAll(Request{Key: key, Cost: 1}); return err },
			"SpendEach": func() error { return l.SpendEach([]Request{{Key: key, Cost: 1}}, make([]Decision, 1)) },
			"Reserve":   func() error { _, err := l.Reserve(key, 1); return err },
			"Wait":      func() error { return l.Wait(context.Background(), key, 1) },
			"Hold":      func() error { return l.Hold(key, time.Now().Add(time.Hour)) },
			"SetLimits": func() error { return l.SetLimits(l.limits.Load()) },
			"Flush":     l.Flush,
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

func TestCloseThatCannotSave(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	r := rigOn(t, store, testLimits(t), Options{})
	r.spend(perID.Key("a"), 1)
	store.broken.Store(true)
	err := r.Close()
	require.ErrorIs(t, err, errDisk)
	require.Equal(t, err, r.Close(), "a second Close returns what the first did")
}

func TestNewMistakes(t *testing.T) {
	limits := testLimits(t)
	for want, opts := range map[string]*Options{
		"stint: FlushInterval -1ns: want more than 0": {FlushInterval: -1},
		"stint: LockTimeout -1ns: want more than 0":   {LockTimeout: -1},
		"stint: MaxResident -1: want more than 0":     {MaxResident: -1},
	} {
		_, err := New(NewMemStore(), limits, opts)
		require.EqualError(t, err, want)
		_, err = Open(filepath.Join(t.TempDir(), "buckets.db"), limits, opts)
		require.EqualError(t, err, want)
	}
	_, err := New(NewMemStore(), nil, nil)
	require.EqualError(t, err, "stint: New: no limits")
	_, err = New(nil, testLimits(t), nil)
	require.EqualError(t, err, "stint: New: no store")
	_, err = Open("", testLimits(t), nil)
	require.EqualError(t, err, "stint: open: no path")
	_, err = Open(filepath.Join(t.TempDir(), "buckets.db"), nil, nil)
	require.EqualError(t, err, "stint: Open: no limits")

	store := &faultyStore{Store: NewMemStore()}
	store.broken.Store(true)
	_, err = New(store, limits, nil)
	require.ErrorIs(t, err, errDisk)

	mem := NewMemStore()
	save(t, mem, Change{Unknown.Key("no key"), 1})
	_, err = New(mem, limits, nil)
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestBuckets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	store := &faultyStore{Store: openBolt(t, path, testNames)}
	r := rigOn(t, store, testLimits(t), Options{})
	now := r.clock.ns.Load()
	save(t, store,
		Change{perID.Key("stored"), now + int64(30*time.Second)},
		Change{perID.Key("stored and loaded"), now + int64(30*time.Second)},
		Change{perID.Key("stored and spent"), now + int64(30*time.Second)},
		Change{perID.Key("stored far ahead"), now + int64(time.Hour)},
		Change{perID.Key("stored and over"), now},
		Change{perID.Key("refunded"), now + int64(30*time.Second)})
	r.check(perID.Key("stored and loaded"), 1)
	r.spend(perID.Key("stored and spent"), 1)
	r.refund(perID.Key("refunded"), 5)
	r.spend(perID.Key("unflushed"), 2)
	r.spend(single.Key("another name's"), 1)
	long := strings.Repeat("x", maxIDLen)
	r.hold(perID.Key(long), time.Hour)
	r.spend(perID.Key("held"), 1)
	r.hold(perID.Key("held"), time.Hour)
	limit, until := PerMinute(5), r.clock.Now().Add(time.Hour)
	want := map[Key]Bucket{
		perID.Key("stored"):            {Key{}, limit, 2, 30 * time.Second, time.Time{}},
		perID.Key("stored and loaded"): {Key{}, limit, 2, 30 * time.Second, time.Time{}},
		perID.Key("stored and spent"):  {Key{}, limit, 1, 42 * time.Second, time.Time{}},
		perID.Key("stored far ahead"):  {Key{}, limit, 0, time.Minute, time.Time{}},
		perID.Key("unflushed"):         {Key{}, limit, 3, 24 * time.Second, time.Time{}},
		perID.Key(long):                {Key{}, limit, 5, 0, until},
		perID.Key("held"):              {Key{}, limit, 4, 12 * time.Second, until},
	}
	require.Equal(t, want, listBuckets(t, r.Buckets(perID)))

	// Those that a flush could not save are in no store.
	store.failAt.Store(store.ops.Load() + 1)
	require.ErrorIs(t, r.Flush(), errDisk)
	require.Equal(t, want, listBuckets(t, r.Buckets(perID)), "after a flush that failed")
	require.NoError(t, r.Flush())
	require.Equal(t, want, listBuckets(t, r.Buckets(perID)), "after one that did not")
	for b := range r.Buckets(perID) {
		key := b.Key
		require.Contains(t, want, key)
		break
	}

	require.Empty(t, listBuckets(t, r.Buckets(Unknown)), "the holds are no buckets")
	require.Empty(t, listBuckets(t, r.Buckets(nobody)))
	require.NoError(t, r.Health())
	store.broken.Store(true)
	for _, err := range r.Buckets(perID) {
		require.ErrorIs(t, err, errDisk)
	}
	store.broken.Store(false)
	require.Equal(t, want, listBuckets(t, r.Buckets(perID)))
	require.NoError(t, r.Health())
}

// A bucket that is being saved is in one place or the other, or in both, and is yielded once.
func TestBucketsWhileSaving(t *testing.T) {
	var r *rig
	var during []map[Key]Bucket
	store := &hookStore{Store: NewMemStore(), before: func() { during = append(during, listBuckets(t, r.Buckets(perID))) }}
	store.after = store.before
	r = rigOn(t, store, testLimits(t), Options{})
	for i := range 10 {
		r.spend(perID.Key(fmt.Sprint(i)), 1)
	}
	require.NoError(t, r.Flush())
	require.Len(t, during, 2)
	require.Len(t, during[0], 10)
	require.Len(t, during[1], 10)
}

// hookStore calls back before and after a save.
type hookStore struct {
	Store
	before, after func()
}

func (s *hookStore) Save(changes []Change) error {
	if len(changes) == 0 {
		return nil
	}
	s.before()
	defer s.after()
	return s.Store.Save(changes)
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
	r.spendAll(Request{single.Key("a"), 1, 0}, Request{everyone.Key(""), 1, 0})
	r.spendAll(Request{single.Key("a"), 1, 0}, Request{everyone.Key(""), 1, 0})
	r.spend(off.Key("a"), 1)
	require.NoError(t, r.Flush())
	want := map[Name]LimitStats{
		Unknown: {Errors: 2}, perID: {Allowed: 5, Denied: 2, Errors: 1}, everyone: {Allowed: 1}, single: {Allowed: 1, Denied: 1}, off: {Allowed: 1}, other: {},
	}
	st := r.Stats()
	require.Equal(t, want, st.Limits)
	require.EqualValues(t, 3, st.Resident)
	require.EqualValues(t, 1, st.Flush.Flushes)
	require.EqualValues(t, 3, st.Flush.Buckets)
	require.NoError(t, r.SetLimits(limitsOf(t, testNames, nil)))
	require.Equal(t, want, r.Stats().Limits, "counts outlive limits")
	require.NoError(t, r.SetLimits(limitsOf(t, nil, nil)))
	require.Equal(t, want[perID], r.Stats().Limits[perID], "and names")
	require.NoError(t, r.Close())
	require.Equal(t, want[perID], r.Stats().Limits[perID], "and the limiter")
}

// The flusher tells of the first failure in a row, and of the end of them; what it could not save it keeps.
func TestFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Store: NewMemStore()}
		var events []Event
		l, err := New(store, testLimits(t), &Options{OnEvent: func(e Event) { events = append(events, e) }})
		require.NoError(t, err)
		key := perID.Key("a")
		spend := func() {
			d, err := l.Spend(key, 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
		spend()
		pass(1500 * time.Millisecond)
		require.NoError(t, l.Health())
		require.Len(t, collect(t, store.All(perID)), 1)
		saved := load(t, store, key)

		store.broken.Store(true)
		failed := time.Now()
		spend()
		pass(5 * time.Second)
		spend() // decisions go on
		_, err = l.Spend(perID.Key("b"), 1)
		require.ErrorIs(t, err, errDisk, "but for those that the store must be asked for")
		require.Len(t, events, 1, "told once")
		require.Equal(t, FlushFailed, events[0].Kind)
		require.ErrorIs(t, events[0].Err, errDisk)
		require.ErrorIs(t, l.Health(), errDisk)
		st := l.Stats().Flush
		require.ErrorIs(t, st.Err, errDisk)
		require.Greater(t, st.Failures, int64(1), "it is tried again")
		require.Less(t, st.Failures, int64(5), "not at every tick")
		require.WithinRange(t, st.Since, failed, failed.Add(time.Second))

		store.broken.Store(false)
		require.Equal(t, saved, load(t, store, key))
		pass(10 * time.Second)
		require.Len(t, events, 2)
		require.Equal(t, FlushRecovered, events[1].Kind)
		_, err = l.Check(perID.Key("b"), 1)
		require.NoError(t, err)
		require.NoError(t, l.Health())
		require.EqualValues(t, 1, l.Stats().Limits[perID].Errors)
		require.Equal(t, saved+2*int64(12*time.Second), load(t, store, key), "all that was spent meanwhile")
		ops := store.ops.Load()
		pass(5 * time.Second)
		require.Equal(t, ops, store.ops.Load(), "and once")
		require.NoError(t, l.Close())
	})
}

// One event at a time, also where a Flush meets the flusher.
func TestOnEventIsNotConcurrent(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	kinds := make(map[EventKind]int) // the race detector looks on
	r := rigOn(t, store, testLimits(t), Options{OnEvent: func(e Event) { kinds[e.Kind]++ }, FlushInterval: time.Millisecond})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				store.broken.Store(i%2 == 0)
				r.Spend(perID.Key("a"), int64(i%2))
				r.Refund(perID.Key("a"), 1)
				if g == 0 {
					r.flusher.tell(Event{Kind: ClockStepped})
				}
				r.Flush()
			}
		})
	}
	wg.Wait()
	store.broken.Store(false)
	require.NoError(t, r.Close())
	require.Positive(t, kinds[ClockStepped])
	require.LessOrEqual(t, kinds[ClockStepped], 100, "who is far behind misses some")
}

// Of several requests, the strictest decision is one and the same in whatever order they come.
func FuzzStrictest(f *testing.F) {
	f.Add(uint64(1), uint8(3))
	f.Add(uint64(2), uint8(40))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		r := newRig(t)
		reqs, denies := []Request(nil), false
		for i := range int(n % 32) {
			key := Name(1 + rnd.IntN(5)).Key(fmt.Sprint(i))
			if key.Name == everyone {
				if i > 0 {
					continue
				}
				key.ID = ""
			}
			limit, on := r.limits.Load().For(key)
			cost := int64(0)
			if on {
				r.spend(key, rnd.Int64N(limit.Burst+1))
				cost = rnd.Int64N(limit.Burst + 1)
			}
			req := Request{key, cost, Mode(rnd.IntN(3))}
			if req.Mode != SpendOnly && !r.check(key, cost).Allowed {
				denies = true
			}
			reqs = append(reqs, req)
		}
		left := make(map[Key]int64)
		for _, req := range reqs {
			left[req.Key] = r.left(req.Key)
		}
		ofChecks := slices.Clone(reqs)
		for i := range ofChecks {
			if ofChecks[i].Mode == CheckAndSpend {
				ofChecks[i].Mode = CheckOnly
			}
		}
		ofChecks = slices.DeleteFunc(ofChecks, func(r Request) bool { return r.Mode == SpendOnly })
		want := r.spendAll(ofChecks...)
		require.Equal(t, !denies, want.Allowed, "a denial absorbs")
		for range 3 {
			rnd.Shuffle(len(ofChecks), func(i, j int) { ofChecks[i], ofChecks[j] = ofChecks[j], ofChecks[i] })
			require.Equal(t, want, r.spendAll(ofChecks...))
		}
		rnd.Shuffle(len(reqs), func(i, j int) { reqs[i], reqs[j] = reqs[j], reqs[i] })
		require.Equal(t, want, r.spendAll(reqs...), "what spends decides as what checks")
		for _, req := range reqs {
			spent := left[req.Key] - r.left(req.Key)
			switch fits := req.Cost <= left[req.Key]; {
			case left[req.Key] == math.MaxInt64, denies, req.Mode == CheckOnly, req.Mode == SpendOnly && !fits:
				require.Zero(t, spent)
			default:
				require.Equal(t, req.Cost, spent)
			}
		}
	})
}

// The order of decisions is one: no two are stricter than each other, and it does not matter which come first.
func FuzzStricter(f *testing.F) {
	f.Add(false, int64(1), int64(2), int64(3), "a", true, int64(0), int64(2), int64(3), "b", false, int64(1), int64(2), int64(4), "c")
	f.Fuzz(func(t *testing.T, a1 bool, a2, a3, a4 int64, a5 string, b1 bool, b2, b3, b4 int64, b5 string, c1 bool, c2, c3, c4 int64, c5 string) {
		decision := func(allowed bool, remaining, retry, reset int64, id string) Decision {
			return Decision{allowed, remaining, time.Duration(retry), time.Duration(reset), Key{1, id}, Limit{}}
		}
		a, b, c := decision(a1, a2, a3, a4, a5), decision(b1, b2, b3, b4, b5), decision(c1, c2, c3, c4, c5)
		strictest := func(ds ...Decision) Decision {
			s := ds[0]
			for _, d := range ds[1:] {
				if d.stricter(&s) {
					s = d
				}
			}
			return s
		}
		require.False(t, a.stricter(&a))
		require.Equal(t, a != b, a.stricter(&b) != b.stricter(&a))
		want := strictest(a, b, c)
		for _, ds := range [][]Decision{{a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}} {
			require.Equal(t, want, strictest(ds...))
		}
		require.Equal(t, a1 && b1 && c1, want.Allowed)
	})
}

// Health is well again once nothing is left to be saved: a commit may have brought what a flush could not.
func TestHealthOnceNothingIsLeft(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	limits := limitsOf(t, testNames, map[Name]Limit{perID: PerHour(5)})
	r := rigOn(t, store, limits, Options{Durability: Synced})
	_, err := r.Spend(perID.Key("a"), 1) // it is in memory from here on
	require.NoError(t, err)
	store.broken.Store(true)
	_, err = r.Spend(perID.Key("a"), 1)
	require.ErrorIs(t, err, ErrNotDurable)
	require.Error(t, r.flusher.flush(false))
	require.ErrorIs(t, r.Health(), errDisk)
	store.broken.Store(false)
	_, err = r.Spend(perID.Key("a"), 1)
	require.NoError(t, err)
	require.NoError(t, r.flusher.flush(false))
	require.NoError(t, r.Health())
}

// What is decided in one pass is decided as the long way does it: on every state that a bucket gets into, with every cost,
// at every level, and it counts and saves the same.
func TestHitDecidesAsOneDoes(t *testing.T) {
	names := Names{perID: {Label: "PerID"}, single: {Label: "Single", Limit: Unlimited}, off: {Label: "Off", Limit: Unlimited}}
	stored := func(r *rig, key Key) int64 { // 0 where it is past: when such a one is deleted is left to chance
		r.committer.rest() // leases that are renewed, and nobody waits for
		tat, err := r.store.Load(key)
		require.NoError(t, err)
		if tat <= r.clock.Now().UnixNano() {
			return 0
		}
		return tat
	}
	for _, level := range []Durability{Memory, Flushed, Leased, Synced} {
		limits := limitsOf(t, names, map[Name]Limit{perID: PerMinute(5), single: PerHour(1)})
		fewer := limitsOf(t, names, map[Name]Limit{perID: PerHour(100)})
		opts := Options{Durability: level}
		short, long := rigOn(t, NewMemStore(), limits, opts), rigOn(t, NewMemStore(), limits, opts)
		keys := []Key{perID.Key("a"), perID.Key("b"), single.Key("a"), off.Key("a"), {99, "a"}, perID.Key("")}
		rnd := rand.New(rand.NewPCG(uint64(level), 7))
		for range 5000 {
			later := time.Duration(rnd.Int64N(int64(20 * time.Second)))
			short.clock.advance(later)
			long.clock.advance(later)
			key, cost := keys[rnd.IntN(len(keys))], rnd.Int64N(8)-1
			var d, want Decision
			var err, wantErr error
			switch rnd.IntN(9) {
			case 8:
				err, wantErr = short.SetLimits(fewer), long.SetLimits(fewer)
				limits, fewer = fewer, limits
			case 0:
				d, err = short.Check(key, cost)
				want, wantErr = long.slowPath(key, cost, opCheck, readClock)
			case 1:
				d, err = short.Refund(key, cost)
				want, wantErr = long.Refund(key, cost)
			case 2:
				until := short.Now().Add(later - 10*time.Second)
				err, wantErr = short.Hold(key, until), long.Hold(key, until)
			case 3:
				err, wantErr = short.Flush(), long.Flush()
			case 4:
				d.Allowed = short.Allow(key)
				want, _ = long.slowPath(key, 1, opSpend, readClock)
				want = Decision{Allowed: want.Allowed}
			case 5:
				reqs := []Request{{key, cost, 0}, {keys[rnd.IntN(len(keys))], 1, CheckOnly}}
				var ds [2]Decision
				err = short.SpendEach(reqs, ds[:])
				want, wantErr = long.slowPath(key, cost, opSpend, readClock)
				second, secondErr := long.slowPath(reqs[1].Key, 1, opCheck, readClock)
				require.Equal(t, second, ds[1])
				d = ds[0]
				require.Equal(t, wantErr == nil && secondErr == nil, err == nil)
				err, wantErr = nil, nil
			default:
				d, err = short.Spend(key, cost)
				want, wantErr = long.slowPath(key, cost, opSpend, readClock)
			}
			require.Equal(t, want, d)
			require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err))
			for _, key := range keys[:3] {
				require.Equal(t, stored(long, key), stored(short, key), "%v", key)
			}
		}
		require.Equal(t, long.Stats().Limits, short.Stats().Limits)
	}
}

// A bucket with a hold may leave memory: the hold stays in force.
func TestHoldsLeaveRoom(t *testing.T) {
	r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 4})
	until := r.clock.Now().Add(time.Hour)
	for i := range 12 {
		key := perID.Key(fmt.Sprint("held-", i))
		r.spend(key, 2)
		require.NoError(t, r.Hold(key, until))
	}
	for i := range 8 {
		r.spend(perID.Key(fmt.Sprint("other-", i)), 1)
	}
	require.LessOrEqual(t, r.Stats().Resident, int64(4+1))
	for i := range 12 {
		d := r.spend(perID.Key(fmt.Sprint("held-", i)), 1)
		require.False(t, d.Allowed)
		require.Equal(t, time.Hour, d.RetryAfter)
		require.EqualValues(t, 3, d.Remaining)
	}
}

// Requests of nothing have no bucket that tells that the Limiter is closed.
func TestClosedEmpty(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.Close())
	d, err := r.SpendAll()
	require.ErrorIs(t, err, ErrClosed)
	require.False(t, d.Allowed)
}
