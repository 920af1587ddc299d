package caddylimit_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	_ "github.com/stint-go/stint/caddylimit"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

// The program of these tests is Caddy with the module: the test binary runs
// caddy run in processes of its own.
func TestMain(m *testing.M) { subprocess.Main(m, caddycmd.Main) }

// A site is a Caddy process.
type site struct {
	t          *testing.T
	cmd        *exec.Cmd
	ended      chan struct{} // closed when cmd has ended
	log        *log
	dir        string
	shared     string // the file, if another site has it
	admin, url string
}

// A log has what Caddy logs.
type log struct {
	mu      sync.Mutex
	text    bytes.Buffer
	serving chan struct{} // closed when Caddy answers requests
}

// Write implements io.Writer.
func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.String()
	l.text.Write(p)
	const line = "serving initial configuration"
	if !strings.Contains(before, line) && strings.Contains(l.String(), line) {
		close(l.serving)
	}
	return len(p), nil
}

// String returns what was logged. Caddy must have ended.
func (l *log) String() string { return l.text.String() }

// newSite returns a site that does not run yet.
func newSite(t *testing.T) *site {
	return &site{t: t, dir: t.TempDir(), admin: subprocess.FreeAddress(t), url: "http://" + subprocess.FreeAddress(t)}
}

// caddyfile returns a Caddyfile with the lines of the site, and those of the
// global options.
func (s *site) caddyfile(lines string, global ...string) string {
	return fmt.Sprintf("{\n\tadmin %s\n\tauto_https off\n\tdefault_bind 127.0.0.1\n\tpersist_config off\n\tstint {\n\t\tfile %s\n\t}\n%s\n}\n%s {\n%s\n}\n",
		s.admin, s.file(), strings.Join(global, "\n"), s.url, lines)
}

// directive returns the directive stint with zones. The matcher may be empty.
func directive(matcher string, zones ...string) string {
	return "stint " + matcher + " {\n" + strings.Join(zones, "\n") + "\n}\n"
}

// zone returns a zone with subdirectives.
func zone(name string, lines ...string) string {
	return "zone " + name + " {\n" + strings.Join(lines, "\n") + "\n}"
}

func (s *site) file() string { return cmp.Or(s.shared, filepath.Join(s.dir, "limits.db")) }

// start runs Caddy until it answers.
func (s *site) start(caddyfile string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "Caddyfile")
	require.NoError(s.t, os.WriteFile(path, []byte(caddyfile), 0o600))
	s.cmd = subprocess.Command(s.t.Context(), os.Args[0], "run", "--config", path, "--adapter", "caddyfile")
	s.cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir, "HOME="+s.dir)
	s.log = &log{serving: make(chan struct{})}
	s.cmd.Stderr = s.log
	require.NoError(s.t, s.cmd.Start())
	cmd, ended := s.cmd, make(chan struct{})
	s.ended = ended
	go func() { cmd.Wait(); close(ended) }()
	s.t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	select {
	case <-s.log.serving:
	case <-ended:
		require.FailNow(s.t, "Caddy has ended", s.log.String())
	}
}

// end sends a signal, and waits until the process has ended.
func (s *site) end(signal os.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(signal))
	<-s.ended
}

// body returns the body of an answer.
func body(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(text)
}

// metrics returns the metrics of Caddy.
func (s *site) metrics() string { return body(s.t, "http://"+s.admin+"/metrics") }

// get returns the status and the fields of an answer, and its body.
func (s *site) get(path string, fields ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequest("GET", s.url+path, nil)
	require.NoError(s.t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header[fields[i]] = []string{fields[i+1]}
	}
	res, err := http.DefaultClient.Do(r)
	for errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // by a listener that a reload closes
		res, err = http.DefaultClient.Do(r)
	}
	require.NoError(s.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res, string(body)
}

// status returns the status of an answer.
func (s *site) status(path string, fields ...string) int {
	s.t.Helper()
	res, _ := s.get(path, fields...)
	return res.StatusCode
}

// requires sends a request with an API key for each status that it requires.
func (s *site) requires(path, key string, want ...int) {
	s.t.Helper()
	for i, want := range want {
		require.Equal(s.t, want, s.status(path, "X-Api-Key", key), "%s, %s, request %d", path, key, i+1)
	}
}

// decided returns the status of the first answer that is not 503: of a process
// that may just have lost the owner of the file.
func (s *site) decided(path string) (status int) {
	s.t.Helper()
	for status = 503; status == 503; status = s.status(path) {
	}
	return status
}

// reload asks Caddy to take another Caddyfile, and returns what it says. It formats the
// file, because Caddy before v2.11 warns otherwise, and then says 200 if it fails. Each
// call has a connection of its own: a reload closes those of the configuration before,
// and net/http does not repeat a POST.
func (s *site) reload(config string) (status int, says string) {
	s.t.Helper()
	formatted := caddyfile.Format([]byte(config))
	admin := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func() (*http.Response, error) {
		return admin.Post("http://"+s.admin+"/load", "text/caddyfile", bytes.NewReader(formatted))
	}
	res, err := post()
	for broken(err) { // by the admin endpoint of the configuration before, which closes
		res, err = post()
	}
	require.NoError(s.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res.StatusCode, string(body)
}

// broken reports whether Caddy has closed a connection without an answer.
func broken(err error) bool {
	return slices.ContainsFunc([]error{syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF},
		func(closed error) bool { return errors.Is(err, closed) })
}

// reloads asks Caddy to take another Caddyfile, which it must do. Caddy answers while the
// server of the configuration before still takes a request or two. So reloads waits until
// that one has closed a connection, which it mostly does after it has closed its listener.
func (s *site) reloads(caddyfile string) {
	s.t.Helper()
	before, answers, err := s.connect()
	for broken(err) { // it was in the queue of a listener that closed
		before, answers, err = s.connect()
	}
	require.NoError(s.t, err)
	defer before.Close()
	status, says := s.reload(caddyfile)
	require.Equal(s.t, 200, status, says)
	_, err = answers.ReadByte()
	require.Error(s.t, err, "it is closed")
}

// connect returns a connection on which Caddy has answered a request. Nothing is spent on it:
// net/http answers OPTIONS * by itself.
func (s *site) connect() (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		return nil, nil, err
	}
	answers := bufio.NewReader(conn)
	_, err = conn.Write([]byte("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"))
	if err == nil {
		_, err = http.ReadResponse(answers, nil)
	}
	if err != nil {
		conn.Close()
	}
	return conn, answers, err
}

// allOf returns the lines of a site with one zone for all requests.
func allOf(lines ...string) string { return directive("", zone("all", lines...)) + "respond ok" }

var hundred = allOf("limit 100/10h", "durability leased")

// Y1: a restart forgets nothing, after a clean stop and after a kill.
func TestRestart(t *testing.T) {
	for name, signal := range map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "kill -9": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.start(s.caddyfile(hundred))
			for range 100 {
				require.Equal(t, 200, s.status("/"))
			}
			s.end(signal)
			s.start(s.caddyfile(hundred))
			res, _ := s.get("/")
			require.Equal(t, 429, res.StatusCode)
			after, err := strconv.Atoi(res.Header.Get("Retry-After"))
			require.NoError(t, err)
			require.InDelta(t, 300, after, 60)
		})
	}
}

// Y2: reloads under load cost no token and no request, and leave nothing
// behind.
func TestReloads(t *testing.T) {
	s := newSite(t)
	config := func(i int) string {
		return s.caddyfile(fmt.Sprintf("header X-Reload %d\n%s", i, hundred))
	}
	s.start(config(0))
	open := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		if err != nil {
			t.Skip("this system does not list descriptors")
		}
		return len(entries)
	}
	goroutines := func() int {
		text := body(t, "http://"+s.admin+"/debug/pprof/goroutine?debug=1")
		m := regexp.MustCompile(`^goroutine profile: total (\d+)`).FindStringSubmatch(text)
		require.NotNil(t, m)
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		return n
	}
	s.reloads(config(1)) // what the first reload makes stays
	http.DefaultClient.CloseIdleConnections()
	descriptors, before := open(), goroutines()

	var passed, other atomic.Int64
	var clients sync.WaitGroup
	var done atomic.Bool
	end := func() { done.Store(true); clients.Wait() }
	defer end()
	for range 4 {
		clients.Go(func() {
			for !done.Load() {
				res, err := http.Get(s.url)
				if err != nil {
					continue // an old listener closes with connections that it has not accepted
				}
				res.Body.Close()
				switch res.StatusCode {
				case 200:
					passed.Add(1)
				case 429:
				default:
					other.Add(1)
				}
			}
		})
	}
	for i := range testlength.Of(1000, 30) {
		s.reloads(config(i + 2))
	}
	end()
	require.Zero(t, other.Load(), "requests that were neither answered nor denied")
	// 100 tokens at the beginning, and one each six minutes. A few answers may be
	// lost with their connections.
	for s.status("/") == 200 {
		passed.Add(1)
	}
	require.LessOrEqual(t, passed.Load(), int64(101))
	require.GreaterOrEqual(t, passed.Load(), int64(90))

	// Old configurations may still be closing their connections.
	http.DefaultClient.CloseIdleConnections()
	for range 10_000 {
		if open() <= descriptors+4 && goroutines() <= before+10 {
			break
		}
	}
	assert.LessOrEqual(t, open(), descriptors+4)
	assert.LessOrEqual(t, goroutines(), before+10)
}

// Y3: a reload that fails changes nothing.
func TestFailedReload(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(strings.Replace(hundred, "100/10h", "3/10h", 1)))
	require.Equal(t, 200, s.status("/"))

	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	for range 5 { // apps start in any order
		status, says := s.reload(s.caddyfile(hundred) + "http://" + busy.Addr().String() + " {\n\trespond busy\n}\n")
		require.Equal(t, 400, status, says)
		require.Contains(t, says, "address already in use")
	}
	status, says := s.reload(s.caddyfile(strings.Replace(hundred, "limit 100/10h", "limit 100/x", 1)))
	require.Equal(t, 400, status)
	require.Contains(t, says, "100/x")
	s.requires("/", "", 200, 200, 429)
}

// handleDenials writes the placeholders.
const handleDenials = `handle_errors 429 {
	respond "zone {http.stint.zone}: {http.stint.remaining} left, retry in {http.stint.retry_after}" 429
}`

// Y4: wrong passwords lock out, right ones cost nothing, and handle_errors
// knows what was decided.
func TestLogins(t *testing.T) {
	s := newSite(t)
	const hash = "$2a$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC" // bcrypt of "right"
	logins := directive("", zone("logins", "limit 5/15m", "count_status 401", "lock_out 15m"))
	config := s.caddyfile(logins + `basic_auth {
	ada ` + hash + `
}
` + handleDenials + `
respond welcome`)
	s.start(config)
	login := func(password string) (*http.Response, string) {
		return s.get("/", "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("ada:"+password)))
	}
	for range 8 {
		res, body := login("right")
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, "welcome", body)
	}
	for range 5 {
		res, _ := login("wrong")
		require.Equal(t, 401, res.StatusCode)
	}
	denied := func() {
		res, body := login("right")
		require.Equal(t, 429, res.StatusCode)
		require.Regexp(t, `^zone logins: \d left, retry in (900|[78]\d\d)$`, body)
		require.Equal(t, strings.TrimPrefix(regexp.MustCompile(`in \d+`).FindString(body), "in "),
			res.Header.Get("Retry-After"))
		require.Contains(t, res.Header.Get("RateLimit-Policy"), `"logins"`)
	}
	denied()
	s.end(syscall.SIGKILL)
	s.start(config)
	denied()

	// An operator ends it while Caddy runs.
	owner, err := hostlimit.Dial(s.file(), nil, &hostlimit.Options{TakeoverTimeout: time.Minute})
	require.NoError(t, err)
	defer owner.Close()
	require.Equal(t, stint.Names{1: {Label: "logins", Limit: stint.Unlimited}}, owner.Limits().Names())
	require.NoError(t, owner.Reset(stint.Name(1).Key("127.0.0.1")))
	res, _ := login("right")
	require.Equal(t, 200, res.StatusCode)
}

// Y7: each key is a bucket of its own, or 400.
func TestHostileKeys(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(directive("/", zone("api", "key {header.X-Api-Key}", "limit 1/10h")) +
		directive("/composed", zone("composed", "key {header.X-Api-Key}/{header.X-User}", "limit 1/10h")) + "respond ok"))
	keys := map[string]int{
		"": 400, strings.Repeat("k", 512): 200, strings.Repeat("k", 513): 400, strings.Repeat("m", 2<<20): 431, // by Caddy itself
		"\xff\xfe": 200, "\xff": 200, "*": 200, "**": 200, "a b": 200, "{header.X-Api-Key}": 200, "alice lock-outs": 200,
		"\u00e9": 200, "e\u0301": 200, "10.0.0.1": 200, "2001:db8::1": 200,
	}
	for i := range testlength.Of(10_000, 300) {
		keys[fmt.Sprintf("key-%x", i*7919)] = 200
	}
	for key, want := range keys {
		require.Equal(t, want, s.status("/", "X-Api-Key", key), "%.60q", key)
	}
	for key, first := range keys {
		if first == 200 {
			require.Equal(t, 429, s.status("/", "X-Api-Key", key), "%.60q", key)
		}
	}
	// Another spelling of an address is the same bucket.
	require.Equal(t, 429, s.status("/", "X-Api-Key", "::ffff:10.0.0.1"))
	require.Equal(t, 429, s.status("/", "X-Api-Key", "64:ff9b::a00:1"))
	require.Equal(t, 429, s.status("/", "X-Api-Key", "2001:db8::2"))

	// A key of several placeholders is empty if all of them are.
	require.Equal(t, 400, s.status("/composed"))
	s.requires("/composed", "k", 200, 429)
	require.Equal(t, 200, s.status("/composed", "X-Api-Key", "k", "X-User", "u"))
}

// Zones of one name share their buckets, and zones that do not match spend
// nothing. All zones of a request spend, or none.
func TestZones(t *testing.T) {
	s := newSite(t)
	three := zone("api", "limit 3/10h")
	s.start(s.caddyfile("@api path /api/*\n" +
		directive("@api", three, zone("writes", "match {\nmethod POST\n}", "limit 1/10h")) +
		directive("/login", three) + "respond ok"))
	post := func() int {
		res, err := http.Post(s.url+"/api/x", "text/plain", nil)
		require.NoError(t, err)
		res.Body.Close()
		return res.StatusCode
	}
	require.Equal(t, 200, s.status("/"))
	require.Equal(t, 200, post())
	require.Equal(t, 429, post(), "and spends nothing of api")
	require.Equal(t, 200, s.status("/login"))
	s.requires("/api/x", "", 200, 429)
	s.requires("/login", "", 429)
}

// Overrides come from the Caddyfile and from files, which a reload reads again.
func TestOverrides(t *testing.T) {
	s := newSite(t)
	plans := filepath.Join(s.dir, "plans.yml")
	write := func(text string) { require.NoError(t, os.WriteFile(plans, []byte(text), 0o600)) }
	write("- group: pro\n  ids: [carol]\n  limits:\n    api: {burst: 3, count: 3, period: 10h}\n")
	config := s.caddyfile(directive("", zone("api", "key {header.X-Api-Key}", "limit 1/10h", "override alice 2/10h",
		"override bob blocked", "override 2001:DB8:0:7::1/64 2/10h", "overrides "+plans)) + "respond ok")
	s.start(config)
	s.requires("/", "dave", 200, 429)
	s.requires("/", "alice", 200, 200, 429)
	s.requires("/", "bob", 429)
	s.requires("/", "carol", 200, 200, 200, 429)
	s.requires("/", "2001:db8:0:7::9", 200, 200, 429)

	write("- api:\n    unlimited: true\n    ids: [dave]\n")
	s.reloads(strings.Replace(config, "respond ok", "respond yes", 1))
	require.Equal(t, 200, s.status("/", "X-Api-Key", "dave"))

	write("- api:\n    burst: many\n    ids: [dave]\n")
	status, says := s.reload(strings.Replace(config, "respond ok", "respond no", 1))
	require.Equal(t, 400, status)
	require.Contains(t, says, plans+":2")
	require.Equal(t, 200, s.status("/", "X-Api-Key", "dave"))
}

// The status page shows zones. TestSubdirectives has the metrics.
func TestStatus(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(directive("/api/*", zone("all", "limit 1/10h")) +
		"stint_status /limits\nrespond ok"))
	s.requires("/api/x", "", 200, 429)
	_, body := s.get("/limits?format=json", "Accept", "application/json")
	require.Contains(t, body, `"all"`)
	require.Regexp(t, `"most_denied": \[\s+{\s+"id": "127.0.0.1"`, body)
}

// A file that Caddy cannot use is a config error that says what to do.
func TestUnusableFile(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(hundred))
	require.Equal(t, 200, s.status("/"))
	s.end(syscall.SIGTERM)
	whole, err := os.ReadFile(s.file())
	require.NoError(t, err)

	zeroed := bytes.Clone(whole)
	clear(zeroed[2*os.Getpagesize():])
	for name, c := range map[string]struct {
		text []byte
		want []string
	}{
		"damaged":   {zeroed, []string{"corrupt", "stint verify " + s.file()}},
		"cut short": {whole[:2*os.Getpagesize()], []string{"corrupt", "stint verify " + s.file()}},
		"no file of stint": {bytes.Repeat([]byte("x"), 9000),
			[]string{s.file() + " is not a file of stint", "name another one with the option file"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(s.file(), c.text, 0o600))
			cmd := subprocess.Command(t.Context(), os.Args[0], "run", "--config", filepath.Join(s.dir, "Caddyfile"))
			cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			for _, want := range c.want {
				require.Contains(t, string(out), want)
			}
		})
	}
}

// caddy validate finds what Start would refuse, and warns of placeholders.
func TestValidate(t *testing.T) {
	s := newSite(t)
	missing := filepath.Join(s.dir, "plans.yml")
	for name, c := range map[string]struct {
		lines []string
		fails bool
		want  string // in its output
		not   string
	}{
		"fine":                   {[]string{"key {remote_host}:{header.X-Api-Key}:{vars.plan}:{re.a.1}"}, false, "Valid configuration", "no such placeholder"},
		"misspelled":             {[]string{"key {remote_hst}"}, false, `"placeholder":"{remote_hst}"`, "{remote_host}"},
		"one of two":             {[]string{"key {remote_host}:{me}"}, false, `"placeholder":"{me}"`, "{http.request.remote.host}"},
		"no file of overrides":   {[]string{"overrides " + missing}, true, "zone all: overrides: stat " + missing, "Valid configuration"},
		"not in a zone of stint": {[]string{"window 1m"}, true, "want limit, with", "Valid configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(s.dir, "Caddyfile")
			lines := append(c.lines, "limit 2/10h")
			require.NoError(t, os.WriteFile(path, []byte(s.caddyfile(allOf(lines...))), 0o600))
			cmd := subprocess.Command(t.Context(), os.Args[0], "validate", "--config", path, "--adapter", "caddyfile")
			cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir)
			out, err := cmd.CombinedOutput()
			require.Equal(t, c.fails, err != nil, string(out))
			require.Contains(t, string(out), c.want)
			require.NotContains(t, string(out), c.not)
			require.NoFileExists(t, s.file())
		})
	}
}

// in_flight bounds the requests of one key that run, also those that a reload
// leaves to an old configuration. A calendar quota lasts until its period ends,
// and neither a reload nor a restart gives it back.
func TestInFlightAndCalendar(t *testing.T) {
	entered, leave := make(chan string, 10), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		entered <- r.URL.Path
		<-leave
	}))
	defer backend.Close()
	s := newSite(t)
	config := func(version int) string {
		return s.caddyfile(directive("", zone("plan", "key {header.X-Api-Key}", "limit 4/month@Europe/Berlin",
			"override big 100/month@Europe/Berlin", "in_flight 2"))+
			fmt.Sprintf("respond /version %d\nreverse_proxy %s", version, backend.URL), "grace_period 30s")
	}
	s.start(config(1))

	var clients sync.WaitGroup
	defer clients.Wait()
	answers := make(chan int, 10)
	send := func(key string) {
		clients.Go(func() { answers <- s.status("/slow", "X-Api-Key", key) })
		<-entered
	}
	send("alice")
	send("alice")
	denied := func() {
		t.Helper()
		res, _ := s.get("/slow", "X-Api-Key", "alice")
		require.Equal(t, 429, res.StatusCode)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.Contains(t, res.Header.Get("RateLimit-Policy"), `"plan";q=2;qu="concurrent-requests"`)
	}
	denied()
	send("bob")

	reloaded := make(chan int, 1)
	clients.Go(func() { // it may wait for the requests that run
		status, _ := s.reload(config(2))
		reloaded <- status
	})
	for {
		if _, body := s.get("/version", "X-Api-Key", "big"); body == "2" {
			break
		}
	}
	denied()
	close(leave)
	for range 3 {
		require.Equal(t, 200, <-answers)
	}
	require.Equal(t, 200, <-reloaded)

	s.requires("/slow", "alice", 200, 200)
	spent := func() {
		t.Helper()
		res, _ := s.get("/slow", "X-Api-Key", "alice")
		require.Equal(t, 429, res.StatusCode)
		after, err := strconv.Atoi(res.Header.Get("Retry-After"))
		require.NoError(t, err)
		monthly, err := stint.ParseLimit("4/month@Europe/Berlin")
		require.NoError(t, err)
		_, end := monthly.PeriodAt(time.Now())
		require.InDelta(t, time.Until(end).Seconds(), after, 60)
	}
	spent()
	s.reloads(config(3))
	spent()
	s.end(syscall.SIGTERM)
	s.start(config(4))
	spent()
	require.Equal(t, 200, s.status("/slow", "X-Api-Key", "bob"))
}
