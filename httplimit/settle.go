package httplimit

import (
	"net/http"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// settle does what waited for the status: it spends, gives back and locks out, for the rules first to last of those that
// the request carries, and tells the client what that left.
func (m *middleware) settle(c *carried, first, last int, begun time.Time, w http.ResponseWriter, r *http.Request, status int) {
	c.mu.Lock()
	s := settlement{lim: m.lim, status: status, begun: begun, mine: slices.Clone(c.applied[first:last])}
	c.mu.Unlock()
	s.spend()
	s.refund()
	s.lockOut()
	if s.changed {
		s.record(m.format, c, first, w)
	}
	for _, err := range s.failures {
		m.tell(r, err)
	}
	if len(s.spent) > 0 && m.opts.OnDecision != nil {
		m.opts.OnDecision(r, s.spent)
	}
}

type settlement struct {
	lim      *stint.Limiter
	status   int
	begun    time.Time // when the handler was
	mine     []applied
	spent    []Decision // of the rules that counted the status
	changed  bool       // there is something new to tell the client
	failures []error
}

// record puts back what has changed.
func (s *settlement) record(format *headerFormat, c *carried, first int, w http.ResponseWriter) {
	c.mu.Lock()
	defer c.mu.Unlock() // PartitionKey may panic
	copy(c.applied[first:], s.mine)
	format.write(w, c)
}

// spend takes the tokens of the rules that count the status, if they are still there.
func (s *settlement) spend() {
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
		s.spent = append(s.spent, a.Decision)
		s.changed = true
	}
}

// refund gives back what the status says was not used.
func (s *settlement) refund() {
	var back []*applied
	var reqs []stint.Request
	for i := range s.mine {
		a := &s.mine[i]
		if a.rule.RefundStatus != nil && !a.After && !a.refunded && a.Allowed && a.rule.RefundStatus(s.status) {
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
		d.Allowed, d.RetryAfter = true, 0 // this request passed, whatever the next will
		a.Decision.Decision = d
		s.changed = true
	}
}

// lockOut holds the buckets that the request has left too little in for another one like it.
func (s *settlement) lockOut() {
	for i := range s.mine {
		a := &s.mine[i]
		used := a.Allowed && !a.After && !a.refunded && a.Cost > 0
		enough := int64(1)
		if a.rule.CostFunc == nil {
			enough = a.Cost
		}
		if a.rule.LockOut <= 0 || a.Shadow || !used || a.Remaining >= enough {
			continue
		}
		now := s.lim.Now()
		b, err := s.lim.Bucket(a.Key)
		if err == nil {
			back := a.ResetAfter - now.Sub(s.begun) - b.ResetAfter // by others, since; what has come back with time does not count
			if a.Remaining+int64(back/a.Limit.Interval()) >= enough {
				continue
			}
			if until := now.Add(a.rule.LockOut); b.HeldUntil.Before(until) { // a longer hold stays
				b.HeldUntil = until
				err = s.lim.Hold(a.Key, until)
			}
		}
		if err != nil {
			s.failures = append(s.failures, err)
			continue
		}
		a.locked = b.HeldUntil.Sub(now)
		s.changed = true
	}
}
