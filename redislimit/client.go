package redislimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Client is a connection to a server or cluster. Open makes one with rueidis.
// For another library, write an adapter and give it to New. Module
// examples/redisclients has adapters for go-redis and valkey-go.
//
// A reply is a string, an int64, nil or a []any of those. An error that the
// server replied is a ServerError. ErrAway, or a net.OpError whose Op is
// "dial", says that nothing was sent. After any other error the command may
// have run. No method may send a command a second time, unless the server said
// that it did not run it (MOVED, ASK, TRYAGAIN). Every method must return when
// ctx ends.
type Client interface {
	// Eval runs EVALSHA or EVAL, as command says. In a cluster, all keys are in
	// one slot.
	Eval(ctx context.Context, command, script string, keys, args []string) (any, error)

	// Do runs a command without keys at any node.
	Do(ctx context.Context, args ...string) (any, error)

	// Close ends the connections.
	Close()
}

// SyncClient is a Client that can wait for replicas, as limits of durability
// synced need.
type SyncClient interface {
	Client

	// EvalWait is Eval and then, on the same connection, WAIT. It returns the
	// number of replicas that have what Eval wrote.
	EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
		timeout time.Duration) (reply any, acknowledged int, err error)
}

// ClusterClient is a Client that knows whether its server is a cluster, and
// runs commands at every node of it. With another Client, the first CROSSSLOT
// error shows that the server is a cluster.
type ClusterClient interface {
	Client
	IsCluster() bool

	// DoEach runs a command without keys at every node, and returns the replies
	// of the nodes that answered.
	DoEach(ctx context.Context, args ...string) ([]any, error)
}

// ServerError is an error that the server replied.
type ServerError string

// Error returns the server's words.
func (e ServerError) Error() string { return string(e) }

// rueidisClient connects when it is first needed, so Open does not fail while
// the server is away.
type rueidisClient struct {
	opt     rueidis.ClientOption
	timeout time.Duration

	mu      sync.Mutex
	dialing chan struct{} // closed when the connection attempt ends
	err     error         // of the last attempt
	client  rueidis.Client
	closed  bool
}

func newRueidisClient(url string, timeout time.Duration) (*rueidisClient, error) {
	opt, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redislimit: open: %w", err)
	}
	opt.DisableRetry = true
	opt.DisableCache = true
	opt.Dialer.Timeout = timeout
	opt.Sentinel.TopologyRefreshInterval = 5 * time.Second // a sentinel's message may be missed
	opt.ConnWriteTimeout = max(timeout, time.Second)
	return &rueidisClient{opt: opt, timeout: timeout}, nil
}

// get returns the client. It waits for a connection until ctx ends.
func (c *rueidisClient) get(ctx context.Context) (rueidis.Client, error) {
	c.mu.Lock()
	if c.client != nil || c.closed {
		defer c.mu.Unlock()
		if c.closed {
			return nil, rueidis.ErrClosing
		}
		return c.client, nil
	}
	done := c.dialing
	if done == nil {
		done = make(chan struct{})
		c.dialing = done
		go c.dial(done)
	}
	c.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: connecting takes longer than %v", ErrAway, c.timeout)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil, c.err
	}
	return c.client, nil
}

func (c *rueidisClient) dial(done chan struct{}) {
	client, err := rueidis.NewClient(c.opt)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing = nil
	defer close(done)
	var refused *rueidis.RedisError
	switch {
	case errors.As(err, &refused):
		c.err = ServerError(refused.Error())
	case err != nil:
		c.err = fmt.Errorf("%w: %w", ErrAway, err)
	case c.closed:
		client.Close()
		c.err = rueidis.ErrClosing
	default:
		c.client = client
	}
}

func (c *rueidisClient) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	return result(client.Do(ctx, evalCommand(client.B(), command, script, keys, args)))
}

func evalCommand(b rueidis.Builder, command, script string, keys, args []string) rueidis.Completed {
	return b.Arbitrary(command, script, strconv.Itoa(len(keys))).Keys(keys...).Args(args...).Build()
}

func (c *rueidisClient) EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
	timeout time.Duration) (reply any, acknowledged int, err error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	err = client.Dedicated(func(d rueidis.DedicatedClient) error {
		rs := d.DoMulti(ctx, evalCommand(d.B(), command, script, keys, args),
			d.B().Wait().Numreplicas(int64(replicas)).Timeout(timeout.Milliseconds()).Build())
		if reply, err = result(rs[0]); err != nil {
			return err
		}
		if n, err := rs[1].AsInt64(); err == nil {
			acknowledged = int(n) // after an error no replica is known to have it
		}
		return nil
	})
	return reply, acknowledged, err
}

func (c *rueidisClient) Do(ctx context.Context, args ...string) (any, error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	return result(client.Do(ctx, client.B().Arbitrary(args...).Build()))
}

func (c *rueidisClient) DoEach(ctx context.Context, args ...string) (replies []any, err error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	for _, node := range client.Nodes() {
		r, failed := result(node.Do(ctx, node.B().Arbitrary(args...).Build()))
		if failed == nil {
			replies = append(replies, r)
		} else {
			err = failed
		}
	}
	if len(replies) > 0 {
		err = nil
	}
	return replies, err
}

func (c *rueidisClient) IsCluster() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client != nil && c.client.Mode() == rueidis.ClientModeCluster
}

func (c *rueidisClient) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.client != nil {
		c.client.Close()
	}
}

// result returns a reply, or an error that says whether the command may have
// run.
func result(r rueidis.RedisResult) (any, error) {
	err := r.Error()
	if err == nil {
		return r.ToAny()
	}
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if replied, ok := rueidis.IsRedisErr(err); ok {
		return nil, ServerError(replied.Error())
	}
	return nil, err
}
