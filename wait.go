package stint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Reservation is a place in the line at a bucket: its tokens are spent, and may be used once Delay is over.
type Reservation struct {
	l    *Limiter
	key  Key
	turn *turn
	done *atomic.Bool
}

// Reserve takes cost tokens from the key's bucket whether they are there yet or not, and returns the place in line. Those who
// come later queue behind it, and Spend is denied while a line stands. The error is ErrQueueFull, and nothing taken,
// where more than the limit's Queue would wait. After an error there is no place in line, and nothing taken, but as Spend says where
// a commit did not come in time.
func (l *Limiter) Reserve(key Key, cost int64) (Reservation, error) {
	r, err := l.reserve(key, cost, math.MaxInt64)
	if err != nil {
		return Reservation{}, l.failed(key, err)
	}
	return r, nil
}

// errTooLate: the turn would come later than the caller can wait.
var errTooLate = errors.New("its turn would come too late")

// reserve takes a place in line whose turn comes within the time that the caller has.
func (l *Limiter) reserve(key Key, cost int64, within int64) (Reservation, error) {
	ps := [1]place{{key: key, cost: cost, op: opSpend}}
	p := &ps[0]
	if err := p.locate(l.table); err != nil {
		return Reservation{}, err
	}
	if err := l.lockFound(p); err != nil {
		return Reservation{}, err
	}
	now := l.clock.now()
	r := Reservation{l: l, key: key, done: new(atomic.Bool)}
	at, waits, err := p.reserveLocked(now)
	if err == nil && at-now > within {
		err = fmt.Errorf("%w: in %v", errTooLate, time.Duration(at-now))
	}
	if err == nil {
		p.countLocked(true)
		r.turn = &turn{at: at, cost: cost, next: p.next, took: max(0, p.next-max(p.tat, now)), reset: *p.shard.resetsOf(p.hash)}
		if waits { // before the bucket is written, that a slot made for it is known to have a line
			a := p.shard.asideLocked(key, p.hash)
			a.join(r.turn, &p.shard.limits.rules[p.rule].rate, now)
		}
		p.writeLocked(now)
		l.submitLocked(ps[:], now)
		r.turn.batch = p.batch
	}
	p.shard.mu.Unlock()
	if err != nil {
		return Reservation{}, err
	}
	if p.batch != nil {
		if err := l.await(ps[:]); err != nil {
			p.shard.mu.Lock()
			r.leaveLocked(p.shard, l.clock.now())
			p.shard.mu.Unlock()
			return Reservation{}, err
		}
	}
	return r, nil
}

// reserveLocked decides on a reservation at the instant now: when its turn comes, and whether it stands in line until then.
func (p *place) reserveLocked(now int64) (at int64, waits bool, err error) {
	var d Decision
	if err := p.decideLocked(now, &d); err != nil {
		return 0, false, err
	}
	if p.rule == 0 {
		return now + int64(d.RetryAfter), false, nil
	}
	r := &p.shard.limits.rules[p.rule]
	start, last := now, now
	if a := p.shard.aside[p.key]; a != nil {
		start, last = max(now, a.hold), a.notBefore()
	}
	next, delay, ok := r.rate.reserve(p.tat, start, p.cost)
	waiting := int64(0) // tokens, with these
	if delay > 0 {
		waiting = (delay-1)/r.rate.interval + 1
	}
	if start > now { // all wait until the hold is over, be they there or not
		waiting = max(waiting, p.shard.aside[p.key].waiting(now)+p.cost)
	}
	if queue := r.limit.Queue; !ok || queue > 0 && waiting > queue {
		return 0, false, fmt.Errorf("%w: %v, the next turn is in %v", ErrQueueFull, p.key, time.Duration(start-now+delay))
	}
	at = max(start+delay, last)
	// Behind one whose commit failed, and who is about to leave, it goes later than the TAT says: what comes back until then is lost.
	p.next = max(next, r.rate.afterTurns(0, []*turn{{at: at, cost: p.cost}}))
	return at, at > now, nil
}

// Delay returns how long it is until the reserved tokens may be used; 0 once they may. It grows where the bucket is held
// meanwhile.
func (r Reservation) Delay() time.Duration {
	if r.l == nil {
		return 0
	}
	s, _ := r.l.table.shard(r.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := r.turn.at
	if a := s.aside[r.key]; a != nil {
		at = max(at, a.hold)
	}
	return max(0, time.Duration(at-r.l.clock.now()))
}

// leaveLocked takes the reservation out of the line.
func (r Reservation) leaveLocked(s *shard, now int64) {
	if a := s.aside[r.key]; a != nil {
		a.leave(r.turn)
		s.tidyAsideLocked(r.key, a, now)
	}
}

// Cancel leaves the line, and gives the tokens back, but for those that the bucket has regained since. Those behind keep the
// times they were given, and what they leave unused by that is lost: of one whose turn has come no more is given back than those
// behind do not count on. A second Cancel does nothing.
func (r Reservation) Cancel() {
	if r.l == nil || r.done.Swap(true) {
		return
	}
	ps := [1]place{{key: r.key, cost: r.turn.cost, op: opRefund}}
	p := &ps[0]
	if p.locate(r.l.table) != nil || r.l.lockFound(p) != nil {
		return // the limiter is closed, or the store does not answer
	}
	now := r.l.clock.now()
	a := p.shard.aside[r.key]
	inLine := a != nil && slices.Contains(a.line, r.turn)
	if a != nil { // the line ends, if it does, once the tokens are back: its end may take some off the TAT
		a.leave(r.turn)
	}
	p.next = p.tat
	if p.rule != 0 && (inLine || r.turn.reset == *p.shard.resetsOf(p.hash)) { // a Reset, which ends the line, has given it back
		least := now
		if a != nil {
			least = max(now, a.needs(&p.shard.limits.rules[p.rule].rate))
		}
		p.next = giveBack(p.tat, r.turn.took, r.turn.next, now, least)
	}
	p.writeLocked(now)
	r.l.submitLocked(ps[:], now)
	r.leaveLocked(p.shard, now)
	p.shard.mu.Unlock()
	if p.batch != nil {
		r.l.await(ps[:]) // what the store does not take now, a flush will bring
	}
}

// Wait takes cost tokens from the key's bucket, waiting in line until they are there: first come, first served. It
// fails at once, and takes nothing, where ctx would end before its turn, with an error that wraps
// context.DeadlineExceeded, or where the line is full, with ErrQueueFull. Where ctx ends while it waits, its tokens are
// given back and the error is that of ctx. A commit, of a Leased or Synced limit, is waited for whether ctx has ended or
// not, and so is the one that gives them back: each for as long as Options.CommitTimeout. Other errors are as for Reserve.
func (l *Limiter) Wait(ctx context.Context, key Key, cost int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	within := int64(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		within = int64(time.Until(deadline))
	}
	r, err := l.reserve(key, cost, within)
	if errors.Is(err, errTooLate) {
		return l.failed(key, fmt.Errorf("stint: wait for %v: %w: %w", key, err, context.DeadlineExceeded))
	}
	if err != nil {
		return l.failed(key, err)
	}
	if err := ctx.Err(); err != nil { // while it waited for a commit
		r.Cancel()
		return err
	}
	for {
		stepped := l.clock.step()
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
