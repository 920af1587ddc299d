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

// submitLocked puts the buckets that ps changed into one commit, if one of them is of a limit that waits for it. What a
// lease covers needs none.
func (l *Limiter) submitLocked(ps []place, now int64) {
	durable := false
	for i := range ps {
		p := &ps[i]
		durable = durable || p.next != p.tat && l.level(p.shard.limits, p.rule) >= Leased
	}
	if durable {
		l.submitAllLocked(ps, now)
	}
}

func (l *Limiter) submitAllLocked(ps []place, now int64) {
	changes := make([]Change, 0, len(ps))
	leases := 0
	for i := range ps {
		p := &ps[i]
		if p.next == p.tat {
			continue
		}
		p.commit = p.next
		if p.next <= now {
			p.commit = 0
		} else if r := &p.shard.limits.rules[p.rule]; l.level(p.shard.limits, p.rule) == Leased {
			p.commit = r.rate.lease(p.next)
			if b, ok := p.slotLocked(); ok && b.has(flagCovered) && p.commit == r.rate.lease(p.tat) {
				continue
			}
			leases++
		}
		p.submitted = true
		changes = append(changes, Change{p.key, p.commit})
	}
	if leases == 0 && !slices.ContainsFunc(ps, func(p place) bool {
		return p.submitted && l.level(p.shard.limits, p.rule) >= Leased
	}) {
		return // every lease covers what was spent
	}
	commit := l.committer.add(changes, leases)
	for i := range ps {
		p := &ps[i]
		p.batch = commit
		if b, ok := p.slotLocked(); ok && p.submitted {
			b.clear(flagCovered)
			b.set(flagPending)
			if p.shard.pending == nil {
				p.shard.pending = make(map[Key]*batch)
			}
			p.shard.pending[b.key()] = commit
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

// settleLocked notes how the commit of p ended.
func (l *Limiter) settleLocked(p *place, giveBack bool) {
	s := p.shard
	i, ok := s.findLocked(p.key, p.hash)
	if !ok {
		return
	}
	b := s.at(i)
	failed := p.batch.err != nil
	last := s.pending[p.key] == p.batch // nothing was put into a later commit
	if last {
		delete(s.pending, p.key)
		b.clear(flagPending)
	}
	if s.limits == nil || b.rule() == 0 {
		return
	}
	r := &s.limits.rules[b.rule()].rate
	switch now := l.clock.now(); {
	case failed:
		if giveBack && p.op == opSpend {
			b.setTAT(r.refund(b.tat(), now, p.cost))
		}
		b.set(flagDirty)
		b.clear(flagCovered)
		s.markGroup(i)
	case !last || !p.submitted:
	case p.commit == 0:
		if b.tat() <= now {
			b.clear(flagDirty | flagStored)
		}
	default:
		b.set(flagStored)
		if b.tat() == p.commit {
			b.clear(flagDirty)
		}
		if l.level(s.limits, b.rule()) == Leased && r.lease(b.tat()) == p.commit {
			b.set(flagCovered)
		}
	}
}
