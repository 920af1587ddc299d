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

// submitLocked puts the buckets that ps changed into one commit, all of them, if one of them has to wait for it, or if a crash
// would forget some and not others. Otherwise their leases are renewed, if it is time.
func (l *Limiter) submitLocked(ps []place, now int64) {
	most, least, strictest := needNone, Synced, Memory
	for i := range ps {
		p := &ps[i]
		if p.next == p.tat {
			continue
		}
		level := l.level(p.shard.limits, p.rule)
		least, strictest = min(least, level), max(strictest, level)
		_, needs := l.toCommitLocked(p, now)
		most = max(most, needs)
	}
	if least < Leased && strictest >= Leased {
		most = needNow
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
	var flags uint64
	if b, ok := p.slotLocked(); ok {
		flags = b.meta()
	}
	return p.shard.limits.rules[p.rule].rate.renewal(flags, p.tat, p.next)
}

// renewal is toCommitLocked for a Leased bucket with these flags.
func (r *rate) renewal(flags uint64, from, to int64) (tat int64, needs need) {
	end, tat := r.lease(to)
	switch step := tat - end; {
	case flags&flagCovered == 0:
		return tat, needNow
	case from <= end && from > end-step: // in the same half as to
		if flags&(flagAhead|flagPending) != 0 {
			return tat, needNone
		}
	case from <= end-2*step || from > end || flags&flagAhead == 0:
		return tat, needNow
	}
	return tat, needLater
}

func (l *Limiter) submitAllLocked(ps []place, now int64) {
	c := l.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	commit := c.waitLocked(l.opts.CommitTimeout)
	c.unsettled.Add(1)
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
		p.took, p.reset = p.next-max(p.tat, now), *p.shard.resetsOf(p.hash)
		b, ok := p.slotLocked()
		if ok {
			b.clear(flagCovered)
		}
		c.putLocked(p.shard, b, p.key, tat)
	}
}

// renewAllLocked renews the leases of those of ps that need it, in one commit: after a crash all of ps are there, or none.
func (l *Limiter) renewAllLocked(ps []place, now int64) {
	l.committer.mu.Lock()
	defer l.committer.mu.Unlock()
	for i := range ps {
		p := &ps[i]
		tat, needs := l.toCommitLocked(p, now)
		if b, ok := p.slotLocked(); ok && needs == needLater {
			l.committer.renewLocked(p.shard, p.hash, b, tat, l.opts.CommitTimeout)
		}
	}
}

// renewLocked gives the bucket in b, of the shard, a lease up to tat. It reports whether commits are late: then the goroutine that
// commits may be behind all others in line for the processor, and who calls is to give way.
func (l *Limiter) renewLocked(s *shard, hash uint64, b slot, tat int64) (late bool) {
	c := l.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewLocked(s, hash, b, tat, l.opts.CommitTimeout)
	return time.Since(c.oldest) > 4*renewalPause
}

// renewLocked puts a lease up to tat into the next commit. What the bucket in b, of the shard, spends meanwhile is covered by the half
// that it has left.
func (c *committer) renewLocked(s *shard, hash uint64, b slot, tat int64, timeout time.Duration) {
	key := b.key() // the caller's may be gone by then
	b.clear(flagAhead)
	commit := c.nextLocked(timeout)
	commit.renewed = append(commit.renewed, renewal{s, hash, key})
	c.putLocked(s, b, key, tat)
	c.leases++
}

// slotLocked returns the slot of p's bucket, wherever it is by now.
func (p *place) slotLocked() (slot, bool) {
	i, ok := p.shard.findLocked(p.key, p.hash)
	if !ok {
		return slot{}, false
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
			if late := slices.Clone(ps); l.committer.leave(batch, func() { l.settleAll(late, false) }) {
				return fmt.Errorf("%w: no commit for %v; it may yet come", ErrNotDurable, l.opts.CommitTimeout)
			}
		}
	}
	l.settleAll(ps, batch.err != nil)
	if batch.err != nil {
		return fmt.Errorf("%w: %w", ErrNotDurable, batch.err)
	}
	return nil
}

// settleAll notes how the commit of ps ended: once, of those that submitAllLocked put into it.
func (l *Limiter) settleAll(ps []place, giveBack bool) {
	submitted := false
	for i := range ps {
		if p := &ps[i]; p.next != p.tat {
			p.shard.mu.Lock()
			l.settleLocked(p, giveBack)
			p.shard.mu.Unlock()
			submitted = true
		}
	}
	if submitted {
		l.committer.unsettled.Done()
	}
}

// resetsOf counts how often the bucket with a hash, or one of few others, was reset, or clamped to a smaller limit.
func (s *shard) resetsOf(hash uint64) *uint32 { return &s.resets[hash%uint64(len(s.resets))] }

// giveBackLocked gives back what p took, but for what the bucket has regained since, and what those in line need.
func (s *shard) giveBackLocked(b slot, p *place, now int64) {
	least := now
	if s.limits != nil && b.rule() != 0 {
		s.count(s.limits.index(p.key.Name)).allowed--
		if a := s.aside[p.key]; a != nil {
			for _, t := range a.line {
				t.failed = t.failed || t.batch == p.batch
			}
			least = max(now, a.needs(&s.limits.rules[b.rule()].rate))
		}
	}
	if p.reset == *s.resetsOf(p.hash) {
		b.setTAT(giveBack(b.tat(), p.took, p.next, now, least))
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
	e := s.pendingLocked(b)
	last := e != nil && e.batch == p.batch // nothing was put into a later commit
	committed := p.next
	if last {
		committed = e.tat
	}
	s.settledPendingLocked(b, e)
	if p.batch.err != nil {
		if giveBack && p.op == opSpend {
			s.giveBackLocked(b, p, l.clock.now())
		}
		b.set(flagStored) // the store may have it all the same
		b.clear(flagCovered)
		s.dirtyLocked(i)
		return
	}
	if !last || s.limits == nil || b.rule() == 0 {
		return
	}
	if committed == 0 {
		if b.tat() <= l.clock.now() {
			s.cleanLocked(i)
			b.clear(flagStored)
		}
		return
	}
	if b.tat() == committed {
		s.cleanLocked(i)
	}
	if l.level(s.limits, b.rule()) == Leased {
		s.coverLocked(b, committed)
	}
}
