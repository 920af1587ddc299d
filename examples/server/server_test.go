package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
)

// program is a running server.
type program struct {
	*subprocess.Child
	url, pages string // for clients, and for operators
}

// The log has what an event knows, and nothing else.
func TestLogEvent(t *testing.T) {
	var text bytes.Buffer
	log.SetOutput(&text)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	logEvent(stint.Event{Kind: stint.FlushRecovered})
	require.Contains(t, text.String(), "flush recovered")
	require.NotContains(t, text.String(), "nil")
	logEvent(stint.Event{Kind: stint.FileSetAside, Err: stint.ErrCorrupt, Path: "limits.db.corrupt-1"})
	require.Contains(t, text.String(), stint.ErrCorrupt.Error())
	require.Contains(t, text.String(), "limits.db.corrupt-1")
}

func TestMain(m *testing.M) { subprocess.Main(m, main) }

func start(t *testing.T, args ...string) *program {
	t.Helper()
	args = append([]string{"-addr", "127.0.0.1:0", "-operators", "127.0.0.1:0"}, args...)
	p := &program{Child: subprocess.Begin(t, subprocess.Self(t.Context(), args...))}
	p.url = "http://" + strings.TrimPrefix(p.ReadLine(t), "listening on ")
	p.pages = "http://" + strings.TrimPrefix(p.ReadLine(t), "status page on ") + "/status"
	return p
}

// get returns the answer to a request with these fields.
func (p *program) get(t *testing.T, path string, fields ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest("GET", p.url+path, nil)
	require.NoError(t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	res.Body.Close()
	return res
}

// login returns the status of a login, and its Retry-After.
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

// limitsFile returns the path of a file of limits, with few requests.
func limitsFile(t *testing.T, requests int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yml")
	writeLimits(t, path, requests)
	return path
}

func writeLimits(t *testing.T, path string, requests int) {
	t.Helper()
	text := fmt.Sprintf("RequestsPerAddress: {burst: %d, count: %[1]d, period: 1h}\n", requests) +
		fmt.Sprintf("RequestsPerAccount: {burst: %d, count: %[1]d, period: 1h}\n", requests)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func newFile(t *testing.T) string { return filepath.Join(t.TempDir(), "limits.db") }

func TestServer(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"lock-out outlives kill -9":              lockOutOutlivesKill,
		"status page":                            statusPage,
		"requests end before the file is closed": stopsAfterRequests,
		"long body":                              longBody,
		"plans":                                  plans,
		"reload":                                 reload,
		"upgrade":                                upgrade,
		"proxy":                                  proxy,
		"nginx":                                  behindNginx,
		"alerts name metrics of the status page": alertsNameMetrics,
		"arguments of the unit and the Dockerfile": deployedArguments,
		"commands of operators":                    operatorCommands,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func lockOutOutlivesKill(t *testing.T) {
	file := newFile(t)
	server := start(t, "-file", file)
	for range 6 {
		status, _ := server.login(t, "lovelace")
		require.Equal(t, 200, status, "a right password gets its token back")
	}
	// What came back while the last right password was checked is not given back
	// twice. On a slow machine that leaves a little less than five guesses.
	guesses := 0
	for status, _ := server.login(t, "guess"); status == 401; status, _ = server.login(t, "guess") {
		guesses++
	}
	require.GreaterOrEqual(t, guesses, 4)
	require.LessOrEqual(t, guesses, 5)
	measured := time.Now() // the answer may be late
	status, before := server.login(t, "lovelace")
	require.Equal(t, 429, status)
	require.LessOrEqual(t, before, 5*time.Minute)
	require.Greater(t, before, 4*time.Minute)

	require.NoError(t, server.Cmd.Process.Kill()) // SIGKILL
	require.Error(t, server.Cmd.Wait())

	server = start(t, "-file", file)
	status, after := server.login(t, "lovelace")
	require.Equal(t, 429, status)
	elapsed := time.Since(measured)
	require.LessOrEqual(t, after, before)
	require.GreaterOrEqual(t, after, before-elapsed-time.Second)
	t.Logf("%v before the kill, %v after it and %v", before, after, elapsed)
}

func statusPage(t *testing.T) {
	server := start(t, "-file", newFile(t), "-limits", limitsFile(t, 2))
	for _, want := range []int{200, 200, 429} {
		require.Equal(t, want, server.get(t, "/api/time").StatusCode)
	}
	metrics := server.metrics(t)
	require.Contains(t, metrics, "stint_decisions_total{stint_limit=\"RequestsPerAddress\",stint_decision=\"allowed\"} 2\n")
	require.Contains(t, metrics, "stint_decisions_total{stint_limit=\"RequestsPerAddress\",stint_decision=\"denied\"} 1\n")
	require.Equal(t, 404, server.get(t, "/status").StatusCode, "clients do not see the page")
}

// metrics returns the status page for Prometheus.
func (p *program) metrics(t *testing.T) string {
	t.Helper()
	res, err := http.Get(p.pages + "?format=prometheus")
	require.NoError(t, err)
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(metrics)
}

// An account spends by its plan, and a made-up key spends from the address.
func plans(t *testing.T) {
	server := start(t, "-file", newFile(t))
	for key, want := range map[string]string{
		"key-of-ada": `"RequestsPerAccount";q=600;w=60`,
		"key-of-bob": `"RequestsPerAccount";q=60;w=60`,
		"made-up":    `"RequestsPerAddress";q=100;w=1`,
	} {
		res := server.get(t, "/api/time", "X-API-Key", key)
		require.Equal(t, want, res.Header.Get("RateLimit-Policy"), key)
	}
}

// SIGHUP puts other limits in force. After a mistake the old ones stay.
func reload(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent a signal")
	}
	limits := limitsFile(t, 2)
	server := start(t, "-file", newFile(t), "-limits", limits)
	require.Equal(t, 200, server.get(t, "/api/time").StatusCode)
	writeLimits(t, limits, 0)
	require.NoError(t, server.Cmd.Process.Signal(syscall.SIGHUP))
	require.Equal(t, `"RequestsPerAddress";q=2;w=3600`, server.get(t, "/api/time").Header.Get("RateLimit-Policy"))
	writeLimits(t, limits, 10)
	require.NoError(t, server.Cmd.Process.Signal(syscall.SIGHUP))
	require.Equal(t, "limits loaded", server.ReadLine(t))
	require.Equal(t, `"RequestsPerAddress";q=10;w=3600`, server.get(t, "/api/time").Header.Get("RateLimit-Policy"))
}

// A customer that has used up 1,000 a day is moved to 20,000 a day in the file of
// plans: 19,000 are left after SIGHUP, and after a restart.
func upgrade(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent a signal")
	}
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	limits, plans := filepath.Join(t.TempDir(), "limits.yml"), filepath.Join(t.TempDir(), "plans.yml")
	write(limits, "RequestsPerAccount: {burst: 1000, count: 1000, period: 24h}\n")
	write(plans, "[]\n")
	args := []string{"-file", newFile(t), "-limits", limits, "-plans", plans}
	server := start(t, args...)
	left := func(p *program) int {
		res := p.get(t, "/api/time", "X-API-Key", "key-of-ada")
		n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(res.Header.Get("RateLimit"), ";")[1], "r="))
		require.NoError(t, err)
		return n
	}
	for range 1000 {
		left(server)
	}
	require.LessOrEqual(t, left(server), 1, "some may have come back")
	write(plans, "- {group: pro, ids: [ada], limits: {RequestsPerAccount: {burst: 20000, count: 20000, period: 24h}}}\n")
	require.NoError(t, server.Cmd.Process.Signal(syscall.SIGHUP))
	require.Equal(t, "limits loaded", server.ReadLine(t))
	n := left(server)
	require.InDelta(t, 18_999, n, 100, "of the 1,000 some come back while the test runs")
	require.NoError(t, server.Cmd.Process.Signal(os.Interrupt))
	server.Cmd.Wait()
	require.InDelta(t, n-1, left(start(t, args...)), 100)
}

// A trusted proxy says which client a request is from. Other proxies are
// ignored.
func proxy(t *testing.T) {
	for trusted, want := range map[string]int{"127.0.0.0/8": 200, "10.0.0.0/8": 429} {
		server := start(t, "-file", newFile(t), "-limits", limitsFile(t, 1), "-trust", trusted)
		require.Equal(t, 200, server.get(t, "/api/time", "X-Forwarded-For", "192.0.2.1").StatusCode)
		require.Equal(t, want, server.get(t, "/api/time", "X-Forwarded-For", "192.0.2.2").StatusCode)
	}
}

// begin sends the head of a login whose body has this length, and returns when
// the server starts to read the body.
func (p *program) begin(t *testing.T, contentType string, length int) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /login HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"+
		"Content-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, length)
	r := bufio.NewReader(conn)
	for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
	return conn, r
}

// A login that has begun before the interrupt is answered and counted.
func stopsAfterRequests(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent a signal")
	}
	server := start(t, "-file", newFile(t))
	const body = "user=ada&password=guess"
	conn, r := server.begin(t, "application/x-www-form-urlencoded", len(body))
	require.NoError(t, server.Cmd.Process.Signal(os.Interrupt))
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
	require.Regexp(t, `^"LoginsPerAddress";r=4;t=\d+, "LoginsPerDay";r=19;t=\d+, "LoginsPerUser";r=19;t=\d+$`, res.Header.Get("RateLimit"))
	require.NoError(t, server.Cmd.Wait())
}

// The server reads no more of a body than maxBody.
func longBody(t *testing.T) {
	server := start(t, "-file", newFile(t))
	conn, r := server.begin(t, "multipart/form-data; boundary=b", 1<<30)
	io.WriteString(conn, "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n"+strings.Repeat("x", 128<<10))
	res, err := http.ReadResponse(r, nil) // a deadlock if the server waits for the rest
	require.NoError(t, err)
	require.Equal(t, 401, res.StatusCode)
}

// fullDisk is a store that saves nothing.
type fullDisk struct{ stint.Store }

func (fullDisk) Save([]stint.Change) error { return syscall.ENOSPC }

// Limits that could not save what they converted are in force.
func TestReloadNotDurable(t *testing.T) {
	var text bytes.Buffer
	log.SetOutput(&text)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	plans := filepath.Join(t.TempDir(), "plans.yml")
	load := func(plan string) *stint.Limits {
		require.NoError(t, os.WriteFile(plans, []byte(plan), 0o600))
		limits, err := loadLimits("limits.yml", plans)
		require.NoError(t, err)
		return limits
	}
	const plan = "- RequestsPerAccount: {burst: %d, count: %d, period: 24h, ids: [acme]}\n"
	before := load(fmt.Sprintf(plan, 10, 10))
	l, err := stint.New(fullDisk{stint.NewMemStore()}, before, &stint.Options{Durability: stint.Leased})
	require.NoError(t, err)
	defer l.Close()
	_, err = l.Spend(RequestsPerAccount.Key("acme"), 10)
	require.ErrorIs(t, err, stint.ErrNotDurable)
	load(fmt.Sprintf(plan, 20, 20))
	reloadLimits(l, "limits.yml", plans)
	require.Contains(t, text.String(), "the new limits are in force: ")
	require.NotContains(t, text.String(), "the old limits stay")
}
