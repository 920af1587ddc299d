package redislimit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/limitsfile"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// documented returns the words of docs/redis.md that a pattern finds.
func documented(t *testing.T, pattern string) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/redis.md")
	require.NoError(t, err)
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	require.NotNil(t, found)
	return strings.Fields(string(found[1]))
}

// aclLine is the ACL line of docs/redis.md, without the user.
const aclLine = `(?m)^    ACL SETUSER limiter (.*)$`

// The ACL line of docs/redis.md suffices for decisions, leases, holds and probes.
func TestACL(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--port", freePort(t), "--bind", "127.0.0.1")
	s.cli(append([]string{"ACL", "SETUSER", "limiter"}, documented(t, aclLine)...)...)
	s.cli("ACL", "SETUSER", "default", "resetpass", ">admin", "+@all")
	c := newLine()
	port := s.args[len(s.args)-3]
	c.rueidisClient = clientAt(t, "redis://limiter:SECRET@127.0.0.1:"+port, 20*time.Second)
	limits := testLimits(t, leasedLimit(stint.PerHour(100)))
	l := newOn(t, c, limits, Options{Away: AwayOpen, RepeatDenials: -1})
	key := perID.Key("a")
	for range 20 {
		l.spend(t, key, 1)
	}
	l.refund(t, key.Cost(1).SpentAt(inFuture))
	require.NoError(t, errorOf(l.Hold(key, l.Now().Add(time.Hour))))
	require.NoError(t, l.Reset(key))
	c.fail(errCut)
	l.spend(t, other.Key("a"), 1)
	c.mend()
	l.comesBack(t)
	require.EqualValues(t, 7, l.left(t, other.Key("a")))
	require.NoError(t, l.Health())
}

// In a cluster, the user needs what docs/redis.md says for it. Then the Limiter
// knows the shards, and decides while a slot moves.
func TestACLCluster(t *testing.T) {
	t.Parallel()
	nodes, url := startPrimaries(t)
	slot := int(script.Slot("stint:{0}:1"))
	from, to := nodes[slot/5461], nodes[(slot/5461+1)%3]
	to.cli("CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", from.cli("CLUSTER", "MYID").(string))
	from.cli("CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", to.cli("CLUSTER", "MYID").(string))
	for _, n := range nodes {
		n.cli(append([]string{"ACL", "SETUSER", "limiter"}, documented(t, aclLine)...)...)
		n.cli(append([]string{"ACL", "SETUSER", "limiter"}, documented(t, "`([^`]*)` in a cluster")...)...)
		n.cli("ACL", "SETUSER", "default", "resetpass", ">admin", "+@all")
	}
	l := openAt(t, strings.Replace(url, "redis://", "redis://limiter:SECRET@", 1), testLimits(t, leasedLimit(stint.PerHour(100))),
		Options{Away: AwayOpen, RepeatDenials: -1})
	for i := range 40 {
		d, err := l.SpendAll(stint.Request{Key: perID.Key(strconv.Itoa(i)), Cost: 1},
			stint.Request{Key: perID.Key(strconv.Itoa(i + 1)), Cost: 1})
		require.NoError(t, err)
		require.Equal(t, leasedLimit(stint.PerHour(100)), d.Limit)
	}
	require.NotSame(t, l.watch.Whole, l.watch.Of(perID.Key("0")), "the shards are known")
	require.NoError(t, l.Health())
	require.NoError(t, l.Close())
}

// Open with rediss:// takes a private certificate authority.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	authority := web.Certificate()
	private, err := x509.MarshalPKCS8PrivateKey(web.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	cert, secret := write("cert.pem", "CERTIFICATE", authority.Raw), write("key.pem", "PRIVATE KEY", private)
	port := freePort(t)
	startServer(t, "--tls-port", port, "--bind", "127.0.0.1", "--tls-cert-file", cert, "--tls-key-file", secret,
		"--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	limits := testLimits(t, stint.PerHour(2))
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	l := openAt(t, "rediss://127.0.0.1:"+port, limits, Options{Timeout: 10 * time.Second,
		TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}})
	require.NoError(t, l.Health())
	require.True(t, l.Allow(perID.Key("a")))
	require.NoError(t, l.Close())
	l = openAt(t, "rediss://127.0.0.1:"+port, limits, Options{Timeout: 10 * time.Second})
	require.ErrorContains(t, l.Health(), "certificate")
	require.NoError(t, l.Close())
	_, err = Open("redis://127.0.0.1:"+port, limits, &Options{TLS: new(tls.Config)})
	require.ErrorContains(t, err, "only for rediss://")
}

// Open fails for a user who may not run the scripts.
func TestOpenWithoutScripts(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"evalsha", "eval", "get"} {
		s := startServer(t)
		s.cli("ACL", "SETUSER", "default", "-"+command)
		_, err := Open(s.url, testLimits(t, stint.PerHour(2)), &Options{Timeout: 10 * time.Second})
		require.ErrorContains(t, err, "open: redislimit: server replied", command)
	}
}

// Options and limits that cannot work are refused.
func TestRefusedAtOpen(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{-1, 1, 3, time.Millisecond - 1} {
		_, err := Open("redis://127.0.0.1:1", testLimits(t, stint.PerHour(2)), &Options{Timeout: timeout})
		require.ErrorContains(t, err, "want at least 1ms")
	}
}

// A quota that follows the calendar is refused wherever it comes from, and the
// limits in force stay.
func TestCalendarsRefused(t *testing.T) {
	t.Parallel()
	day := stint.EachDay(5, time.UTC)
	names := stint.Names{perID: {Label: "perID", Limit: stint.PerHour(2)}}
	override, err := stint.NewLimits(names, stint.Override{Key: perID.Key("a"), Limit: day})
	require.NoError(t, err)
	file, err := limitsfile.Parse(names, []byte("perID: {quota: 5, resets: daily, zone: UTC}"))
	require.NoError(t, err)
	l := newLimiter(t, stint.PerHour(2), nil)
	was := l.Limits()
	for name, limits := range map[string]*stint.Limits{
		"default": testLimits(t, day), "override": override, "limits file": file,
	} {
		_, err := Open("redis://127.0.0.1:1", limits, nil)
		for _, err := range []error{err, l.SetLimits(limits)} {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
			require.ErrorContains(t, err, "the server has no calendar", name)
		}
	}
	require.Same(t, was, l.Limits())
	key := perID.Key("a")
	_, err = l.SpendAll(stint.Request{Key: key, Cost: 1, Limit: day})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = l.Refund(stint.Request{Key: key, Cost: 1, Limit: day, Spent: inFuture})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = l.SpendAll(stint.Request{Key: key, Cost: 1, Limit: day, Mode: stint.UpTo})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = l.SpendAll(stint.Request{Key: key, Cost: 1}, stint.Request{Key: other.Key("a"), Cost: 1, Limit: day})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "other:a")
	require.EqualValues(t, 2, l.left(t, key), "nothing was spent")
}

// wrongClock is a Client of a server whose clock is wrong.
type wrongClock struct {
	*rueidisClient
	by time.Duration
}

func (c wrongClock) DoEach(ctx context.Context, args ...string) ([]any, error) {
	replies, err := c.rueidisClient.DoEach(ctx, args...)
	if args[0] == "TIME" && err == nil {
		parts := replies[0].([]any)
		seconds, _ := strconv.ParseInt(parts[0].(string), 10, 64)
		parts[0] = strconv.FormatInt(seconds+int64(c.by/time.Second), 10)
	}
	return replies, err
}

func (c wrongClock) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	if len(args) > 0 && args[0] == "" {
		args = slices.Clone(args)
		args[0] = strconv.FormatInt(time.Now().Add(c.by).UnixNano(), 10)
	}
	return c.rueidisClient.Eval(ctx, command, script, keys, args)
}

// Health says that the server's clock is wrong, and Now returns the server's time
// before the first decision, so that a first spend can be returned.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	for by, want := range map[time.Duration]string{-time.Hour: "behind this", time.Hour: "ahead of this", 0: ""} {
		l := newOn(t, wrongClock{clientAt(t, s.url, 20*time.Second), by}, testLimits(t, stint.PerHour(2)),
			Options{Prefix: prefix})
		if by == 0 {
			require.NoError(t, l.Health())
		} else {
			require.ErrorIs(t, l.Health(), ErrClock)
			require.ErrorContains(t, l.Health(), "the server's is 1h0m0s "+want)
		}
		key, at := perID.Key(by.String()), l.Now()
		require.True(t, l.spend(t, key, 2).Allowed)
		d := l.refund(t, stint.Request{Key: key, Cost: 2, Spent: at})
		require.EqualValues(t, 1, d.Remaining, "all but what has come back since Now")
		require.NoError(t, l.Close())
	}
}

// A CheckOnly request of a lease counts its cost, as one at the server does.
func TestLeasedCheckOnly(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, _ := leaseNode(t, clock, newPrefix(t), stint.PerHour(1000))
	a, b := perID.Key("a"), perID.Key("b")
	l.fill(t, a, 50)
	l.fill(t, b, 50)
	before := l.check(t, a, 5)
	ds := make([]stint.Decision, 2)
	_, err := l.Do(context.Background(), []stint.Request{{Key: a, Cost: 5, Mode: stint.CheckOnly}, {Key: b, Cost: 1}}, ds)
	require.NoError(t, err)
	require.Equal(t, before, ds[0])
}

// During Close, a call that is not made any more is ErrClosed.
func TestSpendDuringClose(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	for range 20 {
		l := s.limiter(t, testLimits(t, stint.PerHour(1_000_000)), func(o *Options) { o.Prefix = newPrefix(t) })
		ended := make(chan error, 8)
		for range cap(ended) {
			go func() {
				for {
					if _, err := l.Spend(perID.Key("a"), 1); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		require.Eventually(t, func() bool { return l.Stats().Trips > 100 }, 20*time.Second, time.Millisecond)
		require.NoError(t, l.Close())
		for range cap(ended) {
			require.ErrorIs(t, <-ended, stint.ErrClosed)
		}
	}
}
