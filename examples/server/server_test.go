package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program is a running server.
type program struct {
	cmd *exec.Cmd
	url string
}

func build(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "server")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

func start(t *testing.T, binary string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return &program{cmd, "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on "))}
}

// login returns the status of a login, and for how long not to try again.
func (p *program) login(t *testing.T, password string) (status int, retryAfter time.Duration) {
	t.Helper()
	res, err := http.PostForm(p.url+"/login", url.Values{"user": {"ada"}, "password": {password}})
	require.NoError(t, err)
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	if after := res.Header.Get("Retry-After"); after != "" {
		n, err := strconv.Atoi(after)
		require.NoError(t, err)
		retryAfter = time.Duration(n) * time.Second
	}
	return res.StatusCode, retryAfter
}

func TestServer(t *testing.T) {
	binary := build(t)
	t.Run("lock-out outlives kill -9", func(t *testing.T) { lockOutOutlivesKill(t, binary) })
	t.Run("status page", func(t *testing.T) { statusPage(t, binary) })
	t.Run("requests end before the file is closed", func(t *testing.T) { stopsAfterRequests(t, binary) })
	t.Run("long body", func(t *testing.T) { longBody(t, binary) })
}

func lockOutOutlivesKill(t *testing.T, binary string) {
	file := filepath.Join(t.TempDir(), "limits.db")
	server := start(t, binary, "-file", file, "-lockout", "20m")
	for range 3 {
		status, _ := server.login(t, "lovelace")
		require.Equal(t, 200, status, "a right password costs nothing")
	}
	for range 5 {
		status, _ := server.login(t, "guess")
		require.Equal(t, 401, status)
	}
	measured := time.Now() // the answer may be late
	status, before := server.login(t, "lovelace")
	require.Equal(t, 429, status)
	require.LessOrEqual(t, before, 20*time.Minute)
	require.Greater(t, before, 19*time.Minute)

	require.NoError(t, server.cmd.Process.Kill()) // SIGKILL
	require.Error(t, server.cmd.Wait())

	server = start(t, binary, "-file", file, "-lockout", "20m")
	status, after := server.login(t, "lovelace")
	require.Equal(t, 429, status)
	elapsed := time.Since(measured)
	require.LessOrEqual(t, after, before)
	require.GreaterOrEqual(t, after, before-elapsed-time.Second)
	t.Logf("%v before the kill, %v after it and %v", before, after, elapsed)
}

func statusPage(t *testing.T, binary string) {
	server := start(t, binary, "-file", filepath.Join(t.TempDir(), "limits.db"), "-api", "2/1h")
	for _, want := range []int{200, 200, 429} {
		res, err := http.Get(server.url + "/api/time")
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, want, res.StatusCode)
	}
	res, err := http.Get(server.url + "/status?format=prometheus")
	require.NoError(t, err)
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(metrics), "stint_decisions_total{limit=\"RequestsPerAddress\",decision=\"allowed\"} 2\n")
	require.Contains(t, string(metrics), "stint_decisions_total{limit=\"RequestsPerAddress\",decision=\"denied\"} 1\n")
}

// begin sends a login up to a body of a length, and returns when the server
// starts to read the body.
func (p *program) begin(t *testing.T, contentType string, length int) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /login HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, length)
	r := bufio.NewReader(conn)
	for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
	return conn, r
}

// A login that has begun before the interrupt is answered and counted.
func stopsAfterRequests(t *testing.T, binary string) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent a signal")
	}
	server := start(t, binary, "-file", filepath.Join(t.TempDir(), "limits.db"))
	const body = "user=ada&password=guess"
	conn, r := server.begin(t, "application/x-www-form-urlencoded", len(body))
	require.NoError(t, server.cmd.Process.Signal(os.Interrupt))
	for {
		other, err := net.Dial("tcp", conn.RemoteAddr().String())
		if err != nil {
			break
		}
		other.Close()
	}
	io.WriteString(conn, body)
	res, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, 401, res.StatusCode)
	require.Regexp(t, `^"LoginsPerAddress";r=4;t=\d+, "LoginsPerUser";r=19;t=\d+$`, res.Header.Get("RateLimit"))
	require.NoError(t, server.cmd.Wait())
}

// The server reads no more of a body than maxBody.
func longBody(t *testing.T, binary string) {
	server := start(t, binary, "-file", filepath.Join(t.TempDir(), "limits.db"))
	conn, r := server.begin(t, "multipart/form-data; boundary=b", 1<<30)
	io.WriteString(conn, "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n"+strings.Repeat("x", 128<<10))
	res, err := http.ReadResponse(r, nil) // a deadlock if the server waits for the rest
	require.NoError(t, err)
	require.Equal(t, 401, res.StatusCode)
}
