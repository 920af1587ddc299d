package stint

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// level returns the durability of the limit with an index in limits.
func (l *Limiter) level(limits *Limits, rule uint32) Durability {
	return cmp.Or(limits.rules[rule].limit.Durability, l.opts.Durability)
}

// submitLocked puts the buckets that ps changed into one commit, all of them, if one of them has to wait for it.
func (l *Limiter) submitLocked(ps []place, now int64) {
	for i := range ps {
		if _, due := l.toCommitLocked(&ps[i], now); due {
			l.submitAllLocked(ps, now)
			return
		}
	}
}

// toCommitLocked returns the TAT that the store would be given for p's bucket, and whether p has to wait for that: not
// where nothing changed, where its limit does not ask for it, or where a lease covers it.
func (l *Limiter) toCommitLocked(p *place, now int64) (tat int64, due bool) {
	if p.next == p.tat {
		return 0, false
	}
	level := l.level(p.shard.limits, p.rule)
	if p.next <= now {
		return 0, level >= Leased
	}
	if level != Leased {
		return p.next, level > Leased
	}
	r := &p.shard.limits.rules[p.rule].rate
	tat = r.lease(p.next)
	b, ok := p.slotLocked()
	return tat, !ok || !b.has(flagCovered) || tat != r.lease(p.tat)
}

func (l *Limiter) submitAllLocked(ps []place, now int64) {
	c := l.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	commit := c.joinLocked(l.opts.CommitTimeout)
	for i := range ps {
		p := &ps[i]
		p.batch = commit
		if p.next == p.tat {
			continue
		}
		tat, due := l.toCommitLocked(p, now)
		if due && tat != p.next && tat != 0 {
			c.leases++
		}
		p.took = p.next - max(p.tat, now)
		b, _ := p.slotLocked()
		c.putLocked(p.shard, b, p.key, tat)
	}
}

// slotLocked returns the slot of p's bucket, wherever it is by now.
func (p *place) slotLocked() (slot, bool) {
	i, ok := p.shard.findLocked(p.key, p.hash)
	if !ok {
		return nil, false
	}
	return p.shard.at(i), true
}

// await waits for the commit of ps. Where it fails, the tokens are given back; where it takes too long they are not, since
// it may yet succeed.
func (l *Limiter) await(ps []place) error {
	batch, begun := ps[0].batch, time.Now()
	<-batch.heard
	if !batch.over() { // the first of those who wait have waited for too long
		timer := time.NewTimer(l.opts.CommitTimeout - time.Since(begun))
		defer timer.Stop()
		select {
		case <-batch.done:
		case <-timer.C:
			late := slices.Clone(ps)
			go func() {
				<-batch.done
				l.settleAll(late, false)
			}()
			return fmt.Errorf("%w: no commit for %v; it may yet come, and what was asked for is done", ErrNotDurable, l.opts.CommitTimeout)
		}
	}
	l.settleAll(ps, batch.err != nil)
	if batch.err != nil {
		return fmt.Errorf("%w: %w", ErrNotDurable, batch.err)
	}
	return nil
}

func (l *Limiter) settleAll(ps []place, giveBack bool) {
	for i := range ps {
		if p := &ps[i]; p.next != p.tat {
			p.shard.mu.Lock()
			l.settleLocked(p, giveBack)
			p.shard.mu.Unlock()
		}
	}
}

// settleLocked notes how the commit of p ended. What the bucket has regained since p took from it is not given back.
func (l *Limiter) settleLocked(p *place, giveBack bool) {
	s := p.shard
	i, ok := s.findLocked(p.key, p.hash)
	if !ok {
		return
	}
	b := s.at(i)
	e := s.pendingLocked(b)
	last := e != nil && e.batch == p.batch // nothing was put into a later commit
	committed := p.next
	if last {
		committed = e.tat
		s.forgetPendingLocked(b, e)
	}
	if p.batch.err != nil {
		now := l.clock.now()
		if tat := b.tat(); giveBack && p.op == opSpend && tat > now {
			b.setTAT(max(now, tat-min(p.took, max(0, p.next-now))))
		}
		b.set(flagDirty | flagStored) // the store may have it all the same
		b.clear(flagCovered)
		s.markGroup(i)
		return
	}
	if !last || s.limits == nil || b.rule() == 0 {
		return
	}
	if committed == 0 {
		if b.tat() <= l.clock.now() {
			b.clear(flagDirty | flagStored)
		}
		return
	}
	if b.tat() == committed {
		b.clear(flagDirty)
	}
	if l.level(s.limits, b.rule()) == Leased && s.limits.rules[b.rule()].rate.lease(b.tat()) == committed {
		b.set(flagCovered)
	}
}
