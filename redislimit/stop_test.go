package redislimit

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A server that is stopped, which is a connection that says nothing, costs each
// caller its Timeout and an error. When the server goes on, so do decisions.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := startServer(t, "--port", port, "--bind", "127.0.0.1")
	l, err := Open("redis://127.0.0.1:"+port, testLimits(t, stint.PerHour(1_000_000)),
		&Options{Timeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer l.Close()
	require.Eventually(t, func() bool { return l.Allow(perID.Key("a")) }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	var callers sync.WaitGroup
	var longest atomic.Int64
	for range 16 {
		callers.Go(func() {
			for range 10 {
				begin := time.Now()
				_, err := l.Spend(perID.Key("a"), 1)
				if !errors.Is(err, ErrAway) && !errors.Is(err, ErrNoAnswer) {
					t.Error(err)
				}
				took := int64(time.Since(begin))
				for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); old = longest.Load() {
				}
			}
		})
	}
	callers.Wait()
	t.Logf("the longest call took %v", time.Duration(longest.Load()))
	require.Error(t, l.Health())
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { return l.Allow(perID.Key("a")) }, 10*time.Second, time.Millisecond)
	require.NoError(t, l.Health())
}
