package httplimit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/clientid"
	"github.com/stint-go/stint/internal/onetotal"
	"github.com/stint-go/stint/internal/unspent"
)

// decide spends the tokens of the rules that apply to a request, except for
// buckets that c already has a decision about. It appends these rules to mine,
// and returns the strictest decision of a rule that can deny. After an error it
// returns only rules with places, and the request has spent nothing, except as
// the errors of stint.Decider say.
func (m *middleware) decide(
	c *carried, r *http.Request, mine []applied, held *taken,
) ([]applied, stint.Decision, error) {
	mine, err := m.applying(r, mine)
	if err != nil {
		return nil, stint.Decision{}, err
	}
	if c != nil {
		if mine, err = m.replaceShadows(c, mine); err != nil {
			m.fail(r, err)
		}
	}
	if m.inFlight {
		if i := m.enter(r.Context(), c, mine, held); i >= 0 {
			return mine[i : i+1], mine[i].Decision, nil
		}
	}
	if m.stamps {
		m.stamp(mine)
	}
	strictest, err := m.spend(r.Context(), mine)
	if err != nil {
		return m.undecided(mine), stint.Decision{}, err
	}
	for i := range mine {
		if a := &mine[i]; a.Shadow && !a.replaced() {
			if err := m.learn(r.Context(), a, strictest.Allowed); err != nil {
				m.fail(r, err)
			}
		}
	}
	return mine, strictest, nil
}

// applying appends the rules that apply to a request, with their keys and
// costs: one for each bucket.
func (m *middleware) applying(r *http.Request, mine []applied) ([]applied, error) {
	for i := range m.rules {
		ru := &m.rules[i]
		matched, ok := ru.route.match(r) // r, or a copy of it
		if !ok {
			continue
		}
		key, label, err := m.key(ru, matched)
		keepBody(r, matched)
		switch {
		case err == nil:
		case ru.Optional && errors.Is(err, ErrNoID):
			continue
		case ru.Shadow:
			m.fail(r, err)
			continue
		default:
			return nil, err
		}
		cost := ru.cost(matched)
		places, bound := ru.places(matched)
		keepBody(r, matched)
		a := find(mine, m.lim, key)
		if a == nil {
			mine = append(mine, applied{})
			a = &mine[len(mine)-1] // filled in place, because a copy of it costs more than the rest
			a.Label, a.RuleKey, a.Cost, a.rule = label, key, cost, ru
			a.Key, a.Shadow, a.After = key, ru.Shadow, ru.CountStatus != nil
		}
		if bound && a.gate == nil {
			a.gate, a.most = &ru.gate, places
		}
	}
	return mine, nil
}

// stamp notes the instant before the spend for the rules that need it.
func (m *middleware) stamp(mine []applied) {
	now := int64(0)
	for i := range mine {
		if a := &mine[i]; a.rule.stamps() {
			if now == 0 {
				now = m.lim.Now().UnixNano()
			}
			a.begun = now
		}
	}
}

// replaceShadows returns the rules whose buckets have no decision in c. Those
// of a middleware that has denied are none, nor are rules that have spent nothing
// in the end: a handler around it calls one again. It also returns rules that can
// deny if c has only a decision of a Shadow rule for the bucket, and refunds what
// that Shadow rule has spent. If the refund fails, both the Shadow rule and the new
// rule spend. Of a rule whose bucket has a decision, the bound on requests in
// flight stays.
func (m *middleware) replaceShadows(c *carried, mine []applied) ([]applied, error) {
	var back []stint.Request
	c.mu.Lock()
	mine = slices.DeleteFunc(mine, func(a applied) bool {
		before := find(c.applied, m.lim, a.RuleKey)
		if before != nil && before.void {
			before.forget()
			before = nil
		}
		if before == nil || !before.Shadow || a.Shadow {
			return before != nil && a.gate == nil
		}
		if before.Allowed && !before.After && !before.refunded && !before.settled {
			back = append(back, stint.Request{Key: before.RuleKey, Cost: before.Cost, Spent: time.Unix(0, before.begun)})
		}
		before.rule, before.After = &before.rule.by.replaced, false
		return false
	})
	for i := range mine {
		if a := &mine[i]; find(c.applied, m.lim, a.RuleKey) != nil {
			a.rule, a.Allowed, a.Cost, a.After = &m.replaced, true, 0, true // only its gate counts
		}
	}
	c.mu.Unlock()
	if len(back) == 0 {
		return mine, nil
	}
	_, err := onetotal.Refund(m.lim, back...)
	return mine, err
}

// undecided returns the rules with places of a request that the Limiter could not
// decide on. If the request passes because of FailOpen, only their gates count.
func (m *middleware) undecided(mine []applied) []applied {
	mine = slices.DeleteFunc(mine, func(a applied) bool { return a.gate == nil })
	for i := range mine {
		a := &mine[i]
		a.Decision = stint.Decision{Allowed: true, Key: a.RuleKey}
		a.rule, a.Cost, a.After, a.noPlace = &m.replaced, 0, true, false
	}
	return mine
}

// asked has the arguments of SpendTogether. A Decider may keep them until the
// call returns.
type asked struct {
	reqs []stint.Request
	ds   []stint.Decision
}

var askedPool = sync.Pool{New: func() any { return new(asked) }}

// spend decides on the rules that can deny, in one call, and returns the
// strictest decision. It waits for a commit until ctx ends. After that no client
// reads the answer, and the tokens stay spent if the commit succeeds.
func (m *middleware) spend(ctx context.Context, mine []applied) (strictest stint.Decision, err error) {
	var one *applied
	n := 0
	for i := range mine {
		if mine[i].decides() {
			one, n = &mine[i], n+1
		}
	}
	switch {
	case n == 0:
		return stint.Decision{Allowed: true, Remaining: math.MaxInt64}, nil
	case n > 1:
		return m.spendTogether(ctx, mine)
	case one.After:
		strictest, err = m.lim.Check(one.RuleKey, one.Cost)
	default:
		strictest, err = m.lim.SpendContext(ctx, one.RuleKey, one.Cost)
	}
	one.set(&strictest, strictest.Allowed && !one.After)
	return strictest, err
}

// spendTogether is spend for several rules.
func (m *middleware) spendTogether(ctx context.Context, mine []applied) (stint.Decision, error) {
	q := askedPool.Get().(*asked)
	defer q.free()
	for i := range mine {
		if a := &mine[i]; a.decides() {
			q.reqs = append(q.reqs, a.request())
		}
	}
	q.ds = slices.Grow(q.ds, len(q.reqs))[:len(q.reqs)]
	strictest, err := onetotal.Spend(ctx, m.lim, q.reqs, q.ds)
	ds := q.ds
	for i := range mine {
		if a := &mine[i]; a.decides() {
			a.set(&ds[0], strictest.Allowed && !a.After)
			ds = ds[1:]
		}
	}
	return strictest, err
}

// free returns q to the pool.
func (q *asked) free() {
	clear(q.reqs)
	clear(q.ds)
	q.reqs, q.ds = q.reqs[:0], q.ds[:0]
	askedPool.Put(q)
}

// learn sets the decision of a Shadow rule, which spends only if the other
// rules allowed the request. If the bucket cannot be read, the decision only
// says whether those rules allowed the request.
func (m *middleware) learn(ctx context.Context, a *applied, allowed bool) (err error) {
	spent := allowed && !a.After
	var d stint.Decision
	if spent {
		d, err = m.lim.SpendContext(ctx, a.RuleKey, a.Cost)
	} else {
		d, err = m.lim.Check(a.RuleKey, a.Cost)
	}
	if err != nil {
		a.refunded = !a.After // there is nothing to refund
		d = stint.Decision{Allowed: allowed, Key: a.RuleKey, Remaining: math.MaxInt64}
	}
	a.set(&d, spent)
	return err
}

// set sets the decision of a rule. If d allows but the rule spent nothing, d has
// the state that a spend would leave, and set changes it to the state without
// that spend.
func (a *applied) set(d *stint.Decision, spent bool) {
	a.setState(d)
	if !spent && a.Allowed {
		unspent.TakeOut(&a.Decision, a.Cost)
	}
}

// setState sets the decision of a rule, and the label of the bucket that
// decided.
func (a *applied) setState(d *stint.Decision) {
	if d.Key.Name != a.Key.Name {
		a.Label = a.rule.by.names.Of(a.rule.by.lim)[d.Key.Name].Label
	}
	a.Decision = *d
}

// record writes the header. If c is not nil, it adds the decisions to c, and
// returns the index of the first of them.
func (m *middleware) record(c *carried, w http.ResponseWriter, mine []applied) (first int) {
	if c == nil {
		m.writeFields(w, mine)
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock() // PartitionKey may panic
	c.applied = append(c.applied, mine...)
	m.writeFields(w, c.applied)
	return len(c.applied) - len(mine)
}

// key returns the bucket of a request for a rule, with the canonical spelling
// of its id, and the label of its limit.
func (m *middleware) key(ru *routedRule, r *http.Request) (stint.Key, string, error) {
	found, err := ru.Key(r)
	if err != nil {
		return stint.Key{}, "", err
	}
	names := m.names.Of(m.lim)
	unix := found.ID == clientid.Unix && isUnix(r.Context()) // asked only for such an id, because it costs a walk
	key, err := clientid.Key(names, found, unix, ru.LockOutMax > 0)
	return key, names[found.Name].Label, err
}
