package redislimit

import (
	"fmt"
	"math"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
	"github.com/stint-go/stint/rules"
)

// request returns a bucket's part in a call. It checks what it can without the server, and
// computes the arguments.
func (l *Limiter) request(n *limitsInForce, req *stint.Request, op script.Op) (script.Request, error) {
	r := script.Request{Bucket: req.Key, Since: &n.since, Mode: req.Mode, Cost: req.Cost, Spent: req.Spent}
	if req.Mode == stint.UpTo {
		r.Mode = stint.CheckAndSpend
	}
	if req.Mode > stint.UpTo {
		return r, fmt.Errorf("redislimit: %s: there is no Mode %d", n.labeled(req.Key), req.Mode)
	}
	if req.Cost < 0 {
		return r, fmt.Errorf("%w: %d for %s", stint.ErrNegativeCost, req.Cost, n.labeled(req.Key))
	}
	configured, err := n.limitOf(req.Key)
	if err != nil {
		return r, err
	}
	if op == script.Refund && req.Cost > 0 && req.Mode != stint.CheckOnly && req.Spent.IsZero() {
		return r, fmt.Errorf("redislimit: refund %s: the request has no Spent, want the instant of the spend or "+
			"stint.JustSpent", n.labeled(req.Key))
	}
	r.Limit = configured
	if req.Limit != (stint.Limit{}) {
		r.Limit = req.Limit
		if r.Limited() {
			if err := r.Limit.Validate(); err != nil {
				return r, err
			}
		}
	}
	if r.Asks = r.Limited(); !r.Asks {
		mayBeHeld := !configured.IsUnlimited() || rules.IsLockOutCount(req.Key)
		if r.Limit.IsUnlimited() && mayBeHeld && op != script.Refund {
			r.Asks, r.Tolerance, r.Most = true, script.MaxTolerance, script.MaxTolerance
		}
		return r, nil
	}
	if err := l.supports(r.Limit); err != nil {
		return r, fmt.Errorf("%w: %s", err, n.labeled(req.Key))
	}
	if req.Cost > r.Limit.Burst && op != script.Refund && op != script.Part {
		return r, fmt.Errorf("%w: %d of %d for %s", stint.ErrCostOverBurst, req.Cost, r.Limit.Burst,
			n.labeled(req.Key))
	}
	r.Tolerance = int64(r.Limit.Tolerance())
	r.Interval = r.Tolerance / r.Limit.Burst
	if r.Most = l.opts.most(r.Tolerance); r.Limit != configured {
		r.Most = max(r.Most, int64(configured.Tolerance()))
	}
	r.Fourth = r.Most
	r.Need = math.MaxInt64 // a refund of more than the bucket holds
	if req.Cost <= math.MaxInt64/r.Interval {
		r.Need = req.Cost * r.Interval
	}
	switch {
	case op == script.Part:
		if r.Fourth = r.Interval; r.Limit != configured {
			r.Mode = stint.CheckOnly // it cuts nothing down
		}
	case op == script.Refund && !req.Spent.IsZero() && !req.Spent.Equal(stint.JustSpent):
		r.Op, r.Fourth, r.Most = script.Undo, script.Instant(req.Spent), script.MaxTolerance
	}
	// A limit that a Request brings has no lease, and neither has one with a burst under 8.
	r.Leased = l.durability(r.Limit) == stint.Leased && r.Limit == configured && r.Limit.Burst >= 8
	return r, nil
}

// most returns how far the TAT of a bucket may be ahead. Nothing cuts plain ones down.
func (o *Options) most(tolerance int64) int64 {
	if o.PlainKeys {
		return script.MaxTolerance
	}
	return tolerance
}
