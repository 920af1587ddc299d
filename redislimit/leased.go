package redislimit

import (
	"errors"

	"github.com/stint-go/stint/redislimit/internal/script"
)

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
	err := l.server.Lease(rs, l.watch.Of(rs[0].Bucket))
	if errors.Is(err, ErrCrossSlot) && len(rs) > 1 { // the server is a cluster
		for i := range rs {
			err = l.leaseOnce(rs[i : i+1])
		}
		return err
	}
	return err
}
