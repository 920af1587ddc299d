package redislimit

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// counter is a Client that counts script calls.
type counter struct {
	*rueidisClient
	calls atomic.Int64
}

func (c *counter) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	if text != script.ProbeText {
		c.calls.Add(1)
	}
	return c.rueidisClient.Eval(ctx, command, text, keys, args)
}

func newCounted(t *testing.T, l stint.Limit, change func(*Options)) (*Limiter, *counter) {
	t.Helper()
	s, prefix := commonServer(t)
	opts := &Options{Timeout: 20 * time.Second, Prefix: prefix}
	if change != nil {
		change(opts)
	}
	c := &counter{rueidisClient: clientAt(t, s.url, opts.Timeout)}
	return newOn(t, c, testLimits(t, l), *opts), c
}

// Ids with odd bytes have a bucket each, with and without a Tag. All limits on an
// id are in one slot.
func TestHostileIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 512)
	ids := []string{"}", "{", "{}", "}{", "\x00", "\xff\xfe", "a", "a}", "{a}", "a}:1", "a}:1:a", "x", "x7d", "7d", ":{7d", "1", "\r\n",
		" ", "*", long, long[1:]}
	for name, tag := range map[string]func(string) string{
		"whole id":   nil,
		"first byte": func(id string) string { return id[:1] },
		"nothing":    func(string) string { return "" },
		"up to }":    func(id string) string { before, _, _ := strings.Cut(id, "}:1:"); return before },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLimiter(t, stint.PerHour(2), func(o *Options) { o.Tag = tag })
			keys := map[string]bool{}
			for i, id := range ids {
				for _, n := range []stint.Name{perID, other} {
					require.True(t, l.spend(t, n.Key(id), 2).Allowed, "id %d shares a bucket", i)
					keys[l.opts.keyOf(n.Key(id))] = true
				}
				slot := script.Slot(l.opts.keyOf(perID.Key(id)))
				require.Equal(t, slot, script.Slot(l.opts.keyOf(other.Key(id))), "id %q", id)
			}
			require.Len(t, keys, 2*len(ids))
			for _, id := range ids {
				require.False(t, l.check(t, perID.Key(id), 1).Allowed)
			}
			require.ErrorIs(t, errorOf(l.Spend(perID.Key(long+"x"), 1)), stint.ErrInvalidID)
			require.ErrorIs(t, errorOf(l.Spend(perID.Key(""), 1)), stint.ErrInvalidID)
			require.ErrorIs(t, errorOf(l.Spend(stint.Name(99).Key("a"), 1)), stint.ErrUnknownName)
		})
	}
}

// A key that is not a bucket leads to an error that names it, and stays as it
// is.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l := newLimiter(t, stint.PerHour(2), func(o *Options) { o.FailOpen = false })
	key := perID.Key("a")
	name := l.opts.keyOf(key)
	for _, value := range []string{"", "x", "-1", "1.5", "0x1", "1e9", "9223372036854775808", " 1", "1 ", "1 2 3 4", "1\n",
		strings.Repeat("1", 40)} {
		s.cli("SET", name, value)
		for range 2 {
			_, err := l.SpendAll(stint.Request{Key: other.Key("a"), Cost: 1}, stint.Request{Key: key, Cost: 1})
			require.ErrorContains(t, err, fmt.Sprintf("key %q", name), "%q", value)
		}
		require.False(t, l.Allow(key))
		require.Equal(t, value, s.cli("GET", name))
	}
	require.ErrorContains(t, l.Health(), name)
	s.cli("DEL", name)
	s.cli("RPUSH", name, "1")
	require.ErrorContains(t, errorOf(l.Spend(key, 1)), fmt.Sprintf("key %q is no string", name))
	require.Equal(t, int64(1), s.cli("LLEN", name))
	s.cli("DEL", name)
	require.True(t, l.spend(t, key, 1).Allowed)
	require.NoError(t, l.Health())
	require.Equal(t, int64(7), l.left(t, other.Key("a")), "nothing was spent of the other bucket")
}

// A key expires when its bucket is full, or its hold is over, and not before.
func TestExpiry(t *testing.T) {
	t.Parallel()
	s, _ := commonServer(t)
	l := newLimiter(t, stint.PerHour(2), nil)
	key := perID.Key("a")
	ttl := func() int64 { return s.cli("PTTL", l.opts.keyOf(key)).(int64) }
	require.Equal(t, 30*time.Minute, l.spend(t, key, 1).ResetAfter)
	require.Greater(t, ttl(), (29 * time.Minute).Milliseconds())
	require.LessOrEqual(t, ttl(), (30*time.Minute).Milliseconds()+1)
	require.NoError(t, errorOf(l.Hold(key, l.Now().Add(10*time.Hour))))
	require.Greater(t, ttl(), (9 * time.Hour).Milliseconds())
	l.refund(t, key.Cost(5).SpentAt(inFuture))
	require.Greater(t, ttl(), (9 * time.Hour).Milliseconds(), "the hold stays")
	require.NoError(t, l.Reset(key))
	require.Equal(t, int64(-2), ttl(), "a full bucket has no key")
}

// A request with three rules of httplimit is one trip. A proxy counts them.
func TestOneTrip(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	p := newProxy(t, s)
	l := openAt(t, p.url, testLimits(t, stint.PerHour(2)), Options{Prefix: prefix})
	l.check(t, perID.Key("a"), 1) // from now on the server knows the script
	rules := []httplimit.Rule{
		{Key: httplimit.ByIP(perID)}, {Key: httplimit.ByIP(other)}, {Key: httplimit.Single(everyone)},
	}
	h := httplimit.Middleware(l, nil, rules...)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	for i, want := range []int{200, 200, 429} {
		before := p.scripts.Load()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		require.Equal(t, want, w.Code)
		require.Equal(t, int64(1), p.scripts.Load()-before, "request %d", i)
	}
}

// After SCRIPT FLUSH the text of the script is sent again, and each spend runs
// once.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l := s.limiter(t, testLimits(t, stint.PerHour(100)), nil)
	for i := range 50 {
		if i%10 == 0 {
			s.cli("SCRIPT", "FLUSH")
		}
		require.Equal(t, int64(99-i), l.spend(t, perID.Key("a"), 1).Remaining)
	}
}

// An exhausted id costs one trip per Options.RepeatDenials.
func TestFresh(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, c := newCounted(t, stint.PerHour(2), func(o *Options) { o.Now = clock.now })
	const ids, seconds = 1000, 3
	key := func(i int) stint.Key { return perID.Key(fmt.Sprint("id", i)) }
	for i := range ids {
		l.spend(t, key(i), 2)
	}
	before := c.calls.Load()
	for range seconds {
		clock.pass(time.Second + 1)
		var callers sync.WaitGroup
		for range 64 {
			callers.Go(func() {
				for i := range ids {
					if d, err := l.Spend(key(i), 1); err != nil || d.Allowed {
						t.Error(d, err)
					}
				}
			})
		}
		callers.Wait()
	}
	trips := float64(c.calls.Load()-before) / (ids * seconds)
	t.Logf("%.3f trips for each id and second", trips)
	require.LessOrEqual(t, trips, 1.1)

	before = c.calls.Load()
	d := l.check(t, key(0), 1)
	require.Equal(t, 30*time.Minute-seconds*(time.Second+1), d.RetryAfter, "exact by the clock")
	require.Equal(t, before, c.calls.Load())
	l.refund(t, key(0).Cost(1).SpentAt(inFuture))
	require.True(t, l.Allow(key(0)), "tokens that this machine returned are there at once")
}

// Machines with different limits on one bucket refill it at most once for each
// start of a node. They do not refill it again and again by turns.
func TestRollOut(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	small, large := stint.PerHour(10), stint.Limit{Burst: 100, Count: 10, Period: time.Hour}
	s, prefix := commonServer(t)
	var nodes []*Limiter
	key, admitted, starts := perID.Key("a"), int64(0), int64(0)
	start := func(l stint.Limit) {
		clock.pass(time.Microsecond)
		nodes = append(nodes, s.limiter(t, testLimits(t, l), func(o *Options) {
			o.Prefix, o.Now, o.RepeatDenials = prefix, clock.now, -1
		}))
		starts++
	}
	begin := clock.now()
	spend := func(rounds int) {
		for range rounds {
			clock.pass(time.Minute)
			for _, n := range nodes {
				for denied := false; !denied; {
					d := n.spend(t, key, 1)
					if denied = !d.Allowed; d.Allowed {
						admitted++
					}
				}
			}
		}
	}
	start(small)
	start(small)
	spend(10)
	start(large)
	start(large)
	spend(10)
	start(small)
	spend(200)
	elapsed := clock.now().Sub(begin)
	most := large.Burst + int64(elapsed/large.Interval()) + starts*large.Burst
	t.Logf("admitted %d of at most %d", admitted, most)
	require.LessOrEqual(t, admitted, most)
	require.GreaterOrEqual(t, admitted, large.Burst+int64(elapsed/large.Interval())-10)
}

// Open reports that the server may evict keys, and so does each later look.
func TestEvicts(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
	limits := testLimits(t, stint.PerHour(2))
	l := s.limiter(t, limits, nil)
	require.ErrorIs(t, l.Health(), ErrEvicts)
	s.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
	require.NoError(t, l.look())
	require.NoError(t, l.Health())
	s.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
	require.NoError(t, l.look())
	require.ErrorIs(t, l.Health(), ErrEvicts)
	require.ErrorContains(t, l.Health(), "allkeys-random")
}

// If the server refuses, the error is clear, and nothing is admitted.
func TestRefusals(t *testing.T) {
	t.Parallel()
	limits := testLimits(t, stint.PerHour(2))
	t.Run("password", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, "--requirepass", "secret")
		require.ErrorContains(t, errorOf(Open(s.url, limits, &Options{Timeout: 10 * time.Second})), "NOAUTH")
	})
	t.Run("no permission", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		l := s.limiter(t, limits, func(o *Options) { o.FailOpen = false })
		s.cli("ACL", "SETUSER", "default", "-evalsha")
		require.ErrorContains(t, errorOf(l.Spend(perID.Key("a"), 1)), "NOPERM")
		require.False(t, l.Allow(perID.Key("a")))
	})
	t.Run("read only", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, "--replicaof", "127.0.0.1 1")
		l := s.limiter(t, limits, nil)
		require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), ErrAway)
		require.ErrorIs(t, l.Health(), ErrAway)
	})
	t.Run("no memory", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		l := s.limiter(t, limits, nil)
		s.cli("CONFIG", "SET", "maxmemory", "1")
		require.ErrorContains(t, errorOf(l.Spend(perID.Key("a"), 1)), "OOM")
	})
	t.Run("too old", func(t *testing.T) {
		t.Parallel()
		s, _ := commonServer(t)
		client := clientAt(t, s.url, 10*time.Second)
		defer client.Close()
		require.ErrorContains(t, errorOf(New(oldServer{client}, limits, nil)), "Redis 4.0.14, want 5.0 or later")
	})
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		s.kill()
		l := s.limiter(t, limits, nil)
		require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), ErrAway)
		s.start()
		require.Eventually(t, func() bool { return l.Allow(perID.Key("a")) }, 20*time.Second, time.Millisecond)
		require.NoError(t, l.Health())
	})
}

type oldServer struct{ Client }

func (oldServer) Do(context.Context, ...string) (any, error) {
	return "# Server\r\nredis_version:4.0.14\r\n", nil
}

// The example of the README: two processes get 20 tokens together.
func TestExample(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	out, err := exec.Command("go", "run", "./example", "-url", s.url, "-id", prefix).CombinedOutput()
	require.NoError(t, err, string(out))
	sum, processes := 0, 0
	for line := range strings.Lines(string(out)) {
		var pid, n int
		require.NoError(t, errorOf(fmt.Sscanf(line, "process %d: %d allowed", &pid, &n)), line)
		sum, processes = sum+n, processes+1
	}
	require.Equal(t, []int{20, 2}, []int{sum, processes})
}

// A held key denies also a request whose own limit is Unlimited.
func TestHoldUnlimitedRequest(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, stint.PerHour(2), nil)
	key := perID.Key("a")
	require.NoError(t, errorOf(l.Hold(key, l.Now().Add(time.Hour))))
	require.False(t, l.spendAll(t, stint.Request{Key: key, Cost: 1, Limit: stint.Unlimited}).Allowed)
	require.NoError(t, l.Reset(key))
	require.True(t, l.spendAll(t, stint.Request{Key: key, Cost: 1, Limit: stint.Unlimited}).Allowed)
	require.Error(t, errorOf(l.Hold(off.Key("a"), l.Now().Add(time.Hour))))
}

// With PlainKeys, keys and values are those of Boulder. A bucket cannot be held, and
// keeps its TAT when its limit becomes smaller.
func TestPlainKeys(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	clock := newTestClock()
	l := s.limiter(t, testLimits(t, stint.PerHour(2)), func(o *Options) { o.PlainKeys, o.Now = true, clock.now })
	key, tat := perID.Key(prefix), clock.now().Add(30*time.Minute).UnixNano()
	require.Equal(t, int64(1), l.spend(t, key, 1).Remaining)
	require.Equal(t, fmt.Sprint(tat), s.cli("GET", "1:"+prefix))
	require.ErrorContains(t, errorOf(l.Hold(key, clock.now().Add(time.Hour))), "PlainKeys")
	require.ErrorContains(t, l.SetHold(key, clock.now().Add(time.Hour)), "PlainKeys")
	require.NoError(t, l.SetLimits(testLimits(t, stint.PerMinute(2))))
	require.Equal(t, 30*time.Minute, l.check(t, key, 1).ResetAfter)
	require.Equal(t, fmt.Sprint(tat), s.cli("GET", "1:"+prefix))
}
