package stint

import (
	"cmp"
	"errors"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/table"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // tests keep little of what they allocate
	os.Exit(m.Run())
}

// fewResident is MaxResident of Limiters that have few buckets. By default a
// Limiter has many more shards, which are most of what New allocates.
const fewResident = 1000

// The Names of most tests.
const (
	perID    Name = 1 // 5 a minute: a token in 12 s
	everyone Name = 2 // 3 an hour, for all
	off      Name = 3 // unlimited
	single   Name = 4 // one at a time, one a second
	other    Name = 5 // 100 a minute, at the level Memory
	nobody   Name = 99
)

var testNames = Names{
	perID:    {Label: "PerID", Limit: Unlimited},
	everyone: {Label: "Everyone", IDs: Single, Limit: Unlimited},
	off:      {Label: "Off", Limit: Unlimited},
	single:   {Label: "Single", Limit: Unlimited},
	other:    {Label: "Other", Limit: Unlimited},
}

func limitsOf(t testing.TB, names Names, defaults map[Name]Limit, overrides ...Override) *Limits {
	t.Helper()
	ls, err := NewLimits(names.WithLimits(defaults), overrides...)
	require.NoError(t, err)
	return ls
}

func testLimits(t testing.TB) *Limits {
	inMemory := PerMinute(100)
	inMemory.Durability = Memory
	return limitsOf(t, testNames, map[Name]Limit{
		perID: PerMinute(5), everyone: PerHour(3), single: PerSecond(1), other: inMemory,
	})
}

// Names with a level each.
const (
	inMemory Name = iota + 1
	flushed
	leased
	synced
)

var levelNames = Names{
	inMemory: {Label: "memory"}, flushed: {Label: "flushed"}, leased: {Label: "leased"}, synced: {Label: "synced"},
}

// levelLimits returns one limit at each level.
func levelLimits(t testing.TB, limit Limit) *Limits {
	defaults := make(map[Name]Limit)
	for name := range levelNames {
		limit.Durability = Durability(name)
		defaults[name] = limit
	}
	return limitsOf(t, levelNames, defaults)
}

// With the limit hundred, a lease is 12.5 tokens. With the limit ten, a token
// returns in a second.
var (
	hundred = Limit{Burst: 100, Count: 1, Period: time.Hour}
	ten     = Limit{Burst: 10, Count: 1, Period: time.Second}
)

const hour = int64(time.Hour)

// rig is a limiter in a test.
type rig struct {
	*Limiter
	t     testing.TB
	clock *modeltest.Clock
	disk  *fakeStore // below the Limiter
}

// rigOn returns a limiter on a store. Unless opts say otherwise, it has a clock
// that the test moves, flushes when the test says so, and waits an hour for a
// commit.
func rigOn(t testing.TB, store Store, limits *Limits, opts Options) *rig {
	t.Helper()
	return rigAt(t, modeltest.NewClock(), store, limits, opts)
}

// rigAt is rigOn with a clock that the test has already.
func rigAt(t testing.TB, clock *modeltest.Clock, store Store, limits *Limits, opts Options) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock, disk: &fakeStore{Store: store}}
	if opts.Now == nil {
		opts.Now = clock.Now
	}
	if opts.FlushInterval == 0 {
		opts.FlushInterval = 1000 * time.Hour
	}
	if opts.CommitTimeout == 0 {
		opts.CommitTimeout = time.Hour
	}
	var err error
	r.Limiter, err = New(r.disk, limits, &opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		r.disk.open()
		r.Limiter.Close()
	})
	return r
}

func newRig(t testing.TB) *rig { return rigOn(t, NewMemStore(), testLimits(t), Options{}) }

// newLevels returns a rig of one limit at each level.
func newLevels(t testing.TB, limit Limit) *rig {
	return rigOn(t, NewMemStore(), levelLimits(t, limit), Options{})
}

// next returns another limiter on what the store has: as after a crash, or, if
// the rig was closed, as after a restart.
func (r *rig) next(limits *Limits) *rig {
	r.t.Helper()
	return rigAt(r.t, r.clock, r.disk.Store, limits, r.opts)
}

// decided returns a decision without its instant, which it checks.
func (r *rig) decided(d Decision, err error) Decision {
	r.t.Helper()
	require.NoError(r.t, err)
	requireSound(r.t, d)
	require.False(r.t, d.At().After(r.Now()), "%+v", d)
	d.at = 0
	return d
}

// timeless takes the instants out of decisions.
func timeless(ds []Decision) []Decision {
	for i := range ds {
		ds[i].at = 0
	}
	return ds
}

func (r *rig) spend(key Key, cost int64) Decision { r.t.Helper(); return r.decided(r.Spend(key, cost)) }
func (r *rig) check(key Key, cost int64) Decision { r.t.Helper(); return r.decided(r.Check(key, cost)) }
func (r *rig) refund(key Key, cost int64) Decision {
	r.t.Helper()
	return r.decided(r.Refund(key.Cost(cost).SpentAt(inFuture)))
}
func (r *rig) spendAll(reqs ...Request) Decision { r.t.Helper(); return r.decided(r.SpendAll(reqs...)) }

// take spends what must be allowed.
func (r *rig) take(key Key, cost int64) {
	r.t.Helper()
	require.True(r.t, r.spend(key, cost).Allowed)
}

func (r *rig) hold(key Key, d time.Duration) {
	r.t.Helper()
	require.NoError(r.t, errorOf(r.Hold(key, r.Now().Add(d))))
}

func (r *rig) reserve(key Key, cost int64) Reservation {
	r.t.Helper()
	return r.place(key.Cost(cost))
}

func (r *rig) place(req Request) Reservation {
	r.t.Helper()
	place, err := r.Reserve(req)
	require.NoError(r.t, err)
	return place
}

func (r *rig) bucket(key Key) Bucket {
	r.t.Helper()
	b, err := r.Bucket(key)
	require.NoError(r.t, err)
	return b
}

// left returns how many tokens the bucket has, held or not.
func (r *rig) left(key Key) int64 { r.t.Helper(); return r.check(key, 0).Remaining }

func (r *rig) spendUpTo(key Key, cost int64) Decision {
	r.t.Helper()
	return r.spendAll(Request{Key: key, Cost: cost, Mode: UpTo})
}

// spent returns how many tokens are missing from the bucket.
func (r *rig) spent(key Key) int64 {
	r.t.Helper()
	d := r.check(key, 0)
	return d.Limit.Burst - d.Remaining
}

// stored returns the TAT that the store has.
func (r *rig) stored(key Key) int64 { r.t.Helper(); return load(r.t, r.disk.Store, key) }

// tat returns the TAT of a bucket from which so many hours are missing.
func (r *rig) tat(hours int64) int64 { return r.clock.Nanos() + hours*hour }

// rest waits in a bubble until all commits have ended, also those that no caller
// waits for.
func (r *rig) rest() { pass(2 * renewalPause) }

// tick lets the flush interval of a rig pass in a bubble.
func (r *rig) tick() { pass(r.opts.FlushInterval) }

// evictAll removes from memory all buckets that may leave it while no save is under
// way.
func (r *rig) evictAll() {
	r.cache.Each(func(s *cache.Shard) {
		s.Each(func(i uint32, b table.Slot) table.Outcome {
			known := b.TAT() > r.Limiter.clock.Now() || b.Has(table.Stored)
			g := s.GateLocked(cache.Key{Name: b.Name(), ID: string(b.ID())})
			if b.Has(table.Pending) || known && b.Has(table.Dirty) || g != nil && g.Queue.Len() > 0 {
				return table.Done
			}
			s.RemoveLocked(i)
			return table.Removed
		})
	})
}

// listed returns the buckets that Buckets yields, each of them once.
func (r *rig) listed(name Name) map[Key]Bucket {
	r.t.Helper()
	all := make(map[Key]Bucket)
	for b, err := range r.Buckets(name) {
		require.NoError(r.t, err)
		require.NotContains(r.t, all, b.Key)
		all[b.Key] = b
	}
	return all
}

// pass lets time pass in a bubble, and waits until all goroutines block.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// begin calls f in a goroutine of the caller's bubble, and returns when all of
// them block. The channel gets what f returns.
func begin(f func() error) chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	synctest.Wait()
	return ended
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

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }

// holdKey is the key under which a store has the hold of a bucket.
func holdKey(key Key) Key { return Key{Unknown, key.String()} }

// What package cache has of the same names.
const (
	maxSave      = 1 << 17
	sweepRounds  = 64
	renewalPause = 5 * time.Millisecond
	quietPause   = 5 * time.Millisecond
)

// inFuture is the Spent of a refund of a whole cost: it counts as the present.
var inFuture = time.Unix(0, math.MaxInt64)

// justSpent returns the requests of a refund of the whole costs.
func justSpent(reqs []Request) []Request {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		reqs[i].Spent = inFuture
	}
	return reqs
}

func newMemStore() *memStore { return NewMemStore().(*memStore) }

func storePath(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") }

// openBolt opens a file, which is closed when the test ends. Nothing is synced.
func openBolt(t testing.TB, path string, names Names) *boltStore {
	t.Helper()
	files := boltfile.OS()
	files.SyncFile = func(*os.File) error { return nil }
	files.SyncDir, files.NoSync = func(string) error { return nil }, true
	store, err := boltstore.Open(path, names.labels(), boltstore.Options{MaxResident: 1 << 20, FS: files})
	require.NoError(t, err)
	s := &boltStore{store: store}
	t.Cleanup(func() { s.Close() })
	return s
}

// copyOf copies a file, as a killed process would leave it.
func copyOf(t testing.TB, path string) string {
	t.Helper()
	other := storePath(t)
	require.NoError(t, filecopy.Copy(path, other))
	return other
}

// save saves, and fails the test if that fails.
func save(t testing.TB, s Store, changes ...Change) {
	t.Helper()
	require.NoError(t, s.Save(changes))
}

// load returns what the store has.
func load(t testing.TB, s Store, key Key) int64 {
	t.Helper()
	tat, err := s.Load(key)
	require.NoError(t, err)
	return tat
}

// collect returns all that the store has under a name.
func collect(t testing.TB, seq iter.Seq2[Change, error]) (all []Change) {
	t.Helper()
	for c, err := range seq {
		require.NoError(t, err)
		all = append(all, c)
	}
	return all
}

var errDisk = errors.New("the disk is on fire")

// fakeStore is a FileStore that calls a hook at each operation of a Store. The hook
// may fail the operation, and saves can be held up.
type fakeStore struct {
	Store
	health error
	most   int // buckets of a save; 0 means no limit

	mu    sync.Mutex
	hook  func(op storeOp) error
	gate  chan error // verdicts on saves: nil carries one out
	saves int
	last  []Change
}

// storeOp is an operation of a fakeStore. Its hook is called before it is
// carried out, and again when it is done.
type storeOp struct {
	name string // "load", "save", "all", "declare", "maintain", "snapshot" or "close"
	key  Key    // of a load
	done bool
}

// on sets the hook.
func (s *fakeStore) on(hook func(op storeOp) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// after calls f when the next of the named operations is done.
func (s *fakeStore) after(name string, f func()) {
	s.on(func(op storeOp) error {
		if op.name == name && op.done {
			s.on(nil)
			f()
		}
		return nil
	})
}

// fail makes the named operations return err, or loads, saves and listings if
// none is named. A nil err ends that.
func (s *fakeStore) fail(err error, ops ...string) {
	if ops == nil {
		ops = []string{"load", "save", "all"}
	}
	s.on(func(op storeOp) error {
		if op.done || !slices.Contains(ops, op.name) {
			return nil
		}
		return err
	})
}

// shut holds up saves until open, or until a verdict comes through the gate:
// an error keeps a save from being carried out.
func (s *fakeStore) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan error)
}

// open lets the save pass that waits, and all later ones.
func (s *fakeStore) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
}

// count returns how many saves there were.
func (s *fakeStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saves
}

// latest returns what the last save was given.
func (s *fakeStore) latest() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *fakeStore) do(op storeOp, carryOut func() error) error {
	s.mu.Lock()
	hook := s.hook
	s.mu.Unlock()
	if hook == nil {
		return carryOut()
	}
	if err := hook(op); err != nil {
		return err
	}
	if err := carryOut(); err != nil {
		return err
	}
	op.done = true
	return hook(op)
}

func (s *fakeStore) Room() int                     { return cmp.Or(s.most, maxSave) }
func (s *fakeStore) InPlace() error                { return s.Store.(FileStore).InPlace() }
func (s *fakeStore) LoadClock() ([]byte, error)    { return s.Store.(FileStore).LoadClock() }
func (s *fakeStore) SaveClock(record []byte) error { return s.Store.(FileStore).SaveClock(record) }

func (s *fakeStore) Save(changes []Change) error {
	if len(changes) == 0 { // not counted: it looks whether the file is in place
		return nil
	}
	s.mu.Lock()
	s.saves++
	s.last = slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Key == Key{} })
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		if err := <-gate; err != nil {
			return err
		}
	}
	defer slices.Reverse(changes) // a Store may reorder them
	return s.do(storeOp{name: "save"}, func() error { return s.Store.Save(changes) })
}

func (s *fakeStore) Load(key Key) (tat int64, err error) {
	err = s.do(storeOp{name: "load", key: key}, func() (err error) {
		tat, err = s.Store.Load(key)
		return err
	})
	if err != nil {
		return 0, err
	}
	return tat, nil
}

func (s *fakeStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		enough := false
		err := s.do(storeOp{name: "all"}, func() error {
			for c, err := range s.Store.All(name) {
				if err != nil {
					return err
				}
				if enough = !yield(c, nil); enough {
					break
				}
			}
			return nil
		})
		if err != nil && !enough {
			yield(Change{}, err)
		}
	}
}

func (s *fakeStore) Declare(names Names) error {
	return s.do(storeOp{name: "declare"}, func() error { return s.Store.Declare(names) })
}

func (s *fakeStore) Maintain(now time.Time) error {
	return s.do(storeOp{name: "maintain"}, func() error { return s.Store.Maintain(now) })
}

func (s *fakeStore) Snapshot(w io.Writer) (n int64, err error) {
	err = s.do(storeOp{name: "snapshot"}, func() (err error) {
		n, err = s.Store.Snapshot(w)
		return err
	})
	return n, err
}

func (s *fakeStore) Health() error { return errors.Join(s.health, s.Store.Health()) }

func (s *fakeStore) Close() error {
	return s.do(storeOp{name: "close"}, s.Store.Close)
}

// admitted spends n times one token, and returns how many were admitted.
func (r *rig) admitted(key Key, n int) (admitted int) {
	r.t.Helper()
	for range n {
		if r.Allow(key) {
			admitted++
		}
	}
	return admitted
}
