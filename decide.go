package stint

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Decision is the answer to a request, and the state of the bucket that gave
// it. The zero Decision denies.
type Decision struct {
	Allowed    bool
	Taken      int64         // tokens that the request took: its cost, or fewer with UpTo; 0 if it took none
	Remaining  int64         // whole tokens left; math.MaxInt64 if no limit is configured
	RetryAfter time.Duration // until the request would pass if no other spends; 0 if and only if Allowed
	ResetAfter time.Duration // until the bucket is full
	Key        Key           // the bucket that decided: of several, the strictest
	Limit      Limit         // the limit it was held to; zero if none is configured

	_ int64 // the length is a multiple of 16 bytes with it: a Spend takes 5 to 8 % less time (TestGuard)
}

// Stricter reports whether d is a stricter decision than e: the longer
// RetryAfter, which a denial has, then the fewer Remaining. The other fields only
// make the result independent of the order of comparison.
func (d *Decision) Stricter(e *Decision) bool {
	a, b := d.state(), e.state()
	if a == b {
		return e.Key.compare(d.Key) > 0
	}
	return a.stricter(b) == 1
}

func (d *Decision) state() state {
	return state{int64(d.RetryAfter), d.Remaining, int64(d.ResetAfter)}
}

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

// Reset makes the buckets full, as if they had never been used, and ends their
// holds. Requests that wait in their queues still go when their turns come.
// Keys are reset in order, until one fails. After ErrNotDurable the key that
// failed may be reset too. A Reset is as durable as a spend under the configured
// limit. It is durable at every level if no limit is configured, or if the Limit of
// a Request may have changed the bucket: it has since the bucket came into memory,
// or the bucket was read from the file.
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
	r.clampLocked(now) // for an undo
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
// takes nothing. It is for buckets whose state is known from elsewhere: of two
// states the emptier stays, so nothing is spent twice, in whatever order they
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
		return time.Time{}, err
	}
	if d.Limit == (Limit{}) || d.Limit.IsBlocked() {
		return l.Now(), nil
	}
	return time.Unix(0, max(rs[0].to, rs[0].decided)), nil
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

// located is the place of a bucket that may be in memory.
type located struct {
	shard *cache.Shard
	hash  uint64
}

// locate returns the place of a bucket.
func (l *Limiter) locate(key Key) (at located) {
	at.shard, at.hash = l.cache.Shard(uint16(key.Name), key.ID)
	return at
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
// SetLimits under way may bring it: so a fast path asks the limits of the shard
// again.
func (l *Limiter) isShare(name Name) bool {
	return l.hasShares.Load() && l.limits.Load().isShare(name)
}

func (ls *Limits) isShare(name Name) bool {
	return ls.members != nil && ls.member(name).role != plainRole
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
	if a.lane != nil && a.isIn(a.lane) {
		if answer := l.decideInLane(a.lane, a, d, laneTries); answer != fastDeclined {
			return answer
		}
	}
	contended := !s.Mu.TryLock()
	if contended {
		s.Mu.Lock()
	}
	var answer fastAnswer
	if n := l.cache.Lane(a.hash); n != nil && a.isIn(n) { // while this waited for the lock
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
		s.CountLocked(uint16(a.key.Name), denied(wait))
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

// limitsIn returns the limits in force in a shard, or nil once it is closed.
func limitsIn(s *cache.Shard) *Limits {
	ls, _ := s.Limits.(*rulesInForce)
	return (*Limits)(ls)
}

// rulesInForce are Limits as the cache has them.
type rulesInForce Limits

func forCache(ls *Limits) cache.Limits { return (*rulesInForce)(ls) }

// Rule implements cache.Limits.
func (ls *rulesInForce) Rule(i uint32) (cache.Level, *cache.Lease) {
	r := &ls.rules[i]
	return cache.Level(r.limit.Durability), &r.rate.lease
}

// cacheKey returns a key as package cache has it.
func cacheKey(key Key) cache.Key { return cache.Key{Name: uint16(key.Name), ID: key.ID} }

func (a *ask) isIn(n *cache.Lane) bool { return n.Is(uint16(a.key.Name), a.key.ID, a.hash) }

// laneTries is how often a decision tries to swap the TAT of a lane without the
// lock of the shard.
const laneTries = 2

// decideInLane is fastPathLocked without a lock. It declines if it cannot swap the
// TAT in as many tries.
func (l *Limiter) decideInLane(n *cache.Lane, a *ask, d *Decision, tries int) fastAnswer {
	r, now := &n.Limits.(*rulesInForce).rules[n.Rule], a.now
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
// and gives the bucket a lane if that happens often. A bucket gets none if its
// limit is Leased or Synced or follows the calendar.
func (l *Limiter) contendedLocked(a *ask) {
	s := a.shard
	i, ok := s.Find(uint16(a.key.Name), a.key.ID, a.hash)
	if !ok || !s.ContendedLocked(i) {
		return
	}
	l.promoteLocked(a.located, i)
}

func (l *Limiter) promoteLocked(at located, i uint32) {
	r := &limitsIn(at.shard).rules[at.shard.At(i).Rule()]
	if r.limited() && r.periods == nil && r.level(l.opts.Durability) < Leased {
		if b := at.shard.At(i); r.clamp(b.TAT(), l.clock.Now()) == b.TAT() {
			b.Clear(table.Uncut)
		}
		at.shard.PromoteLocked(i, at.hash)
	}
}

// denied returns 1 if a decision with this wait denies, and otherwise 0.
func denied(wait int64) uint {
	if wait != 0 {
		return 1
	}
	return 0
}

// slowPathOne is slowPath for one request.
func (l *Limiter) slowPathOne(key Key, cost int64, mode Mode, d *Decision) error {
	return l.slowPath(context.Background(), []Request{{Key: key, Cost: cost, Mode: mode}}, d, nil, opSpend)
}

// decide is slowPath for a request of which the caller needs more than the
// decision. It is put into rs[0].
func (l *Limiter) decide(rs []request, req *Request, op op) (d Decision, err error) {
	if err := rs[0].ask(l, req, op); err != nil {
		return Decision{}, l.failed(req.Key, err)
	}
	in, _, err := l.submit(rs[:1], &d, nil)
	if err == nil {
		err = l.failed(req.Key, l.await(in))
	}
	if err != nil {
		return Decision{}, err
	}
	return d, nil
}

// failed counts an error against the key's limit, and returns the error. A nil
// err does nothing.
func (l *Limiter) failed(key Key, err error) error {
	if err == nil {
		return nil
	}
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	if l.limits.Load().label(key.Name) == "" {
		key.Name = Unknown // names that are not declared must not fill the memory
	}
	l.errs[key.Name]++
	return err
}

// await waits for a commit, or returns at once if it is nil.
func (l *Limiter) await(in *cache.Batch) error {
	if in == nil {
		return nil
	}
	return l.cache.Await(context.Background(), time.Now(), in)
}

// op is an operation on a bucket.
type op uint8

const (
	opSpend op = iota
	opCheck
	opRefund
	opReset
	opRaise // its cost is an instant
	opHold  // it needs no bucket
)

// request is one call for one bucket, in progress.
type request struct {
	asked
	found
	outcome
}

// asked is what a call asks of one bucket.
type asked struct {
	key   Key
	cost  int64
	given *rule  // the caller's limit; nil: the configured one
	spent int64  // of a refund: instant of the spend; 0 if it is unknown
	at    int    // index in the caller's requests
	nth   int    // rs[i].nth is the index in rs, which are sorted, of the caller's i-th request
	group *group // nil if its bucket decides alone
	full  error  // returned in place of a wait for space in memory; nil: wait
	op    op
	mode  Mode
	role  role
	added bool // for a class: its total or floor
	waits bool // it asks until it passes: a denial does not count
}

// found is the bucket that a request found.
type found struct {
	located
	tat   int64 // in the slot, or as loaded
	index uint32
	rule  uint32 // configured: index in rules of the shard's limits

	limits   *Limits // at the last load; nil before it
	saved    int64   // TAT in the store at that load
	removals uint32  // of the shard before that load

	known    bool        // findLocked found the state of the bucket
	resident bool        // in memory: index is valid
	level    cache.Level // of the given limit; 0: that of the bucket's rule
	drawn    *drawn      // if other groups of this call have the same total
}

// outcome is what a request did to its bucket.
type outcome struct {
	decided  int64         // by submit: instant of the decision
	from, to int64         // TAT before the request, and after it
	turn     *queue.Turn   // that joined the queue
	turns    []*queue.Turn // that a reset took out of the queue
	counted  int32         // as allowed, so many times
	allowed  bool
	stays    bool // even if the commit fails
}

// change returns the change that the request made, as the cache has it.
func (r *request) change() cache.Change {
	return cache.Change{
		Key: cacheKey(r.key), Shard: r.shard, Hash: r.hash, From: r.from, To: r.to, Given: r.level, Turn: r.turn,
		Turns: r.turns, Counted: int(r.counted), Builds: r.builds(), Stays: r.stays,
	}
}

// locate checks what can be checked without the bucket, and finds its shard.
func (r *request) locate(l *Limiter) error {
	if r.cost < 0 {
		return fmt.Errorf("%w: %d for %v", ErrNegativeCost, r.cost, l.limits.Load().labeled(r.key))
	}
	if len(r.key.ID) > maxIDLen {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrInvalidID, len(r.key.ID), maxIDLen)
	}
	r.located = l.locate(r.key)
	r.shard.Prefetch(r.hash)
	return nil
}

// builds reports whether the answer builds on the TAT that the request finds,
// even if the request changes nothing.
func (r *request) builds() bool {
	return r.op == opReset || (r.op == opRefund || r.op == opRaise) && r.cost > 0
}

// ask makes r the request for one bucket that a caller made, and finds its shard.
// The error says what is wrong with the Request.
func (r *request) ask(l *Limiter, req *Request, op op) (err error) {
	if req.Mode > UpTo {
		return fmt.Errorf("stint: %s: there is no Mode %d", l.limits.Load().labeled(req.Key), req.Mode)
	}
	r.key, r.cost, r.op, r.mode = req.Key, req.Cost, op, req.Mode
	if !req.Limit.isZero() {
		if r.given, err = l.given.of(req.Limit); err != nil {
			return err
		}
	}
	return r.locate(l)
}

// useConfiguredLocked drops a given limit that equals the configured one. Only
// the configured limit has leases, which last for several requests. level is the
// default.
func (r *request) useConfiguredLocked(level Durability) {
	if r.given != nil && same(r.given.limit, limitsIn(r.shard).rules[r.rule].limit, level) {
		r.given = nil
	}
	if r.level = 0; r.given != nil {
		r.level = cache.Level(r.given.level(level))
	}
}

// same reports whether two limits are the same. A limit without a level has the
// default level.
func same(a, b Limit, level Durability) bool {
	a.Durability, b.Durability = cmp.Or(a.Durability, level), cmp.Or(b.Durability, level)
	return a == b
}

// outliveGivenLocked makes a reset durable if given limits have changed the bucket
// in the store, or may have: no limit is configured, or the bucket was loaded. At
// which level they did so is not known any more.
func (r *request) outliveGivenLocked() {
	i, ok := r.shard.Find(uint16(r.key.Name), r.key.ID, r.hash)
	if !ok {
		return
	}
	b := r.shard.At(i)
	if b.Has(table.Stored) && (b.Has(table.Flush|table.Loaded) || b.Rule() <= blocked) {
		r.level = cache.Level(Synced)
	}
}

// findLocked reports whether the state of the bucket is known: it is in
// memory, or it was loaded and no bucket has left the shard since.
func (r *request) findLocked() bool {
	s := r.shard
	if r.index, r.resident = s.Find(uint16(r.key.Name), r.key.ID, r.hash); r.resident {
		b := s.At(r.index)
		r.tat = b.TAT()
		if rule := b.Rule(); rule != 0 || (r.given != nil || r.op == opReset) && limitsIn(s).accepts(r.key) {
			r.rule = rule
			return true
		}
	}
	return r.limits == limitsIn(s) && (r.resident || r.removals == s.Removals())
}

// load asks the store for the TAT of a bucket that is not in memory. A request
// that needs no bucket, because its limit is Unlimited or Blocked, does not wait
// for space in memory. Nor does a hold.
func (l *Limiter) load(r *request) error {
	if needs, err := r.resolve(); err != nil || !needs {
		return err
	}
	if l.cache.Full() {
		if r.full != nil {
			return r.full
		}
		if err := l.cache.MakeSpace(); err != nil {
			return err
		}
		if needs, err := r.resolve(); err != nil || !needs { // again: buckets have left memory
			return err
		}
	}
	var err error
	r.saved, err = l.cache.Load(uint16(r.key.Name), r.key.ID)
	r.tat = r.saved
	return err
}

// resolve finds the limit of a bucket that is not in memory, and reports whether
// the request needs the bucket's TAT.
func (r *request) resolve() (needs bool, err error) {
	r.shard.Mu.Lock() // a lane may stay
	limits, removals := limitsIn(r.shard), r.shard.Removals()
	r.shard.Mu.Unlock()
	if limits == nil {
		return false, ErrClosed
	}
	rule, err := limits.resolve(r.key)
	if err != nil {
		return false, err
	}
	r.rule, r.limits, r.removals, r.saved, r.tat = rule, limits, removals, 0, 0
	needs = rule > blocked
	if r.given != nil {
		needs = r.given.limited()
	}
	return r.op == opReset || needs && r.op != opHold, nil
}

// advanceLocked charges the turns of the bucket that have come, and returns its
// gate, or nil.
func (r *request) advanceLocked(now int64) *cache.Gate {
	g := r.shard.GateLocked(cacheKey(r.key))
	if g != nil && r.resident {
		b := r.shard.At(r.index)
		r.shard.AdvanceLocked(b, g, now)
		r.tat = b.TAT()
	}
	return g
}

// decideLocked decides at the instant now, and sets the new TAT of the bucket.
func (r *request) decideLocked(now int64, d *Decision) error {
	d.Key = r.key
	g := r.advanceLocked(now)
	if r.drawn != nil && r.drawn.begun {
		r.tat = r.drawn.to
	}
	rule := r.ruleLocked()
	r.clampLocked(now)
	r.from, r.to = r.tat, r.tat
	if !rule.limited() {
		d.Limit = rule.limit
		switch isBlocked := rule.limit.IsBlocked(); {
		case isBlocked && r.op != opRefund:
			d.RetryAfter, d.ResetAfter = math.MaxInt64, math.MaxInt64
		case !isBlocked:
			d.Remaining = math.MaxInt64
			if g != nil && r.op != opRefund {
				d.RetryAfter = max(0, time.Duration(g.Hold-now))
			}
		}
		d.Allowed = d.RetryAfter == 0
		r.reportTaken(d)
		return nil
	}
	if r.op == opRefund || r.op == opRaise {
		if r.op == opRefund {
			r.to = rule.refund(r.tat, now, r.cost, r.spent)
		} else if r.cost > now {
			r.to = max(r.tat, rule.clamp(r.cost, now))
		} else {
			r.cost = 0 // it asks for nothing
		}
		d.Allowed = true
		rule.report(d, g.Tail(r.to), now)
		return nil
	}
	if r.mode == UpTo {
		r.cost = min(r.cost, rule.remaining(g.Tail(r.tat), now))
	}
	if r.cost > rule.rate.burst {
		return fmt.Errorf("%w: %d of %d for %v", ErrCostOverBurst, r.cost, rule.rate.burst,
			limitsIn(r.shard).labeled(r.key))
	}
	next, found := rule.decide(g.Tail(r.tat), now, r.cost, g.NotBefore())
	if found.wait == 0 {
		r.to = next
	}
	found.report(d, rule)
	r.reportTaken(d)
	return nil
}

// reportTaken puts what a request takes into the decision on it.
func (r *request) reportTaken(d *Decision) {
	if d.Taken = 0; d.Allowed && r.op == opSpend {
		d.Taken = r.cost
	}
}

// report puts the state, and the limit, into d.
func (a *state) report(d *Decision, r *rule) {
	d.Allowed = a.wait == 0
	d.Remaining = a.remaining
	d.RetryAfter = time.Duration(a.wait)
	d.ResetAfter = time.Duration(a.reset)
	d.Limit = r.limit
	d.Taken = 0
}

// ruleLocked returns the rule that the request is held to.
func (r *request) ruleLocked() *rule {
	if r.given != nil {
		return r.given
	}
	return &limitsIn(r.shard).rules[r.rule]
}

// clampLocked clamps a TAT that was loaded, or that is in memory while no request
// has come since the limit became smaller. Any other bucket in memory stays as it
// is: a larger given limit may have emptied it.
func (r *request) clampLocked(now int64) {
	if r.resident && !r.shard.At(r.index).Has(table.Uncut) || r.tat <= now {
		return
	}
	configured, held := &limitsIn(r.shard).rules[r.rule], r.ruleLocked()
	if !configured.limited() && !held.limited() {
		return
	}
	most := int64(0)
	for _, rule := range [...]*rule{configured, held} {
		if rule.limited() {
			most = max(most, rule.clamp(math.MaxInt64, now))
		}
	}
	if r.resident {
		r.shard.At(r.index).Clear(table.Uncut)
		if most < r.tat {
			r.shard.LowerLocked(r.index, most)
		}
	}
	r.tat = min(r.tat, most)
}

// report puts the limit, and what a bucket with this TAT holds, into d.
func (r *rule) report(d *Decision, tat, now int64) { r.reportAt(d, tat, now, r.at(now)) }

// reportAt is report for callers that have r.at(now).
func (r *rule) reportAt(d *Decision, tat, now, at int64) {
	d.Limit = r.limit
	remaining, reset := r.holds(tat, now, at)
	d.Remaining, d.ResetAfter = remaining, time.Duration(reset)
}

// countLocked counts a decision to spend.
func (r *request) countLocked(allowed bool) {
	if r.op == opSpend && (allowed || !r.waits) {
		wait := int64(1)
		if allowed {
			r.counted, wait = 1, 0
		}
		r.shard.CountLocked(uint16(r.key.Name), denied(wait))
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
		s.LowerLocked(r.index, r.to)
	case r.resident && r.op != opCheck:
		s.Use(r.index)
	case r.resident:
	case r.saved != 0 || r.ruleLocked().limited() && (r.to > now || s.GateLocked(cacheKey(r.key)) != nil):
		flags := uint64(0)
		if r.saved != 0 {
			flags = table.Stored | table.Loaded
		}
		if r.to != r.saved {
			flags |= table.Dirty
		}
		r.index = s.InsertLocked(uint16(r.key.Name), r.key.ID, r.hash, r.to, r.rule, flags)
	}
}
