package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit"

	"github.com/stint-go/stint/bench/turns"
)

// BenchmarkShared compares redislimit with redis_rate on one server:
//
//	go test -run '^$' -bench Shared -benchtime 40x
//
// Each iteration is a turn of both, of a quarter of a second each. The figures
// are decisions a second in the median turn, and the median of the turns'
// ratios. Every decision allows, so none is answered without the server.
func BenchmarkShared(b *testing.B) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		b.Skip("skipped, because it needs redis-server; on Debian: apt-get install redis-server")
	}
	addr := startShared(b)
	for _, ids := range []int{10_000, 1} {
		for _, callers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("ids=%d/callers=%d", ids, callers), func(b *testing.B) {
				ours, theirs := openShared(b, addr, callers)
				var speeds, others, ratios []float64
				share(theirs, ids, callers)
				share(ours, ids, callers)
				for range b.N {
					their, our := share(theirs, ids, callers), share(ours, ids, callers)
					speeds, others = append(speeds, our), append(others, their)
					ratios = append(ratios, our/their)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(middle(speeds), "redislimit/s")
				b.ReportMetric(middle(others), "redis_rate/s")
				b.ReportMetric(middle(ratios), "ratio")
			})
		}
	}
}

func middle(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// share lets the callers decide for a turn, and returns decisions a second.
func share(allow func(id string), ids, callers int) float64 {
	var done sync.WaitGroup
	var decided atomic.Int64
	begun := time.Now()
	for range callers {
		done.Go(func() {
			n := int64(0)
			for ; time.Since(begun) < 250*time.Millisecond; n++ {
				allow(fmt.Sprintf("id%020d", rand.IntN(ids)))
			}
			decided.Add(n)
		})
	}
	done.Wait()
	return float64(decided.Load()) / time.Since(begun).Seconds()
}

// openShared returns two functions that decide, by redislimit and redis_rate.
// Both may open a connection for each caller.
func openShared(b *testing.B, addr string, callers int) (ours, theirs func(id string)) {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: max(10, callers), MinIdleConns: callers})
	b.Cleanup(func() { client.Close() })
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: 1_000_000, Burst: 1_000_000, Period: time.Second}
	theirs = func(id string) {
		r, err := limiter.Allow(context.Background(), id, limit)
		must(err)
		if r.Allowed != 1 {
			panic("denied")
		}
	}

	const perID = stint.Name(1)
	limits, err := stint.NewLimits(stint.Names{perID: {Label: "perID", Limit: stint.PerSecond(1_000_000)}})
	must(err)
	shared, err := redislimit.Open("redis://"+addr, limits, &redislimit.Options{Timeout: 10 * time.Second})
	must(err)
	b.Cleanup(func() { shared.Close() })
	ours = func(id string) {
		d, err := shared.Spend(perID.Key(id), 1)
		must(err)
		if !d.Allowed {
			panic("denied")
		}
	}
	return ours, theirs
}

// startShared starts a server on the loopback interface.
func startShared(b *testing.B) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	addr = ln.Addr().String()
	ln.Close()
	_, port, _ := net.SplitHostPort(addr)
	server := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", b.TempDir())
	server.SysProcAttr = turns.DieWithParent()
	out, err := server.StdoutPipe()
	must(err)
	must(server.Start())
	b.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "eady to accept connections") {
			return addr
		}
	}
	b.Fatal("redis-server did not start")
	return ""
}
