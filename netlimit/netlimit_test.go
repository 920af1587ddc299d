package netlimit

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

const perPeer stint.Name = 1

// newLimiter returns a Limiter of connections for each peer.
func newLimiter(t testing.TB, l stint.Limit) *stint.Limiter {
	t.Helper()
	limits, err := stint.NewLimits(stint.Names{perPeer: {Label: "connections", Limit: l}})
	require.NoError(t, err)
	lim, err := stint.Open(filepath.Join(t.TempDir(), "q.db"), limits, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim
}

// fakeConn is a connection of a peer, perhaps one end of a pipe.
type fakeConn struct {
	net.Conn
	peer   net.Addr
	closed atomic.Int64
	open   *atomic.Int64 // nil until it is accepted
	left   sync.Once     // open, before any Close returns
}

func (c *fakeConn) RemoteAddr() net.Addr { return c.peer }

func (c *fakeConn) Close() error {
	c.closed.Add(1)
	c.left.Do(func() {
		if c.open != nil {
			c.open.Add(-1)
		}
	})
	if c.Conn != nil {
		return c.Conn.Close()
	}
	return nil
}

// fakeListener accepts what is sent to it.
type fakeListener chan net.Conn

func (l fakeListener) Accept() (net.Conn, error) {
	conn, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (l fakeListener) Close() error   { close(l); return nil }
func (l fakeListener) Addr() net.Addr { return &net.TCPAddr{} }

func from(addr string) *fakeConn {
	return &fakeConn{peer: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))}
}

// denials returns an observer of denials.
func denials(f func(Peer, rules.Decision)) []rules.Observer[Peer] {
	return []rules.Observer[Peer]{{Decisions: func(p Peer, ds []rules.Decision) {
		if !ds[0].Allowed {
			f(p, ds[0])
		}
	}}}
}

// running returns the peers that have places.
func running(ln net.Listener) []rules.Running {
	return slices.Collect(rules.InFlightOf(ln.(*listener).open))
}

// accepted returns the indices of the connections that pass.
func accepted(t *testing.T, opts *Options, lim stint.Decider, conns ...*fakeConn) (passed []int) {
	inner := make(fakeListener, len(conns))
	for _, c := range conns {
		inner <- c
	}
	inner.Close()
	ln := Listener(inner, lim, opts)
	for {
		conn, err := ln.Accept()
		if err != nil {
			require.ErrorIs(t, err, net.ErrClosed)
			return passed
		}
		for i, c := range conns {
			if l, ok := conn.(*limitedConn); ok && l.Conn == net.Conn(c) || conn == net.Conn(c) {
				passed = append(passed, i)
			}
		}
	}
}

func TestListener(t *testing.T) {
	t.Run("rate", func(t *testing.T) {
		conns := []*fakeConn{from("192.0.2.1:1"), from("192.0.2.1:2"), from("192.0.2.1:3"), from("192.0.2.2:1"),
			from("[2001:db8::1]:1"), from("[2001:db8::2]:1"), from("[2001:db8::3]:1"), from("[::ffff:192.0.2.1]:9"),
			from("[64:ff9b::c000:201]:9"), from("[64:ff9b::c000:203]:9")}
		lim := newLimiter(t, stint.PerHour(2))
		var denied []string
		passed := accepted(t, &Options{Rate: perPeer, Observers: denials(func(p Peer, d rules.Decision) {
			require.Equal(t, p.ID, d.Key.ID)
			denied = append(denied, d.Label+" "+p.ID)
		})}, lim, conns...)
		require.Equal(t, []int{0, 1, 3, 4, 5, 9}, passed)
		require.EqualValues(t, 1, conns[2].closed.Load())
		require.Equal(t, []string{"connections 192.0.2.1", "connections 2001:db8::/64", "connections 192.0.2.1",
			"connections 192.0.2.1"}, denied)
		b, err := lim.Bucket(perPeer.Key("2001:db8::/64"))
		require.NoError(t, err)
		require.Zero(t, b.Remaining, "as in httplimit, the id is the network")
	})
	t.Run("in flight", func(t *testing.T) {
		conns := []*fakeConn{from("192.0.2.1:1"), from("192.0.2.1:2"), from("192.0.2.1:3"), from("192.0.2.2:1")}
		var denied []string
		opts := &Options{InFlight: 2, Observers: denials(func(p Peer, d rules.Decision) {
			require.True(t, d.InFlight.Denied)
			denied = append(denied, d.Label+" "+p.Addr.String())
		})}
		require.Equal(t, []int{0, 1, 3}, accepted(t, opts, nil, conns...))
		require.Equal(t, []string{"connections 192.0.2.1:3"}, denied)
	})
	t.Run("exempt, and not from an address", func(t *testing.T) {
		lim := newLimiter(t, stint.Blocked)
		conns := []*fakeConn{from("10.1.2.3:1"), from("192.0.2.1:1"), {peer: &net.UnixAddr{Name: "@", Net: "unix"}}}
		opts := &Options{Rate: perPeer, InFlight: 1, Exempt: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		require.Equal(t, []int{0, 2}, accepted(t, opts, lim, conns...))
		opts.Exempt[0] = netip.MustParsePrefix("64:ff9b::10.0.0.0/104")
		require.Equal(t, []int{0, 2}, accepted(t, opts, lim, conns...), "the same network, behind NAT64")
		opts.Exempt[0] = netip.MustParsePrefix("::ffff:10.0.0.0/104")
		require.Equal(t, []int{0, 2}, accepted(t, opts, lim, conns...), "the same network, mapped to IPv6")
		require.Equal(t, "::ffff:10.0.0.0/104", opts.Exempt[0].String(), "the program's slice")
	})
	t.Run("errors", func(t *testing.T) {
		lim := newLimiter(t, stint.PerHour(2))
		require.NoError(t, lim.Close())
		var why error
		opts := &Options{Rate: perPeer, Observers: []rules.Observer[Peer]{{Error: func(_ Peer, err error) { why = err }}}}
		require.Empty(t, accepted(t, opts, lim, from("192.0.2.1:1")))
		require.ErrorIs(t, why, stint.ErrClosed)
		opts.FailOpen = true
		require.Len(t, accepted(t, opts, lim, from("192.0.2.1:1")), 1)
		require.Panics(t, func() { Listener(nil, nil, &Options{Rate: perPeer}) })
		require.Panics(t, func() { Listener(nil, (*stint.Limiter)(nil), &Options{Rate: perPeer}) })
		require.Panics(t, func() { Listener(nil, nil, &Options{InFlight: -1}) })
	})
}

// At Leased and Synced the first Read decides, and Accept does not wait.
func TestListenerLater(t *testing.T) {
	l := stint.PerHour(1)
	l.Durability = stint.Synced
	lim := newLimiter(t, l)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := Listener(inner, lim, &Options{Rate: perPeer, InFlight: 5})
	defer ln.Close()
	for i := range 2 {
		client, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		client.Write([]byte("x"))
		conn, err := ln.Accept()
		require.NoError(t, err)
		b, err := lim.Bucket(perPeer.Key("127.0.0.1"))
		require.NoError(t, err)
		require.EqualValues(t, 1-i, b.Remaining, "Accept decides nothing")
		_, err = conn.Read(make([]byte, 1))
		if i == 0 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrDenied)
		_, err = conn.Write([]byte("x"))
		require.ErrorIs(t, err, ErrDenied)
		_, err = client.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, errors.Is(err, io.EOF), "a reset, and no answer")
		for range 2 { // the denied one has no place, and gave it back once
			require.Equal(t, []rules.Running{{Key: connections.Key("127.0.0.1"), Running: 1}}, running(ln))
			conn.Close()
		}
	}
}

// Accept does not wait for the disk either if only the override of a peer is Synced,
// however the limit writes the peer's network.
func TestListenerLaterBuckets(t *testing.T) {
	each := stint.PerHour(5)
	few := stint.Limit{Burst: 2, Count: 2, Period: time.Hour, Durability: stint.Synced}
	plain := stint.NameSpec{Label: "connections", Limit: each}
	addresses := plain
	addresses.IDs = stint.IPAddress
	override := func(key stint.Key) []stint.Override { return []stint.Override{{Key: key, Limit: few}} }
	for name, c := range map[string]struct {
		peer      string
		names     stint.Names
		overrides []stint.Override
		waits     bool
	}{
		"none is synced": {"192.0.2.1:1", stint.Names{perPeer: plain}, nil, false},
		"network":        {"[2001:db8::1]:1", stint.Names{perPeer: plain}, override(perPeer.Key("2001:db8::/64")), true},
		"network as an address": {"[2001:db8::1]:1", stint.Names{perPeer: addresses},
			override(perPeer.Key("2001:db8::")), true},
		"another network": {"[2001:db8::1]:1", stint.Names{perPeer: addresses},
			override(perPeer.Key("2001:db8:0:1::")), false},
		"unlimited": {"192.0.2.1:1", stint.Names{perPeer: {Label: "connections", Limit: stint.Unlimited}}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			limits, err := stint.NewLimits(c.names, c.overrides...)
			require.NoError(t, err)
			lim, err := stint.Open(filepath.Join(t.TempDir(), "q.db"), limits, nil)
			require.NoError(t, err)
			defer lim.Close()
			inner := make(fakeListener, 1)
			inner <- from(c.peer)
			conn, err := Listener(inner, lim, &Options{Rate: perPeer}).Accept()
			require.NoError(t, err)
			_, later := conn.(*limitedConn)
			require.Equal(t, c.waits, later)
			require.Zero(t, lim.Stats().Commit.Saves, "Accept waits for no commit")
		})
	}
}

// The methods of TCP connections still work.
func TestListenerMethods(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := Listener(inner, nil, &Options{InFlight: 5})
	defer ln.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	conn, err := ln.Accept()
	require.NoError(t, err)
	defer conn.Close()
	full := conn.(interface {
		tcpMethods
		io.ReaderFrom
	})
	require.NoError(t, full.SetNoDelay(true))
	raw, err := full.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { require.NotZero(t, fd) }))
	file, err := full.File()
	require.NoError(t, err)
	file.Close()
	_, err = full.ReadFrom(bytes.NewReader([]byte("hello")))
	require.NoError(t, err)
	require.NoError(t, full.CloseWrite())
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// tlsServer returns a server with TLS behind a Listener.
func tlsServer(t testing.TB, lim stint.Decider, opts *Options) (addr string, client *http.Client) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok")
	}))
	srv.Listener = Listener(srv.Listener, lim, opts)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), srv.Client()
}

// A server of TLS and HTTP/2 serves the peers that have tokens.
func TestListenerTLS(t *testing.T) {
	for _, level := range []stint.Durability{stint.Memory, stint.Leased} {
		l := stint.PerHour(1)
		l.Durability = level
		addr, client := tlsServer(t, newLimiter(t, l), &Options{Rate: perPeer, InFlight: 10})
		res, err := client.Get("https://" + addr)
		require.NoError(t, err)
		require.Equal(t, 2, res.ProtoMajor)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "ok", string(body))
		_, err = tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		require.Error(t, err)
	}
}

// However the connections of an HTTP server end, hijacked ones included, never
// more are open than may be, and no place is left.
func TestListenerHTTP(t *testing.T) {
	const most, clients = 8, 32
	inner := make(fakeListener)
	ln := Listener(inner, nil, &Options{InFlight: most})
	var open, served, hijacked atomic.Int64
	var hijackers sync.WaitGroup
	srv := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state != http.StateNew {
				return
			}
			conn.(*limitedConn).Conn.(*fakeConn).open = &open
			if n := open.Add(1); n > most {
				t.Errorf("%d open", n)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served.Add(1)
			switch r.URL.Path {
			case "/panic":
				panic("x")
			case "/abort":
				panic(http.ErrAbortHandler)
			case "/hijack":
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				hijacked.Add(1)
				io.WriteString(conn, "bye")
				for range 3 { // at the same time, and after the server
					hijackers.Go(func() { conn.Close(); conn.Close() })
				}
			}
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(c)))
			for range testlength.Of(100_000, 5_000) / clients {
				client, server := net.Pipe()
				inner <- &fakeConn{Conn: server, peer: from("192.0.2.1:1").peer}
				path := []string{"/", "/panic", "/abort", "/hijack", "/gone"}[rng.IntN(5)]
				if path == "/gone" {
					client.Close()
					continue
				}
				if _, err := io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err == nil {
					io.Copy(io.Discard, client)
				}
				client.Close()
			}
		})
	}
	wg.Wait()
	hijackers.Wait()
	require.NoError(t, srv.Shutdown(t.Context()))
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
	require.NotZero(t, served.Load())
	require.NotZero(t, hijacked.Load())
	require.Empty(t, running(ln))
}
