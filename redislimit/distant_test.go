package redislimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// stalling is a Client whose server is some time away, and stands still now and
// then. With a slice, this machine is busy: the process runs at multiples of the
// slice only, and the server half a slice later.
type stalling struct {
	slow
	begun time.Time
	trip  time.Duration // there and back
	every time.Duration // from one stall to the next
	lasts time.Duration // a stall
	slice time.Duration
}

func (c *stalling) Eval(ctx context.Context, _, _ string, keys, _ []string) (any, error) {
	now := time.Since(c.begun)
	arrives := now + c.trip/2
	arrives += max(0, c.lasts-arrives%c.every)
	ends := arrives + c.trip/2
	if c.slice > 0 {
		ends = c.runs(c.runs(arrives+c.slice/2) - c.slice/2 + c.trip/2)
	}
	return after(ctx, ends-now, allows(len(keys)), nil)
}

// runs returns when the process next runs.
func (c *stalling) runs(at time.Duration) time.Duration {
	return (at + c.slice - 1) / c.slice * c.slice
}

// rest waits until a caller comes back.
func (c *stalling) rest(rnd *rand.Rand) {
	if c.slice == 0 {
		time.Sleep(time.Duration(rnd.Int64N(int64(5 * time.Millisecond))))
		return
	}
	now := time.Since(c.begun)
	time.Sleep(c.runs(now) - now)
}

// load has 800 callers, none of which comes back sooner than a round trip after
// its last call. It returns how many calls in a hundred fail.
func (c *stalling) load(lasting time.Duration, call func(stint.Key) error) float64 {
	begun := time.Now()
	var running sync.WaitGroup
	var mu sync.Mutex
	calls, failed := 0, 0
	for i := range 800 {
		running.Go(func() {
			key, rnd := perID.Key(fmt.Sprint(i)), rand.New(rand.NewPCG(uint64(i), 1))
			for time.Since(begun) < lasting {
				c.rest(rnd)
				asked := time.Now()
				err := call(key)
				mu.Lock()
				if calls++; err != nil {
					failed++
				}
				mu.Unlock()
				if left := c.trip - time.Since(asked); left > 0 { // the race detector may crash at timers that are over
					<-time.After(left)
				}
			}
		})
	}
	running.Wait()
	return 100 * float64(failed) / float64(calls)
}

// If a server that is 20 ms away stands still now and then, or this machine is
// busy, 800 callers have at most one more error in a hundred calls than if each of
// them made a call of its own.
func TestDistant(t *testing.T) {
	t.Parallel()
	slices, stalls, lasting := []time.Duration{0, 40}, []time.Duration{0, 60, 90}, 1400*time.Millisecond
	if testlength.Long {
		slices, stalls, lasting = []time.Duration{0, 10, 30, 40, 50}, []time.Duration{0, 30, 60, 90, 120}, 5*time.Second
	}
	for _, slice := range slices {
		for _, lasts := range stalls {
			t.Run(fmt.Sprintf("slices of %d ms, stalls of %d ms", slice, lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := &stalling{begun: time.Now(), trip: 20 * time.Millisecond, every: 700 * time.Millisecond,
						lasts: lasts * time.Millisecond, slice: slice * time.Millisecond}
					l := newOn(t, c, testLimits(t, stint.PerSecond(1_000_000)), Options{Timeout: 100 * time.Millisecond})
					// Callers fail together, a few times in each load, so one round may have
					// too many of them.
					var plain, ours float64
					for rounds := 1.0; ; rounds++ {
						plain += c.load(lasting, func(stint.Key) error {
							ctx, cancel := context.WithTimeout(context.Background(), l.opts.Timeout)
							defer cancel()
							_, err := c.Eval(ctx, "", "", nil, nil)
							return err
						})
						ours += c.load(lasting, func(key stint.Key) error {
							_, err := l.Spend(key, 1)
							return err
						})
						t.Logf("%.2f %% errors, plain calls %.2f %%; away %d times", ours/rounds, plain/rounds, l.Stats().Outages)
						if ours <= plain+rounds {
							break
						}
						require.Less(t, rounds, 5.0, "rounds")
					}
				})
			})
		}
	}
}
