package stint

import (
	"math"
	"runtime"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/gcra"
)

// The fast paths decide on buckets that are in memory and have no hold, queue or
// commit to deal with: find the bucket, see whether it is usable, decide, settle and
// report. fastPath does so for one bucket, fastPathAll for a few, and decideInLane for
// a hot one, without a lock.

// fastAnswer is what the fast path found.
type fastAnswer uint8

const (
	fastDeclined fastAnswer = iota // nothing was decided or changed: take the slow path
	fastDenied
	fastAllowed
	fastYield // allowed, and the caller should let the committer run
)

// ask is a request on a fast path. It is passed by its address, because it has more
// words than a function takes in registers.
type ask struct {
	located
	lane      *cache.Lane // of the bucket when the request came, or nil
	laneTAT   int64       // of the lane, if it was read before the clock
	readEarly bool        // laneTAT was read
	checks    bool        // it spends nothing
	key       Key
	cost      int64
	leave     int64 // tokens that must remain in the bucket
	now       int64 // instant of the decision
}

// fastPath decides on one bucket, or declines. d may be nil.
func (l *Limiter) fastPath(key Key, cost, leave int64, checks bool, d *Decision) fastAnswer {
	var a ask
	a.key, a.cost, a.leave, a.checks = key, cost, leave, checks
	return l.fastPathOf(&a, d)
}

// fastPathOf is fastPath for a request whose shard is known, or nil. An older
// instant makes a decision stricter, so the clock is read before the lock is taken.
// If a later decision came first, a denial that time has overtaken is decided again.
func (l *Limiter) fastPathOf(a *ask, d *Decision) fastAnswer {
	s := a.shard
	if s == nil {
		if len(a.key.ID) > maxIDLen {
			return fastDeclined
		}
		s, a.hash = l.cache.Shard(uint16(a.key.Name), a.key.ID)
		a.shard = s
		if a.lane = l.laneOf(a); a.lane == nil {
			s.Prefetch(a.hash)
		} else if a.lane.Denies() {
			a.laneTAT, a.readEarly = a.lane.TAT(), true
		}
		a.now = l.clock.Now()
	}
	if a.lane != nil {
		if answer := l.decideInLane(a.lane, a, d, laneTries); answer != fastDeclined {
			return answer
		}
	}
	contended := !s.TryLockFast()
	if contended {
		s.LockFast()
	}
	var answer fastAnswer
	if n := l.laneOf(a); n != nil { // it began while this waited for the lock
		answer = l.decideInLane(n, a, d, math.MaxInt)
	} else {
		answer = l.fastPathLocked(a, d)
		if contended && !a.checks && answer != fastDeclined {
			l.cache.ContendedLocked(s, uint16(a.key.Name), a.key.ID, a.hash)
		}
	}
	s.UnlockFast()
	if answer == fastYield {
		runtime.Gosched()
	}
	return answer
}

// fastPathGiven is fastPathOf for a request with a Limit, if it is the configured one.
func (l *Limiter) fastPathGiven(a *ask, limit *Limit, d *Decision) fastAnswer {
	s, answer := a.shard, fastDeclined
	s.Lock()
	i, ok := s.Find(uint16(a.key.Name), a.key.ID, a.hash)
	if ok && s.UsableLocked(i) != nil && limit.is(s.UsableLocked(i), l.opts.Durability) {
		answer = l.fastPathLocked(a, d)
	}
	s.Unlock()
	if answer == fastYield {
		runtime.Gosched()
	}
	return answer
}

// fastPathLocked has the lines of Rule.Spend, Clock.Now and Shard.SpendLocked, because a
// call takes 2 ns of 80.
func (l *Limiter) fastPathLocked(a *ask, d *Decision) fastAnswer {
	s, now := a.shard, a.now
	i, ok := s.Find(uint16(a.key.Name), a.key.ID, a.hash)
	if !ok {
		return fastDeclined
	}
	r := s.UsableLocked(i)
	if r == nil || !r.Limited() {
		return fastDeclined
	}
	at := now
	if r.Periods != nil {
		if p := r.Periods.Last(); p.Contains(now) {
			at = p.End
		} else {
			at = r.Periods.End(now)
		}
	}
	cost, leave := a.cost, a.leave
	if !r.Rate.Admits(cost, leave) {
		return fastDeclined
	}
	next, wait := r.Rate.Spend(s.At(i).TAT(), at, cost, leave)
	answer := fastAllowed
	if wait != 0 {
		if at != now {
			wait = at - now
		}
		if s.DecidedAfterLocked(now) && l.overtaken(a, wait) {
			return l.fastPathLocked(a, d)
		}
		answer = fastDenied
	}
	if !a.checks {
		switch {
		case wait != 0 || a.cost == 0:
			s.Use(i)
		case r.Level.Or(gcra.Level(l.opts.Durability)) < gcra.Leased:
			s.DecidedLocked(now)
			if !s.At(i).Rewrite(next) {
				s.Write(i, next)
			}
		default: // at Synced no lease covers it
			covered, late := l.cache.SpendLeasedLocked(s, i, a.hash, &r.Lease, next, now)
			if !covered {
				return fastDeclined
			}
			if late {
				answer = fastYield
			}
		}
		s.CountLocked(uint16(a.key.Name))[denied(wait == 0)]++
	}
	if d != nil {
		remaining, reset := r.Holds(next, now, at)
		report(d, &a.key, r, wait, remaining, reset, a.taken(wait), now)
	}
	return answer
}

// taken returns how many tokens the request takes.
func (a *ask) taken(wait int64) int64 {
	if wait != 0 || a.checks {
		return 0
	}
	return a.cost
}

// overtaken reads the clock again, and reports whether a denial is out of date. If so,
// that is the instant to decide at.
func (l *Limiter) overtaken(a *ask, wait int64) bool {
	fresh := l.clock.Now()
	if !gcra.Overtaken(a.now, fresh, wait) {
		return false
	}
	a.now = fresh
	return true
}

// report puts a decision into d.
func report(d *Decision, key *Key, r *gcra.Rule, wait, remaining, reset, taken, now int64) {
	d.Allowed = wait == 0
	d.Taken = taken
	d.Remaining, d.RetryAfter, d.ResetAfter = remaining, time.Duration(wait), time.Duration(reset)
	d.Key, d.at = *key, now
	d.Limit.set(r)
}

// denied returns 0 or 1, without a branch.
func denied(allowed bool) uint {
	if !allowed {
		return 1
	}
	return 0
}

// few is how many requests fastPathAll takes at most.
const few = 4

// spot is a bucket in memory, with the decision on it.
type spot struct {
	located
	index uint32
	rule  *gcra.Rule
	next  int64 // TAT after the decision
	gcra.State
}

// fastPathAll is fastPath for a few requests that all check and spend. It
// reports whether it decided. ds may be nil.
//
// Nothing here branches on which decision is the strictest, because a processor
// cannot predict it.
func (l *Limiter) fastPathAll(reqs []Request, d *Decision, ds []Decision) bool {
	var spots [few]spot
	var shards [few]*cache.Shard
	if len(reqs) == 0 || len(reqs) > few {
		return false
	}
	for i := range reqs {
		r, at := &reqs[i], &spots[i]
		if r.Mode != CheckAndSpend || len(r.Key.ID) > maxIDLen {
			return false
		}
		at.located = l.locate(r.Key)
		at.shard.Prefetch(at.hash)
		shards[i] = at.shard
	}
	now := l.clock.Now() // before the locks, as in fastPathOf
	locked := cache.LockAll(shards[:len(reqs)])
	strictest, now := l.fastPathAllLocked(reqs, spots[:len(reqs)], now)
	cache.UnlockAll(locked)
	if strictest < 0 {
		return false
	}
	allowed := spots[strictest].Wait == 0
	of := func(i int, d *Decision) {
		f, taken := &spots[i], int64(0)
		if allowed {
			taken = reqs[i].Cost
		}
		report(d, &reqs[i].Key, f.rule, f.Wait, f.Remaining, f.Reset, taken, now)
	}
	of(strictest, d)
	for i := range ds[:min(len(ds), len(reqs))] {
		of(i, &ds[i])
	}
	return true
}

// fastPathAllLocked returns the index of the strictest decision, or -1 if it
// declines, and the instant of all of them.
func (l *Limiter) fastPathAllLocked(reqs []Request, spots []spot, now int64) (strictest int, decided int64) {
	for i := range reqs {
		r, f := &reqs[i], &spots[i]
		index, ok := f.shard.Find(uint16(r.Key.Name), r.Key.ID, f.hash)
		if !ok {
			return -1, now
		}
		f.index, f.rule = index, f.shard.UsableLocked(index)
		if f.rule == nil || !f.rule.Limited() || !f.rule.Rate.Admits(r.Cost, r.Leave) || f.rule.Level.Or(gcra.Level(l.opts.Durability)) >= gcra.Leased ||
			!r.Limit.isZero() && !r.Limit.is(f.rule, l.opts.Durability) {
			return -1, now
		}
		for j := range i {
			if spots[j].shard == f.shard && spots[j].index == f.index {
				return -1, now
			}
		}
		var at int64
		f.next, at, f.Wait = f.rule.Spend(f.shard.At(f.index).TAT(), now, r.Cost, r.Leave)
		f.Remaining, f.Reset = f.rule.Holds(f.next, now, at)
	}
	for i := 1; i < len(spots); i++ {
		more := spots[i].Stricter(spots[strictest].State)
		if spots[i].State == spots[strictest].State {
			more = max(0, reqs[strictest].Key.compare(reqs[i].Key))
		}
		strictest += (i - strictest) * more
	}
	wait := spots[strictest].Wait
	if wait != 0 && spots[strictest].shard.DecidedAfterLocked(now) {
		if fresh := l.clock.Now(); gcra.Overtaken(now, fresh, wait) {
			return l.fastPathAllLocked(reqs, spots, fresh)
		}
	}
	for i := range spots {
		f := &spots[i]
		if wait == 0 && reqs[i].Cost > 0 {
			f.shard.SpendLocked(f.index, f.next, now)
		} else {
			f.shard.Use(f.index)
		}
		if wait == 0 || f.Wait != 0 {
			f.shard.CountLocked(uint16(reqs[i].Key.Name))[denied(f.Wait == 0)]++
		}
	}
	return strictest, now
}

// laneOf returns the lane of a request's bucket, or nil.
func (l *Limiter) laneOf(a *ask) *cache.Lane {
	n := l.cache.Lane(a.hash)
	if n == nil || !n.Is(uint16(a.key.Name), a.key.ID, a.hash) {
		return nil
	}
	return n
}

// laneTries is how often a decision tries to swap the TAT of a lane without the
// lock of the shard.
const laneTries = 2

// decideInLane is fastPathLocked without a lock. It declines if it cannot swap the
// TAT within so many tries. A TAT that was read before the clock, and denies, is a
// denial at the instant of the clock. One that was read after it may be of a later
// decision, so before such a denial the clock is read once more.
func (l *Limiter) decideInLane(n *cache.Lane, a *ask, d *Decision, tries int) fastAnswer {
	r := n.Rule
	if !r.Rate.Admits(a.cost, a.leave) {
		return fastDeclined
	}
	next, wait := int64(0), int64(0)
	if a.readEarly {
		next, wait = r.Rate.Spend(a.laneTAT, a.now, a.cost, a.leave)
	}
	for wait == 0 {
		tat := n.TAT()
		if tat == cache.LaneRetired {
			return fastDeclined
		}
		if next, wait = r.Rate.Spend(tat, a.now, a.cost, a.leave); wait != 0 {
			if l.overtaken(a, wait) {
				wait = 0
			}
			continue
		}
		if a.checks || a.cost == 0 || next == tat || n.Swap(tat, next) {
			break
		}
		if tries--; tries == 0 {
			return fastDeclined
		}
	}
	if !a.checks {
		n.Count(wait == 0)
	}
	if d != nil {
		remaining, reset := r.Holds(next, a.now, a.now)
		report(d, &a.key, r, wait, remaining, reset, a.taken(wait), a.now)
	}
	if wait != 0 {
		return fastDenied
	}
	return fastAllowed
}
