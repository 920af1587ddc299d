package grpclimit

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
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
// Interceptors are independent of each other: a call that passes two of them, one
// within the other, spends and takes its place at each, even from the same
// bucket. Within one interceptor a call spends from a bucket once, by the first
// rule that is not a Shadow rule.
func Server(
	lim stint.Decider, opts *Options, rs ...Rule,
) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	if rules.IsMissing(lim) {
		panic("grpclimit: Server: no limiter")
	}
	s := &server{exempt: exempt}
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
	for i, ru := range rs {
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
	all := make([]rules.Rule, len(s.rules))
	s.ends = s.opts.RateLimit
	for i := range s.rules {
		all[i] = s.rules[i].rule()
		s.ends = s.ends || all[i].Ends() || all[i].InFlight > 0
	}
	s.door = rules.New(lim, all...)
	return s.unary, s.stream
}

// server is what the interceptors of Server share.
type server struct {
	door       *rules.Door
	opts       Options
	exempt     []string
	rules      []Rule // Shadow rules last
	ends       bool   // a call has something to do at its end
	byIP       httplimit.KeyFunc
	proxyField string // "" if no proxy is trusted
	last       atomic.Pointer[refusal]
}

// pass is the way of one call through one pair of interceptors. It is the context
// of the handler.
type pass struct {
	rules.Pass
	*server
	call  Call
	outer *pass       // in the interceptor around
	told  atomic.Bool // a denial has set the trailer; of the outermost pass
}

type passKey struct{}

// Value implements context.Context.
func (p *pass) Value(key any) any {
	if key == (passKey{}) {
		return p
	}
	return p.Pass.Value(key)
}

// Decisions returns the decisions about a call so far, of all interceptors around
// the handler. It returns nil if the call did not pass through an interceptor.
func Decisions(ctx context.Context) []Decision { return rules.Decisions(ctx) }

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
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return next(ctx, req)
	case !s.ends:
		return next(p, req)
	}
	code := codes.Internal // of a panic
	defer func() { p.end(code) }()
	resp, err = next(p, req)
	code = codeOf(err)
	return resp, err
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if s.isExempt(info.FullMethod) {
		return next(srv, ss)
	}
	p, err := s.begin(ss.Context(), info.FullMethod, nil, true)
	switch {
	case err != nil:
		return err
	case p == nil:
		return next(srv, ss)
	}
	l := &limitedStream{ServerStream: ss, pass: p}
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

// begin takes the places and the tokens of a call. p is nil if no rule applies to
// it. The error is the status that ends the call.
func (s *server) begin(ctx context.Context, method string, req any, stream bool) (p *pass, err error) {
	var room [2]rules.Ask
	asks := room[:0]
	for i := range s.rules {
		ru := &s.rules[i]
		if !matches(ru.Method, method) || ru.Messages != 0 && !stream {
			continue
		}
		if p == nil {
			p = &pass{server: s, call: Call{Method: method, Request: req, Stream: stream, server: s}}
			p.outer, _ = ctx.Value(passKey{}).(*pass)
		}
		asks = append(asks, s.ask(ctx, i, &p.call))
	}
	if p == nil {
		return nil, nil
	}
	report := func(err error) { s.fail(ctx, err) }
	d, err := p.Begin(ctx, s.door, report, asks)
	passed := false
	defer func() {
		if !passed { // denied, an error, or an observer panics
			p.Leave()
		}
	}()
	if err != nil {
		err = p.failed(ctx, err)
	} else {
		err = p.decided(ctx, d.Allowed)
	}
	passed = err == nil
	return p, err
}

// ask returns what a call asks of a rule.
func (s *server) ask(ctx context.Context, i int, call *Call) rules.Ask {
	ru, ask := &s.rules[i], rules.Ask{Rule: i}
	ask.Later = ru.Messages != 0
	if ask.Key, ask.Err = ru.Key(ctx, call); ask.Err != nil {
		return ask
	}
	ask.Unix = ask.Key.ID == rules.Unix && onUnix(ctx)
	if !ask.Later {
		ask.Cost = ru.cost(ctx, call)
	}
	return ask
}

// decided reports the decisions about a call to the observers, and returns the
// status that ends it if it is denied.
func (p *pass) decided(ctx context.Context, allowed bool) error {
	if allowed && len(p.opts.Observers) == 0 {
		return nil
	}
	ds := decisions.Get().(*[]Decision)
	defer decisions.Put(ds)
	for d := range p.Each {
		*ds = append(*ds, *d)
	}
	defer func() {
		clear(*ds)
		*ds = (*ds)[:0]
	}()
	p.observe(ctx, *ds)
	if allowed {
		return nil
	}
	p.tell(ctx, *ds)
	return p.denied(ctx, *ds)
}

// decisions has slices for the observers.
var decisions = sync.Pool{New: func() any { return new([]Decision) }}

// end tells the rules the code of a call after its handler. An error of the Limiter
// is reported to the observers, and does not stop the rest.
func (p *pass) end(code codes.Code) {
	p.Leave()
	if !p.ends {
		return
	}
	ctx := p.Context
	counted, _ := p.End(int(code), func(err error) { p.fail(ctx, err) })
	p.observe(ctx, counted)
	if p.opts.RateLimit {
		var ds []Decision
		for d := range p.Each {
			ds = append(ds, *d)
		}
		p.tell(ctx, ds)
	}
}

// observe reports decisions to the observers.
func (p *pass) observe(ctx context.Context, ds []Decision) {
	for _, o := range p.opts.Observers {
		if o.Decisions != nil && len(ds) > 0 {
			o.Decisions(ctx, ds)
		}
	}
}

// fail reports an error to the observers.
func (s *server) fail(ctx context.Context, err error) {
	for _, o := range s.opts.Observers {
		if o.Error != nil {
			o.Error(ctx, err)
		}
	}
}
