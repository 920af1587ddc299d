package stint

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Mode says what part a Request has in a SpendAll or Do.
type Mode uint8

// The modes. CheckAndSpend is the zero Mode.
//
// UpTo takes none from a bucket that is held, has a queue, or is Blocked, and all
// of its tokens from one without a limit. The cost may be over the limit's Burst.
// Decision.Taken says how many it took, and the rest of the Decision is that of a
// spend of so many. If the limit is a share of a total, it takes what ceiling, floor
// and total have.
const (
	CheckAndSpend Mode = iota // takes part in the decision, and spends
	CheckOnly                 // takes part in the decision, and spends nothing
	SpendOnly                 // takes no part in the decision, and spends if it can
	UpTo                      // takes as many of its tokens as there are; the request must be alone
)

// Request is one of several that are decided together.
//
// Limit is for programs that find the limit of a request themselves, such as
// the plan of a customer. It replaces the configured one for this request, at
// its own Durability, and may differ from request to request: a bucket is one
// number, whatever the limits are. Each request is held to its own limit, and all
// together spend no more than the largest allows, if all of them follow the same
// calendar, or none follows one. A bucket that was emptied under a larger limit
// has no tokens for a smaller one until its ResetAfter is less than the smaller
// one's Tolerance. A bucket that is read from the file is cut down to the larger
// of the given and the configured limit: what a still larger one used beyond that
// is forgotten, unless the limit is a quota that follows the calendar. A Check does
// so, too, and so does the first request after a change of the configured limit,
// even in memory. Stats count such a request like others.
//
// If the Limit is not the configured one, a Leased limit commits every request
// as a Synced one does. A mistake in it is a ConfigError, and nothing is spent.
type Request struct {
	Key   Key
	Cost  int64 // in tokens, usually 1; a request that costs 0 spends nothing
	Mode  Mode
	Limit Limit // zero: the configured one

	// Spent is for Refund: the instant of the spend, as Wait returns it, or an
	// instant before that, by Limiter.Now. The refund leaves out what has come
	// back with time since. JustSpent says that the instant is not known. If
	// SetOverrides has given the id a slower limit since the spend, the refund may
	// return tokens that came back under the faster one.
	Spent time.Time
}

// SpentAt returns the request with that Spent.
func (r Request) SpentAt(t time.Time) Request {
	r.Spent = t
	return r
}

// JustSpent is the Spent of a refund that returns the whole cost, as if the tokens
// had been taken at this moment. It is for callers that do not know the instant,
// such as an operator. If some tokens have come back with time since the spend, the
// bucket then admits more than its limit.
var JustSpent = time.Unix(0, math.MaxInt64)

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

// Stricter reports whether d is a stricter decision than e: a longer
// RetryAfter, as a denial has, then fewer Remaining. The other fields only
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
	waits bool // it is tried until it passes: a denial does not count
	alone bool // it cannot be one for a share
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
	drawn    *drawn      // set if other groups of this call have the same total
}

// outcome is what a request did to its bucket.
type outcome struct {
	decided  int64         // by submit: instant of the decision
	from, to int64         // TAT before the request, and after it
	turn     *queue.Turn   // that joined the queue
	turns    []*queue.Turn // that a reset took out of the queue

	allowances, denials int32 // decisions to count

	allowed bool
	stays   bool // even if the commit fails
}

// group is a request for a class or a total, with a part for each bucket.
type group struct {
	at   [totalRole + 1]int // by role: index in the sorted requests
	has  [totalRole + 1]bool
	upTo bool
}

// drawn is what the groups of a call have drawn from one total so far, in the order
// of the requests.
type drawn struct {
	begun    bool
	from, to int64 // TAT of the total
	asked    int64 // tokens of those that take part in the decision, and spend
	lacked   int64 // of these, tokens of those that were denied
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

// useConfiguredLocked drops a given limit that equals the configured one. Only
// that has leases. level is the default level.
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

// ruleLocked returns the rule that the request is held to.
func (r *request) ruleLocked() *rule {
	if r.given != nil {
		return r.given
	}
	return &limitsIn(r.shard).rules[r.rule]
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
			r.cost = 0 // it is full by then
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

// report puts the limit, and what a bucket with this TAT holds, into d.
func (r *rule) report(d *Decision, tat, now int64) { r.reportAt(d, tat, now, r.at(now)) }

// reportAt is report for callers that have r.at(now).
func (r *rule) reportAt(d *Decision, tat, now, at int64) {
	d.Limit = r.limit
	remaining, reset := r.holds(tat, now, at)
	d.Remaining, d.ResetAfter = remaining, time.Duration(reset)
}

// countLocked counts the decisions to spend.
func (r *request) countLocked() {
	if r.allowances+r.denials > 0 {
		c := r.shard.CountLocked(uint16(r.key.Name))
		c[0], c[1] = c[0]+uint64(r.allowances), c[1]+uint64(r.denials)
	}
}

// denied returns 0 or 1, without a branch.
func denied(allowed bool) uint {
	if !allowed {
		return 1
	}
	return 0
}

// writeLocked gives the bucket its new TAT, and a slot if it needs one.
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

// change returns the change that the request made, for the cache.
func (r *request) change() cache.Change {
	return cache.Change{
		Key: cacheKey(r.key), Shard: r.shard, Hash: r.hash, From: r.from, To: r.to, Given: r.level, Turn: r.turn,
		Turns: r.turns, Counted: int(r.allowances), Stays: r.stays,
		Builds: r.op == opReset || (r.op == opRefund || r.op == opRaise) && r.cost > 0,
	}
}

// outliveGivenLocked makes a reset Synced if a given limit may have changed the
// bucket in the store: no limit is configured, or the bucket was loaded. At which
// level that was is not known any more.
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

// sortRequests sorts by the order of locking. Equal keys become neighbours.
func sortRequests(rs []request) {
	slices.SortFunc(rs, func(a, b request) int {
		if c := cmp.Compare(a.shard.Order, b.shard.Order); c != 0 {
			return c
		}
		if c := cmp.Compare(a.hash, b.hash); c != 0 {
			return c
		}
		if c := a.key.compare(b.key); c != 0 || a.added == b.added {
			return c
		} else if a.added {
			return 1
		}
		return -1
	})
}

// lockFound locks the shards of sorted requests, once every bucket is known, and
// loads only those that are not. After an error, which is that of rs[at], no shard
// is locked.
func (l *Limiter) lockFound(rs []request) (at int, err error) {
	for !lockAll(rs) {
		unlockAll(rs)
		for i := range rs {
			if rs[i].known {
				continue
			}
			if err := l.load(&rs[i]); err != nil {
				return i, err
			}
		}
	}
	for i := range rs {
		if rs[i].shard.Limits == nil {
			unlockAll(rs)
			return i, ErrClosed
		}
	}
	return 0, nil
}

// lockAll locks the shards of sorted requests, and reports whether the state of
// every bucket is known.
func lockAll(rs []request) (known bool) {
	known = true
	for i := range rs {
		r := &rs[i]
		if i == 0 || r.shard != rs[i-1].shard {
			r.shard.Lock()
		}
		r.known = r.findLocked()
		known = known && r.known
	}
	return known
}

func unlockAll(rs []request) {
	for i := range rs {
		if i == 0 || rs[i].shard != rs[i-1].shard {
			rs[i].shard.Mu.Unlock()
		}
	}
}

// writeAllLocked carries decisions out. Buckets in memory come first, because a slot
// that is inserted may move others of its shard.
func writeAllLocked(rs []request, now int64) {
	for i := range rs {
		rs[i].countLocked()
	}
	for _, resident := range []bool{true, false} {
		for i := range rs {
			if rs[i].resident == resident {
				rs[i].writeLocked(now)
			}
		}
	}
}

// submitLocked puts the changes of requests into a commit if the store needs them
// before the answer. Otherwise it returns nil.
func (l *Limiter) submitLocked(rs []request, now int64) *cache.Batch {
	var few [4]cache.Change
	changes := few[:0]
	for i := range rs {
		changes = append(changes, rs[i].change())
	}
	return l.cache.SubmitLocked(changes, now)
}

// askedOf returns the caller's key for rs[at]: not that of its total or floor.
func askedOf(rs []request, at int) Key {
	for i := range rs {
		if r := &rs[i]; !r.added && r.at == rs[at].at {
			return r.key
		}
	}
	return Key{}
}

// spot is a bucket in memory, with the decision on it.
type spot struct {
	located
	index uint32
	rule  *rule
	next  int64 // new TAT
	state
}

// fewSpots is how many requests the fast path takes at most.
const fewSpots = 4

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
