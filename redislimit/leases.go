package redislimit

import (
	"cmp"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// leases are the leases of this machine. Each shard's lock guards its buckets.
// Several shards are locked in the order of their numbers, and before any lock
// of seen.
type leases struct {
	seed   maphash.Seed
	shards [64]leaseShard
	once   sync.Once // starts the goroutine that ends leases
}

type leaseShard struct {
	mu      sync.Mutex
	buckets map[stint.Key]*leased
	_       [48]byte // a cache line each
}

// maxLeases is the most buckets of a shard. A decision on any other is a trip.
const maxLeases = 1024

// leased is a bucket with a lease.
type leased struct {
	lease
	key    stint.Key
	limit  stint.Limit
	fourth int64 // the tolerance that a TAT of an earlier generation is cut down to
	busy   bool  // a question is under way
}

func newLeases() *leases {
	ls := &leases{seed: maphash.MakeSeed()}
	for i := range ls.shards {
		ls.shards[i].buckets = make(map[stint.Key]*leased)
	}
	return ls
}

func (ls *leases) shardOf(key stint.Key) int {
	return int((maphash.String(ls.seed, key.ID) + uint64(key.Name)*0x9E3779B97F4A7C15) % uint64(len(ls.shards)))
}

// mayLease reports whether the limit's tokens may come from a lease. A limit
// that a Request brings has no lease, and neither has a limit with a burst
// under 8.
func (l *Limiter) mayLease(limit, configured stint.Limit) bool {
	return l.durability(limit) == stint.Leased && limit == configured && limit.Burst >= 8
}

// of returns the bucket, which may be new, or nil if there are too many. A
// bucket whose limit has changed is new.
func (s *leaseShard) of(l *Limiter, r *request, elapsed int64) *leased {
	b := s.buckets[r.key]
	if b != nil && b.limit == r.limit {
		return b
	}
	if b == nil && len(s.buckets) >= maxLeases && !s.makeRoom() {
		return nil
	}
	b = &leased{
		lease: newLease(r.limit.Burst, r.interval, r.tolerance, l.opts.MaxLease, elapsed),
		key:   r.key, limit: r.limit, fourth: r.fourth,
	}
	s.buckets[r.key] = b
	l.leases.once.Do(func() { l.begin(l.endLeases) })
	return b
}

// makeRoom removes a bucket that has no tokens. It tries a few, and returns
// false if all of them are in use.
func (s *leaseShard) makeRoom() bool {
	looks := 8
	for _, b := range s.buckets {
		if !b.busy && b.grants[0].left == 0 && b.grants[1].left == 0 {
			delete(s.buckets, b.key)
			return true
		}
		if looks--; looks == 0 {
			break
		}
	}
	return false
}

// oneLeased decides on a bucket with a lease. If done is false, no token of the
// lease was used, and the caller must make a trip. err is then the error of a call
// that the lease made.
func (l *Limiter) oneLeased(n *limitsInForce, op string, r *request, cost int64) (d stint.Decision, done bool,
	err error) {
	switch op {
	case opSpend:
		d, done, err = l.spendLeased(n, r, cost)
	case opCheck:
		d, done = l.checkLeased(r, cost)
	}
	if !done {
		r.name = l.opts.keyOf(r.key)
	}
	return d, done, err
}

// spendLeased takes tokens of the lease, or waits until the server grants some.
func (l *Limiter) spendLeased(n *limitsInForce, r *request, cost int64) (d stint.Decision, done bool, err error) {
	if cost == 0 {
		return d, false, nil
	}
	elapsed := l.elapsed()
	s := &l.leases.shards[l.leases.shardOf(r.key)]
	s.mu.Lock()
	b := s.of(l, r, elapsed)
	if b == nil {
		s.mu.Unlock()
		return d, false, nil
	}
	if b.take(elapsed, cost) {
		now := b.decide(r, elapsed)
		l.renew(n, s, b, elapsed)
		s.mu.Unlock()
		return r.decision(now, opSpend), true, nil
	}
	if now, denied := l.deniedLeased(b, *r, cost, elapsed); denied != nil {
		s.mu.Unlock()
		return denied.decision(now, opSpend), true, nil
	}
	if l.awayFrom(r.key) {
		s.mu.Unlock()
		return d, false, nil
	}
	w := &waiter{request: *r, cost: cost, done: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	if !b.busy && !l.startAsking(n, s, b) {
		b.waiting = nil
		s.mu.Unlock()
		return d, true, stint.ErrClosed
	}
	s.mu.Unlock()
	<-w.done
	if w.err != nil {
		here := l.opts.away(r.key.Name) != AwayClosed && l.awayFrom(r.key)
		return d, !here && !errors.Is(w.err, ErrAway), w.err
	}
	return w.request.decision(w.now, opSpend), true, nil
}

// awayFrom reports whether the server that has a bucket is away.
func (l *Limiter) awayFrom(key stint.Key) bool {
	return l.awayNow.Load() > 0 && l.outageOf(l.opts.keyOf(key)).away.Load()
}

// decide puts the answer of the lease into the request. The server's time is at
// most the returned now, because the server read its clock after the question
// was sent.
func (b *leased) decide(r *request, elapsed int64) (now int64) {
	r.tat, r.wait, r.hold = b.seenTAT(elapsed), 0, 0
	return b.now + elapsed - b.sent
}

// deniedLeased returns the request with its denial if a sighting denies it even
// with the tokens of the lease. Otherwise it returns nil.
func (l *Limiter) deniedLeased(b *leased, r request, cost, elapsed int64) (now int64, denied *request) {
	left := b.left(elapsed)
	r.need = (cost - left) * r.interval
	now, is := l.seen.denies(&r, elapsed, l.opts.Fresh, l.opts.Timeout)
	if !is {
		return 0, nil
	}
	r.tat = max(0, r.tat-left*r.interval)
	return now, &r
}

// checkLeased decides on a check if the lease has the tokens. Otherwise it
// lowers the need of the request by the tokens of the lease.
func (l *Limiter) checkLeased(r *request, cost int64) (d stint.Decision, done bool) {
	elapsed := l.elapsed()
	s := &l.leases.shards[l.leases.shardOf(r.key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[r.key]
	if b == nil || b.limit != r.limit || cost == 0 {
		return d, false
	}
	left := b.left(elapsed)
	if left >= cost {
		now := b.decide(r, elapsed)
		r.tat += cost * b.interval // as if they were spent
		return r.decision(now, opCheck), true
	}
	r.need = (cost - left) * r.interval
	return d, false
}

// allLeased decides on several requests without a trip, if it can.
func (l *Limiter) allLeased(n *limitsInForce, op string, reqs []stint.Request, rs []request,
	ds []stint.Decision) (done bool) {
	if op == opSpend && l.spendAllLeased(n, reqs, rs, ds) {
		return true
	}
	for i := range rs {
		rs[i].name = l.opts.keyOf(rs[i].key)
	}
	return false
}

// spendAllLeased takes from the leases if each bucket has one with enough
// tokens. Otherwise it takes nothing, and records the demand.
func (l *Limiter) spendAllLeased(n *limitsInForce, reqs []stint.Request, rs []request, ds []stint.Decision) bool {
	for i := range rs {
		if !rs[i].leased || reqs[rs[i].at].Cost == 0 {
			return false
		}
	}
	elapsed := l.elapsed()
	var at []int
	for i := range rs {
		at = append(at, l.leases.shardOf(rs[i].key))
	}
	order := slices.Compact(slices.Sorted(slices.Values(at)))
	for _, i := range order {
		l.leases.shards[i].mu.Lock()
	}
	defer func() {
		for _, i := range order {
			l.leases.shards[i].mu.Unlock()
		}
	}()
	all := true
	bs := make([]*leased, len(rs))
	for i := range rs {
		r, s := &rs[i], &l.leases.shards[at[i]]
		is := s.buckets[r.key] != nil
		if bs[i] = s.of(l, r, elapsed); bs[i] == nil {
			return false
		}
		cost := reqs[r.at].Cost
		if bs[i].left(elapsed) < cost {
			all = false
			if bs[i].used += cost; is {
				l.renew(n, s, bs[i], elapsed)
			} else {
				bs[i].asked = elapsed
			}
		}
	}
	if !all {
		return false
	}
	for i := range rs {
		r, b := &rs[i], bs[i]
		if r.mode != stint.CheckOnly {
			b.take(elapsed, reqs[r.at].Cost)
			l.renew(n, &l.leases.shards[at[i]], b, elapsed)
		}
		ds[r.at] = r.decision(b.decide(r, elapsed), opSpend)
	}
	return true
}

// renew asks for a grant in the background if the lease is low.
func (l *Limiter) renew(n *limitsInForce, s *leaseShard, b *leased, elapsed int64) {
	if !b.busy && b.low(elapsed) && !l.awayFrom(b.key) {
		l.startAsking(n, s, b)
	}
}

// startAsking starts the goroutine that asks for a bucket. It returns false if the
// Limiter is closed.
func (l *Limiter) startAsking(n *limitsInForce, s *leaseShard, b *leased) bool {
	b.busy = l.begin(func() { l.askFor(n, s, b) })
	return b.busy
}

// askFor asks until no caller waits. Each answer decides on one caller at least.
func (l *Limiter) askFor(n *limitsInForce, s *leaseShard, b *leased) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for again := true; again; again = len(b.waiting) > 0 {
		q := b.ask(l.elapsed())
		s.mu.Unlock()
		part := b.part(l, q)
		answers, err := l.callLease(n, []leasePart{part})
		if err == nil {
			l.sawLease(b, part.name, &answers[0])
		}
		s.mu.Lock()
		for _, w := range l.answered(b, &q, answers, err) {
			close(w.done)
		}
	}
	b.busy = false
}

// sawLease updates the seen bucket and the hold from an answer.
func (l *Limiter) sawLease(b *leased, name string, a *answer) {
	r := request{key: b.key, name: name, limit: b.limit, interval: b.interval, tolerance: b.tolerance,
		fourth: b.fourth, tat: a.tat, hold: a.hold}
	l.saw(&trip{op: opCharge, now: a.now, allowed: true, requests: []request{r}})
}

// answered applies the answer to the lease, and returns the callers that are
// decided.
func (l *Limiter) answered(b *leased, q *question, answers []answer, err error) (decided []*waiter) {
	elapsed := l.elapsed()
	if err == nil {
		a := &answers[0]
		denied := a.wait > 0
		decided = b.receive(q, a, elapsed)
		for _, w := range decided {
			denied = denied || !w.served
		}
		if l.opts.Fresh > 0 && (denied || q.back != [2]grant{}) {
			l.seen.put(&request{key: b.key, tat: a.tat, hold: a.hold}, a.now, q.sent, denied)
		}
		return decided
	}
	if errors.Is(err, ErrAway) || errors.Is(err, errNothingRan) {
		b.restore(q)
	}
	decided, b.waiting = b.waiting, nil
	for _, w := range decided {
		if w.served = b.take(elapsed, w.cost); w.served {
			w.now = b.decide(&w.request, elapsed)
		} else {
			w.err = err
		}
	}
	return decided
}

// endLeases gives back the tokens of leases that have ended.
func (l *Limiter) endLeases() {
	tick := time.NewTicker(max(l.opts.MaxLease/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.giveBack(l.leases.ended(l, false))
		case <-l.closing:
			return
		}
	}
}

// ended removes the grants that have ended from the leases, or all grants if
// all is true, and forgets idle buckets. It returns the parts that give their
// tokens back.
func (ls *leases) ended(l *Limiter, all bool) (parts []leasePart) {
	for i := range ls.shards {
		s := &ls.shards[i]
		s.mu.Lock()
		elapsed := l.elapsed()
		for _, b := range s.buckets {
			if b.busy {
				continue
			}
			if part := b.part(l, question{back: b.end(elapsed, all)}); part.gives(b, elapsed) {
				parts = append(parts, part)
			}
			if b.left(elapsed) == 0 && elapsed-b.asked > b.life {
				delete(s.buckets, b.key)
			}
		}
		s.mu.Unlock()
	}
	return parts
}

// dropLease forgets the lease of a bucket that a Reset makes full, or that a
// Hold denies. After a Hold, its tokens go back.
func (l *Limiter) dropLease(key stint.Key, back bool) {
	s := &l.leases.shards[l.leases.shardOf(key)]
	s.mu.Lock()
	b := s.buckets[key]
	if b == nil {
		s.mu.Unlock()
		return
	}
	elapsed := l.elapsed()
	part := b.part(l, question{back: b.end(elapsed, true)})
	delete(s.buckets, b.key)
	s.mu.Unlock()
	if back && part.gives(b, elapsed) {
		l.giveBack([]leasePart{part})
	}
}

// dropChanged forgets the leases of limits that are not in force any more. Their
// tokens do not go back, because they may be worth more under the new limit.
func (ls *leases) dropChanged(n *limitsInForce) {
	for i := range ls.shards {
		s := &ls.shards[i]
		s.mu.Lock()
		for key, b := range s.buckets {
			if limit, err := n.limitOf(key); err != nil || limit != b.limit {
				delete(s.buckets, b.key)
			}
		}
		s.mu.Unlock()
	}
}

// giveBack returns tokens to the server. If that fails, they stay spent.
func (l *Limiter) giveBack(parts []leasePart) {
	if len(parts) == 0 {
		return
	}
	var group sync.WaitGroup
	var failed error
	var mu sync.Mutex
	slots := make(chan struct{}, 16)
	together := maxTogether
	if c, ok := l.client.(ClusterClient); l.cluster.Load() || ok && c.IsCluster() {
		together = 1
	}
	n := l.Load()
	for chunk := range slices.Chunk(parts, together) {
		slots <- struct{}{}
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			_, err := l.callLease(n, chunk)
			if errors.Is(err, ErrCrossSlot) && len(chunk) > 1 {
				l.cluster.Store(true)
				l.giveBack(chunk)
				return
			}
			for i := range chunk {
				l.seen.forget(chunk[i].key)
			}
			mu.Lock()
			failed = cmp.Or(failed, err)
			mu.Unlock()
		})
	}
	group.Wait()
}
