package redisclients

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/stint-go/stint/redislimit"
)

// GoRedis is a redislimit.Client with a pool of go-redis, for a server, a cluster
// or sentinels. Set two of the pool's options. With ContextTimeoutEnabled, calls
// end with redislimit's Timeout, instead of the pool's ReadTimeout. With
// DialerRetries 1, a refused connection is known to have sent nothing: otherwise
// the pool dials again until the Timeout is over, and the tokens may be spent. In a
// cluster, set DialTimeout and ReadTimeout to the Timeout as well: the pool asks
// one node after the other for the slots, and one that hangs takes 3 s otherwise.
type GoRedis struct{ Pool redis.UniversalClient }

// once is a command that go-redis does not send again.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// Do runs a command.
func (c GoRedis) Do(ctx context.Context, args ...string) (any, error) {
	words := make([]any, len(args))
	for i, arg := range args {
		words[i] = arg
	}
	cmd := redis.NewCmd(ctx, words...)
	c.Pool.Process(ctx, once{cmd})
	reply, err := cmd.Result()
	var replied redis.Error
	if errors.As(err, &replied) {
		err = redislimit.ServerError(replied.Error())
	}
	return reply, err
}

// Eval runs a script.
func (c GoRedis) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	words := slices.Concat([]string{command, script, strconv.Itoa(len(keys))}, keys, args)
	return c.Do(ctx, words...)
}

// IsCluster reports whether the pool is one of a cluster.
func (c GoRedis) IsCluster() bool {
	_, is := c.Pool.(*redis.ClusterClient)
	return is
}

// DoEach runs a command at every primary of a cluster.
func (c GoRedis) DoEach(ctx context.Context, args ...string) (replies []any, err error) {
	cluster, is := c.Pool.(*redis.ClusterClient)
	if !is {
		reply, err := c.Do(ctx, args...)
		return []any{reply}, err
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		reply, err := GoRedis{node}.Do(ctx, args...)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			replies = append(replies, reply)
		}
		return err
	})
	if len(replies) > 0 {
		err = nil
	}
	return replies, err
}

// Close does nothing: the pool belongs to the program.
func (GoRedis) Close() {}
