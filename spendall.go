package stint

import (
	"cmp"
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

// The zero Mode takes part in the decision, and spends.
const (
	CheckAndSpend Mode = iota // takes part in the decision, and spends
	CheckOnly                 // takes part in the decision, and spends nothing
	SpendOnly                 // takes no part in the decision, and spends if it can
)

// Request is one of several that are decided together.
type Request struct {
	Key  Key
	Cost int64
	Mode Mode
}

// SpendAll decides several requests at one instant, and spends for all of them
// or for none; no other call sees a part of it. It returns the strictest
// decision: denied before allowed, of the denied that with the longest
// RetryAfter, of the allowed that with the fewest Remaining. If no request
// takes part in the decision, it allows. After an error, such as
// ErrDuplicateKey, nothing was spent, except as Spend says of ErrNotDurable.
func (l *Limiter) SpendAll(reqs ...Request) (Decision, error) { return l.all(reqs, opSpend) }

// RefundAll returns what a SpendAll of the same requests spent, as Refund
// does, and returns the strictest decision. For a CheckOnly request it only
// reports the state. A SpendOnly request is refunded even if SpendAll had too
// few tokens for it: leave such a request out.
func (l *Limiter) RefundAll(reqs ...Request) (Decision, error) { return l.all(reqs, opRefund) }

// located is the place of a bucket that may be in memory.
type located struct {
	shard *shard
	hash  uint64
}

// spot is a bucket in memory, and what SpendAll is to do to it.
type spot struct {
	located
	index uint32
	next  int64 // new TAT
	wait  int64
}

// fastPathAll is fastPath for a few requests that all check and spend.
func (l *Limiter) fastPathAll(reqs []Request) (strictest Decision, done bool) {
	var at [4]spot
	var order [len(at)]*shard // in which they are locked
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
	strictest, done = l.fastPathAllLocked(reqs, at[:len(reqs)])
	for _, s := range shards {
		s.mu.Unlock()
	}
	return strictest, done
}

func (l *Limiter) fastPathAllLocked(reqs []Request, at []spot) (strictest Decision, done bool) {
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
		if uint64(r.Cost) > uint64(rule.rate.burst) || // the cost may be negative
			cmp.Or(rule.limit.Durability, l.opts.Durability) >= Leased {
			return Decision{}, false
		}
		for _, other := range at[:i] {
			if other.shard == f.shard && other.index == index {
				return Decision{}, false
			}
		}
		f.index = index
		f.next, f.wait = rule.rate.spend(b.TAT(), now, r.Cost)
		d := Decision{Allowed: f.wait == 0, RetryAfter: time.Duration(f.wait), Key: r.Key}
		rule.report(&d, f.next, now)
		if i == 0 || d.stricter(&strictest) {
			strictest = d
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

// all decides several requests together, on the fast path if it can.
func (l *Limiter) all(reqs []Request, op op) (Decision, error) {
	if op == opSpend {
		if d, done := l.fastPathAll(reqs); done {
			return d, nil
		}
	}
	if len(reqs) == 0 { // no bucket tells that the limiter is closed
		select {
		case <-l.closed:
			return Decision{}, ErrClosed
		default:
			return Decision{Allowed: true, Remaining: math.MaxInt64}, nil
		}
	}
	var few [4]request
	rs := few[:min(len(reqs), len(few))]
	if len(reqs) > len(few) {
		rs = make([]request, len(reqs))
	}
	for i := range reqs {
		r, given := &rs[i], &reqs[i]
		r.key, r.cost, r.op, r.mode = given.Key, given.Cost, op, given.Mode
		if err := r.locate(l.directory); err != nil {
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
	d, at, err := decideAllLocked(rs, now)
	if err == nil && d.Allowed {
		in = l.submitLocked(rs, now)
	}
	unlockAll(rs)
	if in != nil {
		err = l.committer.await(in)
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
func decideAllLocked(rs []request, now int64) (strictest Decision, at int, err error) {
	strictest = Decision{Allowed: true, Remaining: math.MaxInt64}
	voted := false
	for i := range rs {
		r := &rs[i]
		var d Decision
		decided, err := decidePartLocked(rs, i, now, &d)
		if err != nil {
			return Decision{}, i, err
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

// submitLocked puts the changes of rs into one commit, if one of them must be
// in the store before its caller is answered, or if a crash would forget some
// of them and not others. It returns the commit to wait for, or nil. Otherwise
// it renews the leases that are due.
func (l *Limiter) submitLocked(rs []request, now int64) *batch {
	c := l.committer
	most, least, strictest := needNone, Synced, Memory
	for i := range rs {
		r := &rs[i]
		b, changed := r.changedLocked()
		if !changed {
			continue
		}
		level := c.levelOf(r.shard.limits, r.rule)
		least, strictest = min(least, level), max(strictest, level)
		_, when := c.needLocked(&r.change, b, now)
		most = max(most, when)
	}
	if least < Leased && strictest >= Leased {
		most = needFirst
	}
	if most == needNone {
		return nil
	}
	in := c.Lock(most == needFirst)
	defer c.Unlock()
	begin := len(in.Work.changes)
	for i := range rs {
		r := &rs[i]
		b, changed := r.changedLocked()
		if !changed {
			continue
		}
		if tat, when := c.needLocked(&r.change, b, now); when == most || most == needFirst {
			ch := r.change
			if most == needSoon { // the caller is answered: nothing is to be undone
				ch = renewalOf(r.shard, r.hash, b)
			}
			c.putLocked(in, &ch, b, tat)
		}
	}
	orderPairs(in.Work.changes[begin:])
	if most == needSoon {
		return nil
	}
	return in
}

// changedLocked returns the slot of a request that the store has to hear of:
// one that changes the bucket, and a refund or reset of one whose earlier
// changes the store may not have.
func (r *request) changedLocked() (b table.Slot, changed bool) {
	i, ok := r.shard.findLocked(r.key, r.hash)
	if !ok {
		return b, false
	}
	b = r.shard.At(i)
	again := r.op == opReset || r.op == opRefund && r.cost > 0
	return b, r.from != r.to || r.turn != nil || again && r.shard.unsavedLocked(b)
}

// SpendEach decides each of the requests by itself, at one instant except for
// those whose buckets are not in memory, and puts the decision on reqs[i] into
// ds[i]. A key may come more than once: what a request spends is gone for
// those behind it. A request that fails leaves the zero Decision; the errors
// come back joined, and say which request they are of. SpendEach takes less
// time for each request than Spend.
func (l *Limiter) SpendEach(reqs []Request, ds []Decision) error {
	if len(ds) < len(reqs) {
		return fmt.Errorf("stint: SpendEach: %d requests, and room for %d decisions", len(reqs), len(ds))
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
				_, done, late := l.fastPathLocked(s, at.hash, r.Key, r.Cost, op, now, d)
				s.mu.Unlock()
				if late {
					runtime.Gosched()
				}
				if done {
					continue
				}
			}
			var err error
			if *d, err = l.slowPath(r.Key, r.Cost, op, now); err != nil {
				errs = append(errs, fmt.Errorf("request %d: %w", first+i, err))
			}
		}
	}
	return errors.Join(errs...)
}
