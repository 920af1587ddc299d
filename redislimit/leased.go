package redislimit

import (
	"errors"
	"time"

	"github.com/stint-go/stint/redislimit/internal/script"
)

// oneLeased decides on a bucket with a lease. If done is false, the caller must make
// a trip, of a Part for the tokens that the lease did not have. err is then the error
// of a call that the lease made, and waited is when the caller began to wait for it.
func (l *Limiter) oneLeased(op script.Op, r *script.Request) (done bool, waited time.Time, err error) {
	switch op {
	case script.Spend:
		done, waited, err = l.leases.Spend(r)
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

// lease makes the calls of the lease script that the requests need. If one of several
// calls fails, it makes no further ones.
func (l *Limiter) lease(rs []*script.LeaseRequest) error {
	for _, r := range rs {
		r.Key = l.opts.keyOf(r.Bucket)
	}
	return script.Each(l.server, rs, func(r *script.LeaseRequest) string { return r.Key }, l.leaseOnce)
}

// leaseOnce makes one call.
func (l *Limiter) leaseOnce(rs []*script.LeaseRequest) error {
	err := l.server.Lease(rs, l.node.Of(rs[0].Bucket))
	if errors.Is(err, ErrCrossSlot) && len(rs) > 1 { // the server is a cluster
		for i := range rs {
			err = l.leaseOnce(rs[i : i+1])
		}
		return err
	}
	for _, r := range rs {
		if err == nil {
			l.sawBucket(r.Bucket, &r.Answer, l.opts.most(int64(r.Limit.Tolerance())))
		}
	}
	return err
}
