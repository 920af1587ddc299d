package httplimit

import (
	"net/http"

	"github.com/stint-go/stint"
)

// Options are what New can be told; nil or the zero value means the defaults, which are the safe ones.
type Options struct {
	// Headers is how responses tell clients what they have left.
	Headers Headers

	// PartitionKey returns what the "pk" parameter of the Standard headers says of a bucket; nil writes none. It may tell
	// a client apart from others, and should not say who it is.
	PartitionKey func(stint.Key) []byte

	// Denied answers the requests that are denied. Retry-After and the other headers are set already. nil answers 429
	// with a problem (RFC 9457), or with text where the client would rather have that.
	Denied func(w http.ResponseWriter, r *http.Request, d stint.Decision)

	// FailOpen lets requests pass, uncounted, where the Limiter returns an error, instead of answering 503. What is
	// wrong with the request itself is answered with 400 either way.
	FailOpen bool

	// OnError is told of every error: what is answered with 503, or let through by FailOpen, or with 400, and what
	// went wrong after the handler.
	OnError func(r *http.Request, err error)

	// OnDecision is told what the rules that applied to a request came to, before the handler runs or the request is
	// denied, and of those with CountStatus once more, when their tokens have been spent. It must not keep the slice. The
	// request is the one that the middleware was given: before the handler, it may not carry these Decisions yet.
	OnDecision func(r *http.Request, ds []Decision)
}

// Decision is what a rule came to.
type Decision struct {
	stint.Decision

	Label  string // of the limit
	Cost   int64
	Shadow bool // a denial did not deny
	After  bool // the rule counts statuses: its tokens have not been spent yet
}

// Decisions returns what the rules came to that a request has passed so far, of all the middleware around the handler.
func Decisions(r *http.Request) []Decision {
	c := carriedBy(r)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return decisions(c.applied)
}
