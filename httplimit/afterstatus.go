package httplimit

import (
	"net/http"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// afterStatus applies the rules of c from first to last, once the handler has
// chosen a status: it spends, refunds and locks out, and updates the header. An
// error of the Limiter is reported to the observers, and does not stop the
// rest.
func (m *middleware) afterStatus(
	c *carried, first, last int, begun time.Time, w http.ResponseWriter, r *http.Request, status int,
) {
	c.mu.Lock()
	s := outcome{lim: m.lim, status: status, begun: begun, mine: slices.Clone(c.applied[first:last])}
	c.mu.Unlock()
	s.spend()
	s.refund()
	s.lockOut()
	if s.changed {
		m.update(c, first, s.mine, w)
	}
	for _, err := range s.failures {
		m.fail(r, err)
	}
	m.observe(r, s.spent)
}

// update replaces decisions of c and writes the header again.
func (m *middleware) update(c *carried, first int, mine []applied, w http.ResponseWriter) {
	c.mu.Lock()
	defer c.mu.Unlock() // PartitionKey may panic
	copy(c.applied[first:], mine)
	m.writeFields(w, c.applied)
}

// outcome is what a status changes.
type outcome struct {
	lim      stint.Decider
	status   int
	begun    time.Time // start of the handler
	mine     []applied
	spent    []applied // rules that counted the status
	changed  bool      // update the header
	failures []error
}

// spend takes the tokens of the rules that count the status.
func (s *outcome) spend() {
	for i := range s.mine {
		a := &s.mine[i]
		if !a.After || !a.rule.CountStatus(s.status) {
			continue
		}
		d, err := s.lim.Spend(a.Key, a.Cost)
		if err != nil {
			s.failures = append(s.failures, err)
			continue
		}
		a.Decision.Decision, a.After = d, false
		s.spent = append(s.spent, *a)
		s.changed = true
	}
}

// refund returns the tokens of the rules with a RefundStatus for the status.
func (s *outcome) refund() {
	var back []*applied
	var reqs []stint.Request
	for i := range s.mine {
		a := &s.mine[i]
		if a.rule.RefundStatus != nil && a.hasSpent() && a.rule.RefundStatus(s.status) {
			back, reqs = append(back, a), append(reqs, stint.Request{Key: a.Key, Cost: a.Cost})
		}
	}
	if len(reqs) == 0 {
		return
	}
	if _, err := s.lim.RefundAll(reqs...); err != nil {
		s.failures = append(s.failures, err)
		return
	}
	for _, a := range back {
		a.refunded = true
		d, err := s.lim.Check(a.Key, 0)
		if err != nil {
			s.failures = append(s.failures, err)
			continue
		}
		a.locked = d.RetryAfter // of a hold or a queue, because a cost of 0 needs no token
		d.Allowed, d.RetryAfter = true, 0
		a.Decision.Decision = d
		s.changed = true
	}
}

// lockOut holds the buckets that have too few tokens left for another request
// like this one.
func (s *outcome) lockOut() {
	for i := range s.mine {
		a := &s.mine[i]
		enough := int64(1)
		if a.rule.CostFunc == nil {
			enough = a.Cost
		}
		if a.rule.LockOut <= 0 || a.Shadow ||
			!a.hasSpent() || a.Cost <= 0 || a.Remaining >= enough {
			continue
		}
		now := s.lim.Now()
		b, err := s.lim.Bucket(a.Key)
		if err == nil {
			// Since the decision, other requests may have returned tokens. Tokens
			// that came back with time do not count.
			back := a.ResetAfter - now.Sub(s.begun) - b.ResetAfter
			if a.Remaining+int64(back/a.Limit.Interval()) >= enough {
				continue
			}
			b.HeldUntil, err = a.rule.hold(s.lim, b, now)
		}
		if err != nil {
			s.failures = append(s.failures, err)
			continue
		}
		a.locked = b.HeldUntil.Sub(now)
		s.changed = true
	}
}
