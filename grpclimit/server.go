package grpclimit

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
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
// Limiter, those of rules.New, or a malformed Pattern.
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
// Interceptors are independent of each other, as the doors of package rules are.
func Server(
	lim stint.Decider, opts *Options, rs ...Rule,
) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	s := &server{lim: lim}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Exempt == nil {
		s.opts.Exempt = exempt
	}
	s.opts.Exempt = slices.Clone(s.opts.Exempt)
	for _, method := range s.opts.Exempt {
		if !isMethod(method) {
			panic(fmt.Sprintf("grpclimit: Server: Exempt has %q, want /pkg.Service/Method or /pkg.Service/*", method))
		}
	}
	s.byIP = s.opts.Client.ByIP(0)
	if len(s.opts.Client.TrustedProxies) > 0 || s.opts.Client.TrustUnix {
		s.proxyField = http.CanonicalHeaderKey(cmp.Or(s.opts.Client.Field, "X-Forwarded-For"))
	}
	for i := range rs {
		if mistake := mistake(&rs[i]); mistake != "" {
			panic(fmt.Sprintf("grpclimit: Server: rule %d %s", i+1, mistake))
		}
		way, _ := wayOf(rs[i].Pattern)
		s.counts[way] = true
	}
	s.door = rules.New(lim, &rules.Options[Call]{
		Match: match, OnUnix: onUnix, FailOpen: s.opts.FailOpen, Decisions: s.opts.Decisions, Observers: s.opts.Observers,
	}, rs...)
	return s.unary, s.stream
}

// server is what the interceptors of Server share.
type server struct {
	lim        stint.Decider
	door       *rules.Door[Call, codes.Code]
	opts       Options
	counts     [sent + 1]bool // some rule is for messages of a way, or for calls
	byIP       httplimit.KeyFunc
	proxyField string // "" if no proxy is trusted
	last       atomic.Pointer[refusal]
}

// pass is the way of one call through one pair of interceptors.
type pass = rules.Pass[Call, codes.Code]

func (s *server) isExempt(method string) bool {
	return slices.ContainsFunc(s.opts.Exempt, func(pattern string) bool { return matches(pattern, method) })
}

func (s *server) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (resp any, err error) {
	if s.isExempt(info.FullMethod) {
		return next(ctx, req)
	}
	p, err := s.begin(Call{Ctx: ctx, Method: info.FullMethod, Message: req, server: s})
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return next(ctx, req)
	case !s.later(p):
		defer p.Leave()
		return next(ctx, req)
	}
	ctx = p.Context()
	code := codes.Internal // of a panic
	defer func() { s.end(ctx, p, nil, code) }()
	resp, err = next(ctx, req)
	code = codeOf(err)
	return resp, err
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if s.isExempt(info.FullMethod) {
		return next(srv, ss)
	}
	call := Call{Ctx: ss.Context(), Method: info.FullMethod, Stream: true, server: s}
	p, err := s.begin(call)
	switch {
	case err != nil:
		return err
	case p == nil && !s.counts[received] && !s.counts[sent]:
		return next(srv, ss)
	}
	l := s.limit(ss, p, call)
	code := codes.Internal // of a panic
	defer func() { s.end(call.Ctx, p, l, code) }()
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

// begin takes the places and the tokens of a call. The error is the status that
// ends it.
func (s *server) begin(call Call) (*pass, error) {
	p, d, err := s.door.Begin(call)
	switch {
	case err != nil:
		return nil, s.failed(call.Ctx, err)
	case d.Allowed:
		return p, nil
	}
	defer p.Leave()
	s.tell(call.Ctx, p, nil)
	return nil, s.denied(call.Ctx, p)
}

// later reports whether something is left to do after the handler of a call.
func (s *server) later(p *pass) bool { return p.InContext() || s.opts.RateLimit }

// end tells the rules the code of a call after its handler.
func (s *server) end(ctx context.Context, p *pass, l *limitedStream, code codes.Code) {
	p.Leave()
	p.End(code)
	s.tell(ctx, p, l)
}
