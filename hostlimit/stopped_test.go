//go:build unix

package hostlimit

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/testlength"
)

// If a guest is stopped in the middle of its calls, as by a debugger, the others
// go on deciding, and the owner buffers at most maxFrame bytes for it. When the
// guest goes on, its calls are answered, or end with ErrNoAnswer if it was
// stopped for too long.
func TestStoppedGuest(t *testing.T) {
	path := filePath(t)
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: whole}})
	owner, polite := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	const callers = 32
	guest := startWorker(t, workerOptions{Path: path, Callers: callers, Limit: whole, ID: "a", Lossy: true}, true)
	signal := func(s syscall.Signal) { require.NoError(t, guest.cmd.Process.Signal(s)) }
	stopped := func() { // waits until it is
		state := syscall.WaitStatus(0)
		_, err := syscall.Wait4(guest.cmd.Process.Pid, &state, syscall.WUNTRACED, nil)
		require.NoError(t, err)
		require.True(t, state.Stopped())
	}
	goesOn := func() {
		for was := guest.acked.Load(); guest.acked.Load() < was+100; {
			<-time.After(time.Millisecond)
		}
	}
	guest.waitFor("guest", 1)
	for turn := range testlength.Of(20, 4) {
		goesOn()
		signal(syscall.SIGSTOP)
		stopped()
		calls := 200
		if testlength.Long && turn == 0 { // for longer than TakeoverTimeout
			calls = 50_000
		}
		for range calls {
			require.True(t, spend(t, polite, perID.Key("b"), 1).Allowed)
		}
		require.NoError(t, owner.Health())
		for _, c := range connsOf(owner.now.Load().server) {
			require.LessOrEqual(t, c.out.Unsent(), 2*wire.MaxFrame)
			c.mu.Lock()
			busy := c.busy
			c.mu.Unlock()
			require.LessOrEqual(t, busy, callers)
		}
		signal(syscall.SIGCONT)
	}
	goesOn()
	require.Empty(t, guest.stop().Err)
}

// byTurns calls prepare with 0 and 1 by turns, and returns the 99th percentile of the
// times that decisions take after each.
func byTurns(t *testing.T, polite *Limiter, turns int, prepare func(way int)) (first, second time.Duration) {
	t.Helper()
	var took [2][]time.Duration
	for turn := range turns {
		way := turn % 2
		prepare(way)
		for range 1000 {
			begun := time.Now()
			spend(t, polite, perID.Key("a"), 1)
			took[way] = append(took[way], time.Since(begun))
		}
	}
	p99 := func(of []time.Duration) time.Duration {
		slices.Sort(of)
		return of[len(of)*99/100]
	}
	return p99(took[0]), p99(took[1])
}

// TestStoppedLatency measures how much stopped guests slow the others down. By
// turns, a polite guest decides beside guests that run, and beside the same
// guests while they are stopped.
func TestStoppedLatency(t *testing.T) {
	if !testlength.Long {
		t.Skip("it measures")
	}
	path, owner, polite := startOwner(t)
	guests := make([]*worker, 8)
	for i := range guests {
		guests[i] = startWorker(t, workerOptions{Path: path, Limit: whole, ID: "a"}, false)
		guests[i].waitFor("guest", 1)
	}
	run, stop := byTurns(t, polite, 80, func(stop int) {
		for _, g := range guests {
			require.NoError(t, g.cmd.Process.Signal([]syscall.Signal{syscall.SIGCONT, syscall.SIGSTOP}[stop]))
		}
	})
	t.Logf("p99 %v beside guests that run, %v beside stopped ones: %.2f times", run, stop, float64(stop)/float64(run))
	for _, g := range append(guests, owner) {
		require.NoError(t, g.cmd.Process.Signal(syscall.SIGCONT))
		require.Empty(t, g.stop().Err)
	}
}
