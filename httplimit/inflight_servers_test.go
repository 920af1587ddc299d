package httplimit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A hundred streams on one connection of HTTP/2: as many run as may, and a
// stream that its client resets gives its place to another.
func TestInFlightHTTP2(t *testing.T) {
	const streams, most = 100, 10
	lim := newMemLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1e6)}, nil)
	entered, left, release := make(chan struct{}, streams), make(chan struct{}, streams), make(chan struct{})
	var conns atomic.Int64
	h := Middleware(lim, nil, Rule{Key: ByHeader(perKey, "X-Key"), InFlight: most})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done(): // the client has reset the stream
			}
		}))
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, 2, r.ProtoMajor)
		if r.Header.Get("X-Key") != "" {
			defer func() { left <- struct{}{} }()
			h.ServeHTTP(w, r)
		}
	}))
	srv.EnableHTTP2 = true
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	srv.StartTLS()
	defer srv.Close()
	client := srv.Client()
	res, err := client.Get(srv.URL) // so that the streams find a connection
	require.NoError(t, err)
	res.Body.Close()

	codes := make(chan int, streams)
	at, err := url.Parse(srv.URL)
	require.NoError(t, err)
	ask := func(ctx context.Context) {
		req := withKey("k").WithContext(ctx)
		req.RequestURI, req.URL = "", at
		res, err := client.Do(req)
		if err != nil {
			codes <- 0
			return
		}
		res.Body.Close()
		codes <- res.StatusCode
	}
	enter := func(ctx context.Context) {
		for range most {
			go ask(ctx)
			<-entered
		}
		requireRunning(t, lim, most)
	}
	end := func(n, code int) {
		for range n {
			require.Equal(t, code, <-codes)
			<-left
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	enter(ctx)
	for range streams - most {
		go ask(t.Context())
	}
	end(streams-most, 429)
	requireRunning(t, lim, most)
	cancel()
	end(most, 0)
	requireRunning(t, lim, 0)
	enter(t.Context())
	close(release)
	end(most, 200)
	requireRunning(t, lim, 0)
	require.EqualValues(t, 1, conns.Load(), "one connection")
}

// A WebSocket through a ReverseProxy has its place until it is closed.
func TestInFlightWebSocket(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1000)})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		for {
			line, err := rw.ReadString('\n')
			if err != nil || line == "bye\n" {
				return
			}
			io.WriteString(conn, line)
		}
	}))
	defer backend.Close()
	to, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := Middleware(lim, nil, Rule{Key: ByHeader(perKey, "X-Key"), InFlight: 1,
		Refund: ServerError})(httputil.NewSingleHostReverseProxy(to))
	left := make(chan struct{}, 100)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { left <- struct{}{} }()
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()

	dial := func() (net.Conn, *bufio.Reader, *http.Response) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(front.URL, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		r := bufio.NewReader(conn)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		return conn, r, res
	}
	for _, end := range []string{"client closes", "backend closes"} {
		conn, r, res := dial()
		require.Equal(t, 101, res.StatusCode)
		io.WriteString(conn, "hello\n")
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "hello\n", line)
		requireRunning(t, lim, 1)

		_, _, res = dial()
		require.Equal(t, 429, res.StatusCode)
		<-left
		requireRunning(t, lim, 1)
		if end == "backend closes" {
			io.WriteString(conn, "bye\n")
			_, err = io.ReadAll(r) // until the proxy says so
			require.NoError(t, err)
		}
		conn.Close()
		<-left
		requireRunning(t, lim, 0)
	}
}
