package script

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Rueidis is a Client of the library rueidis. It connects when it is first needed,
// so Open does not fail while the server is away. If the server may not be the
// primary any more, it leaves the connections, and connects anew, because its address
// may lead to another server by now: that of a service, or a name.
type Rueidis struct {
	opt rueidis.ClientOption

	mu      sync.Mutex
	dialing chan struct{} // closed when the connection attempt ends
	err     error         // of the last attempt
	client  rueidis.Client
	closed  bool
	closing chan struct{} // closed with it
}

// NewRueidis returns a Client for the server at url. If secure is not nil, it is
// the configuration of connections to rediss://.
func NewRueidis(url string, timeout time.Duration, secure *tls.Config) (*Rueidis, error) {
	opt, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redislimit: open: %w", err)
	}
	if secure != nil {
		if opt.TLSConfig == nil {
			return nil, fmt.Errorf("redislimit: open: Options.TLS is only for rediss://")
		}
		name := opt.TLSConfig.ServerName
		opt.TLSConfig = secure.Clone()
		opt.TLSConfig.ServerName = cmp.Or(secure.ServerName, name)
	}
	opt.DisableRetry = true
	opt.DisableCache = true
	opt.Dialer.Timeout = timeout
	opt.Sentinel.TopologyRefreshInterval = 5 * time.Second // a sentinel's message may be missed
	opt.ConnWriteTimeout = max(timeout, time.Second)
	return &Rueidis{opt: opt, closing: make(chan struct{})}, nil
}

// get returns the client. It waits for a connection until ctx ends.
func (c *Rueidis) get(ctx context.Context) (rueidis.Client, error) {
	c.mu.Lock()
	if c.client != nil || c.closed {
		defer c.mu.Unlock()
		if c.closed {
			return nil, fmt.Errorf("%w: %w", ErrAway, rueidis.ErrClosing)
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
		return nil, fmt.Errorf("%w: connecting takes longer than %v", ErrAway, c.opt.Dialer.Timeout)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil, c.err
	}
	return c.client, nil
}

func (c *Rueidis) dial(done chan struct{}) {
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
		c.err = fmt.Errorf("%w: %w", ErrAway, rueidis.ErrClosing)
	default:
		c.client = client
	}
}

// note leaves the connections of a client if the server replied an error of
// movedReplies. Calls that are under way on them still end. A client of a cluster
// knows all of its servers, and finds the primary by itself.
func (c *Rueidis) note(client rueidis.Client, err error) {
	if !mayHaveMoved(err) || client.Mode() == rueidis.ClientModeCluster {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == client && !c.closed {
		c.client = nil
		go func() {
			select {
			case <-time.After(c.opt.ConnWriteTimeout):
			case <-c.closing:
			}
			client.Close()
		}()
	}
}

// Eval implements Client.
func (c *Rueidis) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := result(client.Do(ctx, evalCommand(client.B(), command, script, keys, args)))
	c.note(client, err)
	return reply, err
}

func evalCommand(b rueidis.Builder, command, script string, keys, args []string) rueidis.Completed {
	return b.Arbitrary(command, script, strconv.Itoa(len(keys))).Keys(keys...).Args(args...).Build()
}

// EvalWait implements SyncClient. In a cluster it follows redirections, which the
// library does not do for commands that need the same connection.
func (c *Rueidis) EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
	timeout time.Duration) (reply any, acknowledged int, err error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	node, asking := client, false
	for range maxRedirections {
		to := ""
		err = node.Dedicated(func(d rueidis.DedicatedClient) error {
			commands := []rueidis.Completed{evalCommand(d.B(), command, script, keys, args),
				d.B().Wait().Numreplicas(int64(replicas)).Timeout(timeout.Milliseconds()).Build()}
			if asking {
				commands = append([]rueidis.Completed{d.B().Asking().Build()}, commands...)
			}
			rs := d.DoMulti(ctx, commands...)
			rs = rs[len(rs)-2:]
			to, asking = redirection(rs[0])
			if reply, err = result(rs[0]); err != nil {
				return err
			}
			n, failed := rs[1].AsInt64()
			if failed == nil {
				acknowledged = int(n) // after an error no replica is known to have it
			} else if replied, ok := rueidis.IsRedisErr(failed); ok {
				c.note(client, ServerError(replied.Error()))
			}
			return nil
		})
		if to == "" {
			break
		}
		if client.Nodes()[to] == nil { // GET follows the redirection, and the library then knows the node
			client.Do(ctx, client.B().Get().Key(keys[0]).Build())
		}
		if node = client.Nodes()[to]; node == nil { // it has forgotten a node without slots again
			node, asking = client, false
		}
	}
	c.note(client, err)
	return reply, acknowledged, err
}

// maxRedirections is the most nodes that EvalWait asks.
const maxRedirections = 4

// redirection returns the node of a cluster to which a reply sends the command,
// and whether ASKING must come before it there. It returns "" if the reply is none.
func redirection(r rueidis.RedisResult) (to string, asking bool) {
	replied, ok := rueidis.IsRedisErr(r.Error())
	if !ok {
		return "", false
	}
	if to, ok = replied.IsMoved(); ok {
		return to, false
	}
	return replied.IsAsk()
}

// Do implements Client.
func (c *Rueidis) Do(ctx context.Context, args ...string) (any, error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := result(client.Do(ctx, client.B().Arbitrary(args...).Build()))
	c.note(client, err)
	return reply, err
}

// DoEach implements ClusterClient.
func (c *Rueidis) DoEach(ctx context.Context, args ...string) (replies []any, err error) {
	client, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, node := range client.Nodes() { // one that hangs must not keep the others waiting
		group.Go(func() {
			r, failed := result(node.Do(ctx, node.B().Arbitrary(args...).Build()))
			c.note(client, failed)
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				replies = append(replies, r)
			} else {
				err = failed
			}
		})
	}
	group.Wait()
	if len(replies) > 0 {
		err = nil
	}
	return replies, err
}

// IsCluster implements ClusterClient. It is false until there is a connection.
func (c *Rueidis) IsCluster() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client != nil && c.client.Mode() == rueidis.ClientModeCluster
}

// Close implements Client.
func (c *Rueidis) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		close(c.closing)
	}
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
