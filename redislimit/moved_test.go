package redislimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// service is an address that leads to a server, and may lead to another one later.
// Connections that are there stay where they are.
type service struct {
	url    string
	target atomic.Pointer[server]
	dialed atomic.Int64
}

func newService(t *testing.T, s *server) *service {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	v := &service{url: "redis://" + ln.Addr().String()}
	v.target.Store(s)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			v.dialed.Add(1)
			to, err := net.Dial("unix", strings.TrimPrefix(v.target.Load().url, "unix://"))
			if err != nil {
				c.Close()
				continue
			}
			conns.Go(func() { io.Copy(to, c); to.Close() })
			conns.Go(func() { io.Copy(c, to); c.Close() })
		}
	})
	t.Cleanup(conns.Wait)
	t.Cleanup(func() { ln.Close() })
	return v
}

// pair starts a primary and its replica, and returns their ports, too.
func pair(t *testing.T) (primary, replica *server, ports [2]string) {
	t.Helper()
	ports = [2]string{freePort(t), freePort(t)}
	primary = startServer(t, "--port", ports[0], "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
	replica = startServer(t, "--port", ports[1], "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0",
		"--replicaof", "127.0.0.1 "+ports[0])
	eventually(t, "the replica is ready", func() bool { return node{server: replica}.follows() })
	return primary, replica, ports
}

// If an address leads to another primary, and the one before keeps its connections
// and says that it is none any more, the Limiter follows the address.
func TestPrimaryMoves(t *testing.T) {
	t.Parallel()
	for _, level := range []stint.Durability{stint.Flushed, stint.Leased, stint.Synced} {
		for _, reply := range []string{"READONLY", "MASTERDOWN"} {
			t.Run(fmt.Sprint(level, " ", reply), func(t *testing.T) {
				t.Parallel()
				primary, replica, ports := pair(t)
				v := newService(t, primary)
				var mu sync.Mutex
				var said []string
				l := openAt(t, v.url, testLimits(t, stint.PerHour(1000)), Options{Durability: level, RepeatDenials: -1, Timeout: 2 * time.Second,
					OnEvent: func(e Event) {
						mu.Lock()
						defer mu.Unlock()
						if e.Err != nil {
							said = append(said, e.Err.Error())
						}
					}})
				key := perID.Key("a")
				for range 10 {
					require.True(t, l.spend(t, key, 1).Allowed)
				}
				there := l.left(t, key)
				replica.cli("REPLICAOF", "NO", "ONE")
				v.target.Store(replica)
				if reply == "READONLY" {
					primary.cli("REPLICAOF", "127.0.0.1", ports[1])
				} else { // its own primary is away
					primary.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
					primary.cli("REPLICAOF", "127.0.0.1", freePort(t))
				}
				eventually(t, "the new primary decides", func() bool {
					_, err := l.Spend(other.Key("b"), 1)
					l.Spend(key, 200)                                        // no lease has so many
					return err == nil || errors.Is(err, stint.ErrNotDurable) // it has no replica
				})
				eventually(t, "it has the buckets of the one before", func() bool {
					b, err := l.Bucket(key)
					return err == nil && b.Remaining <= there
				})
				require.NotNil(t, replica.cli("GET", l.opts.keyOf(other.Key("b"))))
				mu.Lock()
				defer mu.Unlock()
				require.NotEmpty(t, said)
				require.Contains(t, said[0], reply)
			})
		}
	}
}

// A server that loads its data, as a replica does when it has lost touch, is left, too.
func TestLoadingServerIsLeft(t *testing.T) {
	t.Parallel()
	slow := startServer(t, "--rdbcompression", "no", "--key-load-delay", "10000", // a minute for all
		"--loading-process-events-interval-bytes", "1024")
	v := newService(t, slow)
	l := openAt(t, v.url, testLimits(t, stint.PerHour(1000)), Options{})
	require.True(t, l.spend(t, perID.Key("a"), 1).Allowed)
	slow.cli("DEBUG", "POPULATE", "6000", "key", "2000")
	c, err := net.Dial("unix", strings.TrimPrefix(slow.url, "unix://"))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("DEBUG RELOAD\r\n"))
	require.NoError(t, err)
	v.target.Store(startServer(t))
	eventually(t, "it loads", func() bool {
		_, err := l.Spend(other.Key("b"), 1) // on a new connection it passes, at the new server
		return err != nil
	})
	require.ErrorContains(t, l.Health(), "LOADING")
	l.comesBack(t)
	require.EqualValues(t, 999, l.spend(t, perID.Key("a"), 1).Remaining)
}

// A call that waits for replicas when its primary becomes one itself is not durable.
// The next one goes where the address leads.
func TestUnblockedPrimaryIsLeft(t *testing.T) {
	t.Parallel()
	primary, replica, ports := pair(t)
	v := newService(t, primary)
	limits, err := stint.NewLimits(testNames.WithLimits(map[stint.Name]stint.Limit{
		perID: {Burst: 10, Count: 1, Period: time.Hour, Durability: stint.Synced}, other: stint.PerHour(10),
		everyone: stint.PerHour(10), off: stint.Unlimited, shut: stint.Blocked,
	}))
	require.NoError(t, err)
	l := openAt(t, v.url, limits, Options{Replicas: 2, Timeout: time.Minute})
	done := make(chan error)
	go func() { done <- errorOf(l.Spend(perID.Key("a"), 1)) }()
	eventually(t, "the call waits for replicas", func() bool {
		return strings.Contains(fmt.Sprint(primary.cli("INFO", "clients")), "blocked_clients:1")
	})
	v.target.Store(replica)
	replica.cli("REPLICAOF", "NO", "ONE")
	primary.cli("REPLICAOF", "127.0.0.1", ports[1])
	require.ErrorIs(t, <-done, stint.ErrNotDurable)
	require.True(t, l.spend(t, other.Key("a"), 1).Allowed, "no call has had to fail at the one before")
}

// A server that is full or whose disk fails is still the primary: the connection to it
// stays, and each probe uses it.
func TestFailingPrimaryIsKept(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	v := newService(t, s)
	l := openAt(t, v.url, testLimits(t, stint.PerHour(1000)), Options{})
	for range 100 { // the library dials a connection when it first picks it, at random
		require.True(t, l.spend(t, perID.Key("a"), 1).Allowed)
	}
	s.cli("CONFIG", "SET", "min-replicas-to-write", "1") // NOREPLICAS
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), ErrAway)
	trips, dialed := 0, v.dialed.Load()
	eventually(t, "several probes", func() bool {
		trips++
		return trips > 50
	})
	require.True(t, l.isAway())
	require.Equal(t, dialed, v.dialed.Load())
	s.cli("CONFIG", "SET", "min-replicas-to-write", "0")
	l.comesBack(t)
	require.Equal(t, dialed, v.dialed.Load())
}
