package stint

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-go/stint/internal/cache"
)

// Allow reports whether one request for the key may pass, and spends a token
// if so. If Spend would return an error, the answer is Options.FailOpen.
func (l *Limiter) Allow(key Key) bool {
	if answer := l.fastPath(key, 1, 0, false, nil); answer != fastDeclined {
		return answer != fastDenied
	}
	var d Decision
	err := l.slowPath(context.Background(), []Request{key.Cost(1)}, &d, nil, false)
	return d.Allowed || err != nil && l.opts.FailOpen
}

// Spend takes cost tokens from the key's bucket if it has that many. A denied
// request changes nothing. An error comes with the zero Decision, and nothing
// was spent, except that after ErrNotDurable the tokens may stay spent.
func (l *Limiter) Spend(key Key, cost int64) (d Decision, err error) {
	if l.fastPath(key, cost, 0, false, &d) == fastDeclined {
		err = l.slowPath(context.Background(), []Request{key.Cost(cost)}, &d, nil, false)
	}
	return d, err
}

// Check returns the Decision that Spend would return, and spends nothing: Taken is
// 0, and Remaining is what would be left, so Check(key, 0) says what is there. Check
// may still shorten the wait of a bucket, like any request: if its limit has become
// smaller, as SetLimits says, or if it was read from the file, as Request says.
func (l *Limiter) Check(key Key, cost int64) (d Decision, err error) {
	if l.fastPath(key, cost, 0, true, &d) == fastDeclined {
		err = l.slowPath(context.Background(), []Request{{Key: key, Cost: cost, Mode: CheckOnly}}, &d, nil, false)
	}
	return d, err
}

// slowPath decides on requests, or refunds them, and waits for the commit.
func (l *Limiter) slowPath(ctx context.Context, reqs []Request, d *Decision, ds []Decision, refunds bool) error {
	in, key, err := l.submitAll(reqs, d, ds, refunds, nil)
	if in != nil {
		if err = l.cache.Await(ctx, time.Now(), in); err != nil {
			*d = Decision{}
		}
	}
	return l.failed(key, err)
}

// submitAll decides on requests together. It returns the commit that the answer
// waits for, or nil, and the key to name if that fails. If full is not nil, it is
// returned in place of a wait for space in memory.
func (l *Limiter) submitAll(
	reqs []Request, d *Decision, ds []Decision, refunds bool, full error,
) (in *cache.Batch, key Key, err error) {
	if len(reqs) == 0 { // no bucket shows whether the limiter is closed
		if l.isClosed() {
			return nil, Key{}, ErrClosed
		}
		*d = Decision{Allowed: true, Remaining: math.MaxInt64, at: l.clock.Now()}
		return nil, Key{}, nil
	}
	var rs []request
	var bs []cache.Bucket
	switch n := len(reqs); { // a few stay on the stack
	case n == 1:
		rs, bs = make([]request, 1), make([]cache.Bucket, 1)
	case n <= few:
		rs, bs = make([]request, few)[:n], make([]cache.Bucket, few)[:n]
	default:
		rs, bs = make([]request, n), make([]cache.Bucket, n)
	}
	for i := range reqs {
		r, req := &rs[i], &reqs[i]
		if req.Mode == UpTo && len(reqs) > 1 && !refunds {
			return nil, req.Key, fmt.Errorf("stint: %s: a request with UpTo must be alone",
				l.limits.Load().labeled(req.Key))
		}
		r.refunds, bs[i].At = refunds, i
		if err := r.ask(l, req, &bs[i]); err != nil {
			return nil, req.Key, err
		}
	}
	return l.submit(rs, bs, d, ds, full)
}

// submit is submitAll for requests that are asked, and their buckets, which it sorts.
func (l *Limiter) submit(
	rs []request, bs []cache.Bucket, d *Decision, ds []Decision, full error,
) (in *cache.Batch, key Key, err error) {
	slices.SortFunc(bs, func(a, b cache.Bucket) int { return a.Compare(&b) })
	for i := 1; i < len(bs); i++ {
		if key = rs[bs[i].At].key; bs[i].Key == bs[i-1].Key {
			return nil, key, fmt.Errorf("%w: %s", ErrDuplicateKey, l.limits.Load().labeled(key))
		}
	}
	at, err := l.cache.LockFound(bs, full)
	if err == nil {
		now := l.clock.Now()
		if at, err = l.decideAllLocked(rs, bs, d, ds, now); err == nil {
			for _, resident := range []bool{true, false} { // a slot that is inserted may move others of its shard
				for i := range bs {
					if bs[i].Resident == resident {
						rs[bs[i].At].writeLocked(&bs[i], now)
					}
				}
			}
			if d.Allowed { // a denial changes nothing
				in = l.submitLocked(rs, bs, now)
			}
		}
		cache.UnlockBuckets(bs)
	}
	return in, rs[bs[at].At].key, err
}

// decideAllLocked decides on requests at the instant now, and counts the decisions. d
// gets the strictest one. An error is that of bs[at].
func (l *Limiter) decideAllLocked(
	rs []request, bs []cache.Bucket, d *Decision, ds []Decision, now int64,
) (at int, err error) {
	*d = Decision{Allowed: true, Remaining: math.MaxInt64, at: now}
	voted := false
	for i := range bs {
		b, r := &bs[i], &rs[bs[i].At]
		r.useConfiguredLocked(b, l.opts.Durability)
		var one Decision
		if err = r.decideLocked(l, b, now, &one); err != nil {
			*d = Decision{}
			return i, err
		}
		r.allowed = one.Allowed
		if ds != nil {
			ds[b.At] = one
		}
		if r.mode != SpendOnly && (!voted || one.Stricter(d)) {
			*d, voted = one, true
		}
	}
	for i := range bs {
		b, r := &bs[i], &rs[bs[i].At]
		switch {
		case !r.spends():
		case r.allowed && d.Allowed:
			r.counted = 1
			b.Shard.CountLocked(b.Key.Name)[0]++
		case !r.allowed && !r.retries && (d.Allowed || r.mode != SpendOnly):
			b.Shard.CountLocked(b.Key.Name)[1]++
		}
		if !d.Allowed {
			if r.to = b.TAT; ds != nil {
				ds[b.At].Taken = 0
			}
		}
	}
	return 0, nil
}

// decide is slowPath for one request that is set up by the caller, who counts errors.
func (l *Limiter) decide(r request, req *Request) (d Decision, err error) {
	rs, bs := [1]request{r}, [1]cache.Bucket{}
	if err = rs[0].ask(l, req, &bs[0]); err == nil {
		var in *cache.Batch
		if in, _, err = l.submit(rs[:], bs[:], &d, nil, nil); err == nil {
			err = l.await(in)
		}
	}
	if err != nil {
		return Decision{}, err
	}
	return d, nil
}

// Reset makes the buckets full, as if they had never been used, and ends their
// holds. Requests that wait in their queues still go when their turns come.
// Keys are reset in order, until one fails. After ErrNotDurable the key that
// failed may be reset too. A Reset is as durable as a spend under the configured
// limit. It is durable at every level if no limit is configured, or if the Limit of
// a Request may have changed the bucket, in memory or before it was read from the
// file.
func (l *Limiter) Reset(keys ...Key) error {
	for _, key := range keys {
		if err := l.reset(key); err != nil {
			return l.failed(key, err)
		}
	}
	return nil
}

func (l *Limiter) reset(key Key) error {
	if err := checkID(key.ID); err != nil {
		return err
	}
	in, err := l.cache.Reset(cacheKey(key))
	if err != nil {
		return err
	}
	return l.await(in)
}
