package httplimit

import (
	"net/http"

	"github.com/stint-go/stint"
)

// Options configure the middleware of Middleware. The zero value is the safe
// choice.
type Options struct {
	// Headers selects the fields that tell clients what they have left.
	Headers Headers

	// PartitionKey returns the "pk" parameter of a bucket in the Standard
	// fields. It may tell clients apart, but should not name them. If it is
	// nil, there is no such parameter.
	PartitionKey func(stint.Key) []byte

	// Denied writes the answer to a denied request. Retry-After and the fields
	// of Headers are set already, but if the limit is stint.Blocked there is no
	// Retry-After. If the request lacks a place in flight, d.RetryAfter is one
	// second. nil means 429 with a problem (RFC 9457), or with HTML or text for
	// clients that prefer it.
	Denied func(w http.ResponseWriter, r *http.Request, d stint.Decision)

	// FailOpen lets a request pass if the Limiter returns an error, as rules.Options
	// says, instead of answering 503. Errors about the request itself are answered
	// with 400 in any case.
	FailOpen bool

	// Decisions lets handlers read what was decided, with rules.Decisions, if no
	// rule can change it later. It costs two allocations for each request.
	Decisions bool

	// Observers receive every decision and error. The first in the slice is called
	// first.
	Observers []Observer
}
