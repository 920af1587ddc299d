package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
)

// newWaiter returns a waiter for one token of a limit of one an hour.
func newWaiter(t *testing.T, db string) *waiter {
	cmd := &cobra.Command{}
	f := &runFlags{wait: true, cost: 1}
	f.db.register(cmd, "")
	f.limits.register(cmd, true)
	require.NoError(t, cmd.ParseFlags([]string{"--db", db, "--limit", "1/1h"}))
	limit, limited, err := f.limits.resolve("a")
	require.NoError(t, err)
	require.True(t, limited)
	return &waiter{f: f, id: "a", limit: limit}
}

// spendAt has a waiter spend at a time, in a process of its own. Its turn must come
// within that time.
func spendAt(t *testing.T, l *waiter, now time.Time, within time.Duration) (delay time.Duration, err error) {
	t.Helper()
	in, err := l.f.db.view(writing)
	require.NoError(t, err)
	in.now = now
	delay, err = l.spend(in, now.Add(within))
	require.NoError(t, in.Close())
	return delay, err
}

const anyTime = 10_000 * time.Hour

// A command that fails after its token has come back with time gets none: the bucket
// would hold more than its limit.
func TestRefundOfLongRun(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	l := newWaiter(t, db)
	allowed := func(act action) bool {
		in, err := l.f.db.view(writing)
		require.NoError(t, err)
		d, err := l.decide(in, act)
		require.NoError(t, err)
		require.NoError(t, in.Close())
		return d.Allowed
	}
	for _, ago := range []time.Duration{0, time.Hour} { // since the command took its token
		require.True(t, allowed(l.take))
		l.spent = l.spent.Add(-ago)
		require.NoError(t, l.refund())
		require.Equal(t, ago == 0, allowed(check))
	}
}

// A process that is interrupted while another one has the file gives its turn up.
func TestTurnOfInterrupted(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	now := time.Now()
	place := func() (l *waiter, delay time.Duration) {
		l = newWaiter(t, db)
		delay, err := spendAt(t, l, now, 10*time.Hour)
		require.NoError(t, err)
		return l, delay
	}
	place()
	l, want := place()
	other, err := l.f.db.open(writing)
	require.NoError(t, err)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := l.step(ctx, now.Add(10*time.Hour))
		ended <- err
	}()
	interrupt()
	require.NoError(t, other.Close())
	require.ErrorIs(t, <-ended, errInterrupted)
	l, delay := place()
	require.InDelta(t, want, delay, float64(time.Minute))

	other, err = l.f.db.open(writing)
	require.NoError(t, err)
	require.NoError(t, l.leave(), "it leaves its turn to a process that has the file")
	require.NoError(t, other.Close())
}

// Each step opens the file anew, as in a process of its own.
func TestLine(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	now := time.Now()
	place := func(want time.Duration) *waiter {
		t.Helper()
		l := newWaiter(t, db)
		delay, err := spendAt(t, l, now, anyTime)
		require.NoError(t, err)
		assert.InDelta(t, want, delay, float64(time.Minute), "the bucket goes by the real time, not by now")
		return l
	}
	denied := func(l *waiter, within time.Duration) {
		t.Helper()
		_, err := spendAt(t, l, now, within)
		assert.Equal(t, 75, status(err), err)
	}
	place(0)
	for i := range 4 {
		place(time.Duration(i+1) * time.Hour)
		for _, command := range []string{"allow", "check"} { // they take no turn
			r := runArgs(t, command, "--db", db, "--limit", "1/1h", "a")
			require.Equal(t, 1, r.status, r.stderr)
		}
	}
	denied(newWaiter(t, db), 3*time.Hour)
	l := newWaiter(t, db)
	l.f.wait = false
	denied(l, anyTime)
	l = newWaiter(t, db)
	l.limit.Queue = 4 // all four are taken
	denied(l, anyTime)
	last := place(5 * time.Hour)
	require.NoError(t, last.leave())
	last = place(5 * time.Hour)
	place(6 * time.Hour)
	require.NoError(t, last.leave()) // from the middle: later turns stay
	place(7 * time.Hour)

	// The bucket is full again, and a process without a turn still cannot pass.
	require.Equal(t, 0, runArgs(t, "reset", "--db", db, "a").status)
	l = newWaiter(t, db)
	l.f.wait = false
	denied(l, anyTime)
	delay, err := spendAt(t, last, now, anyTime)
	require.NoError(t, err)
	assert.Zero(t, delay)

	// Only a clock that was set back explains such a last turn.
	now = now.Add(-10 * 365 * 24 * time.Hour)
	place((mostInLine + 1) * time.Hour)
}

// With a period of 100 days, an instant a thousand intervals from now is more
// than an int64.
func TestLineSlowLimit(t *testing.T) {
	const day = 24 * time.Hour
	for _, period := range []time.Duration{day, 100 * day, 200 * day, 365 * day, 36500 * day} {
		db := filepath.Join(t.TempDir(), "a.db")
		store, err := dbfile.Open(db, nil, nil)
		require.NoError(t, err)
		_, err = store.Number(defaultLabel + lineSuffix)
		require.NoError(t, err)
		l := &waiter{f: &runFlags{cost: 1}, id: "x", limit: stint.Limit{Burst: 1, Count: 1, Period: period}}
		now := time.Now()
		last, err := l.last(store, now)
		require.NoError(t, err)
		assert.Zero(t, last, period)
		turn := now.Add(period).UnixNano()
		require.NoError(t, l.setLast(store, turn))
		last, err = l.last(store, now)
		require.NoError(t, err)
		assert.Equal(t, turn, last, period)
		assert.Positive(t, last+l.needs(), period)
		require.NoError(t, store.Close())
	}
}

// All tokens of a quota that follows the calendar come when a period begins, so as
// many commands as the quota admits have their turn then.
func TestLineCalendar(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	newCalendarWaiter := func(cost int64) *waiter {
		l := newWaiter(t, db)
		l.limit, l.f.cost = stint.EachYear(3, time.UTC), cost
		return l
	}
	now := time.Now()
	_, next := newCalendarWaiter(1).limit.PeriodAt(now)
	_, afterNext := newCalendarWaiter(1).limit.PeriodAt(next)
	place := func(cost int64, want time.Time) *waiter {
		t.Helper()
		l := newCalendarWaiter(cost)
		delay, err := spendAt(t, l, now, anyTime)
		require.NoError(t, err)
		assert.WithinDuration(t, want, now.Add(delay), time.Minute)
		return l
	}
	place(2, now)
	leaver := place(2, next) // one token is left
	queued := func() string { return runArgs(t, "list", "--db", db).stdout }
	require.Contains(t, queued(), "queue for")
	require.NoError(t, leaver.leave())
	require.NotContains(t, queued(), "queue for")

	place(2, next)
	place(1, now) // what is left of this period would be lost
	place(1, next)
	place(1, afterNext)
	leaver = place(2, afterNext)
	require.NoError(t, leaver.leave())
	place(2, afterNext)
	l := newCalendarWaiter(1)
	l.f.wait = false
	_, err := spendAt(t, l, now, anyTime)
	assert.Equal(t, 75, status(err), err)

	// A hold that ends within a period: all that waits may go then.
	require.Equal(t, 0, runArgs(t, "reset", "--db", db, "a").status)
	require.Equal(t, 0, runArgs(t, "reset", "--db", db, "--name", defaultLabel+lineSuffix, "a").status)
	require.Equal(t, 0, runArgs(t, "hold", "--db", db, "--for", "1h", "a").status)
	place(1, now.Add(time.Hour))
	place(1, now.Add(time.Hour))
}
