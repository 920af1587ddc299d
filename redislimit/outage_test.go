package redislimit

import (
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A server is killed or stopped again and again, under 64 callers of a node that
// has a share of the limits. Each call ends, with a decision unless it was one
// of the first to get no answer. No goroutine is left.
func TestOutages(t *testing.T) {
	outages := 6
	if long {
		outages = 200
	}
	s := startServer(t)
	before := runtime.NumGoroutine()
	const timeout = 100 * time.Millisecond
	l, err := Open(s.url, testLimits(t, stint.PerHour(1_000_000_000)), &Options{Timeout: timeout, Nodes: 3,
		Local: filepath.Join(t.TempDir(), "local.db"), LocalOptions: &stint.Options{CommitTimeout: time.Minute}})
	require.NoError(t, err)
	done := make(chan struct{})
	var callers sync.WaitGroup
	var decided, noAnswer atomic.Int64
	took := make([][]time.Duration, 64)
	for i := range took {
		callers.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				begin := time.Now()
				d, err := l.Spend(perID.Key(string(rune('a'+i%8))), 1)
				took[i] = append(took[i], time.Since(begin))
				switch {
				case err == nil && d.Allowed:
					decided.Add(1)
				case errors.Is(err, ErrNoAnswer), errors.Is(err, ErrAway): // calls before it may take too long
					noAnswer.Add(1)
				default:
					t.Error(d, err)
					return
				}
			}
		})
	}
	goesOn := func() {
		was := decided.Load()
		require.Eventually(t, func() bool { return decided.Load() > was+200 }, time.Minute, time.Millisecond)
	}
	starts := 0
	for i := range outages {
		goesOn()
		if i%2 == 0 {
			s.kill()
		} else {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
		}
		require.Eventually(t, l.away.Load, time.Minute, time.Millisecond)
		goesOn()
		require.ErrorIs(t, l.Health(), ErrAway)
		if i%2 == 0 {
			starts++
			s.start()
		} else {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
		}
		l.comesBack(t)
	}
	close(done)
	callers.Wait()
	st := l.Stats()
	require.NoError(t, l.Close())
	all := slices.Concat(took...)
	slices.Sort(all)
	at := func(part float64) time.Duration { return all[int(part*float64(len(all)-1))].Round(time.Microsecond) }
	over := len(all) - func() int { n, _ := slices.BinarySearch(all, timeout+10*time.Millisecond+1); return n }()
	t.Logf("%d calls: median %v, 99 %% %v, 99.9 %% %v, 99.99 %% %v, longest %v; %d took more than %v", len(all), at(0.5),
		at(0.99), at(0.999), at(0.9999), at(1), over, timeout+10*time.Millisecond)
	t.Logf("%d decided, %d of them here, %d without an answer; away %d times, for %v", decided.Load(), st.Share,
		noAnswer.Load(), st.Aways, st.Away)
	require.Less(t, at(1), 20*time.Second, "a call hangs")
	require.GreaterOrEqual(t, st.Aways, int64(outages))
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+starts }, time.Minute,
		10*time.Millisecond, "goroutines are left") // startServer has one for each start
}
