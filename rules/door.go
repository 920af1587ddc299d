package rules

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
)

// Options configure a Door.
type Options[R Request] struct {
	// Match returns a function that reports whether the Pattern of a rule matches a
	// request, and returns what the functions of the rule get: the request, or a
	// copy of it. After these functions, Matched is called with both. nil means
	// that every rule applies, and that Matched is not called.
	Match   func(pattern string) func(R) (R, bool)
	Matched func(r, got R)

	// OnUnix reports whether a request came over a Unix socket. Then the id Unix is
	// good for any limit. nil means false.
	OnUnix func(R) bool

	// FailOpen lets a request pass if the Limiter returns an error. Such a request
	// spends no token, except as the errors of stint.Decider say. A rule whose Key
	// returns an error of its own does not apply, and the others do. Errors about
	// the request itself still stop it: ErrNoID, an id that the limit refuses, a cost
	// that it never admits.
	FailOpen bool

	// Decisions lets a handler read the decisions about its request, with the
	// function Decisions, if no rule can change them later. It costs an allocation.
	// The decisions of rules with Count, Refund, LockOut or Settle are there in any
	// case.
	Decisions bool

	// Observers receive every decision and error. The first in the slice is called
	// first.
	Observers []Observer[R]

	// Owner is what Pass.Owner returns, such as the middleware that the door is of.
	Owner any
}

// An Observer receives the decisions and the errors of a door. A nil function is
// not called. Each function runs in the goroutine of the request, which waits for
// it, and must be safe for concurrent use. Until Begin has returned, both get the
// request without its Pass, so that [Decisions] lacks the decisions of the door.
type Observer[R Request] struct {
	// Decisions is called with the decisions of the rules that apply to a request:
	// first those that can deny, then the Shadow rules, each in the order of the
	// door. It is called before the handler runs or the denial is answered. For the
	// rules with Count it is called again after their tokens are spent. It must
	// not keep or change the slice.
	Decisions func(r R, ds []Decision)

	// Error is called with each error. It stops the request, except because of
	// FailOpen, or of a Shadow rule. Some errors happen after the handler.
	Error func(r R, err error)
}

// A Door holds requests to rules. Any number of goroutines may use it.
type Door[R Request, O any] struct {
	lim    stint.Decider
	memory prefetcher // lim, if its buckets may be in this process, or nil
	opts   Options[R]
	rules  []doorRule[R, O] // Shadow rules last
	spares sync.Pool        // of *Pass, so that a request allocates nothing
	spare  atomic.Bool      // spares is not empty; a look into an empty one takes 50 ns
}

// prefetcher is a *stint.Limiter or a *hostlimit.Limiter.
type prefetcher interface{ Prefetch(key stint.Key) }

type doorRule[R Request, O any] struct {
	Rule[R, O]
	match func(R) (R, bool)
}

// New returns a door with rules. Nil options mean the defaults. It panics on
// mistakes in the program: no Limiter, a rule without a Key, a negative Cost or
// InFlight, or Settle beside Count or LockOut.
func New[R Request, O any](lim stint.Decider, opts *Options[R], rules ...Rule[R, O]) *Door[R, O] {
	if isMissing(lim) {
		panic("rules: New: no limiter")
	}
	d := &Door[R, O]{lim: lim}
	d.memory, _ = lim.(prefetcher)
	if opts != nil {
		d.opts = *opts
	}
	var shadows []doorRule[R, O]
	for i, ru := range rules {
		if mistake := ru.mistake(); mistake != "" {
			panic(fmt.Sprintf("rules: New: rule %d %s", i+1, mistake))
		}
		at := doorRule[R, O]{Rule: ru}
		if d.opts.Match != nil {
			at.match = d.opts.Match(ru.Pattern)
		}
		if ru.Shadow {
			shadows = append(shadows, at)
		} else {
			d.rules = append(d.rules, at)
		}
	}
	d.rules = append(d.rules, shadows...)
	return d
}

// isMissing reports whether there is no Limiter, or a nil one of any type.
func isMissing(lim stint.Decider) bool {
	v := reflect.ValueOf(lim)
	return lim == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// apply finds the rules that apply to a request, with their keys, costs and bounds,
// and returns a pass with them, or nil if there are none. If a Shadow rule cannot
// find its key, that stops no request. Nor does any rule with FailOpen, unless the
// request itself is at fault.
func (d *Door[R, O]) apply(r *R) (p *Pass[R, O], err error) {
	for i := range d.rules {
		ru, got := &d.rules[i], r
		if ru.match != nil {
			matched, ok := ru.match(*r)
			if !ok {
				continue
			}
			got = &matched
		}
		key, label, err := d.key(ru, got)
		if err == nil {
			if p == nil {
				p = d.newPass()
				p.ctx, p.Request, p.door = (*r).Context(), *r, d
			}
			p.add(&ru.Rule, key, label, ru.cost(got), ru.leave(got), ru.inFlight(got))
		}
		if d.opts.Matched != nil {
			d.opts.Matched(*r, *got)
		}
		if err == nil || ru.Optional && errors.Is(err, ErrNoID) {
			continue
		}
		if d.fail(*r, err); !ru.Shadow && !d.passes(err) {
			p.Leave()
			return nil, err
		}
	}
	return p, nil
}

// passes reports whether a request passes although there is an error, as FailOpen
// says.
func (d *Door[R, O]) passes(err error) bool {
	return d.opts.FailOpen && !errors.Is(err, ErrNoID) && !errors.Is(err, stint.ErrInvalidID) &&
		!errors.Is(err, stint.ErrNegativeCost) && !errors.Is(err, stint.ErrCostOverBurst)
}

// newPass returns an empty pass, which is a spare one if there is one.
func (d *Door[R, O]) newPass() *Pass[R, O] {
	if d.spare.Load() {
		if p, ok := d.spares.Get().(*Pass[R, O]); ok {
			return p
		}
		d.spare.Store(false)
	}
	p := new(Pass[R, O])
	p.parts = p.room[:0]
	return p
}

func (d *Door[R, O]) key(ru *doorRule[R, O], r *R) (key stint.Key, label string, err error) {
	if key, err = ru.Key(*r); err != nil {
		return key, "", err
	}
	if d.memory != nil {
		d.memory.Prefetch(key) // the memory comes while the pass is made
	}
	onUnix := key.ID == Unix && d.opts.OnUnix != nil && d.opts.OnUnix(*r) // asked only for such an id, because it costs a walk
	return canonical(d.lim.Limits(), key, onUnix)
}

// add adds a rule to those of a pass. Of several rules with the same bucket, the
// first one counts, and the first bound on requests in flight.
func (p *Pass[R, O]) add(ru *Rule[R, O], key stint.Key, label string, cost, leave, inFlight int64) {
	for i := range p.parts {
		if a := &p.parts[i]; a.RuleKey == key {
			if a.InFlight.Limit == 0 {
				a.InFlight.Limit, a.InFlight.Shadow, a.bound = inFlight, ru.Shadow, ru
			}
			return
		}
	}
	if n := len(p.parts); n < cap(p.parts) {
		p.parts = p.parts[:n+1] // empty, as Leave says
	} else {
		p.parts = append(p.parts, part[R, O]{})
	}
	a := &p.parts[len(p.parts)-1] // filled in place, because a copy costs more than the rest
	a.Key, a.RuleKey, a.Label, a.Cost, a.Shadow = key, key, label, cost, ru.Shadow
	a.After, a.InFlight.Limit, a.InFlight.Shadow = ru.Count != nil, inFlight, ru.Shadow
	a.rule, a.bound, a.leave = ru, ru, leave
}

func (d *Door[R, O]) observe(r R, ds []Decision) {
	if len(ds) == 0 {
		return
	}
	for i := range d.opts.Observers {
		if f := d.opts.Observers[i].Decisions; f != nil {
			f(r, ds)
		}
	}
}

func (d *Door[R, O]) fail(r R, err error) {
	for i := range d.opts.Observers {
		if f := d.opts.Observers[i].Error; f != nil {
			f(r, err)
		}
	}
}
