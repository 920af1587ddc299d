package httplimit

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
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
// Middlewares are independent of each other: a request that passes two of them,
// one within the other, spends and takes its place at each, even from the same
// bucket. Within one middleware a request spends from a bucket once, by the first
// rule that is not a Shadow rule. Nested middlewares with the same Headers write
// their rules into the same fields, each with its own PartitionKey.
//
// If rules that apply to one request are shares of one total, the request spends
// from the total once for each rule: the sum of their costs. Such rules spend one
// after the other, and if one denies, the others get their tokens back.
//
// Similar denials share the values of header fields. Do not change such a value
// in place. The methods of http.Header do not.
func Middleware(lim stint.Decider, opts *Options, rs ...Rule) func(http.Handler) http.Handler {
	if rules.IsMissing(lim) {
		panic("httplimit: Middleware: no limiter")
	}
	m := new(middleware)
	if opts != nil {
		m.opts = *opts
	}
	all := make([]rules.Rule, len(rs))
	var shadows []routedRule
	for i, ru := range rs {
		all[i] = ru.rule()
		if mistake := ru.mistake(&all[i]); mistake != "" {
			panic(fmt.Sprintf("httplimit: Middleware: rule %d %s", i+1, mistake))
		}
		routed := routedRule{ru, i, newRoute(ru.Pattern)}
		if ru.Shadow {
			shadows = append(shadows, routed)
		} else {
			m.rules = append(m.rules, routed)
		}
		m.inFlight = m.inFlight || ru.InFlight > 0 || ru.InFlightFunc != nil
		m.ends = m.ends || ru.Settle || all[i].Ends()
	}
	m.rules = append(m.rules, shadows...)
	m.door = rules.New(lim, all...)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// middleware is what Middleware returns.
type middleware struct {
	door  *rules.Door
	opts  Options
	rules []routedRule // Shadow rules last

	inFlight, ends bool // some rule has a bound on requests in flight, or needs the status

	denial atomic.Pointer[denial]
	fields atomic.Pointer[[2]string] // of the last denial: RateLimit-Policy, RateLimit
}

type routedRule struct {
	Rule
	index int // as given to Middleware
	route *route
}

// serve decides on a request, and runs the handler unless it is denied.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	outer := passOf(r)
	var p *pass
	var room [2]rules.Part // on the stack, so that a denial allocates nothing
	parts := room[:0]
	report := func(err error) { m.fail(r, err) }
	if m.inFlight {
		defer func() { // also if a function of the program panics
			if rules.Leave(parts); p != nil {
				p.Leave()
			}
		}()
	}
	var d stint.Decision
	var err error
	if parts, err = m.apply(r, parts, report); err == nil {
		d, err = m.door.Decide(r.Context(), parts, report)
	}
	if err != nil {
		report(err)
		if answers := problemOf(err); answers != &unavailable || !m.opts.FailOpen {
			rules.Leave(parts)
			answer(w, r, answers)
			return
		}
		d.Allowed = true
	}
	if len(parts) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	if outer == nil {
		m.writeParts(w, parts)
	} else {
		p = m.carry(r, outer, parts)
		m.writeFields(w, p)
	}
	if len(m.opts.Observers) > 0 {
		m.observeAll(r, parts)
	}
	if p == nil && (d.Allowed || m.opts.Denied != nil) {
		p = m.carry(r, nil, parts)
	}
	inner := r
	if p != nil {
		inner = r.WithContext(p)
		defer keepFiles(r, inner)
	}
	switch {
	case !d.Allowed:
		m.deny(w, inner, parts, d)
	case m.ends:
		m.await(w, inner, p, next)
	default:
		next.ServeHTTP(w, inner)
	}
}

// await runs the handler, and tells the rules its status.
func (m *middleware) await(w http.ResponseWriter, r *http.Request, p *pass, next http.Handler) {
	p.writer = &statusWriter{ResponseWriter: w, onStatus: func(status int) {
		counted, changed := p.End(status, func(err error) { m.fail(r, err) })
		if changed {
			m.writeFields(w, p)
		}
		m.observe(r, counted)
	}}
	defer func() {
		if v := recover(); v != nil {
			p.writer.choose(http.StatusInternalServerError)
			panic(v)
		}
		p.writer.choose(http.StatusOK)
	}()
	next.ServeHTTP(p.writer.wrapped(), r)
}

// apply appends the rules that apply to a request, with their keys and costs.
func (m *middleware) apply(r *http.Request, parts []rules.Part, report func(error)) ([]rules.Part, error) {
	for i := range m.rules {
		ru := &m.rules[i]
		matched, ok := ru.route.match(r) // r, or a copy of it
		if !ok {
			continue
		}
		ask := rules.Ask{Rule: ru.index}
		ask.Key, ask.Err = ru.Key(matched)
		keepBody(r, matched)
		ask.Unix = ask.Key.ID == rules.Unix && isUnix(r.Context()) // asked only for such an id, because it costs a walk
		ok, err := m.door.Resolve(&ask, report)
		if !ok {
			if err != nil {
				return nil, err
			}
			continue
		}
		ask.Cost = ru.cost(matched)
		if ru.InFlightFunc != nil {
			ask.InFlight = ru.InFlightFunc(matched)
		}
		keepBody(r, matched)
		parts = m.door.Add(parts, &ask)
	}
	return parts, nil
}

// pass is a request in one middleware. It is the context of the handler.
type pass struct {
	rules.Pass
	by     *middleware
	outer  *pass                // in the middleware around
	inner  atomic.Pointer[pass] // the last one in a middleware inside
	writer *statusWriter        // nil if no rule needs the status
}

type passKey struct{}

// Value implements context.Context.
func (p *pass) Value(key any) any {
	if key == (passKey{}) {
		return p
	}
	return p.Pass.Value(key)
}

// passOf returns the innermost pass of a request, or nil.
func passOf(r *http.Request) *pass {
	p, _ := r.Context().Value(passKey{}).(*pass)
	return p
}

// carry moves the rules of a request from the stack to its pass.
func (m *middleware) carry(r *http.Request, outer *pass, parts []rules.Part) *pass {
	p := &pass{by: m, outer: outer}
	p.Carry(r.Context(), m.door, parts)
	if outer != nil {
		outer.inner.Store(p)
	}
	return p
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
func (m *middleware) observeAll(r *http.Request, parts []rules.Part) {
	ds := observed.Get().(*[]Decision)
	for i := range parts {
		if a := &parts[i]; a.Decided() {
			*ds = append(*ds, a.Decision)
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
