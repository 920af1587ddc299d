package stint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/table"
)

// SpendAll decides several requests at one instant, and spends for all of them
// or for none; no other call sees a part of it. It returns the strictest
// decision, whose Key says which request it is about. A denial is stricter than
// a decision that allows. Among denials the longest RetryAfter is the
// strictest, and otherwise the smallest Remaining. If no request takes part in
// the decision, it allows. After an error, such as ErrDuplicateKey, nothing was
// spent, except as Spend says of ErrNotDurable.
func (l *Limiter) SpendAll(reqs ...Request) (d Decision, err error) {
	err = l.all(context.Background(), reqs, &d, nil, opSpend)
	return d, err
}

// Do is SpendAll that also puts the decision on reqs[i] into ds[i], and waits
// for a commit only until ctx ends. A nil ds asks for the strictest decision
// only: for one request, Do(ctx, []Request{key.Cost(1)}, nil). If the strictest
// decision denies, nothing was spent, and the others are what Check would
// return. Of several shares of one total, each is decided as if those before it had
// spent. After an error every decision is the zero one, which denies. Nothing
// was spent, except that after ErrNotDurable the tokens of all requests may
// stay spent. It is also an error if ds is shorter than reqs; ds stays as it is
// then.
//
// ctx has no part in the decision, which is made even if ctx has ended: a client
// that disconnects early spends all the same. If ctx ends before the commit, the
// error wraps ErrNotDurable and the error of ctx. The tokens then stay spent if the
// commit succeeds, and are returned if it fails. Loading a bucket does not end with
// ctx.
func (l *Limiter) Do(ctx context.Context, reqs []Request, ds []Decision) (d Decision, err error) {
	if ds != nil && len(ds) < len(reqs) {
		return Decision{}, fmt.Errorf("stint: Do: %d requests, and space for %d decisions", len(reqs), len(ds))
	}
	err = l.all(ctx, reqs, &d, ds, opSpend)
	if err != nil && ds != nil {
		clear(ds[:len(reqs)])
	}
	return d, err
}

// Refund gives the tokens of requests back to their buckets, up to the bursts,
// and returns the strictest decision on what the buckets then hold. It always
// allows. Of several shares of one total, each sees what those before it gave back.
// Refunding a full bucket changes nothing. For a CheckOnly request Refund
// only reports the state. A SpendOnly request is refunded even if SpendAll had too
// few tokens for it: leave such a request out. After ErrNotDurable the tokens may
// be missing; after any other error nothing changed.
//
// Each request needs Spent, and gets back what its spend still lacks: half an
// interval after one token was spent, that is half a token. If Spent is an instant
// before the spend, the bucket lacks that time: for as long, a full one has a token
// less. A caller may therefore
// spend an upper bound, and return the rest once the true cost is known, without
// exceeding the limit: over any stretch of time, the true costs of the requests
// admitted in it are at most burst + elapsed ÷ interval. With JustSpent they may
// be more. A request that costs tokens and has the zero Spent is an error.
func (l *Limiter) Refund(reqs ...Request) (d Decision, err error) {
	err = l.all(context.Background(), reqs, &d, nil, opRefund)
	return d, err
}

// all decides several requests together, on the fast path if it can. The
// strictest decision goes to d, the zero Decision after an error. ds gets the
// decision on each, unless it is nil.
//
// A Decision is written where the caller wants it. A copy of one that was just
// written is slow: it reads larger pieces than were written, so the processor
// waits until these have reached its cache.
func (l *Limiter) all(ctx context.Context, reqs []Request, d *Decision, ds []Decision, op op) error {
	if op == opSpend && len(reqs) == 1 {
		r := &reqs[0]
		if r.Mode == CheckAndSpend && r.Limit.isZero() && l.fastPath(r.Key, r.Cost, opSpend, d) != fastDeclined {
			if ds != nil {
				ds[0] = *d
			}
			return nil
		}
	}
	if op == opSpend && l.fastPathAll(reqs, d, ds) {
		return nil
	}
	return l.slowPath(ctx, reqs, d, ds, op)
}

// fastPathAll is fastPath for a few requests that all check and spend. It
// reports whether it decided. ds may be nil.
//
// Nothing here branches on which decision is the strictest, because a processor
// cannot predict it.
func (l *Limiter) fastPathAll(reqs []Request, d *Decision, ds []Decision) bool {
	var at [fewSpots]spot
	var shards [fewSpots]*cache.Shard
	if len(reqs) == 0 || len(reqs) > len(at) {
		return false
	}
	for i := range reqs {
		r, f := &reqs[i], &at[i]
		if r.Mode != CheckAndSpend || len(r.Key.ID) > maxIDLen || l.isShare(r.Key.Name) {
			return false
		}
		f.located = l.locate(r.Key)
		f.shard.Prefetch(f.hash)
		shards[i] = f.shard
	}
	now := l.clock.Now() // before the locks, as in fastPathOf
	locked := cache.LockAll(shards[:len(reqs)])
	strictest := l.fastPathAllLocked(reqs, at[:len(reqs)], now)
	cache.UnlockAll(locked)
	if strictest < 0 {
		return false
	}
	d.Key = reqs[strictest].Key
	at[strictest].report(d, at[strictest].rule)
	if d.Allowed {
		d.Taken = reqs[strictest].Cost
	}
	if ds != nil {
		for i := range reqs {
			ds[i].Key = reqs[i].Key
			at[i].report(&ds[i], at[i].rule)
			if d.Allowed {
				ds[i].Taken = reqs[i].Cost
			}
		}
	}
	return true
}

// fastPathAllLocked returns the index of the strictest decision, or -1 if it
// declines.
func (l *Limiter) fastPathAllLocked(reqs []Request, at []spot, now int64) (strictest int) {
	for i := range reqs {
		r, f := &reqs[i], &at[i]
		index, ok := f.shard.Find(uint16(r.Key.Name), r.Key.ID, f.hash)
		if !ok || f.shard.Limits == nil {
			return -1
		}
		b := f.shard.At(index)
		if b.Rule() <= blocked || b.Has(table.Gate) {
			return -1
		}
		ls := limitsIn(f.shard)
		rule := &ls.rules[b.Rule()]
		if ls.isShare(r.Key.Name) || uint64(r.Cost) > uint64(rule.rate.burst) || // the cost may be negative
			rule.level(l.opts.Durability) >= Leased {
			return -1
		}
		if !r.Limit.isZero() && !same(r.Limit, rule.limit, l.opts.Durability) {
			return -1
		}
		for j := range i {
			if at[j].shard == f.shard && at[j].index == index {
				return -1
			}
		}
		f.index, f.rule = index, rule
		f.next, f.state = rule.decide(b.TAT(), now, r.Cost, 0)
		if f.wait != 0 && b.Has(table.Uncut) {
			return -1
		}
	}
	for i := 1; i < len(at); i++ {
		more := at[i].stricter(at[strictest].state)
		if at[i].state == at[strictest].state {
			more = max(0, reqs[strictest].Key.compare(reqs[i].Key))
		}
		strictest += (i - strictest) * more
	}
	allowed := at[strictest].wait == 0
	if !allowed {
		if fresh := l.clock.Now(); overtaken(now, fresh, at[strictest].wait) {
			return l.fastPathAllLocked(reqs, at, fresh)
		}
	}
	for i := range at {
		f := &at[i]
		if allowed && reqs[i].Cost > 0 {
			f.shard.Write(f.index, f.next)
		} else if !f.shard.At(f.index).Has(table.Used) {
			f.shard.Use(f.index)
		}
		if allowed || f.wait != 0 {
			f.shard.CountLocked(uint16(reqs[i].Key.Name))[denied(f.wait == 0)]++
		}
	}
	return strictest
}

// DoEach decides each request by itself, and puts the decision on reqs[i] into
// ds[i]. It makes most decisions at one instant, and the others a little later.
// A key may come more than once: later requests see what earlier ones spent. A
// request that fails leaves the zero Decision. The errors are joined, and each
// names its request. After an ErrFull, later requests that need space in memory
// fail with it at once. DoEach takes less time for each request than Spend.
// Requests that wait for a commit wait for it together, until ctx ends, as in
// Do. If it fails, all of them fail, and other answers on their keys may have
// counted tokens that were returned since. If ds is shorter than reqs, DoEach
// decides nothing and returns an error.
func (l *Limiter) DoEach(ctx context.Context, reqs []Request, ds []Decision) error {
	if len(ds) < len(reqs) {
		return fmt.Errorf("stint: DoEach: %d requests, and space for %d decisions", len(reqs), len(ds))
	}
	const ahead = 32 // cache lines that are being fetched
	var asks [ahead]ask
	var answers answers
	shares := l.hasShares.Load()
	now := l.clock.Now()
	for first := 0; first < len(reqs); first += ahead {
		part := reqs[first:min(first+ahead, len(reqs))]
		for i := range part {
			a, r := &asks[i], &part[i]
			a.key, a.cost, a.op, a.now = r.Key, r.Cost, opSpend, now
			if r.Mode == CheckOnly {
				a.op = opCheck
			}
			if a.shard = nil; len(r.Key.ID) <= maxIDLen && r.Mode < UpTo && !(shares && l.isShare(r.Key.Name)) {
				a.located = l.locate(r.Key)
				a.lane = l.cache.Lane(a.hash)
				a.shard.Prefetch(a.hash)
			}
		}
		for i := range part {
			a, r, d := &asks[i], &part[i], &ds[first+i]
			if a.shard != nil && l.fastPathEach(a, r, d) != fastDeclined {
				continue
			}
			one := part[i : i+1]
			if r.Mode == SpendOnly { // it is alone
				one = []Request{*r}
				one[0].Mode = CheckAndSpend
			}
			in, _, err := l.submitAll(one, d, nil, opSpend, answers.full)
			if err = l.failed(r.Key, err); err != nil {
				*d = Decision{}
			}
			if in != nil || err != nil {
				answers.add(first+i, in, err)
			}
		}
	}
	return answers.await(ctx, l, reqs, ds)
}

// answers has what requests of a DoEach wait for, and their errors.
type answers struct {
	waiting []answer
	errs    []error
	full    error // the last ErrFull: no request waits for space after it
}

// answer is a request that waits for a commit.
type answer struct {
	at int // index of the request
	in *cache.Batch
}

func (as *answers) add(at int, in *cache.Batch, err error) {
	if err != nil {
		if errors.Is(err, ErrFull) {
			as.full = err
		}
		as.errs = append(as.errs, make([]error, max(0, at+1-len(as.errs)))...)
		as.errs[at] = fmt.Errorf("request %d: %w", at, err)
		return
	}
	as.waiting = append(as.waiting, answer{at, in})
}

// await waits for the commits, and returns the errors in the order of the
// requests.
func (as *answers) await(ctx context.Context, l *Limiter, reqs []Request, ds []Decision) error {
	var last *cache.Batch
	var err error
	var begun time.Time
	for i, a := range as.waiting {
		if i == 0 {
			begun = time.Now()
		}
		if a.in != last {
			last, err = a.in, l.cache.Await(ctx, begun, a.in)
		}
		if err != nil {
			ds[a.at] = Decision{}
			as.add(a.at, nil, l.failed(reqs[a.at].Key, err))
		}
	}
	return errors.Join(as.errs...)
}

// fastPathEach is fastPathOf for a request of a DoEach, whose Limit may be the
// configured one.
func (l *Limiter) fastPathEach(a *ask, r *Request, d *Decision) fastAnswer {
	if r.Limit.isZero() {
		return l.fastPathOf(a, d)
	}
	s, answer := a.shard, fastDeclined
	s.Lock()
	i, ok := s.Find(uint16(r.Key.Name), r.Key.ID, a.hash)
	if ok && s.Limits != nil && same(r.Limit, limitsIn(s).rules[s.At(i).Rule()].limit, l.opts.Durability) {
		answer = l.fastPathLocked(a, d)
	}
	s.Mu.Unlock()
	if answer == fastYield {
		runtime.Gosched()
	}
	return answer
}
