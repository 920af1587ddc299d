package main

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/source"
)

// newWaiter returns a waiter for one token of a limit.
func newWaiter(t *testing.T, db, limit string, flags ...string) *waiter {
	t.Helper()
	cmd := &cobra.Command{}
	f := &runFlags{wait: true, cost: 1}
	f.db.register(cmd, "")
	f.limits.register(cmd, true)
	require.NoError(t, cmd.ParseFlags(append(flags, "--db", db, "--limit", limit, "--lock-timeout", "1h")))
	l, limited, err := f.limits.resolve("a")
	require.NoError(t, err)
	require.True(t, limited)
	return &waiter{f: f, id: "a", limit: l}
}

// A command that fails after its token has come back with time gets none: the bucket
// would hold more than its limit.
func TestRefundOfLongRun(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	l := newWaiter(t, db, "1/1h")
	allowed := func(act source.Action) bool {
		to, err := source.Writing.Target(&l.f.db.File, defaultLabel)
		require.NoError(t, err)
		d, err := to.Decide(act, l.limit, l.id, 1)
		require.NoError(t, err)
		require.NoError(t, to.Close())
		return d.Allowed
	}
	for _, ago := range []time.Duration{0, time.Hour} { // since the command took its token
		require.True(t, allowed(l.take))
		l.spent = l.spent.Add(-ago)
		require.NoError(t, l.refund())
		require.Equal(t, ago == 0, allowed(check))
	}
}

// A hundred commands wait for one token a second of one file. Each runs, and none
// starves: the last one runs before twice as many tokens have come back as there
// were commands. Nor do they keep the file busy.
func TestWaitHundred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const commands = 100
		db, begun := filepath.Join(t.TempDir(), "stint.db"), time.Now()
		var all sync.WaitGroup
		waiters := make([]*waiter, commands)
		for i := range waiters {
			waiters[i] = newWaiter(t, db, "1/1s")
			all.Go(func() { assert.NoError(t, waiters[i].wait(t.Context())) })
		}
		all.Wait()
		took, denials := time.Since(begun), 0
		for _, l := range waiters {
			denials += l.denials
		}
		t.Logf("%v, %d denials", took, denials)
		assert.GreaterOrEqual(t, took, (commands-1)*time.Second, "one token a second")
		assert.LessOrEqual(t, took, 2*commands*time.Second)
		assert.LessOrEqual(t, denials, 30*commands)
		file, err := bolt.Open(db, 0, &bolt.Options{ReadOnly: true})
		require.NoError(t, err)
		defer file.Close()
		require.NoError(t, file.View(func(tx *bolt.Tx) error {
			t.Logf("%d transactions", tx.ID())
			assert.LessOrEqual(t, tx.ID(), 5*commands, "a look writes nothing")
			return nil
		}))
	})
}

// At a program whose queue is full, a command does not wait.
func TestWaitQueueFull(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	limit := stint.PerHour(1)
	limit.Queue = 1
	owner := openOrders(t, db, limit)
	server, err := hostlimit.Serve(owner, db, nil)
	require.NoError(t, err)
	defer server.Close()
	require.True(t, owner.Allow(orders.Key("a")))
	_, err = owner.Reserve(stint.Request{Key: orders.Key("a"), Cost: 1})
	require.NoError(t, err)
	limits := write(t, "limits.yml", "Orders: {burst: 1, count: 1, period: 1h, queue: 1}\n")
	r := runArgs(t, "run", "--wait", "--db", db, "--limits", limits, "--name", "Orders", "a", "--", "echo", "ran")
	assert.Equal(t, 75, r.status)
	assert.Empty(t, r.stdout)
	assert.Regexp(t, `^stint: a is denied by 1/1h: its queue of 1 token is full: retry in (1h|59m)\n$`, r.stderr)
}

// endsLate is a context that ends after the tokens are spent.
type endsLate struct{ context.Context }

func (endsLate) Err() error { return context.Canceled }

func TestWaitInterruptedAfterSpend(t *testing.T) {
	l := newWaiter(t, filepath.Join(t.TempDir(), "stint.db"), "1/1h")
	require.ErrorIs(t, l.wait(endsLate{context.Background()}), console.ErrInterrupted)
	require.NoError(t, l.wait(t.Context()), "the token came back")
}

// A hundred commands at a program that has the file ask it once each, and wait in
// its queue.
func TestWaitHundredAtOwner(t *testing.T) {
	const commands = 100
	db := filepath.Join(t.TempDir(), "stint.db")
	owner := openOrders(t, db, stint.PerSecond(1000).WithBurst(1))
	server, err := hostlimit.Serve(owner, db, nil)
	require.NoError(t, err)
	defer server.Close()
	var all sync.WaitGroup
	for range commands {
		l := newWaiter(t, db, "1000/1s burst 1", "--name", "Orders")
		all.Go(func() {
			assert.NoError(t, l.wait(t.Context()))
			assert.Zero(t, l.denials)
		})
	}
	all.Wait()
	counts := owner.Stats().Limits[orders]
	assert.EqualValues(t, commands, counts.Allowed)
	assert.Zero(t, counts.Denied)
}

// A command that waits starts again after its file is removed.
func TestWaitFileRemoved(t *testing.T) {
	skipOnWindows(t, "an open file cannot be removed")
	synctest.Test(t, func(t *testing.T) {
		l := newWaiter(t, filepath.Join(t.TempDir(), "stint.db"), "1/1h")
		require.NoError(t, l.wait(t.Context()))
		time.AfterFunc(time.Minute, func() { assert.NoError(t, os.Remove(l.f.db.Path)) })
		require.NoError(t, l.wait(t.Context()))
		assert.Equal(t, 1, l.denials)
	})
}

// The sleep is never shorter than the denial says, and its random part grows to
// its bound, and no further.
func TestSleepAfter(t *testing.T) {
	for _, wait := range []time.Duration{0, 1, time.Second, time.Hour, math.MaxInt64} {
		for denials := range 100 {
			got := sleepAfter(wait, denials)
			require.GreaterOrEqual(t, got, min(wait, math.MaxInt64-10*time.Second))
			require.LessOrEqual(t, got-min(wait, math.MaxInt64-10*time.Second), 10*time.Second)
			if denials == 0 && wait < math.MaxInt64 {
				require.LessOrEqual(t, got, wait+wait/8, "a command that waits alone")
			}
		}
	}
}
