package stint

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/queue"
)

// Mode says what part a Request has in a SpendAll or Do.
type Mode uint8

// The modes. CheckAndSpend is the zero Mode.
//
// With UpTo, an unlimited bucket gives the whole cost, and one that is held, has a
// queue, or is Blocked gives nothing. The cost may be over the limit's Burst.
// Decision.Taken says how many it took, and the rest of the Decision is that of a
// spend of so many. If it can take none, it is denied, and RetryAfter is the wait for
// the first token.
const (
	CheckAndSpend Mode = iota // takes part in the decision, and spends
	CheckOnly                 // takes part in the decision, and spends nothing
	SpendOnly                 // takes no part in the decision, and spends if it can
	UpTo                      // takes as many of its tokens as there are; the request must be alone
)

// Request is one of several that are decided together.
//
// Limit is for programs that find the limit of a request themselves, such as the
// plan of a customer. It replaces the configured one for this request, at its own
// Durability, and may differ from request to request: a bucket is one number,
// whatever the limits are. Each request is held to its own limit, and all together
// spend no more than the largest allows, if they differ in their Burst only: 50 an
// hour and then 100 a day spend 145 tokens at one instant. A bucket that was
// emptied under a larger limit has no tokens for a smaller one until its ResetAfter
// is less than the smaller one's Tolerance. A bucket that is read from the file is
// cut down to the larger of the given and the configured limit: what a still larger
// one used beyond that is forgotten, unless the limit is a quota that follows the
// calendar. A Check does so, too, and so does the first request after a change of
// the configured limit, even in memory. If the given and the configured limit are
// quotas of different zones, starts or units, what was used is used under both,
// until the configured one's period ends. Stats count such a request like others.
//
// Leave is for requests that must not take the last tokens: background work that
// leaves 20 of 100 stops when 20 are left, and urgent requests, which leave none,
// still have these. A denial's RetryAfter says when there are Cost + Leave tokens.
// Remaining is what the bucket has. Cost + Leave over the Burst is
// ErrCostOverBurst. UpTo takes what is above Leave. Refund ignores it. Reserve and
// Wait refuse it, because a queue stands still behind a request that waits for
// tokens it must not take.
//
// If the Limit is not the configured one, a Leased limit commits every request
// as a Synced one does. A mistake in it is a ConfigError, and nothing is spent.
type Request struct {
	Key   Key
	Cost  int64 // in tokens, usually 1; a request that costs 0 spends nothing
	Leave int64 // tokens that must remain in the bucket after the request; usually 0
	Mode  Mode
	Limit Limit // zero: the configured one

	// Spent is for Refund: the instant of the spend, as Decision.At returns it. A
	// program may store it, and refund the tokens when it runs again. The refund
	// leaves out what has come back with time since. A time in the future counts as
	// the present. If SetOverrides has given the id a slower limit since the spend,
	// the refund may return tokens that came back under the faster one.
	Spent time.Time
}

// SpentAt returns the request with that Spent.
func (r Request) SpentAt(t time.Time) Request {
	r.Spent = t
	return r
}

// Decision is the answer to a request, and the state of the bucket that gave
// it. The zero Decision denies.
type Decision struct {
	Allowed    bool
	Taken      int64         // tokens that the request took: its cost, or fewer with UpTo; 0 if it took none
	Remaining  int64         // whole tokens left; math.MaxInt64 if it is Unlimited
	RetryAfter time.Duration // until the request would pass if no other spends; 0 if and only if Allowed
	ResetAfter time.Duration // until the bucket is full
	Key        Key           // the bucket that decided: of several, the strictest
	Limit      Limit         // the limit it was held to; Unlimited if there is none

	at int64 // instant of the decision
}

// At returns the instant of the decision, by the Limiter's clock. If the request took
// tokens, that is when: use it as Request.Spent to return them. The zero Decision has
// the zero time.
func (d *Decision) At() time.Time {
	if d.at == 0 && d.Key == (Key{}) {
		return time.Time{}
	}
	return time.Unix(0, d.at)
}

// SetAt sets the instant that At returns. It is for other Deciders than a Limiter.
func (d *Decision) SetAt(t time.Time) {
	if d.at = 0; !t.IsZero() {
		d.at = t.UnixNano()
	}
}

// Stricter reports whether d is a stricter decision than e: a longer
// RetryAfter, as a denial has, then fewer Remaining. The other fields only
// make the result independent of the order of comparison.
func (d *Decision) Stricter(e *Decision) bool {
	a, b := d.state(), e.state()
	if a == b {
		return e.Key.compare(d.Key) > 0
	}
	return a.Stricter(b) == 1
}

// Strictest returns the strictest of the decisions on requests, as Do does: that of
// SpendOnly requests does not count. If none counts, the result allows.
func Strictest(reqs []Request, ds []Decision) Decision {
	at := -1
	for i := range reqs {
		if reqs[i].Mode != SpendOnly && (at < 0 || ds[i].Stricter(&ds[at])) {
			at = i
		}
	}
	if at < 0 {
		return Decision{Allowed: true, Remaining: math.MaxInt64}
	}
	return ds[at]
}

func (d *Decision) state() gcra.State {
	return gcra.State{Wait: int64(d.RetryAfter), Remaining: d.Remaining, Reset: int64(d.ResetAfter)}
}

// request is one call for one bucket, in progress: what was asked, and the outcome.
// The cache.Bucket beside it is what was found.
type request struct {
	key     Key
	cost    int64
	leave   int64      // tokens that must remain
	given   *gcra.Rule // the caller's limit; nil: the configured one
	spent   int64      // of a refund: instant of the spend
	mode    Mode
	refunds bool // it gives tokens back
	retries bool // it is tried until it passes: a denial does not count

	to              int64       // TAT after the request
	turn            *queue.Turn // that joined the queue
	allowed         bool
	counted         int        // as allowed, so many times
	level           gcra.Level // of the given limit; 0: that of the bucket's rule
	survivesFailure bool       // of the commit
}

// spends reports whether the request takes tokens.
func (r *request) spends() bool { return !r.refunds && r.mode != CheckOnly }

// ask makes r the request for one bucket that a caller made, and b that bucket.
// The error says what is wrong with the Request.
func (r *request) ask(l *Limiter, req *Request, b *cache.Bucket) (err error) {
	if err = l.limits.Load().check(req, r.refunds); err != nil {
		return err
	}
	r.key, r.cost, r.leave, r.mode = req.Key, req.Cost, req.Leave, req.Mode
	if r.refunds {
		r.leave, r.spent = 0, l.clock.Instant(req.Spent)
		if r.mode == CheckOnly {
			r.cost = 0
		}
	}
	if !req.Limit.isZero() {
		if r.given, err = l.given.of(req.Limit); err != nil {
			return err
		}
		if b.Need = cache.Never; r.given.Limited() {
			b.Need = cache.Always
		}
	}
	b.Key = cacheKey(r.key)
	l.cache.Locate(b)
	return nil
}

// Check returns the configured limit of a request's bucket, and what is wrong with a
// request to spend or to refund, as far as that is known without the bucket: the
// errors of Do or of Refund. It is for other Deciders than a Limiter.
func (ls *Limits) Check(req *Request, refunds bool) (configured Limit, err error) {
	if err := ls.check(req, refunds); err != nil {
		return Limit{}, err
	}
	rule, err := ls.resolve(req.Key)
	if err != nil {
		return Limit{}, err
	}
	configured.set(&ls.rules[rule])
	limit, cost := &configured, req.Cost
	if !req.Limit.isZero() {
		if err := req.Limit.Validate(); err != nil {
			return Limit{}, err
		}
		limit = &req.Limit
	}
	if req.Mode == UpTo {
		cost = min(cost, 1)
	}
	if limit.kind == limitedKind && !refunds && (cost > limit.Burst || req.Leave > limit.Burst-cost) {
		return Limit{}, ls.overBurst(req.Key, cost, req.Leave, limit.Burst)
	}
	return configured, nil
}

// check is Check without the limit.
func (ls *Limits) check(req *Request, refunds bool) error {
	switch {
	case req.Mode > UpTo:
		return fmt.Errorf("stint: %s: there is no Mode %d", ls.labeled(req.Key), req.Mode)
	case req.Leave < 0 && !refunds:
		return fmt.Errorf("stint: %s: Leave is %d, want 0 or more", ls.labeled(req.Key), req.Leave)
	case req.Cost < 0:
		return fmt.Errorf("%w: %d for %v", ErrNegativeCost, req.Cost, ls.labeled(req.Key))
	case refunds && req.Cost > 0 && req.Mode != CheckOnly && req.Spent.IsZero():
		return fmt.Errorf("stint: refund %s: the request has no Spent, want the instant of the spend, as "+
			"Decision.At returns it", ls.labeled(req.Key))
	}
	return checkID(req.Key.ID)
}

func checkID(id string) error {
	if len(id) > maxIDLen {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrInvalidID, len(id), maxIDLen)
	}
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

// useConfiguredLocked drops a given limit that equals the configured one. Only
// that has leases. level is the default level.
func (r *request) useConfiguredLocked(b *cache.Bucket, level Durability) {
	if r.given == nil {
		return
	}
	if given := limitOf(r.given); given.is(b.RuleLocked(), level) {
		r.given = nil
	} else {
		r.level = r.given.Level.Or(gcra.Level(level))
	}
}

// ruleLocked returns the rule that the request is held to.
func (r *request) ruleLocked(b *cache.Bucket) *gcra.Rule {
	if r.given != nil {
		return r.given
	}
	return b.RuleLocked()
}

// decideLocked decides at the instant now, and sets the new TAT of the bucket.
func (r *request) decideLocked(l *Limiter, b *cache.Bucket, now int64, d *Decision) error {
	rule := r.ruleLocked(b)
	g := b.ReadyLocked(rule, now)
	keeper := rule // gives the TAT its meaning: of two quotas the configured one, not the given one
	if configured := b.RuleLocked(); rule.Periods != nil && configured.Periods != nil {
		keeper = configured
	}
	r.to = b.TAT
	next, at, taken := rule.After(keeper, g.Tail(b.TAT), now, false), rule.At(now), int64(0)
	var found gcra.State
	switch {
	case !rule.Limited():
		found = r.withoutNumbers(rule, g, now)
	case r.refunds:
		r.to = keeper.Refund(b.TAT, now, r.cost, r.spent)
		next = rule.After(keeper, g.Tail(r.to), now, false)
	default:
		if r.mode == UpTo && r.cost > 0 {
			r.cost = max(1, min(r.cost, rule.Remaining(next, now)-r.leave))
		}
		if !rule.Rate.Admits(r.cost, r.leave) {
			return l.limits.Load().overBurst(r.key, r.cost, r.leave, rule.Rate.Burst)
		}
		tail := next
		next, at, found.Wait = rule.Spend(tail, now, r.cost, r.leave)
		if early := g.NotBefore() - now; early > found.Wait {
			next, found.Wait = tail, early
		}
		if found.Wait == 0 {
			r.to = keeper.After(rule, next, now, false)
		}
	}
	if rule.Limited() {
		found.Remaining, found.Reset = rule.Holds(next, now, at)
	}
	if found.Wait == 0 && r.spends() {
		taken = r.cost
	}
	report(d, &r.key, rule, found.Wait, found.Remaining, found.Reset, taken, now)
	return nil
}

// withoutNumbers returns the state of a bucket whose limit is Unlimited or Blocked.
func (r *request) withoutNumbers(rule *gcra.Rule, g *cache.Gate, now int64) (found gcra.State) {
	if rule.Kind == uint8(unlimitedKind) {
		found.Remaining = math.MaxInt64
		if g != nil && !r.refunds {
			found.Wait = max(0, g.Hold-now)
		}
	} else if !r.refunds {
		found.Wait, found.Reset = math.MaxInt64, math.MaxInt64
	}
	return found
}

// overBurst returns the error of a request that its bucket can never hold.
func (ls *Limits) overBurst(key Key, cost, leave, burst int64) error {
	left := ""
	if leave > 0 {
		left = fmt.Sprintf(", which leave %d,", leave)
	}
	return fmt.Errorf("%w: %d%s of %d for %v", ErrCostOverBurst, cost, left, burst, ls.labeled(key))
}

// writeLocked gives the bucket its new TAT.
func (r *request) writeLocked(b *cache.Bucket, now int64) {
	if r.mode == CheckOnly || r.cost == 0 {
		r.to = b.TAT
	}
	b.PutLocked(r.to, r.ruleLocked(b), now, r.mode == CheckOnly)
}

// change returns the change that the request made, for the cache.
func (r *request) change(b *cache.Bucket) cache.Change {
	return cache.Change{
		Key: b.Key, Shard: b.Shard, Hash: b.Hash, From: b.TAT, To: r.to, Given: r.level, Turn: r.turn,
		Counted: r.counted, SurvivesFailure: r.survivesFailure, Builds: r.refunds && r.cost > 0,
	}
}

// submitLocked puts the changes of requests into a commit if the store needs them
// before the answer. Otherwise it returns nil.
func (l *Limiter) submitLocked(rs []request, bs []cache.Bucket, now int64) *cache.Batch {
	var few [few]cache.Change
	changes := few[:0]
	for i := range bs {
		changes = append(changes, rs[bs[i].At].change(&bs[i]))
	}
	return l.cache.SubmitLocked(changes, now)
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
