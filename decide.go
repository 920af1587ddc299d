package stint

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Decision is the answer to a request, and the state of the bucket that gave it. The zero Decision denies.
type Decision struct {
	Allowed    bool
	Remaining  int64         // whole tokens left; math.MaxInt64 where no limit is configured
	RetryAfter time.Duration // until the same request would pass if nobody else spends; zero if and only if Allowed
	ResetAfter time.Duration // until the bucket is full
	Key        Key           // the bucket that decided: of several, the strictest
	Limit      Limit         // the limit it was held to; zero where none is configured
}

// stricter reports whether a is a stricter decision than b: denied before allowed, then the longer RetryAfter, then the
// fewer Remaining. What is left equal is put in an order all the same, so that it does not matter in which order
// decisions are compared.
func (a *Decision) stricter(b *Decision) bool {
	if a.Allowed != b.Allowed {
		return b.Allowed
	}
	return cmp.Or(
		cmp.Compare(b.RetryAfter, a.RetryAfter),
		cmp.Compare(a.Remaining, b.Remaining),
		cmp.Compare(b.ResetAfter, a.ResetAfter),
		a.Key.compare(b.Key),
	) < 0
}

// Mode says what part a Request has in a SpendAll.
type Mode uint8

const (
	CheckAndSpend Mode = iota // it takes part in the decision, and spends
	CheckOnly                 // it takes part in the decision, and spends nothing
	SpendOnly                 // it spends if it can, and takes no part in the decision
)

// op is what is done to a bucket.
type op uint8

const (
	opSpend op = iota
	opCheck
	opRefund
	opReset
)

// place is one request on its way: where its bucket is, and what becomes of it.
type place struct {
	key  Key
	cost int64
	op   op
	mode Mode

	shard *shard
	hash  uint64

	resident bool // index is that of its slot
	index    uint32
	rule     uint32 // in shard.limits.rules; 0: the limit is off
	tat      int64  // as it is in the slot, or as it was loaded
	next     int64  // the TAT it is to have
	allowed  bool

	batch *batch // the commit that is waited for
	took  int64  // how far the TAT was moved, from where it was or from now,
	reset uint32 // when there had been so many of shard.resets

	limits   *Limits // where rule was looked up, if it was
	saved    int64   // what the store had then,
	removals uint32  // when so many buckets had left the shard
}

// locate checks the request, as far as that can be done without its bucket, and finds its shard.
func (p *place) locate(t *table) error {
	if p.cost < 0 {
		return fmt.Errorf("%w: %d for %v", ErrNegativeCost, p.cost, p.key)
	}
	if len(p.key.ID) > maxIDLen {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrInvalidID, len(p.key.ID), maxIDLen)
	}
	p.shard, p.hash = t.shard(p.key)
	p.shard.prefetch(p.hash)
	return nil
}

// findLocked reports whether the state of the bucket is known. It is where the bucket is in memory, and where it was
// loaded and no bucket has left the shard since, which might have been this one with another state.
func (p *place) findLocked() bool {
	s := p.shard
	if p.index, p.resident = s.findLocked(p.key, p.hash); p.resident {
		b := s.at(p.index)
		p.tat = b.tat()
		if rule := b.rule(); rule != 0 {
			p.rule = rule
			return true
		}
		return p.limits == s.limits // off, or no longer declared: load says which
	}
	return p.limits == s.limits && p.removals == s.removals
}

// decideLocked decides at the instant now, and sets what the TAT is to be.
func (p *place) decideLocked(now int64, d *Decision) error {
	s := p.shard
	d.Key = p.key
	notBefore := int64(0)
	if p.op != opRefund {
		notBefore = p.notBeforeLocked(now)
	}
	if p.rule == 0 {
		if a := s.aside[p.key]; a != nil { // a line is from before, too: only a hold counts
			notBefore = min(notBefore, a.hold)
		}
		p.next = p.tat // it may have one from before its limit was removed
		d.Remaining = math.MaxInt64
		d.RetryAfter = max(0, time.Duration(notBefore-now))
		d.Allowed = d.RetryAfter == 0
		return nil
	}
	r := &s.limits.rules[p.rule]
	if p.op == opRefund {
		p.next = r.rate.refund(p.tat, now, p.cost)
		if a := s.aside[p.key]; a != nil {
			p.next = min(p.tat, max(p.next, a.needs(&r.rate)))
		}
		d.Allowed = true
	} else {
		if p.cost > r.rate.burst {
			return fmt.Errorf("%w: %d of %d for %v", ErrCostOverBurst, p.cost, r.rate.burst, p.key)
		}
		var wait int64
		p.next, wait = r.rate.spend(p.tat, now, p.cost)
		if early := notBefore - now; early > wait {
			p.next, wait = p.tat, early
		}
		d.Allowed = wait == 0
		d.RetryAfter = time.Duration(wait)
	}
	r.report(d, p.next, now)
	return nil
}

// report puts the limit, and what a bucket with this TAT holds, into d.
func (r *rule) report(d *Decision, tat, now int64) {
	d.Limit = r.limit
	d.Remaining = r.rate.remaining(tat, now)
	d.ResetAfter = time.Duration(resetAfter(tat, now))
}

// notBeforeLocked returns when the bucket's hold, and its line, are over: 0 where it has neither.
func (p *place) notBeforeLocked(now int64) int64 {
	s := p.shard
	if len(s.aside) == 0 || p.resident && !s.at(p.index).has(flagAside) {
		return 0
	}
	a := s.aside[p.key]
	if a == nil {
		return 0
	}
	if p.resident && a.lineOver(now) {
		s.endLineLocked(p.index, a, now)
		p.tat = s.at(p.index).tat()
	}
	return a.notBefore()
}

// countLocked counts a decision to spend.
func (p *place) countLocked(allowed bool) {
	if p.op == opSpend {
		p.shard.countLocked(p.key.Name, allowed)
	}
}

func (s *shard) countLocked(name Name, allowed bool) {
	if c := s.count(s.limits.index(name)); allowed {
		c.allowed++
	} else {
		c.denied++
	}
}

// writeLocked carries out what was decided: it gives the bucket its new TAT, and a slot if it had none.
func (p *place) writeLocked(now int64) {
	if p.op == opCheck || p.cost == 0 && p.op != opReset {
		p.next = p.tat
	}
	s := p.shard
	switch {
	case p.resident:
		if p.next != p.tat {
			s.writeLocked(p.index, p.next)
		} else if p.op != opCheck {
			s.useLocked(p.index)
		}
	case p.saved != 0 || p.rule != 0 && (p.next > now || s.aside[p.key] != nil):
		flags := uint64(flagUsed)
		if p.saved != 0 {
			flags |= flagStored
		}
		switch {
		case p.next == p.saved:
		case p.op == opCheck: // which changes nothing on file
			flags = flagStored | flagClamped
		default:
			flags |= flagDirty
		}
		s.insertLocked(p.key, p.hash, p.next, p.rule, flags)
	}
}
