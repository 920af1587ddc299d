package stint

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// Decision is the answer to a request, and the state of the bucket that gave
// it. The zero Decision denies.
type Decision struct {
	Allowed    bool
	Remaining  int64         // whole tokens left; math.MaxInt64 if no limit is configured
	RetryAfter time.Duration // until the request would pass if no other spends; 0 if and only if Allowed
	ResetAfter time.Duration // until the bucket is full
	Key        Key           // the bucket that decided: of several, the strictest
	Limit      Limit         // the limit it was held to; zero if none is configured
}

// stricter reports whether a is a stricter decision than b: denied before
// allowed, then the longer RetryAfter, then the fewer Remaining. The last two
// fields only make the result independent of the order of comparison.
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

// Allow reports whether one request for the key may pass, and spends a token
// if so. If Spend would return an error, the answer is Options.FailOpen.
func (l *Limiter) Allow(key Key) bool {
	if allowed, done := l.fastPath(key, 1, opSpend, nil); done {
		return allowed
	}
	d, err := l.slowPath(key, 1, opSpend, readClock)
	return d.Allowed || err != nil && l.opts.FailOpen
}

// Spend takes cost tokens from the key's bucket if it has that many. A denied
// request changes nothing. An error comes with the zero Decision, and nothing
// was spent, except that after ErrNotDurable the tokens may stay spent.
func (l *Limiter) Spend(key Key, cost int64) (d Decision, err error) {
	if l.hasShares.Load() && l.isClass(key.Name) {
		return l.slowPath(key, cost, opSpend, readClock)
	}
	if _, done := l.fastPath(key, cost, opSpend, &d); !done {
		d, err = l.slowPath(key, cost, opSpend, readClock)
	}
	return d, err
}

// Check returns the Decision that Spend would return, and changes nothing.
func (l *Limiter) Check(key Key, cost int64) (d Decision, err error) {
	if _, done := l.fastPath(key, cost, opCheck, &d); !done {
		d, err = l.slowPath(key, cost, opCheck, readClock)
	}
	return d, err
}

// Refund gives cost tokens back to the key's bucket, up to its burst, and
// reports its state. The Decision always allows. Refunding a full bucket
// changes nothing. After ErrNotDurable the tokens may be missing; after any
// other error nothing changed.
func (l *Limiter) Refund(key Key, cost int64) (Decision, error) {
	return l.slowPath(key, cost, opRefund, readClock)
}

// Reset makes the buckets full, as if they had never been used, and ends their
// holds. Requests that wait in their queues still go when their turns come.
// Keys are reset in order, until one fails. After ErrNotDurable the key that
// failed may be reset too.
func (l *Limiter) Reset(keys ...Key) error {
	for _, key := range keys {
		if err := l.reset(key); err != nil {
			return l.failed(key, err)
		}
	}
	return nil
}

func (l *Limiter) reset(key Key) error {
	rs := [1]request{{change: change{key: key}, op: opReset}}
	r := &rs[0]
	if err := r.locate(l.directory); err != nil {
		return err
	}
	if err := l.lockFound(r); err != nil {
		return err
	}
	now := l.clock.Now()
	if !r.resident && r.rule > blocked {
		r.tat = r.shard.limits.rules[r.rule].rate.Clamp(r.tat, now) // for an undo
	}
	r.from = r.tat
	r.to = min(now, r.tat)
	g := r.shard.gates[key]
	held := g != nil && (g.hold != 0 || g.unsaved || g.commits > 0)
	if g != nil && g.queue.Len() > 0 {
		r.turns = g.queue.Take()
		r.shard.MarkDirty(r.index) // the store has the TAT after the turns
	}
	r.writeLocked(now)
	var in *batch
	if held {
		in = l.holdLocked(r, g, 0, now)
	} else {
		in = l.submitLocked(rs[:], now)
	}
	r.shard.mu.Unlock()
	if in == nil {
		return nil
	}
	return l.committer.await(in)
}

// readClock stands for an instant, and tells slowPath to read the clock.
const readClock = math.MinInt64

// fastPath decides on a bucket that is in memory and has no hold, queue or
// commit to deal with. If done is false, fastPath has changed nothing, and the
// caller must take the slow path. d may be nil.
func (l *Limiter) fastPath(key Key, cost int64, op op, d *Decision) (allowed, done bool) {
	if len(key.ID) > maxIDLen {
		return false, false
	}
	s, h := l.directory.shard(key)
	s.Prefetch(h)
	s.mu.Lock()
	allowed, done, late := l.fastPathLocked(s, h, key, cost, op, l.clock.Now(), d)
	s.mu.Unlock()
	if late {
		runtime.Gosched()
	}
	return allowed, done
}

func (l *Limiter) fastPathLocked(s *shard, h uint64, key Key, cost int64, op op, now int64, d *Decision) (allowed,
	done, late bool) {
	i, ok := s.findLocked(key, h)
	if !ok || s.limits == nil {
		return false, false, false
	}
	b := s.At(i)
	m := b.Meta()
	if table.RuleOf(m) <= blocked || m&table.Gate != 0 {
		return false, false, false
	}
	r := &s.limits.rules[table.RuleOf(m)]
	level := cmp.Or(r.limit.Durability, l.opts.Durability)
	if uint64(cost) > uint64(r.rate.Burst) || level == Synced && op == opSpend { // the cost may be negative
		return false, false, false
	}
	tat := b.TAT()
	next, wait := r.rate.Spend(tat, now, cost)
	allowed = wait == 0
	if op == opSpend {
		switch {
		case !allowed || cost == 0:
			if m&table.Used == 0 {
				s.Use(i)
			}
		case level < Leased:
			s.Write(i, next)
		default:
			lease, when := r.rate.Renew(tat, next, m&table.Covered != 0, m&table.Ahead != 0, m&table.Pending != 0)
			if when == gcra.NeedFirst {
				return false, false, false
			}
			s.Write(i, next)
			if when == gcra.NeedSoon {
				late = l.committer.renewLocked(s, h, b, lease)
			}
		}
		s.countLocked(key.Name, allowed)
	}
	if d != nil {
		d.Allowed = allowed
		d.RetryAfter = time.Duration(wait)
		d.Key = key
		r.report(d, next, now)
	}
	return allowed, true, late
}

// report puts the limit, and what a bucket with this TAT holds, into d.
func (r *rule) report(d *Decision, tat, now int64) {
	d.Limit = r.limit
	d.Remaining = r.rate.Remaining(tat, now)
	d.ResetAfter = time.Duration(gcra.ResetAfter(tat, now))
}

// slowPath decides on one bucket, at the instant now. It reads the clock
// instead if now is readClock, or if the bucket's state may be newer than now.
func (l *Limiter) slowPath(key Key, cost int64, op op, now int64) (Decision, error) {
	if m := l.limits.Load().member(key.Name); m.role != plainRole {
		return l.slowPathShare(m, Request{Key: key, Cost: cost}, op)
	}
	rs := [1]request{{change: change{key: key}, cost: cost, op: op}}
	return l.slowPathOf(rs[:], now)
}

// slowPathOf is slowPath for one request.
func (l *Limiter) slowPathOf(rs []request, now int64) (Decision, error) {
	r := &rs[0]
	if err := r.locate(l.directory); err != nil {
		return Decision{}, l.failed(r.key, err)
	}
	if err := l.lockFound(r); err != nil {
		return Decision{}, l.failed(r.key, err)
	}
	if now == readClock || !r.resident || r.shard.At(r.index).Has(table.Gate) {
		now = l.clock.Now()
	}
	var d Decision
	var in *batch
	err := r.decideLocked(now, &d)
	if err == nil {
		r.countLocked(d.Allowed)
		r.writeLocked(now)
		in = l.submitLocked(rs, now)
	}
	r.shard.mu.Unlock()
	if in != nil {
		err = l.committer.await(in)
	}
	if err != nil {
		return Decision{}, l.failed(r.key, err)
	}
	return d, nil
}

// op is an operation on a bucket.
type op uint8

const (
	opSpend op = iota
	opCheck
	opRefund
	opReset
	opRaise // its cost is an instant
)

// request is one call for one bucket, in progress. Its field `to` has the new
// TAT of the bucket.
type request struct {
	change
	cost int64
	op   op
	mode Mode
	at   int // index in the caller's requests

	resident bool // in memory: index is valid
	index    uint32
	rule     uint32 // configured: index in shard.limits.rules
	tat      int64  // in the slot, or as loaded
	allowed  bool
	role     role
	group    *group // nil if its bucket decides alone

	limits   *Limits // at the last load; nil before it
	saved    int64   // TAT in the store at that load
	removals uint32  // of the shard before that load
}

// locate checks what can be checked without the bucket, and finds its shard.
func (r *request) locate(t *directory) error {
	if r.cost < 0 {
		return fmt.Errorf("%w: %d for %v", ErrNegativeCost, r.cost, r.key)
	}
	if len(r.key.ID) > maxIDLen {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrInvalidID, len(r.key.ID), maxIDLen)
	}
	r.shard, r.hash = t.shard(r.key)
	r.shard.Prefetch(r.hash)
	return nil
}

// findLocked reports whether the state of the bucket is known: it is in
// memory, or it was loaded and no bucket has left the shard since.
func (r *request) findLocked() bool {
	s := r.shard
	if r.index, r.resident = s.findLocked(r.key, r.hash); r.resident {
		b := s.At(r.index)
		r.tat = b.TAT()
		if rule := b.Rule(); rule != 0 || r.given != nil && s.limits.accepts(r.key) {
			r.rule = rule
			return true
		}
	}
	return r.limits == s.limits && (r.resident || r.removals == s.Removals())
}

// decideLocked decides at the instant now, and sets the new TAT of the bucket.
func (r *request) decideLocked(now int64, d *Decision) error {
	s := r.shard
	d.Key = r.key
	g := s.gates[r.key]
	if g != nil && r.resident {
		s.advanceLocked(s.At(r.index), g, now)
		r.tat = s.At(r.index).TAT()
	}
	rule := r.ruleLocked()
	r.clampLocked(now)
	r.from, r.to = r.tat, r.tat
	if !rule.limited() {
		d.Limit = rule.limit
		switch isBlocked := rule.limit == Blocked; {
		case isBlocked && r.op != opRefund:
			d.RetryAfter, d.ResetAfter = math.MaxInt64, math.MaxInt64
		case !isBlocked:
			d.Remaining = math.MaxInt64
			if g != nil && r.op != opRefund {
				d.RetryAfter = max(0, time.Duration(g.hold-now))
			}
		}
		d.Allowed = d.RetryAfter == 0
		return nil
	}
	if r.op == opRefund || r.op == opRaise {
		if r.op == opRefund {
			r.to = rule.rate.Refund(r.tat, now, r.cost)
		} else if r.cost > now {
			r.to = max(r.tat, rule.rate.Clamp(r.cost, now))
		}
		d.Allowed = true
		rule.report(d, g.tail(r.to), now)
		return nil
	}
	if r.cost > rule.rate.Burst {
		return fmt.Errorf("%w: %d of %d for %v", ErrCostOverBurst, r.cost, rule.rate.Burst, r.key)
	}
	next, wait := rule.rate.Spend(g.tail(r.tat), now, r.cost)
	if early := g.notBefore() - now; early > wait {
		next, wait = g.tail(r.tat), early
	}
	if wait == 0 {
		r.to = next
	}
	d.Allowed = wait == 0
	d.RetryAfter = time.Duration(wait)
	rule.report(d, next, now)
	return nil
}

// countLocked counts a decision to spend.
func (r *request) countLocked(allowed bool) {
	if r.op == opSpend {
		r.counted = allowed
		r.shard.countLocked(r.key.Name, allowed)
	}
}

// writeLocked gives the bucket its new TAT, and a slot if it had none.
func (r *request) writeLocked(now int64) {
	if r.op == opCheck || r.cost == 0 && r.op != opReset {
		r.to = r.from
	}
	s := r.shard
	switch {
	case r.resident && r.to > r.from:
		s.Write(r.index, r.to)
	case r.resident && r.to < r.from:
		s.lowerLocked(r.index, r.to)
	case r.resident && r.op != opCheck:
		s.Use(r.index)
	case r.resident:
	case r.saved != 0 || r.ruleLocked().limited() && (r.to > now || s.gates[r.key] != nil):
		flags := uint64(table.Used)
		if r.saved != 0 {
			flags |= table.Stored
		}
		switch {
		case r.to == r.saved:
		case r.op == opCheck: // the store keeps what it has
			flags = table.Stored | table.Clamped
		default:
			flags |= table.Dirty
		}
		r.index = s.insertLocked(r.key, r.hash, r.to, r.rule, flags)
	}
}
