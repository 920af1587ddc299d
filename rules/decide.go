package rules

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// part is a rule of a pass, with its decision.
type part[R Request, O any] struct {
	Decision
	rule  *Rule[R, O]
	bound *Rule[R, O] // whose bound on requests in flight counts
	place *entry      // nil if it has none
	leave int64       // tokens that must remain
	state state
}

// decide takes the places of a request, and then its tokens: all of them, or
// none. strictest gets the strictest decision of a rule that can deny. After a denial
// the request has no places. After an error it has them still, and has spent
// nothing, except as the errors of stint.Decider say. Errors of Shadow rules stop
// no request.
//
// decide waits for a place, and for a commit, until the context ends. After that no
// client reads the answer, and the tokens stay spent if the commit succeeds.
func (p *Pass[R, O]) decide(strictest *stint.Decision) (err error) {
	d := p.door
	for i := range p.parts {
		if a := &p.parts[i]; a.InFlight.Limit != 0 && !a.enter(p.ctx, d.lim) {
			p.leaveLocked()
			*strictest = a.Decision.Decision
			return nil
		}
	}
	if len(p.parts) == 1 && p.parts[0].decides() {
		err = p.spendAlone(&p.parts[0], true, strictest)
	} else {
		*strictest, err = p.spend()
	}
	if err != nil {
		*strictest = stint.Decision{}
		return err
	}
	for i := range p.parts {
		if a := &p.parts[i]; a.Shadow && a.state == pending {
			var its stint.Decision
			if err := p.spendAlone(a, strictest.Allowed, &its); err != nil {
				d.fail(p.Request, err)
			}
		}
	}
	if !strictest.Allowed {
		p.leaveLocked()
	}
	return nil
}

// noPlace is how long a request without a place is asked to wait. Nobody knows
// when another one ends.
const noPlace = time.Second

// enter takes the place of a rule. If there is none, the rule has denied.
func (a *part[R, O]) enter(ctx context.Context, lim stint.Decider) bool {
	of := bucket{lim, a.RuleKey}
	var state Running
	if a.bound.Shadow {
		a.place, state = inFlight().force(of)
	} else {
		a.place, state = inFlight().enter(ctx, of, bound{
			most: a.InFlight.Limit, wait: a.bound.InFlightWait, queue: a.bound.InFlightQueue})
	}
	a.InFlight.Running = state.Running
	if a.place != nil {
		a.InFlight.Denied = state.Running > a.InFlight.Limit
		return true
	}
	a.InFlight.Denied, a.RetryAfter = true, noPlace
	a.to(deny)
	return false
}

// decides reports whether the rule takes part in the decision of the Limiter.
func (a *part[R, O]) decides() bool { return !a.Shadow && a.state == pending }

// took returns what the rule has spent, for Refund.
func (a *part[R, O]) took() stint.Request {
	return a.RuleKey.Cost(a.Cost).SpentAt(a.At())
}

// asked has the arguments of a call. A Decider may keep
// them until the call returns.
type asked struct {
	reqs []stint.Request
	ds   []stint.Decision
	seen []Decision // for observers
}

var askedPool = sync.Pool{New: func() any { return new(asked) }}

// spend decides on the rules that can deny, in one call, and returns the
// strictest decision.
func (p *Pass[R, O]) spend() (stint.Decision, error) {
	q, d := askedPool.Get().(*asked), p.door
	defer q.free()
	for i := range p.parts {
		if a := &p.parts[i]; a.decides() {
			q.reqs = append(q.reqs, stint.Request{})
			a.request(&q.reqs[len(q.reqs)-1])
		}
	}
	if len(q.reqs) == 0 {
		return stint.Decision{Allowed: true, Remaining: math.MaxInt64}, nil
	}
	q.ds = slices.Grow(q.ds, len(q.reqs))[:len(q.reqs)]
	strictest, err := d.lim.Do(p.ctx, q.reqs, q.ds)
	if err != nil {
		return stint.Decision{}, err
	}
	ds := q.ds
	for i := range p.parts {
		if a := &p.parts[i]; a.decides() {
			p.decided(a, &ds[0], strictest.Allowed)
			ds = ds[1:]
		}
	}
	return strictest, nil
}

// spendAlone decides on one rule in a call of its own: on the only one of a pass, or
// on a Shadow rule, which spends only if the other rules allowed the request.
func (p *Pass[R, O]) spendAlone(a *part[R, O], allowed bool, d *stint.Decision) (err error) {
	var req [1]stint.Request // filled in place: a copy of what was just written takes 20 ns
	if a.request(&req[0]); !allowed {
		req[0].Mode = stint.CheckOnly
	}
	if err = answer(p.ctx, p.door.lim, d, req[:]...); err == nil {
		p.decided(a, d, allowed && (d.Allowed || a.Shadow && a.rule.Count != nil))
	}
	return err
}

// request fills in what a rule asks the Limiter for.
func (a *part[R, O]) request(req *stint.Request) {
	req.Key, req.Cost, req.Leave = a.RuleKey, a.Cost, a.leave
	if a.rule.Count != nil {
		req.Mode = stint.CheckOnly
	}
}

// ask is Do without the decision on each request.
func ask(ctx context.Context, lim stint.Decider, reqs ...stint.Request) (d stint.Decision, err error) {
	err = answer(ctx, lim, &d, reqs...)
	return d, err
}

// answer is ask that writes the decision where the caller wants it, because a copy of
// one takes 10 ns. A Limiter does not keep the requests, so they stay on the stack;
// another Decider gets a copy of them.
func answer(ctx context.Context, lim stint.Decider, d *stint.Decision, reqs ...stint.Request) (err error) {
	if lim, ok := lim.(*stint.Limiter); ok {
		*d, err = lim.Do(ctx, reqs, nil)
		return err
	}
	q := askedPool.Get().(*asked)
	defer q.free()
	q.reqs = append(q.reqs, reqs...)
	*d, err = lim.Do(ctx, q.reqs, nil)
	return err
}

func (q *asked) free() {
	clear(q.reqs)
	clear(q.ds)
	clear(q.seen)
	q.reqs, q.ds, q.seen = q.reqs[:0], q.ds[:0], q.seen[:0]
	askedPool.Put(q)
}

// decided sets the decision of a rule, and its state. If the decision allows, but
// the rule has spent nothing, it has the state that a spend would leave: then
// decided changes it to the state without that spend.
func (p *Pass[R, O]) decided(a *part[R, O], decision *stint.Decision, allowed bool) {
	p.show(a, decision)
	switch {
	case !allowed:
		a.to(deny)
	case a.rule.Count != nil:
		a.to(check)
	default:
		a.to(spend)
		return
	}
	if a.Allowed {
		takeOut(&a.Decision.Decision, a.Cost)
	}
}

// show sets the decision of a rule, and the label of the bucket that decided.
func (p *Pass[R, O]) show(a *part[R, O], decision *stint.Decision) {
	if decision.Key.Name != a.Key.Name {
		spec, _ := p.door.lim.Limits().Spec(decision.Key.Name)
		a.Label = spec.Label
	}
	a.Decision.Decision = *decision
}

// takeOut gives d the state of the bucket without the spend. d is the decision
// of a CheckOnly request: if it allows, it has the state that a spend of cost
// would leave.
func takeOut(d *stint.Decision, cost int64) {
	if !d.Allowed || d.Limit.Count <= 0 {
		return
	}
	d.Remaining += cost
	switch {
	case !d.Limit.FollowsCalendar():
		d.ResetAfter = max(0, d.ResetAfter-time.Duration(cost)*d.Limit.Interval())
	case d.Remaining >= d.Limit.Burst:
		d.ResetAfter = 0
	}
}
