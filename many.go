package stint

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"
)

// Request is one of several that are decided together.
type Request struct {
	Key  Key
	Cost int64
	Mode Mode
}

// SpendAll decides several requests at one instant, and spends for all of them or for none; no other call sees a part
// of it. It returns the strictest of the decisions: denied before allowed, of the denied that with the longest
// RetryAfter, of the allowed that with the fewest Remaining. Where nothing takes part in the decision, it allows.
// After an error, ErrDuplicateKey among them, nothing was spent, but as Spend says where a commit did not come in time.
func (l *Limiter) SpendAll(reqs ...Request) (Decision, error) { return l.all(reqs, opSpend) }

// RefundAll gives back what a SpendAll of the same requests spent, as Refund does, and returns the strictest of the
// decisions. Of a CheckOnly request it only reports the state. A SpendOnly request is given back whether there was enough
// for it to be spent or not: leave it out where that may be less.
func (l *Limiter) RefundAll(reqs ...Request) (Decision, error) { return l.all(reqs, opRefund) }

// located is where a bucket is, if it is in memory.
type located struct {
	shard *shard
	hash  uint64
}

// resident is one that is, in a SpendAll.
type resident struct {
	located
	index uint32
	next  int64 // the TAT it is to have
	wait  int64
}

// hitAll is hit for several requests, of which each is to check and to spend.
func (l *Limiter) hitAll(reqs []Request) (strictest Decision, hit bool) {
	var at [4]resident
	var order [len(at)]*shard // in which they are locked
	if len(reqs) == 0 || len(reqs) > len(at) {
		return Decision{}, false
	}
	for i := range reqs {
		r, p := &reqs[i], &at[i]
		if r.Mode != CheckAndSpend || len(r.Key.ID) > maxIDLen {
			return Decision{}, false
		}
		p.shard, p.hash = l.table.shard(r.Key)
		p.shard.prefetch(p.hash)
		j := i
		for ; j > 0 && order[j-1].order > p.shard.order; j-- {
			order[j] = order[j-1]
		}
		order[j] = p.shard
	}
	shards := slices.Compact(order[:len(reqs)])
	for _, s := range shards {
		s.mu.Lock()
	}
	strictest, hit = l.hitAllLocked(reqs, at[:len(reqs)])
	for _, s := range shards {
		s.mu.Unlock()
	}
	return strictest, hit
}

func (l *Limiter) hitAllLocked(reqs []Request, at []resident) (strictest Decision, hit bool) {
	now := l.clock.now()
	for i := range reqs {
		r, p := &reqs[i], &at[i]
		index, ok := p.shard.findLocked(r.Key, p.hash)
		if !ok || p.shard.limits == nil {
			return Decision{}, false
		}
		b := p.shard.at(index)
		if b.rule() == 0 || b.has(flagAside) {
			return Decision{}, false
		}
		rule := &p.shard.limits.rules[b.rule()]
		if uint64(r.Cost) > uint64(rule.rate.burst) || // or negative
			cmp.Or(rule.limit.Durability, l.opts.Durability) >= Leased {
			return Decision{}, false
		}
		for _, other := range at[:i] {
			if other.shard == p.shard && other.index == index {
				return Decision{}, false
			}
		}
		p.index = index
		p.next, p.wait = rule.rate.spend(b.tat(), now, r.Cost)
		d := Decision{Allowed: p.wait == 0, RetryAfter: time.Duration(p.wait), Key: r.Key}
		rule.report(&d, p.next, now)
		if i == 0 || d.stricter(&strictest) {
			strictest = d
		}
	}
	for i := range at {
		p, allowed := &at[i], at[i].wait == 0
		if !strictest.Allowed && allowed {
			continue
		}
		if b := p.shard.at(p.index); allowed && reqs[i].Cost > 0 {
			p.shard.writeLocked(p.index, p.next)
		} else if !b.has(flagUsed) {
			p.shard.useLocked(p.index)
		}
		p.shard.countLocked(reqs[i].Key.Name, allowed)
	}
	return strictest, true
}

func (l *Limiter) all(reqs []Request, op op) (Decision, error) {
	if op == opSpend {
		if d, hit := l.hitAll(reqs); hit {
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
	var few [4]place
	ps := few[:min(len(reqs), len(few))]
	if len(reqs) > len(few) {
		ps = make([]place, len(reqs))
	}
	for i := range reqs {
		p, r := &ps[i], &reqs[i]
		p.key, p.cost, p.op, p.mode = r.Key, r.Cost, op, r.Mode
		if err := p.locate(l.table); err != nil {
			return Decision{}, l.failed(r.Key, err)
		}
		if r.Mode == CheckOnly && op == opRefund {
			p.cost = 0
		} else if r.Mode == CheckOnly {
			p.op = opCheck
		}
	}
	sortPlaces(ps)
	for i := range ps[min(1, len(ps)):] {
		if ps[i].key == ps[i+1].key {
			return Decision{}, l.failed(ps[i].key, fmt.Errorf("%w: %v", ErrDuplicateKey, ps[i].key))
		}
	}
	if at, err := l.lockAllFound(ps); err != nil {
		return Decision{}, l.failed(ps[at].key, err)
	}
	now := l.clock.now()
	d, at, err := decideAllLocked(ps, now)
	if err == nil && d.Allowed {
		l.submitLocked(ps, now)
	}
	unlockAll(ps)
	if err == nil && len(ps) > 0 && ps[0].batch != nil {
		err = l.await(ps)
	}
	if err != nil {
		return Decision{}, l.failed(ps[at].key, err)
	}
	return d, nil
}

// sortPlaces brings ps into the order in which shards are locked; in a shard, equal keys stand side by side.
func sortPlaces(ps []place) {
	compare := func(a, b *place) int {
		if a.shard != b.shard {
			return cmp.Compare(a.shard.order, b.shard.order)
		}
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return a.key.compare(b.key)
	}
	for i := 1; i < len(ps); i++ {
		if compare(&ps[i-1], &ps[i]) > 0 {
			slices.SortFunc(ps, func(a, b place) int { return compare(&a, &b) })
			return
		}
	}
}

// lockAllFound locks the shards of all of ps, which are in the order of their shards, with every bucket found. After an
// error, that of ps[at], none is locked.
func (l *Limiter) lockAllFound(ps []place) (at int, err error) {
	for {
		found := true
		for i := range ps {
			if i == 0 || ps[i].shard != ps[i-1].shard {
				ps[i].shard.mu.Lock()
			}
			found = ps[i].findLocked() && found
		}
		if found {
			break
		}
		unlockAll(ps)
		for i := range ps {
			if err := l.load(&ps[i]); err != nil {
				return i, err
			}
		}
	}
	for i := range ps {
		if ps[i].shard.limits == nil {
			unlockAll(ps)
			return i, ErrClosed
		}
	}
	return 0, nil
}

func unlockAll(ps []place) {
	for i := range ps {
		if i == 0 || ps[i].shard != ps[i-1].shard {
			ps[i].shard.mu.Unlock()
		}
	}
}

// decideAllLocked decides ps at the instant now, and carries the decision out if it allows. The error is that of ps[at].
func decideAllLocked(ps []place, now int64) (strictest Decision, at int, err error) {
	strictest = Decision{Allowed: true, Remaining: math.MaxInt64}
	voted := false
	for i := range ps {
		p := &ps[i]
		var d Decision
		if err := p.decideLocked(now, &d); err != nil {
			return Decision{}, i, err
		}
		p.allowed = d.Allowed
		if p.mode != SpendOnly && (!voted || d.stricter(&strictest)) {
			strictest, voted = d, true
		}
	}
	for i := range ps {
		if p := &ps[i]; strictest.Allowed || p.mode != SpendOnly && !p.allowed {
			p.countLocked(p.allowed)
		}
		if !strictest.Allowed {
			ps[i].next = ps[i].tat
		}
	}
	// A slot that is inserted may move others of its shard.
	for _, resident := range []bool{true, false} {
		for i := range ps {
			if ps[i].resident == resident {
				ps[i].writeLocked(now)
			}
		}
	}
	return strictest, 0, nil
}

// SpendEach decides each of the requests by itself, all at one instant, but for those whose buckets are not in memory, and puts
// the decision on reqs[i] in ds[i]. A key may come more than once; what a request spends is spent for those behind it. A request that fails leaves the zero
// Decision; the errors come back joined, and say which request they are of. SpendEach is faster, per request, than
// Spend.
func (l *Limiter) SpendEach(reqs []Request, ds []Decision) error {
	if len(ds) < len(reqs) {
		return fmt.Errorf("stint: SpendEach: %d requests, and room for %d decisions", len(reqs), len(ds))
	}
	const ahead = 32 // as many cache lines as may be on their way at a time
	var places [ahead]located
	var errs []error
	now := l.clock.now()
	for first := 0; first < len(reqs); first += ahead {
		part := reqs[first:min(first+ahead, len(reqs))]
		for i := range part {
			at := &places[i]
			if at.shard = nil; len(part[i].Key.ID) <= maxIDLen {
				at.shard, at.hash = l.table.shard(part[i].Key)
				at.shard.prefetch(at.hash)
			}
		}
		for i := range part {
			r, d, at := &part[i], &ds[first+i], &places[i]
			op := opSpend
			if r.Mode == CheckOnly {
				op = opCheck
			}
			hit := false
			if s := at.shard; s != nil {
				late := false
				s.mu.Lock()
				_, hit, late = l.hitLocked(s, at.hash, r.Key, r.Cost, op, now, d)
				s.mu.Unlock()
				if late {
					runtime.Gosched()
				}
			}
			if hit {
				continue
			}
			var err error
			if *d, err = l.one(r.Key, r.Cost, op, now); err != nil {
				errs = append(errs, fmt.Errorf("request %d: %w", first+i, err))
			}
		}
	}
	return errors.Join(errs...)
}
