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
	if op == opSpend && len(reqs) == 1 && l.fastPathOne(&reqs[0], d) {
		if ds != nil {
			ds[0] = *d
		}
		return nil
	}
	if op == opSpend && l.fastPathAll(reqs, d, ds) {
		return nil
	}
	return l.slowPath(ctx, reqs, d, ds, op)
}

// slowPath is all for requests that a fast path has declined.
func (l *Limiter) slowPath(ctx context.Context, reqs []Request, d *Decision, ds []Decision, op op) error {
	in, key, err := l.submitAll(reqs, d, ds, op, nil)
	if in == nil {
		return err
	}
	if err := l.cache.Await(ctx, time.Now(), in); err != nil {
		*d = Decision{}
		return l.failed(key, err)
	}
	return nil
}

// fastPathOne is fastPath for a request that is alone, with the lane of a hot
// bucket. It reports whether it decided.
func (l *Limiter) fastPathOne(r *Request, d *Decision) bool {
	return r.Mode == CheckAndSpend && r.Limit.isZero() && l.fastPath(r.Key, r.Cost, opSpend, d) != fastDeclined
}

// submitAll decides on requests together. It returns the commit that the answer
// waits for, or nil, and the key to name if that fails. If full is not nil, it is
// the error of a request that would wait for space in memory.
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
	var few [4]request
	rs := few[:min(len(reqs), len(few))]
	if len(reqs) > len(few) {
		rs = make([]request, len(reqs))
	}
	for i := range reqs {
		r, req := &rs[i], &reqs[i]
		if req.Mode == UpTo && len(reqs) > 1 && op == opSpend {
			return nil, Key{}, l.failed(req.Key, fmt.Errorf("stint: %s: a request with UpTo must be alone",
				l.limits.Load().labeled(req.Key)))
		}
		if err := r.ask(l, req, op); err != nil {
			return nil, Key{}, l.failed(req.Key, err)
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
			return nil, Key{}, l.failed(r.key, fmt.Errorf("stint: refund %s: the request has no Spent, want the "+
				"instant of the spend or JustSpent", l.limits.Load().labeled(r.key)))
		}
	}
	return l.submit(rs, d, ds)
}

// submit is submitAll for requests in progress.
func (l *Limiter) submit(rs []request, d *Decision, ds []Decision) (in *cache.Batch, key Key, err error) {
	oneTotal := false // for several groups
	for locked := false; !locked; {
		if rs, err = l.withShares(rs); err != nil {
			return nil, Key{}, err
		}
		sortRequests(rs)
		if oneTotal, err = l.pairTotals(rs); err != nil {
			return nil, Key{}, err
		}
		if at, err := l.lockFound(rs); err != nil {
			key := askedOf(rs, at)
			return nil, Key{}, l.failed(key, err)
		}
		if locked = !newShares(rs); !locked {
			unlockAll(rs)
		}
	}
	now := l.clock.Now()
	strictest, at, err := decideAllLocked(rs, ds, now)
	if err == nil {
		if oneTotal {
			rs = joinTotals(rs, strictest.Allowed)
		}
		writeAllLocked(rs, now)
		if strictest.Allowed {
			in = l.submitLocked(rs, now)
		}
	}
	unlockAll(rs)
	if err != nil {
		return nil, Key{}, l.failed(askedOf(rs, at), err)
	}
	*d = strictest
	return in, askedOf(rs, 0), nil
}

// askedOf returns the key that the caller asked for in the request to which rs[at]
// belongs: not its total or floor.
func askedOf(rs []request, at int) Key {
	i := slices.IndexFunc(rs, func(r request) bool { return !r.added && r.at == rs[at].at })
	return rs[i].key
}

// newShares reports whether limits that came since withShares have made a request
// one for a share.
func newShares(rs []request) bool {
	for i := range rs {
		if r := &rs[i]; r.role == plainRole && limitsIn(r.shard).isShare(r.key.Name) {
			return true
		}
	}
	return false
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

// pairTotals lets the groups that have the same total draw from it in turn. The
// requests are sorted. Any other two of one bucket are an error.
func (l *Limiter) pairTotals(rs []request) (found bool, err error) {
	for i := range rs[1:] {
		a, b := &rs[i], &rs[i+1]
		switch {
		case a.key != b.key:
			continue
		case !b.added || b.role != totalRole: // if b is not, a is not, either
			err := fmt.Errorf("%w: %s", ErrDuplicateKey, l.limits.Load().labeled(b.key))
			return false, l.failed(b.key, err)
		case a.drawn == nil:
			a.drawn = new(drawn)
		}
		b.drawn, found = a.drawn, true
	}
	return found, nil
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
		rs[i].useConfiguredLocked(l.opts.Durability)
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
		if strictest.Allowed || r.mode != SpendOnly && !r.allowed {
			r.countLocked(r.allowed)
		}
		if !strictest.Allowed {
			if r.to = r.from; ds != nil {
				ds[r.at].Taken = 0
			}
		}
	}
	return strictest, 0, nil
}

// writeAllLocked carries decisions out. A slot that is inserted may move others of
// its shard.
func writeAllLocked(rs []request, now int64) {
	for _, resident := range []bool{true, false} {
		for i := range rs {
			if rs[i].resident == resident {
				rs[i].writeLocked(now)
			}
		}
	}
}

// spot is a bucket in memory, with the decision on it.
type spot struct {
	located
	index uint32
	rule  *rule
	next  int64 // new TAT
	state
}

// The fast path takes at most this many requests.
const fewSpots = 4

// fastPathAll is fastPath for a few requests that all check and spend. It
// reports whether it decided. ds may be nil.
//
// Nothing here branches on which decision is the strictest, because a processor
// cannot predict it.
func (l *Limiter) fastPathAll(reqs []Request, d *Decision, ds []Decision) bool {
	var at [fewSpots]spot
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
	}
	now := l.clock.Now() // before the locks, as in fastPathOf
	var shards [fewSpots]*cache.Shard
	locked := lockSpots(shards[:0], at[:len(reqs)])
	strictest := l.fastPathAllLocked(reqs, at[:len(reqs)], now)
	unlockSpots(locked)
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

// lockSpots locks the shards of spots, and appends them to locked. If it would
// have to wait for one, it begins again, in the order of locking.
func lockSpots(locked []*cache.Shard, at []spot) []*cache.Shard {
	for i := range at {
		s := at[i].shard
		if slices.Contains(locked, s) {
			continue
		}
		if !s.Mu.TryLock() {
			unlockSpots(locked)
			return lockSpotsInOrder(locked[:0], at)
		}
		s.RetireLocked()
		locked = append(locked, s)
	}
	return locked
}

func lockSpotsInOrder(locked []*cache.Shard, at []spot) []*cache.Shard {
	for i := range at {
		locked = append(locked, at[i].shard)
	}
	slices.SortFunc(locked, func(a, b *cache.Shard) int { return cmp.Compare(a.Order, b.Order) })
	locked = slices.Compact(locked)
	for _, s := range locked {
		s.Lock()
	}
	return locked
}

func unlockSpots(locked []*cache.Shard) {
	for _, s := range locked {
		s.Mu.Unlock()
	}
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
			f.shard.CountLocked(uint16(reqs[i].Key.Name), denied(f.wait))
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
			one := *r
			if one.Mode == SpendOnly { // it is alone
				one.Mode = CheckAndSpend
			}
			in, _, err := l.submitAll([]Request{one}, d, nil, opSpend, answers.full)
			if err != nil {
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

// fastPathEach is fastPathOf for a request of a DoEach.
func (l *Limiter) fastPathEach(a *ask, r *Request, d *Decision) fastAnswer {
	if r.Limit.isZero() {
		return l.fastPathOf(a, d)
	}
	a.shard.Lock()
	answer := fastDeclined
	if l.configuredLocked(&a.located, r) {
		answer = l.fastPathLocked(a, d)
	}
	a.shard.Mu.Unlock()
	if answer == fastYield {
		runtime.Gosched()
	}
	return answer
}

// configuredLocked reports whether the bucket is in memory, and the limit of
// the request is the configured one.
func (l *Limiter) configuredLocked(at *located, r *Request) bool {
	s := at.shard
	i, ok := s.Find(uint16(r.Key.Name), r.Key.ID, at.hash)
	return ok && s.Limits != nil && same(r.Limit, limitsIn(s).rules[s.At(i).Rule()].limit, l.opts.Durability)
}
