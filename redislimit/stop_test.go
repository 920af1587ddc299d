package redislimit

import (
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// A stopped server keeps its connections, and does not answer. Each call waits
// for its Timeout and fails, until a probe has had no answer either. Then no call
// asks. When the server goes on, so do decisions.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := startServer(t, "--port", port, "--bind", "127.0.0.1")
	c := &counter{rueidisClient: clientAt(t, "redis://127.0.0.1:"+port, 200*time.Millisecond)}
	l := newOn(t, c, testLimits(t, stint.PerHour(1_000_000)), Options{Timeout: 200 * time.Millisecond})
	require.Eventually(t, func() bool { return l.Allow(perID.Key("a")) }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	var callers sync.WaitGroup
	var longest atomic.Int64
	for range 16 {
		callers.Go(func() {
			for range 10 {
				begin := time.Now()
				_, err := l.Spend(perID.Key("a"), 1)
				if !errors.Is(err, ErrAway) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrNoAnswer) {
					t.Error(err)
				}
				took := int64(time.Since(begin))
				for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); old = longest.Load() {
				}
			}
		})
	}
	callers.Wait()
	require.True(t, l.isAway())
	before := c.calls.Load()
	for range 100 {
		require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), ErrAway)
	}
	require.Equal(t, before, c.calls.Load())
	t.Logf("the longest call took %v", time.Duration(longest.Load()))
	require.Error(t, l.Health())
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { return l.Allow(perID.Key("a")) }, 10*time.Second, time.Millisecond)
	require.NoError(t, l.Health())
}

// A server is killed and started again, under 64 callers. Each call ends with a
// decision or an error, and no goroutine is left.
func TestKilledServer(t *testing.T) {
	s := startServer(t)
	before := runtime.NumGoroutine()
	kills := testlength.Of(40, 2)
	l := openAt(t, s.url, testLimits(t, stint.PerHour(1_000_000)), Options{Timeout: time.Second})
	var done atomic.Bool
	var callers sync.WaitGroup
	var longest, decided, failed atomic.Int64
	for range 64 {
		callers.Go(func() {
			for !done.Load() {
				begin := time.Now()
				_, err := l.Spend(perID.Key("a"), 1)
				took := int64(time.Since(begin))
				for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); old = longest.Load() {
				}
				switch {
				case err == nil:
					decided.Add(1)
				case errors.Is(err, ErrAway), errors.Is(err, ErrBusy), errors.Is(err, ErrNoAnswer):
					failed.Add(1)
					runtime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for range kills {
		s.kill()
		require.Eventually(t, l.isAway, 20*time.Second, time.Millisecond)
		require.ErrorIs(t, l.Health(), ErrAway)
		s.start()
		was := decided.Load()
		require.Eventually(t, func() bool { return decided.Load() > was+100 }, 20*time.Second, time.Millisecond)
	}
	done.Store(true)
	callers.Wait()
	require.NoError(t, l.Close())
	t.Logf("%d decided, %d failed, the longest call took %v", decided.Load(), failed.Load(), time.Duration(longest.Load()))
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+kills }, 20*time.Second,
		10*time.Millisecond, "goroutines are left") // startServer has one for each start
}

// If the client is closed before it has a connection, nothing was sent.
func TestClosedWhileConnecting(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	client := clientAt(t, "redis://"+ln.Addr().String(), 20*time.Second)
	failed := make(chan error, 1)
	go func() {
		_, err := client.Do(t.Context(), "PING")
		failed <- script.Explain(err)
	}()
	conn, err := ln.Accept()
	require.NoError(t, err)
	client.Close()
	to, err := net.Dial("unix", strings.TrimPrefix(s.url, "unix://"))
	require.NoError(t, err)
	var ends sync.WaitGroup
	ends.Go(func() { io.Copy(to, conn); to.Close() })
	ends.Go(func() { io.Copy(conn, to); conn.Close() })
	require.ErrorIs(t, <-failed, ErrAway)
	ends.Wait()
}
