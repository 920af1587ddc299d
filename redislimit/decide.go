package redislimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
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
	return l.one(context.Background(), script.Spend, stint.Request{Key: key, Cost: cost})
}

// Check returns the Decision that Spend would return, and spends nothing:
// Remaining is what would be left. As the first call after SetLimits it may shorten
// the bucket's time.
func (l *Limiter) Check(key stint.Key, cost int64) (stint.Decision, error) {
	return l.one(context.Background(), script.Check, stint.Request{Key: key, Cost: cost})
}

// one carries out a Spend, a Check or a Part of one bucket. A denial that was seen lately
// answers without a trip. A Part takes what a lease has, and makes a trip for the rest.
func (l *Limiter) one(ctx context.Context, op script.Op, req stint.Request) (stint.Decision, error) {
	if l.closed.Load() {
		return stint.Decision{}, stint.ErrClosed
	}
	n := l.inForce.Load()
	r, err := l.request(n, &req, op)
	if err != nil {
		return stint.Decision{}, err
	}
	if op == script.Part && !r.Limited() { // it is Blocked, or perhaps held
		op = script.Spend
	}
	if !r.Asks {
		return r.Decision(op), nil
	}
	var lost error          // of a lease's call
	var begun time.Time     // of the wait for it
	var part stint.Decision // of a lease that had some of the tokens
	if r.Leased {
		var done bool
		switch op {
		case script.Spend:
			done, begun, lost = l.leases.Spend(&r)
			if lost != nil && (errors.Is(lost, ErrAway) || l.decidesAway(op, r.Bucket, lost)) {
				done = false
			}
		case script.Check:
			done = l.leases.Check(&r)
		case script.Part:
			if done = l.leases.Take(&r); r.Taken > 0 {
				part = r.Decision(op)
			}
		}
		if done && lost != nil {
			return stint.Decision{}, l.ended(lost)
		} else if done {
			return r.Decision(op), nil
		}
	}
	sent := l.elapsed()
	if op != script.Part && l.leases.Denies(&r, sent) {
		return r.Decision(op), nil
	}
	if err = l.ask(ctx, op, []*script.Request{&r}, begun); err != nil {
		if part.Taken > 0 {
			return part, nil
		}
		return stint.Decision{}, l.ended(unsure(lost, err))
	}
	d := r.Decision(op)
	if r.Away == nil {
		l.leases.Saw(&r, sent, !d.Allowed || op != script.Check && d.Remaining == 0)
	}
	return d, nil
}

// ended returns the error of a call. After Close, a call that was not made is
// stint.ErrClosed.
func (l *Limiter) ended(err error) error {
	switch {
	case err == nil || !l.closed.Load():
		return err
	case errors.Is(err, ErrNoAnswer):
		return fmt.Errorf("%w: %w", stint.ErrClosed, err)
	case errors.Is(err, ErrAway), errors.Is(err, ErrBusy):
		return stint.ErrClosed
	}
	return err
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
	return l.Do(context.Background(), reqs, nil)
}

// Do is SpendAll that also puts the decision on reqs[i] into ds[i]. A nil ds asks
// for the strictest decision only. If the strictest decision denies, the other
// decisions are what Check would return. After an error every decision is the zero
// one. Every call to the server ends within Options.Timeout, so the context is only for
// Options.Away: a client that disconnects early spends all the same.
func (l *Limiter) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if ds != nil && len(ds) < len(reqs) {
		return stint.Decision{}, fmt.Errorf("redislimit: Do: %d requests, and room for %d decisions", len(reqs), len(ds))
	}
	if len(reqs) == 1 && (reqs[0].Mode == stint.CheckAndSpend || reqs[0].Mode == stint.UpTo) {
		op := script.Spend
		if reqs[0].Mode == stint.UpTo {
			op = script.Part
		}
		d, err := l.one(ctx, op, reqs[0])
		if ds != nil {
			ds[0] = d
		}
		return d, err
	}
	if ds == nil {
		ds = make([]stint.Decision, len(reqs))
	}
	ds = ds[:len(reqs)]
	d, err := l.together(ctx, script.Spend, reqs, ds)
	if err != nil {
		clear(ds)
	}
	return d, err
}

// DoEach decides each request by itself, and puts the decision on reqs[i] into ds[i].
// Requests for one key are decided in their order, and those for different keys at
// the same time, in as few round trips as calls of several goroutines take. A request
// that fails leaves the zero Decision, and the error is a stint.EachError, which says
// for each request what failed. ctx is as for Do. If ds is shorter than reqs, DoEach
// decides nothing and returns an error.
func (l *Limiter) DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error {
	if len(ds) < len(reqs) {
		return fmt.Errorf("redislimit: DoEach: %d requests, and room for %d decisions", len(reqs), len(ds))
	}
	const atOnce = 1024 // requests
	errs := make(stint.EachError, len(reqs))
	for first := 0; first < len(reqs); first += atOnce {
		places := make(map[stint.Key][]int) // in reqs
		for i := first; i < min(first+atOnce, len(reqs)); i++ {
			places[reqs[i].Key] = append(places[reqs[i].Key], i)
		}
		var keys sync.WaitGroup
		for _, at := range places {
			keys.Go(func() {
				for _, i := range at {
					req := reqs[i]
					if req.Mode == stint.SpendOnly { // it is alone
						req.Mode = stint.CheckAndSpend
					}
					ds[i], errs[i] = l.Do(ctx, []stint.Request{req}, nil)
				}
			})
		}
		keys.Wait()
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}

// Refund gives the tokens of requests back to their buckets, and returns the
// strictest decision on what these then hold, as stint.Limiter.Refund does. Each
// request needs Spent.
func (l *Limiter) Refund(reqs ...stint.Request) (stint.Decision, error) {
	return l.together(context.Background(), script.Refund, reqs, make([]stint.Decision, len(reqs)))
}

// together spends for all requests or for none, or refunds them, and fills in ds.
func (l *Limiter) together(ctx context.Context, op script.Op, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if l.closed.Load() {
		return stint.Decision{}, stint.ErrClosed
	}
	n := l.inForce.Load()
	rs := make([]script.Request, len(reqs))
	keys := make(map[stint.Key]bool, len(reqs))
	var asks []*script.Request
	leased, blocked := op == script.Spend, false
	for i := range reqs {
		r, err := l.request(n, &reqs[i], op)
		if err != nil {
			return stint.Decision{}, err
		}
		if reqs[i].Mode == stint.UpTo && op == script.Spend {
			return stint.Decision{}, fmt.Errorf("redislimit: %s: a request with UpTo must be alone", n.labeled(r.Bucket))
		}
		if keys[r.Bucket] {
			return stint.Decision{}, fmt.Errorf("%w: %s", stint.ErrDuplicateKey, n.labeled(r.Bucket))
		}
		keys[r.Bucket] = true
		if op == script.Refund && r.Mode == stint.CheckOnly {
			r.Need = 0
		}
		rs[i] = r
		if r.Asks {
			asks = append(asks, &rs[i])
			leased = leased && r.Leased && r.Cost > 0
		}
		blocked = blocked || r.Limit == stint.Blocked && r.Mode != stint.SpendOnly
	}
	if op == script.Refund {
		defer l.forget(asks) // also denials that were under way
	}
	if op == script.Spend && blocked {
		op, leased = script.Check, false // it denies all
	}
	if len(asks) > 0 && !(leased && l.leases.SpendAll(asks)) {
		if err := l.ask(ctx, op, asks, time.Time{}); err != nil {
			return stint.Decision{}, l.ended(err)
		}
	}
	for i := range rs {
		ds[i] = rs[i].Decision(op)
	}
	d := stint.Strictest(reqs, ds)
	if d.Key == (stint.Key{}) { // no request takes part
		d.SetAt(l.Now())
	}
	if !d.Allowed {
		for i := range ds {
			ds[i].Taken = 0
		}
	}
	return d, nil
}

// Bucket returns the state of one bucket, which may be full. Like Check it may
// shorten the bucket's time. If the key is not limited, the server is not asked.
func (l *Limiter) Bucket(key stint.Key) (stint.Bucket, error) {
	b := stint.Bucket{Key: key}
	r, err := l.direct(key, script.Check, 0)
	if err != nil {
		return b, err
	}
	if r.Away != nil {
		if b, err = l.opts.Away.Bucket(key); err != nil {
			err = awayError(err)
		}
		return b, err
	}
	b.Limit = r.Limit
	if r.Limited() {
		b.ResetAfter = time.Duration(max(0, r.TAT-r.Now))
		b.Remaining = r.Decision(script.Check).Remaining
	}
	if r.Hold > r.Now {
		b.HeldUntil = time.Unix(0, r.Hold)
	}
	return b, nil
}

// Hold denies every request for the key before until, on all machines, even if
// its bucket has tokens, and returns the end of the hold. If the hold in force
// ends later, that one stays. SetHold and Reset end a hold. If none is in force,
// and until has passed, Hold returns the zero time. Other
// machines notice within Options.RepeatDenials, unless the limit is Leased. A
// key without a limit cannot be held, because nothing asks the server about it.
// Keys of Options.PlainKeys cannot be held either.
func (l *Limiter) Hold(key stint.Key, until time.Time) (end time.Time, err error) {
	return l.hold(script.Extend, key, until)
}

// SetHold makes the hold on a key end at the time until, even if the hold in force
// ends later. The zero time, or one that has passed, ends the hold.
func (l *Limiter) SetHold(key stint.Key, until time.Time) error {
	_, err := l.hold(script.Hold, key, until)
	return err
}

func (l *Limiter) hold(op script.Op, key stint.Key, until time.Time) (end time.Time, err error) {
	if l.opts.PlainKeys {
		return end, fmt.Errorf("redislimit: hold %s: Boulder's buckets (Options.PlainKeys) have no holds", l.labeled(key))
	}
	r, err := l.direct(key, op, script.Instant(until))
	if err == nil && r.Limit == stint.Unlimited && !r.Asks {
		err = fmt.Errorf("redislimit: hold %s: it has no limit, so it cannot be held", l.labeled(key))
	}
	if err == nil && r.Hold > r.Now {
		end = time.Unix(0, r.Hold)
	}
	return end, err
}

// Reset makes the buckets full, as if they had never been used, and ends their
// holds. Keys are reset in order. After an error the keys after the failed
// one are not reset.
func (l *Limiter) Reset(keys ...stint.Key) error {
	for _, key := range keys {
		if _, err := l.direct(key, script.Reset, 0); err != nil {
			return err
		}
	}
	return nil
}

// direct runs an operation without a cost on one bucket. On a key without a
// limit it runs only a reset.
func (l *Limiter) direct(key stint.Key, op script.Op, fourth int64) (r script.Request, err error) {
	if l.closed.Load() {
		return r, stint.ErrClosed
	}
	n := l.inForce.Load()
	if r, err = l.request(n, &stint.Request{Key: key, Mode: stint.CheckOnly}, op); err != nil {
		return r, err
	}
	if r.Limit == stint.Unlimited && !r.Asks && op != script.Reset {
		return r, nil
	}
	if op == script.Check {
		return r, l.ended(l.ask(context.Background(), op, []*script.Request{&r}, time.Time{}))
	}
	r.Fourth = fourth
	defer l.leases.Forget(key) // also denials that were under way
	err = l.ask(context.Background(), op, []*script.Request{&r}, time.Time{})
	if !errors.Is(err, ErrAway) && !errors.Is(err, ErrBusy) && !errors.Is(err, script.ErrNothingRan) {
		l.leases.Drop(key, op != script.Reset)
	}
	return r, l.ended(err)
}

// Wait takes the tokens of a request as soon as they are there. It spends, sleeps
// for RetryAfter if that is denied, and tries again: there is no queue, so waiting
// callers are not served in order. It fails at once and takes
// nothing if ctx would end before the tokens are there, with an error that
// wraps context.DeadlineExceeded. Errors of Spend end the wait. If the id is
// blocked, the error is stint.ErrBlocked.
func (l *Limiter) Wait(ctx context.Context, req stint.Request) (stint.Decision, error) {
	req.Mode = stint.CheckAndSpend
	if req.Leave != 0 {
		return stint.Decision{}, fmt.Errorf("redislimit: %s: a request with Leave cannot queue", l.labeled(req.Key))
	}
	for {
		if err := ctx.Err(); err != nil {
			return stint.Decision{}, err
		}
		back := l.watch.Back()
		d, err := l.SpendAll(req)
		switch {
		case err != nil:
			return stint.Decision{}, err
		case d.Allowed:
			return d, nil
		case d.Limit == stint.Blocked:
			return stint.Decision{}, fmt.Errorf("%w: %s", stint.ErrBlocked, l.labeled(req.Key))
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d.RetryAfter {
			return stint.Decision{}, fmt.Errorf("redislimit: wait for %s: its tokens would come too late, in %v: %w", l.labeled(req.Key),
				d.RetryAfter, context.DeadlineExceeded)
		}
		select {
		case <-time.After(d.RetryAfter):
		case <-back: // the server may have tokens
		case <-ctx.Done():
			return stint.Decision{}, ctx.Err()
		case <-l.closing:
			return stint.Decision{}, stint.ErrClosed
		}
	}
}
