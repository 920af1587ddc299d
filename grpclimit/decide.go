package grpclimit

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/lockout"
	"github.com/stint-go/stint/internal/onetotal"
	"github.com/stint-go/stint/internal/unspent"
)

// asked has the arguments of SpendTogether. A Decider may keep them until the
// call returns.
type asked struct {
	reqs []stint.Request
	ds   []stint.Decision
}

var askedPool = sync.Pool{New: func() any { return new(asked) }}

// free returns q to the pool.
func (q *asked) free() {
	clear(q.reqs)
	clear(q.ds)
	q.reqs, q.ds = q.reqs[:0], q.ds[:0]
	askedPool.Put(q)
}

// spend decides on the rules that can deny, in one call, and returns the
// strictest decision. It waits for a commit until ctx ends. After that no client
// reads the answer, and the tokens stay spent if the commit succeeds.
func (p *pass) spend(ctx context.Context, mine []*applied) (strictest stint.Decision, err error) {
	deciding := func(a *applied) bool { return !a.Shadow && a.decides() }
	var one *applied
	n, timed := 0, false
	for _, a := range mine {
		if deciding(a) {
			one, n = a, n+1
			timed = timed || a.rule.RefundCode != nil || a.rule.LockOut > 0 || a.rule.Settle
		}
	}
	if n == 0 {
		return stint.Decision{Allowed: true, Remaining: math.MaxInt64}, nil
	}
	var at time.Time // before the spend: a refund must not return too much
	if timed {
		at = p.lim.Now()
	}
	if n == 1 {
		if one.After {
			strictest, err = p.lim.Check(one.RuleKey, one.Cost)
		} else {
			strictest, err = p.lim.SpendContext(ctx, one.RuleKey, one.Cost)
		}
		if err == nil {
			p.set(one, strictest, at)
		}
		return strictest, err
	}
	q := askedPool.Get().(*asked)
	defer q.free()
	for _, a := range mine {
		if !deciding(a) {
			continue
		}
		req := stint.Request{Key: a.RuleKey, Cost: a.Cost}
		if a.After {
			req.Mode = stint.CheckOnly
		}
		q.reqs = append(q.reqs, req)
	}
	q.ds = slices.Grow(q.ds, len(q.reqs))[:len(q.reqs)]
	strictest, err = onetotal.Spend(ctx, p.lim, q.reqs, q.ds)
	if err != nil {
		return stint.Decision{}, err
	}
	ds := q.ds
	for _, a := range mine {
		if !deciding(a) {
			continue
		}
		d := ds[0]
		ds = ds[1:]
		if !strictest.Allowed && !a.After { // set does so for After
			unspent.TakeOut(&d, a.Cost)
		}
		p.set(a, d, at)
	}
	return strictest, nil
}

// set sets the decision of a rule, and the label of the bucket that decided.
func (p *pass) set(a *applied, d stint.Decision, at time.Time) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if d.Key.Name != a.Key.Name {
		a.Label = p.names.Of(p.lim)[d.Key.Name].Label
	}
	if a.After {
		unspent.TakeOut(&d, a.Cost)
	}
	a.Decision.Decision, a.at, a.decided = d, at, true
}

// learn sets the decisions of Shadow rules, which spend only if the other rules
// allowed the call.
func (p *pass) learn(ctx context.Context, mine []*applied, allowed bool) {
	for _, a := range mine {
		if !a.Shadow || !a.decides() {
			continue
		}
		var d stint.Decision
		var err error
		at := p.lim.Now()
		if allowed && !a.After {
			d, err = p.lim.SpendContext(ctx, a.RuleKey, a.Cost)
		} else {
			d, err = p.lim.Check(a.RuleKey, a.Cost)
		}
		if err != nil {
			p.fail(ctx, err)
			d = stint.Decision{Allowed: allowed, Key: a.RuleKey, Remaining: math.MaxInt64}
		}
		if err == nil && !allowed && !a.After {
			unspent.TakeOut(&d, a.Cost)
		}
		p.set(a, d, at)
		if err != nil || !allowed {
			p.c.mu.Lock()
			a.refunded = !a.After // there is nothing to refund
			p.c.mu.Unlock()
		}
	}
}

// end applies the rules of a call after its handler: it gives the places back,
// spends, refunds and locks out. An error of the Limiter is reported to the
// observers, and does not stop the rest.
func (p *pass) end(code codes.Code) {
	p.leave()
	if !p.ends {
		return
	}
	ctx := context.WithoutCancel(p.c.Context)
	p.count(ctx, code)
	p.refund(ctx, code)
	for _, a := range p.mine {
		if a.rule.Messages == 0 {
			p.lockOut(ctx, a)
		}
	}
	p.tell(ctx, p.mine)
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for _, a := range p.mine { // it decides anew if an outer interceptor calls this one again
		a.void = a.void || a.decided && !a.idle && !a.hasSpent()
	}
}

// count spends the tokens of the rules that count the code.
func (p *pass) count(ctx context.Context, code codes.Code) {
	var counted []*applied
	for _, a := range p.mine {
		if a.rule.CountCode == nil || !a.decided || !a.After || a.refunded || !a.rule.CountCode(code) {
			continue
		}
		p.c.mu.Lock()
		idle := a.idle
		p.c.mu.Unlock()
		if idle {
			continue
		}
		at := p.lim.Now()
		d, err := p.lim.Spend(a.RuleKey, a.Cost)
		if err != nil {
			p.fail(ctx, err)
			continue
		}
		p.c.mu.Lock()
		a.After = false
		p.c.mu.Unlock()
		p.set(a, d, at)
		counted = append(counted, a)
	}
	p.observe(ctx, counted)
}

// refund returns the tokens of the rules with a RefundCode for the code.
func (p *pass) refund(ctx context.Context, code codes.Code) {
	var back []stint.Request
	for _, a := range p.mine {
		if a.rule.RefundCode == nil || !a.rule.RefundCode(code) {
			continue
		}
		p.c.mu.Lock()
		if a.hasSpent() && !a.settled {
			a.refunded, a.changed = true, true
			back = append(back, stint.Request{Key: a.RuleKey, Cost: a.Cost, Spent: a.at})
		}
		p.c.mu.Unlock()
	}
	if len(back) == 0 {
		return
	}
	if _, err := onetotal.Refund(p.lim, back...); err != nil {
		p.fail(ctx, err)
	}
}

// lockOut holds the bucket of a rule if it has too few tokens left for another
// call, or message, like this one.
func (p *pass) lockOut(ctx context.Context, a *applied) {
	if a.rule.LockOut <= 0 || a.Shadow || !a.hasSpent() || a.Cost <= 0 {
		return
	}
	spend := lockout.Spend{
		Key: a.RuleKey, Decision: a.Decision.Decision, Least: a.rule.least(a.Cost), At: a.at,
	}
	locked, err := a.rule.lockOut().After(p.lim, spend)
	if err != nil {
		p.fail(ctx, err)
	}
	a.changed = a.changed || locked > 0
}
