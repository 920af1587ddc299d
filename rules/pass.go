package rules

import (
	"context"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/lockout"
	"github.com/stint-go/stint/internal/onetotal"
	"github.com/stint-go/stint/internal/places"
)

// A Pass is a request that has begun, and its context. Pass it on to what the
// request calls, so that Settle and Decisions find the pass.
type Pass struct {
	context.Context
	door *Door

	mu      sync.Mutex // guards the following; not held while the Limiter is called
	parts   []Part
	changed bool    // a decision has changed since End
	room    [1]Part // saves an allocation
}

type passKey struct{}

// Value implements context.Context.
func (p *Pass) Value(key any) any {
	if key == (passKey{}) {
		return p
	}
	return p.Context.Value(key)
}

// PassOf returns the innermost pass of a request, or nil.
func PassOf(ctx context.Context) *Pass {
	p, _ := ctx.Value(passKey{}).(*Pass)
	return p
}

// Begin lets a request pass, or denies it, with a decision of each rule. If
// Allowed is false, it has spent nothing and has no place; the Pass has its
// decisions. After an error there is no Pass: IsInvalid tells whether the request
// is wrong. Errors of Shadow rules stop no request, and go to report, which may
// be nil.
func (d *Door) Begin(ctx context.Context, report func(error), asks ...Ask) (*Pass, stint.Decision, error) {
	p := new(Pass)
	decision, err := p.Begin(ctx, d, report, asks)
	if err != nil {
		p.Leave()
		return nil, decision, err
	}
	return p, decision, nil
}

// Begin is Door.Begin for a Pass that a door has made, perhaps as a part of its
// own context. After an error the request has its places still, for a door that
// lets it pass.
func (p *Pass) Begin(
	ctx context.Context, d *Door, report func(error), asks []Ask,
) (decision stint.Decision, err error) {
	p.Context, p.door = ctx, d
	if report == nil {
		report = func(error) {}
	}
	for i := range asks {
		switch ok, err := d.Resolve(&asks[i], report); {
		case err != nil:
			p.parts = nil
			return decision, err
		case ok && p.parts == nil:
			p.parts = d.Add(p.room[:0], &asks[i])
		case ok:
			p.parts = d.Add(p.parts, &asks[i])
		}
	}
	panics := true
	defer func() {
		if panics { // report, or the Limiter
			p.Leave()
		}
	}()
	decision, err = d.Decide(ctx, p.parts, report)
	panics = false
	return decision, err
}

// Carry makes p the pass of a request whose rules a door has decided on by
// itself, without an allocation for those that are denied. The places are now
// those of p.
func (p *Pass) Carry(ctx context.Context, d *Door, parts []Part) {
	p.Context, p.door, p.parts = ctx, d, append(p.room[:0], parts...)
	for i := range parts {
		parts[i].place = places.Place[places.Bucket]{}
	}
}

// Each yields the decisions of this pass. It must not be used with a body that
// calls other methods of the pass.
func (p *Pass) Each(yield func(*Decision) bool) {
	p.mu.Lock()
	defer p.mu.Unlock() // yield may panic
	for i := range p.parts {
		if a := &p.parts[i]; a.Decided() && !yield(&a.Decision) {
			return
		}
	}
}

// Leave gives the places of the request back. Further calls do nothing.
func (p *Pass) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	Leave(p.parts)
}

// End tells the rules the outcome of a request, once: they spend, refund and lock
// out. It returns the decisions of the rules that counted the outcome, and whether
// any decision has changed since the pass began, by Settle, too. An error of the
// Limiter goes to report, and does not stop the rest.
func (p *Pass) End(outcome int, report func(error)) (counted []Decision, changed bool) {
	for i := range p.parts {
		a := &p.parts[i]
		if a.rule.Count == nil || !p.in(a, checked) || !a.rule.Count(outcome) {
			continue
		}
		if d, err := p.count(a); err != nil {
			report(err)
		} else {
			counted = append(counted, d)
		}
	}
	p.refund(outcome, report)
	for i := range p.parts {
		if err := p.lockOut(&p.parts[i]); err != nil {
			report(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed, p.changed = p.changed, false
	return counted, changed
}

// in reports whether a rule is in a state.
func (p *Pass) in(a *Part, s state) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return a.state == s
}

// count spends the tokens of a rule that counts the outcome.
func (p *Pass) count(a *Part) (Decision, error) {
	begun := p.door.lim.Now().UnixNano()
	d, err := p.door.ask(context.Background(), a.RuleKey.Cost(a.Cost))
	if err != nil {
		return Decision{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.Allowed {
		a.to(spend)
	}
	a.After, a.begun, p.changed = false, begun, true
	p.door.show(a, &d)
	return a.Decision, nil
}

// refund returns the tokens of the rules that refund the outcome.
func (p *Pass) refund(outcome int, report func(error)) {
	var back []*Part
	var reqs []stint.Request
	for i := range p.parts {
		a := &p.parts[i]
		if a.rule.Refund == nil || !a.rule.Refund(outcome) {
			continue
		}
		p.mu.Lock()
		if a.to(refund) {
			back = append(back, a)
			reqs = append(reqs, stint.Request{Key: a.RuleKey, Cost: a.Cost, Spent: time.Unix(0, a.begun)})
		}
		p.mu.Unlock()
	}
	if len(reqs) == 0 {
		return
	}
	if _, err := onetotal.Refund(p.door.lim, reqs...); err != nil {
		report(err)
		return
	}
	for _, a := range back {
		d, err := p.door.ask(context.Background(), stint.Request{Key: a.RuleKey, Mode: stint.CheckOnly})
		if err != nil {
			report(err)
			continue
		}
		p.mu.Lock()
		p.replaced(a, &d)
		p.mu.Unlock()
	}
}

// replaced shows the state of a bucket after tokens were returned, or the true
// cost was spent. If d denies, that is because of a hold or a queue: what the
// request took was there.
func (p *Pass) replaced(a *Part, d *stint.Decision) {
	a.Locked = 0
	if !d.Allowed {
		a.Locked = d.RetryAfter
	}
	d.Allowed, d.RetryAfter = true, 0
	p.door.show(a, d)
	p.changed = true
}

// lockOut holds the bucket of a rule if it has too few tokens left for another
// request like this one.
func (p *Pass) lockOut(a *Part) error {
	if a.rule.LockOut <= 0 || a.Shadow {
		return nil
	}
	p.mu.Lock()
	was := *a
	p.mu.Unlock()
	if was.state != spent || was.Cost <= 0 {
		return nil
	}
	locked, err := was.lockOut(p.door.lim)
	if err != nil || locked == 0 {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.Locked, p.changed = locked, true
	return nil
}

// lockOut returns the rest of the hold, or 0 if there are enough tokens left.
func (a *Part) lockOut(lim stint.Decider) (time.Duration, error) {
	least := a.Cost
	if a.rule.CostVaries {
		least = 1
	}
	rule := lockout.Rule{For: a.rule.LockOut, Max: a.rule.LockOutMax}
	return rule.After(lim, lockout.Spend{
		Key: a.RuleKey, Decision: a.Decision.Decision, Least: least, At: time.Unix(0, a.begun),
	})
}

// Spend spends for one piece of a request, such as a message of a stream, from
// the buckets of the Asks with Later for which cost returns true. It returns the
// strictest decision of a rule that can deny, and the decisions about the piece.
// A request may spend for several pieces at the same time.
func (p *Pass) Spend(
	ctx context.Context, cost func(rule int) (n int64, ok bool), report func(error),
) (strictest stint.Decision, ds []Decision, err error) {
	d := p.door
	var room [2]Part
	parts := room[:0]
	p.mu.Lock()
	for i := range p.parts {
		if a := &p.parts[i]; a.state == postponed || a.state == piecewise {
			parts = append(parts, Part{rule: a.rule, bound: a.rule, Decision: Decision{
				Decision: stint.Decision{Key: a.RuleKey}, RuleKey: a.RuleKey, Shadow: a.Shadow}})
		}
	}
	p.mu.Unlock()
	asked := parts
	parts = parts[:0]
	for _, a := range asked {
		if n, ok := cost(d.index(a.rule)); ok {
			a.Cost, a.Label = n, d.names.Of(d.lim)[a.RuleKey.Name].Label
			parts = append(parts, a)
		}
	}
	if strictest, err = d.Decide(ctx, parts, report); err != nil {
		return strictest, nil, err
	}
	for i := range parts {
		a := &parts[i]
		if a.state == spent && a.rule.LockOut > 0 && !a.Shadow && a.Cost > 0 {
			if a.Locked, err = a.lockOut(d.lim); err != nil {
				report(err)
			}
		}
		if a.Decided() {
			ds = append(ds, a.Decision)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.parts {
		for j := range parts {
			if a, of := &p.parts[i], &parts[j]; a.rule == of.rule && of.Decided() && a.to(piece) {
				inFlight := a.InFlight
				a.Decision, a.InFlight = of.Decision, inFlight
			}
		}
	}
	return strictest, ds, nil
}

// index returns the index of a rule among those of New.
func (d *Door) index(ru *Rule) int {
	for i := range d.rules {
		if &d.rules[i] == ru {
			return i
		}
	}
	return -1
}
