package redisclients_test

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/examples/redisclients"
	"github.com/stint-go/stint/redislimit"
)

// startCluster starts three primaries without replicas.
func startCluster(t *testing.T) (addrs []string, processes []*os.Process) {
	for i := range 3 {
		dir := t.TempDir()
		bus := freePort()
		addr, process, stop := start("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--dir", dir,
			"--cluster-port", bus)
		t.Cleanup(stop)
		addrs, processes = append(addrs, addr), append(processes, process)
		node := redis.NewClient(&redis.Options{Addr: addr})
		defer node.Close()
		slots := []string{"0", "5461", "10922", "16384"}
		last, _ := strconv.Atoi(slots[i+1])
		for _, args := range [][]any{{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
			{"CLUSTER", "ADDSLOTSRANGE", slots[i], last - 1}} {
			if err := node.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if i == 0 {
			continue
		}
		host, port, _ := net.SplitHostPort(addr)
		first := redis.NewClient(&redis.Options{Addr: addrs[0]})
		defer first.Close()
		if err := first.Do(t.Context(), "CLUSTER", "MEET", host, port, bus).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, addr := range addrs {
		node := redis.NewClient(&redis.Options{Addr: addr})
		defer node.Close()
		poll(t, "the nodes know each other", func() bool {
			info, err := node.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return addrs, processes
}

func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute:", what)
		}
	}
}

// plain hides that a Client knows whether its server is a cluster.
type plain struct{ redislimit.Client }

// If one node of a cluster hangs, at Open or later, the others decide.
func TestClusterHangs(t *testing.T) {
	addrs, processes := startCluster(t)
	limit := stint.PerHour(1_000_000)
	goRedis := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true, DialerRetries: 1,
		DialTimeout: 100 * time.Millisecond, ReadTimeout: 100 * time.Millisecond})
	defer goRedis.Close()
	slots := func(key string) int { // the node of a key
		slot, err := goRedis.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		return min(int(slot)/5461, 2)
	}
	const ids = 36
	owner := make([]int, ids)
	for i := range owner {
		owner[i] = slots(fmt.Sprintf("stint:{%d}:1", i))
	}
	pools := map[string]func() (redislimit.Client, func()){
		"go-redis": func() (redislimit.Client, func()) {
			pool := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true, DialerRetries: 1,
				DialTimeout: 100 * time.Millisecond, ReadTimeout: 100 * time.Millisecond})
			return redisclients.GoRedis{Pool: pool}, func() { pool.Close() }
		},
		"go-redis, plain": func() (redislimit.Client, func()) {
			pool := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true, DialerRetries: 1,
				DialTimeout: 100 * time.Millisecond, ReadTimeout: 100 * time.Millisecond})
			return plain{redisclients.GoRedis{Pool: pool}}, func() { pool.Close() }
		},
		"valkey-go": func() (redislimit.Client, func()) {
			pool, err := valkey.NewClient(valkey.ClientOption{InitAddress: addrs, DisableCache: true,
				Dialer: net.Dialer{Timeout: 100 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			return redisclients.ValkeyGo{Pool: pool}, pool.Close
		},
	}
	for name, openPool := range pools {
		for hung, process := range processes {
			decide := func(lim *redislimit.Limiter, all bool) bool {
				for i := range ids {
					if owner[i] == hung && !all {
						continue
					}
					d, err := lim.Spend(perAccount.Key(strconv.Itoa(i)), 1)
					if err != nil || d.Limit != limit {
						return false
					}
				}
				return true
			}
			process.Signal(syscall.SIGSTOP)
			begin := time.Now()
			client, closePool := openPool()
			lim := open(t, client, limit, redislimit.Options{Timeout: 100 * time.Millisecond, Away: redislimit.AwayOpen, RepeatDenials: -1})
			poll(t, "the other shards decide", func() bool { return decide(lim, false) })
			t.Logf("%s, node %d hangs at Open: the others decide after %v", name, hung, time.Since(begin))
			process.Signal(syscall.SIGCONT)
			poll(t, "all shards decide", func() bool { return decide(lim, true) })
			process.Signal(syscall.SIGSTOP)
			done := make(chan struct{})
			var callers sync.WaitGroup
			for i := range ids {
				callers.Go(func() { // also of the node that hangs
					tick := time.NewTicker(10 * time.Millisecond)
					defer tick.Stop()
					for {
						select {
						case <-done:
							return
						case <-tick.C:
							lim.Spend(perAccount.Key(strconv.Itoa(i)), 1)
						}
					}
				})
			}
			poll(t, "the shard is away", func() bool { return !lim.Stats().AwaySince.IsZero() })
			begin = time.Now()
			poll(t, "the other shards decide", func() bool { return decide(lim, false) })
			t.Logf("%s, node %d hangs later: the others decide after %v", name, hung, time.Since(begin))
			close(done)
			callers.Wait()
			process.Signal(syscall.SIGCONT)
			poll(t, "all shards decide", func() bool { return decide(lim, true) })
			lim.Close()
			closePool()
		}
	}
}
