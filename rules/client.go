package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// A Client keeps requests within a quota, and away from a server for as long as
// its answers ask. Both last across runs of the program, in the Limiter's file.
// Packages httplimit and grpclimit have clients over it. Any number of goroutines
// may use a Client. Its fields must not change once it is in use.
type Client struct {
	Limiter stint.Decider
	Wait    bool          // a request waits for its tokens
	MaxHold time.Duration // how long a server can keep the client away; 0 means 24 hours

	// OnWait is called before a request waits, with the time until its turn as far as
	// it is known then: a hold may delay it. It is not called if the turn would come
	// after the deadline. It costs a Check.
	OnWait func(ctx context.Context, key stint.Key, wait time.Duration)

	mu       sync.Mutex // guards refusals
	refusals map[stint.Key]refusal
}

// A Turn is a request that may be sent, because it has spent its tokens.
type Turn struct {
	client  *Client
	took    stint.Request // its Spent is the instant of the spend
	sent    time.Time
	settled atomic.Bool // by Refund or Settle
}

// A QuotaError says that a request was not sent, and when it may be.
type QuotaError struct {
	Key        stint.Key
	Limit      stint.Limit   // stint.Unlimited if the bucket has none, and is held
	RetryAfter time.Duration // until the request would pass

	err error
}

// Error has no id.
func (e *QuotaError) Error() string {
	if e.err == stint.ErrBlocked {
		return "stint: the limit blocks all requests"
	}
	wait := (e.RetryAfter + time.Second - 1).Truncate(time.Second)
	return fmt.Sprintf("stint: the quota is used up or held: try again in %v", wait)
}

// Unwrap returns stint.ErrBlocked if the limit is stint.Blocked. If the request
// would have waited, it returns context.DeadlineExceeded if its turn is after its
// deadline, or stint.ErrQueueFull if the queue is full. Otherwise it returns nil.
func (e *QuotaError) Unwrap() error { return e.err }

// Begin spends the tokens of a request, and waits for them if Wait is set. The
// error says why the request must not be sent: a *QuotaError, that of the context,
// or one of the Limiter.
func (c *Client) Begin(ctx context.Context, key stint.Key, cost int64) (*Turn, error) {
	if isMissing(c.Limiter) {
		return nil, errors.New("rules: a Client needs a Limiter")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	t := &Turn{client: c, took: key.Cost(cost)}
	if err := t.spend(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // cancelled during the commit
		if err := t.Refund(); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		return nil, context.Cause(ctx)
	}
	t.sent = c.Limiter.Now()
	return t, nil
}

func (t *Turn) spend(ctx context.Context) (err error) {
	lim := t.client.Limiter
	var d stint.Decision
	var why error
	if t.client.Wait {
		t.client.tellWait(ctx, t.took)
		d, err = lim.Wait(ctx, t.took)
		t.took.Spent = d.At()
		switch {
		case errors.Is(err, stint.ErrQueueFull):
			why = stint.ErrQueueFull
		case errors.Is(err, stint.ErrBlocked):
			why = stint.ErrBlocked
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			why = context.DeadlineExceeded
		default:
			return err
		}
		d, err = ask(context.Background(), lim, stint.Request{Key: t.took.Key, Cost: t.took.Cost, Mode: stint.CheckOnly})
	} else {
		if d, err = ask(context.Background(), lim, t.took); d.Allowed {
			t.took.Spent = d.At()
			return err
		}
		if d.Limit == stint.Blocked {
			why = stint.ErrBlocked
		}
	}
	if err != nil {
		return err
	}
	return &QuotaError{Key: t.took.Key, Limit: d.Limit, RetryAfter: d.RetryAfter, err: why}
}

// tellWait calls OnWait if a request has to wait.
func (c *Client) tellWait(ctx context.Context, req stint.Request) {
	if c.OnWait == nil {
		return
	}
	req.Mode = stint.CheckOnly
	d, err := ask(context.Background(), c.Limiter, req)
	deadline, ends := ctx.Deadline()
	if err == nil && !d.Allowed && d.Limit != stint.Blocked && !(ends && time.Until(deadline) < d.RetryAfter) {
		c.OnWait(ctx, req.Key, d.RetryAfter)
	}
}

// Refund returns the tokens of a request that no server can have seen, except
// those that time has brought back. Of Refund and Settle the first call counts. The
// others return ErrSettled.
func (t *Turn) Refund() error {
	if t.settled.Swap(true) {
		return ErrSettled
	}
	_, err := t.client.Limiter.Refund(t.took)
	return err
}

// Settle replaces the cost of a request, which was an upper bound, by the true
// one, as far as the bucket has the tokens. short is how many were missing. Only
// the first call counts, as with Refund. A negative cost is stint.ErrNegativeCost,
// and may be corrected.
func (t *Turn) Settle(cost int64) (short int64, err error) {
	if cost >= 0 && t.settled.Swap(true) {
		return 0, ErrSettled
	}
	short, _, err = replaceBound(t.client.Limiter, t.took, cost)
	return short, err
}

// An Answer is what a server says about its limits.
type Answer struct {
	Wait    time.Duration // how long it asks to stay away; 0 means that it gives no time
	Refused bool          // it refused the request because of a limit
	OK      bool          // it did what was asked
}

const (
	firstBackoff = time.Second // the shortest hold after a refusal that gives no time
	lastBackoff  = time.Hour   // the longest one
	maxRefusals  = 1 << 16     // how many buckets a Client remembers to have refused
)

// refusal is a bucket's last refusal that gave no time.
type refusal struct {
	wait  time.Duration
	until time.Time
	total time.Duration // all waits since the last success
}

// Obey holds the bucket for as long as an answer asks. If the answer is a refusal
// that gives no time, that is a second, and each next one doubles the time, up to
// an hour or MaxHold. An OK ends the doubling, and spends the tokens that came
// back during the waits, so that the requests go on at the pace of the limit.
func (t *Turn) Obey(a Answer) error {
	c := t.client
	if a.OK {
		if err := c.endBackOff(t); err != nil {
			return err
		}
	}
	now, most := c.Limiter.Now(), cmp.Or(c.MaxHold, 24*time.Hour)
	if a.Refused && a.Wait == 0 {
		a.Wait = c.backOff(t.took.Key, t.sent, now, min(most, lastBackoff))
	}
	if a.Wait <= 0 {
		return nil
	}
	_, err := c.Limiter.Hold(t.took.Key, now.Add(min(a.Wait, most)))
	return err
}

// backOff returns how long to stay away after a refusal that gives no time.
// Each such refusal doubles the time, up to most. If the request was sent
// before the last such hold ended, backOff returns the rest of that hold.
func (c *Client) backOff(key stint.Key, sent, now time.Time, most time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.refusals[key]
	if sent.Before(last.until) {
		return last.until.Sub(now)
	}
	if c.refusals == nil {
		c.refusals = make(map[stint.Key]refusal)
	}
	for old := range c.refusals { // its hold stays; its next one is a second again
		if len(c.refusals) < maxRefusals {
			break
		}
		delete(c.refusals, old)
	}
	wait := min(max(2*last.wait, firstBackoff), most)
	c.refusals[key] = refusal{wait, now.Add(wait), last.total + wait}
	return wait
}

// endBackOff ends the doubling after a success, unless the request was sent
// before the hold ended. It spends the tokens that came back during the hold,
// because the server would refuse a burst.
func (c *Client) endBackOff(t *Turn) error {
	c.mu.Lock()
	last, ok := c.refusals[t.took.Key]
	if ok = ok && !t.sent.Before(last.until); ok {
		delete(c.refusals, t.took.Key)
	}
	c.mu.Unlock()
	if !ok {
		return nil
	}
	d, err := ask(context.Background(), c.Limiter, stint.Request{Key: t.took.Key, Mode: stint.CheckOnly})
	if err != nil || d.Limit.Count == 0 || d.Limit.FollowsCalendar() { // then no token came back with time
		return err
	}
	back := int64(last.total / d.Limit.Interval())
	_, err = ask(context.Background(), c.Limiter, stint.Request{Key: t.took.Key, Cost: back, Mode: stint.UpTo})
	return err
}
