package grpclimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/stint-go/stint/rules"
)

// A Rule applies a limit to calls. It says which calls spend, from which
// bucket, how much, and when.
type Rule struct {
	// Method is the full method, such as "/pkg.Service/Method", all methods of a
	// service, as in "/pkg.Service/*", or "" for every call.
	Method string

	// Key finds the bucket. The id is brought into the canonical spelling of the
	// limit's IDFormat. A call without an id, or with one that the IDFormat
	// refuses, ends with InvalidArgument.
	Key KeyFunc

	// Optional makes the rule skip calls in which Key finds no id (ErrNoID).
	// Clients that may leave out the id can evade such a rule.
	Optional bool

	// Cost is how many tokens a call takes; 0 means 1. CostFunc replaces it. A
	// call whose cost is over the limit's Burst ends with ResourceExhausted, and
	// one whose cost is negative with InvalidArgument. A cost of 0 by CostFunc
	// passes, unless the bucket is held or has a queue, or the limit is
	// stint.Blocked.
	Cost     int64
	CostFunc func(context.Context, *Call) int64

	// CountCode makes the rule spend after the handler, and only if CountCode
	// returns true for the code. Before the handler, the bucket is only checked,
	// so calls that arrive together may all pass. If too many would pass, spend
	// before the handler and use RefundCode. The code of a panic is Internal.
	CountCode func(codes.Code) bool

	// RefundCode makes the rule refund its tokens if RefundCode returns true for
	// the code of the handler. ServerError is an example. Tokens that time has
	// brought back are not returned again.
	RefundCode func(codes.Code) bool

	// Messages makes the rule spend for each message of a stream, and not when
	// the stream begins. A denied message ends the stream. Such a rule does not
	// apply to unary calls, and has no CostFunc, CountCode, RefundCode or Settle.
	// MessageCost replaces Cost, which is then that of a message.
	Messages    Messages
	MessageCost func(msg any) int64

	// LockOut holds the bucket for this long after a call that leaves fewer
	// tokens than Cost in it. LockOutMax makes each lock-out of an id twice as
	// long as the one before, up to LockOutMax. httplimit.Rule has the details.
	LockOut, LockOutMax time.Duration

	// InFlight is how many calls with the same Key may run at the same time; 0
	// means no bound. A call takes its place before its tokens, and gives it back
	// when its handler returns. A rule may have only this bound: its limit is
	// then stint.Unlimited. Places are counted in this process, and are not
	// durable: after a crash no call runs. HTTP handlers of httplimit with the
	// same Limiter and the same bucket count, too.
	InFlight int64

	// InFlightWait is how long a call may wait for its place, if at most
	// InFlightQueue others of its Key wait. First come, first served. 0 means that
	// it does not wait. Shadow rules do not wait.
	InFlightWait  time.Duration
	InFlightQueue int

	// Settle lets the handler report the true cost of a call with the function
	// Settle. Cost or CostFunc is then an upper bound, which stays spent if the
	// handler does not. If RefundCode returns the tokens first, Settle changes
	// nothing more. Such a rule has no CountCode and no LockOut.
	Settle bool

	// Shadow makes the rule decide and spend, but never deny. Use it to try a
	// limit out: Observers and the Limiter's Stats show its denials.
	Shadow bool
}

// Messages selects the messages of a stream.
type Messages uint8

// The messages that a rule may count: those that the server receives, those
// that it sends, or both.
const (
	Received Messages = 1 << iota
	Sent
)

// mistake returns what is wrong with a rule, or "".
func (ru *Rule) mistake() string {
	switch {
	case ru.Key == nil:
		return "has no Key"
	case ru.Cost < 0:
		return fmt.Sprintf("has the Cost %d, want 0 or more", ru.Cost)
	case !isPattern(ru.Method):
		return fmt.Sprintf("has the Method %q, want /pkg.Service/Method or /pkg.Service/*", ru.Method)
	case ru.Messages > Received|Sent:
		return fmt.Sprintf("has Messages %d, want Received, Sent or both", ru.Messages)
	case ru.Messages == 0 && ru.MessageCost != nil:
		return "has a MessageCost without Messages"
	case ru.Messages != 0 && (ru.CostFunc != nil || ru.CountCode != nil || ru.RefundCode != nil || ru.Settle):
		return "has Messages, and CostFunc, CountCode, RefundCode or Settle, which are for whole calls"
	}
	as := ru.rule()
	return as.Mistake()
}

// isPattern reports whether a Rule's Method is well-formed.
func isPattern(method string) bool {
	if method == "" {
		return true
	}
	service, name, found := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return found && method[0] == '/' && service != "" && name != "" && !strings.Contains(service, "*") &&
		!strings.Contains(name, "/") && (name == "*" || !strings.Contains(name, "*"))
}

// matches reports whether a pattern, as in Rule.Method, matches a full method.
func matches(pattern, method string) bool {
	if service, all := strings.CutSuffix(pattern, "*"); all {
		return strings.HasPrefix(method, service)
	}
	return pattern == "" || pattern == method
}

// cost returns how many tokens a call takes.
func (ru *Rule) cost(ctx context.Context, c *Call) int64 {
	if ru.CostFunc != nil {
		return ru.CostFunc(ctx, c)
	}
	return max(ru.Cost, 1)
}

// messageCost returns how many tokens a message takes.
func (ru *Rule) messageCost(msg any) int64 {
	if ru.MessageCost != nil {
		return ru.MessageCost(msg)
	}
	return max(ru.Cost, 1)
}

// rule returns what does not depend on the protocol.
func (ru *Rule) rule() rules.Rule {
	as := rules.Rule{
		Optional: ru.Optional, LockOut: ru.LockOut, LockOutMax: ru.LockOutMax,
		CostVaries: ru.CostFunc != nil || ru.MessageCost != nil,
		InFlight:   ru.InFlight, InFlightWait: ru.InFlightWait, InFlightQueue: ru.InFlightQueue,
		Settle: ru.Settle, Shadow: ru.Shadow,
	}
	if of := ru.CountCode; of != nil {
		as.Count = func(code int) bool { return of(codes.Code(code)) }
	}
	if of := ru.RefundCode; of != nil {
		as.Refund = func(code int) bool { return of(codes.Code(code)) }
	}
	return as
}

// ServerError reports whether a code says that the server has failed: Unknown,
// DeadlineExceeded, Unimplemented, Internal, Unavailable or DataLoss.
func ServerError(c codes.Code) bool {
	switch c {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented,
		codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// AuthFailed reports whether a code says that the client failed to authenticate,
// or is not authorized: Unauthenticated or PermissionDenied.
func AuthFailed(c codes.Code) bool {
	return c == codes.Unauthenticated || c == codes.PermissionDenied
}

// Codes returns a function that reports whether a code is in the list.
func Codes(list ...codes.Code) func(codes.Code) bool {
	list = slices.Clone(list)
	return func(c codes.Code) bool { return slices.Contains(list, c) }
}
