package redislimit

import (
	"cmp"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// While the server is away, a node decides as a stint.Limiter with a share of the
// limits, if both start from the same state.
func TestShareDecides(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	whole := stint.PerMinute(6)
	l, c := newAway(t, whole, Options{Nodes: 2, Now: clock.now})
	shares, err := stint.NewLimits(testNames.WithLimits(map[stint.Name]stint.Limit{
		perID: whole.DividedBy(2), everyone: whole.DividedBy(2), other: stint.PerHour(7).DividedBy(2), off: stint.Unlimited,
		shut: stint.Blocked,
	}))
	require.NoError(t, err)
	b := bothOf(t, 8, clock, l, shares)
	for _, key := range b.keys[:4] {
		d := l.spend(t, key, 3)
		require.NoError(t, errorOf(b.local.Raise(stint.Request{Key: key}, clock.now().Add(d.ResetAfter))))
	}
	c.fail(errCut)
	require.True(t, l.Allow(off.Key("a")))
	l.check(t, perID.Key("x"), 1)
	steps := testlength.Of(50_000, 2_000)
	may := mayTake
	for i := range steps {
		if i == steps/4 {
			clock.pass(10 * time.Hour) // all seen buckets are full, so a refund can give back everything
			may = mayRefund
		}
		b.decide(may)
	}
}

// Callers go on while the line is cut and mended again and again. The clock
// stands still, so a bucket never admits more than its burst. The server is
// charged exactly what was admitted.
func TestBackUnderLoad(t *testing.T) {
	t.Parallel()
	const ids, burst = 4, 10_000_000
	clock := newTestClock()
	l, c := newAway(t, stint.PerHour(burst), Options{Nodes: 1, Now: clock.now,
		LocalOptions: stint.Options{FlushInterval: time.Millisecond}})
	var done atomic.Bool
	var admitted [ids]atomic.Int64
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for !done.Load() {
				id := rnd.IntN(ids)
				d, err := l.Spend(perID.Key(strconv.Itoa(id)), 1)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					admitted[id].Add(1)
				}
			}
		})
	}
	all := func() (n int64) {
		for i := range admitted {
			n += admitted[i].Load()
		}
		return n
	}
	more := func() {
		was := all()
		require.Eventually(t, func() bool { return all() >= was+200 }, time.Minute, 50*time.Microsecond)
	}
	rounds := 8
	if testlength.Long {
		rounds = 60
	}
	for range rounds {
		more()
		c.fail(errCut)
		require.Eventually(t, l.isAway, time.Minute, 50*time.Microsecond)
		more()
		c.mend()
		l.comesBack(t)
	}
	done.Store(true)
	callers.Wait()
	for i := range admitted {
		n := admitted[i].Load()
		require.LessOrEqual(t, n, int64(burst))
		require.Equal(t, burst-n, l.left(t, perID.Key(strconv.Itoa(i))))
	}
	t.Logf("%d admitted, %d of the calls here, %d buckets charged", all(), l.Stats().AwayShare, l.Stats().Charged)
}

// TestCharge compares charges of the script with arithmetic on whole numbers of
// any size. A charge takes at most what the bucket has.
func TestCharge(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, stint.PerHour(1), nil)
	rnd := rand.New(rand.NewPCG(5, 6))
	const together = 64
	for call := range 50 {
		now := []int64{0, 1_000_000_000, script.EndOfTime, rnd.Int64N(script.EndOfTime), 1_700_000_000_000_000_000}[rnd.IntN(5)]
		keys, set := make([]string, together), []string{"MSET"}
		args := []string{strconv.FormatInt(now, 10), "0"}
		var want []string
		for i := range keys {
			tau := 1 + rnd.Int64N([]int64{10, 1e9, script.MaxTolerance}[rnd.IntN(3)])
			need := 1 + rnd.Int64N(2*tau)
			tat := max(0, []int64{0, now, now + 1, now + tau, now + tau + 1, now + rnd.Int64N(tau)}[rnd.IntN(6)])
			keys[i] = fmt.Sprintf("charge:%d:%d", call, i)
			set = append(set, keys[i], fmt.Sprintf("%d 0", tat))
			r := script.Request{Need: need, Tolerance: tau}
			args = append(args, r.Record(script.Charge, i < together-1))
			next := new(big.Int).Add(big.NewInt(max(now, tat)), big.NewInt(need))
			if full := new(big.Int).Add(big.NewInt(now), big.NewInt(tau)); next.Cmp(full) > 0 {
				next = full
			}
			if next.Cmp(big.NewInt(tat)) < 0 {
				next = big.NewInt(tat)
			}
			want = append(want, next.String())
		}
		answers, stored := l.decided(t, set, keys, args)
		for i := range keys {
			require.Equal(t, want[i], strconv.FormatInt(answers[i].TAT, 10))
			value, _ := stored[i].(string)
			tat, _, _ := strings.Cut(value, " ")
			require.Equal(t, want[i], tat)
		}
	}
}

// If one of the keys is not a bucket's, the debts of the others are still
// charged.
func TestChargeBesideAForeignKey(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, c := newAway(t, stint.PerHour(8), Options{Nodes: 2, Now: clock.now})
	c.fail(errCut)
	for _, id := range []string{"a", "b", "c"} {
		l.spend(t, perID.Key(id), 2)
	}
	s, _ := commonServer(t)
	s.cli("SET", l.opts.keyOf(perID.Key("b")), "no bucket")
	c.mend()
	l.comesBack(t)
	require.Equal(t, []int64{6, 6}, []int64{l.left(t, perID.Key("a")), l.left(t, perID.Key("c"))})
	require.ErrorContains(t, errorOf(l.Spend(perID.Key("b"), 1)), "not a bucket's")
}

// A debt is charged although no call has used its bucket since a flush, and
// although the bucket has left memory since.
func TestDebtFlushed(t *testing.T) {
	t.Parallel()
	const ids, most = 600, 1000
	for _, local := range []string{"", filepath.Join(t.TempDir(), "local.db")} {
		clock := newTestClock()
		l, c := newAway(t, stint.PerHour(100), Options{Nodes: 1, Now: clock.now, Local: local,
			LocalOptions: stint.Options{MaxResident: most, CommitTimeout: time.Minute}})
		c.fail(errCut)
		for i := range ids {
			require.True(t, l.spend(t, perID.Key(strconv.Itoa(i)), 30).Allowed)
			if i == 0 {
				require.NoError(t, l.node.Local.Flush())
			}
		}
		for i := range 2 * most { // other buckets take the memory
			l.check(t, perID.Key("other"+strconv.Itoa(i)), 1)
		}
		c.mend()
		l.comesBack(t)
		for i := range ids {
			require.EqualValues(t, 70, l.left(t, perID.Key(strconv.Itoa(i))), i)
		}
	}
}

// A node keeps a bounded number of buckets in memory. With a file it forgets
// none.
func TestHomeIsBounded(t *testing.T) {
	t.Parallel()
	const ids, most = 6000, 1000
	for _, local := range []string{"", filepath.Join(t.TempDir(), "local.db")} {
		clock := newTestClock()
		l, c := newAway(t, stint.PerHour(4), Options{Nodes: 2, Now: clock.now, Local: local,
			LocalOptions: stint.Options{MaxResident: most, CommitTimeout: time.Minute}})
		for i := range ids {
			l.spend(t, perID.Key(strconv.Itoa(i)), 4)
		}
		c.fail(errCut)
		allowed := 0
		for i := range ids {
			d := l.spend(t, perID.Key(strconv.Itoa(i)), 1)
			if d.Allowed {
				allowed++
			}
		}
		if local != "" {
			require.Zero(t, allowed)
		}
		require.LessOrEqual(t, l.Stats().Local.Resident, int64(1.1*most))
		t.Logf("%d of %d ids are forgotten, %d buckets in memory", allowed, ids, l.Stats().Local.Resident)
	}
}

// failing is a Store that keeps nothing.
type failing struct{ stint.Store }

func (failing) Save([]stint.Change) error { return io.ErrShortWrite }

// If the machine's own file fails, a decision that may be in it is not ErrAway,
// which would say that nothing was spent.
func TestLocalNotDurable(t *testing.T) {
	t.Parallel()
	opts := Options{Nodes: 2, Local: filepath.Join(t.TempDir(), "local.db"), RepeatDenials: -1, Prefix: newPrefix(t)}
	limit := stint.PerHour(8)
	limit.Durability = stint.Leased
	c := newLine()
	l := c.node(t, testLimits(t, limit), opts)
	file := l.node.Local
	local, err := stint.New(failing{stint.NewMemStore()}, file.Limits(), nil)
	require.NoError(t, err)
	l.node.Local = local
	defer func() {
		l.node.Local = file
		require.ErrorIs(t, local.Close(), io.ErrShortWrite)
	}()
	c.fail(errCut)
	_, err = l.Spend(perID.Key("a"), 1)
	require.ErrorIs(t, err, stint.ErrNotDurable)
	require.NotErrorIs(t, err, ErrAway)
}

// failOnce is a Store that fails the first save of each bucket after it was broken, or
// delays it until it is mended.
type failOnce struct {
	stint.Store
	broken atomic.Bool
	mended chan struct{} // nil: saves fail
	failed sync.Map      // buckets
}

func (s *failOnce) Save(changes []stint.Change) (err error) {
	for _, c := range changes {
		if _, again := s.failed.LoadOrStore(c.Key, true); again || !s.broken.Load() {
			continue
		} else if s.mended == nil {
			err = io.ErrShortWrite
		} else {
			<-s.mended
		}
	}
	return cmp.Or(err, s.Store.Save(changes))
}

// If this machine decides a call of two trips and cannot save it, only the local
// Limiter knows whether the tokens are still spent. They are not returned twice.
func TestUndoNotDurable(t *testing.T) {
	t.Parallel()
	for _, durability := range []stint.Durability{stint.Leased, stint.Synced} {
		for name, mended := range map[string]chan struct{}{"failed": nil, "late": make(chan struct{})} {
			t.Run(fmt.Sprint(durability, " ", name), func(t *testing.T) {
				t.Parallel()
				opts, clock := filed(t, 2)
				limit := stint.PerHour(8)
				limit.Durability = durability
				c := newLine()
				l := c.node(t, testLimits(t, limit), opts)
				file, store := l.node.Local, &failOnce{Store: stint.NewMemStore(), mended: mended}
				local := &stint.Options{Now: clock.now, CommitTimeout: time.Minute}
				if mended != nil {
					local.CommitTimeout = 10 * time.Millisecond
				}
				var err error
				l.node.Local, err = stint.New(store, file.Limits(), local)
				require.NoError(t, err)
				require.NoError(t, file.Close())
				c.fail(errCut)
				var reqs []stint.Request
				for i := range script.MaxTogether + 1 {
					reqs = append(reqs, perID.Key(strconv.Itoa(i)).Cost(2))
				}
				_, err = l.SpendAll(reqs...)
				require.True(t, err == nil || mended != nil, err)
				require.NoError(t, l.node.Local.Flush())
				store.failed.Clear()
				store.broken.Store(true)
				require.ErrorIs(t, errorOf(l.SpendAll(reqs...)), stint.ErrNotDurable)
				if mended != nil {
					close(mended)
				}
				require.NoError(t, l.node.Local.Flush())
				for _, r := range reqs {
					d := l.check(t, r.Key, 0)
					require.LessOrEqual(t, d.Remaining, int64(2), "of a share of 4, of which 2 were spent before")
				}
			})
		}
	}
}

// A hold that this machine has seen is in force while the server is away, also
// after a restart, and ends when it has ended at the server.
func TestHoldWhileAway(t *testing.T) {
	t.Parallel()
	opts, clock := filed(t, 2)
	c, limits, key := newLine(), testLimits(t, stint.PerHour(8)), perID.Key("a")
	l := c.node(t, limits, opts)
	elsewhere := newLimiter(t, stint.PerHour(8), func(o *Options) { o.Prefix, o.Now = opts.Prefix, clock.now })
	until := clock.now().Add(time.Hour)
	require.NoError(t, errorOf(elsewhere.Hold(key, until)))
	heldHere := func(want bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			b, err := l.node.Local.Bucket(away.OwnKey(key))
			return err == nil && b.HeldUntil.IsZero() != want
		}, time.Minute, time.Millisecond)
	}
	denied := func(want time.Duration) {
		t.Helper()
		require.Equal(t, want, l.spend(t, key, 1).RetryAfter)
	}
	denied(time.Hour)
	heldHere(true)
	c.fail(errCut)
	for range 2 {
		clock.pass(time.Minute)
		denied(until.Sub(clock.now()))
		b, err := l.Bucket(key)
		require.NoError(t, err)
		require.True(t, until.Equal(b.HeldUntil))
		require.NoError(t, l.Close())
		l = c.node(t, limits, opts)
	}
	c.mend()
	l.comesBack(t)
	require.NoError(t, elsewhere.Reset(key))
	denied(0)
	heldHere(false)
	c.fail(errCut)
	denied(0)
}

// Tokens that came back while the server was away are not charged, and a charge
// empties a bucket at most.
func TestCharges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spent, elsewhere int64
		pass             time.Duration
		left             int64
	}{
		"all of it":                  {4, 0, 0, 4},
		"some has come back":         {4, 0, time.Hour / 4, 5},
		"all has come back":          {4, 0, 2 * time.Hour, 8},
		"others have spent the rest": {4, 8, 0, 0},
		"others have spent some":     {2, 5, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newTestClock()
			l, line := newAway(t, stint.PerHour(8), Options{Nodes: 2, Now: clock.now})
			line.fail(errCut)
			l.spend(t, perID.Key("a"), c.spent)
			if c.elsewhere > 0 {
				other := newLimiter(t, stint.PerHour(8), func(o *Options) { o.Prefix, o.Now = l.opts.Prefix, clock.now })
				require.True(t, other.spend(t, perID.Key("a"), c.elsewhere).Allowed)
			}
			clock.pass(c.pass)
			line.mend()
			l.comesBack(t)
			require.Equal(t, c.left, l.left(t, perID.Key("a")))
			require.LessOrEqual(t, l.check(t, perID.Key("a"), 8).RetryAfter, time.Hour, "not below empty")
			tat, err := l.node.TAT(away.OwnKey(perID.Key("a")))
			require.NoError(t, err)
			require.LessOrEqual(t, tat, clock.ns.Load(), "nothing is owed")
		})
	}
}

// A Name that is new in other limits has a share, too, although no earlier one
// had.
func TestSetLimitsFirstShare(t *testing.T) {
	t.Parallel()
	limits := func(names ...stint.Name) *stint.Limits {
		all := stint.Names{}
		for _, name := range names {
			all[name] = stint.NameSpec{Label: strconv.Itoa(int(name)), Limit: stint.PerHour(8)}
		}
		limits, err := stint.NewLimits(all)
		require.NoError(t, err)
		return limits
	}
	c := newLine()
	l := c.node(t, limits(1), Options{Prefix: newPrefix(t), Nodes: 2, AwayFor: map[stint.Name]Away{1: AwayClosed}})
	require.NoError(t, l.SetLimits(limits(1, 2)))
	c.fail(errCut)
	require.ErrorIs(t, errorOf(l.Spend(stint.Name(1).Key("a"), 1)), ErrAway)
	require.Equal(t, int64(3), l.spend(t, stint.Name(2).Key("a"), 1).Remaining)
}

// A Name that is new in other limits has a share, too.
func TestSetLimitsWhileAway(t *testing.T) {
	t.Parallel()
	l, c := newAway(t, stint.PerHour(8), Options{Nodes: 2})
	c.fail(errCut)
	require.Equal(t, int64(3), l.spend(t, perID.Key("a"), 1).Remaining)
	limits, err := stint.NewLimits(stint.Names{perID: {Label: "perID", Limit: stint.PerHour(4)},
		77: {Label: "new", Limit: stint.PerHour(6)}})
	require.NoError(t, err)
	require.NoError(t, l.SetLimits(limits))
	require.Equal(t, int64(2), l.spend(t, stint.Name(77).Key("a"), 1).Remaining)
	require.Equal(t, int64(1), l.spend(t, perID.Key("b"), 1).Remaining)
}

// A request with UpTo and a small Limit of its own sees, and remembers, how
// empty the bucket is by the configured limit.
func TestUpToWithLimitSees(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	opts := Options{Nodes: 1, Now: clock.now, RepeatDenials: -1, Prefix: newPrefix(t)}
	one, _ := newAway(t, stint.PerHour(10), opts)
	another, cut := newAway(t, stint.PerHour(10), opts)
	key := perID.Key("a")
	one.spend(t, key, 10)
	for _, server := range []string{"there", "away"} {
		for range 2 {
			d := another.spendAll(t, stint.Request{Key: key, Cost: 1, Limit: stint.PerSecond(1), Mode: stint.UpTo})
			require.Zero(t, d.Taken, server)
			require.Greater(t, d.RetryAfter, 59*time.Minute, server)
			clock.pass(time.Second)
		}
		cut.fail(errCut)
	}
	require.False(t, another.spend(t, key, 1).Allowed)
	cut.mend()
	another.comesBack(t)
}
