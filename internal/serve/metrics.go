package serve

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/status"
)

const (
	// metricsTimeout is how long a request for the counts may take.
	metricsTimeout = 10 * time.Second

	// mostHead bounds a request's head.
	mostHead = 16 << 10
)

// serveMetrics serves the counts of all limits over HTTP, without ids, until the
// listener is closed. It does not use net/http, because every command would
// initialise it: stint version takes a fifth longer with it.
func (s *server) serveMetrics(l net.Listener) {
	counts := status.NewCollector(s.limiter, true)
	s.log("serving counts at http://%s/metrics", l.Addr())
	s.accept(l, func(conn net.Conn) {
		go func() {
			defer context.AfterFunc(s.ending, func() { _ = conn.Close() })()
			answer(conn, func(w io.Writer) error { return counts.Report().WritePrometheus(w) })
		}()
	})
}

// answer reads one request, answers it with the counts, and closes the connection.
func answer(conn net.Conn, write func(io.Writer) error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(metricsTimeout))
	in := bufio.NewReader(io.LimitReader(conn, mostHead))
	first, err := in.ReadString('\n')
	for line := first; strings.TrimRight(line, "\r\n") != ""; {
		line, err = in.ReadString('\n')
	}
	if err != nil {
		return
	}
	method, rest, _ := strings.Cut(strings.TrimRight(first, "\r\n"), " ")
	target, version, _ := strings.Cut(rest, " ")
	status, body := "200 OK", bytes.Buffer{}
	switch at, err := url.ParseRequestURI(target); {
	case err != nil || !strings.HasPrefix(version, "HTTP/1."):
		status = "400 Bad Request"
	case at.Path != "/metrics":
		status = "404 Not Found"
	case method != "GET" && method != "HEAD":
		status = "405 Method Not Allowed\r\nAllow: GET, HEAD"
	default:
		_ = write(&body)
	}
	head := fmt.Sprintf("HTTP/1.1 %s\r\nDate: %s\r\nConnection: close\r\nContent-Length: %d\r\n"+
		"Cache-Control: no-store\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\r\n",
		status, time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), body.Len())
	if method == "HEAD" {
		body.Reset()
	}
	_, _ = conn.Write(append([]byte(head), body.Bytes()...)) // the client may have disconnected
}
