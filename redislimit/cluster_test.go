package redislimit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// node is a server of a cluster.
type node struct {
	*server
	port, bus, id string
}

// startCluster starts three primaries and a replica of each.
func startCluster(t *testing.T) (nodes []node) {
	t.Helper()
	for range 6 {
		nodes = append(nodes, startNode(t))
	}
	for i, n := range nodes {
		n.cli("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < 3 {
			n.cli("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*5461), strconv.Itoa([]int{5460, 10921, 16383}[i]))
		}
		nodes[0].cli("CLUSTER", "MEET", "127.0.0.1", n.port, n.bus)
	}
	acquainted(t, nodes)
	for i, n := range nodes[3:] {
		n.cli("CLUSTER", "REPLICATE", nodes[i].id)
	}
	eventually(t, "the replicas are ready", func() bool {
		return !slices.ContainsFunc(nodes[3:], func(n node) bool { return !n.follows() })
	})
	return nodes
}

// urlOf returns the URL of a cluster.
func urlOf(nodes []node) string {
	url := "redis://127.0.0.1:" + nodes[0].port + "?"
	for _, n := range nodes[1:] {
		url += "&addr=127.0.0.1:" + n.port
	}
	return url
}

// startNode starts a server that can join a cluster, with settings.
func startNode(t *testing.T, args ...string) node {
	t.Helper()
	n := node{port: freePort(t), bus: freePort(t)}
	n.server = startServer(t, append([]string{"--port", n.port, "--cluster-port", n.bus, "--bind", "127.0.0.1",
		"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0"}, args...)...)
	n.id = n.cli("CLUSTER", "MYID").(string)
	return n
}

// acquainted waits until all nodes know each other, and which slots they have.
func acquainted(t *testing.T, nodes []node) {
	t.Helper()
	wanted := []string{"cluster_state:ok\r", "cluster_slots_assigned:16384\r", fmt.Sprintf("cluster_known_nodes:%d\r", len(nodes))}
	eventually(t, "all nodes know each other", func() bool {
		return !slices.ContainsFunc(nodes, func(n node) bool {
			info := fmt.Sprint(n.cli("CLUSTER", "INFO"))
			return slices.ContainsFunc(wanted, func(line string) bool { return !strings.Contains(info, line) })
		})
	})
}

// follows reports whether the node is a replica that has its primary's data.
func (n node) follows() bool {
	return strings.Contains(fmt.Sprint(n.cli("INFO", "replication")), "master_link_status:up")
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, time.Minute, 20*time.Millisecond, what)
}

// In a cluster, requests over two slots go on while a slot moves and while a
// replica takes over. No redirection reaches the caller, and nothing that was
// allowed is lost.
func TestCluster(t *testing.T) {
	t.Parallel()
	calls := testlength.Of[int64](100_000, 3_000)
	nodes := startCluster(t)
	limits := testLimits(t, stint.Limit{Burst: 10 * calls, Count: 2, Period: time.Hour})
	l := openAt(t, urlOf(nodes), limits, Options{Timeout: 5 * time.Second})
	require.True(t, l.server.IsCluster())

	a, b := perID.Key("a"), perID.Key("b")
	owner := func(key stint.Key) int { return min(int(script.Slot(l.opts.keyOf(key)))/5461, 2) }
	require.NotEqual(t, owner(a), owner(b))
	require.Equal(t, int64(script.Slot(l.opts.keyOf(a))), nodes[0].cli("CLUSTER", "KEYSLOT", l.opts.keyOf(a)))
	var made, allowed, away, unknown atomic.Int64
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for made.Add(1) <= calls {
				d, err := l.SpendAll(stint.Request{Key: a, Cost: 1}, stint.Request{Key: b, Cost: 1},
					stint.Request{Key: everyone.Key(""), Cost: 1})
				switch {
				case errors.Is(err, ErrAway), errors.Is(err, ErrBusy):
					away.Add(1)
				case errors.Is(err, ErrNoAnswer):
					unknown.Add(1)
				case err != nil || !d.Allowed:
					t.Error(d, err)
					return
				default:
					allowed.Add(1)
				}
			}
		})
	}
	at := func(part int64) { eventually(t, "calls go on", func() bool { return made.Load() >= calls*part/4 }) }
	at(1)
	from, to, slot := nodes[owner(a)], nodes[owner(b)], strconv.Itoa(int(script.Slot(l.opts.keyOf(a))))
	to.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id)
	from.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
	from.cli("MIGRATE", "127.0.0.1", to.port, l.opts.keyOf(a), "0", "5000")
	to.cli("CLUSTER", "SETSLOT", slot, "NODE", to.id)
	from.cli("CLUSTER", "SETSLOT", slot, "NODE", to.id)
	at(2)
	replica := nodes[3+owner(b)]
	polls := 0
	eventually(t, "the replica takes over", func() bool {
		if polls++; polls%300 == 1 { // on a busy machine it gives up after 5 s
			replica.cli("CLUSTER", "FAILOVER")
		}
		return strings.Contains(fmt.Sprint(replica.cli("INFO", "replication")), "role:master")
	})
	callers.Wait()
	t.Logf("%d allowed, %d away, %d without an answer", allowed.Load(), away.Load(), unknown.Load())
	require.Greater(t, allowed.Load(), calls/2)
	for _, key := range []stint.Key{a, b, everyone.Key("")} {
		eventually(t, "undone spends are returned", func() bool {
			bucket, err := l.Bucket(key)
			spent := 10*calls - bucket.Remaining
			return err == nil && spent >= allowed.Load() && spent <= allowed.Load()+unknown.Load()
		})
	}
}

// Synced decisions also go on while a slot moves to a node that joined after Open,
// and after that.
func TestClusterSyncedMoves(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	l := openAt(t, "redis://127.0.0.1:"+nodes[0].port, testLimits(t, stint.PerHour(20)),
		Options{Durability: stint.Synced, RepeatDenials: -1})
	key := perID.Key("a")
	spend := func(remaining int64) {
		t.Helper()
		require.Equal(t, remaining, l.spend(t, key, 1).Remaining)
	}
	spend(19)

	to, replica := startNode(t), startNode(t)
	for _, n := range []node{to, replica} {
		nodes[0].cli("CLUSTER", "MEET", "127.0.0.1", n.port, n.bus)
	}
	acquainted(t, append(nodes, to, replica))
	replica.cli("CLUSTER", "REPLICATE", to.id)
	eventually(t, "the new replica is ready", replica.follows)

	slot := script.Slot(l.opts.keyOf(key))
	from, number := nodes[min(int(slot)/5461, 2)], strconv.Itoa(int(slot))
	to.cli("CLUSTER", "SETSLOT", number, "IMPORTING", from.id)
	from.cli("CLUSTER", "SETSLOT", number, "MIGRATING", to.id)
	spend(18)
	from.cli("MIGRATE", "127.0.0.1", to.port, l.opts.keyOf(key), "0", "5000")
	spend(17)
	for _, n := range []node{to, from} {
		n.cli("CLUSTER", "SETSLOT", number, "NODE", to.id)
	}
	spend(16)
	spend(15)
}
