package stint

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Hold denies every request for the key before until, whatever its bucket holds. A time behind 2162-04-10 23:47 UTC, where
// the arithmetic ends, is taken for that one. It replaces the hold that there is, and one that is not after now ends it; so
// does Reset. Those who wait in line go no sooner than they were to, and later where it is until then that nobody passes. It is
// durable when Hold returns nil, and not in force after an error, unless that is an ErrNotDurable which says that the commit
// may yet come.
func (l *Limiter) Hold(key Key, until time.Time) error {
	if err := l.hold(key, until); err != nil {
		return l.failed(key, err)
	}
	return nil
}

func (l *Limiter) hold(key Key, until time.Time) error {
	key.ID = strings.Clone(key.ID) // it may be held yet when the caller has gone
	ps := [1]place{{key: key}}
	p := &ps[0]
	if err := p.locate(l.table); err != nil {
		return err
	}
	if err := l.lockFound(p); err != nil { // the key is valid, and its bucket, if it has one, is in memory
		return err
	}
	p.next = p.tat
	end := unixNano(until)
	if end <= l.clock.now() {
		end = 0
	}
	moved := [1]place{{key: key, op: opRefund, shard: p.shard, hash: p.hash}} // of which nothing is given back if its commit fails
	p.shard.asideLocked(key, p.hash).late++
	l.committer.mu.Lock()
	p.batch = l.committer.waitLocked(l.opts.CommitTimeout)
	p.batch.hold(holdKey(key), end, func(err error) { l.heldOrNot(moved[:], end, err) })
	l.committer.mu.Unlock()
	p.shard.mu.Unlock()
	if err := l.await(ps[:]); err != nil {
		return fmt.Errorf("stint: hold %v: %w", key, err)
	}
	if moved[0].batch != nil {
		p.batch = moved[0].batch // heldOrNot has seen to it that this is settled
		l.await(ps[:])           // what the store does not take now, a flush will bring
	}
	return nil
}

// heldOrNot puts a hold in force that is saved, and moves the TAT of its bucket, which is that of ps[0], behind the line that it moves.
func (l *Limiter) heldOrNot(ps []place, end int64, err error) {
	p := &ps[0]
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	a := p.shard.asideLocked(p.key, p.hash)
	a.late--
	if a.lost = err != nil; a.lost {
		return
	}
	a.hold = end
	now := l.clock.now()
	if later := a.delay(now); later > 0 && p.shard.limits != nil && p.findLocked() && p.resident {
		p.next = p.tat + min(later, math.MaxInt64-p.tat)
		p.shard.writeLocked(p.index, p.next)
		l.submitLocked(ps, now)
		if p.batch != nil { // and hold may not wait for it any more
			l.committer.leave(p.batch, func() { l.settleAll(ps, false) })
		}
	}
	p.shard.tidyAsideLocked(p.key, a, now)
}
