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

// need is whether a change has to be in a commit.
type need uint8

const (
	needNone  need = iota
	needLater      // half a lease: nobody waits for it
	needNow
)

// submitLocked puts the buckets that ps changed into one commit, all of them, if one of them has to wait for it. Otherwise
// their leases are renewed, if it is time.
func (l *Limiter) submitLocked(ps []place, now int64) {
	most := needNone
	for i := range ps {
		_, need := l.toCommitLocked(&ps[i], now)
		most = max(most, need)
	}
	switch most {
	case needNow:
		l.submitAllLocked(ps, now)
	case needLater:
		l.renewAllLocked(ps, now)
	}
}

// toCommitLocked returns the TAT that the store would be given for p's bucket, and whether p has to wait for that: not
// where nothing changed, where its limit does not ask for it, or where a lease covers it.
func (l *Limiter) toCommitLocked(p *place, now int64) (tat int64, needs need) {
	if p.next == p.tat {
		return 0, needNone
	}
	level := l.level(p.shard.limits, p.rule)
	switch {
	case p.next <= now && level >= Leased:
		return 0, needNow
	case p.next <= now:
		return 0, needNone
	case level == Synced:
		return p.next, needNow
	case level != Leased:
		return p.next, needNone
	}
	r := &p.shard.limits.rules[p.rule].rate
	end, tat := r.lease(p.next)
	b, ok := p.slotLocked()
	switch step := tat - end; {
	case !ok || !b.has(flagCovered):
		return tat, needNow
	case r.inOneHalf(p.tat, p.next):
		if b.has(flagAhead | flagPending) {
			return tat, needNone
		}
	case p.tat <= end-2*step || p.tat > end || !b.has(flagAhead):
		return tat, needNow
	}
	return tat, needLater
}

func (l *Limiter) submitAllLocked(ps []place, now int64) {
	c := l.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	commit := c.waitLocked(l.opts.CommitTimeout)
	for i := range ps {
		p := &ps[i]
		p.batch = commit
		if p.next == p.tat {
			continue
		}
		tat, needs := l.toCommitLocked(p, now)
		if needs != needNone && tat != p.next && tat != 0 {
			c.leases++
		}
		p.took = p.next - max(p.tat, now)
		b, ok := p.slotLocked()
		if ok {
			b.clear(flagCovered)
		}
		c.putLocked(p.shard, b, p.key, tat)
	}
}

// renewAllLocked renews the leases of those of ps that need it. What the buckets spend meanwhile is covered by the half that
// they have left.
func (l *Limiter) renewAllLocked(ps []place, now int64) {
	c := l.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range ps {
		p := &ps[i]
		tat, needs := l.toCommitLocked(p, now)
		b, ok := p.slotLocked()
		if needs != needLater || !ok {
			continue
		}
		key := b.key() // the caller's may be gone by then
		b.clear(flagAhead)
		commit := c.nextLocked(l.opts.CommitTimeout)
		commit.renewed = append(commit.renewed, renewal{p.shard, p.hash, key})
		c.putLocked(p.shard, b, key, tat)
		c.leases++
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
	if l.level(s.limits, b.rule()) == Leased {
		s.coverLocked(b, committed)
	}
}
