package httplimit

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
)

// New returns middleware that holds requests to rules. Nil options mean the
// defaults. It panics on mistakes in the program: no Limiter, a rule without a
// Key, a negative Cost, or a Pattern that http.ServeMux refuses.
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
// A request spends from a bucket once, even if several rules or several
// middlewares find it. The first rule that is not a Shadow rule spends. A
// request with the context of another one counts as nested in it, and does not
// spend from the same buckets again. Each middleware writes its own rules into
// the fields that its Headers select, with its own PartitionKey. Nested
// middlewares with the same Headers write into the same fields.
//
// Similar denials share the values of header fields. Do not change such a value
// in place. The methods of http.Header do not.
func New(lim stint.Decider, opts *Options, rules ...Rule) func(http.Handler) http.Handler {
	if isMissing(lim) {
		panic("httplimit: New: no limiter")
	}
	m := &middleware{lim: lim}
	m.local, _ = lim.(*stint.Limiter)
	if opts != nil {
		m.opts = *opts
	}
	var shadows []routedRule
	for i, ru := range rules {
		switch {
		case ru.Key == nil:
			panic(fmt.Sprintf("httplimit: New: rule %d has no Key", i+1))
		case ru.Cost < 0:
			panic(fmt.Sprintf("httplimit: New: rule %d has the Cost %d, want 0 or more", i+1, ru.Cost))
		case ru.Shadow:
			shadows = append(shadows, routedRule{ru, newRoute(ru.Pattern)})
		default:
			m.rules = append(m.rules, routedRule{ru, newRoute(ru.Pattern)})
		}
	}
	m.rules = append(m.rules, shadows...)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// isMissing reports whether there is no Limiter.
func isMissing(lim stint.Decider) bool {
	l, ok := lim.(*stint.Limiter)
	return lim == nil || ok && l == nil
}

// middleware is what New returns.
type middleware struct {
	lim    stint.Decider
	local  *stint.Limiter // lim, if it is one
	opts   Options
	rules  []routedRule // Shadow rules last
	names  atomic.Pointer[declared]
	denial atomic.Pointer[denial]
	fields atomic.Pointer[[2]string] // of the last denial: RateLimit-Policy, RateLimit
}

type routedRule struct {
	Rule
	route *route
}

// declared caches the Names of limits.
type declared struct {
	limits *stint.Limits
	names  stint.Names
}

// serve decides on a request, and runs the handler unless it is denied.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := carriedBy(r)
	var room [2]applied // on the stack, so that a denial allocates nothing
	mine, d, err := m.decide(c, r, room[:0])
	first := m.record(c, w, mine)
	m.observe(r, mine)
	switch {
	case err != nil:
		m.fail(r, err)
		if p := problemOf(err); p != &unavailable || !m.opts.FailOpen {
			answer(w, r, p)
			return
		}
	case !d.Allowed:
		m.deny(w, r, c, mine, d)
		return
	}
	inner := r
	if len(mine) > 0 {
		c, inner = c.on(r, mine)
		defer keepFiles(r, inner)
	}
	if !slices.ContainsFunc(mine, applied.waits) {
		next.ServeHTTP(w, inner)
		return
	}
	last := first + len(mine)
	begun := m.lim.Now()
	sw := &statusWriter{ResponseWriter: w, onStatus: func(status int) {
		m.afterStatus(c, first, last, begun, w, inner, status)
	}}
	defer func() {
		if v := recover(); v != nil {
			sw.choose(http.StatusInternalServerError)
			panic(v)
		}
		sw.choose(http.StatusOK)
	}()
	next.ServeHTTP(sw.wrapped(), inner)
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

// observed has slices of decisions for the observers. Making one takes 120 ns.
var observed = sync.Pool{New: func() any { return new([]Decision) }}

// observe reports decisions to the observers.
func (m *middleware) observe(r *http.Request, mine []applied) {
	if len(m.opts.Observers) == 0 || len(mine) == 0 {
		return
	}
	ds := observed.Get().(*[]Decision)
	for i := range mine {
		*ds = append(*ds, mine[i].Decision)
	}
	for _, o := range m.opts.Observers {
		if o.Decisions != nil {
			o.Decisions(r, *ds)
		}
	}
	clear(*ds)
	*ds = (*ds)[:0]
	observed.Put(ds)
}

// fail reports an error to the observers.
func (m *middleware) fail(r *http.Request, err error) {
	for _, o := range m.opts.Observers {
		if o.Error != nil {
			o.Error(r, err)
		}
	}
}
