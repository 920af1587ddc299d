package redislimit

import (
	"errors"
	"time"

	"github.com/stint-go/stint/redislimit/internal/lease"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// oneLeased decides on a bucket with a lease. If done is false, the caller must make
// a trip, of a Part for the tokens that the lease did not have. err is then the error
// of a call that the lease made, and waited is when the caller began to wait for it.
func (l *Limiter) oneLeased(n *limitsInForce, op script.Op, r *script.Request) (done bool, waited time.Time, err error) {
	switch op {
	case script.Spend:
		done, waited, err = l.leases.Spend(r, &n.since)
		if err != nil && (errors.Is(err, ErrAway) || l.opts.away(r.Bucket.Name) != AwayClosed && l.node.Of(r.Bucket).Away()) {
			done = false // perhaps this machine decides
		}
	case script.Part:
		done = l.leases.Take(r)
	case script.Check:
		done = l.leases.Check(r)
	}
	return done, waited, err
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
