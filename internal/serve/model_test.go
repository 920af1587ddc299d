package serve

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/resp/resptest"
	"github.com/stint-go/stint/internal/testlength"
)

// cell is redis-cell's arithmetic, written down from what its source says: times
// of tokens cut to nanoseconds by a float, a bucket that is absent when its time
// has passed, and numbers left that are computed in microseconds.
type cell struct {
	tats map[string]int64
}

// cellReply has times in nanoseconds. retry is -1 if it was allowed, or never will
// be.
type cellReply struct {
	limited                        bool
	limit, remaining, reset, retry int64
	fast                           bool // more than 1,000 tokens a second
}

func (c *cell) throttle(now int64, key string, burst, count, period, quantity int64) cellReply {
	interval := int64(float64(period*1e9) / float64(count))
	tolerance := interval * (burst + 1)
	increment := interval * quantity
	tat, ok := c.tats[key]
	if !ok || tat < now {
		tat = now
	}
	r := cellReply{limit: burst + 1, retry: -1, fast: interval < 1e6}
	next := tat + increment
	ttl := next - now
	if early := ttl - tolerance; early > 0 {
		r.limited = true
		if ttl = tat - now; increment <= tolerance {
			r.retry = early
		}
	} else {
		c.tats[key] = next
	}
	if left := tolerance - ttl; left > -interval {
		if r.fast {
			r.remaining = max(0, left) / interval
		} else {
			// Without max this is redis-cell's: -1 for some time after a limit was made
			// smaller.
			r.remaining = max(0, int64(float64(left/1000)/float64(interval/1000)))
		}
	}
	r.reset = ttl
	return r
}

// text is the reply. The time under a millisecond is the difference to redis-cell:
// it is cut there.
func (r cellReply) text() string {
	seconds := func(d int64) int64 {
		if d < 0 {
			return -1
		}
		whole, rest := d/1e9, d%1e9
		if rest/1e6 > 0 || rest > 0 { // redis-cell has the first condition only
			whole++
		}
		return whole
	}
	limited := 0
	if r.limited {
		limited = 1
	}
	return fmt.Sprintf("*5\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n", limited, r.limit, r.remaining, seconds(r.retry), seconds(r.reset))
}

// newTestServer returns a server in this process, with limits that are numbered
// from 2.
func newTestServer(t testing.TB, clock *modeltest.Clock, names stint.Names) *server {
	return newTestServerAt(t, filepath.Join(t.TempDir(), "limits.db"), clock, names)
}

// newTestServerAt returns such a server of the file at a path.
func newTestServerAt(t testing.TB, path string, clock *modeltest.Clock, names stint.Names) *server {
	const throttle = stint.Name(1)
	all := stint.Names{throttle: {Label: ThrottleLabel, Limit: stint.Unlimited}}
	maps.Copy(all, names)
	limits, err := stint.NewLimits(all)
	require.NoError(t, err)
	limiter, err := hostlimit.Open(path, limits, &hostlimit.Options{
		TakeoverTimeout: 20 * time.Second, LimiterOptions: stint.Options{Now: clock.Now}})
	require.NoError(t, err)
	t.Cleanup(func() { limiter.Close() })
	s := &server{limiter: limiter, throttle: throttle, durability: stint.Flushed, ending: t.Context(), most: 1024}
	s.labels = map[string]stint.Name{}
	for name, spec := range names {
		s.labels[spec.Label] = name
	}
	return s
}

// In random histories, with limits that change, alone and in pipelines, the
// replies are those of redis-cell, with the differences that docs/serve.md lists.
func TestServeModel(t *testing.T) {
	histories := 20_000
	if testlength.Long {
		histories = 50_000
	}
	clock := modeltest.NewClock()
	clock.Set(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	random := rand.New(rand.NewPCG(1, uint64(histories)))
	model := &cell{tats: map[string]int64{}}
	c := &serveConn{server: newTestServer(t, clock, nil), known: true}
	denied, rounded := 0, 0
	for first := 0; first < histories; first += 4 { // four keys at a time, each with a history
		burst, count, period := random.Int64N(20), 1+random.Int64N(30), 1+random.Int64N(60)
		switch random.IntN(8) {
		case 0:
			period, count = 86400, 1+random.Int64N(1000)
		case 1: // a year
			period, count = 31_536_000+random.Int64N(1000), 1+random.Int64N(1000)
		case 2: // more than 1,000 a second
			period, count = 1, 1001+random.Int64N(1_000_000)
		}
		steps := 3 + random.IntN(20)
		for range steps {
			if random.IntN(20) == 0 {
				burst, count = random.Int64N(20), 1+random.Int64N(30)
			}
			interval := min(period*1e9/count, int64(10*time.Minute)) // so that the clock stays in this century
			switch random.IntN(4) {
			case 0:
				clock.Advance(time.Duration(random.Int64N(2*interval + 1)))
			case 1:
				clock.Advance(time.Duration(interval))
			case 2:
				clock.Advance(time.Duration(random.Int64N(interval*(burst+2) + 1)))
			}
			var want strings.Builder
			for range 1 + random.IntN(3) {
				key := fmt.Sprintf("key:%d", first+random.IntN(4))
				quantity := []int64{0, 1, 1, 1, 2, burst + 1, burst + 2, random.Int64N(burst + 3)}[random.IntN(8)]
				words := fmt.Sprintf("CL.THROTTLE %s %d %d %d %d", key, burst, count, period, quantity)
				if quantity == 1 && random.IntN(2) == 0 {
					words = strings.TrimSuffix(words, " 1")
				}
				var command [][]byte
				for _, word := range strings.Fields(words) {
					command = append(command, []byte(word))
				}
				c.do(command)
				r := model.throttle(clock.Nanos(), key, burst, count, period, quantity)
				want.WriteString(r.text())
				if r.limited {
					denied++
				}
				if rest := r.reset % 1e9; rest > 0 && rest < 1e6 {
					rounded++
				}
			}
			c.decide()
			require.Equal(t, want.String(), string(c.out.Buf), "burst %d, %d/%ds", burst, count, period)
			c.out.Buf = c.out.Buf[:0]
		}
	}
	t.Logf("%d denied, %d rounded up from less than a millisecond", denied, rounded)
	require.NotZero(t, denied*rounded)
}

// A client that does not read its replies is closed, and others do not wait.
func TestServeSlowReader(t *testing.T) {
	s := newTestServer(t, modeltest.NewClock(), nil)
	connect := func(timeout time.Duration) net.Conn {
		ours, its := net.Pipe() // has no buffer
		c := newServeConn(s, its, 1)
		c.writeTimeout = timeout
		s.serving.Go(c.serve)
		return ours
	}
	slow := connect(50 * time.Millisecond)
	_, err := io.WriteString(slow, resptest.Encoded("PING"))
	require.NoError(t, err)
	other := connect(time.Hour)
	for range 100 {
		_, err := io.WriteString(other, resptest.Encoded("PING"))
		require.NoError(t, err)
		b := make([]byte, 7)
		_, err = io.ReadFull(other, b)
		require.NoError(t, err)
		require.Equal(t, "+PONG\r\n", string(b))
	}
	require.NoError(t, other.Close())
	s.serving.Wait() // also for the slow one, which nobody reads or closes
}

// A connection takes at most 64 KiB, whatever the client sends.
func TestServeMemory(t *testing.T) {
	s := newTestServer(t, modeltest.NewClock(), nil)
	long := strings.Repeat("k", 480)
	var keys strings.Builder // each once
	for i := range 3000 {
		keys.WriteString(resptest.Encoded(fmt.Sprintf("CL.THROTTLE %s%d 1 1 1", long, i)))
	}
	for name, sent := range map[string]string{
		"keys":       keys.String(),
		"short":      strings.Repeat("COMMAND\n", 9000),
		"largest":    strings.Repeat("*2\r\n$4\r\nECHO\r\n$16000\r\n"+strings.Repeat("x", 16000)+"\r\n", 20),
		"incomplete": "*64\r\n" + strings.Repeat("$200\r\n"+strings.Repeat("x", 200)+"\r\n", 63),
		"docs":       strings.Repeat("COMMAND DOCS\n", 3000),
		"exec":       "MULTI\n" + strings.Repeat("COMMAND\n", 500) + "EXEC\n",
		"name": resptest.Encoded("CLIENT SETNAME "+strings.Repeat("n", 16_000)) +
			resptest.Encoded("HELLO 2 SETNAME "+strings.Repeat("n", 16_000)) + keys.String(),
	} {
		t.Run(name, func(t *testing.T) {
			ours, its := net.Pipe()
			c := newServeConn(s, its, 1)
			most, done := 0, make(chan struct{})
			c.measured = func() { most = max(most, c.size()) }
			s.serving.Go(func() {
				defer close(done)
				c.serve()
			})
			go func() { _, _ = io.Copy(io.Discard, ours) }()
			_, err := io.WriteString(ours, sent)
			require.NoError(t, err)
			require.NoError(t, ours.Close())
			<-done
			most = max(most, c.size())
			t.Logf("%d bytes", most)
			require.LessOrEqual(t, most, 64<<10)
			require.NotZero(t, most)
		})
	}
}

// size returns the bytes that the connection keeps.
func (c *serveConn) size() int {
	n := c.in.Size() + len(c.name) + cap(c.out.Buf) + cap(c.throttles)*int(unsafe.Sizeof(throttle{})) +
		cap(c.requests)*int(unsafe.Sizeof(stint.Request{})) + cap(c.decisions)*int(unsafe.Sizeof(stint.Decision{}))
	for _, r := range c.requests {
		n += len(r.Key.ID)
	}
	if c.transaction != nil {
		n += c.transaction.size + cap(c.transaction.queued)*int(unsafe.Sizeof([][]byte{}))
	}
	return n
}
