package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// New returns middleware that holds requests to the rules. What they spend, they spend together or not at all
// (stint.Limiter.SpendAll). It panics on a rule that cannot be meant: one without a Key, with a negative Cost, or with a
// Pattern that is none.
//
// Where rules spend together from a limit at stint.Leased and from one at stint.Memory or stint.Flushed, each request that is
// let through waits for a commit, not one in each lease. In nested middleware of their own they spend apart, and what the
// outer one has spent stays spent where the inner one denies.
//
// Where middleware is nested, or two rules find the same bucket, a request spends from it once, by the first of them that is
// not in the shadow. A request made with the context of another counts as nested in it: the buckets that one has spent from are
// free to it. Clients are told of each rule by the Headers and PartitionKey of the middleware that spent; fields of one kind tell
// of all.
//
// Responses share the values of header fields, which must not be changed in place. Header's Set and Add are safe.
func New(lim *stint.Limiter, opts *Options, rules ...Rule) func(http.Handler) http.Handler {
	if lim == nil {
		panic("httplimit: New: no limiter")
	}
	m := &middleware{lim: lim}
	if opts != nil {
		m.opts = *opts
	}
	for i, ru := range rules {
		if ru.Key == nil {
			panic(fmt.Sprintf("httplimit: New: rule %d has no Key", i+1))
		}
		if ru.Cost < 0 {
			panic(fmt.Sprintf("httplimit: New: rule %d has a negative Cost", i+1))
		}
		m.rules = append(m.rules, rule{Rule: ru, route: newRoute(ru.Pattern)})
		m.after = m.after || ru.CountStatus != nil || ru.RefundStatus != nil || ru.LockOut > 0
	}
	slices.SortStableFunc(m.rules, func(a, b rule) int { // of two that find the same bucket, the one that denies counts
		return cmp.Compare(btoi(a.Shadow), btoi(b.Shadow))
	})
	m.format = newHeaderFormat(m.opts)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	lim    *stint.Limiter
	opts   Options
	rules  []rule // those that deny first
	after  bool   // there are rules that wait for the status
	format *headerFormat
	names  atomic.Pointer[declared]
	denial atomic.Pointer[denial]
	spare  atomic.Pointer[carried]
}

type rule struct {
	Rule
	route *route
}

// declared are the Names of the limits in force, as they were when last looked at.
type declared struct {
	limits *stint.Limits
	names  stint.Names
}

// applied is one rule that applied to one request.
type applied struct {
	Decision
	by       *middleware // that spends, and tells the client
	rule     *Rule
	refunded bool
	locked   time.Duration // it spent the last token, and locked the bucket out
}

// carried is what a request carries of the decisions on it, from one middleware to those nested in it. It is the request's
// context, with itself added. mu is held over nothing that waits for a disk or a client.
type carried struct {
	context.Context            // nil before a request carries it
	mu              sync.Mutex // http.TimeoutHandler runs what is nested in it in a goroutine of its own
	applied         []applied
	few             [1]applied
	state           [1]string // the RateLimit field that was written first; it stays
}

// free keeps c for the next request, if none carries it: there was no rule for it, or it was denied, and went no further; nor a
// header, which is written later.
func (m *middleware) free(c *carried) {
	if c.Context == nil && c.state[0] == "" {
		clear(c.applied)
		c.applied = c.few[:0]
		m.spare.Store(c)
	}
}

// on returns a request that carries c.
func (c *carried) on(r *http.Request) *http.Request {
	if c.Context != nil {
		return r
	}
	c.Context = r.Context()
	return r.WithContext(c)
}

func (c *carried) Value(key any) any {
	if key == (carriedKey{}) {
		return c
	}
	return c.Context.Value(key)
}

type carriedKey struct{}

// told is for what Options.OnDecision is told, which must not keep it.
var told = sync.Pool{New: func() any { return new([]Decision) }}

func carriedBy(r *http.Request) *carried {
	c, _ := r.Context().Value(carriedKey{}).(*carried)
	return c
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := carriedBy(r)
	if c == nil {
		if m.spare.Load() != nil {
			c = m.spare.Swap(nil)
		}
		if c == nil {
			c = new(carried)
			c.applied = c.few[:0]
		}
	}
	var failures []error // of rules that stop nothing
	mine, d, err := m.decide(c, r, &failures)
	first, last := m.record(c, w, mine)
	waiting := m.after && anyWaits(mine)
	var ds *[]Decision
	if m.opts.OnDecision != nil && len(mine) > 0 {
		ds = told.Get().(*[]Decision)
		for i := range mine {
			*ds = append(*ds, mine[i].Decision)
		}
	}
	for _, failure := range failures {
		m.tell(r, failure)
	}
	if ds != nil {
		m.opts.OnDecision(r, *ds)
		clear(*ds)
		*ds = (*ds)[:0]
		told.Put(ds)
	}
	switch {
	case err != nil:
		m.tell(r, err)
		if refused := refusalOf(err); refused != nil {
			answer(w, r, refused)
			return
		}
		if !m.opts.FailOpen {
			answer(w, r, &unavailable)
			return
		}
	case !d.Allowed:
		m.deny(w, r, c, d)
		return
	}
	if last > 0 {
		carrying := c.on(r)
		defer keepFiles(r, carrying)
		r = carrying
	} else {
		m.free(c)
	}
	if !waiting {
		next.ServeHTTP(w, r)
		return
	}
	sw := &statusWriter{ResponseWriter: w}
	begun := m.lim.Now()
	sw.onStatus = func(status int) { m.settle(c, first, last, begun, w, r, status) }
	defer func() {
		if v := recover(); v != nil {
			sw.settle(http.StatusInternalServerError)
			panic(v)
		}
		sw.settle(http.StatusOK)
	}()
	next.ServeHTTP(sw.wrapped(), r)
}

// anyWaits reports whether there is something to do once the status is known.
func anyWaits(as []applied) bool {
	for i := range as {
		if ru := as[i].rule; ru.CountStatus != nil || ru.RefundStatus != nil || ru.LockOut > 0 {
			return true
		}
	}
	return false
}

// decide finds the rules that apply and that c has no decision of, and spends. The decision is the strictest of those that count.
func (m *middleware) decide(c *carried, r *http.Request, failures *[]error) ([]applied, stint.Decision, error) {
	var mine []applied
	if c.Context == nil {
		mine = c.applied // nobody else has it yet
	}
	for i := range m.rules {
		ru := &m.rules[i]
		matched, ok := ru.route.match(r) // another copy of r, perhaps
		if !ok {
			continue
		}
		key, label, err := m.key(ru, matched)
		keepBody(r, matched)
		switch {
		case err == nil:
		case ru.Optional && errors.Is(err, ErrNoID):
			continue
		case ru.Shadow:
			*failures = append(*failures, err)
			continue
		default:
			return nil, stint.Decision{}, err
		}
		cost := ru.cost(matched)
		keepBody(r, matched)
		if find(mine, m.lim, key) != nil {
			continue
		}
		a := applied{by: m, rule: &ru.Rule}
		a.Key, a.Label, a.Cost, a.Shadow, a.After = key, label, cost, ru.Shadow, ru.CountStatus != nil
		mine = append(mine, a)
	}
	if c.Context != nil {
		var back []stint.Request
		mine, back = m.others(c, mine)
		if len(back) > 0 {
			if _, err := m.lim.RefundAll(back...); err != nil {
				*failures = append(*failures, err)
			}
		}
	}
	strictest := stint.Decision{Allowed: true, Remaining: math.MaxInt64}
	var few [4]stint.Request
	reqs := few[:0]
	for i := range mine {
		if a := &mine[i]; !a.Shadow {
			reqs = append(reqs, a.request())
		}
	}
	if len(reqs) > 0 {
		d, err := m.spend(reqs)
		if err != nil {
			return nil, stint.Decision{}, err
		}
		strictest = d
	}
	for i := range mine {
		if err := m.learn(&mine[i], strictest); err != nil {
			*failures = append(*failures, err)
		}
	}
	return mine, strictest, nil
}

// others leaves those of mine that c has no decision of that counts, and returns what to give back: what was in the shadow there
// and is meant here is decided anew.
func (m *middleware) others(c *carried, mine []applied) (rest []applied, back []stint.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest = slices.DeleteFunc(mine, func(a applied) bool {
		before := find(c.applied, m.lim, a.Key)
		if before == nil || !before.Shadow || a.Shadow {
			return before != nil
		}
		if before.Allowed && !before.After && !before.refunded {
			back = append(back, stint.Request{Key: before.Key, Cost: before.Cost})
		}
		before.rule, before.After = &overruled, false
		return false
	})
	return rest, back
}

// overruled is the rule of what was decided in the shadow of one that is meant: it settles nothing.
var overruled Rule

// record adds what was decided to what the request carries, where it is first to last, and tells the client.
func (m *middleware) record(c *carried, w http.ResponseWriter, mine []applied) (first, last int) {
	if c.Context == nil {
		c.applied = mine
	} else {
		c.mu.Lock()
		defer c.mu.Unlock() // PartitionKey may panic
		c.applied = append(c.applied, mine...)
	}
	last = len(c.applied)
	if last > 0 {
		m.format.write(w, c)
	}
	return last - len(mine), last
}

// spend is SpendAll, by a shorter way for one.
func (m *middleware) spend(reqs []stint.Request) (stint.Decision, error) {
	if len(reqs) > 1 {
		return m.lim.SpendAll(reqs...)
	}
	if reqs[0].Mode == stint.CheckOnly {
		return m.lim.Check(reqs[0].Key, reqs[0].Cost)
	}
	return m.lim.Spend(reqs[0].Key, reqs[0].Cost)
}

// keepBody lets the handler have what a KeyFunc or CostFunc has read of the body: the form.
func keepBody(r, read *http.Request) {
	r.Body, r.Form, r.PostForm, r.MultipartForm = read.Body, read.Form, read.PostForm, read.MultipartForm
}

// keepFiles lets net/http remove the files of a form, which it does of the request that it made.
func keepFiles(r, read *http.Request) {
	if r.MultipartForm == nil {
		r.MultipartForm = read.MultipartForm
	}
}

// learn finds out the decision on one rule, of several that were decided together, or that are in the shadow. Where it
// cannot, what is certain is left: the request has been decided.
func (m *middleware) learn(a *applied, strictest stint.Decision) (err error) {
	spent := strictest.Allowed && !a.After
	d := strictest
	switch {
	case !a.Shadow && a.Key == strictest.Key:
	case !spent:
		d, err = m.lim.Check(a.Key, a.Cost)
	case a.Shadow:
		d, err = m.lim.Spend(a.Key, a.Cost)
	default:
		d, err = m.lim.Check(a.Key, 0)
		d.Allowed, d.RetryAfter = true, 0
	}
	if err != nil {
		a.refunded = a.Shadow && !a.After // nothing was spent
		d = stint.Decision{Allowed: strictest.Allowed, Key: a.Key, Remaining: math.MaxInt64}
	}
	if d.Allowed && !spent && d.Limit.Count > 0 { // Check tells what a spend would have left
		d.Remaining += a.Cost
		d.ResetAfter = max(0, d.ResetAfter-time.Duration(a.Cost)*d.Limit.Interval())
	}
	a.Decision.Decision = d
	return err
}

// request returns what the rule asks for before the handler.
func (a *applied) request() stint.Request {
	req := stint.Request{Key: a.Key, Cost: a.Cost}
	if a.After {
		req.Mode = stint.CheckOnly
	}
	return req
}

// find returns what has been decided for a bucket.
func find(as []applied, lim *stint.Limiter, key stint.Key) *applied {
	for i := range as {
		if a := &as[i]; a.Key == key && a.by.lim == lim && a.rule != &overruled {
			return a
		}
	}
	return nil
}

// key returns the bucket that a rule holds a request against, in its canonical spelling, and the label of its limit.
func (m *middleware) key(ru *rule, r *http.Request) (key stint.Key, label string, err error) {
	found, err := ru.Key(r)
	if err != nil {
		return stint.Key{}, "", err
	}
	names := m.declared()
	key, err = names.Key(found.Name, found.ID)
	if errors.Is(err, stint.ErrInvalidID) {
		if network, notOne := netip.ParsePrefix(found.ID); notOne == nil && network.Addr().Unmap().Is6() && network == network.Masked() {
			if asAddress, not := names.Key(found.Name, network.Addr().String()); not == nil {
				key, err = asAddress, nil
			}
		} else if ru.findsSocket(found, r) {
			key, err = found, nil
		}
	}
	return key, names[key.Name].Label, err
}

// findsSocket reports whether what was found is the key that ByIP has for a Unix socket, whatever the IDFormat, and not an id that
// a client wrote alike: that would be found over a network, too.
func (ru *rule) findsSocket(found stint.Key, r *http.Request) bool {
	if found.ID != unixID || !isUnix(r.Context()) {
		return false
	}
	elsewhere := r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{}))
	again, err := ru.Key(elsewhere)
	keepBody(r, elsewhere)
	return err != nil || again != found
}

func (m *middleware) declared() stint.Names {
	limits := m.lim.Limits()
	d := m.names.Load()
	if d == nil || d.limits != limits {
		d = &declared{limits, limits.Names()}
		m.names.Store(d)
	}
	return d.names
}

// refusalOf returns the answer to an error that is about what the client sent; nil where it is not.
func refusalOf(err error) *refusal {
	switch {
	case errors.Is(err, ErrNoID), errors.Is(err, stint.ErrInvalidID):
		return &badRequest
	case errors.Is(err, stint.ErrCostOverBurst), errors.Is(err, stint.ErrNegativeCost):
		return &neverAdmitted
	}
	return nil
}

func (m *middleware) tell(r *http.Request, err error) {
	if m.opts.OnError != nil {
		m.opts.OnError(r, err)
	}
}

func decisions(as []applied) []Decision {
	ds := make([]Decision, len(as))
	for i := range as {
		ds[i] = as[i].Decision
	}
	return ds
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
