package grpclimit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

// pushbackKey is in the trailer of a denial. A client with a retryPolicy waits
// for so many milliseconds before it tries again, and does not try again if the
// value is negative. It does not read RetryInfo. If the trailer has the key
// twice, it does not try again, either.
const pushbackKey = "grpc-retry-pushback-ms"

// longestPushback is the longest pushback in a trailer. Nobody waits for longer
// within a call, and a client with ints of 32 bits refuses over 24.8 days.
const longestPushback = 24 * time.Hour

// never is the pushback of a call that would not pass.
const never = "-1"

func onUnix(c Call) bool {
	p, ok := peer.FromContext(c.Ctx)
	return ok && isUnix(p.Addr)
}

func (s *server) failed(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rules.ErrNoID), errors.Is(err, stint.ErrInvalidID):
		return status.Error(codes.InvalidArgument,
			"the call has no valid id, such as a key or an address: its limit needs one")
	case errors.Is(err, stint.ErrNegativeCost):
		return status.Error(codes.InvalidArgument, "the cost of the call is negative")
	case errors.Is(err, stint.ErrCostOverBurst):
		pushBack(ctx, never)
		return status.Error(codes.ResourceExhausted, "the cost of the call is more than its limit ever admits")
	}
	return status.Error(codes.Unavailable, "the server cannot check the limit of the call at present")
}

// refusal is what denials by the same limits have in common. In a flood, most are
// the same.
type refusal struct {
	by      []deniedBy
	blocked bool
	message string
	details []protoadapt.MessageV1 // without RetryInfo
}

// deniedBy is a limit that denied.
type deniedBy struct {
	label string
	limit stint.Limit
	full  bool // too many calls ran
}

// denied returns the status of a denied call, and sets the
// trailer. It sets no header, because a client does not retry after a header.
func (s *server) denied(ctx context.Context, p *pass) error {
	var room [4]deniedBy
	by, retry := room[:0], time.Duration(0)
	for d := range p.Each {
		if !d.Allowed && !d.Shadow {
			by, retry = append(by, deniedBy{d.Label, d.Limit, d.InFlight.Denied && !d.InFlight.Shadow}), max(retry, d.RetryAfter)
		}
	}
	r := s.last.Load()
	if r == nil || !slices.Equal(r.by, by) {
		r = newRefusal(s.opts.Domain, slices.Clone(by))
		s.last.Store(r)
	}
	details, after := r.details, never
	if !r.blocked {
		details = append(details[:len(details):len(details)], retryInfo(retry))
	}
	if !r.blocked && retry <= longestPushback {
		after = strconv.FormatInt(int64((retry+time.Millisecond-1)/time.Millisecond), 10)
	}
	pushBack(ctx, after)
	st, err := status.New(codes.ResourceExhausted, r.message).WithDetails(details...)
	if err != nil { // the Domain is not UTF-8
		return status.Error(codes.ResourceExhausted, r.message)
	}
	return st.Err()
}

func retryInfo(after time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(after)}
}

func newRefusal(domain string, by []deniedBy) *refusal {
	r := &refusal{by: by}
	quota := &errdetails.QuotaFailure{}
	var labels []string
	for _, d := range by {
		what := d.limit.String() + " used up"
		switch {
		case d.full:
			what = "too many calls at the same time"
		case d.limit == stint.Blocked:
			r.blocked, what = true, "blocked"
		}
		label := strings.ToValidUTF8(d.label, "\uFFFD")
		labels = append(labels, label)
		quota.Violations = append(quota.Violations,
			&errdetails.QuotaFailure_Violation{Subject: label, Description: what})
	}
	r.message, r.details = "rate limit exceeded: "+strings.Join(labels, ", "), []protoadapt.MessageV1{quota}
	if domain != "" {
		info := &errdetails.ErrorInfo{Reason: "RATE_LIMIT_EXCEEDED", Domain: domain}
		r.details = append(r.details, info)
	}
	return r
}

// pushBack sets the trailer of a denial, once for a call.
func pushBack(ctx context.Context, ms string) {
	if l := streamOf(ctx); l == nil || !l.told.Swap(true) {
		grpc.SetTrailer(ctx, metadata.MD{pushbackKey: {ms}}) // fails only in a call without a transport
	}
}

// tell sets the RateLimit fields of decisions in the trailer, if the Options say
// so: those about a call, and those about the last messages of its stream. Call it
// once for a call, because a trailer keeps all values of a key.
func (s *server) tell(ctx context.Context, p *pass, l *limitedStream) {
	if !s.opts.RateLimit {
		return
	}
	var ds []rules.Decision
	if p != nil {
		for d := range p.Each {
			ds = append(ds, *d)
		}
	}
	if l != nil {
		ds = append(ds, l.last...)
	}
	if policy, state := httplimit.RateLimit(s.lim, ds); state != "" {
		grpc.SetTrailer(ctx, metadata.MD{"ratelimit-policy": {policy}, "ratelimit": {state}})
	}
}
