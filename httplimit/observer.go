package httplimit

import "net/http"

// An Observer is told what middleware decides, and what fails. A nil function
// is not called. Each function runs in the goroutine of the request, which
// waits for it, and must be safe for concurrent use. Both get the request as
// it was passed to the middleware, so [Decisions] of it may lack this
// middleware's own.
type Observer struct {
	// Decisions is called with the decisions of the rules that apply to a
	// request, in the order of the rules except that Shadow rules come last.
	// It is called before the handler runs or the denial is written. For the
	// rules with CountStatus it is called again once their tokens are spent. It
	// must not keep or change the slice.
	Decisions func(r *http.Request, ds []Decision)

	// Error is called with each error: those that are answered with 503 or
	// 400, those that FailOpen lets pass, those of Shadow rules, and those that
	// happen after the handler has chosen a status.
	Error func(r *http.Request, err error)
}
