// Package onetotal spends and refunds several requests of which some may be
// shares of one total. A Decider refuses such requests together.
package onetotal

import (
	"context"
	"errors"

	"github.com/stint-go/stint"
)

// Spend is SpendTogetherContext. If requests take from one total, they spend one
// after the other, and the total loses the sum of their costs. If one of them is
// denied, those before it get their tokens back, so that either all have spent or
// none. Until then another caller may be denied for want of these tokens.
func Spend(
	ctx context.Context, lim stint.Decider, reqs []stint.Request, ds []stint.Decision,
) (stint.Decision, error) {
	strictest, err := lim.SpendTogetherContext(ctx, reqs, ds)
	if !errors.Is(err, stint.ErrDuplicateKey) {
		return strictest, err
	}
	at := lim.Now()
	var spent []stint.Request
	for i := range reqs {
		req := reqs[i]
		if i > 0 && !strictest.Allowed {
			req.Mode = stint.CheckOnly
		}
		d, err := lim.SpendTogetherContext(ctx, []stint.Request{req}, ds[i:i+1])
		if err != nil {
			_, back := Refund(lim, spent...)
			clear(ds)
			return stint.Decision{}, errors.Join(err, back)
		}
		if i == 0 || stricter(&d, &strictest) {
			strictest = d
		}
		switch {
		case !d.Allowed:
			if _, err := Refund(lim, spent...); err != nil {
				clear(ds)
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

// Refund is RefundAll, and refunds one after the other if requests took from one
// total.
func Refund(lim stint.Decider, reqs ...stint.Request) (d stint.Decision, err error) {
	if len(reqs) == 0 {
		return d, nil
	}
	d, err = lim.RefundAll(reqs...)
	if !errors.Is(err, stint.ErrDuplicateKey) {
		return d, err
	}
	err = nil
	for _, req := range reqs {
		one, err1 := lim.RefundAll(req)
		d, err = one, errors.Join(err, err1)
	}
	return d, err
}

// stricter reports whether a says more to the caller than b.
func stricter(a, b *stint.Decision) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if !a.Allowed {
		return a.RetryAfter > b.RetryAfter
	}
	return a.Remaining < b.Remaining
}
