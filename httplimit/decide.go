package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// decide spends the tokens of the rules that apply to a request, except for
// buckets that c already has a decision about. It appends these rules to mine,
// and returns the strictest decision of a rule that can deny. After an error it
// returns no rules, and the request has spent nothing, except as the errors of
// stint.Decider say.
func (m *middleware) decide(
	c *carried, r *http.Request, mine []applied,
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
	strictest, err := m.spend(r.Context(), mine)
	if err != nil {
		return nil, stint.Decision{}, err
	}
	for i := range mine {
		if a := &mine[i]; a.Shadow {
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
		keepBody(r, matched)
		if find(mine, m.lim, key) == nil {
			d := Decision{Label: label, Cost: cost, Shadow: ru.Shadow, After: ru.CountStatus != nil}
			d.Key = key
			mine = append(mine, applied{Decision: d, by: m, rule: &ru.Rule})
		}
	}
	return mine, nil
}

// replaceShadows returns the rules whose buckets have no decision in c. It also
// returns rules that can deny if c has only a decision of a Shadow rule for the
// bucket, and refunds what that Shadow rule has spent. If the refund fails, both
// the Shadow rule and the new rule spend.
func (m *middleware) replaceShadows(c *carried, mine []applied) ([]applied, error) {
	var back []stint.Request
	c.mu.Lock()
	mine = slices.DeleteFunc(mine, func(a applied) bool {
		before := find(c.applied, m.lim, a.Key)
		if before == nil || !before.Shadow || a.Shadow {
			return before != nil
		}
		if before.Allowed && !before.After && !before.refunded {
			back = append(back, stint.Request{Key: before.Key, Cost: before.Cost})
		}
		before.rule, before.After = &replaced, false
		return false
	})
	c.mu.Unlock()
	if len(back) == 0 {
		return mine, nil
	}
	_, err := m.lim.RefundAll(back...)
	return mine, err
}

// asked has the arguments of SpendTogether. A Decider may keep them until the
// call returns.
type asked struct {
	reqs []stint.Request
	ds   []stint.Decision
}

var askedPool = sync.Pool{New: func() any { return new(asked) }}

// spend decides on the rules that can deny, in one call, and returns the
// strictest decision.
func (m *middleware) spend(ctx context.Context, mine []applied) (strictest stint.Decision, err error) {
	var one *applied
	n := 0
	for i := range mine {
		if !mine[i].Shadow {
			one, n = &mine[i], n+1
		}
	}
	switch {
	case n == 0:
		return stint.Decision{Allowed: true, Remaining: math.MaxInt64}, nil
	case n > 1:
		return m.spendTogether(ctx, mine)
	case one.After:
		strictest, err = m.lim.Check(one.Key, one.Cost)
	default:
		strictest, err = m.spendOne(ctx, one)
	}
	one.set(strictest, strictest.Allowed && !one.After)
	return strictest, err
}

// spendOne spends for one rule. It waits for a commit until ctx ends. After
// that no client reads the answer, and the tokens stay spent if the commit
// succeeds.
func (m *middleware) spendOne(ctx context.Context, a *applied) (stint.Decision, error) {
	if m.local != nil {
		return m.local.SpendContext(ctx, a.Key, a.Cost)
	}
	return m.lim.Spend(a.Key, a.Cost)
}

// spendTogether is spend for several rules.
func (m *middleware) spendTogether(ctx context.Context, mine []applied) (stint.Decision, error) {
	q := askedPool.Get().(*asked)
	defer q.free()
	for i := range mine {
		if a := &mine[i]; !a.Shadow {
			q.reqs = append(q.reqs, a.request())
		}
	}
	q.ds = slices.Grow(q.ds, len(q.reqs))[:len(q.reqs)]
	var strictest stint.Decision
	var err error
	if m.local != nil {
		strictest, err = m.local.SpendTogetherContext(ctx, q.reqs, q.ds)
	} else {
		strictest, err = m.lim.SpendTogether(q.reqs, q.ds)
	}
	ds := q.ds
	for i := range mine {
		if a := &mine[i]; !a.Shadow {
			a.set(ds[0], strictest.Allowed && !a.After)
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
		d, err = m.spendOne(ctx, a)
	} else {
		d, err = m.lim.Check(a.Key, a.Cost)
	}
	if err != nil {
		a.refunded = !a.After // there is nothing to refund
		d = stint.Decision{Allowed: allowed, Key: a.Key, Remaining: math.MaxInt64}
	}
	a.set(d, spent)
	return err
}

// set sets the decision of a rule. If d allows but the rule spent nothing, d has
// the state that a spend would leave, and set changes it to the state without
// that spend.
func (a *applied) set(d stint.Decision, spent bool) {
	if d.Allowed && !spent && d.Limit.Count > 0 {
		d.Remaining += a.Cost
		d.ResetAfter = max(0, d.ResetAfter-time.Duration(a.Cost)*d.Limit.Interval())
	}
	a.Decision.Decision = d
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
	names := m.declared()
	label := names[found.Name].Label
	if ru.isCount(found.ID) {
		err := fmt.Errorf("%w %.80q: want an id that does not end in %q", stint.ErrInvalidID, found.ID, countSuffix)
		return stint.Key{}, "", err
	}
	key, err := names.Key(found.Name, found.ID)
	if !errors.Is(err, stint.ErrInvalidID) {
		return key, label, err
	}
	if found.ID == unixID && isUnix(r.Context()) {
		return found, label, nil
	}
	network, notOne := netip.ParsePrefix(found.ID)
	if notOne == nil && network.Addr().Unmap().Is6() && network == network.Masked() {
		if asAddress, not := names.Key(found.Name, network.Addr().String()); not == nil {
			return asAddress, label, nil
		}
	}
	return key, label, err
}

// declared returns the Names of the limits in force.
func (m *middleware) declared() stint.Names {
	limits := m.lim.Limits()
	d := m.names.Load()
	if d == nil || d.limits != limits {
		d = &declared{limits, limits.Names()}
		m.names.Store(d)
	}
	return d.names
}
