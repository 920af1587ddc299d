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

// guarded is a Client that outlives mistakes: a call that a cluster would
// refuse is not made, and a panic of the library is an error of the call. Every
// call of this package goes through it.
type guarded struct {
	Client
	spread func() bool // keys of several slots must not share a call
}

// caught turns a panic into an error.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: the client library panicked: %v", ErrNoAnswer, p)
	}
}

func (g guarded) check(keys []string) error {
	if len(keys) < 2 || !g.spread() {
		return nil
	}
	for _, key := range keys[1:] {
		if Slot(key) != Slot(keys[0]) {
			return fmt.Errorf("%w: keys %q and %q are in different slots", ErrCrossSlot, keys[0], key)
		}
	}
	return nil
}

func (g guarded) Eval(ctx context.Context, command, script string, keys, args []string) (reply any, err error) {
	defer caught(&err)
	if err := g.check(keys); err != nil {
		return nil, err
	}
	return g.Client.Eval(ctx, command, script, keys, args)
}

func (g guarded) EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
	timeout time.Duration) (reply any, acknowledged int, err error) {
	defer caught(&err)
	c, ok := g.Client.(SyncClient)
	if !ok {
		return nil, 0, fmt.Errorf("redislimit: durability synced: %T is no SyncClient", g.Client)
	}
	if err := g.check(keys); err != nil {
		return nil, 0, err
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
