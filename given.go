package stint

import (
	"cmp"
	"sync/atomic"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/table"
)

// givenRules caches the rules of limits that callers give.
type givenRules [256]atomic.Pointer[rule]

// of returns the rule of a limit that a caller gives. The error is Validate's.
func (g *givenRules) of(l Limit) (*rule, error) {
	if l == Unlimited {
		return &unlimitedRule, nil
	} else if l == Blocked {
		return &blockedRule, nil
	}
	const odd = 0x9E3779B97F4A7C15
	h := ((uint64(l.Burst)*odd^uint64(l.Count))*odd^uint64(l.Period))*odd ^ uint64(l.Queue)<<3 ^ uint64(l.Durability) ^ uint64(l.calendar)<<32
	at := &g[h*odd>>56]
	if r := at.Load(); r != nil && r.limit == l {
		return r, nil
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	r, _ := newRule(l)
	at.Store(&r)
	return &r, nil
}

// same reports whether two limits are the same. A limit without a level has the
// default level.
func same(a, b Limit, level Durability) bool {
	a.Durability, b.Durability = cmp.Or(a.Durability, level), cmp.Or(b.Durability, level)
	return a == b
}

// isZero is a comparison with Limit{}, which the compiler makes a call that reads
// the Limit in larger pieces than the caller has just written it.
func (l *Limit) isZero() bool {
	return l.Burst|l.Count|int64(l.Period)|l.Queue == 0 && l.Durability == 0 && l.kind == 0 && l.calendar == 0
}

// give makes the Limit of req, if it has one, the given limit of r.
func (l *Limiter) give(r *request, req *Request) (err error) {
	if !req.Limit.isZero() {
		r.given, err = l.given.of(req.Limit)
	}
	return err
}

// useConfiguredLocked drops a given limit that equals the configured one. Only
// the configured limit has leases, which last for several requests. level is the
// default.
func (r *request) useConfiguredLocked(level Durability) {
	if r.given != nil && same(r.given.limit, limitsIn(r.Shard).rules[r.rule].limit, level) {
		r.given = nil
	}
	if r.Given = 0; r.given != nil {
		r.Given = cache.Level(r.given.level(level))
	}
}

// outliveGivenLocked makes a reset durable if given limits have changed the bucket
// in the store, or may have: no limit is configured, or the bucket was loaded. At
// which level they did so is not known any more.
func (r *request) outliveGivenLocked() {
	i, ok := r.Shard.Find(r.Key.Name, r.Key.ID, r.Hash)
	if !ok {
		return
	}
	b := r.Shard.At(i)
	if b.Has(table.Stored) && (b.Has(table.Flush|table.Loaded) || b.Rule() <= blocked) {
		r.Given = cache.Level(Synced)
	}
}
