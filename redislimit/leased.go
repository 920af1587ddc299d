package redislimit

import (
	"errors"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/lease"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// oneLeased decides on a bucket with a lease. If done is false, the caller must make
// a trip, of a Part for the tokens that the lease did not have. err is then the error
// of a call that the lease made, and waited is when the caller began to wait for it.
func (l *Limiter) oneLeased(n *limitsInForce, op script.Op, r *request) (done bool, waited time.Time, err error) {
	b := r.bucket(n)
	var o script.Answer
	switch op {
	case script.Spend:
		o, done, waited, err = l.leases.Spend(&b, r.cost)
		if err != nil && (errors.Is(err, ErrAway) || l.opts.away(r.key.Name) != AwayClosed && l.node.Of(r.key).Away()) {
			done = false // perhaps this machine decides
		}
	case script.Part:
		o, r.taken = l.leases.Take(&b, r.cost)
		done = r.taken > 0 && r.taken == r.cost
		r.cost -= r.taken
		r.Need -= r.taken * r.interval
	case script.Check:
		var left int64
		o, left, done = l.leases.Check(&b, r.cost)
		r.Need = max(0, r.Need-left*r.interval)
	}
	r.Answer = o
	return done, waited, err
}

// allLeased decides on several requests without a trip, if each has a lease with
// enough tokens.
func (l *Limiter) allLeased(n *limitsInForce, op script.Op, rs []*request) (done bool) {
	unleased := func(r *request) bool { return !r.leased || r.cost == 0 }
	if op != script.Spend || slices.ContainsFunc(rs, unleased) {
		return false
	}
	costs := make([]lease.Cost, len(rs))
	for i, r := range rs {
		costs[i] = lease.Cost{Bucket: r.bucket(n), Cost: r.cost, CheckOnly: r.mode() == stint.CheckOnly}
	}
	if !l.leases.SpendAll(costs) {
		return false
	}
	for i, r := range rs {
		r.Answer = costs[i].Answer
	}
	return true
}

// lease makes the calls of the lease script that the parts need. If one of several
// calls fails, it makes no further ones.
func (l *Limiter) lease(parts []lease.Part) error {
	for i := range parts {
		parts[i].Call.Key = l.opts.keyOf(parts[i].Key)
	}
	return l.server.Each(len(parts), func(i int) string { return parts[i].Call.Key },
		func(call []int) error { return l.leaseOnce(parts, call) })
}

// leaseOnce makes the call with these of the parts.
func (l *Limiter) leaseOnce(parts []lease.Part, call []int) error {
	rs := make([]*script.LeaseRequest, len(call))
	for i, at := range call {
		rs[i] = &parts[at].Call
	}
	err := l.server.Lease(rs, parts[call[0]].Since, l.node.Of(parts[call[0]].Key))
	if errors.Is(err, ErrCrossSlot) && len(call) > 1 { // the server is a cluster
		for i := range call {
			err = l.leaseOnce(parts, call[i:i+1])
		}
		return err
	}
	for i, at := range call {
		if err == nil {
			l.sawBucket(parts[at].Key, &rs[i].Answer, l.opts.most(int64(parts[at].Limit.Tolerance())))
		}
	}
	return err
}
