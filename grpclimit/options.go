package grpclimit

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/stint-go/stint/httplimit"
)

// Options configure the interceptors of Server. The zero value is the safe
// choice.
type Options struct {
	// Client finds the address of a client behind proxies, for ByPeer. Its Field
	// is a key of the metadata, which a proxy writes as a field of HTTP/2. The
	// zero ClientAddress trusts no proxy.
	Client httplimit.ClientAddress

	// Exempt are methods that no rule applies to, as in Rule.Method. nil means
	// health checks and both versions of server reflection. An empty slice means
	// none.
	Exempt []string

	// FailOpen lets a call pass if the Limiter returns an error, instead of
	// ending it with Unavailable. Such a call spends no token, except as the
	// errors of stint.Decider say.
	FailOpen bool

	// Domain is the name of the service that limits, such as "api.example.com".
	// If it is set, a denial has an ErrorInfo with this domain and the reason
	// RATE_LIMIT_EXCEEDED, as clients of Google's APIs know them.
	Domain string

	// RateLimit adds ratelimit-policy and ratelimit to the trailer of each call
	// that rules apply to, as httplimit.Standard says. They show what is left at
	// the end of the call: after Settle, refunds and the messages of a stream. They
	// are never header metadata, which would keep clients from retrying.
	RateLimit bool

	// Observers receive every decision and error. The first in the slice is called
	// first.
	Observers []Observer
}

// Decision is what a rule decided about a call. After means a rule with CountCode
// that has not spent yet.
type Decision = httplimit.Decision

// An Observer receives the decisions and the errors of interceptors. A nil
// function is not called. Each function runs in the goroutine of the call,
// which waits for it, and must be safe for concurrent use. grpc.Method of the
// context is the method.
type Observer struct {
	// Decisions is called with the decisions of the rules that apply to a call:
	// first those that can deny, then the Shadow rules, each in the order of
	// Server. It is called before the handler runs, again after the tokens of
	// rules with CountCode are spent, and for each message of a stream that rules
	// count. It must not keep or change the slice.
	Decisions func(ctx context.Context, ds []Decision)

	// Error is called with each error. The call ends with that error, or passes
	// because of FailOpen or a Shadow rule. Some errors happen after the handler.
	Error func(ctx context.Context, err error)
}

// LogDenials returns an observer that logs denials, at most one line for a
// bucket in the time every. The lines are those of httplimit.LogDenials.
func LogDenials(logger *slog.Logger, every time.Duration) Observer {
	log := httplimit.LogDenials(logger, every).Decisions
	return Observer{Decisions: func(ctx context.Context, ds []Decision) {
		for i := range ds {
			if !ds[i].Allowed {
				log((&http.Request{}).WithContext(ctx), ds)
				return
			}
		}
	}}
}

// exempt are the methods of Options.Exempt by default.
var exempt = []string{
	"/grpc.health.v1.Health/*",
	"/grpc.reflection.v1.ServerReflection/*",
	"/grpc.reflection.v1alpha.ServerReflection/*",
}
