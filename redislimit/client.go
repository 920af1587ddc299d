package redislimit

import (
	"context"
	"time"

	"github.com/stint-go/stint/redislimit/internal/script"
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
// ctx ends. If a method panics, the call is ErrNoAnswer.
//
// After a reply that begins with READONLY, MASTERDOWN or LOADING, also behind "STINT
// NONE ", the address may lead to another primary by now. The Client of Open then
// connects anew. With another library that is left to the library: go-redis does so
// after READONLY.
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
// runs commands at every node of it. With another Client, the server's INFO says
// whether it is one, and one node speaks for all.
type ClusterClient interface {
	Client
	IsCluster() bool

	// DoEach runs a command without keys at every node, at the same time, and
	// returns the replies of the nodes that answered. It is an error if none did.
	DoEach(ctx context.Context, args ...string) ([]any, error)
}

// ServerError is an error that the server replied: a string with its words.
type ServerError = script.ServerError
