package main

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) { subprocess.Main(m, main) }

// start runs the program, and returns its URL.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, url string) {
	t.Helper()
	cmd = subprocess.Command(t.Context(), os.Args[0], append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { // a program that outlives the tests holds their standard error
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	return cmd, "http://" + strings.TrimPrefix(lines.Text(), "listening on ")
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

// nginx asks before it forwards a request, with the lines of nginx.conf.
func TestNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	_, url := start(t, "-file", filepath.Join(t.TempDir(), "limits.db"), "-limit", "1/1h", "-denied", "403")
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	defer behind.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	listener.Close()

	text, err := os.ReadFile("nginx.conf")
	require.NoError(t, err)
	conf, dir := string(text), t.TempDir()
	temp := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temp += " " + kind + "_temp_path " + dir + "/" + kind + ";"
	}
	for old, replacement := range map[string]string{
		"listen 80;":            "listen " + address + ";",
		"http://127.0.0.1:3000": behind.URL,
		"http://127.0.0.1:8079": url,
		"events {}":             "daemon off; pid " + dir + "/pid; error_log stderr; events {}",
		"http {":                "http { access_log off;" + temp,
	} {
		require.Equal(t, 1, strings.Count(conf, old), old)
		conf = strings.Replace(conf, old, replacement, 1)
	}
	path := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(path, []byte(conf), 0o600))
	cmd := exec.Command(nginx, "-p", dir, "-c", path)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	})
	for { // until nginx listens
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
	}
	// nginx replaces what the client says of its address.
	status, _ := ask(t, "http://"+address, "192.0.2.1")
	require.Equal(t, 200, status)
	status, retryAfter := ask(t, "http://"+address, "192.0.2.2")
	require.Equal(t, 429, status)
	require.Regexp(t, `^3[56]\d\d$`, retryAfter)
}
