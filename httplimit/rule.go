package httplimit

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// A Rule applies a limit to requests. It says which requests spend, from which
// bucket, how much, and when.
type Rule struct {
	// Pattern is an http.ServeMux pattern, such as "POST /login" or
	// "/users/{id}/"; "" matches every request. A rule applies if its own
	// pattern matches, even if other rules match too. Other spellings of a path, such
	// as "//login" or an encoded one, match too, as does a host in another case.
	// Key and CostFunc read wildcards with PathValue.
	Pattern string

	// Key finds the bucket. The id is brought into the canonical spelling of the
	// limit's IDFormat. A request without an id, or with one that the IDFormat
	// refuses, is answered with 400.
	Key KeyFunc

	// Optional makes the rule skip requests in which Key finds no id (ErrNoID).
	// Clients that may leave out the id can evade such a rule.
	Optional bool

	// Cost is how many tokens a request takes; 0 means 1. CostFunc replaces it.
	// A request whose cost is negative, or over the limit's Burst, is answered
	// with 400. A cost of 0 by CostFunc passes, unless the bucket is held or has a
	// queue, or the limit is stint.Blocked.
	Cost     int64
	CostFunc func(*http.Request) int64

	// CountStatus makes the rule spend after the handler has chosen a status,
	// and only if CountStatus returns true for it. See SetStatus for frameworks
	// whose handlers return an error instead. Before the handler, the bucket
	// is only checked, so requests that arrive together may all pass. If too
	// many would pass, spend before the handler and use RefundStatus.
	CountStatus func(status int) bool

	// RefundStatus makes the rule refund its tokens if RefundStatus returns true
	// for the status that the handler chooses. ServerError is an example.
	RefundStatus func(status int) bool

	// LockOut holds the bucket for this long after a request that leaves fewer
	// tokens than Cost in it. If CostFunc is set, only a request that leaves no
	// token counts. A refunded request does not count. The hold is durable, as
	// stint.Limiter.Hold says. The bucket refills during the hold: after 15 minutes of
	// PerHour(5) one request passes, and the next failure locks out again. 0 means no
	// hold.
	//
	// If the limit is a share of a total, only the rule's own bucket counts, and
	// only that one is held: an empty total or floor locks no client out.
	LockOut time.Duration

	// LockOutMax makes each lock-out of an id twice as long as the one before, up
	// to LockOutMax. If LockOutMax has passed since the end of the last lock-out,
	// the next one takes LockOut again. 0 means that each takes LockOut.
	//
	// The length of the last lock-out is durable too. It is stored as a hold on the
	// id with " lock-outs" added, and one on that id with the same suffix, which
	// Buckets lists. Reset of the id ends a lock-out, but does not forget its
	// length: for that, reset the id with one suffix too. A request with such a
	// longer id is answered with 400. A Shared limit has no id, so its lock-outs do
	// not grow.
	LockOutMax time.Duration

	// Settle makes Cost or CostFunc an upper bound, such as max_tokens. The
	// request spends the bound, and the handler reports with the function Settle
	// what it was. If it does not, the bound stays spent. If RefundStatus returns
	// the tokens first, Settle changes nothing more. Such a rule has no
	// CountStatus and no LockOut.
	Settle bool

	// InFlight bounds how many requests with the same Key may run at the same
	// time; 0 means no bound. InFlightFunc replaces it: 0 means no bound, and a
	// negative number that none may run. If it returns less than before, requests
	// that run already go on.
	//
	// Only this process counts, and only requests that pass this package and
	// package grpclimit. A request gets its place first, and then spends. If it
	// has no tokens, it gives the place back at once. Otherwise it has its place
	// until the handler returns, even if the connection was hijacked or the client
	// is gone. A rule may have nothing but InFlight: the limit of its Name is then
	// stint.Unlimited.
	//
	// Several rules take their places in the order of Middleware. If one place is
	// missing, the request gives the others back, and spends nothing. In one
	// middleware, a request takes one place of a key, even if several rules find
	// it.
	InFlight     int64
	InFlightFunc func(*http.Request) int64

	// InFlightWait is how long a request may wait for its place, if at most
	// InFlightQueue others of its Key wait. First come, first served. 0 means that
	// it does not wait. Shadow rules do not wait.
	InFlightWait  time.Duration
	InFlightQueue int

	// Shadow makes the rule decide and spend, but never deny. Use it to try a
	// limit out: Observers and the Limiter's Stats show its denials. The response
	// has no fields about it, and its errors stop no request.
	Shadow bool
}

// cost returns how many tokens a request takes.
func (ru *Rule) cost(r *http.Request) int64 {
	if ru.CostFunc != nil {
		return ru.CostFunc(r)
	}
	return max(ru.Cost, 1)
}

// rule returns what does not depend on the protocol.
func (ru *Rule) rule() rules.Rule {
	as := rules.Rule{
		Optional: ru.Optional, Count: ru.CountStatus, Refund: ru.RefundStatus,
		LockOut: ru.LockOut, LockOutMax: ru.LockOutMax, CostVaries: ru.CostFunc != nil,
		InFlight: ru.InFlight, InFlightWait: ru.InFlightWait, InFlightQueue: ru.InFlightQueue,
		Settle: ru.Settle, Shadow: ru.Shadow,
	}
	if ru.InFlightFunc != nil {
		as.InFlight = 0
	}
	return as
}

// mistake returns what is wrong with a rule, or "".
func (ru *Rule) mistake(as *rules.Rule) string {
	switch {
	case ru.Key == nil:
		return "has no Key"
	case ru.Cost < 0:
		return fmt.Sprintf("has the Cost %d, want 0 or more", ru.Cost)
	case ru.InFlight < 0:
		return fmt.Sprintf("has the InFlight %d, want 0 or more", ru.InFlight)
	}
	return as.Mistake()
}

// IsLockOutCount reports whether a rule with LockOutMax remembers lock-outs under
// a key. A hold on that key denies no request.
func IsLockOutCount(key stint.Key) bool { return rules.IsLockOutCount(key) }

// AuthFailed reports whether a status says that the client failed to
// authenticate, or is not authorized: 401 or 403.
func AuthFailed(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// ServerError reports whether a status is 500 or more.
func ServerError(status int) bool { return status >= 500 }

// Statuses returns a function that reports whether a status is in the list.
func Statuses(statuses ...int) func(int) bool {
	statuses = slices.Clone(statuses)
	return func(status int) bool { return slices.Contains(statuses, status) }
}
