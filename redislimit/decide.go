package redislimit

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
)

// Allow reports whether one request for the key may pass, and spends a token
// if so. If Spend would return an error, the answer is Options.FailOpen.
func (l *Limiter) Allow(key stint.Key) bool {
	d, err := l.Spend(key, 1)
	return d.Allowed || err != nil && l.opts.FailOpen
}

// Spend takes cost tokens from the key's bucket if it has that many. A denied
// request spends nothing. An error comes with the zero Decision, and nothing
// was spent, except that after ErrNoAnswer and stint.ErrNotDurable the tokens
// may be spent.
func (l *Limiter) Spend(key stint.Key, cost int64) (stint.Decision, error) {
	return l.one(opSpend, stint.Request{Key: key, Cost: cost})
}

// Check returns the Decision that Spend would return, and spends nothing. As the
// first call after SetLimits it may shorten the bucket's time.
func (l *Limiter) Check(key stint.Key, cost int64) (stint.Decision, error) {
	return l.one(opCheck, stint.Request{Key: key, Cost: cost})
}

// Refund gives cost tokens back to the key's bucket, up to its burst, and
// reports its state. The Decision always allows.
func (l *Limiter) Refund(key stint.Key, cost int64) (stint.Decision, error) {
	return l.one(opRefund, stint.Request{Key: key, Cost: cost})
}

// one decides on one bucket. A denial that was seen lately answers without a
// trip.
func (l *Limiter) one(op string, req stint.Request) (stint.Decision, error) {
	if l.closed.Load() {
		return stint.Decision{}, stint.ErrClosed
	}
	n := l.Load()
	r, err := l.request(n, &req, op)
	if err != nil {
		return stint.Decision{}, err
	}
	if !r.asks {
		return r.decision(0, op), nil
	}
	var lost error // of a lease's call
	if r.leased {
		d, done, err := l.oneLeased(n, op, &r, req.Cost)
		if done {
			return d, err
		}
		lost = err
	}
	sent := l.elapsed()
	if op == opRefund {
		l.seen.forget(r.key)
	} else if now, denied := l.seen.denies(&r, sent, l.opts.Fresh, l.opts.Timeout); denied {
		return r.decision(now, op), nil
	}
	rs := [1]request{r}
	trips, err := l.ask(n, op, rs[:])
	if op == opRefund {
		l.seen.forget(r.key) // a denial that was under way
	}
	if err != nil {
		return stint.Decision{}, unsure(lost, err)
	}
	answer, now := &trips[0].requests[0], trips[0].now
	d := answer.decision(now, op)
	if op != opRefund && l.opts.Fresh > 0 && !trips[0].here {
		l.seen.put(answer, now, sent, !d.Allowed || op == opSpend && d.Remaining == 0)
	}
	return d, nil
}

// elapsed returns the time by the clock that measures the age of sightings and
// leases.
func (l *Limiter) elapsed() int64 {
	if l.opts.Now != nil {
		return instant(l.opts.Now())
	}
	return int64(time.Since(l.start))
}

// SpendAll decides several requests, and spends for all of them or for none. It
// returns the strictest decision, as stint.Limiter.SpendAll does.
//
// Up to 64 buckets take one round trip, on one server or in one slot of a
// cluster, and no other call sees a part of it. Otherwise several trips are made
// at the same time. If one denies or fails, what the others spent is returned in
// the background. Until then other calls may be denied, but never too many are
// allowed. If it cannot be returned, it stays spent.
func (l *Limiter) SpendAll(reqs ...stint.Request) (stint.Decision, error) {
	return l.all(opSpend, reqs, nil)
}

// SpendTogether is SpendAll that also puts the decision on reqs[i] into ds[i].
// If the strictest decision denies, the other decisions are what Check would
// return. After an error every decision is the zero one.
func (l *Limiter) SpendTogether(reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if len(ds) < len(reqs) {
		return stint.Decision{}, fmt.Errorf("redislimit: SpendTogether: %d requests, and room for %d decisions", len(reqs),
			len(ds))
	}
	return l.all(opSpend, reqs, ds[:len(reqs)])
}

// RefundAll gives back what a SpendAll of the same requests spent, and returns
// the strictest decision. For a CheckOnly request it only reports the state.
func (l *Limiter) RefundAll(reqs ...stint.Request) (stint.Decision, error) {
	return l.all(opRefund, reqs, nil)
}

func (l *Limiter) all(op string, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if len(reqs) == 1 && reqs[0].Mode == stint.CheckAndSpend {
		d, err := l.one(op, reqs[0])
		if ds != nil {
			ds[0] = d
		}
		return d, err
	}
	own := ds
	if own == nil {
		own = make([]stint.Decision, len(reqs))
	}
	d, err := l.together(op, reqs, own)
	if err != nil {
		clear(own)
	}
	return d, err
}

func (l *Limiter) together(op string, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if l.closed.Load() {
		return stint.Decision{}, stint.ErrClosed
	}
	n := l.Load()
	var rs []request
	keys := make(map[stint.Key]bool, len(reqs))
	for i := range reqs {
		r, err := l.request(n, &reqs[i], op)
		if err != nil {
			return stint.Decision{}, err
		}
		if keys[r.key] {
			return stint.Decision{}, fmt.Errorf("%w: %v", stint.ErrDuplicateKey, r.key)
		}
		keys[r.key] = true
		if r.at = i; r.asks {
			if op == opRefund {
				l.seen.forget(r.key)
				if r.mode == stint.CheckOnly {
					r.need = 0
				}
			}
			rs = append(rs, r)
		} else {
			ds[i] = r.decision(0, op)
		}
	}
	if op == opSpend && !strictest(reqs, ds, rs).Allowed {
		op = opCheck // a Blocked request denies all
	}
	if l.allLeased(n, op, reqs, rs, ds) {
		return strictest(reqs, ds, nil), nil
	}
	if len(rs) > 0 {
		trips, err := l.ask(n, op, rs)
		if err != nil {
			return stint.Decision{}, err
		}
		for _, t := range trips {
			for i := range t.requests {
				r := &t.requests[i]
				ds[r.at] = r.decision(t.now, op)
			}
		}
	}
	return strictest(reqs, ds, nil), nil
}

// strictest returns the strictest decision, without SpendOnly and undecided
// requests.
func strictest(reqs []stint.Request, ds []stint.Decision, undecided []request) stint.Decision {
	d, voted := stint.Decision{Allowed: true, Remaining: math.MaxInt64}, false
	for i := range reqs {
		if len(undecided) > 0 && undecided[0].at == i {
			undecided = undecided[1:]
		} else if reqs[i].Mode != stint.SpendOnly && (!voted || stricter(&ds[i], &d)) {
			d, voted = ds[i], true
		}
	}
	return d
}

// Bucket returns the state of one bucket, which may be full. Like Check it may
// shorten the bucket's time. If the key is not limited, the server is not asked.
func (l *Limiter) Bucket(key stint.Key) (stint.Bucket, error) {
	b := stint.Bucket{Key: key}
	r, now, err := l.direct(key, opCheck, 0)
	if err != nil || r.limit == stint.Unlimited {
		return b, err
	}
	b.Limit = r.limit
	b.ResetAfter = time.Duration(max(0, r.tat-now))
	if r.limited() {
		b.Remaining = r.decision(now, opCheck).Remaining
	}
	if r.hold > now {
		b.HeldUntil = time.Unix(0, r.hold)
	}
	return b, nil
}

// Hold denies every request for the key before until, on all machines, even if
// its bucket has tokens. Other machines notice within Options.Fresh, unless the
// limit is Leased. A new hold replaces the old one. Reset ends a hold, and so
// does a new hold that ends now or earlier. A key without a limit cannot be
// held, because nothing asks the server about it. Keys of Options.Plain cannot
// be held either.
func (l *Limiter) Hold(key stint.Key, until time.Time) error {
	if l.opts.Plain {
		return fmt.Errorf("redislimit: hold %v: Boulder's buckets (Options.Plain) have no holds", key)
	}
	r, _, err := l.direct(key, opHold, instant(until))
	if err == nil && r.limit == stint.Unlimited {
		err = fmt.Errorf("redislimit: hold %v: it has no limit, so it cannot be held", key)
	}
	return err
}

// Reset makes the buckets full, as if they had never been used, and ends their
// holds. Keys are reset in order. After an error the keys after the failed
// one are not reset.
func (l *Limiter) Reset(keys ...stint.Key) error {
	for _, key := range keys {
		if _, _, err := l.direct(key, opReset, 0); err != nil {
			return err
		}
	}
	return nil
}

// direct runs an operation without a cost on one bucket. On a key without a
// limit it runs only a reset.
func (l *Limiter) direct(key stint.Key, op string, fourth int64) (r request, now int64, err error) {
	if l.closed.Load() {
		return r, 0, stint.ErrClosed
	}
	n := l.Load()
	if r, err = l.request(n, &stint.Request{Key: key, Mode: stint.CheckOnly}, op); err != nil {
		return r, 0, err
	}
	if r.limit == stint.Unlimited && op != opReset {
		return r, 0, nil
	}
	r.name = l.opts.keyOf(key)
	if op != opCheck {
		r.fourth = fourth
		l.seen.forget(key)
		defer l.seen.forget(key)
		l.dropLease(key, op == opHold)
		defer l.dropLease(key, op == opHold)
	}
	trips, err := l.ask(n, op, []request{r})
	if err != nil {
		return r, 0, err
	}
	return trips[0].requests[0], trips[0].now, nil
}

// Wait takes cost tokens from the key's bucket as soon as they are there. It
// spends, sleeps for RetryAfter if that is denied, and tries again: there is no
// queue, so waiting callers are not served in order. It fails at once and takes
// nothing if ctx would end before the tokens are there, with an error that
// wraps context.DeadlineExceeded. Errors of Spend end the wait. If the id is
// blocked, the error is stint.ErrBlocked.
func (l *Limiter) Wait(ctx context.Context, key stint.Key, cost int64) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, err := l.Spend(key, cost)
		switch {
		case err != nil:
			return err
		case d.Allowed:
			return nil
		case d.Limit == stint.Blocked:
			return fmt.Errorf("%w: %v", stint.ErrBlocked, key)
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d.RetryAfter {
			return fmt.Errorf("redislimit: wait for %v: its tokens would come too late, in %v: %w", key, d.RetryAfter,
				context.DeadlineExceeded)
		}
		timer := time.NewTimer(d.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-l.closing:
			timer.Stop()
			return stint.ErrClosed
		}
	}
}
