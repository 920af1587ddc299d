package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// A Request is what a door holds to rules, such as an *http.Request.
type Request interface{ Context() context.Context }

// A KeyFunc finds the bucket of a request. It returns ErrNoID if the request has no
// id. It runs for every request to which its rule applies, even if the request is
// denied.
type KeyFunc[R Request] func(R) (stint.Key, error)

// ErrNoID says that a request does not have the id of its bucket.
var ErrNoID = errors.New("rules: the request has no id")

// FirstOf finds the bucket of the first KeyFunc that does not return ErrNoID.
// Give the KeyFuncs different limits. With the same limit, a client could send
// an API key that is another client's address.
//
// A client that can invent ids finds a full bucket with each new id, and never
// reaches the later KeyFuncs. That evades all limits. So a KeyFunc should check
// such an id, and return ErrNoID if it is unknown. Otherwise add another rule,
// which limits the address.
func FirstOf[R Request](keys ...KeyFunc[R]) KeyFunc[R] {
	keys = slices.Clone(keys)
	return func(r R) (stint.Key, error) {
		for _, f := range keys {
			key, err := f(r)
			if !errors.Is(err, ErrNoID) {
				return key, err
			}
		}
		return stint.Key{}, ErrNoID
	}
}

// A Rule applies a limit to requests of type R, whose handlers have outcomes of
// type O: HTTP requests have statuses, and gRPC calls have codes. It says which
// requests spend, from which bucket, how much, and when.
type Rule[R Request, O any] struct {
	// Pattern says to which requests the rule applies, in the form of its door:
	// httplimit.Middleware and grpclimit.Server explain theirs. "" means all.
	Pattern string

	// Key finds the bucket. The id is brought into the canonical spelling of the
	// limit's IDFormat. A request without an id, or with one that the IDFormat
	// refuses, does not pass: HTTP answers 400, and gRPC InvalidArgument.
	Key KeyFunc[R]

	// Optional makes the rule skip requests in which Key finds no id (ErrNoID).
	// Clients that may leave out the id can evade such a rule.
	Optional bool

	// Cost is how many tokens a request takes; 0 means 1. CostFunc replaces it. A
	// request whose cost is negative, or over the limit's Burst, does not pass. A
	// cost of 0 by CostFunc passes, unless the bucket is held or has a queue, or
	// the limit is stint.Blocked.
	Cost     int64
	CostFunc func(R) int64

	// Leave is how many tokens must remain in the bucket after the request, or it is
	// denied: requests with less of it still find these. LeaveFunc replaces it. See
	// stint.Request. What Count or Settle spends later leaves nothing.
	Leave     int64
	LeaveFunc func(R) int64

	// Count makes the rule spend when the outcome is known, and only if Count
	// returns true for it. Before the handler, the bucket is only checked, so
	// requests that arrive together all pass. That is not for guesses of passwords:
	// for these, spend before the handler, and use Refund.
	Count func(O) bool

	// Refund makes the rule refund its tokens if Refund returns true for the
	// outcome, except those that time has brought back.
	Refund func(O) bool

	// LockOut holds the bucket for this long after a request that leaves fewer
	// tokens than Cost in it. If CostFunc is set, only a request that leaves no
	// token counts. A refunded request does not count. The hold is durable, as
	// stint.Limiter.Hold says. The bucket refills during the hold: after 15 minutes
	// of PerHour(5) one request passes, and the next failure locks out again. 0
	// means no hold. For longer lock-outs of clients that come back, add a rule with
	// a limit for a longer time, as the example LockOut does.
	//
	// If the Decider is one of package shares, only the rule's own bucket counts, and
	// only that one is held: an empty total or floor locks no client out.
	LockOut time.Duration

	// InFlight bounds how many requests with the same Key may run at the same
	// time; 0 means no bound. InFlightFunc replaces it: 0 means no bound, and a
	// negative number that none may run. If it returns less than before, requests
	// that run already go on.
	//
	// Only this process counts, and only requests that pass a door with the same
	// Limiter. A request gets its place first, and then spends. If it has no
	// tokens, it gives the place back at once. Otherwise it has its place until the
	// handler returns, even if the client is gone. A rule may have nothing but
	// InFlight: the limit of its Name is then stint.Unlimited.
	//
	// Several rules take their places in the order of the door. If one place is
	// missing, the request gives the others back, and spends nothing. At one door a
	// request takes one place of a key, even if several rules find it.
	InFlight     int64
	InFlightFunc func(R) int64

	// InFlightWait is how long a request may wait for its place, if fewer than
	// InFlightQueue others of its Key wait. First come, first served. 0 means that
	// it does not wait. Shadow rules do not wait.
	InFlightWait  time.Duration
	InFlightQueue int

	// Settle makes Cost or CostFunc an upper bound, such as max_tokens. The
	// request spends the bound, and the handler reports with the function Settle
	// what it was. If it does not, the bound stays spent. If Refund returns the
	// tokens first, Settle changes nothing more. Such a rule has no Count and no
	// LockOut.
	Settle bool

	// Shadow makes the rule decide and spend, but never deny. Use it to try a
	// limit out: Observers and the Limiter's Stats show its denials. A client sees
	// nothing of it, and its errors stop no request.
	Shadow bool
}

// mistake returns what is wrong with a rule, or "".
func (ru *Rule[R, O]) mistake() string {
	switch {
	case ru.Key == nil:
		return "has no Key"
	case ru.Cost < 0:
		return fmt.Sprintf("has the Cost %d, want 0 or more", ru.Cost)
	case ru.Leave < 0:
		return fmt.Sprintf("has the Leave %d, want 0 or more", ru.Leave)
	case ru.InFlight < 0:
		return fmt.Sprintf("has the InFlight %d, want 0 or more", ru.InFlight)
	case ru.Settle && (ru.Count != nil || ru.LockOut > 0):
		return "has Settle, and Count or LockOut, which need the cost"
	}
	return ""
}

// changes reports whether the decision of the rule may change later.
func (ru *Rule[R, O]) changes() bool {
	return ru.Count != nil || ru.Refund != nil || ru.LockOut > 0 || ru.Settle
}

func (ru *Rule[R, O]) cost(r *R) int64 {
	if ru.CostFunc != nil {
		return ru.CostFunc(*r)
	}
	return max(ru.Cost, 1)
}

func (ru *Rule[R, O]) leave(r *R) int64 {
	if ru.LeaveFunc != nil {
		return ru.LeaveFunc(*r)
	}
	return ru.Leave
}

// inFlight returns how many requests of a key may run; 0 means no bound.
func (ru *Rule[R, O]) inFlight(r *R) int64 {
	if ru.InFlightFunc != nil {
		return ru.InFlightFunc(*r)
	}
	return ru.InFlight
}

// OneOf returns a function for Count and Refund, which reports whether an outcome
// is in the list.
func OneOf[O comparable](list ...O) func(O) bool {
	list = slices.Clone(list)
	return func(o O) bool { return slices.Contains(list, o) }
}
