package redisclients

import (
	"context"
	"strconv"
	"sync"

	"github.com/valkey-io/valkey-go"

	"github.com/stint-go/stint/redislimit"
)

// ValkeyGo is a redislimit.Client with a client of valkey-go, which does not
// repeat commands that may write.
type ValkeyGo struct{ Pool valkey.Client }

// Do runs a command.
func (c ValkeyGo) Do(ctx context.Context, args ...string) (any, error) {
	return answer(c.Pool.Do(ctx, c.Pool.B().Arbitrary(args...).Build()))
}

// Eval runs a script.
func (c ValkeyGo) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	cmd := c.Pool.B().Arbitrary(command, script, strconv.Itoa(len(keys))).Keys(keys...).Args(args...)
	return answer(c.Pool.Do(ctx, cmd.Build()))
}

// IsCluster reports whether the server is a cluster.
func (c ValkeyGo) IsCluster() bool { return c.Pool.Mode() == valkey.ClientModeCluster }

// DoEach runs a command at every node.
func (c ValkeyGo) DoEach(ctx context.Context, args ...string) (replies []any, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, node := range c.Pool.Nodes() {
		group.Go(func() {
			reply, failed := ValkeyGo{node}.Do(ctx, args...)
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = failed
			} else {
				replies = append(replies, reply)
			}
		})
	}
	group.Wait()
	if len(replies) > 0 {
		err = nil
	}
	return replies, err
}

// Close does nothing: the pool belongs to the program.
func (ValkeyGo) Close() {}

func answer(r valkey.ValkeyResult) (any, error) {
	reply, err := r.ToAny()
	if replied, ok := valkey.IsValkeyErr(err); ok {
		err = redislimit.ServerError(replied.Error())
	}
	return reply, err
}
