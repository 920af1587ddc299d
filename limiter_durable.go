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
	changes := make([]Change, 0, len(ps))
	leases := 0
	for i := range ps {
		p := &ps[i]
		if p.next == p.tat {
			continue
		}
		tat, due := l.toCommitLocked(p, now)
		if due && tat != p.next && tat != 0 {
			leases++
		}
		changes = append(changes, Change{p.key, tat})
	}
	commit := l.committer.add(changes, leases)
	for i := range ps {
		p := &ps[i]
		p.batch = commit
		if p.next == p.tat {
			continue
		}
		p.took = p.next - max(p.tat, now)
		tat := changes[0].TAT
		changes = changes[1:]
		if b, ok := p.slotLocked(); ok {
			b.clear(flagCovered)
			b.set(flagPending | flagStored)
			if p.shard.pending == nil {
				p.shard.pending = make(map[Key]pending)
			}
			p.shard.pending[b.key()] = pending{commit, tat}
		}
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
	batch := ps[0].batch
	timer := time.NewTimer(l.opts.CommitTimeout)
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
	now := l.clock.now()
	in := s.pending[p.key]
	last := in.batch == p.batch // nothing was put into a later commit
	if last {
		s.forgetPendingLocked(b)
	}
	if p.batch.err != nil {
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
	if in.tat == 0 {
		if b.tat() <= now {
			b.clear(flagDirty | flagStored)
		}
		return
	}
	if b.tat() == in.tat {
		b.clear(flagDirty)
	}
	if l.level(s.limits, b.rule()) == Leased && s.limits.rules[b.rule()].rate.lease(b.tat()) == in.tat {
		b.set(flagCovered)
	}
}
