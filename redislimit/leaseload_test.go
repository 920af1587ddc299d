package redislimit

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// TestLeaseTrips counts the trips of two nodes that together decide 10,000 times
// a second on one bucket, by the clock of the test.
func TestLeaseTrips(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit stint.Limit
		most  float64 // trips for 500 decisions
	}{
		{"1,000,000 a minute", stint.PerMinute(1_000_000), 1},
		{"20,000 a second, burst 200,000", stint.PerSecond(20_000).WithBurst(200_000), 1},
		{"20,000 a second", stint.PerSecond(20_000), 4}, // a lease lives for 1/8 s
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			clock, prefix := newTestClock(), newPrefix(t)
			change := func(o *Options) { o.Now, o.Prefix = clock.now, prefix }
			a, ca := newCounted(t, leasedLimit(c.limit), change)
			b, cb := newCounted(t, leasedLimit(c.limit), change)
			seconds := 5
			if testlength.Long {
				seconds = 60
			}
			key, allowed := perID.Key("a"), 0
			before := ca.calls.Load() + cb.calls.Load()
			for range seconds * 5000 {
				clock.pass(200 * time.Microsecond)
				for _, l := range []*Limiter{a, b} {
					d := l.spend(t, key, 1)
					if d.Allowed {
						allowed++
					}
				}
			}
			a.settled(t)
			b.settled(t)
			trips := ca.calls.Load() + cb.calls.Load() - before
			t.Logf("%d decisions, %d trips: one for %.0f", seconds*10_000, trips, float64(seconds*10_000)/float64(trips))
			require.Equal(t, seconds*10_000, allowed)
			require.LessOrEqual(t, float64(trips)*500, c.most*float64(seconds*10_000))
		})
	}
}

const killedEnv = "REDISLIMIT_TEST_KILLED"

// TestLeaseKills kills processes that have leases. The server has counted all
// that they used, and at most a lease more. After Close it has counted no more
// than they used.
func TestLeaseKills(t *testing.T) {
	const burst = 8000
	limit := leasedLimit(stint.Limit{Burst: burst, Count: 1, Period: time.Hour})
	if url := os.Getenv(killedEnv); url != "" {
		killedProcess(t, url, limit)
		return
	}
	t.Parallel()
	kills := testlength.Of(200, 6)
	s := startServer(t)
	l := s.limiter(t, testLimits(t, limit), nil)
	var processes sync.WaitGroup
	var mu sync.Mutex
	worst, total, withheld := int64(0), int64(0), int64(0)
	slots := make(chan struct{}, 2)
	for i := range kills + 2 {
		slots <- struct{}{}
		processes.Go(func() {
			defer func() { <-slots }()
			rnd := rand.New(rand.NewPCG(uint64(i), 15))
			closes := i >= kills
			stopAt := 1 + rnd.Int64N(burst/2)
			key := perID.Key(strconv.Itoa(i))
			used, err := spendAndKill(s.url, key.ID, stopAt, closes)
			if err != nil {
				t.Error(err)
				return
			}
			b, err := l.Bucket(key)
			if err != nil {
				t.Error(err)
				return
			}
			more := burst - b.Remaining - used
			mu.Lock()
			defer mu.Unlock()
			worst, total, withheld = max(worst, more), total+used, withheld+more
			switch {
			case used < stopAt:
				t.Errorf("process %d used %d, want %d", i, used, stopAt)
			case closes && more != 0:
				t.Errorf("process %d used %d and closed, and %d more are spent", i, used, more)
			case more < 0 || more > burst/8+1: // it may have used one more than it said
				t.Errorf("process %d used %d, and %d more are spent", i, used, more)
			}
		})
	}
	processes.Wait()
	t.Logf("%d kills, %d tokens used, none forgotten; withheld %d in all, at most %d of a bucket of %d", kills, total,
		withheld, worst, burst)
}

// spendAndKill starts a process that spends, and kills it when it has reported
// stopAt tokens. It returns the number of tokens that the process reported.
func spendAndKill(url, id string, stopAt int64, closes bool) (used int64, err error) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeaseKills$")
	cmd.Env = append(os.Environ(), killedEnv+"="+url, "REDISLIMIT_TEST_ID="+id)
	if closes {
		cmd.Env = append(cmd.Env, "REDISLIMIT_TEST_CLOSE="+strconv.FormatInt(stopAt, 10))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	in := bufio.NewReader(out)
	for {
		b, err := in.ReadByte()
		if err != nil {
			break
		}
		if b != '.' {
			continue
		}
		if used++; used == stopAt && !closes {
			if err := cmd.Process.Kill(); err != nil {
				return used, err
			}
		}
	}
	err = cmd.Wait()
	var ended *exec.ExitError
	if !closes && errors.As(err, &ended) {
		err = nil
	}
	return used, err
}

// killedProcess prints a dot for each token that it used.
func killedProcess(t *testing.T, url string, limit stint.Limit) {
	most, closes := int64(limit.Burst), false
	if n, err := strconv.ParseInt(os.Getenv("REDISLIMIT_TEST_CLOSE"), 10, 64); err == nil {
		most, closes = n, true
	}
	l := openAt(t, url, testLimits(t, limit), Options{})
	for used := int64(0); used < most; used++ {
		require.True(t, l.spend(t, perID.Key(os.Getenv("REDISLIMIT_TEST_ID")), 1).Allowed)
		os.Stdout.WriteString(".")
	}
	if closes {
		require.NoError(t, l.Close())
		os.Exit(0) // without more output
	}
}

// BenchmarkLeased compares a decision with a lease with an exact one, for one
// caller and for 64.
func BenchmarkLeased(b *testing.B) {
	exact := stint.Limit{Burst: 1e12, Count: 1e9, Period: time.Second}
	for _, c := range []struct {
		name  string
		limit stint.Limit
	}{{"exact", exact}, {"leased", leasedLimit(exact)}} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d callers", c.name, callers), func(b *testing.B) {
				l := newLimiter(b, c.limit, nil)
				for range 20 { // until a lease is large
					l.Allow(perID.Key("a"))
				}
				b.ReportAllocs()
				b.SetParallelism((callers + 1) / 2)
				b.ResetTimer()
				spend := func() {
					if d, err := l.Spend(perID.Key("a"), 1); err != nil || !d.Allowed {
						b.Error(d, err)
					}
				}
				if callers == 1 {
					for b.Loop() {
						spend()
					}
					return
				}
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						spend()
					}
				})
			})
		}
	}
}
