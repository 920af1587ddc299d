package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Spend takes tokens of the bucket's lease, or waits until the server grants
// some, for at most Config.Timeout. If done is false, no token of the lease was
// used, and the caller must make a trip. So it is for a bucket that is seldom
// asked for, and if as many callers wait as a lease has tokens. waited is when the
// caller began to wait, or zero if it did not.
func (t *Table) Spend(r *script.Request) (done bool, waited time.Time, err error) {
	if r.Cost == 0 {
		return false, waited, nil
	}
	elapsed := t.Elapsed()
	s := t.lock(r.Bucket)
	defer s.mu.Unlock()
	b := s.of(t, r, elapsed)
	if b == nil {
		return false, waited, nil
	}
	demanded := b.demanded(elapsed)
	if b.take(elapsed, r.Cost) {
		r.Answer = b.outcome(elapsed)
		t.renew(s, b, elapsed)
		return true, waited, nil
	}
	left := b.left(elapsed)
	if o, denied := t.denies(s, b.key, b.tolerance-(r.Cost-left)*b.interval, elapsed); denied {
		r.Answer = o
		r.TAT = max(0, o.TAT-left*b.interval)
		return true, waited, nil
	}
	seldom := !demanded && !b.busy && left == 0
	crowded := int64(len(b.waiting)) >= b.most // a lease cannot serve so many
	if seldom || crowded || t.Away(r.Bucket) {
		return false, waited, nil
	}
	w := &waiter{cost: r.Cost, done: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	if !b.busy && !t.startAsking(s, b) {
		b.waiting = nil
		return true, waited, stint.ErrClosed
	}
	s.mu.Unlock()
	waited = time.Now()
	select {
	case <-w.done:
	case <-time.After(t.Timeout):
	}
	s.mu.Lock()
	select {
	case <-w.done: // perhaps since then
		r.Answer = w.Answer
		return true, waited, w.err
	default:
	}
	if b.leave(w) {
		return true, waited, fmt.Errorf("%w: %w", script.ErrNoAnswer, context.DeadlineExceeded)
	}
	return true, waited, fmt.Errorf("%w: others wait for the lease of %s", script.ErrBusy, t.Label(r.Bucket))
}

// SpendAll takes from the leases if each bucket has one with enough tokens.
// Otherwise it takes nothing, and records the demand.
func (t *Table) SpendAll(rs []*script.Request) bool {
	elapsed := t.Elapsed()
	var at []int
	for _, r := range rs {
		at = append(at, t.shardOf(r.Bucket))
	}
	order := slices.Compact(slices.Sorted(slices.Values(at)))
	for _, i := range order {
		t.shards[i].mu.Lock()
	}
	defer func() {
		for _, i := range order {
			t.shards[i].mu.Unlock()
		}
	}()
	all := true
	bs := make([]*bucket, len(rs))
	for i, r := range rs {
		s := &t.shards[at[i]]
		is := s.buckets[r.Bucket] != nil
		if bs[i] = s.of(t, r, elapsed); bs[i] == nil {
			return false
		}
		if bs[i].left(elapsed) < r.Cost {
			all = false
			if bs[i].used += r.Cost; is {
				t.renew(s, bs[i], elapsed)
			} else {
				bs[i].asked = elapsed
			}
		}
	}
	if !all {
		return false
	}
	for i, r := range rs {
		b := bs[i]
		if r.Mode != stint.CheckOnly {
			b.take(elapsed, r.Cost)
			t.renew(&t.shards[at[i]], b, elapsed)
		}
		r.Answer = b.outcome(elapsed)
		if r.Mode == stint.CheckOnly {
			r.TAT += r.Cost * b.interval // as if they were spent
		}
	}
	return true
}

// renew asks for a grant in the background if the lease is low.
func (t *Table) renew(s *shard, b *bucket, elapsed int64) {
	if !b.busy && b.low(elapsed) && !t.Away(b.key) {
		t.startAsking(s, b)
	}
}

// startAsking starts the goroutine that asks for a bucket. It returns false if no
// goroutine may start any more.
func (t *Table) startAsking(s *shard, b *bucket) bool {
	b.busy = t.Begin(func() { t.askFor(s, b) })
	return b.busy
}

// askFor asks until no caller waits. Each answer decides on one caller at least.
func (t *Table) askFor(s *shard, b *bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for again := true; again; again = len(b.waiting) > 0 {
		q := b.ask(t.Elapsed())
		r := b.request(&q)
		s.mu.Unlock()
		err := t.Lease([]*script.LeaseRequest{r})
		s.mu.Lock()
		for _, w := range t.answered(s, b, r, &q, err) {
			close(w.done)
		}
	}
	b.busy = false
}

func (b *bucket) request(q *question) *script.LeaseRequest {
	return &script.LeaseRequest{Bucket: b.key, Limit: b.limit, Since: b.since, Args: q.args(b.interval, b.tolerance)}
}

// answered applies the answer to the lease, and returns the callers that are
// decided.
func (t *Table) answered(s *shard, b *bucket, r *script.LeaseRequest, q *question, err error) (decided []*waiter) {
	elapsed := t.Elapsed()
	if err == nil {
		denied := r.Wait > 0
		decided = b.receive(q, &r.LeaseAnswer, elapsed)
		for _, w := range decided {
			denied = denied || !w.served
		}
		if denied || q.back != [2]grant{} {
			t.saw(s, b.key, r.Since, r.Answer, q.sent, denied)
		}
		return decided
	}
	if errors.Is(err, script.ErrAway) || errors.Is(err, script.ErrNothingRan) {
		b.restore(q)
	}
	decided, b.waiting, b.asking = b.waiting, nil, 0
	for _, w := range decided {
		if w.gone {
			continue
		}
		if w.served = b.take(elapsed, w.cost); w.served {
			w.Answer = b.outcome(elapsed)
		} else {
			w.err = err
		}
	}
	return decided
}

// endGrants ends grants, as lease.end does. It returns the request that gives their
// tokens back, or nil if time has brought all of them back.
func (b *bucket) endGrants(elapsed int64, all bool) *script.LeaseRequest {
	q := question{back: b.end(elapsed, all)}
	if !b.useful(&q.back[0], elapsed) && !b.useful(&q.back[1], elapsed) {
		return nil
	}
	return b.request(&q)
}

// Drop forgets the lease of a bucket that a Reset makes full, or that a Hold
// denies. If back is true, its tokens go back in the background.
func (t *Table) Drop(key stint.Key, back bool) {
	s := t.lock(key)
	b := s.buckets[key]
	if b == nil {
		s.mu.Unlock()
		return
	}
	r := b.endGrants(t.Elapsed(), true)
	delete(s.buckets, b.key)
	s.mu.Unlock()
	if back && r != nil {
		t.Begin(func() { t.giveBack([]*script.LeaseRequest{r}) })
	}
}

// SetLimits puts other limits in force, and forgets all sightings, and the leases of limits
// that have changed. Their tokens do not go back, because they may be worth more under
// the new limit.
func (t *Table) SetLimits(since *script.Since, limitOf func(stint.Key) (stint.Limit, error)) {
	t.since.Store(since)
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		clear(s.seen)
		for key, b := range s.buckets {
			if limit, err := limitOf(key); err != nil || limit != b.limit {
				delete(s.buckets, b.key)
			}
		}
		s.mu.Unlock()
	}
}

// GiveBack returns the unused tokens of leases that have ended to the server, after
// it has ended all leases if all is true, and forgets idle buckets. If tokens cannot be
// returned, they stay spent.
func (t *Table) GiveBack(all bool) {
	var rs []*script.LeaseRequest
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		elapsed := t.Elapsed()
		for _, b := range s.buckets {
			if b.busy {
				continue
			}
			if r := b.endGrants(elapsed, all); r != nil {
				rs = append(rs, r)
			}
			if b.left(elapsed) == 0 && elapsed-b.asked > b.life {
				delete(s.buckets, b.key)
			}
		}
		s.mu.Unlock()
	}
	t.giveBack(rs)
}

func (t *Table) giveBack(rs []*script.LeaseRequest) {
	if len(rs) == 0 {
		return
	}
	t.Lease(rs)
	for _, r := range rs {
		t.Forget(r.Bucket)
	}
}
