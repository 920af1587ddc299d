package redisclients

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/stint-go/stint/redislimit"
)

// GoRedis is a redislimit.Client with a pool of go-redis, for a server, a cluster
// or sentinels. Set ContextTimeoutEnabled in the pool's options: calls then end with
// redislimit's Timeout, instead of the pool's ReadTimeout.
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

// Close does nothing: the pool belongs to the program.
func (GoRedis) Close() {}
