package httplimit

import (
	"net/http"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/lockout"
	"github.com/stint-go/stint/internal/onetotal"
)

// afterStatus applies the rules of c from first to last, once the handler has
// chosen a status: it spends, refunds and locks out, and updates the header. An
// error of the Limiter is reported to the observers, and does not stop the
// rest.
func (m *middleware) afterStatus(
	c *carried, first, last int, w http.ResponseWriter, r *http.Request, status int,
) {
	c.mu.Lock()
	s := outcome{lim: m.lim, status: status, mine: slices.Clone(c.applied[first:last])}
	c.mu.Unlock()
	s.spend()
	s.refund(func(i int) bool { return c.mayRefund(first + i) })
	s.lockOut()
	if s.changed || s.hasFresh() {
		m.update(c, first, &s, w)
	}
	for _, err := range s.failures {
		m.fail(r, err)
	}
	m.observe(r, s.spent)
}

// mayRefund reports whether the cost of a request is not settled, and settles
// it.
func (c *carried) mayRefund(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.applied[i].settled
	c.applied[i].settled = true
	return !was
}

// hasFresh reports whether Settle has changed a decision before the status was
// chosen.
func (s *outcome) hasFresh() bool {
	for i := range s.mine {
		if s.mine[i].fresh {
			return true
		}
	}
	return false
}

// update replaces decisions of c that have changed, and writes the header again.
func (m *middleware) update(c *carried, first int, s *outcome, w http.ResponseWriter) {
	c.mu.Lock()
	defer c.mu.Unlock() // PartitionKey may panic
	for i := range s.mine {
		a := &c.applied[first+i]
		a.fresh = false
		if !a.rule.Settle || s.mine[i].refunded { // otherwise Settle may have changed it
			settled, gate := a.settled, a.gate
			*a = s.mine[i]
			a.settled, a.gate = settled, gate
		}
	}
	m.writeFields(w, c.applied)
}

// outcome is what a status changes.
type outcome struct {
	lim      stint.Decider
	status   int
	mine     []applied
	spent    []Decision // of the rules that counted the status
	changed  bool       // a decision of mine has changed
	failures []error
}

// spend takes the tokens of the rules that count the status.
func (s *outcome) spend() {
	for i := range s.mine {
		a := &s.mine[i]
		if !a.After || a.rule.CountStatus == nil || !a.rule.CountStatus(s.status) {
			continue
		}
		a.begun = s.lim.Now().UnixNano()
		d, err := s.lim.Spend(a.RuleKey, a.Cost)
		if err != nil {
			s.failures = append(s.failures, err)
			continue
		}
		a.setState(&d)
		a.After = false
		s.spent = append(s.spent, a.decision())
		s.changed = true
	}
}

// refund returns the tokens of the rules with a RefundStatus for the status. may
// reports whether that of mine[i] may be refunded.
func (s *outcome) refund(may func(i int) bool) {
	var back []*applied
	var reqs []stint.Request
	for i := range s.mine {
		a := &s.mine[i]
		if a.rule.RefundStatus != nil && a.hasSpent() && a.rule.RefundStatus(s.status) && may(i) {
			req := stint.Request{Key: a.RuleKey, Cost: a.Cost}
			if a.rule.CountStatus == nil { // otherwise it was spent just now
				req.Spent = time.Unix(0, a.begun)
			}
			back, reqs = append(back, a), append(reqs, req)
		}
	}
	if len(reqs) == 0 {
		return
	}
	if _, err := onetotal.Refund(s.lim, reqs...); err != nil {
		s.failures = append(s.failures, err)
		return
	}
	s.changed = true
	for _, a := range back {
		a.refunded = true
		d, err := s.lim.Check(a.RuleKey, 0)
		if err != nil {
			s.failures = append(s.failures, err)
			continue
		}
		a.locked = d.RetryAfter // of a hold or a queue, because a cost of 0 needs no token
		d.Allowed, d.RetryAfter = true, 0
		a.setState(&d)
	}
}

// lockOut holds the buckets that have too few tokens left for another request
// like this one.
func (s *outcome) lockOut() {
	for i := range s.mine {
		a := &s.mine[i]
		if a.rule.LockOut <= 0 || a.Shadow || !a.hasSpent() || a.Cost <= 0 {
			continue
		}
		least := int64(1)
		if a.rule.CostFunc == nil {
			least = a.Cost
		}
		spend := lockout.Spend{Key: a.RuleKey, Decision: a.Decision, Least: least, At: time.Unix(0, a.begun)}
		locked, err := a.rule.lockOut().After(s.lim, spend)
		if err != nil {
			s.failures = append(s.failures, err)
		} else if locked > 0 {
			a.locked, s.changed = locked, true
		}
	}
}
