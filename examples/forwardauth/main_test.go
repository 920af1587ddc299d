package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) { subprocess.Main(m, main) }

// start runs the program, and returns its URL.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, url string) {
	t.Helper()
	p := subprocess.Begin(t, subprocess.Self(t.Context(), append([]string{"-listen", "127.0.0.1:0"}, args...)...))
	t.Cleanup(func() { // a program that outlives the tests holds their standard error
		p.Cmd.Process.Kill()
		p.Cmd.Wait()
	})
	return p.Cmd, "http://" + strings.TrimPrefix(p.ReadLine(t), "listening on ")
}

// ask sends a request for a client.
func ask(t *testing.T, url, client string) (status int, retryAfter string) {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	require.NoError(t, err)
	r.Header.Set("X-Forwarded-For", client)
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	res.Body.Close()
	return res.StatusCode, res.Header.Get("Retry-After")
}

// Traefik and Caddy forward an answer of 2xx, and send any other to the client.
func TestAnswers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.db")
	cmd, url := start(t, "-file", file, "-limit", "2/1h")
	for _, want := range []int{204, 204, 429} {
		status, _ := ask(t, url, "192.0.2.1")
		require.Equal(t, want, status)
	}
	status, _ := ask(t, url, "192.0.2.2")
	require.Equal(t, 204, status)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	_, url = start(t, "-file", file, "-limit", "2/1h")
	status, retryAfter := ask(t, url, "192.0.2.1")
	require.Equal(t, 429, status)
	require.Regexp(t, `^1[78]\d\d$`, retryAfter) // half an hour
}

// asks runs a proxy that asks before it forwards a request, with the files
// beside this one after replacements, and returns two addresses at which it
// listens, the second for HTTP/2. Arguments and replacements may name these,
// and the directory as DIR.
func asks(t *testing.T, command []string, files []string, replacements map[string]string) (address, http2 string) {
	t.Helper()
	program, err := exec.LookPath(command[0])
	if err != nil {
		t.Skipf("%s is not installed", command[0])
	}
	dir := t.TempDir()
	address, http2 = subprocess.FreeAddress(t), subprocess.FreeAddress(t)
	named := strings.NewReplacer("DIR", dir, "ADDRESS", address, "HTTP2", http2)
	var pairs []string
	for old, replacement := range replacements {
		pairs = append(pairs, old, named.Replace(replacement))
	}
	edit := strings.NewReplacer(pairs...) // all at once: 127.0.0.1:3000 begins 127.0.0.1:30009, too
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(edit.Replace(string(text))), 0o600))
	}
	cmd := exec.Command(program, strings.Fields(named.Replace(strings.Join(command[1:], " ")))...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		<-ended
	})
	for { // until it listens
		select {
		case err := <-ended:
			ended <- err
			require.NoError(t, err, "%s ended", command[0])
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return address, http2
		}
	}
}

// nginx and HAProxy ask before they forward a request. They replace what the
// client says of its address. A denied WebSocket gets the status in place of
// 101, a denied stream of events gets it in place of the stream, and over
// HTTP/2 the denial ends the request and not the connection.
func TestProxies(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") == "websocket":
			conn, buf, err := http.NewResponseController(w).Hijack()
			assert.NoError(t, err)
			defer conn.Close()
			buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
				"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nhello\n")
			buf.Flush()
		case r.Header.Get("Accept") == "text/event-stream":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				http.NewResponseController(w).Flush()
			}
		}
	}))
	defer behind.Close()
	for name, proxy := range map[string]func(t *testing.T) (address, http2 string){
		"nginx": func(t *testing.T) (address, http2 string) {
			_, url := start(t, "-file", filepath.Join(t.TempDir(), "limits.db"), "-limit", "4/4h", "-denied", "403")
			temp := ""
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				temp += " " + kind + "_temp_path DIR/" + kind + ";"
			}
			return asks(t, strings.Fields("nginx -p DIR -c DIR/nginx.conf"), []string{"nginx.conf"}, map[string]string{
				"listen 80;":            "listen ADDRESS; listen HTTP2 http2;",
				"http://127.0.0.1:3000": behind.URL,
				"http://127.0.0.1:8079": url,
				"events {}":             "daemon off; pid DIR/pid; error_log stderr; events {}",
				"http {":                "http { access_log off;" + temp,
			})
		},
		"haproxy": func(t *testing.T) (address, http2 string) {
			_, url := start(t, "-file", filepath.Join(t.TempDir(), "limits.db"), "-limit", "4/4h")
			return asks(t, strings.Fields("haproxy -f DIR/haproxy.cfg"), []string{"haproxy.cfg", "forwardauth.lua"},
				map[string]string{
					"bind :80":               "bind ADDRESS\n    bind HTTP2",
					"127.0.0.1:3000":         strings.TrimPrefix(behind.URL, "http://"),
					"http://127.0.0.1:8079/": url + "/",
				})
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, http2 := proxy(t)
			url := "http://" + address
			status, _ := ask(t, url, "192.0.2.1")
			require.Equal(t, 200, status)

			webSocket := func() (line string, rest *bufio.Reader) {
				conn, err := net.Dial("tcp", address)
				require.NoError(t, err)
				t.Cleanup(func() { conn.Close() })
				_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
					"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"))
				require.NoError(t, err)
				rest = bufio.NewReader(conn)
				line, err = rest.ReadString('\n')
				require.NoError(t, err)
				return strings.TrimSpace(line), rest
			}
			line, rest := webSocket()
			require.Equal(t, "HTTP/1.1 101 Switching Protocols", line)
			for !strings.HasPrefix(line, "hello") {
				var err error
				line, err = rest.ReadString('\n')
				require.NoError(t, err)
			}

			events := func() (status int, text string) {
				r, err := http.NewRequest("GET", url, nil)
				require.NoError(t, err)
				r.Header.Set("Accept", "text/event-stream")
				res, err := http.DefaultClient.Do(r)
				require.NoError(t, err)
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				return res.StatusCode, string(body)
			}
			status, text := events()
			require.Equal(t, 200, status)
			require.Equal(t, "data: 0\n\ndata: 1\n\ndata: 2\n\n", text, "the stream is one request")

			var h2 http.Transport
			h2.Protocols = new(http.Protocols)
			h2.Protocols.SetUnencryptedHTTP2(true)
			defer h2.CloseIdleConnections()
			for _, want := range []int{200, 429, 429} {
				r, err := http.NewRequest("GET", "http://"+http2, nil)
				require.NoError(t, err)
				res, err := h2.RoundTrip(r)
				require.NoError(t, err)
				res.Body.Close()
				require.Equal(t, want, res.StatusCode)
				require.Equal(t, 2, res.ProtoMajor)
			}

			status, retryAfter := ask(t, url, "192.0.2.2")
			require.Equal(t, 429, status)
			require.Regexp(t, `^3[56]\d\d$`, retryAfter)
			line, _ = webSocket()
			require.Regexp(t, "^HTTP/1.1 429 ", line)
			status, text = events()
			require.Equal(t, 429, status)
			require.NotContains(t, text, "data:")
		})
	}
}
