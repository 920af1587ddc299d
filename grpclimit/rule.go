package grpclimit

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/stint-go/stint/rules"
)

// A Rule applies a limit to calls, or to the messages of streams. [rules.Rule]
// explains its fields. The outcome is the code of the handler, which is Internal if
// it panics.
//
// Pattern is the full method, such as "/pkg.Service/Method", all methods of a
// service, as in "/pkg.Service/*", or "" for every call. With "received" or "sent"
// before the method, the rule applies to each message that the server receives or
// sends in a stream, and not to calls: "received /chat.Chat/*", or "received" for
// all streams. A denied message ends the stream. Such a rule has no Count, Refund,
// Settle or InFlight, which are for whole calls.
type Rule = rules.Rule[Call, codes.Code]

// A Call is what rules decide on: a call, or a message of a stream.
type Call struct {
	Ctx     context.Context
	Method  string // "/pkg.Service/Method"
	Message any    // of a unary call, or of a stream if the rule is for messages
	Target  string // of a client: that of its ClientConn
	Stream  bool   // a stream in one direction or in both

	way    way     // of a message of a stream
	server *server // nil for a client
}

// Context returns Ctx.
func (c Call) Context() context.Context { return c.Ctx }

// A KeyFunc finds the bucket of a call.
type KeyFunc = rules.KeyFunc[Call]

// An Observer receives the decisions and the errors of interceptors, also for
// each message of a stream that rules count.
type Observer = rules.Observer[Call]

// way is that of a message of a stream, or 0.
type way uint8

const (
	received way = 1 + iota
	sent
)

// wayOf splits a Pattern into the way of messages and the method.
func wayOf(pattern string) (way, string) {
	switch first, method, _ := strings.Cut(pattern, " "); first {
	case "received":
		return received, method
	case "sent":
		return sent, method
	}
	return 0, pattern
}

// mistake returns what is wrong with a rule of a server, or "".
func mistake(ru *Rule) string {
	way, method := wayOf(ru.Pattern)
	switch {
	case !isMethod(method):
		return fmt.Sprintf("has the Pattern %q, want /pkg.Service/Method or /pkg.Service/*, perhaps after received or sent",
			ru.Pattern)
	case way != 0 && (ru.Count != nil || ru.Refund != nil || ru.Settle || ru.InFlight != 0 || ru.InFlightFunc != nil):
		return "is for messages, and has Count, Refund, Settle or InFlight, which are for calls"
	}
	return ""
}

// isMethod reports whether a method is well-formed, or names all of a service.
func isMethod(method string) bool {
	if method == "" {
		return true
	}
	service, name, found := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return found && method[0] == '/' && service != "" && name != "" && !strings.Contains(service, "*") &&
		!strings.Contains(name, "/") && (name == "*" || !strings.Contains(name, "*"))
}

// match returns a function that reports whether a Pattern matches a call.
func match(pattern string) func(Call) (Call, bool) {
	way, pattern := wayOf(pattern)
	return func(c Call) (Call, bool) { return c, c.way == way && matches(pattern, c.Method) }
}

// matches reports whether a method, or all of a service, is that of a call.
func matches(pattern, method string) bool {
	if service, all := strings.CutSuffix(pattern, "*"); all {
		return strings.HasPrefix(method, service)
	}
	return pattern == "" || pattern == method
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
