package redislimit

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/model"
)

// modelServer is a Client of a server that is some time away and decides on spends
// and leases as the scripts do, by the clock of the test.
type modelServer struct {
	slow
	trip    time.Duration // there and back
	mu      sync.Mutex
	buckets map[string]*model.Lease
	leases  int // calls of the lease script
	exact   int // of the other one
}

func newModelServer(trip time.Duration) *modelServer {
	return &modelServer{trip: trip, buckets: make(map[string]*model.Lease)}
}

func (c *modelServer) Eval(ctx context.Context, _, text string, keys, args []string) (any, error) {
	if _, err := after(ctx, c.trip/2, nil, nil); err != nil {
		return nil, err
	}
	reply := c.decide(time.Now().UnixNano(), text, keys, args)
	return after(ctx, c.trip-c.trip/2, reply, nil)
}

func (c *modelServer) decide(now int64, text string, keys, args []string) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if c.buckets[key] == nil {
			c.buckets[key] = new(model.Lease)
		}
	}
	if text == leaseSHA {
		c.leases++
		reply := []any{fmt.Sprint(now)}
		for i, key := range keys {
			var a [12]int64
			for j := range a {
				a[j], _ = strconv.ParseInt(args[2+12*i+j], 10, 64)
			}
			answer := c.buckets[key].Step(now, 0, a)
			reply = append(reply, fmt.Sprint(answer.Granted), fmt.Sprint(answer.TAT), fmt.Sprint(answer.Wait), "")
		}
		return reply
	}
	if len(args) < 2+len(keys) {
		return nil // a probe
	}
	c.exact++
	reply := fmt.Sprint(now/1e9, now%1e9)
	for i, key := range keys {
		b, need, tolerance := c.buckets[key], duration(args[2+i], 0), duration(args[2+i], 1)
		tat, wait, allowed := max(b.TAT, now)+need, int64(0), 1
		if wait = max(0, tat-now-tolerance); wait > 0 {
			tat, allowed = b.TAT, 0
		} else if args[2+i][0] == 's' {
			b.TAT = tat
		}
		reply += " " + fmt.Sprint(allowed, tat/1e9, tat%1e9, wait/1e9, wait%1e9, 0, 0)
	}
	return reply
}

// duration returns the i-th duration of what the script gets for a request.
func duration(record string, i int) int64 {
	at := []byte(record[3+16*i:])
	seconds := math.Float64frombits(binary.BigEndian.Uint64(at))
	return int64(seconds)*1e9 + int64(math.Float64frombits(binary.BigEndian.Uint64(at[8:])))
}

// crowded is what callers saw who spent for a while.
type crowded struct {
	admitted, failed, leases, exact int
	longest                         time.Duration
}

// crowd lets callers spend for a while, each without a pause. A caller's key
// follows from the number of its call.
func (c *modelServer) crowd(t *testing.T, limit stint.Limit, callers int, lasting time.Duration,
	key func(call int64) stint.Key) (saw crowded) {
	synctest.Test(t, func(t *testing.T) {
		l := newOn(t, c, testLimits(t, limit), Options{Timeout: 100 * time.Millisecond, RepeatDenials: -1})
		var mu sync.Mutex
		var running sync.WaitGroup
		var calls atomic.Int64
		begun := time.Now()
		for range callers {
			running.Go(func() {
				for time.Since(begun) < lasting {
					begin := time.Now()
					d, err := l.Spend(key(calls.Add(1)), 1)
					took := time.Since(begin)
					mu.Lock()
					saw.longest = max(saw.longest, took)
					if err != nil {
						saw.failed++
					} else if d.Allowed {
						saw.admitted++
					}
					mu.Unlock()
					if took == 0 {
						time.Sleep(100 * time.Microsecond) // the caller is busy for so long
					}
				}
			})
		}
		running.Wait()
	})
	saw.leases, saw.exact = c.leases, c.exact
	return saw
}

// Many callers of one bucket with a small burst, which refills fast, get as much
// with leases as without, and none of them waits for long.
func TestLeasedCrowd(t *testing.T) {
	t.Parallel()
	for _, burst := range []int64{8, 100} {
		t.Run(fmt.Sprintf("burst %d", burst), func(t *testing.T) {
			saw := make(map[stint.Durability]crowded)
			for _, level := range []stint.Durability{stint.Flushed, stint.Leased} {
				limit := stint.Limit{Burst: burst, Count: 20_000, Period: time.Second, Durability: level}
				saw[level] = newModelServer(5*time.Millisecond).crowd(t, limit, 200, time.Second,
					func(int64) stint.Key { return perID.Key("a") })
				t.Logf("%v: %+v", level, saw[level])
			}
			require.GreaterOrEqual(t, float64(saw[stint.Leased].admitted), 0.9*float64(saw[stint.Flushed].admitted))
			require.LessOrEqual(t, saw[stint.Leased].longest, 120*time.Millisecond)
			require.Zero(t, saw[stint.Leased].failed)
		})
	}
}

// Ids that ask seldom get no leases, so that their callers share calls.
func TestLeasedCold(t *testing.T) {
	t.Parallel()
	saw := make(map[stint.Durability]crowded)
	for _, level := range []stint.Durability{stint.Flushed, stint.Leased} {
		limit := stint.Limit{Burst: 1000, Count: 1000, Period: time.Second, Durability: level}
		saw[level] = newModelServer(time.Millisecond).crowd(t, limit, 64, time.Second,
			func(call int64) stint.Key { return perID.Key(fmt.Sprint(call % 10_000)) })
		t.Logf("%v: %+v", level, saw[level])
	}
	flushed, leased := saw[stint.Flushed], saw[stint.Leased]
	require.LessOrEqual(t, float64(leased.exact+leased.leases), 1.1*float64(flushed.exact))
	// The order in which goroutines run decides how many share a call: on a busy machine the
	// levels differed by a sixth, either way.
	require.GreaterOrEqual(t, float64(leased.admitted), 0.75*float64(flushed.admitted))
}
