package grpclimit

import "github.com/stint-go/stint/httplimit"

// Options configure the interceptors of Server. The zero value is the safe
// choice.
type Options struct {
	// Client finds the address of a client behind proxies, for ByPeer. Its Field
	// is a key of the metadata, which a proxy writes as a field of HTTP/2. The
	// zero ClientAddress trusts no proxy.
	Client httplimit.ClientAddress

	// Exempt are methods that no rule applies to, as in the Pattern of a Rule. nil
	// means health checks and both versions of server reflection. An empty slice
	// means none.
	Exempt []string

	// FailOpen lets a call pass if the Limiter returns an error, as rules.Options
	// says, instead of ending it with Unavailable.
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

	// Decisions lets handlers read what was decided, with rules.Decisions, if no
	// rule can change it later. It costs an allocation.
	Decisions bool

	// Observers receive every decision and error. The first in the slice is called
	// first.
	Observers []Observer
}

// exempt are the methods of Options.Exempt by default.
var exempt = []string{
	"/grpc.health.v1.Health/*",
	"/grpc.reflection.v1.ServerReflection/*",
	"/grpc.reflection.v1alpha.ServerReflection/*",
}
