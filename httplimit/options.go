package httplimit

import (
	"net/http"

	"github.com/stint-go/stint"
)

// Options configure the middleware of Middleware. The zero value is the safe choice.
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

	// FailOpen lets a request pass if the Limiter returns an error, instead of
	// answering 503. Such a request spends no token, except as the errors of
	// stint.Decider say. Errors about the request itself are answered with 400 in
	// any case.
	FailOpen bool

	// Observers receive every decision and error. The first in the slice is called
	// first.
	Observers []Observer
}

// An Observer receives the decisions and the errors of middleware. A nil
// function is not called. Each function runs in the goroutine of the request,
// which waits for it, and must be safe for concurrent use. Until the handler
// has chosen a status, both functions get the request as the middleware
// received it. So [Decisions] of that request may lack the decisions of this
// middleware.
type Observer struct {
	// Decisions is called with the decisions of the rules that apply to a request:
	// first those that can deny, then the Shadow rules, each in the order of Middleware.
	// It is called before the handler runs or the denial is written. For the rules
	// with CountStatus it is called again after their tokens are spent. It must
	// not keep or change the slice.
	Decisions func(r *http.Request, ds []Decision)

	// Error is called with each error. The request is answered with 503 or 400, or
	// passes because of FailOpen or a Shadow rule. Some errors happen after the
	// handler has chosen a status.
	Error func(r *http.Request, err error)
}
