package rules

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// A Pass is a request that has begun. A nil Pass is that of a request to which no
// rule applies.
type Pass[R Request, O any] struct {
	Request R   // what the observers of the door get
	Data    any // what the door keeps with the pass

	ctx   context.Context // of the request
	door  *Door[R, O]
	outer *Pass[R, O]                // the next one around it
	inner atomic.Pointer[Pass[R, O]] // the last one inside

	settling sync.Mutex // held by Settle, if this pass is the outermost

	mu      sync.Mutex // guards the following once it is kept; not held while the Limiter is called
	parts   []part[R, O]
	changed bool          // a decision has changed since End
	kept    bool          // it has become a context, so Begin does not use it again
	shared  bool          // its decisions may change while it is kept
	room    [1]part[R, O] // saves an allocation
	_       [64]byte      // no two passes share a cache line, because different processors write them
}

// Context returns the context of the handler: with it, Settle and Decisions find
// the pass. A pass without a context is used again after Leave, so that a request
// that does not need one allocates nothing.
func (p *Pass[R, O]) Context() context.Context {
	p.keep()
	return (*inside[R, O])(p)
}

// InContext reports whether the handler needs the Context: because a rule may
// change its decision, for Options.Decisions, or for a door around this one.
func (p *Pass[R, O]) InContext() bool {
	return p.kept || p.door.opts.Decisions || p.changes()
}

// keep says that the pass is used after Leave.
func (p *Pass[R, O]) keep() {
	if p.kept {
		return
	}
	p.kept, p.shared = true, p.changes()
	if p.outer != nil {
		p.outer.inner.Store(p)
	}
}

// inside is a pass as the context of a handler.
type inside[R Request, O any] Pass[R, O]

func (c *inside[R, O]) Deadline() (time.Time, bool) { return c.ctx.Deadline() }
func (c *inside[R, O]) Done() <-chan struct{}       { return c.ctx.Done() }
func (c *inside[R, O]) Err() error                  { return c.ctx.Err() }

func (c *inside[R, O]) Value(key any) any {
	if key == (passKey{}) {
		return (*Pass[R, O])(c)
	}
	return c.ctx.Value(key)
}

type passKey struct{}

type anyPass interface {
	around() anyPass
	decisions() []Decision
	settlement() *sync.Mutex
	settle(name stint.Name, cost int64) (decided, claimed bool, short int64, err error)
}

// passOf returns the innermost pass of any kind, or nil.
func passOf(ctx context.Context) anyPass {
	p, _ := ctx.Value(passKey{}).(anyPass)
	return p
}

// around returns the next pass of any kind around it, or nil.
func (p *Pass[R, O]) around() anyPass { return passOf(p.ctx) }

// PassOf returns the innermost pass of a kind, or nil.
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
	if err = p.decide(&decision); err != nil {
		if d.fail(r, err); !d.passes(err) {
			return nil, stint.Decision{}, err
		}
		decision.Allowed = true
	}
	if len(d.opts.Observers) > 0 {
		p.observe()
	}
	begun = true
	if p.outer = PassOf[R, O](p.ctx); p.outer != nil {
		p.keep()
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

// Leave gives the places of a request back. Do not use a pass after it, except one
// whose Context was asked for: then further calls of Leave do nothing.
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
		p.ctx, p.Request, p.Data, p.door, p.parts = nil, none, nil, nil, p.parts[:0]
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
// calls other methods of the pass. It locks only a pass whose decisions may change.
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

// Outer returns the next pass of the same kind around it, or nil.
func (p *Pass[R, O]) Outer() *Pass[R, O] { return p.outer }

// Inner returns the last pass of the same kind that began inside, or nil.
func (p *Pass[R, O]) Inner() *Pass[R, O] { return p.inner.Load() }

// Owner is Options.Owner of the door.
func (p *Pass[R, O]) Owner() any { return p.door.opts.Owner }

// changes reports whether decisions of the pass may change: at its end, or by
// Settle.
func (p *Pass[R, O]) changes() bool {
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
	d, err := ask(context.Background(), p.door.lim, a.RuleKey.Cost(a.Cost))
	if err != nil {
		return Decision{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.Allowed {
		a.to(spend)
	}
	a.After, p.changed = false, true
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
