package httplimit

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// A Decision is what a rule decided about a request.
type Decision struct {
	stint.Decision

	Label  string // of the limit
	Cost   int64
	Shadow bool // of a Shadow rule: it stops no request
	After  bool // of a rule with CountStatus that has not spent yet
}

// Decisions returns the decisions about a request so far, of all middleware
// around the handler. It returns nil if the request did not pass through
// middleware.
func Decisions(r *http.Request) []Decision {
	c := carriedBy(r)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ds := make([]Decision, len(c.applied))
	for i := range ds {
		ds[i] = c.applied[i].Decision
	}
	return ds
}

// applied is one rule that applies to one request.
type applied struct {
	Decision
	by       *middleware   // has the rule
	rule     *Rule         // &replaced if a nested rule decides instead
	refunded bool          // nothing is spent (any more)
	locked   time.Duration // rest of a hold that began after the decision
}

// replaced takes the place of a Shadow rule whose decision a nested rule has
// replaced. It does nothing after the status.
var replaced Rule

// waits reports whether the rule needs the status.
func (a applied) waits() bool {
	return a.rule.CountStatus != nil || a.rule.RefundStatus != nil || a.rule.LockOut > 0
}

// hasSpent reports whether the request has spent tokens that were not returned.
func (a *applied) hasSpent() bool { return a.Allowed && !a.After && !a.refunded }

// request returns what the rule asks the Limiter for before the handler.
func (a *applied) request() stint.Request {
	req := stint.Request{Key: a.Key, Cost: a.Cost}
	if a.After {
		req.Mode = stint.CheckOnly
	}
	return req
}

// stricterThan reports whether the response fields show a rather than b.
func (a *applied) stricterThan(b *applied) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if !a.Allowed {
		return a.RetryAfter > b.RetryAfter
	}
	left, _ := a.state()
	least, _ := b.state()
	return left < least
}

// state returns the number of tokens that the client has left, and a window in
// seconds, in which it can use no more than these. The window ends when the
// next token returns, after at least 1 s. During a hold nothing is left, and
// the window ends with the hold. For a full bucket the window is the time in
// which a spent token returns.
func (a *applied) state() (left, window int64) {
	if a.locked > 0 {
		return 0, seconds(a.locked)
	}
	interval := a.Limit.Interval()
	empty := a.ResetAfter - time.Duration(a.Limit.Burst)*interval // until the first token, less one interval
	if held := a.RetryAfter > empty+time.Duration(a.Cost)*interval; held && !a.Allowed {
		return 0, seconds(a.RetryAfter)
	}
	return a.Remaining, max(1, seconds(empty+time.Duration(a.Remaining+1)*interval))
}

// seconds returns d in seconds, rounded up, and at least 0.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

// find returns the decision about a bucket, or nil.
func find(as []applied, lim stint.Decider, key stint.Key) *applied {
	for i := range as {
		if a := &as[i]; a.Key == key && a.by.lim == lim && a.rule != &replaced {
			return a
		}
	}
	return nil
}

// carried is the context of a request that has passed middleware. Nested
// middleware finds the decisions there, perhaps in another goroutine:
// http.TimeoutHandler starts one.
type carried struct {
	context.Context
	mu      sync.Mutex
	applied []applied  // guarded by mu
	room    [1]applied // saves an allocation
}

type carriedKey struct{}

func carriedBy(r *http.Request) *carried {
	c, _ := r.Context().Value(carriedKey{}).(*carried)
	return c
}

// on returns a request that carries decisions. If c is not nil, r carries it
// already, and record has added the decisions.
func (c *carried) on(r *http.Request, mine []applied) (*carried, *http.Request) {
	if c != nil {
		return c, r
	}
	c = &carried{Context: r.Context()}
	c.applied = append(c.room[:0], mine...)
	return c, r.WithContext(c)
}

// Value implements context.Context.
func (c *carried) Value(key any) any {
	if key == (carriedKey{}) {
		return c
	}
	return c.Context.Value(key)
}
