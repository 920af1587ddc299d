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
	stint.Decision // Key and Limit are those of the bucket that decided

	Label   string    // of the limit of Key
	RuleKey stint.Key // bucket of the rule: not Key, if its total or floor decided
	Cost    int64
	Shadow  bool // of a Shadow rule: it stops no request
	After   bool // of a rule with CountStatus that has not spent yet

	InFlight InFlight // of a rule with InFlight
}

// InFlight has the requests of a Key that run at the time of a decision.
type InFlight struct {
	Limit   int64 // how many may run; 0 means no bound
	Running int64 // with this request, if it has a place
	Denied  bool  // there was no place, so that the rule has not asked the Limiter, unless it is a Shadow rule
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
	ds := make([]Decision, 0, len(c.applied))
	for i := range c.applied {
		if a := &c.applied[i]; !a.onlyPlace() {
			ds = append(ds, a.decision())
		}
	}
	return ds
}

// applied is one rule that applies to one request, with the fields of its
// Decision. Every request copies it, so it has no fields that it can do without.
type applied struct {
	stint.Decision
	Label   string
	RuleKey stint.Key
	Cost    int64
	rule    *routedRule
	gate    *gate         // bound on requests in flight; nil without one
	most    int64         // InFlight.Limit
	running int64         // InFlight.Running
	begun   int64         // an instant before the spend, if the rule needs it
	locked  time.Duration // rest of a hold that began after the decision

	Shadow   bool
	After    bool
	noPlace  bool // InFlight.Denied
	refunded bool // nothing is spent (any more)
	settled  bool // Settle or RefundStatus has come
	fresh    bool // Settle has changed the decision since the fields were written
	void     bool // the middleware of the rule has denied or ended, and the rule has spent nothing
}

// decision returns what the observers see.
func (a *applied) decision() Decision {
	return Decision{Decision: a.Decision, Label: a.Label, RuleKey: a.RuleKey, Cost: a.Cost, Shadow: a.Shadow,
		After: a.After, InFlight: InFlight{Limit: a.most, Running: a.running, Denied: a.noPlace}}
}

// appliedOf returns the applied of a decision, for its fields in a response.
func appliedOf(d *Decision, by *middleware) applied {
	return applied{Decision: d.Decision, Label: d.Label, RuleKey: d.RuleKey, Cost: d.Cost, Shadow: d.Shadow,
		After: d.After, most: d.InFlight.Limit, running: d.InFlight.Running, noPlace: d.InFlight.Denied,
		rule: &routedRule{by: by}}
}

// replaced reports whether another rule decides on the bucket. Nothing happens
// after the status then.
func (a *applied) replaced() bool { return a.rule == &a.rule.by.replaced }

// onlyPlace reports whether the rule has decided nothing: another one decides on
// the bucket, and there was a place.
func (a *applied) onlyPlace() bool { return a.replaced() && a.Allowed && a.After && !a.noPlace }

// forget makes a void decision one of a rule that has decided nothing.
func (a *applied) forget() {
	a.rule, a.Allowed, a.After, a.noPlace = &a.rule.by.replaced, true, true, false
}

// waits reports whether the rule needs the status.
func (a *applied) waits() bool { return a.rule.waits() }

// waits reports whether one of the rules needs the status.
func waits(mine []applied) bool {
	for i := range mine {
		if mine[i].waits() {
			return true
		}
	}
	return false
}

func (ru *Rule) waits() bool { return ru.CountStatus != nil || ru.mayReturn() }

// stamps reports whether the rule needs the instant of its spend: to return
// tokens, or to lock out. The tokens of a Shadow rule are returned if an inner
// rule replaces it.
func (ru *Rule) stamps() bool { return ru.Shadow || ru.mayReturn() }

// mayReturn reports whether the rule itself may return tokens, or lock out.
func (ru *Rule) mayReturn() bool { return ru.RefundStatus != nil || ru.LockOut > 0 || ru.Settle }

// decides reports whether the rule takes part in the decision of the Limiter.
func (a *applied) decides() bool { return !a.Shadow && !a.replaced() }

// hasSpent reports whether the request has spent tokens that were not returned.
func (a *applied) hasSpent() bool { return a.Allowed && !a.After && !a.refunded && !a.void }

// request returns what the rule asks the Limiter for before the handler.
func (a *applied) request() stint.Request {
	req := stint.Request{Key: a.RuleKey, Cost: a.Cost}
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
// which a spent token returns. For a quota that follows the calendar the window
// ends with its period.
func (a *applied) state() (left, window int64) {
	if a.concurrent() {
		return max(0, a.most-a.running), 1
	}
	if a.locked > 0 {
		return 0, seconds(a.locked)
	}
	if a.Limit.FollowsCalendar() {
		if !a.Allowed && a.RetryAfter != a.ResetAfter { // in a hold
			return 0, seconds(a.RetryAfter)
		}
		reset := a.ResetAfter
		if reset == 0 { // the quota is full
			_, end := a.period()
			reset = end.Sub(a.now())
		}
		return a.Remaining, max(1, seconds(reset))
	}
	interval := a.Limit.Interval()
	has := a.Limit.Burst - int64((a.ResetAfter+interval-1)/interval)
	kept := max(0, has-a.Remaining)                                    // by a total, for its floors
	empty := a.ResetAfter - time.Duration(a.Limit.Burst-kept)*interval // until the first token, less one interval
	if held := a.RetryAfter > empty+time.Duration(a.Cost)*interval; held && !a.Allowed {
		return 0, seconds(a.RetryAfter)
	}
	return a.Remaining, max(1, seconds(empty+time.Duration(a.Remaining+1)*interval))
}

// concurrent reports whether the response fields show the bound on requests in
// flight instead of the tokens: if it denied, or if there is no other limit.
func (a *applied) concurrent() bool {
	return a.noPlace && !a.Allowed || a.most != 0 && a.Limit.Count == 0 && a.Limit != stint.Blocked
}

// quota returns the quota of the policy in the response fields.
func (a *applied) quota() int64 {
	if a.concurrent() {
		return max(0, a.most)
	}
	return a.Limit.Burst
}

// window returns the time in which an empty bucket refills, or the length of the
// period for a quota that follows the calendar.
func (a *applied) window() time.Duration {
	if a.Limit.FollowsCalendar() {
		start, end := a.period()
		return end.Sub(start)
	}
	return a.Limit.Tolerance()
}

// period returns the period of the calendar that the decision was made in. The
// clock of the decision may differ a little from now.
func (a *applied) period() (start, end time.Time) {
	now := a.now()
	start, end = a.Limit.PeriodAt(now)
	if a.ResetAfter > 0 && end.Sub(now)-a.ResetAfter > end.Sub(start)/2 { // it has ended since
		start, end = a.Limit.PeriodAt(start.Add(-1))
	}
	return start, end
}

// now returns the time by the clock of the decision. A Decider that is not a
// Limiter may have to ask for it, so for that it is the time of this machine.
func (a *applied) now() time.Time {
	if lim, ok := a.rule.by.lim.(*stint.Limiter); ok {
		return lim.Now()
	}
	return time.Now()
}

// seconds returns d in seconds, rounded up, and at least 0.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

// find returns the decision of the rule that found a bucket, or nil.
func find(as []applied, lim stint.Decider, key stint.Key) *applied {
	for i := range as {
		if a := &as[i]; a.RuleKey == key && a.rule.by.lim == lim && !a.replaced() {
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
	applied []applied     // guarded by mu
	writer  *statusWriter // the innermost that waits for the status; guarded by mu
	room    [1]applied    // saves an allocation
}

// ended lets the rules of a middleware that have spent nothing in the end decide
// anew if a handler around it calls it again.
func (c *carried) ended(first, last int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i < last; i++ {
		a := &c.applied[i]
		a.void = !a.hasSpent()
	}
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
