package redislimit

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

const (
	perID stint.Name = 1 + iota
	everyone
	other
	off
	shut
)

var testNames = stint.Names{
	perID:    {Label: "perID"},
	everyone: {Label: "everyone", IDs: stint.Single},
	other:    {Label: "other"},
	off:      {Label: "off"},
	shut:     {Label: "shut"},
}

func testLimits(tb testing.TB, l stint.Limit) *stint.Limits {
	tb.Helper()
	limits, err := stint.NewLimits(testNames.WithLimits(map[stint.Name]stint.Limit{
		perID: l, everyone: l, other: stint.PerHour(7), off: stint.Unlimited, shut: stint.Blocked,
	}))
	require.NoError(tb, err)
	return limits
}

// serverProgram is the server of the tests. With valkey-server they show that it
// does as well.
var serverProgram = cmp.Or(os.Getenv("REDISLIMIT_TEST_SERVER"), "redis-server")

// server is a redis-server that ends with the test.
type server struct {
	tb   testing.TB
	args []string
	dir  string
	url  string
	cmd  *exec.Cmd
}

// startServer starts a server with settings, on a Unix socket unless they
// choose a port. Without redis-server the test is skipped.
func startServer(tb testing.TB, args ...string) *server {
	tb.Helper()
	if _, err := exec.LookPath(serverProgram); err != nil {
		tb.Skip("skipped, because it needs " + serverProgram + "; on Debian: apt-get install redis-server")
	}
	dir, err := os.MkdirTemp("", "redis")
	require.NoError(tb, err)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{tb: tb, dir: dir, url: "unix://" + filepath.Join(dir, "s")}
	s.args = append([]string{"--port", "0", "--unixsocket", filepath.Join(dir, "s"), "--dir", dir, "--save", "",
		"--enable-debug-command", "yes"}, args...)
	tb.Cleanup(func() { s.kill() })
	s.start()
	return s
}

func (s *server) start() {
	s.tb.Helper()
	s.cmd = exec.Command(serverProgram, s.args...)
	out, err := s.cmd.StdoutPipe()
	require.NoError(s.tb, err)
	require.NoError(s.tb, s.cmd.Start())
	lines := bufio.NewScanner(out)
	var log []string
	for lines.Scan() {
		log = append(log, lines.Text())
		if strings.Contains(lines.Text(), "eady to accept connections") {
			go func() {
				for lines.Scan() {
				}
			}()
			return
		}
	}
	require.Fail(s.tb, "redis-server did not start", strings.Join(log, "\n"))
}

func (s *server) kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// cli runs a command at the server.
func (s *server) cli(args ...string) any {
	s.tb.Helper()
	opt, err := rueidis.ParseURL(s.url)
	require.NoError(s.tb, err)
	opt.DisableCache, opt.ForceSingleClient = true, true
	c, err := rueidis.NewClient(opt)
	require.NoError(s.tb, err)
	defer c.Close()
	reply, err := c.Do(context.Background(), c.B().Arbitrary(args...).Build()).ToAny()
	if !rueidis.IsRedisNil(err) {
		require.NoError(s.tb, err)
	}
	return reply
}

// scripts returns the number of script calls that the server has carried out.
func (s *server) scripts() (calls int64) {
	s.tb.Helper()
	_, text, _ := strings.Cut(fmt.Sprint(s.cli("INFO", "commandstats")), "cmdstat_evalsha:calls=")
	text, _, _ = strings.Cut(text, ",")
	calls, err := strconv.ParseInt(text, 10, 64)
	require.NoError(s.tb, err)
	return calls
}

// commons is a server that tests share. Their prefixes keep them apart.
var commons struct {
	once sync.Once
	s    *server
	n    atomic.Int64
}

// commonServer returns the shared server, and a prefix for this test only.
func commonServer(tb testing.TB) (s *server, prefix string) {
	tb.Helper()
	commons.once.Do(func() { commons.s = startServer(lasting{tb}) })
	if commons.s == nil {
		tb.Skip("skipped, because it needs redis-server; on Debian: apt-get install redis-server")
	}
	return commons.s, fmt.Sprintf("t%d", commons.n.Add(1))
}

// newPrefix returns a prefix for this test only.
func newPrefix(tb testing.TB) string {
	tb.Helper()
	_, prefix := commonServer(tb)
	return prefix
}

// lasting is a test whose cleanups wait for the end of all tests.
type lasting struct{ testing.TB }

var atEnd []func()

func (lasting) Cleanup(f func()) { atEnd = append(atEnd, f) }

func TestMain(m *testing.M) {
	if os.Getenv(hogEnv) != "" {
		beHog()
		return
	}
	lookEvery = time.Hour // nothing may be left to the next look
	code := m.Run()
	for i := range atEnd {
		atEnd[len(atEnd)-1-i]()
	}
	os.Exit(code)
}

// rueidisClient is the Client of Open.
type rueidisClient = script.Rueidis

// clientAt returns the Client of Open for a server.
func clientAt(tb testing.TB, url string, timeout time.Duration) *rueidisClient {
	tb.Helper()
	c, err := script.NewRueidis(url, timeout, nil)
	require.NoError(tb, err)
	return c
}

// newOn returns a Limiter on a Client. Its Timeout is long unless opts has one.
func newOn(tb testing.TB, c Client, limits *stint.Limits, opts Options) *Limiter {
	tb.Helper()
	opts.Timeout = cmp.Or(opts.Timeout, 20*time.Second)
	l, err := New(c, limits, &opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l
}

// isAway reports whether the server is away.
func (l *Limiter) isAway() bool { return l.watch.Whole.Away() }

// testClock stands still until pass moves it.
type testClock struct{ ns atomic.Int64 }

func newTestClock() *testClock {
	c := new(testClock)
	c.ns.Store(time.Date(2021, 2, 3, 4, 5, 6, 7, time.UTC).UnixNano())
	return c
}

func (c *testClock) now() time.Time       { return time.Unix(0, c.ns.Load()) }
func (c *testClock) pass(d time.Duration) { c.ns.Add(int64(d)) }

// newLimiter returns a Limiter at the common server. Its Timeout is long: the
// machine may be busy.
func newLimiter(tb testing.TB, l stint.Limit, change func(*Options)) *Limiter {
	tb.Helper()
	s, prefix := commonServer(tb)
	return s.limiter(tb, testLimits(tb, l), func(o *Options) {
		o.Prefix = prefix
		if change != nil {
			change(o)
		}
	})
}

func (s *server) limiter(tb testing.TB, limits *stint.Limits, change func(*Options)) *Limiter {
	tb.Helper()
	opts := new(Options)
	if change != nil {
		change(opts)
	}
	return openAt(tb, s.url, limits, *opts)
}

// openAt returns the Limiter of Open. Its Timeout is long unless opts has one.
func openAt(tb testing.TB, url string, limits *stint.Limits, opts Options) *Limiter {
	tb.Helper()
	opts.Timeout = cmp.Or(opts.Timeout, 20*time.Second)
	lim, err := Open(url, limits, &opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, lim.Close()) })
	return lim
}

// spend spends without an error, as check, spendAll and refund do what they say.
func (l *Limiter) spend(tb testing.TB, key stint.Key, cost int64) stint.Decision {
	tb.Helper()
	return decision(tb)(l.Spend(key, cost))
}

func (l *Limiter) check(tb testing.TB, key stint.Key, cost int64) stint.Decision {
	tb.Helper()
	return decision(tb)(l.Check(key, cost))
}

func (l *Limiter) spendAll(tb testing.TB, reqs ...stint.Request) stint.Decision {
	tb.Helper()
	return decision(tb)(l.SpendAll(reqs...))
}

func (l *Limiter) refund(tb testing.TB, reqs ...stint.Request) stint.Decision {
	tb.Helper()
	return decision(tb)(l.Refund(reqs...))
}

// decision requires that a call has a decision.
func decision(tb testing.TB) func(stint.Decision, error) stint.Decision {
	return func(d stint.Decision, err error) stint.Decision {
		tb.Helper()
		require.NoError(tb, err)
		return d
	}
}
