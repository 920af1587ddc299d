package rules

import (
	"context"
	"errors"

	"github.com/stint-go/stint"
)

// spendTogether is Do. If requests take from one total, they spend one
// after the other, and the total loses the sum of their costs. It looks at all
// buckets first, and begins with what denies, so that a group that is denied
// counts as the denial of that bucket alone. If other callers spend after the
// look, and a later request of the group is denied, those before it get their
// tokens back, but stay counted as allowed. Until then another caller may be
// denied for want of these tokens.
func spendTogether(
	ctx context.Context, lim stint.Decider, reqs []stint.Request, ds []stint.Decision,
) (stint.Decision, error) {
	if !shareTotal(lim.Limits(), reqs) {
		return lim.Do(ctx, reqs, ds)
	}
	g := &group{ctx: ctx, lim: lim, reqs: reqs, ds: ds}
	d, err := g.spend()
	if err != nil {
		clear(ds)
	}
	return d, err
}

// group is a spend of requests that take from one total.
type group struct {
	ctx  context.Context
	lim  stint.Decider
	reqs []stint.Request
	ds   []stint.Decision
}

// decide decides on req, which is reqs[i] or takes its place.
func (g *group) decide(i int, req stint.Request) (stint.Decision, error) {
	return g.lim.Do(g.ctx, []stint.Request{req}, g.ds[i:i+1])
}

func (g *group) spend() (strictest stint.Decision, err error) {
	first, strictest, err := g.look()
	if first < 0 || err != nil {
		return strictest, err
	}
	at := g.lim.Now()
	var spent []stint.Request
	for n := range g.reqs {
		i := n // the first request, and then the others in order
		if n == 0 {
			i = first
		} else if n <= first {
			i = n - 1
		}
		req := g.reqs[i]
		if n > 0 && !strictest.Allowed {
			req.Mode = stint.CheckOnly
		}
		d, err := g.decide(i, req)
		if err != nil {
			_, back := refundTogether(g.lim, spent...)
			return stint.Decision{}, errors.Join(err, back)
		}
		if n == 0 || d.Stricter(&strictest) {
			strictest = d
		}
		switch {
		case !d.Allowed:
			if _, err := refundTogether(g.lim, spent...); err != nil {
				return stint.Decision{}, err
			}
			spent = nil
		case req.Mode != stint.CheckOnly:
			req.Spent = at
			spent = append(spent, req)
		}
	}
	return strictest, nil
}

// look returns the index of the request to begin with: of the first one that is
// denied by itself, or 0. If a total has too few tokens for the sum of the costs,
// first is -1, and denied is the decision of the total.
func (g *group) look() (first int, denied stint.Decision, err error) {
	limits := g.lim.Limits()
	for i, req := range g.reqs {
		req.Mode = stint.CheckOnly
		d, err := g.decide(i, req)
		if err != nil || !d.Allowed {
			return i, d, err
		}
		_, floor, kept, _ := limits.Share(req.Key)
		sum, more := stint.Request{Key: totalOf(limits, req.Key), Cost: req.Cost}, false
		for _, before := range g.reqs[:i] {
			_, _, others, _ := limits.Share(before.Key)
			kept = max(kept, others)
			if before.Mode != stint.CheckOnly && totalOf(limits, before.Key) == sum.Key {
				sum.Cost, more = sum.Cost+before.Cost, true
			}
		}
		if floor != (stint.Key{}) {
			sum.Cost -= kept // the floor may pay, and a spend from the total leaves them
		}
		l, _ := limits.For(sum.Key)
		if g.reqs[i].Mode == stint.CheckOnly || !more || sum.Cost <= 0 || sum.Cost > l.Burst-kept {
			continue
		}
		look := sum
		look.Mode = stint.CheckOnly
		if d, err = g.decide(i, look); err == nil && !d.Allowed {
			d, err = g.decide(i, sum) // it counts the denial
			if err == nil && d.Allowed {
				_, err = g.lim.Refund(sum.SpentAt(stint.JustSpent)) // it has just got tokens
			}
		}
		if err != nil || !d.Allowed {
			return -1, d, err
		}
	}
	return 0, stint.Decision{}, nil
}

// totalOf returns the total of a share, and for other keys the key itself.
func totalOf(limits *stint.Limits, key stint.Key) stint.Key {
	if total, _, _, ok := limits.Share(key); ok {
		return total
	}
	return key
}

// shareTotal reports whether two requests take from one total.
func shareTotal(limits *stint.Limits, reqs []stint.Request) bool {
	for i := range reqs {
		total, _, _, ok := limits.Share(reqs[i].Key)
		if !ok {
			continue
		}
		for j := range reqs {
			if j != i && totalOf(limits, reqs[j].Key) == total {
				return true
			}
		}
	}
	return false
}

// refundTogether is Decider.Refund, and refunds one after the other if requests
// took from one total.
func refundTogether(lim stint.Decider, reqs ...stint.Request) (d stint.Decision, err error) {
	if len(reqs) == 0 {
		return d, nil
	}
	d, err = lim.Refund(reqs...)
	if !errors.Is(err, stint.ErrDuplicateKey) {
		return d, err
	}
	err = nil
	for _, req := range reqs {
		one, err1 := lim.Refund(req)
		d, err = one, errors.Join(err, err1)
	}
	return d, err
}
