package redislimit

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// distant is a Client whose server is some time away.
type distant struct {
	*rueidisClient
	trip  time.Duration // there and back
	calls atomic.Int64
}

func (c *distant) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	c.calls.Add(1)
	reply, err := c.rueidisClient.Eval(context.Background(), command, text, keys, args)
	select {
	case <-time.After(c.trip):
		return reply, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// crowd lets callers spend b.N times, and reports what they saw.
func crowd(b *testing.B, spend func(stint.Key, int64) (stint.Decision, error), callers int, key func(caller int) stint.Key) {
	var running sync.WaitGroup
	var left, admitted, failed, longest atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	for c := range callers {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				begin := time.Now()
				d, err := spend(key(c), 1)
				took := int64(time.Since(begin))
				for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); old = longest.Load() {
				}
				switch {
				case err != nil:
					failed.Add(1)
				case d.Allowed:
					admitted.Add(1)
				}
			}
		})
	}
	running.Wait()
	b.ReportMetric(float64(admitted.Load())/b.Elapsed().Seconds(), "admitted/s")
	b.ReportMetric(100*float64(failed.Load())/float64(b.N), "%errors")
	b.ReportMetric(float64(longest.Load())/1e6, "longest-ms")
}

func (s *server) distant(b *testing.B, trip time.Duration, limit stint.Limit, fresh time.Duration) *Limiter {
	return newOn(b, &distant{rueidisClient: clientAt(b, s.url, time.Second), trip: trip}, testLimits(b, limit),
		Options{Timeout: 100 * time.Millisecond, Prefix: newPrefix(b), RepeatDenials: fresh})
}

// BenchmarkCrowd compares leases with exact decisions for 200 callers of one
// bucket that refills fast, 5 ms away.
func BenchmarkCrowd(b *testing.B) {
	s, _ := commonServer(b)
	for _, burst := range []int64{8, 100} {
		for _, level := range []stint.Durability{stint.Flushed, stint.Leased} {
			b.Run(fmt.Sprintf("burst %d/%v", burst, level), func(b *testing.B) {
				l := s.distant(b, 5*time.Millisecond,
					stint.Limit{Burst: burst, Count: 20_000, Period: time.Second, Durability: level}, -1)
				crowd(b, l.Spend, 200, func(int) stint.Key { return perID.Key("a") })
			})
		}
	}
}

// BenchmarkDistant has 800 callers of a server that is far away. They take turns
// of half a second with as many that make a call of EVALSHA each, on a machine
// that is idle, and on one that other processes keep busy:
//
//	go test -run '^$' -bench Distant -benchtime 20x
//
// A caller comes back no sooner than a round trip after its last call, even if
// that failed at once.
func BenchmarkDistant(b *testing.B) {
	s, _ := commonServer(b)
	for _, trip := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond} {
		for _, hogs := range []int{0, 8} {
			b.Run(fmt.Sprintf("%v/%d hogs", trip, hogs), func(b *testing.B) {
				l := s.distant(b, trip, stint.PerSecond(1_000_000), time.Second)
				spend := func(key stint.Key) error {
					_, err := l.Spend(key, 1)
					return err
				}
				sha, _ := s.cli("SCRIPT", "LOAD", "return 1").(string)
				plain := func(key stint.Key) error {
					ctx, cancel := context.WithTimeout(context.Background(), l.opts.Timeout)
					defer cancel()
					_, err := l.client.Eval(ctx, "EVALSHA", sha, []string{key.ID}, nil)
					return err
				}
				for range hogs {
					b.Cleanup(hog(b))
				}
				var ours, plains turns
				outages := l.Stats().Outages
				for b.Loop() {
					plains.turn(trip, plain)
					ours.turn(trip, spend)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(ours.errors(), "%errors")
				b.ReportMetric(plains.errors(), "%errors-plain")
				b.ReportMetric(float64(ours.calls)/ours.took.Seconds(), "calls/s")
				b.ReportMetric(float64(plains.calls)/plains.took.Seconds(), "calls/s-plain")
				b.ReportMetric(float64(l.Stats().Outages-outages), "outages")
			})
		}
	}
}

// turns counts the calls of 800 callers.
type turns struct {
	calls, failed int64
	took          time.Duration
}

func (s *turns) errors() float64 { return 100 * float64(s.failed) / float64(s.calls) }

func (s *turns) turn(trip time.Duration, call func(stint.Key) error) {
	var callers sync.WaitGroup
	var calls, failed atomic.Int64
	begun := time.Now()
	for c := range 800 {
		callers.Go(func() {
			key := perID.Key(fmt.Sprint(c))
			for time.Since(begun) < time.Second/2 {
				rest := time.NewTimer(trip)
				if calls.Add(1); call(key) != nil {
					failed.Add(1)
				}
				<-rest.C
			}
		})
	}
	callers.Wait()
	s.calls, s.failed, s.took = s.calls+calls.Load(), s.failed+failed.Load(), s.took+time.Since(begun)
}

const hogEnv = "REDISLIMIT_TEST_HOG"

// hog starts a process that keeps a core busy until stop is called.
func hog(tb testing.TB) (stop func()) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), hogEnv+"=1")
	in, err := cmd.StdinPipe() // if this process ends, so does the hog
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	return func() {
		in.Close()
		cmd.Wait()
	}
}

// beHog keeps a core busy until its input ends.
func beHog() {
	var ended atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	for !ended.Load() {
	}
}

// BenchmarkCold compares leases with exact decisions on 10,000 ids, each of which
// asks so seldom that a lease would be of no use.
func BenchmarkCold(b *testing.B) {
	s, _ := commonServer(b)
	for _, level := range []stint.Durability{stint.Flushed, stint.Leased} {
		b.Run(level.String(), func(b *testing.B) {
			l := s.distant(b, time.Millisecond, stint.Limit{Burst: 1000, Count: 1000, Period: time.Second, Durability: level}, -1)
			before := l.Stats().Trips
			var n atomic.Int64
			crowd(b, l.Spend, 64, func(int) stint.Key { return perID.Key(fmt.Sprint(n.Add(1) % 10_000)) })
			b.ReportMetric(float64(l.Stats().Trips-before)/float64(b.N), "trips/op")
		})
	}
}

// hangs answers nothing but TIME and INFO.
type hangs struct{ slow }

func (*hangs) Eval(ctx context.Context, _, _ string, _, _ []string) (any, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Timeout bounds the time that callers wait for a lease, also if they come while
// another question is under way, and whether the server answers or not.
func TestLeaseTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	for name, client := range map[string]Client{"hangs": new(hangs), "answers late": newModelServer(90 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newOn(t, client, testLimits(t, leasedLimit(stint.PerMinute(10_000))), Options{Timeout: timeout})
				var callers sync.WaitGroup
				var decided atomic.Int64
				for i := range 50 {
					callers.Go(func() {
						time.Sleep(time.Duration(i) * 3 * time.Millisecond)
						begin := time.Now()
						_, err := l.Spend(perID.Key("a"), 1)
						if took := time.Since(begin); took > timeout {
							t.Error(took, err)
						}
						if err == nil {
							decided.Add(1)
						} else if !script.IsAway(err) {
							require.ErrorIs(t, err, ErrBusy)
							require.ErrorContains(t, err, "perID:a")
						}
					})
				}
				callers.Wait()
				require.Equal(t, name != "hangs", decided.Load() > 0)
			})
		})
	}
}
