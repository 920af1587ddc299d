package redislimit

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy passes connections on to a server. When cut is set, it closes the
// connection in place of the next reply of a script.
type proxy struct {
	url     string
	cut     atomic.Bool
	scripts atomic.Int64 // calls of a script that were passed on

	lag  sync.RWMutex // while it is locked, nothing comes from the server
	lost atomic.Bool  // what comes from the server is dropped
}

func newProxy(t *testing.T, s *server) *proxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{url: "redis://" + ln.Addr().String()}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", strings.TrimPrefix(s.url, "unix://"))
			if err != nil {
				c.Close()
				continue
			}
			scripted := new(atomic.Bool)
			conns.Go(func() { p.pass(to, c, func(b []byte) bool { return p.noteScript(b, scripted) }) })
			conns.Go(func() {
				p.pass(c, to, func([]byte) bool {
					p.lag.RLock()
					defer p.lag.RUnlock()
					return !p.lost.Load() && (!scripted.Load() || !p.cut.CompareAndSwap(true, false))
				})
			})
		}
	})
	t.Cleanup(conns.Wait)
	t.Cleanup(func() { ln.Close() })
	return p
}

func (p *proxy) noteScript(b []byte, scripted *atomic.Bool) bool {
	if n := bytes.Count(b, []byte("\r\nEVAL")); n > 0 {
		scripted.Store(true)
		p.scripts.Add(int64(n))
	}
	return true
}

// pass copies until an end closes, or ok refuses a piece.
func (p *proxy) pass(to io.WriteCloser, from io.ReadCloser, ok func([]byte) bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil || !ok(buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

var ports sync.Map // that freePort has returned, or found in use

// freePort returns a port of the loopback interface on which nothing listens. It
// is below the ports that the system gives to connections, so that no connection
// takes it before the server does.
func freePort(tb testing.TB) string {
	tb.Helper()
	for range 1000 {
		port := strconv.Itoa(10_000 + rand.IntN(22_000))
		if _, given := ports.LoadOrStore(port, true); given {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			require.NoError(tb, ln.Close())
			return port
		}
	}
	require.Fail(tb, "no port is free")
	return ""
}
