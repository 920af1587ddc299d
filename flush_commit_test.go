package stint

import (
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// gateStore is a Store whose saves are looked at, and can be held up and made to fail.
type gateStore struct {
	*MemStore

	mu    sync.Mutex
	saves [][]Change
	fails error // what every save returns, having done nothing

	gate chan func() bool // where not nil, a save waits here; what comes says whether to carry it out; false: errGate
}

var errGate = errors.New("the gate is closed")

func newGateStore() *gateStore { return &gateStore{MemStore: NewMemStore()} }

func (s *gateStore) Save(changes []Change) error {
	if len(changes) == 0 { // from rest
		return nil
	}
	s.mu.Lock()
	s.saves = append(s.saves, slices.Clone(changes))
	gate, fails := s.gate, s.fails
	s.mu.Unlock()
	if gate != nil {
		if carryOut, waited := <-gate; waited && !carryOut() {
			return errGate
		}
	}
	if fails != nil {
		return fails
	}
	return s.MemStore.Save(changes)
}

func (s *gateStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *gateStore) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan func() bool)
}

// open lets the save through that waits, if one does, and those to come.
func (s *gateStore) open() {
	s.mu.Lock()
	gate := s.gate
	s.gate = nil
	s.mu.Unlock()
	close(gate)
}

func (s *gateStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.saves)
}

func (s *gateStore) last() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saves[len(s.saves)-1]
}

func carryOut() bool { return true }
func refuse() bool   { return false }

// has returns what the store has for a key.
func (s *gateStore) has(t testing.TB, key Key) int64 {
	tat, err := s.Load(key)
	require.NoError(t, err)
	return tat
}

// The limits of these tests, a name for each level.
const (
	inMemory Name = iota + 1
	flushed
	leased
	synced
)

var levelNames = Names{inMemory: {Label: "memory"}, flushed: {Label: "flushed"}, leased: {Label: "leased"}, synced: {Label: "synced"}}

// levelLimits gives each name its level, but those that are named another.
func levelLimits(t testing.TB, limit Limit, other map[Name]Durability) *Limits {
	defaults := make(map[Name]Limit)
	for name := range levelNames {
		limit.Durability = Durability(name)
		if level, ok := other[name]; ok {
			limit.Durability = level
		}
		defaults[name] = limit
	}
	return limitsOf(t, levelNames, defaults)
}

// newGridClock returns a clock that stands at an instant from which the leases of these limits are counted.
func newGridClock() *simClock {
	c := newSimClock()
	c.ns.Store(1_800_000_000_000_000_000)
	return c
}

// newLevels returns a Limiter that flushes when it is told to, and waits for a commit for as long as a slow machine takes.
func newLevels(t testing.TB, store Store, limits *Limits, clock *simClock, maxResident int) *Limiter {
	t.Helper()
	return newLevelsTimeout(t, store, limits, clock, maxResident, time.Hour)
}

func newLevelsTimeout(t testing.TB, store Store, limits *Limits, clock *simClock, maxResident int, timeout time.Duration) *Limiter {
	t.Helper()
	l, err := New(store, limits, &Options{FlushInterval: 1e6 * time.Hour, CommitTimeout: timeout, Now: clock.Now, MaxResident: maxResident})
	require.NoError(t, err)
	return l
}

// rest waits until every commit so far has ended, with one of nothing.
func (c *committer) rest() {
	in := c.Lock(true)
	c.Unlock()
	in.Await()
}

// spent returns how many tokens are missing from a bucket.
func spent(t testing.TB, l *Limiter, key Key) int64 {
	t.Helper()
	d, err := l.Check(key, 0)
	require.NoError(t, err)
	return d.Limit.Burst - d.Remaining
}

func requireSpends(t testing.TB, l *Limiter, key Key, cost int64) {
	t.Helper()
	d, err := l.Spend(key, cost)
	require.NoError(t, err)
	require.True(t, d.Allowed)
}

var hundred = Limit{Burst: 100, Count: 1, Period: time.Hour} // a lease is 12.5 tokens

// Those who come while a commit is under way are in the next, all of them.
func TestWaitersShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
		store.close()
		var wg sync.WaitGroup
		spend := func(key Key) { wg.Go(func() { requireSpends(t, l, key, 1) }) }
		spend(synced.Key("first"))
		synctest.Wait()
		require.Equal(t, 1, store.count())
		for i := range 50 {
			spend(synced.Key(fmt.Sprint(i)))
			spend(leased.Key(fmt.Sprint(i)))
			spend(synced.Key("same"))
		}
		synctest.Wait()
		require.Equal(t, 1, store.count())
		store.gate <- carryOut
		synctest.Wait()
		require.Equal(t, 2, store.count())
		require.Len(t, store.last(), 101, "each bucket once")
		store.open()
		wg.Wait()
		require.Equal(t, 2, store.count())
		st := l.Stats().Commit
		require.EqualValues(t, 2, st.Commits)
		require.EqualValues(t, 102, st.Buckets)
		require.EqualValues(t, 50, st.Leases)
		require.EqualValues(t, 50, spent(t, l, synced.Key("same")))
		require.EqualValues(t, l.clock.Now()+50*int64(time.Hour), store.has(t, synced.Key("same")))
		require.NoError(t, l.Close())
	})
}

// One who is alone is not made to wait for company.
func TestLoneCommitDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
		begun := time.Now() // of the bubble, where time passes when nobody has anything to do
		for i := range 10 {
			requireSpends(t, l, synced.Key("a"), 1)
			require.Equal(t, 1+i, store.count())
		}
		require.Zero(t, time.Since(begun))
		require.NoError(t, l.Close())
	})
}

func TestSpendAllIsOneSave(t *testing.T) {
	store := newGateStore()
	l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
	reqs := []Request{{inMemory.Key("a"), 1, 0}, {flushed.Key("a"), 2, 0}, {leased.Key("a"), 3, 0}, {synced.Key("a"), 4, 0}, {synced.Key("b"), 1, CheckOnly}}
	d, err := l.SpendAll(reqs...)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.Equal(t, 1, store.count())
	require.Len(t, store.last(), 4)
	now := l.clock.Now()
	require.Equal(t, now+1*int64(time.Hour), store.has(t, inMemory.Key("a")))
	require.Equal(t, now+2*int64(time.Hour), store.has(t, flushed.Key("a")))
	require.GreaterOrEqual(t, store.has(t, leased.Key("a")), now+3*int64(time.Hour))
	require.Equal(t, now+4*int64(time.Hour), store.has(t, synced.Key("a")))

	_, err = l.RefundAll(reqs...)
	require.NoError(t, err)
	require.Equal(t, 2, store.count())
	require.Zero(t, store.has(t, synced.Key("a")))

	_, err = l.SpendAll(reqs[:2]...)
	require.NoError(t, err)
	require.Equal(t, 2, store.count(), "none of them waits for a commit")

	store.fail(errGate)
	d, err = l.SpendAll(reqs...)
	require.ErrorIs(t, err, ErrNotDurable)
	require.ErrorIs(t, err, errGate)
	require.Zero(t, d)
	require.EqualValues(t, 1, spent(t, l, inMemory.Key("a")), "given back, all of it")
	require.EqualValues(t, 2, spent(t, l, flushed.Key("a")))
	require.Zero(t, spent(t, l, leased.Key("a")))
	require.Zero(t, spent(t, l, synced.Key("a")))
	store.fail(nil)
	require.NoError(t, l.Close())
}

// What a crash leaves of a SpendAll is all of it, also where a lease covers a part.
func TestCrashDoesNotTearSpendAll(t *testing.T) {
	for _, other := range []Name{inMemory, flushed, synced} {
		store, clock := newGateStore(), newGridClock()
		limits := levelLimits(t, hundred, nil)
		l := newLevels(t, store, limits, clock, 0)
		for _, cost := range []int64{1, 3} {
			_, err := l.SpendAll(Request{Key: leased.Key("a"), Cost: cost}, Request{Key: other.Key("a"), Cost: cost})
			require.NoError(t, err)
		}
		after := newLevels(t, store.MemStore, limits, clock, 0)
		require.GreaterOrEqual(t, spent(t, after, leased.Key("a")), int64(4))
		require.EqualValues(t, 4, spent(t, after, other.Key("a")))
	}
}

// What is not committed in time may be yet, and stays spent.
func TestCommitTimeout(t *testing.T) {
	for name, outcome := range map[string]func() bool{"carried out": carryOut, "refused": refuse} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newGateStore()
				l := newLevelsTimeout(t, store, levelLimits(t, hundred, nil), newGridClock(), 0, 5*time.Second)
				store.close()
				begun := time.Now()
				d, err := l.Spend(synced.Key("a"), 7)
				require.ErrorIs(t, err, ErrNotDurable)
				require.Zero(t, d)
				require.Equal(t, 5*time.Second, time.Since(begun))
				require.EqualValues(t, 7, spent(t, l, synced.Key("a")))
				store.gate <- outcome
				synctest.Wait()
				left := int64(7)
				if name == "refused" {
					left = 0
				}
				require.EqualValues(t, left, spent(t, l, synced.Key("a")))
				store.open()
				require.NoError(t, l.Flush())
				require.Equal(t, max(0, l.clock.Now()*min(left, 1)+left*int64(time.Hour)), store.has(t, synced.Key("a")))
				require.NoError(t, l.Close())
			})
		})
	}
}

// Whoever waits, waits for CommitTimeout, and not as long as the one who waits for the same commit has left.
func TestCommitTimeoutIsEverybodysOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevelsTimeout(t, store, levelLimits(t, hundred, nil), newGridClock(), 0, 5*time.Second)
		store.close()
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				begun := time.Now()
				_, err := l.Spend(synced.Key(fmt.Sprint(i)), 1)
				took := time.Since(begun)
				if i < 3 { // the first has a commit of its own, the second and the third share one
					require.ErrorIs(t, err, ErrNotDurable)
					require.Equal(t, 5*time.Second, took)
				} else {
					require.NoError(t, err)
					require.Equal(t, 4*time.Second, took, "it heard when the commit had ended")
				}
			})
			synctest.Wait()
			<-time.After(time.Duration(i) * time.Second)
		}
		<-time.After(time.Second)
		require.Equal(t, 1, store.count())
		store.open()
		wg.Wait()
		require.Equal(t, 2, store.count())
		require.Len(t, store.last(), 3)
		require.NoError(t, l.Close())
	})
}

// While the store fails, nobody passes who would have to be remembered; others do, and all do once it works again.
func TestStoreFails(t *testing.T) {
	store := newGateStore()
	l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
	requireSpends(t, l, leased.Key("covered"), 1)
	store.fail(errGate)
	for range 3 {
		for _, name := range []Name{inMemory, flushed} {
			requireSpends(t, l, name.Key("a"), 1)
		}
		for _, name := range []Name{leased, synced} {
			d, err := l.Spend(name.Key("a"), 1)
			require.ErrorIs(t, err, ErrNotDurable)
			require.Zero(t, d)
			require.False(t, l.Allow(name.Key("a")))
			require.Zero(t, spent(t, l, name.Key("a")))
		}
		require.Error(t, l.flusher.flush(false))
	}
	require.EqualValues(t, 12, l.Stats().Commit.Failures)
	requireSpends(t, l, leased.Key("covered"), 10) // its lease is renewed, in the next commit or in one of its own
	_, err := l.Spend(leased.Key("covered"), 10)
	require.ErrorIs(t, err, ErrNotDurable, "it would cross its lease")
	require.EqualValues(t, 11, spent(t, l, leased.Key("covered")))
	require.Greater(t, l.Stats().Commit.Failures, int64(12))
	require.Error(t, l.Stats().Commit.Err)

	store.fail(nil)
	for _, name := range []Name{inMemory, flushed} {
		requireSpends(t, l, name.Key("a"), 97)
		require.False(t, l.Allow(name.Key("a")), "nothing was forgotten")
	}
	for _, name := range []Name{leased, synced} {
		requireSpends(t, l, name.Key("a"), 100)
	}
	require.NoError(t, l.Stats().Commit.Err)
	require.NoError(t, l.Close())
}

// Up to the lease, spending costs no save.
func TestLease(t *testing.T) {
	store, clock := newGateStore(), newGridClock()
	limits := levelLimits(t, hundred, nil)
	l := newLevels(t, store, limits, clock, 0)
	key := leased.Key("a")
	now, hour := l.clock.Now(), int64(time.Hour)
	saves := 0
	for tokens := int64(1); tokens <= 100; tokens++ {
		before := store.has(t, key)
		requireSpends(t, l, key, 1)
		l.committer.rest()
		tat, have := now+tokens*hour, store.has(t, key)
		require.GreaterOrEqual(t, have, tat)
		require.LessOrEqual(t, have, tat+100*hour/8)
		if have != before {
			saves++
		}
		require.Equal(t, saves, store.count(), "token %d: one save where the next half begins, none where it does not", tokens)
	}
	require.LessOrEqual(t, saves, 18)
	require.GreaterOrEqual(t, saves, 15)
	require.EqualValues(t, saves, l.Stats().Commit.Leases)

	for tokens := int64(99); tokens >= 0; tokens-- {
		_, err := l.Refund(key, 1)
		require.NoError(t, err)
		l.committer.rest()
		tat, have := now+tokens*hour, store.has(t, key)
		if tokens == 0 {
			require.Zero(t, have, "a bucket that is full is not stored")
			break
		}
		require.GreaterOrEqual(t, have, tat)
		require.LessOrEqual(t, have, tat+100*hour/8, "what is given back across the end of a lease is given back on file")
	}
	require.LessOrEqual(t, store.count(), 2*saves)

	requireSpends(t, l, key, 60)
	requireSpends(t, l, key, 1)
	l.committer.rest()
	count := store.count()
	require.NoError(t, l.flusher.flush(false))
	require.Equal(t, count, store.count(), "a flush leaves a lease alone")
	require.Greater(t, store.has(t, key), now+61*hour)
	require.NoError(t, l.Flush())
	require.Equal(t, now+61*hour, store.has(t, key), "told to, it saves what is spent")
	requireSpends(t, l, key, 1)
	require.Equal(t, count+2, store.count(), "and then the next spend takes a lease")
	require.GreaterOrEqual(t, store.has(t, key), now+62*hour)

	require.NoError(t, l.Reset(key))
	require.Zero(t, store.has(t, key))
	require.Zero(t, spent(t, l, key))

	requireSpends(t, l, key, 33)
	require.Greater(t, store.has(t, key), now+33*hour)
	require.NoError(t, l.Close())
	require.Equal(t, now+33*hour, store.has(t, key), "Close leaves what is spent")
	l = newLevels(t, store, limits, clock, 0)
	require.EqualValues(t, 33, spent(t, l, key))
	require.NoError(t, l.Close())
}

// Who renews a lease gives way where a commit is late, and only then.
func TestRenewalGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
		keys := []Key{leased.Key("a"), leased.Key("b"), leased.Key("c"), leased.Key("d")}
		for _, key := range keys {
			requireSpends(t, l, key, 6) // half a lease is 6.25 tokens
		}
		renewIsLate := func() bool {
			key := keys[0]
			keys = keys[1:]
			s, h := l.directory.shard(key)
			s.mu.Lock()
			defer s.mu.Unlock()
			allowed, hit, late := l.fastPathLocked(s, h, key, 1, opSpend, l.clock.Now(), nil)
			require.True(t, allowed)
			require.True(t, hit)
			return late
		}
		store.close()
		require.False(t, renewIsLate())
		<-time.After(renewalPause)
		synctest.Wait()
		require.Equal(t, 5, store.count(), "the commit of the first renewal has begun")
		require.False(t, renewIsLate())
		<-time.After(4 * renewalPause)
		require.True(t, renewIsLate())
		store.open()
		<-time.After(renewalPause)
		synctest.Wait()
		require.False(t, renewIsLate(), "those commits have ended")
		require.NoError(t, l.Close())
	})
}

// A lease is renewed while half of it is left: only the first waits for the disk, and who spends faster than the disk writes.
func TestLeaseIsRenewedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rest := func() {
			<-time.After(renewalPause)
			synctest.Wait()
		}
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
		key, hour := leased.Key("a"), int64(time.Hour)
		now := l.clock.Now()
		requireSpends(t, l, key, 1) // half a lease is 6.25 tokens
		require.Equal(t, 1, store.count())
		require.Equal(t, now+25*hour/2, store.has(t, key))
		requireSpends(t, l, key, 5)
		rest()
		require.Equal(t, 1, store.count())

		store.close()
		requireSpends(t, l, key, 1) // the second half begins, and nobody waits for the third
		requireSpends(t, l, key, 5)
		rest()
		require.Equal(t, 2, store.count())
		require.EqualValues(t, 2, l.Stats().Commit.Leases, "it is asked for once")
		require.Equal(t, []Change{{key, now + 75*hour/4}}, store.last())
		answered := make(chan struct{}, 2)
		go func() {
			requireSpends(t, l, key, 1)
			answered <- struct{}{}
		}()
		rest()
		require.Empty(t, answered, "it is spent, and not on file")
		store.gate <- carryOut
		rest()
		require.Equal(t, 3, store.count())
		require.Empty(t, answered, "nor is it with that renewal")
		go func() {
			requireSpends(t, l, key, 1)
			answered <- struct{}{}
		}()
		rest()
		require.Empty(t, answered, "the end of the renewal says nothing of what is in a later commit")
		store.open()
		<-answered
		<-answered
		require.Equal(t, 4, store.count())
		require.Equal(t, now+25*hour, store.has(t, key), "it has the next as well")

		// A renewal that fails is tried again with the next spend; what the lease covers goes on.
		requireSpends(t, l, key, 4)
		store.fail(errGate)
		requireSpends(t, l, key, 1)
		rest()
		require.Equal(t, 5, store.count())
		require.ErrorIs(t, l.Stats().Commit.Err, errGate)
		requireSpends(t, l, key, 1)
		rest()
		require.Equal(t, 6, store.count())
		store.fail(nil)
		requireSpends(t, l, key, 1)
		rest()
		require.Equal(t, 7, store.count())
		require.Equal(t, now+125*hour/4, store.has(t, key))
		require.EqualValues(t, 21, spent(t, l, key))
		require.NoError(t, l.Close())
		require.Equal(t, now+21*hour, store.has(t, key))
	})
}

// Renewals wait a moment for each other, and not at all where somebody waits for the commit that they are in.
func TestRenewalsShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
		keys := []Key{leased.Key("a"), leased.Key("b"), leased.Key("c")}
		for _, key := range keys {
			requireSpends(t, l, key, 6)
		}
		require.Equal(t, 3, store.count())
		begun := time.Now()
		requireSpends(t, l, keys[0], 1) // the second half of each begins
		requireSpends(t, l, keys[1], 1)
		synctest.Wait()
		require.Equal(t, 3, store.count())
		<-time.After(renewalPause)
		synctest.Wait()
		require.Equal(t, 4, store.count())
		require.Len(t, store.last(), 2)
		require.Equal(t, renewalPause, time.Since(begun))

		requireSpends(t, l, keys[2], 1)
		requireSpends(t, l, leased.Key("d"), 1)
		require.Equal(t, renewalPause, time.Since(begun))
		require.Equal(t, 5, store.count())
		require.Len(t, store.last(), 2)
		require.NoError(t, l.Close())
	})
}

// The lease of two who come at once covers neither before it is saved.
func TestLeaseCoversNobodyBeforeItIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
		store.close()
		answered := make(chan struct{}, 2)
		key := leased.Key("a")
		for range 2 {
			go func() {
				requireSpends(t, l, key, 1)
				answered <- struct{}{}
			}()
		}
		synctest.Wait()
		require.Empty(t, answered)
		store.open()
		synctest.Wait()
		require.Len(t, answered, 2)
		count := store.count()
		requireSpends(t, l, key, 1)
		require.Equal(t, count, store.count(), "now it does")
		require.NoError(t, l.Close())
	})
}

// A leased bucket that is evicted comes back as it was.
func TestEvictionOfLeased(t *testing.T) {
	store := newGateStore()
	l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 8)
	for i := range int64(40) {
		requireSpends(t, l, leased.Key(fmt.Sprint(i)), 1+i)
		require.LessOrEqual(t, l.Stats().Resident, int64(8))
	}
	for i := range int64(40) {
		require.Equal(t, 1+i, spent(t, l, leased.Key(fmt.Sprint(i))))
	}
	require.Greater(t, l.Stats().Evictions, int64(40))
	require.NoError(t, l.Close())
}

// A bucket whose commit is under way stays in memory, whatever else is done.
func TestPendingIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, clock := newGateStore(), newGridClock()
		l := newLevels(t, store, levelLimits(t, hundred, nil), clock, 0)
		key := synced.Key("a")
		requireSpends(t, l, key, 1)
		store.close()
		go func() { requireSpends(t, l, key, 1) }()
		go func() { requireSpends(t, l, leased.Key("a"), 1) }()
		synctest.Wait()
		clock.advance(1000 * time.Hour) // full again, both
		for range 40 {
			l.directory.evict(l.clock.Now(), true, func() bool { return true })
			l.directory.each(func(s *shard) { s.expireLocked(l.clock.Now()) })
		}
		require.EqualValues(t, 2, l.Stats().Resident)
		store.open()
		synctest.Wait()
		l.directory.each(func(s *shard) { require.Empty(t, s.pending) })
		require.NoError(t, l.Close())
	})
}

// A limit's level changes while it is in use: the next decision is held to the new one, and Close forgets nothing.
func TestLevelChanges(t *testing.T) {
	for from := Memory; from <= Synced; from++ {
		for to := Memory; to <= Synced; to++ {
			t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
				store, clock := newGateStore(), newGridClock()
				before, after := levelLimits(t, hundred, map[Name]Durability{synced: from}), levelLimits(t, hundred, map[Name]Durability{synced: to})
				l := newLevels(t, store, before, clock, 0)
				key := synced.Key("a")
				now, hour := l.clock.Now(), int64(time.Hour)
				requireSpends(t, l, key, 20)
				requireSpends(t, l, key, 1)
				require.NoError(t, l.SetLimits(after))
				require.EqualValues(t, 21, spent(t, l, key))
				count := store.count()
				requireSpends(t, l, key, 1)
				switch have := store.has(t, key); to {
				case Memory, Flushed:
					require.Equal(t, count, store.count())
				case Leased:
					require.Equal(t, count+1, store.count())
					require.GreaterOrEqual(t, have, now+22*hour)
					require.LessOrEqual(t, have, now+22*hour+100*hour/8)
				case Synced:
					require.Equal(t, count+1, store.count())
					require.Equal(t, now+22*hour, have)
				}
				require.NoError(t, l.flusher.flush(false))
				if to == Flushed {
					require.Equal(t, now+22*hour, store.has(t, key))
				}
				require.NoError(t, l.Close())
				require.Equal(t, now+22*hour, store.has(t, key))
			})
		}
	}
}

func TestResetLevels(t *testing.T) {
	for name := range levelNames {
		t.Run(levelNames[name].Label, func(t *testing.T) {
			store, clock := newGateStore(), newGridClock()
			limits := levelLimits(t, hundred, nil)
			l := newLevels(t, store, limits, clock, 0)
			key := name.Key("a")
			requireSpends(t, l, key, 99)
			require.NoError(t, l.Hold(key, clock.Now().Add(time.Hour)))
			require.NoError(t, l.Reset(key))
			require.Zero(t, spent(t, l, key))
			requireSpends(t, l, key, 98)
			require.NoError(t, l.Close())

			l = newLevels(t, store, limits, clock, 0)
			require.NoError(t, l.Reset(key), "of a bucket that is not in memory")
			require.Zero(t, spent(t, l, key))
			require.NoError(t, l.Close())
			require.Zero(t, store.has(t, key))
		})
	}
}

// A commit that failed after it was carried out: what was given back in memory is given back on file too.
func TestFailedCommitThatWasCarriedOut(t *testing.T) {
	for _, name := range []Name{leased, synced} {
		t.Run(levelNames[name].Label, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, clock := newGateStore(), newGridClock()
				limits := levelLimits(t, hundred, nil)
				l := newLevels(t, store, limits, clock, 0)
				key := name.Key("a")
				store.close()
				go func() {
					_, err := l.Spend(key, 40)
					require.ErrorIs(t, err, ErrNotDurable)
				}()
				synctest.Wait()
				store.gate <- func() bool {
					store.MemStore.Save(store.last())
					return false
				}
				synctest.Wait()
				require.Zero(t, spent(t, l, key))
				store.open()
				require.NoError(t, l.Close())

				l = newLevels(t, store, limits, clock, 0)
				require.Zero(t, spent(t, l, key))
				require.NoError(t, l.Close())
			})
		})
	}
}

// What a bucket has regained while a commit was waited for is not given back once more when the commit fails.
// heldSave is a Store that fails to save when told to: once, and not before goOn is closed.
type heldSave struct {
	Store
	failing    atomic.Bool
	held, goOn chan struct{}
}

func holdSave(store Store) *heldSave {
	return &heldSave{Store: store, held: make(chan struct{}), goOn: make(chan struct{})}
}

func (s *heldSave) Save(changes []Change) error {
	if s.failing.Swap(false) {
		close(s.held)
		<-s.goOn
		return errFault
	}
	return s.Store.Save(changes)
}

// What a Spend took whose commit failed is not in the file that Close leaves, though nobody has given it back when that begins.
func TestCloseGivesBack(t *testing.T) {
	key := Name(4).Key("a")
	for range 50 {
		mem := NewMemStore()
		s := holdSave(mem)
		l, err := New(s, faultLimits(t, 10), &Options{FlushInterval: time.Hour, CommitTimeout: time.Hour})
		require.NoError(t, err)
		s.failing.Store(true)
		spent, closed := make(chan error, 1), make(chan error, 1)
		go func() { _, err := l.Spend(key, 4); spent <- err }()
		<-s.held
		go func() { closed <- l.Close() }()
		<-l.closed
		for over := false; !over; {
			l.directory.mu.Lock()
			over = l.directory.limits == nil
			l.directory.mu.Unlock()
		}
		close(s.goOn)
		require.ErrorIs(t, <-spent, ErrNotDurable)
		require.NoError(t, <-closed)
		r := rigOn(t, mem, faultLimits(t, 10), Options{Now: time.Now})
		require.EqualValues(t, 10, r.left(key))
	}
}

// What was spent before Flush is on file after it, even of a bucket that is in a commit again and again.
func TestFlushWaitsForCommits(t *testing.T) {
	store, clock := newGateStore(), newGridClock()
	l := newLevels(t, store, levelLimits(t, Limit{Burst: 1e6, Count: 1, Period: time.Minute}, nil), clock, 0)
	key := flushed.Key("a")
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					d, err := l.SpendAll(Request{Key: key, Cost: 1}, Request{Key: synced.Key(fmt.Sprint(w)), Cost: 1})
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
			}
		})
	}
	for range 200 {
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.NoError(t, l.Flush())
		require.GreaterOrEqual(t, store.has(t, key), l.clock.Now()+int64(d.ResetAfter))
	}
	close(done)
	wg.Wait()
	require.NoError(t, l.Close())
}

// After Close the store has what was spent, to the nanosecond, whoever flushed or waited for a commit when it came.
func TestCloseIsExact(t *testing.T) {
	limits := levelLimits(t, Limit{Burst: 1e6, Count: 1, Period: time.Minute}, nil)
	for range 40 {
		store, clock := newGateStore(), newGridClock()
		l := newLevels(t, store, limits, clock, 0)
		var mu sync.Mutex
		total := make(map[Key]int64)
		for _, name := range []Name{flushed, leased, synced} { // so that there is something to refund
			requireSpends(t, l, name.Key("a"), 1e5)
			total[name.Key("a")] = 1e5
		}
		busy := make(chan struct{}, 100)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for n := w; ; n++ {
					cost := int64(1)
					reqs := []Request{{Key: flushed.Key("a"), Cost: cost}, {Key: synced.Key("a"), Cost: cost}, {Key: leased.Key("a"), Cost: cost}}
					if n%3 == 0 {
						reqs = reqs[n/3%3:][:1]
					}
					var err error
					if len(reqs) == 1 && n%2 == 0 && w == 0 {
						cost = -1
						_, err = l.RefundAll(reqs...)
					} else {
						_, err = l.SpendAll(reqs...)
					}
					if errors.Is(err, ErrClosed) {
						return
					}
					require.NoError(t, err)
					mu.Lock()
					for _, r := range reqs {
						total[r.Key] += cost
					}
					mu.Unlock()
					select {
					case busy <- struct{}{}:
					default:
					}
				}
			})
		}
		wg.Go(func() {
			for l.Flush() == nil {
			}
		})
		for range cap(busy) / 2 {
			<-busy
		}
		require.NoError(t, l.Close())
		wg.Wait()
		for key, tokens := range total {
			require.Equal(t, clock.Now().UnixNano()+tokens*int64(time.Minute), store.has(t, key), "%v", key)
		}
	}
}

// A SpendAll of which one bucket waits for a commit has all of them in it, those too that their leases cover: a flush that
// is half done saves no part of it.
func TestFlushDoesNotTearSpendAll(t *testing.T) {
	store := newGateStore()
	l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
	left, right := leased.Key("0"), Key{}
	one, _ := l.directory.shard(left)
	var other *shard
	for i := 1; other == nil; i++ {
		right = leased.Key(fmt.Sprint(i))
		if s, _ := l.directory.shard(right); s != one {
			other = s
		}
	}
	requireSpends(t, l, left, 1)
	requireSpends(t, l, right, 1)

	l.flusher.mu.Lock() // as a flush does
	c := collector{now: l.clock.Now(), all: true}
	one.mu.Lock()
	c.collectLocked(one)
	one.mu.Unlock()
	done := make(chan error)
	go func() {
		_, err := l.SpendAll(Request{Key: left, Cost: 1}, Request{Key: right, Cost: 1})
		done <- err
	}()
	for joined := false; !joined; {
		one.mu.Lock()
		joined = len(one.pending) > 0
		one.mu.Unlock()
	}
	other.mu.Lock()
	c.collectLocked(other)
	other.mu.Unlock()
	require.Equal(t, []Change{{left, l.clock.Now() + int64(time.Hour)}}, c.changes)
	l.flusher.mu.Unlock()
	require.NoError(t, <-done)
	require.NoError(t, l.Close())
	for _, key := range []Key{left, right} {
		require.Equal(t, l.clock.Now()+2*int64(time.Hour), store.has(t, key))
	}
}

// What is in memory is listed, whether the store could save it or not.
func TestBucketsWhileTheStoreFails(t *testing.T) {
	store := newGateStore()
	l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
	requireSpends(t, l, flushed.Key("a"), 5)
	store.fail(errGate)
	require.Error(t, l.Flush())
	var keys []Key
	for b, err := range l.Buckets(flushed) {
		require.NoError(t, err)
		key := b.Key
		keys = append(keys, key)
		require.EqualValues(t, 95, b.Remaining)
	}
	require.Equal(t, []Key{flushed.Key("a")}, keys)
	store.fail(nil)
	require.NoError(t, l.Close())
}

// What is saved, and leaves memory, while the store is read is listed all the same.
func TestBucketsThatAreEvictedMeanwhile(t *testing.T) {
	store := &endStore{Store: NewMemStore()}
	l := newLevels(t, store, levelLimits(t, hundred, nil), newGridClock(), 0)
	requireSpends(t, l, flushed.Key("a"), 5)
	store.atEnd = func() {
		require.NoError(t, l.Flush())
		for range 40 {
			l.directory.evict(l.clock.Now(), true, func() bool { return true })
		}
		require.Zero(t, l.Stats().Resident)
	}
	require.Contains(t, listBuckets(t, l.Buckets(flushed)), flushed.Key("a"))
	require.NoError(t, l.Close())
}

// endStore is a Store in which something happens when it has been read to the end.
type endStore struct {
	Store
	atEnd func()
}

func (s *endStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		for c, err := range s.Store.All(name) {
			if !yield(c, err) {
				return
			}
		}
		if s.atEnd != nil {
			s.atEnd()
		}
	}
}

// A Hold that failed is not in force, nor is it after the next start if it was carried out all the same.
func TestFailedHoldThatWasCarriedOut(t *testing.T) {
	for _, end := range []string{"flush", "reset", "close"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, clock := newGateStore(), newSimClock()
				limits := levelLimits(t, hundred, nil)
				l := newLevels(t, store, limits, clock, 0)
				key := flushed.Key("a")
				store.close()
				go l.Hold(key, clock.Now().Add(time.Hour))
				synctest.Wait()
				store.gate <- func() bool {
					store.MemStore.Save(store.last())
					return false
				}
				store.open()
				synctest.Wait()
				requireSpends(t, l, key, 1)
				switch end {
				case "flush":
					store.fail(errGate)
					require.Error(t, l.flusher.flush(false))
					store.fail(nil)
					require.NoError(t, l.flusher.flush(false))
				case "reset":
					require.NoError(t, l.Reset(key))
				case "close":
					require.NoError(t, l.Close())
				}
				require.Zero(t, store.has(t, holdKey(key)))
				require.NoError(t, l.Close())
			})
		})
	}
}

// A refund gives back, whatever the buckets hold that it only looks at.
func TestRefundAllDeniesNothing(t *testing.T) {
	l := newLevels(t, newGateStore(), levelLimits(t, hundred, nil), newSimClock(), 0)
	reqs := []Request{{Key: flushed.Key("a"), Cost: 10}, {Key: flushed.Key("b"), Cost: 10, Mode: CheckOnly}}
	_, err := l.SpendAll(reqs...)
	require.NoError(t, err)
	requireSpends(t, l, flushed.Key("b"), 95)
	d, err := l.RefundAll(reqs...)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.EqualValues(t, 5, d.Remaining)
	require.Zero(t, spent(t, l, flushed.Key("a")))
	require.EqualValues(t, 95, spent(t, l, flushed.Key("b")))
	require.NoError(t, l.Close())
}

// A bucket that a flush is saving stays in memory until it is known that it was.
func TestSavingIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newGateStore()
		l := newLevels(t, store, levelLimits(t, hundred, nil), newSimClock(), 0)
		key := flushed.Key("a")
		requireSpends(t, l, key, 60)
		store.close()
		go l.flusher.flush(false)
		synctest.Wait()
		for range 40 {
			l.directory.evict(l.clock.Now(), false, func() bool { return true })
		}
		store.gate <- refuse
		store.open()
		synctest.Wait()
		require.EqualValues(t, 60, spent(t, l, key))
		require.NoError(t, l.flusher.flush(false))
		for range 40 {
			l.directory.evict(l.clock.Now(), false, func() bool { return true })
		}
		require.Zero(t, l.Stats().Resident)
		require.EqualValues(t, 60, spent(t, l, key))
		require.NoError(t, l.Close())
	})
}

// What was loaded is not believed when the bucket has come, and gone again, since.
func TestStaleLoad(t *testing.T) {
	l := newLevels(t, newGateStore(), levelLimits(t, hundred, nil), newSimClock(), 0)
	key := flushed.Key("a")
	p := request{change: change{key: key}, cost: 1}
	require.NoError(t, p.locate(l.directory))
	require.NoError(t, l.load(&p))
	require.True(t, p.findLocked())

	requireSpends(t, l, key, 60)
	require.NoError(t, l.Flush())
	for range 40 {
		l.directory.evict(l.clock.Now(), false, func() bool { return true })
	}
	require.False(t, p.findLocked())
	require.NoError(t, l.lockFound(&p))
	require.Equal(t, l.clock.Now()+60*int64(time.Hour), p.saved)
	p.shard.mu.Unlock()
	require.NoError(t, l.Close())
}

// BenchmarkSynced is of so many callers at once, each of whom waits for the disk.
func BenchmarkSynced(b *testing.B) {
	limits := limitsOf(b, testNames, map[Name]Limit{perID: PerHour(1000).WithBurst(1_000_000)})
	keys := benchKeys(10_000)
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			l, err := Open(filepath.Join(b.TempDir(), "stint.db"), limits, &Options{Durability: Synced})
			require.NoError(b, err)
			defer l.Close()
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, err := l.Spend(keys[i%int64(len(keys))], 1); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(l.Stats().Commit.Commits), "decisions/commit")
		})
	}
}
