package httplimit

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// decide spends the tokens of the rules that apply to a request, except of
// those whose buckets c has a decision about. It appends these rules to mine,
// and returns the strictest decision that can deny. If it fails it returns no
// rules, and the request has spent nothing.
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
	strictest := stint.Decision{Allowed: true, Remaining: math.MaxInt64}
	reqs := make([]stint.Request, 0, 4) // on the stack
	for i := range mine {
		if a := &mine[i]; !a.Shadow {
			reqs = append(reqs, a.request())
		}
	}
	if len(reqs) > 0 {
		if strictest, err = m.spend(reqs); err != nil {
			return nil, stint.Decision{}, err
		}
	}
	for i := range mine {
		if err := m.learn(&mine[i], strictest); err != nil {
			m.fail(r, err)
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

// replaceShadows returns the rules whose buckets c has no decision about, or
// one that only a Shadow rule made. It returns the tokens of these Shadow
// rules. If that fails, both rules have spent.
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

// spend calls SpendAll, or what is faster for a single request.
func (m *middleware) spend(reqs []stint.Request) (stint.Decision, error) {
	switch {
	case len(reqs) > 1:
		return m.lim.SpendAll(reqs...)
	case reqs[0].Mode == stint.CheckOnly:
		return m.lim.Check(reqs[0].Key, reqs[0].Cost)
	}
	return m.lim.Spend(reqs[0].Key, reqs[0].Cost)
}

// learn sets the decision of one rule: of a Shadow rule, which has not spent
// yet, or of one that has spent together with others. If the bucket cannot be
// read, the decision says only whether the request was allowed.
func (m *middleware) learn(a *applied, strictest stint.Decision) (err error) {
	spent := strictest.Allowed && !a.After
	d := strictest
	switch {
	case !a.Shadow && a.Key == strictest.Key:
	case !spent:
		d, err = m.lim.Check(a.Key, a.Cost)
	case a.Shadow:
		d, err = m.lim.Spend(a.Key, a.Cost)
	default:
		d, err = m.lim.Check(a.Key, 0)
		d.Allowed, d.RetryAfter = true, 0
	}
	if err != nil {
		a.refunded = a.Shadow && !a.After // nothing was spent
		d = stint.Decision{Allowed: strictest.Allowed, Key: a.Key, Remaining: math.MaxInt64}
	}
	if d.Allowed && !spent && d.Limit.Count > 0 { // Check reports the state after a spend
		d.Remaining += a.Cost
		d.ResetAfter = max(0, d.ResetAfter-time.Duration(a.Cost)*d.Limit.Interval())
	}
	a.Decision.Decision = d
	return err
}

// record writes the header, and adds decisions to c, if there is one. It
// returns the index of the first one there.
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

// key returns the bucket that a rule holds a request to, with the canonical
// spelling of its id, and the label of its limit.
func (m *middleware) key(ru *routedRule, r *http.Request) (stint.Key, string, error) {
	found, err := ru.Key(r)
	if err != nil {
		return stint.Key{}, "", err
	}
	names := m.declared()
	label := names[found.Name].Label
	if ru.isCount(found.ID) {
		return stint.Key{}, "", fmt.Errorf("%w: it ends in %q", stint.ErrInvalidID, countSuffix)
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
