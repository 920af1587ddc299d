package stint

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

// children are the programs that the test binary can run instead of the tests.
// childVar names the one to run.
var children = map[string]func(args []string){}

const childVar = "STINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if run, ok := children[os.Getenv(childVar)]; ok {
		run(os.Args[1:])
		os.Exit(0)
	}
	debug.SetGCPercent(400) // tests keep little of what they allocate
	os.Exit(m.Run())
}

// fewResident is MaxResident of Limiters that have few buckets. By default a Limiter
// has many more shards, which are most of what New allocates.
const fewResident = 1000

// child is another process that runs one of the children.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// self returns this program, for another process.
func self(ctx context.Context, args ...string) *exec.Cmd {
	return subprocess.Command(ctx, os.Args[0], args...)
}

// startChild runs one of the children in a process of its own.
func startChild(t *testing.T, name string, args ...string) *child {
	t.Helper()
	c := &child{cmd: self(t.Context(), args...)}
	c.cmd.Env = append(os.Environ(), childVar+"="+name)
	c.cmd.Stderr = os.Stderr
	var err error
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.lines = bufio.NewScanner(out)
	require.NoError(t, c.cmd.Start())
	return c
}

// readLine returns the next line that the child prints.
func (c *child) readLine(t *testing.T) string {
	t.Helper()
	require.True(t, c.lines.Scan(), "the child says nothing: %v", c.lines.Err())
	return c.lines.Text()
}

// finish ends the child: it closes the child's standard input and waits.
func (c *child) finish(t *testing.T) {
	t.Helper()
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())
}

// say prints a line that readLine reads.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// simClock is a clock that a test moves. One reading can be held: its caller
// gets the time at which it asked, and gets it late.
type simClock struct {
	ns      atomic.Int64
	skip    atomic.Int64 // readings until the one to hold
	reading atomic.Pointer[heldReading]
}

type heldReading struct{ held, release chan struct{} }

// newSimClock returns a clock at an instant at which half a lease begins, if the
// limit is hundred.
func newSimClock() *simClock {
	c := &simClock{}
	c.ns.Store(1_800_000_000_000_000_000)
	return c
}

func (c *simClock) Now() time.Time {
	now := c.ns.Load()
	if r := c.reading.Load(); r != nil && c.skip.Add(-1) < 0 && c.reading.CompareAndSwap(r, nil) {
		close(r.held)
		<-r.release
	}
	return time.Unix(0, now)
}

// hold holds the reading after skip others.
func (c *simClock) hold(skip int64) (held <-chan struct{}, release func()) {
	r := &heldReading{make(chan struct{}), make(chan struct{})}
	c.skip.Store(skip)
	c.reading.Store(r)
	return r.held, sync.OnceFunc(func() {
		c.reading.Store(nil)
		close(r.release)
	})
}

func (c *simClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

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
	everyone: {Label: "Everyone", ID: Shared, Limit: Unlimited},
	off:      {Label: "Off", Limit: Unlimited},
	single:   {Label: "Single", Limit: Unlimited},
	other:    {Label: "Other", Limit: Unlimited},
}

func limitsOf(t testing.TB, names Names, defaults map[Name]Limit) *Limits {
	t.Helper()
	ls, err := NewLimits(names.WithLimits(defaults))
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
	clock *simClock
	disk  *fakeStore // below the Limiter
}

// rigOn returns a limiter on a store. Unless opts say otherwise, it has a clock
// that the test moves, flushes when the test says so, and waits an hour for a
// commit.
func rigOn(t testing.TB, store Store, limits *Limits, opts Options) *rig {
	t.Helper()
	return rigAt(t, newSimClock(), store, limits, opts)
}

// rigAt is rigOn with a clock that the test has already.
func rigAt(t testing.TB, clock *simClock, store Store, limits *Limits, opts Options) *rig {
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

func (r *rig) decided(d Decision, err error) Decision {
	r.t.Helper()
	require.NoError(r.t, err)
	requireSound(r.t, d)
	return d
}

func (r *rig) spend(key Key, cost int64) Decision { r.t.Helper(); return r.decided(r.Spend(key, cost)) }
func (r *rig) check(key Key, cost int64) Decision { r.t.Helper(); return r.decided(r.Check(key, cost)) }
func (r *rig) refund(key Key, cost int64) Decision {
	r.t.Helper()
	return r.decided(r.Refund(key.Cost(cost).SpentAt(JustSpent)))
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
	place, err := r.Reserve(key.Cost(cost))
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

// spent returns how many tokens are missing from the bucket.
func (r *rig) spendUpTo(key Key, cost int64) Decision {
	r.t.Helper()
	d, err := r.SpendAll(Request{Key: key, Cost: cost, Mode: UpTo})
	require.NoError(r.t, err)
	return d
}

func (r *rig) spent(key Key) int64 {
	r.t.Helper()
	d := r.check(key, 0)
	return d.Limit.Burst - d.Remaining
}

// stored returns the TAT that the store has.
func (r *rig) stored(key Key) int64 { r.t.Helper(); return load(r.t, r.disk.Store, key) }

// tat returns the TAT of a bucket from which so many hours are missing.
func (r *rig) tat(hours int64) int64 { return r.clock.ns.Load() + hours*hour }

// rest waits until all commits have ended.
func (r *rig) rest() {
	r.cache.AwaitCommits()
}

// evictAll removes from memory all that may leave it.
func (r *rig) evictAll() { r.cache.EvictAll() }

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
)

// justSpent returns the requests of a refund of the whole costs.
func justSpent(reqs []Request) []Request {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		reqs[i].Spent = JustSpent
	}
	return reqs
}

func newMemStore() *memStore { return NewMemStore().(*memStore) }
