package redislimit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
	}
	acquainted(t, nodes)
	for i, n := range nodes[3:] {
		n.cli("CLUSTER", "REPLICATE", nodes[i].id)
	}
	eventually(t, "the replicas are ready", func() bool {
		return !slices.ContainsFunc(nodes[3:], func(n node) bool { return !n.follows() })
	})
	agreed(t, nodes)
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

// acquainted lets the first node meet the others, and waits until all know each other, and
// which slots they have. They meet again every 3 s, because a node that does not answer
// within 2 s is forgotten.
func acquainted(t *testing.T, nodes []node) {
	t.Helper()
	wanted := []string{"cluster_state:ok\r", "cluster_slots_assigned:16384\r", fmt.Sprintf("cluster_known_nodes:%d\r", len(nodes))}
	polls := 0
	eventually(t, "all nodes know each other", func() bool {
		if polls++; polls%150 == 1 {
			for _, n := range nodes[1:] {
				nodes[0].cli("CLUSTER", "MEET", "127.0.0.1", n.port, n.bus)
			}
		}
		return !slices.ContainsFunc(nodes, func(n node) bool {
			info := fmt.Sprint(n.cli("CLUSTER", "INFO"))
			return slices.ContainsFunc(wanted, func(line string) bool { return !strings.Contains(info, line) })
		})
	})
}

// agreed waits until all nodes know the same about each node. Before that, a replica may
// have no votes, and not serve slots of which it has not heard.
func agreed(t *testing.T, nodes []node) {
	t.Helper()
	eventually(t, "all nodes know the same", func() bool {
		known := nodes[0].knows()
		return len(known) == len(nodes) &&
			!slices.ContainsFunc(nodes[1:], func(n node) bool { return !slices.Equal(n.knows(), known) })
	})
}

// knows returns what the node knows about each node: its id, whether it is a primary or a
// replica, and of which, its epoch and its slots.
func (n node) knows() (lines []string) {
	text := strings.TrimPrefix(fmt.Sprint(n.cli("CLUSTER", "NODES")), "txt:")
	for line := range strings.Lines(strings.ReplaceAll(text, "myself,", "")) {
		if fields := strings.Fields(line); len(fields) >= 8 { // also address, two times, and the state of the link
			lines = append(lines, strings.Join(append([]string{fields[0], fields[2], fields[3], fields[6]}, fields[8:]...), " "))
		}
	}
	slices.Sort(lines)
	return lines
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
	const burst = 1_000_000
	l := openAt(t, urlOf(nodes), testLimits(t, stint.Limit{Burst: burst, Count: 2, Period: time.Hour}), Options{Timeout: 5 * time.Second})
	require.True(t, l.server.IsCluster())

	a, b := perID.Key("a"), perID.Key("b")
	owner := func(key stint.Key) int { return min(int(script.Slot(l.opts.keyOf(key)))/5461, 2) }
	require.NotEqual(t, owner(a), owner(b))
	require.Equal(t, int64(script.Slot(l.opts.keyOf(a))), nodes[0].cli("CLUSTER", "KEYSLOT", l.opts.keyOf(a)))
	var allowed, away, unknown atomic.Int64
	first := func(n *atomic.Int64, err error) {
		if n.Add(1) == 1 {
			t.Log(err)
		}
	}
	during := func(change func()) { // makes calls before a change, until it has ended, and after it
		var made, most atomic.Int64
		most.Store(math.MaxInt64)
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				for made.Add(1) <= most.Load() {
					d, err := l.SpendAll(stint.Request{Key: a, Cost: 1}, stint.Request{Key: b, Cost: 1},
						stint.Request{Key: everyone.Key(""), Cost: 1})
					switch {
					case errors.Is(err, ErrAway), errors.Is(err, ErrBusy):
						first(&away, err)
					case errors.Is(err, ErrNoAnswer):
						first(&unknown, err)
					case err != nil || !d.Allowed:
						t.Error(d, err)
						return
					default:
						allowed.Add(1)
					}
				}
			})
		}
		defer callers.Wait()
		defer func() { most.Store(made.Load() + calls/4) }()
		eventually(t, "calls go on", func() bool { return made.Load() >= calls/4 })
		change()
	}

	from, to, slot := nodes[owner(a)], nodes[owner(b)], strconv.Itoa(int(script.Slot(l.opts.keyOf(a))))
	during(func() {
		to.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id)
		from.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
		from.cli("MIGRATE", "127.0.0.1", to.port, l.opts.keyOf(a), "0", "5000")
		to.cli("CLUSTER", "SETSLOT", slot, "NODE", to.id)
		from.cli("CLUSTER", "SETSLOT", slot, "NODE", to.id)
	})
	agreed(t, nodes)
	replica := nodes[3+owner(b)]
	during(func() {
		polls := 0
		eventually(t, "the replica takes over", func() bool {
			if polls++; polls%300 == 1 { // on a busy machine it gives up after 5 s
				replica.cli("CLUSTER", "FAILOVER")
			}
			return strings.Contains(fmt.Sprint(replica.cli("INFO", "replication")), "role:master")
		})
	})
	t.Logf("%d allowed, %d away, %d without an answer", allowed.Load(), away.Load(), unknown.Load())
	require.Greater(t, allowed.Load(), calls/2)
	for _, key := range []stint.Key{a, b, everyone.Key("")} {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			bucket, err := l.Bucket(key)
			require.NoError(c, err)
			spent := burst - bucket.Remaining
			require.GreaterOrEqual(c, spent, allowed.Load())
			require.LessOrEqual(c, spent, allowed.Load()+unknown.Load())
		}, time.Minute, 20*time.Millisecond, "the undone spends of %v are returned", key)
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
