package stint

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/table"
)

// Allow reports whether one request for the key may pass, and spends a token
// if so. If Spend would return an error, the answer is Options.FailOpen.
func (l *Limiter) Allow(key Key) bool {
	if answer := l.fastPath(key, 1, opSpend, nil); answer != fastDeclined {
		return answer != fastDenied
	}
	var d Decision
	err := l.slowPathOne(key, 1, CheckAndSpend, &d)
	return d.Allowed || err != nil && l.opts.FailOpen
}

// Spend takes cost tokens from the key's bucket if it has that many. A denied
// request changes nothing. An error comes with the zero Decision, and nothing
// was spent, except that after ErrNotDurable the tokens may stay spent.
func (l *Limiter) Spend(key Key, cost int64) (d Decision, err error) {
	if l.fastPath(key, cost, opSpend, &d) == fastDeclined {
		err = l.slowPathOne(key, cost, CheckAndSpend, &d)
	}
	return d, err
}

// Check returns the Decision that Spend would return, and spends nothing: Taken
// is 0. Like any request, it cuts a bucket down to a limit that has become
// smaller, as SetLimits says, and one that it reads from the file, as Request
// says.
func (l *Limiter) Check(key Key, cost int64) (d Decision, err error) {
	if l.fastPath(key, cost, opCheck, &d) == fastDeclined {
		err = l.slowPathOne(key, cost, CheckOnly, &d)
	}
	return d, err
}

// fastAnswer is what the fast path found.
type fastAnswer uint8

const (
	fastDeclined fastAnswer = iota // nothing was decided or changed: take the slow path
	fastDenied
	fastAllowed
	fastYield // allowed, and the caller should let the committer run
)

// ask is a request on the fast path. It is passed by its address, because it has
// more words than a function takes in registers.
type ask struct {
	located
	lane *cache.Lane // in force when the request came, or nil
	key  Key
	cost int64
	now  int64 // instant of the decision
	op   op
}

// fastPath decides on a bucket that is in memory and has no hold, queue or
// commit to deal with. d may be nil.
func (l *Limiter) fastPath(key Key, cost int64, op op, d *Decision) fastAnswer {
	if l.isShare(key.Name) {
		return fastDeclined
	}
	var a ask
	a.key, a.cost, a.op = key, cost, op
	return l.fastPathOf(&a, d)
}

// isShare reports whether a Name is in a tree of shares. It stays in it, but a
// SetLimits under way may add it: so a fast path asks again under the lock.
func (l *Limiter) isShare(name Name) bool {
	return l.hasShares.Load() && l.limits.Load().isShare(name)
}

// fastPathOf is fastPath for a request whose shard is known, or nil. An older
// instant makes a decision stricter, so the clock is read before the lock is taken.
// A denial that time has overtaken since that reading is decided again.
func (l *Limiter) fastPathOf(a *ask, d *Decision) fastAnswer {
	s := a.shard
	if s == nil {
		if len(a.key.ID) > maxIDLen {
			return fastDeclined
		}
		s, a.hash = l.cache.Shard(uint16(a.key.Name), a.key.ID)
		a.shard = s
		if a.lane = l.cache.Lane(a.hash); a.lane == nil {
			s.Prefetch(a.hash)
		}
		a.now = l.clock.Now()
	}
	if n := a.lane; n != nil && a.isIn(n) {
		if answer := l.decideInLane(n, a, d, laneTries); answer != fastDeclined {
			return answer
		}
	}
	contended := !s.Mu.TryLock()
	if contended {
		s.Mu.Lock()
	}
	var answer fastAnswer
	if n := l.cache.Lane(a.hash); n != nil && a.isIn(n) { // it began while this waited for the lock
		answer = l.decideInLane(n, a, d, math.MaxInt)
	} else {
		answer = l.fastPathLocked(a, d)
		if contended && a.op == opSpend && answer != fastDeclined {
			l.contendedLocked(a)
		}
	}
	s.Mu.Unlock()
	if answer == fastYield {
		runtime.Gosched()
	}
	return answer
}

func (l *Limiter) fastPathLocked(a *ask, d *Decision) fastAnswer {
	s, now := a.shard, a.now
	i, ok := s.Find(uint16(a.key.Name), a.key.ID, a.hash)
	if !ok || s.Limits == nil {
		return fastDeclined
	}
	b := s.At(i)
	m := b.Meta()
	if table.RuleOf(m) <= blocked || m&table.Gate != 0 {
		return fastDeclined
	}
	ls := limitsIn(s)
	if ls.isShare(a.key.Name) {
		return fastDeclined
	}
	r := &ls.rules[table.RuleOf(m)]
	level := r.level(l.opts.Durability)
	if uint64(a.cost) > uint64(r.rate.burst) || level == Synced && a.op == opSpend { // the cost may be negative
		return fastDeclined
	}
	tat := b.TAT()
	base := now
	if r.limit.calendar != 0 { // this is rule.at, which the compiler does not inline
		if p := r.periods.Last(); p.Contains(now) {
			base = p.End
		} else {
			base = r.periods.End(now)
		}
	}
	answer := fastAllowed
	next, wait := r.rate.spend(tat, base, a.cost)
	if wait != 0 {
		if m&table.Uncut != 0 {
			return fastDeclined
		}
		answer = fastDenied
		if base != now {
			wait = base - now
		}
		if fresh := l.clock.Now(); overtaken(now, fresh, wait) {
			a.now = fresh
			return l.fastPathLocked(a, d)
		}
	}
	if a.op == opSpend {
		switch {
		case wait > 0 || a.cost == 0:
			if m&table.Used == 0 {
				s.Use(i)
			}
		case level < Leased:
			s.Write(i, next)
		default:
			covered, late := l.cache.SpendLeasedLocked(s, i, a.hash, &r.rate.lease, next)
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
		d.Allowed = wait == 0
		if d.Taken = 0; wait == 0 && a.op == opSpend {
			d.Taken = a.cost
		}
		d.RetryAfter = time.Duration(wait)
		d.Key = a.key
		d.Limit = r.limit // this is reportAt, which the compiler does not inline
		remaining, reset := r.holds(next, now, base)
		d.Remaining, d.ResetAfter = remaining, time.Duration(reset)
	}
	return answer
}

func (a *ask) isIn(n *cache.Lane) bool { return n.Is(uint16(a.key.Name), a.key.ID, a.hash) }

// laneTries is how often a decision tries to swap the TAT of a lane without the
// lock of the shard.
const laneTries = 2

// decideInLane is fastPathLocked without a lock. It declines if it cannot swap the
// TAT within so many tries.
func (l *Limiter) decideInLane(n *cache.Lane, a *ask, d *Decision, tries int) fastAnswer {
	r, now := n.Rule.(*rule), a.now
	if uint64(a.cost) > uint64(r.rate.burst) { // it may be negative
		return fastDeclined
	}
	tat := n.TAT()
	next, wait := int64(0), int64(0)
	for {
		if tat == cache.LaneRetired {
			return fastDeclined
		}
		if next, wait = r.rate.spend(tat, now, a.cost); wait != 0 || a.op != opSpend || next == tat {
			break
		}
		if n.Swap(tat, next) {
			break
		}
		if tries--; tries == 0 {
			return fastDeclined
		}
		tat = n.TAT()
	}
	if wait != 0 {
		if fresh := l.clock.Now(); overtaken(now, fresh, wait) {
			a.now = fresh
			return l.decideInLane(n, a, d, tries)
		}
	}
	if a.op == opSpend {
		n.Count(wait == 0)
	}
	if d != nil {
		d.Allowed = wait == 0
		if d.Taken = 0; wait == 0 && a.op == opSpend {
			d.Taken = a.cost
		}
		d.RetryAfter = time.Duration(wait)
		d.Key = a.key
		r.reportAt(d, next, now, now)
	}
	if wait != 0 {
		return fastDenied
	}
	return fastAllowed
}

// contendedLocked counts a spend for which a fast path had to wait for the lock,
// and gives the bucket a lane if that happens often.
func (l *Limiter) contendedLocked(a *ask) {
	s := a.shard
	i, ok := s.Find(uint16(a.key.Name), a.key.ID, a.hash)
	if !ok || !s.ContendedLocked(i) {
		return
	}
	l.promoteLocked(a.located, i)
}

// promoteLocked gives a bucket a lane, unless its limit is Leased or Synced or follows
// the calendar.
func (l *Limiter) promoteLocked(at located, i uint32) {
	r := &limitsIn(at.shard).rules[at.shard.At(i).Rule()]
	if r.limited() && r.periods == nil && r.level(l.opts.Durability) < Leased {
		if b := at.shard.At(i); r.clamp(b.TAT(), l.clock.Now()) == b.TAT() {
			b.Clear(table.Uncut)
		}
		at.shard.PromoteLocked(i, at.hash, r)
	}
}

// slowPathOne is slowPath for one request.
func (l *Limiter) slowPathOne(key Key, cost int64, mode Mode, d *Decision) error {
	return l.slowPath(context.Background(), []Request{{Key: key, Cost: cost, Mode: mode}}, d, nil, opSpend)
}

// slowPath decides on requests that a fast path has declined, and waits for the commit.
func (l *Limiter) slowPath(ctx context.Context, reqs []Request, d *Decision, ds []Decision, op op) error {
	in, key, err := l.submitAll(reqs, d, ds, op, nil)
	if in != nil {
		if err = l.cache.Await(ctx, time.Now(), in); err != nil {
			*d = Decision{}
		}
	}
	return l.failed(key, err)
}

// submitAll decides on requests together. It returns the commit that the answer
// waits for, or nil, and the key to name if that fails. If full is not nil, it is
// returned in place of a wait for space in memory.
func (l *Limiter) submitAll(
	reqs []Request, d *Decision, ds []Decision, op op, full error,
) (in *cache.Batch, key Key, err error) {
	if len(reqs) == 0 { // no bucket shows whether the limiter is closed
		if l.isClosed() {
			return nil, Key{}, ErrClosed
		}
		*d = Decision{Allowed: true, Remaining: math.MaxInt64}
		return nil, Key{}, nil
	}
	if len(reqs) == 1 && op == opSpend && l.fastPathShare(&reqs[0], d) {
		if ds != nil {
			ds[0] = *d
		}
		return nil, Key{}, nil
	}
	var rs []request
	switch n := len(reqs); { // the first two stay on the stack, and are as short as they can be
	case n == 1 && !l.isShare(reqs[0].Key.Name):
		rs = make([]request, 1)
	case n <= 4:
		rs = make([]request, 4)[:n]
	default:
		rs = make([]request, n)
	}
	for i := range reqs {
		r, req := &rs[i], &reqs[i]
		if req.Mode == UpTo && len(reqs) > 1 && op == opSpend {
			return nil, req.Key, fmt.Errorf("stint: %s: a request with UpTo must be alone",
				l.limits.Load().labeled(req.Key))
		}
		if err := r.ask(l, req, op); err != nil {
			return nil, req.Key, err
		}
		r.at, r.full = i, full
		if !req.Spent.IsZero() && !req.Spent.Equal(JustSpent) {
			r.spent = max(1, l.clock.Instant(req.Spent))
		}
		switch {
		case r.mode != CheckOnly:
		case op == opRefund:
			r.cost = 0
		default:
			r.op = opCheck
		}
		if op == opRefund && r.cost > 0 && req.Spent.IsZero() {
			return nil, r.key, fmt.Errorf("stint: refund %s: the request has no Spent, want the "+
				"instant of the spend or JustSpent", l.limits.Load().labeled(r.key))
		}
	}
	return l.submit(rs, d, ds)
}

// submit is submitAll for requests that are asked and located.
func (l *Limiter) submit(rs []request, d *Decision, ds []Decision) (in *cache.Batch, key Key, err error) {
	rs, at, err := l.lockParts(rs)
	if err == nil {
		now := l.clock.Now()
		if *d, at, err = decideAllLocked(rs, ds, now); err == nil {
			rs = joinTotals(rs, d.Allowed)
			writeAllLocked(rs, now)
			if d.Allowed { // a denial changes nothing
				in = l.submitLocked(rs, now)
			}
		}
		unlockAll(rs)
	}
	return in, askedOf(rs, at), err
}

// decideAllLocked decides on the caller's requests at the instant now, in their
// order. Those with SpendOnly come last, because they take what the others leave.
// The error is that of rs[at].
func decideAllLocked(rs []request, ds []Decision, now int64) (strictest Decision, at int, err error) {
	n := 0 // of the caller
	for i := range rs {
		r := &rs[i]
		if r.group != nil {
			r.group.at[r.role], r.group.has[r.role] = i, true
		}
		if !r.added {
			rs[r.at].nth = i
			n++
		}
	}
	strictest = Decision{Allowed: true, Remaining: math.MaxInt64}
	voted := false
	for _, votes := range [...]bool{true, false} {
		for at := range n {
			i := rs[at].nth
			r := &rs[i]
			if votes == (r.mode == SpendOnly) {
				continue
			}
			var d Decision
			switch g := r.group; {
			case g == nil:
				err = r.decideLocked(now, &d)
				r.allowed = d.Allowed
			case g.upTo && r.op == opSpend:
				err = g.decideUpToLocked(rs, now, &d)
			default:
				err = g.decideLocked(rs, now, &d)
			}
			if err != nil {
				return Decision{}, i, err
			}
			if ds != nil {
				ds[r.at] = d
			}
			if votes && (!voted || d.Stricter(&strictest)) {
				strictest, voted = d, true
			}
		}
	}
	for i := range rs {
		r := &rs[i]
		r.decided = now
		switch { // counts
		case r.op != opSpend:
		case r.allowed && strictest.Allowed:
			r.allowances = 1
		case !r.allowed && !r.waits && (strictest.Allowed || r.mode != SpendOnly):
			r.denials = 1
		}
		if !strictest.Allowed {
			if r.to = r.from; ds != nil {
				ds[r.at].Taken = 0
			}
		}
	}
	return strictest, 0, nil
}

// decide is slowPath for a request of which the caller needs more than the
// decision. rs[0] becomes the request; shares are an error. The caller counts
// errors.
func (l *Limiter) decide(rs []request, req *Request, op op) (d Decision, err error) {
	rs[0].alone = true
	if err = rs[0].ask(l, req, op); err == nil {
		var in *cache.Batch
		if in, _, err = l.submit(rs[:1], &d, nil); err == nil {
			err = l.await(in)
		}
	}
	if err != nil {
		return Decision{}, err
	}
	return d, nil
}

// Reset makes the buckets full, as if they had never been used, and ends their
// holds. Requests that wait in their queues still go when their turns come.
// Keys are reset in order, until one fails. After ErrNotDurable the key that
// failed may be reset too. A Reset is as durable as a spend under the configured
// limit. It is durable at every level if no limit is configured, or if the Limit of
// a Request may have changed the bucket, in memory or before it was read from the
// file.
func (l *Limiter) Reset(keys ...Key) error {
	for _, key := range keys {
		if err := l.reset(key); err != nil {
			return l.failed(key, err)
		}
	}
	return nil
}

func (l *Limiter) reset(key Key) error {
	rs := [1]request{{asked: asked{key: key, op: opReset}}}
	r := &rs[0]
	if err := r.locate(l); err != nil {
		return err
	}
	if _, err := l.lockFound(rs[:]); err != nil {
		return err
	}
	now := l.clock.Now()
	g := r.advanceLocked(now)
	r.clampLocked(now) // so that a failed commit puts the clamped TAT back
	r.from = r.tat
	r.to = min(now, r.tat)
	if g != nil && g.Queue.Len() > 0 {
		r.turns = g.Queue.Take()
		r.shard.MarkDirty(r.index) // the store has the TAT after the turns
	}
	r.writeLocked(now)
	r.outliveGivenLocked()
	in := l.cache.ResetLocked(r.change(), now)
	r.shard.Mu.Unlock()
	return l.await(in)
}

// Raise takes tokens from a bucket, so that it is full no earlier than at the
// time full, and returns when it will be full. If that time has passed, Raise
// takes nothing. It is for buckets whose state is known from elsewhere: it
// keeps the emptier of two states, so nothing is spent twice, in whatever order they
// come. Raise empties a bucket at most. It changes no queue, and no bucket whose
// limit is Unlimited or Blocked. For these, and for a full bucket, it returns the
// present time.
//
// A quota that follows the calendar is full at the end of a period. A time within
// the present period takes nothing from a full one, and is returned. A time after
// its end takes a token for each nanosecond between them.
//
// The Limit of the Request counts, or else the configured one. Cost and Mode do
// not. The change is as durable as a spend. Errors are those of Spend, and
// errors.ErrUnsupported for a share of a total.
func (l *Limiter) Raise(req Request, full time.Time) (time.Time, error) {
	req.Mode, req.Cost = CheckAndSpend, l.clock.Instant(full)
	var rs [1]request
	d, err := l.decide(rs[:], &req, opRaise)
	if err != nil {
		return time.Time{}, l.failed(req.Key, err)
	}
	if d.Limit == (Limit{}) || d.Limit.IsBlocked() {
		return l.Now(), nil
	}
	return time.Unix(0, max(rs[0].to, rs[0].decided)), nil
}
