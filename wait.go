package stint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Hold denies every request for the key before the time until, however many
// tokens its bucket has. The arithmetic ends at 2162-04-10 23:47 UTC, and a
// later time counts as that one. A new hold replaces the present one. If it
// ends now or earlier, the bucket has no hold after that. Reset ends a hold,
// too. Queued requests never move forward. A turn inside the hold moves to the
// end of the hold.
//
// The hold is durable when Hold returns nil. After an error the earlier hold,
// or none, is in force again, unless the error is ErrNotDurable and the commit
// may still succeed.
func (l *Limiter) Hold(key Key, until time.Time) error {
	key.ID = strings.Clone(key.ID) // the hold may outlive the caller's string
	r := request{change: change{key: key}}
	if err := r.locate(l.directory); err != nil {
		return l.failed(key, err)
	}
	if err := l.lockFound(&r); err != nil {
		return l.failed(key, err)
	}
	now, end := l.clock.Now(), l.clock.Instant(until)
	if end <= now {
		end = 0
	}
	g := r.shard.gateLocked(key, r.hash)
	if r.resident {
		b := r.shard.At(r.index)
		r.shard.advanceLocked(b, g, now)
		r.from, r.to = b.TAT(), b.TAT()
	}
	in := l.holdLocked(&r, g, end, now)
	r.shard.mu.Unlock()
	if err := l.committer.await(in); err != nil {
		return l.failed(key, fmt.Errorf("stint: hold %v: %w", key, err))
	}
	return nil
}

// holdLocked puts a hold in force, and into a commit. The same commit saves the
// bucket if the hold moves its queue, or if r is a reset.
func (l *Limiter) holdLocked(r *request, g *gate, end, now int64) *batch {
	s := r.shard
	hold := change{key: r.key, shard: s, hash: r.hash, from: g.hold, to: end, isHold: true}
	g.hold = end
	moved := g.queue.Delay(end)
	in := l.committer.Lock(true)
	defer l.committer.Unlock()
	l.committer.putHoldLocked(in, &hold, g)
	if i, ok := s.findLocked(r.key, r.hash); ok && (moved || r.op == opReset) {
		s.MarkDirty(i)
		tat, when := l.committer.needLocked(&r.change, s.At(i), now)
		if when != gcra.NeedNone || r.op == opReset {
			l.committer.putLocked(in, &r.change, s.At(i), tat)
		}
	}
	return in
}

// Held is a bucket that denies requests, however many tokens it has: it has a
// hold, or requests wait in its queue.
type Held struct {
	Key     Key
	Until   time.Time // end of the hold; zero if there is none
	Waiting int       // requests in the queue
}

// Held yields the buckets that are held or have a queue, in no particular
// order. It reads neither other buckets nor the store. After Close it
// yields nothing.
func (l *Limiter) Held() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		var found []Held
		for next := 0; next >= 0; {
			found = found[:0]
			next = l.directory.eachFrom(next, func(s *shard) bool {
				found = s.appendHeldLocked(found, l.clock.Now())
				return false
			})
			for _, h := range found {
				if !yield(h) {
					return
				}
			}
		}
	}
}

func (s *shard) appendHeldLocked(to []Held, now int64) []Held {
	if s.limits == nil {
		return to
	}
	for key, g := range s.gates {
		h := Held{Key: key, Waiting: g.queue.Waiting(now)}
		if g.hold > now {
			h.Until = time.Unix(0, g.hold)
		}
		if h.Waiting > 0 || !h.Until.IsZero() {
			to = append(to, h)
		}
	}
	return to
}

// Reservation is a place in a queue: the request may go once Delay is 0.
type Reservation struct {
	l    *Limiter
	key  Key
	turn *queue.Turn
	done *atomic.Bool

	given *rule // of the Request; nil: the configured one
}

// Reserve takes cost tokens from the key's bucket even if they are not there
// yet, and returns a place in its queue. Later requests queue behind it, and
// Spend is denied while requests wait. If more tokens than the limit's Queue
// would wait, the error is ErrQueueFull; if the limit is Blocked, ErrBlocked.
// If the limit is a share of a total, the error is ErrShare. After an error
// there is no place in the queue. After ErrNotDurable the tokens may stay
// spent; after other errors they do not.
func (l *Limiter) Reserve(key Key, cost int64) (Reservation, error) {
	return l.ReserveRequest(Request{Key: key, Cost: cost})
}

// ReserveRequest is Reserve for a Request, which may have a Limit of its own.
// Its Mode is ignored.
func (l *Limiter) ReserveRequest(req Request) (Reservation, error) {
	r, err := l.reserve(&req, math.MaxInt64)
	return r, l.failed(req.Key, err)
}

var errTooLate = errors.New("its turn would come too late")

// reserve takes a place in the queue, if its turn comes within that time.
func (l *Limiter) reserve(req *Request, within int64) (Reservation, error) {
	if l.limits.Load().member(req.Key.Name).role != plainRole {
		return Reservation{}, fmt.Errorf("%w: %v has no queue", ErrShare, req.Key)
	}
	rs := [1]request{{change: change{key: req.Key}, cost: req.Cost, op: opSpend}}
	r := &rs[0]
	if err := l.give(r, req); err != nil {
		return Reservation{}, err
	}
	if err := r.locate(l.directory); err != nil {
		return Reservation{}, err
	}
	if err := l.lockFound(r); err != nil {
		return Reservation{}, err
	}
	now := l.clock.Now()
	at, err := r.reserveLocked(now)
	if err == nil && at-now > within {
		err = fmt.Errorf("%w: in %v", errTooLate, time.Duration(at-now))
	}
	if err != nil {
		r.shard.mu.Unlock()
		return Reservation{}, err
	}
	turn := &queue.Turn{At: at, Cost: req.Cost}
	if r.given != nil {
		turn.Rate = queueRate(&r.given.rate)
	}
	r.countLocked(true)
	if at > now { // the bucket is charged when the turn comes
		r.joinLocked(turn, now)
	} else {
		r.writeLocked(now)
	}
	in := l.submitLocked(rs[:], now)
	r.shard.mu.Unlock()
	if in != nil {
		if err := l.committer.await(in); err != nil {
			return Reservation{}, err
		}
	}
	return Reservation{l: l, key: req.Key, turn: turn, done: new(atomic.Bool), given: r.given}, nil
}

// reserveLocked decides on a reservation at the instant now, and returns when
// its turn comes.
func (r *request) reserveLocked(now int64) (at int64, err error) {
	var d Decision
	if err := r.decideLocked(now, &d); err != nil {
		return 0, err
	}
	r.to = r.from
	rule := r.ruleLocked()
	switch {
	case rule.limit == Blocked:
		return 0, fmt.Errorf("%w: %v", ErrBlocked, r.key)
	case !rule.limited():
		return now + int64(d.RetryAfter), nil
	}
	g := r.shard.gates[r.key]
	start := now
	if g != nil {
		start = max(now, g.hold)
	}
	next, delay, ok := rule.rate.Reserve(g.tail(r.tat), start, r.cost)
	waiting := int64(0) // tokens in the queue, with those of r
	if delay > 0 {
		waiting = (delay-1)/rule.rate.Interval + 1
	}
	if start > now { // the whole queue waits for the end of the hold
		waiting = max(waiting, g.queue.Tokens()+r.cost)
	}
	if most := rule.limit.Queue; !ok || most > 0 && waiting > most {
		return 0, fmt.Errorf("%w: %v, the next turn is in %v", ErrQueueFull, r.key, time.Duration(start-now+delay))
	}
	if at = max(start+delay, g.notBefore()); at <= now {
		r.to = next
	}
	return at, nil
}

// joinLocked puts a turn at the end of the bucket's queue.
func (r *request) joinLocked(turn *queue.Turn, now int64) {
	if !r.ruleLocked().limited() {
		return
	}
	s := r.shard
	g := s.gateLocked(r.key, r.hash)
	if r.given == nil {
		g.rate = queueRate(&s.limits.rules[r.rule].rate)
	}
	g.queue.Join(turn)
	r.turn = turn
	r.writeLocked(now)
	s.MarkDirty(r.index)
}

// Delay returns the time until the request may go, or 0. It grows if the
// bucket is held.
func (r Reservation) Delay() time.Duration {
	if r.l == nil {
		return 0
	}
	s, _ := r.l.directory.shard(r.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := r.turn.At
	if g := s.gates[r.key]; g != nil {
		at = max(at, g.hold)
	}
	return max(0, time.Duration(at-r.l.clock.Now()))
}

// Cancel leaves the queue if the turn has not come, and returns the tokens.
// Requests behind it keep their times. If the turn has come, the tokens stay
// spent; Refund returns them. A second Cancel does nothing.
//
// At Leased and Synced, Cancel waits for a commit. If the commit fails, the
// tokens are back in memory, and the next flush that succeeds saves them.
func (r Reservation) Cancel() {
	if r.l == nil || r.done.Swap(true) {
		return
	}
	s, h := r.l.directory.shard(r.key)
	s.mu.Lock()
	g := s.gates[r.key]
	i, resident := s.findLocked(r.key, h)
	if g == nil || !resident {
		s.mu.Unlock()
		return
	}
	now := r.l.clock.Now()
	b := s.At(i)
	s.advanceLocked(b, g, now)
	var in *batch
	if g.queue.Leave(r.turn) {
		s.MarkDirty(i)
		in = r.l.submitCancelLocked(s, h, b, now, r.given)
	}
	s.tidyGateLocked(r.key, g, now)
	s.mu.Unlock()
	if in != nil {
		r.l.committer.await(in) // if the commit fails, a flush saves it
	}
}

// submitCancelLocked puts a bucket that a turn has left into a commit, if its
// limit asks for that.
func (l *Limiter) submitCancelLocked(s *shard, h uint64, b table.Slot, now int64, given *rule) *batch {
	if s.limits == nil || b.Rule() == 0 && given == nil {
		return nil
	}
	if p := s.pendingLocked(b); p != nil {
		p.lowered = true
	}
	b.Clear(table.Covered) // the store has a lease that the queue needed
	ch := change{key: slotKey(b), shard: s, hash: h, from: b.TAT(), to: b.TAT(), given: given}
	tat, when := l.committer.needLocked(&ch, b, now)
	if when != gcra.NeedFirst {
		return nil
	}
	in := l.committer.Lock(true)
	defer l.committer.Unlock()
	l.committer.putLocked(in, &ch, b, tat)
	return in
}

// SpendContext is Spend, but waits for a commit only until ctx ends. ctx has no
// part in the decision, which is made even if ctx has ended: a client that
// disconnects early spends all the same. If ctx ends before the commit, the
// error wraps ErrNotDurable and the error of ctx. The tokens then stay spent if
// the commit succeeds, and are returned if it fails. Loading a bucket does not
// end with ctx.
func (l *Limiter) SpendContext(ctx context.Context, key Key, cost int64) (d Decision, err error) {
	if _, done := l.fastPath(key, cost, opSpend, &d); !done {
		d, err = l.all(ctx, []Request{{Key: key, Cost: cost}}, nil, opSpend)
	}
	return d, err
}

// SpendTogetherContext is SpendTogether, but waits for a commit only until ctx
// ends, as SpendContext does.
func (l *Limiter) SpendTogetherContext(ctx context.Context, reqs []Request, ds []Decision) (Decision, error) {
	if len(ds) < len(reqs) {
		return Decision{}, fmt.Errorf("stint: SpendTogether: %d requests, and space for %d decisions", len(reqs), len(ds))
	}
	d, err := l.all(ctx, reqs, ds, opSpend)
	if err != nil {
		clear(ds[:len(reqs)])
	}
	return d, err
}

// Wait takes cost tokens from the key's bucket, and waits in its queue until
// they are there: first come, first served. If ctx would end before the turn,
// or if the queue is full, Wait fails at once and takes nothing. The error then
// wraps context.DeadlineExceeded, or is ErrQueueFull. If ctx ends while the
// request waits, its tokens are returned and the error is that of ctx. Wait
// also waits for a commit, up to Options.CommitTimeout, even if ctx ends. Other
// errors are those of Reserve.
func (l *Limiter) Wait(ctx context.Context, key Key, cost int64) error {
	return l.WaitRequest(ctx, Request{Key: key, Cost: cost})
}

// WaitRequest is Wait for a Request, which may have a Limit of its own. Its
// Mode is ignored.
func (l *Limiter) WaitRequest(ctx context.Context, req Request) error {
	key := req.Key
	if err := ctx.Err(); err != nil {
		return err
	}
	within := int64(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		within = int64(time.Until(deadline))
	}
	r, err := l.reserve(&req, within)
	if errors.Is(err, errTooLate) {
		return l.failed(key, fmt.Errorf("stint: wait for %v: %w: %w", key, err, context.DeadlineExceeded))
	}
	if err != nil {
		return l.failed(key, err)
	}
	if err := ctx.Err(); err != nil { // it ended during the commit
		r.Cancel()
		return err
	}
	for {
		stepped := l.clock.NextStep()
		delay := r.Delay()
		if delay == 0 {
			return nil
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-stepped:
		case <-l.closed:
			timer.Stop()
			return ErrClosed
		case <-ctx.Done():
			timer.Stop()
			r.Cancel()
			return ctx.Err()
		}
		timer.Stop()
	}
}
