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

// guarded calls a Client, and turns a panic of it into an error of the call. Every
// call of this package goes through it.
type guarded struct{ client Client }

// caught turns a panic into an error.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: the client library panicked: %v", ErrNoAnswer, p)
	}
}

// syncs returns the Client if it can wait for replicas.
func (g guarded) syncs() (SyncClient, error) {
	c, ok := g.client.(SyncClient)
	if !ok {
		return nil, fmt.Errorf("redislimit: durability synced: %T is no SyncClient", g.client)
	}
	return c, nil
}

// eval runs a script, and waits for replicas if there must be any.
func (g guarded) eval(ctx context.Context, command, text string, keys, args []string, replicas int) (reply any,
	acknowledged int, err error) {
	defer caught(&err)
	if replicas == 0 {
		reply, err = g.client.Eval(ctx, command, text, keys, args)
		return reply, 0, err
	}
	c, err := g.syncs()
	if err != nil {
		return nil, 0, err
	}
	deadline, _ := ctx.Deadline()
	wait := max(time.Millisecond, time.Until(deadline)/2) // WAIT 0 never ends
	return c.EvalWait(ctx, command, text, keys, args, replicas, wait)
}

func (g guarded) do(ctx context.Context, args ...string) (reply any, err error) {
	defer caught(&err)
	return g.client.Do(ctx, args...)
}

// each runs a command at every node, if the Client can, and otherwise at one.
func (g guarded) each(ctx context.Context, args ...string) (replies []any, err error) {
	defer caught(&err)
	if c, ok := g.client.(ClusterClient); ok {
		return c.DoEach(ctx, args...)
	}
	reply, err := g.client.Do(ctx, args...)
	return []any{reply}, err
}

// isCluster reports whether the Client says that its server is a cluster.
func (g guarded) isCluster() (is bool) {
	defer func() { recover() }()
	c, ok := g.client.(ClusterClient)
	return ok && c.IsCluster()
}
