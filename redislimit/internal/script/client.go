package script

import (
	"context"
	"fmt"
	"time"
)

// Client, SyncClient and ClusterClient are those of package redislimit, which
// says what their methods must do.
type (
	Client interface {
		Eval(ctx context.Context, command, script string, keys, args []string) (any, error)
		Do(ctx context.Context, args ...string) (any, error)
		Close()
	}
	SyncClient interface {
		Client
		EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
			timeout time.Duration) (reply any, acknowledged int, err error)
	}
	ClusterClient interface {
		Client
		IsCluster() bool
		DoEach(ctx context.Context, args ...string) ([]any, error)
	}
)

// guarded is a Client of which a panic is an error of the call. Every call of this
// package goes through it.
type guarded struct{ Client }

// caught turns a panic into an error.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: the client library panicked: %v", ErrNoAnswer, p)
	}
}

func (g guarded) Eval(ctx context.Context, command, script string, keys, args []string) (reply any, err error) {
	defer caught(&err)
	return g.Client.Eval(ctx, command, script, keys, args)
}

func (g guarded) EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
	timeout time.Duration) (reply any, acknowledged int, err error) {
	defer caught(&err)
	c, ok := g.Client.(SyncClient)
	if !ok {
		return nil, 0, fmt.Errorf("redislimit: durability synced: %T is no SyncClient", g.Client)
	}
	return c.EvalWait(ctx, command, script, keys, args, replicas, timeout)
}

func (g guarded) Do(ctx context.Context, args ...string) (reply any, err error) {
	defer caught(&err)
	return g.Client.Do(ctx, args...)
}

// each runs a command at every node, if the Client can, and otherwise at one.
func (g guarded) each(ctx context.Context, args ...string) (replies []any, err error) {
	defer caught(&err)
	if c, ok := g.Client.(ClusterClient); ok {
		return c.DoEach(ctx, args...)
	}
	reply, err := g.Client.Do(ctx, args...)
	return []any{reply}, err
}

// isCluster reports whether the Client says that its server is a cluster.
func (g guarded) isCluster() (is bool) {
	defer func() { recover() }()
	c, ok := g.Client.(ClusterClient)
	return ok && c.IsCluster()
}
