package hostlimit

import (
	"context"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// Allow is stint.Limiter.Allow. Options.Limiter.FailOpen is the answer if Spend
// returns an error.
func (l *Limiter) Allow(key stint.Key) bool { return (*l.front.Load()).Allow(key) }

// Spend is stint.Limiter.Spend.
func (l *Limiter) Spend(key stint.Key, cost int64) (d stint.Decision, err error) {
	d, err = (*l.front.Load()).Spend(key, cost) // with "return" in front it is too long to be inlined
	return
}

// Check is stint.Limiter.Check.
func (l *Limiter) Check(key stint.Key, cost int64) (d stint.Decision, err error) {
	d, err = (*l.front.Load()).Check(key, cost)
	return
}

// distant is the spender of a process that is not the owner.
type distant struct{ l *Limiter }

func (o distant) Allow(key stint.Key) bool {
	d, err := o.Spend(key, 1)
	return d.Allowed || err != nil && o.l.opts.Limiter.FailOpen
}

func (o distant) Spend(key stint.Key, cost int64) (stint.Decision, error) {
	return o.l.one(opTogether, stint.Request{Key: key, Cost: cost})
}

func (o distant) Check(key stint.Key, cost int64) (stint.Decision, error) {
	return o.l.one(opTogether, stint.Request{Key: key, Cost: cost, Mode: stint.CheckOnly})
}

// Refund is stint.Limiter.Refund.
func (l *Limiter) Refund(key stint.Key, cost int64) (stint.Decision, error) {
	return l.one(opRefund, stint.Request{Key: key, Cost: cost})
}

// one is together for one request.
func (l *Limiter) one(o op, req stint.Request) (stint.Decision, error) {
	return l.together(o, []stint.Request{req}, nil)
}

// SpendAll is stint.Limiter.SpendAll, for at most 256 requests.
func (l *Limiter) SpendAll(reqs ...stint.Request) (stint.Decision, error) {
	if err := lengths("SpendAll", len(reqs), len(reqs)); err != nil {
		return stint.Decision{}, err
	}
	return l.together(opTogether, reqs, nil)
}

// SpendTogether is stint.Limiter.SpendTogether, for at most 256 requests.
func (l *Limiter) SpendTogether(reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if err := lengths("SpendTogether", len(reqs), len(ds)); err != nil {
		return stint.Decision{}, err
	}
	return l.together(opTogether, reqs, ds[:len(reqs)])
}

// RefundAll is stint.Limiter.RefundAll, for at most 256 requests.
func (l *Limiter) RefundAll(reqs ...stint.Request) (stint.Decision, error) {
	if err := lengths("RefundAll", len(reqs), len(reqs)); err != nil {
		return stint.Decision{}, err
	}
	return l.together(opRefund, reqs, nil)
}

// together spends for all requests or for none, or refunds. ds may be nil.
func (l *Limiter) together(o op, reqs []stint.Request, ds []stint.Decision) (d stint.Decision, err error) {
	changes := func(q stint.Request) bool { return q.Mode != stint.CheckOnly }
	err = l.call(context.Background(), !slices.ContainsFunc(reqs, changes), func(owner *stint.Limiter) (err error) {
		switch {
		case o == opRefund:
			d, err = owner.RefundAll(reqs...)
		case ds != nil:
			d, err = owner.SpendTogether(reqs, ds)
		default:
			d, err = owner.SpendAll(reqs...)
		}
		return err
	}, func(r remote) (err error) {
		given, err := l.given(reqs)
		if err != nil {
			clear(ds)
			return err
		}
		d, err = r.together(o, given, ds)
		return err
	})
	if err != nil {
		return stint.Decision{}, err
	}
	return d, nil
}

// given returns the requests with the limits of this process.
func (l *Limiter) given(reqs []stint.Request) ([]stint.Request, error) {
	given := slices.Clone(reqs)
	for i := range given {
		if err := l.give(&given[i]); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// SpendEach is stint.Limiter.SpendEach. A guest sends 256 requests in a message.
// If the owner changes, the requests of one message may fail, and the others
// succeed.
func (l *Limiter) SpendEach(reqs []stint.Request, ds []stint.Decision) error {
	if err := lengths("SpendEach", len(reqs), len(ds)); err != nil {
		return err
	}
	if o := l.owner(); o != nil {
		return o.SpendEach(reqs, ds)
	}
	return inParts(reqs, ds, func(first int, reqs []stint.Request, ds []stint.Decision) (errs []error, err error) {
		clear(ds)
		err = l.call(context.Background(), false, func(o *stint.Limiter) error {
			return o.SpendEach(reqs, ds)
		}, func(r remote) (err error) {
			given, err := l.given(reqs)
			if err == nil {
				errs, err = r.each(first, given, ds)
			}
			return err
		})
		return errs, err
	})
}

// Now returns the time by the owner's clock.
func (l *Limiter) Now() (now time.Time) {
	now = time.Now()
	l.call(context.Background(), true, func(o *stint.Limiter) error {
		now = o.Now()
		return nil
	}, func(r remote) error {
		now = r.now()
		return nil
	})
	return now
}

// Bucket is stint.Limiter.Bucket, under the limit of this process.
func (l *Limiter) Bucket(key stint.Key) (k stint.Bucket, err error) {
	err = l.call(context.Background(), true, func(o *stint.Limiter) (err error) {
		k, err = o.Bucket(key)
		return err
	}, func(r remote) (err error) {
		if k, err = r.bucket(key); err == nil {
			k = l.seen(k)
		}
		return err
	})
	return k, err
}

// seen returns a bucket with the Limit and the Remaining of this process.
func (l *Limiter) seen(k stint.Bucket) stint.Bucket {
	limit, ok := l.limits.Load().limits.For(k.Key)
	if k.Limit, k.Remaining = limit, 0; ok && limit.Interval() > 0 {
		k.Remaining = int64(max(0, limit.Tolerance()-k.ResetAfter) / limit.Interval())
	}
	return k
}

// Buckets is stint.Limiter.Buckets, under the limits of this process.
func (l *Limiter) Buckets(name stint.Name) iter.Seq2[stint.Bucket, error] {
	return func(yield func(stint.Bucket, error) bool) {
		var own iter.Seq2[stint.Bucket, error]
		var all []stint.Bucket
		err := l.call(context.Background(), true, func(o *stint.Limiter) error {
			own = o.Buckets(name)
			return nil
		}, func(r remote) (err error) {
			all, err = r.buckets(name)
			return err
		})
		if own != nil {
			own(yield)
			return
		}
		for i := range all {
			all[i] = l.seen(all[i])
		}
		yieldAll(all, err, yield)
	}
}

// Held is stint.Limiter.Held.
func (l *Limiter) Held() iter.Seq2[stint.Held, error] {
	return func(yield func(stint.Held, error) bool) {
		var all []stint.Held
		err := l.call(context.Background(), true, func(o *stint.Limiter) error {
			all = slices.Collect(o.Held())
			return nil
		}, func(r remote) (err error) {
			all, err = r.held()
			return err
		})
		yieldAll(all, err, yield)
	}
}

// Hold is stint.Limiter.Hold.
func (l *Limiter) Hold(key stint.Key, until time.Time) error {
	return l.call(context.Background(), false, func(o *stint.Limiter) error { return o.Hold(key, until) },
		func(r remote) error { return r.hold(key, until) })
}

// Reset is stint.Limiter.Reset.
func (l *Limiter) Reset(keys ...stint.Key) error {
	return l.call(context.Background(), false, func(o *stint.Limiter) error { return o.Reset(keys...) },
		func(r remote) error { return r.reset(keys) })
}

// Wait is stint.Limiter.Wait. All processes share the queue.
func (l *Limiter) Wait(ctx context.Context, key stint.Key, cost int64) error {
	return l.WaitRequest(ctx, stint.Request{Key: key, Cost: cost})
}

// WaitRequest is stint.Limiter.WaitRequest.
func (l *Limiter) WaitRequest(ctx context.Context, req stint.Request) error {
	return l.call(ctx, false, func(o *stint.Limiter) error { return o.WaitRequest(ctx, req) }, func(r remote) error {
		given := req
		if err := l.give(&given); err != nil {
			return err
		}
		return r.wait(ctx, given)
	})
}

// Reserve is stint.Limiter.Reserve.
func (l *Limiter) Reserve(key stint.Key, cost int64) (*Reservation, error) {
	return l.ReserveRequest(stint.Request{Key: key, Cost: cost})
}

// ReserveRequest is stint.Limiter.ReserveRequest.
func (l *Limiter) ReserveRequest(req stint.Request) (p *Reservation, err error) {
	err = l.call(context.Background(), false, func(o *stint.Limiter) error {
		local, err := o.ReserveRequest(req)
		p = &Reservation{local: local}
		return err
	}, func(r remote) (err error) {
		given := req
		if err = l.give(&given); err == nil {
			p, err = r.reserve(given)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Flush is stint.Limiter.Flush.
func (l *Limiter) Flush() error {
	return l.call(context.Background(), true, (*stint.Limiter).Flush, remote.flush)
}

// Health returns nil, or what is wrong with the owner now. ErrNoOwner says that
// there is none.
func (l *Limiter) Health() error {
	return l.call(context.Background(), true, (*stint.Limiter).Health, remote.health)
}

// Stats returns the counts of the owner, with the decisions of all processes.
func (l *Limiter) Stats() (st stint.Stats, err error) {
	err = l.call(context.Background(), true, func(o *stint.Limiter) error {
		st = o.Stats()
		return nil
	}, func(r remote) (err error) {
		st, err = r.stats()
		return err
	})
	return st, err
}

// Snapshot is stint.Limiter.Snapshot.
func (l *Limiter) Snapshot(w io.Writer) (n int64, err error) {
	err = l.call(context.Background(), false, func(o *stint.Limiter) (err error) {
		n, err = o.Snapshot(w)
		return err
	}, func(r remote) (err error) {
		n, err = r.snapshot(w)
		return err
	})
	return n, err
}
