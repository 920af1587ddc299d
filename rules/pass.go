package rules

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
)

// A Pass is a request that has begun, and the context of its handler: with it,
// Settle and Decisions find the pass. A nil Pass is that of a request to which no
// rule applies.
type Pass[R Request, O any] struct {
	context.Context

	Request R   // what the observers of the door get
	Data    any // what the door keeps with the pass

	door  *Door[R, O]
	outer *Pass[R, O]                // the next one around it
	inner atomic.Pointer[Pass[R, O]] // the last one inside

	mu      sync.Mutex // guards the following once it is kept; not held while the Limiter is called
	parts   []part[R, O]
	changed bool          // a decision has changed since End
	kept    bool          // Begin does not use it again
	shared  bool          // its decisions may change while it is kept
	room    [1]part[R, O] // saves an allocation
}

type passKey struct{}

// Value implements context.Context.
func (p *Pass[R, O]) Value(key any) any {
	if key == (passKey{}) {
		return p
	}
	return p.Context.Value(key)
}

type anyPass interface {
	around() anyPass
	appendAll(ds []Decision) []Decision
	settle(name stint.Name, cost int64) (decided, claimed bool, short int64, err error)
}

// passOf returns the innermost pass of any kind, or nil.
func passOf(ctx context.Context) anyPass {
	p, _ := ctx.Value(passKey{}).(anyPass)
	return p
}

// around returns the next pass of any kind around it, or nil.
func (p *Pass[R, O]) around() anyPass { return passOf(p.Context) }

// PassOf returns the innermost pass of a kind, or nil. PassOf of its Context is the
// next one.
func PassOf[R Request, O any](ctx context.Context) *Pass[R, O] {
	for p := passOf(ctx); p != nil; p = p.around() {
		if p, ok := p.(*Pass[R, O]); ok {
			return p
		}
	}
	return nil
}

// Begin lets a request pass, or denies it, with a decision of each rule. If
// Allowed is false, it has spent nothing and has no place; the Pass has its
// decisions. After an error there is no Pass. Observers get the error, and those
// of Shadow rules, which stop no request. The Pass is nil if no rule applies.
func (d *Door[R, O]) Begin(r R) (_ *Pass[R, O], decision stint.Decision, err error) {
	p, err := d.apply(&r)
	if p == nil || err != nil {
		return nil, stint.Decision{Allowed: err == nil, Remaining: math.MaxInt64}, err
	}
	begun := false
	defer func() {
		if !begun { // an error, or an observer or the Limiter panics
			p.Leave()
		}
	}()
	if decision, err = p.decide(); err != nil {
		if d.fail(r, err); !d.passes(err) {
			return nil, stint.Decision{}, err
		}
		decision.Allowed = true
	}
	if len(d.opts.Observers) > 0 {
		p.observe()
	}
	begun = true
	if p.outer = PassOf[R, O](p.Context); decision.Allowed || p.outer != nil {
		p.Keep()
	}
	return p, decision, nil
}

func (p *Pass[R, O]) observe() {
	q := askedPool.Get().(*asked)
	defer q.free()
	for i := range p.parts {
		if a := &p.parts[i]; a.isDecided() {
			q.seen = append(q.seen, a.Decision)
		}
	}
	p.door.observe(p.Request, q.seen)
}

// Keep says that a pass becomes a context, or is used after Leave. Otherwise Begin
// uses a denied one again, so that a denial allocates nothing.
func (p *Pass[R, O]) Keep() {
	if p.kept {
		return
	}
	p.kept, p.shared = true, p.Changes()
	if p.outer != nil {
		p.outer.inner.Store(p)
	}
}

// Leave gives the places of a request back. Further calls do nothing. A denied
// Pass must not be used after it, as Keep explains.
func (p *Pass[R, O]) Leave() {
	if p == nil {
		return
	}
	if p.kept {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.leaveLocked()
		return
	}
	p.leaveLocked()
	if d := p.door; d != nil {
		var none R
		clear(p.parts)
		p.Context, p.Request, p.door, p.parts = nil, none, nil, p.parts[:0]
		d.spares.Put(p)
		if !d.spare.Load() {
			d.spare.Store(true)
		}
	}
}

// leaveLocked gives the places back. A pass that is not kept needs no lock.
func (p *Pass[R, O]) leaveLocked() {
	for i := range p.parts {
		if a := &p.parts[i]; a.place != nil {
			a.place.leave()
			a.place = nil
		}
	}
}

// Each yields the decisions of this pass. It must not be used with a body that
// calls other methods of the pass. Without the lock it is inlined, which takes 20 ns
// less for each request.
func (p *Pass[R, O]) Each(yield func(*Decision) bool) {
	if p.shared {
		p.eachLocking(yield)
		return
	}
	for i := range p.parts {
		if a := &p.parts[i]; a.isDecided() && !yield(&a.Decision) {
			return
		}
	}
}

func (p *Pass[R, O]) eachLocking(yield func(*Decision) bool) {
	p.mu.Lock()
	defer p.mu.Unlock() // yield may panic
	for i := range p.parts {
		if a := &p.parts[i]; a.isDecided() && !yield(&a.Decision) {
			return
		}
	}
}

// Outermost returns the first pass of the same kind that a request began.
func (p *Pass[R, O]) Outermost() *Pass[R, O] {
	for p.outer != nil {
		p = p.outer
	}
	return p
}

// Inner returns the last pass of the same kind that began inside, or nil.
func (p *Pass[R, O]) Inner() *Pass[R, O] { return p.inner.Load() }

// Owner is Options.Owner of the door.
func (p *Pass[R, O]) Owner() any { return p.door.opts.Owner }

// Changes reports whether decisions of the pass may change: at its end, or by
// Settle.
func (p *Pass[R, O]) Changes() bool {
	for i := range p.parts {
		if p.parts[i].rule.changes() {
			return true
		}
	}
	return false
}

// End tells the rules the outcome of a request, once: they spend, refund and lock
// out. It reports whether any decision has changed since the pass began, by
// Settle, too. Observers get the decisions of the rules that counted the outcome,
// and the errors of the Limiter, which do not stop the rest.
func (p *Pass[R, O]) End(outcome O) (changed bool) {
	if p == nil {
		return false
	}
	var counted []Decision
	for i := range p.parts {
		a := &p.parts[i]
		if a.rule.Count == nil || !p.in(a, checked) || !a.rule.Count(outcome) {
			continue
		}
		if d, err := p.count(a); err != nil {
			p.door.fail(p.Request, err)
		} else {
			counted = append(counted, d)
		}
	}
	p.refund(outcome)
	for i := range p.parts {
		if err := p.lockOut(&p.parts[i]); err != nil {
			p.door.fail(p.Request, err)
		}
	}
	p.door.observe(p.Request, counted)
	p.mu.Lock()
	defer p.mu.Unlock()
	changed, p.changed = p.changed, false
	return changed
}

func (p *Pass[R, O]) in(a *part[R, O], s state) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return a.state == s
}

func (p *Pass[R, O]) count(a *part[R, O]) (Decision, error) {
	begun := p.door.lim.Now().UnixNano()
	d, err := ask(context.Background(), p.door.lim, a.RuleKey.Cost(a.Cost))
	if err != nil {
		return Decision{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.Allowed {
		a.to(spend)
	}
	a.After, a.begun, p.changed = false, begun, true
	p.show(a, &d)
	return a.Decision, nil
}

func (p *Pass[R, O]) refund(outcome O) {
	var back []*part[R, O] // first all are asked, because a function of the user may panic
	var reqs []stint.Request
	for i := range p.parts {
		if a := &p.parts[i]; a.rule.Refund != nil && a.rule.Refund(outcome) {
			back = append(back, a)
		}
	}
	p.mu.Lock()
	back = slices.DeleteFunc(back, func(a *part[R, O]) bool { return !a.to(refund) })
	for _, a := range back {
		reqs = append(reqs, a.took())
	}
	p.mu.Unlock()
	if len(reqs) == 0 {
		return
	}
	if _, err := p.door.lim.Refund(reqs...); err != nil {
		p.door.fail(p.Request, err)
		return
	}
	for _, a := range back {
		d, err := ask(context.Background(), p.door.lim, stint.Request{Key: a.RuleKey, Mode: stint.CheckOnly})
		if err != nil {
			p.door.fail(p.Request, err)
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
func (p *Pass[R, O]) replaced(a *part[R, O], d *stint.Decision) {
	a.Locked = 0
	if !d.Allowed {
		a.Locked = d.RetryAfter
	}
	d.Allowed, d.RetryAfter = true, 0
	p.show(a, d)
	p.changed = true
}
