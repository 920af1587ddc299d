package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/clientid"
	"github.com/stint-go/stint/internal/onetotal"
	"github.com/stint-go/stint/internal/places"
)

// Server returns interceptors that hold calls to rules. Both share the rules.
// Nil options mean the defaults. It panics on mistakes in the program: no
// Limiter, a rule without a Key, a negative Cost, or a malformed Method.
//
// All rules that apply to a call spend together, as in
// stint.Limiter.SpendAll: if one of them denies, no token is spent. An error
// before the handler runs ends the call with InvalidArgument if it is about the
// call, and otherwise with Unavailable, unless FailOpen is set.
//
// A denial is ResourceExhausted with two details: RetryInfo with the exact time
// until the call would pass, and QuotaFailure with one violation for each limit
// that denied. Its trailer has grpc-retry-pushback-ms, which clients with a
// retryPolicy obey. The pushback is -1, which ends their retries, if the call
// would not pass within a day. If it would never pass, because its limit is
// stint.Blocked or its cost is over the Burst, there is no RetryInfo. No status
// has an id.
//
// A call spends from a bucket once, even if several rules or several
// interceptors find it. The first rule that is not a Shadow rule spends. After a
// denial or an error, and if FailOpen lets the call pass, no rule has spent: the
// next interceptor that finds the bucket decides. So it does after the end of a rule
// whose tokens were refunded, or whose CountCode did not count the code.
func Server(
	lim stint.Decider, opts *Options, rules ...Rule,
) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	if isMissing(lim) {
		panic("grpclimit: Server: no limiter")
	}
	s := &server{lim: lim, exempt: exempt}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Exempt != nil {
		s.exempt = slices.Clone(s.opts.Exempt)
	}
	for _, method := range s.exempt {
		if !isPattern(method) {
			panic(fmt.Sprintf("grpclimit: Server: Exempt has %q, want /pkg.Service/Method or /pkg.Service/*", method))
		}
	}
	s.byIP = s.opts.Client.ByIP(0)
	if len(s.opts.Client.TrustedProxies) > 0 || s.opts.Client.TrustUnix {
		s.proxyField = http.CanonicalHeaderKey(cmp.Or(s.opts.Client.Field, "X-Forwarded-For"))
	}
	var shadows []Rule
	for i, ru := range rules {
		if mistake := ru.mistake(); mistake != "" {
			panic(fmt.Sprintf("grpclimit: Server: rule %d %s", i+1, mistake))
		}
		if ru.Shadow {
			shadows = append(shadows, ru)
		} else {
			s.rules = append(s.rules, ru)
		}
	}
	s.rules = append(s.rules, shadows...)
	return s.unary, s.stream
}

// isMissing reports whether there is no Limiter, or a nil one of any type.
func isMissing(lim stint.Decider) bool {
	v := reflect.ValueOf(lim)
	return lim == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// server is what the interceptors of Server share.
type server struct {
	lim        stint.Decider
	opts       Options
	exempt     []string
	rules      []Rule // Shadow rules last
	names      clientid.Names
	byIP       httplimit.KeyFunc
	proxyField string // "" if no proxy is trusted
	last       atomic.Pointer[refusal]
}

// applied is one rule that applies to one call. Of a Shadow rule, an inner
// interceptor may change idle and place.
type applied struct {
	Decision
	by       *server
	rule     *Rule
	at       time.Time // of the spend, by the Limiter's clock
	place    places.Place[places.Bucket]
	idle     bool // only the place counts: another rule spends from the bucket
	message  bool // of one message of a stream
	decided  bool // Decision is one
	refunded bool // nothing is spent (any more)
	settled  bool
	changed  bool // the bucket has changed since Decision: tokens were returned, or it is locked out
	void     bool // the rule has spent nothing, and its interceptor has ended, or let the call pass because of FailOpen
	placed   bool // the call has its place already
	left     bool // the place was given back, or there was none
}

// hasSpent reports whether the call has spent tokens that were not returned.
func (a *applied) hasSpent() bool {
	return a.decided && !a.idle && a.Allowed && !a.After && !a.refunded && !a.void
}

// decides reports whether the rule decides now: not if its messages do, later.
func (a *applied) decides() bool { return !a.idle && (a.rule.Messages == 0 || a.message) }

// carried is the context of a call that has passed an interceptor. Nested
// interceptors add their rules to it.
type carried struct {
	context.Context
	call Call

	mu      sync.Mutex // guards the following; not held while the Limiter is called
	applied []*applied
	told    bool       // a denial has set the trailer
	room    [1]applied // saves allocations
	first   [2][1]*applied
}

type carriedKey struct{}

func carriedBy(ctx context.Context) *carried {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	return c
}

// Value implements context.Context.
func (c *carried) Value(key any) any {
	if key == (carriedKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Decisions returns the decisions about a call so far, of all interceptors around
// the handler. It returns nil if the call did not pass through an interceptor.
func Decisions(ctx context.Context) []Decision {
	c := carriedBy(ctx)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ds := make([]Decision, 0, len(c.applied))
	for _, a := range c.applied {
		if a.decided {
			ds = append(ds, a.Decision)
		}
	}
	return ds
}

func (s *server) isExempt(method string) bool {
	return slices.ContainsFunc(s.exempt, func(pattern string) bool { return matches(pattern, method) })
}

func (s *server) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (resp any, err error) {
	if s.isExempt(info.FullMethod) {
		return next(ctx, req)
	}
	p, err := s.begin(ctx, info.FullMethod, req, false)
	if err != nil {
		return nil, err
	}
	if !p.ends {
		return next(p.context(ctx), req)
	}
	code := codes.Internal // of a panic
	defer func() { p.end(code) }()
	resp, err = next(p.context(ctx), req)
	code = codeOf(err)
	return resp, err
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if s.isExempt(info.FullMethod) {
		return next(srv, ss)
	}
	ctx := ss.Context()
	p, err := s.begin(ctx, info.FullMethod, nil, true)
	if err != nil {
		return err
	}
	if len(p.mine) == 0 {
		return next(srv, ss)
	}
	l := &limitedStream{ServerStream: ss, ctx: p.context(ctx), pass: &p}
	for _, a := range p.mine {
		for i, messages := range [...]Messages{Received, Sent} {
			if a.rule.Messages&messages != 0 && !a.idle {
				l.rules[i] = append(l.rules[i], a)
			}
		}
	}
	code := codes.Internal // of a panic
	defer func() { p.end(code) }()
	err = next(srv, l)
	if ended := l.ended.Load(); ended != nil {
		err = *ended
	}
	code = codeOf(err)
	return err
}

// codeOf returns the code that the server sends for the error of a handler.
func codeOf(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return status.FromContextError(err).Code()
}

// pass is the way of one call through one pair of interceptors.
type pass struct {
	*server
	c    *carried
	mine []*applied
	ends bool // end has something to do
}

// context returns the context for the handler.
func (p *pass) context(ctx context.Context) context.Context {
	if p.c == nil || carriedBy(ctx) == p.c {
		return ctx
	}
	return p.c
}

// begin takes the places and the tokens of a call. The error is the status that
// ends the call.
func (s *server) begin(ctx context.Context, method string, req any, stream bool) (p pass, err error) {
	p = pass{server: s, c: carriedBy(ctx)}
	passed := false
	defer func() {
		if !passed { // denied, an error, or a function of the user panics
			p.leave()
			p.voided()
		}
	}()
	if err = p.apply(ctx, method, req, stream); err != nil {
		if err = p.failed(ctx, err); err == nil { // FailOpen
			passed = true
			p.leave() // it has taken none
			p.forget()
		}
		return p, err
	}
	if len(p.mine) == 0 {
		passed = true
		return p, nil
	}
	if full := p.enter(ctx); full != nil {
		p.observe(ctx, []*applied{full})
		p.tell(ctx, []*applied{full})
		return p, p.denied(ctx, []*applied{full})
	}
	d, err := p.spend(ctx, p.mine)
	if err != nil {
		if err = p.failed(ctx, err); err == nil { // FailOpen
			passed = true
			p.forget()
		}
		return p, err
	}
	p.learn(ctx, p.mine, d.Allowed)
	p.observe(ctx, p.mine)
	if !d.Allowed {
		p.tell(ctx, p.mine)
		return p, p.denied(ctx, p.mine)
	}
	passed = true
	return p, nil
}

// apply finds the rules that apply to a call, with their keys and costs.
func (p *pass) apply(ctx context.Context, method string, req any, stream bool) error {
	var call *Call
	for i := range p.rules {
		ru := &p.rules[i]
		if !matches(ru.Method, method) || ru.Messages != 0 && !stream {
			continue
		}
		switch {
		case call != nil:
		case p.c == nil:
			p.c = &carried{Context: ctx}
			p.c.applied, p.mine = p.c.first[0][:0], p.c.first[1][:0]
			call = &p.c.call
		default:
			call = new(Call) // the other one has its own server
		}
		*call = Call{Method: method, Request: req, Stream: stream, server: p.server}
		key, label, err := p.key(ctx, ru, call)
		switch {
		case err == nil:
		case ru.Optional && errors.Is(err, ErrNoID):
			continue
		case ru.Shadow:
			p.fail(ctx, err)
			continue
		default:
			return err
		}
		cost := int64(0)
		if ru.Messages == 0 {
			cost = ru.cost(ctx, call)
		}
		p.add(ctx, ru, key, label, cost)
	}
	return nil
}

// add adds a rule, unless another one of the call has the same bucket.
func (p *pass) add(ctx context.Context, ru *Rule, key stint.Key, label string, cost int64) {
	p.c.mu.Lock()
	var a *applied
	if len(p.c.applied) == 0 && len(p.mine) == 0 {
		a = &p.c.room[0]
	} else {
		a = new(applied)
	}
	*a = applied{by: p.server, rule: ru}
	a.Decision = Decision{Label: label, RuleKey: key, Cost: cost, Shadow: ru.Shadow, After: ru.CountCode != nil}
	a.Key = key
	var replaced, shadow *applied
	hasPlace := false
	for _, other := range p.c.applied {
		if other.RuleKey != key || other.by.lim != p.lim {
			continue
		}
		hasPlace = hasPlace || other.rule.InFlight > 0 && !other.left && (!other.Shadow || ru.Shadow)
		if other.Shadow && other.place.Taken() {
			shadow = other
		}
		switch {
		case other.void:
			other.decided = false
		case other.idle:
		case other.Shadow && !ru.Shadow && other.by != p.server:
			replaced = other
		default:
			a.idle = true
		}
	}
	if a.idle && (hasPlace || ru.InFlight == 0) {
		p.c.mu.Unlock()
		return
	}
	a.placed = hasPlace
	p.c.applied = append(p.c.applied, a)
	p.mine = append(p.mine, a)
	p.ends = p.ends || ru.waits() && !a.idle || ru.InFlight > 0 || p.opts.RateLimit
	var back []stint.Request
	if replaced != nil {
		if replaced.hasSpent() {
			back = []stint.Request{{Key: key, Cost: replaced.Cost, Spent: replaced.at}}
		}
		replaced.idle = true
	}
	if shadow != nil && ru.InFlight > 0 { // the call takes one place
		shadow.leave()
	}
	p.c.mu.Unlock()
	if back != nil {
		if _, err := onetotal.Refund(p.lim, back...); err != nil {
			p.fail(ctx, err)
		}
	}
}

// key returns the bucket of a call for a rule, and the label of its limit.
func (s *server) key(ctx context.Context, ru *Rule, call *Call) (stint.Key, string, error) {
	found, err := ru.Key(ctx, call)
	if err != nil {
		return stint.Key{}, "", err
	}
	names := s.names.Of(s.lim)
	key, err := clientid.Key(names, found, found.ID == clientid.Unix && onUnix(ctx), ru.LockOutMax > 0)
	return key, names[found.Name].Label, err
}

// enter takes the places. If one is missing, enter returns its rule.
func (p *pass) enter(ctx context.Context) (full *applied) {
	for _, a := range p.mine {
		if a.rule.InFlight == 0 || a.placed {
			continue
		}
		key := places.Bucket{Limiter: p.lim, Key: a.RuleKey}
		var state places.State
		if a.Shadow {
			a.place, state = places.Requests.Force(key)
		} else {
			a.place, state = places.Requests.Enter(ctx, key, places.Bound{Most: a.rule.InFlight})
		}
		denied := !a.place.Taken() || state.Running > a.rule.InFlight
		p.c.mu.Lock()
		a.InFlight = httplimit.InFlight{Limit: a.rule.InFlight, Running: state.Running, Denied: denied}
		if !a.place.Taken() {
			a.decided, a.RetryAfter = true, fullFor
			full = a
		}
		p.c.mu.Unlock()
		if full != nil {
			return full
		}
	}
	return nil
}

// fullFor is the RetryAfter of a call without a place. Nobody knows when another
// call ends.
const fullFor = time.Second

// leave gives the places back.
func (p *pass) leave() {
	if len(p.mine) == 0 {
		return
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for _, a := range p.mine {
		a.leave()
	}
}

// leave gives the place back, if there is one.
func (a *applied) leave() {
	a.left = true
	if a.place.Taken() {
		a.place.Leave()
		a.place = places.Place[places.Bucket]{}
	}
}

// forget marks the rules of a call that passes because of FailOpen: they have
// spent nothing. Rules for messages decide later.
func (p *pass) forget() {
	if len(p.mine) == 0 {
		return
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for _, a := range p.mine {
		a.Allowed, a.refunded, a.void = true, true, a.rule.Messages == 0
	}
}

// voided marks the rules of a call that ends here, so that they decide anew if an
// outer interceptor calls this one again.
func (p *pass) voided() {
	if len(p.mine) == 0 {
		return
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for _, a := range p.mine {
		a.void = true
	}
}

// observe reports decisions to the observers.
func (p *pass) observe(ctx context.Context, mine []*applied) {
	if len(p.opts.Observers) == 0 {
		return
	}
	ds := observed.Get().(*[]Decision)
	for _, a := range mine {
		if a.decided {
			*ds = append(*ds, a.Decision)
		}
	}
	for _, o := range p.opts.Observers {
		if o.Decisions != nil && len(*ds) > 0 {
			o.Decisions(ctx, *ds)
		}
	}
	clear(*ds)
	*ds = (*ds)[:0]
	observed.Put(ds)
}

// observed has slices of decisions for the observers.
var observed = sync.Pool{New: func() any { return new([]Decision) }}

// fail reports an error to the observers.
func (s *server) fail(ctx context.Context, err error) {
	for _, o := range s.opts.Observers {
		if o.Error != nil {
			o.Error(ctx, err)
		}
	}
}
