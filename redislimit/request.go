package redislimit

import (
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/lease"
	"github.com/stint-go/stint/redislimit/internal/script"
	"github.com/stint-go/stint/rules"
)

// request is one bucket's part in a call.
type request struct {
	script.Request
	key      stint.Key
	limit    stint.Limit
	cost     int64
	interval int64 // T
	most     int64 // how far the bucket's TAT may be ahead
	asks     bool  // the server decides
	leased   bool  // a lease may decide
	at       int   // index in the caller's requests

	spent time.Time // of a refund: the instant of the spend, if it is known
	taken int64     // tokens of a Part, from a lease and from the bucket

	here bool       // this machine decided
	own  *away.Part // what it decided on; nil if it did not need a bucket
}

// limited reports whether the limit has a bucket to ask about.
func (r *request) limited() bool { return !r.limit.IsUnlimited() && !r.limit.IsBlocked() }

// request checks what it can without the server, and computes the arguments.
func (l *Limiter) request(n *limitsInForce, req *stint.Request, op script.Op) (request, error) {
	r := request{key: req.Key, cost: req.Cost, spent: req.Spent}
	if r.Mode = uint8(req.Mode); req.Mode == stint.UpTo {
		r.Mode = uint8(stint.CheckAndSpend)
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
	r.limit = configured
	if req.Limit != (stint.Limit{}) {
		r.limit = req.Limit
		if r.limited() {
			if err := r.limit.Validate(); err != nil {
				return r, err
			}
		}
	}
	if r.asks = r.limited(); !r.asks {
		mayBeHeld := !configured.IsUnlimited() || rules.IsLockOutCount(req.Key)
		if r.limit.IsUnlimited() && mayBeHeld && op != script.Refund {
			r.asks, r.Tolerance, r.most = true, script.MaxTolerance, script.MaxTolerance
		}
		return r, nil
	}
	if err := l.supports(r.limit); err != nil {
		return r, fmt.Errorf("%w: %s", err, n.labeled(req.Key))
	}
	if req.Cost > r.limit.Burst && op != script.Refund && op != script.Part {
		return r, fmt.Errorf("%w: %d of %d for %s", stint.ErrCostOverBurst, req.Cost, r.limit.Burst,
			n.labeled(req.Key))
	}
	r.Tolerance = int64(r.limit.Tolerance())
	r.interval = r.Tolerance / r.limit.Burst
	if r.most = l.opts.most(r.Tolerance); r.limit != configured {
		r.most = max(r.most, int64(configured.Tolerance()))
	}
	r.Fourth = r.most
	r.Need = math.MaxInt64 // a refund of more than the bucket holds
	if req.Cost <= math.MaxInt64/r.interval {
		r.Need = req.Cost * r.interval
	}
	switch {
	case op == script.Part:
		if r.Fourth, r.Mode = r.interval, uint8(stint.CheckAndSpend); r.limit != configured {
			r.Mode = uint8(stint.CheckOnly) // it cuts nothing down
		}
	case op == script.Refund && !req.Spent.IsZero() && !req.Spent.Equal(stint.JustSpent):
		r.Op, r.Fourth, r.most = script.Undo, script.Instant(req.Spent), script.MaxTolerance
	}
	// A limit that a Request brings has no lease, and neither has one with a burst under 8.
	r.leased = l.durability(r.limit) == stint.Leased && r.limit == configured && r.limit.Burst >= 8
	return r, nil
}

// decision returns what the answer means.
func (r *request) decision(op script.Op) stint.Decision {
	d := stint.Decision{Key: r.key, Allowed: true}
	if op != script.Refund {
		d.Allowed, d.RetryAfter = r.Wait == 0, time.Duration(r.Wait)
	}
	switch {
	case r.limit.IsUnlimited():
		d.Remaining = math.MaxInt64
	case r.limit.IsBlocked():
		d.Limit = r.limit
		if op != script.Refund {
			d.Allowed, d.RetryAfter, d.ResetAfter = false, math.MaxInt64, math.MaxInt64
		}
	default:
		d.Limit = r.limit
		reset := max(0, r.TAT-r.Now)
		d.ResetAfter = time.Duration(reset)
		d.Remaining = max(0, r.Tolerance-reset) / r.interval
	}
	switch {
	case op == script.Part:
		d.Taken = r.taken
	case d.Allowed && op == script.Spend && r.mode() != stint.CheckOnly:
		d.Taken = r.cost
	}
	return d
}

// most returns how far the TAT of a bucket may be ahead. Nothing cuts plain ones down.
func (o *Options) most(tolerance int64) int64 {
	if o.PlainKeys {
		return script.MaxTolerance
	}
	return tolerance
}

// bucket returns the request's bucket, as leases have it.
func (r *request) bucket(n *limitsInForce) lease.Bucket {
	return lease.Bucket{Key: r.key, Limit: r.limit, Since: &n.since}
}

// took reads the answer to a Part: what the server took, and when more can be.
func (r *request) took() {
	r.taken += r.Wait / r.interval
	r.Wait = max(0, r.Hold-r.Now, r.TAT-r.Now-r.Tolerance)
}

// mode returns how the request takes part in a call.
func (r *request) mode() stint.Mode { return stint.Mode(r.Mode) }
