package httplimit

import (
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/clientid"
)

// Middleware returns middleware that holds requests to rules. Nil options mean the
// defaults. It panics on mistakes in the program: no Limiter, a rule without a
// Key, a negative Cost or InFlight, a Pattern that http.ServeMux refuses, or
// Settle beside CountStatus or LockOut.
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
// spend from the same buckets again. If nested middleware has denied, it decides
// anew when it is called again, and so does a rule whose tokens were refunded, or
// whose CountStatus did not count the status. Each middleware writes its own rules
// into the fields that its Headers select, with its own PartitionKey. Nested
// middlewares with the same Headers write into the same fields.
//
// If rules that apply to one request are shares of one total, the request spends
// from the total once for each rule: the sum of their costs. Such rules spend one
// after the other, and if one denies, the others get their tokens back.
//
// Similar denials share the values of header fields. Do not change such a value
// in place. The methods of http.Header do not.
func Middleware(lim stint.Decider, opts *Options, rules ...Rule) func(http.Handler) http.Handler {
	if isMissing(lim) {
		panic("httplimit: Middleware: no limiter")
	}
	m := &middleware{lim: lim}
	m.replaced.by = m
	if opts != nil {
		m.opts = *opts
	}
	var shadows []routedRule
	for i, ru := range rules {
		switch {
		case ru.Key == nil:
			panic(fmt.Sprintf("httplimit: Middleware: rule %d has no Key", i+1))
		case ru.Cost < 0:
			panic(fmt.Sprintf("httplimit: Middleware: rule %d has the Cost %d, want 0 or more", i+1, ru.Cost))
		case ru.InFlight < 0:
			panic(fmt.Sprintf("httplimit: Middleware: rule %d has the InFlight %d, want 0 or more", i+1, ru.InFlight))
		case ru.Settle && (ru.CountStatus != nil || ru.LockOut > 0):
			panic(fmt.Sprintf("httplimit: Middleware: rule %d has Settle, and CountStatus or LockOut", i+1))
		case ru.Shadow:
			shadows = append(shadows, routedRule{Rule: ru, by: m, route: newRoute(ru.Pattern)})
		default:
			m.rules = append(m.rules, routedRule{Rule: ru, by: m, route: newRoute(ru.Pattern)})
		}
	}
	m.rules = append(m.rules, shadows...)
	for i := range m.rules {
		ru := &m.rules[i]
		ru.gate.rule = &ru.Rule
		m.waits = m.waits || ru.waits()
		m.stamps = m.stamps || ru.stamps()
		m.inFlight = m.inFlight || ru.InFlight > 0 || ru.InFlightFunc != nil
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// isMissing reports whether there is no Limiter, or a nil one of any type.
func isMissing(lim stint.Decider) bool {
	v := reflect.ValueOf(lim)
	return lim == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// middleware is what Middleware returns.
type middleware struct {
	lim   stint.Decider
	opts  Options
	rules []routedRule // Shadow rules last

	waits, inFlight bool // some rule waits for the status, or has a bound on requests in flight
	stamps          bool // some rule needs the instant of its spend

	replaced routedRule // takes the place of a rule if another one decides on its bucket, or none could

	names  clientid.Names
	denial atomic.Pointer[denial]
	fields atomic.Pointer[[2]string] // of the last denial: RateLimit-Policy, RateLimit
}

type routedRule struct {
	Rule
	by    *middleware
	route *route
	gate  gate // of its requests, unless it is a Shadow rule
}

// serve decides on a request, and runs the handler unless it is denied.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := carriedBy(r)
	var room [2]applied // on the stack, so that a denial allocates nothing
	var held taken
	if m.inFlight {
		defer held.leave()
	}
	mine, d, err := m.decide(c, r, room[:0], &held)
	if err != nil {
		m.fail(r, err)
		if p := problemOf(err); p != &unavailable || !m.opts.FailOpen {
			held.leave()
			answer(w, r, p)
			return
		}
	}
	denied := err == nil && !d.Allowed
	for i := range mine {
		mine[i].void = denied
	}
	first := m.record(c, w, mine)
	if len(m.opts.Observers) > 0 {
		m.observeAll(r, mine)
	}
	if m.inFlight && c != nil {
		held.known(c, first, first+len(mine))
	}
	if denied {
		held.leave()
		m.deny(w, r, c, mine, d)
		return
	}
	inner := r
	if len(mine) > 0 {
		c, inner = c.on(r, mine)
		if m.inFlight {
			held.known(c, first, first+len(mine))
		}
		defer keepFiles(r, inner)
	}
	if !m.waits || !waits(mine) {
		next.ServeHTTP(w, inner)
		return
	}
	last := first + len(mine)
	sw := &statusWriter{ResponseWriter: w, onStatus: func(status int) {
		m.afterStatus(c, first, last, w, inner, status)
	}}
	c.mu.Lock()
	sw.outer, c.writer = c.writer, sw
	c.mu.Unlock()
	defer c.ended(first, last)
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

// observeAll reports the decisions of rules to the observers.
func (m *middleware) observeAll(r *http.Request, mine []applied) {
	ds := observed.Get().(*[]Decision)
	for i := range mine {
		if a := &mine[i]; !a.onlyPlace() {
			*ds = append(*ds, a.decision())
		}
	}
	m.observe(r, *ds)
	clear(*ds)
	*ds = (*ds)[:0]
	observed.Put(ds)
}

// observe reports decisions to the observers.
func (m *middleware) observe(r *http.Request, ds []Decision) {
	if len(ds) == 0 {
		return
	}
	for _, o := range m.opts.Observers {
		if o.Decisions != nil {
			o.Decisions(r, ds)
		}
	}
}

// fail reports an error to the observers.
func (m *middleware) fail(r *http.Request, err error) {
	for _, o := range m.opts.Observers {
		if o.Error != nil {
			o.Error(r, err)
		}
	}
}
