package stint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/stint-go/stint/internal/table"
)

// Mode says what part a Request has in a SpendAll.
type Mode uint8

// The modes. CheckAndSpend is the zero Mode.
const (
	CheckAndSpend Mode = iota // takes part in the decision, and spends
	CheckOnly                 // takes part in the decision, and spends nothing
	SpendOnly                 // takes no part in the decision, and spends if it can
)

// Request is one of several that are decided together.
//
// Limit is for programs that find the limit of a request themselves, such as
// the plan of a customer. It replaces the configured one for this request, at
// its own Durability, and may differ from request to request: a bucket is one
// number, whatever the limits are. Each request is held to its own limit, and
// all together spend no more than the largest allows. A bucket that was emptied
// under a larger limit has no tokens for a smaller one until its ResetAfter is
// less than the smaller one's Tolerance. Only a bucket that is read from the
// file is cut down, to the larger of the given and the configured limit. Stats
// count such a request like others.
//
// If the Limit is not the configured one, a Leased limit commits every request
// as a Synced one does. A mistake in it is a ConfigError, and nothing is spent.
type Request struct {
	Key   Key
	Cost  int64
	Mode  Mode
	Limit Limit // zero: the configured one
}

// SpendAll decides several requests at one instant, and spends for all of them
// or for none; no other call sees a part of it. It returns the strictest
// decision. A denial is stricter than a decision that allows. Among denials the
// longest RetryAfter is the strictest, and otherwise the smallest Remaining. If
// no request takes part in the decision, it allows. After an error, such as
// ErrDuplicateKey, nothing was spent, except as Spend says of ErrNotDurable.
func (l *Limiter) SpendAll(reqs ...Request) (Decision, error) {
	return l.all(context.Background(), reqs, nil, opSpend)
}

// SpendTogether is SpendAll that also puts the decision on reqs[i] into ds[i].
// If the strictest decision denies, nothing was spent, and the others are what
// Check would return. After an error every decision is the zero one, which
// denies. Nothing was spent, except that after ErrNotDurable the tokens of all
// requests may stay spent.
func (l *Limiter) SpendTogether(reqs []Request, ds []Decision) (Decision, error) {
	return l.SpendTogetherContext(context.Background(), reqs, ds)
}

// RefundAll returns what a SpendAll of the same requests spent, as Refund
// does, and returns the strictest decision. For a CheckOnly request it only
// reports the state. A SpendOnly request is refunded even if SpendAll had too
// few tokens for it: leave such a request out.
func (l *Limiter) RefundAll(reqs ...Request) (Decision, error) {
	return l.all(context.Background(), reqs, nil, opRefund)
}

// located is the place of a bucket that may be in memory.
type located struct {
	shard *shard
	hash  uint64
}

// spot is a bucket in memory, with the change that SpendAll makes.
type spot struct {
	located
	index uint32
	next  int64 // new TAT
	wait  int64
}

// fastPathAll is fastPath for a few requests that all check and spend. ds may be
// nil.
func (l *Limiter) fastPathAll(reqs []Request, ds []Decision) (strictest Decision, done bool) {
	var at [4]spot
	var order [len(at)]*shard // of locking
	if len(reqs) == 0 || len(reqs) > len(at) {
		return Decision{}, false
	}
	for i := range reqs {
		r, f := &reqs[i], &at[i]
		if r.Mode != CheckAndSpend || len(r.Key.ID) > maxIDLen {
			return Decision{}, false
		}
		f.shard, f.hash = l.directory.shard(r.Key)
		f.shard.Prefetch(f.hash)
		j := i
		for ; j > 0 && order[j-1].order > f.shard.order; j-- {
			order[j] = order[j-1]
		}
		order[j] = f.shard
	}
	shards := slices.Compact(order[:len(reqs)])
	for _, s := range shards {
		s.mu.Lock()
	}
	strictest, done = l.fastPathAllLocked(reqs, ds, at[:len(reqs)])
	for _, s := range shards {
		s.mu.Unlock()
	}
	return strictest, done
}

func (l *Limiter) fastPathAllLocked(reqs []Request, ds []Decision, at []spot) (strictest Decision, done bool) {
	now := l.clock.Now()
	for i := range reqs {
		r, f := &reqs[i], &at[i]
		index, ok := f.shard.findLocked(r.Key, f.hash)
		if !ok || f.shard.limits == nil {
			return Decision{}, false
		}
		b := f.shard.At(index)
		if b.Rule() <= blocked || b.Has(table.Gate) {
			return Decision{}, false
		}
		rule := &f.shard.limits.rules[b.Rule()]
		if uint64(r.Cost) > uint64(rule.rate.Burst) || // the cost may be negative
			cmp.Or(rule.limit.Durability, l.opts.Durability) >= Leased {
			return Decision{}, false
		}
		if r.Limit != (Limit{}) && !same(r.Limit, rule.limit, l.opts.Durability) {
			return Decision{}, false
		}
		for _, other := range at[:i] {
			if other.shard == f.shard && other.index == index {
				return Decision{}, false
			}
		}
		f.index = index
		f.next, f.wait = rule.rate.Spend(b.TAT(), now, r.Cost)
		d := Decision{Allowed: f.wait == 0, RetryAfter: time.Duration(f.wait), Key: r.Key}
		rule.report(&d, f.next, now)
		if i == 0 || d.stricter(&strictest) {
			strictest = d
		}
		if ds != nil {
			ds[i] = d
		}
	}
	for i := range at {
		f, allowed := &at[i], at[i].wait == 0
		if strictest.Allowed && reqs[i].Cost > 0 {
			f.shard.Write(f.index, f.next)
		} else if !f.shard.At(f.index).Has(table.Used) {
			f.shard.Use(f.index)
		}
		if strictest.Allowed || !allowed {
			f.shard.countLocked(reqs[i].Key.Name, allowed)
		}
	}
	return strictest, true
}

// all decides several requests together, on the fast path if it can. ds gets
// the decision on each, unless it is nil.
func (l *Limiter) all(ctx context.Context, reqs []Request, ds []Decision, op op) (Decision, error) {
	if op == opSpend {
		if d, done := l.fastPathAll(reqs, ds); done {
			return d, nil
		}
	}
	if len(reqs) == 0 { // no bucket shows whether the limiter is closed
		if l.isClosed() {
			return Decision{}, ErrClosed
		}
		return Decision{Allowed: true, Remaining: math.MaxInt64}, nil
	}
	var few [4]request
	rs := few[:min(len(reqs), len(few))]
	if len(reqs) > len(few) {
		rs = make([]request, len(reqs))
	}
	for i := range reqs {
		r, given := &rs[i], &reqs[i]
		r.key, r.cost, r.op, r.mode, r.at = given.Key, given.Cost, op, given.Mode, i
		if err := cmp.Or(l.give(r, given), r.locate(l.directory)); err != nil {
			return Decision{}, l.failed(r.key, err)
		}
		switch {
		case r.mode != CheckOnly:
		case op == opRefund:
			r.cost = 0
		default:
			r.op = opCheck
		}
	}
	rs, err := l.withShares(rs)
	if err != nil {
		return Decision{}, err
	}
	sortRequests(rs)
	for i := range rs[1:] {
		if rs[i].key == rs[i+1].key {
			return Decision{}, l.failed(rs[i].key, fmt.Errorf("%w: %v", ErrDuplicateKey, rs[i].key))
		}
	}
	if at, err := l.lockAllFound(rs); err != nil {
		return Decision{}, l.failed(rs[at].key, err)
	}
	now := l.clock.Now()
	var in *batch
	d, at, err := decideAllLocked(rs, ds, now)
	if err == nil && d.Allowed {
		in = l.submitLocked(rs, now)
	}
	unlockAll(rs)
	if in != nil {
		err = l.committer.awaitUntil(ctx, in)
	}
	if err != nil {
		return Decision{}, l.failed(rs[at].key, err)
	}
	return d, nil
}

// sortRequests sorts by the order of locking. Equal keys become neighbours.
func sortRequests(rs []request) {
	compare := func(a, b *request) int {
		if a.shard != b.shard {
			return cmp.Compare(a.shard.order, b.shard.order)
		}
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return a.key.compare(b.key)
	}
	for i := 1; i < len(rs); i++ {
		if compare(&rs[i-1], &rs[i]) > 0 {
			slices.SortFunc(rs, func(a, b request) int { return compare(&a, &b) })
			return
		}
	}
}

// lockAllFound locks the shards of sorted requests, once every bucket is
// known. After an error, which is that of rs[at], no shard is locked.
func (l *Limiter) lockAllFound(rs []request) (at int, err error) {
	for {
		known := true
		for i := range rs {
			if i == 0 || rs[i].shard != rs[i-1].shard {
				rs[i].shard.mu.Lock()
			}
			known = rs[i].findLocked() && known
		}
		if known {
			break
		}
		unlockAll(rs)
		for i := range rs {
			if err := l.load(&rs[i]); err != nil {
				return i, err
			}
		}
	}
	for i := range rs {
		if rs[i].shard.limits == nil {
			unlockAll(rs)
			return i, ErrClosed
		}
	}
	for i := range rs {
		rs[i].useConfiguredLocked(l.opts.Durability)
	}
	return 0, nil
}

func unlockAll(rs []request) {
	for i := range rs {
		if i == 0 || rs[i].shard != rs[i-1].shard {
			rs[i].shard.mu.Unlock()
		}
	}
}

// decideAllLocked decides at the instant now, and carries the decision out if
// it allows. The error is that of rs[at].
func decideAllLocked(rs []request, ds []Decision, now int64) (strictest Decision, at int, err error) {
	strictest = Decision{Allowed: true, Remaining: math.MaxInt64}
	voted := false
	for i := range rs {
		r := &rs[i]
		var d Decision
		decided, err := decidePartLocked(rs, i, now, &d)
		if err != nil {
			return Decision{}, i, err
		}
		if decided && ds != nil {
			ds[r.at] = d
		}
		if decided && r.mode != SpendOnly && (!voted || d.stricter(&strictest)) {
			strictest, voted = d, true
		}
	}
	for i := range rs {
		if r := &rs[i]; strictest.Allowed || r.mode != SpendOnly && !r.allowed {
			r.countLocked(r.allowed)
		}
		if !strictest.Allowed {
			rs[i].to = rs[i].from
		}
	}
	// A slot that is inserted may move others of its shard.
	for _, resident := range []bool{true, false} {
		for i := range rs {
			if rs[i].resident == resident {
				rs[i].writeLocked(now)
			}
		}
	}
	return strictest, 0, nil
}

// SpendEach decides each request by itself, and puts the decision on reqs[i]
// into ds[i]. It decides at one instant, except on buckets that are not in
// memory, have a hold or a queue, or share a total. A key may come more than
// once: later requests see what earlier ones spent. A request that fails leaves
// the zero Decision. The errors are joined, and each names its request.
// SpendEach takes less time for each request than Spend.
func (l *Limiter) SpendEach(reqs []Request, ds []Decision) error {
	if len(ds) < len(reqs) {
		return fmt.Errorf("stint: SpendEach: %d requests, and space for %d decisions", len(reqs), len(ds))
	}
	const ahead = 32 // cache lines that are being fetched
	var places [ahead]located
	var errs []error
	now := l.clock.Now()
	for first := 0; first < len(reqs); first += ahead {
		part := reqs[first:min(first+ahead, len(reqs))]
		for i := range part {
			at := &places[i]
			if at.shard = nil; len(part[i].Key.ID) <= maxIDLen {
				at.shard, at.hash = l.directory.shard(part[i].Key)
				at.shard.Prefetch(at.hash)
			}
		}
		for i := range part {
			r, d, at := &part[i], &ds[first+i], &places[i]
			op := opSpend
			if r.Mode == CheckOnly {
				op = opCheck
			}
			if s := at.shard; s != nil {
				s.mu.Lock()
				var done, late bool
				if r.Limit == (Limit{}) || l.configuredLocked(s, at.hash, r) {
					_, done, late = l.fastPathLocked(s, at.hash, r.Key, r.Cost, op, now, d)
				}
				s.mu.Unlock()
				if late {
					runtime.Gosched()
				}
				if done {
					continue
				}
			}
			var err error
			if *d, err = l.slowPathGiven(r, op, now); err != nil {
				errs = append(errs, fmt.Errorf("request %d: %w", first+i, err))
			}
		}
	}
	return errors.Join(errs...)
}

// configuredLocked reports whether the bucket is in memory, and the limit of
// the request is the configured one.
func (l *Limiter) configuredLocked(s *shard, h uint64, r *Request) bool {
	i, ok := s.findLocked(r.Key, h)
	return ok && s.limits != nil && same(r.Limit, s.limits.rules[s.At(i).Rule()].limit, l.opts.Durability)
}

// slowPathGiven is slowPath for a request that may have a limit.
func (l *Limiter) slowPathGiven(req *Request, op op, now int64) (Decision, error) {
	if m := l.limits.Load().member(req.Key.Name); m.role != plainRole {
		return l.slowPathShare(m, *req, op)
	}
	rs := [1]request{{change: change{key: req.Key}, cost: req.Cost, op: op}}
	if err := l.give(&rs[0], req); err != nil {
		return Decision{}, l.failed(req.Key, err)
	}
	return l.slowPathOf(rs[:], now)
}
