package httplimit

import (
	"net/http"
	"sync/atomic"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Middleware returns middleware that holds requests to rules. Nil options mean the
// defaults. It panics on mistakes in the program: no Limiter, a rule without a
// Key, a negative Cost or InFlight, a Pattern that http.ServeMux refuses, or
// Settle beside Count or LockOut.
//
// All rules that apply to a request spend together, as in
// [stint.Limiter.SpendAll]: if one of them denies, no token is spent. A denied
// request is answered with 429 and Retry-After. An error before the handler
// runs is answered with 400 if it is about the request, and otherwise with 503,
// unless FailOpen is set. In both cases no token is spent. After
// [stint.ErrNotDurable], or if a Decider lost an answer, tokens may be spent.
//
// If one rule's limit is [stint.Leased] and another's is [stint.Memory] or
// [stint.Flushed], every request waits for a commit. Nested middleware avoids
// that, because its rules spend separately. But then the outer tokens stay
// spent if the inner middleware denies.
//
// Middlewares are independent of each other, as the doors of package rules are.
// Nested ones with the same Headers write their rules into the same fields of a
// response, each with its own PartitionKey.
//
// At most one of the rules that apply to a request may be a share of a total: with
// two, package shares returns an error.
//
// Responses share the values of header fields. Do not change such a value in place.
// The methods of http.Header do not.
func Middleware(lim stint.Decider, opts *Options, rs ...Rule) func(http.Handler) http.Handler {
	m := &middleware{lim: lim}
	if opts != nil {
		m.opts = *opts
	}
	m.door = rules.New(lim, &rules.Options[*http.Request]{
		Match:     func(pattern string) func(*http.Request) (*http.Request, bool) { return newRoute(pattern).match },
		Matched:   keepBody,
		OnUnix:    func(r *http.Request) bool { return isUnix(r.Context()) },
		FailOpen:  m.opts.FailOpen,
		Decisions: m.opts.Decisions,
		Observers: m.opts.Observers,
		Owner:     m,
	}, rs...)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// middleware is what Middleware returns.
type middleware struct {
	lim  stint.Decider
	door *rules.Door[*http.Request, int]
	opts Options

	policies [8]atomic.Pointer[policy] // by Name, or in the next free place
}

// pass is a request in one middleware. Its Data is a *statusWriter if it is in the
// context of the handler.
type pass = rules.Pass[*http.Request, int]

// serve decides on a request, and runs the handler unless it is denied.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	p, d, err := m.door.Begin(r)
	switch {
	case err != nil:
		problemOf(err).answer(w, r)
		return
	case p == nil:
		next.ServeHTTP(w, r)
		return
	}
	defer p.Leave()
	switch {
	case d.Allowed && !p.InContext():
		m.writeFields(w.Header(), p)
		next.ServeHTTP(w, r)
		return
	case !d.Allowed && m.opts.Denied == nil:
		m.deny(w, r, p, d)
		return
	}
	inner := r.WithContext(p.Context())
	p.Request = inner
	defer keepFiles(r, inner)
	sw := &statusWriter{ResponseWriter: w, by: m, pass: p}
	p.Data = sw
	if !d.Allowed {
		sw.chosen.Store(true) // it is not the handler's
		m.deny(w, inner, p, d)
		return
	}
	m.writeFields(w.Header(), p)
	m.await(sw, inner, next)
}

// await runs the handler, and tells the rules its status.
func (m *middleware) await(sw *statusWriter, r *http.Request, next http.Handler) {
	defer func() {
		if v := recover(); v != nil {
			sw.choose(http.StatusInternalServerError)
			panic(v)
		}
		sw.choose(http.StatusOK)
	}()
	next.ServeHTTP(sw.wrapped(), r)
}

// keepBody gives the handler the form that a KeyFunc or CostFunc has read.
func keepBody(r, read *http.Request) {
	r.Body, r.Form, r.PostForm, r.MultipartForm = read.Body, read.Form, read.PostForm, read.MultipartForm
}

// keepFiles lets net/http remove the files of a form. net/http removes only the
// files of the request that it has made itself.
func keepFiles(r, read *http.Request) {
	if r.MultipartForm == nil {
		r.MultipartForm = read.MultipartForm
	}
}
