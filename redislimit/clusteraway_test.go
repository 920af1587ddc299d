package redislimit

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// startPrimaries starts a cluster of three primaries without replicas, which go
// on if one is away, and returns its URL.
func startPrimaries(t *testing.T) (nodes []node, url string) {
	t.Helper()
	for i := range 3 {
		n := startNode(t, "--cluster-node-timeout", "15000", "--cluster-require-full-coverage", "no")
		n.cli("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		n.cli("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*5461), strconv.Itoa([]int{5460, 10921, 16383}[i]))
		nodes = append(nodes, n)
	}
	acquainted(t, nodes)
	return nodes, urlOf(nodes)
}

func (n node) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, n.cmd.Process.Signal(s))
}

// plainClient hides that a Client knows whether its server is a cluster.
type plainClient struct{ Client }

// unlucky is a plainClient whose first INFO goes to a node that hangs.
type unlucky struct {
	plainClient
	asked atomic.Bool
}

func (c *unlucky) Do(ctx context.Context, args ...string) (any, error) {
	if args[0] == "INFO" && !c.asked.Swap(true) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.plainClient.Do(ctx, args...)
}

// clusterClients are the kinds of Clients of a cluster.
func clusterClients(t *testing.T, url string, timeout time.Duration) map[string]func() Client {
	open := func() Client { return clientAt(t, url, timeout) }
	return map[string]func() Client{"rueidis": open, "plain": func() Client { return plainClient{open()} },
		"unlucky": func() Client { return &unlucky{plainClient: plainClient{open()}} }}
}

// If a cluster is away when a Limiter is opened, and comes back, no call of the
// Limiter has keys of several slots: neither callers that arrive together, nor a
// SpendAll.
func TestClusterAwayAtOpen(t *testing.T) {
	t.Parallel()
	nodes, url := startPrimaries(t)
	const timeout = 200 * time.Millisecond
	for name, client := range clusterClients(t, url, timeout) {
		for _, n := range nodes {
			n.signal(t, syscall.SIGSTOP)
		}
		limit := stint.Limit{Burst: 1_000_000, Count: 1, Period: time.Minute}
		l := newOn(t, client(), testLimits(t, limit), Options{Timeout: timeout, Away: own(t, limit.DividedBy(2), nil),
			RepeatDenials: -1, Prefix: name})
		const ids = 40
		for i := range ids {
			d := l.spend(t, perID.Key(strconv.Itoa(i)), 100)
			require.Equal(t, limit.DividedBy(2), d.Limit, "Options.Away decides")
		}
		for _, n := range nodes {
			n.signal(t, syscall.SIGCONT)
		}
		var callers sync.WaitGroup
		for c := range 16 {
			callers.Go(func() {
				for i := c; ; i++ {
					a, b := perID.Key(strconv.Itoa(i%ids)), perID.Key(strconv.Itoa((i+1)%ids))
					d, err := l.SpendAll(stint.Request{Key: a, Cost: 1}, stint.Request{Key: b, Cost: 1})
					if err != nil && !script.IsAway(err) && !errors.Is(err, ErrBusy) {
						t.Error(err)
						return
					}
					if err == nil && d.Limit == limit && l.Stats().AwaySince.IsZero() {
						return
					}
				}
			})
		}
		callers.Wait()
		require.True(t, l.server.IsCluster())
		require.NoError(t, l.Close())
	}
}

// If one node of a cluster hangs, at Open or later, the others decide.
func TestClusterHangs(t *testing.T) {
	t.Parallel()
	nodes, url := startPrimaries(t)
	const timeout = 100 * time.Millisecond
	limit := stint.PerHour(1_000_000)
	const ids = 36
	for name, client := range clusterClients(t, url, timeout) {
		for hung, n := range nodes {
			others := func(l *Limiter, when string) {
				t.Helper()
				begin := time.Now()
				eventually(t, "the other shards decide", func() bool {
					for i := range ids {
						key := perID.Key(strconv.Itoa(i))
						if min(int(script.Slot(l.opts.keyOf(key)))/5461, 2) == hung {
							continue
						}
						if d, err := l.Spend(key, 1); err != nil || d.Limit != limit {
							return false
						}
					}
					return true
				})
				t.Logf("%s, node %d hangs %s: the others decide after %v", name, hung, when,
					time.Since(begin).Round(time.Millisecond))
			}
			open := func() *Limiter {
				l := newOn(t, client(), testLimits(t, limit), Options{Timeout: timeout, Away: AwayOpen, RepeatDenials: -1, Prefix: name})
				return l
			}
			n.signal(t, syscall.SIGSTOP)
			l := open()
			others(l, "at Open")
			n.signal(t, syscall.SIGCONT)
			all := func() bool {
				for i := range ids {
					if d, err := l.Spend(perID.Key(strconv.Itoa(i)), 1); err != nil || d.Limit != limit {
						return false
					}
				}
				return true
			}
			eventually(t, "all shards decide", all)
			n.signal(t, syscall.SIGSTOP)
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
							l.Spend(perID.Key(strconv.Itoa(i)), 1)
						}
					}
				})
			}
			eventually(t, "the shard is away", func() bool { return !l.Stats().AwaySince.IsZero() })
			others(l, "later")
			close(done)
			callers.Wait()
			n.signal(t, syscall.SIGCONT)
			eventually(t, "all shards decide", all)
			require.NoError(t, l.Close())
		}
	}
}

// The first call of a Client that does not know clusters may have more buckets
// than a call of the script, at a server and at a cluster, unless Options.Atomic
// is set.
func TestFirstCallOfMany(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	_, url := startPrimaries(t)
	for _, url := range []string{s.url, url} {
		l := newOn(t, plainClient{clientAt(t, url, 20*time.Second)}, testLimits(t, stint.PerHour(8)), Options{Prefix: prefix})
		var reqs []stint.Request
		for i := range 100 {
			reqs = append(reqs, stint.Request{Key: perID.Key(strconv.Itoa(i)), Cost: 1})
		}
		before := l.Stats().Trips
		require.EqualValues(t, 7, l.spendAll(t, reqs...).Remaining)
		if !l.server.IsCluster() {
			require.EqualValues(t, 2, l.Stats().Trips-before)
		}
		l.opts.Atomic = true
		require.ErrorIs(t, errorOf(l.SpendAll(reqs[:script.MaxTogether+1]...)), ErrCrossSlot)
		require.NoError(t, l.Close())
	}
}
