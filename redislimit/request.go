package redislimit

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
)

const (
	maxIDLen     = 512
	maxTolerance = 36525 * 24 * 60 * 60 * 1e9
	endOfTime    = math.MaxInt64 - int64(maxTolerance) // so that now + τ is an int64, as in package stint
)

// instant returns a time in Unix nanoseconds, within the range of the
// arithmetic.
func instant(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return 0
	case s > endOfTime/1e9:
		return endOfTime
	}
	return min(t.UnixNano(), endOfTime)
}

// request is one bucket's part in a call.
type request struct {
	key       stint.Key
	name      string // key at the server
	limit     stint.Limit
	mode      stint.Mode
	interval  int64 // T
	tolerance int64 // τ
	need      int64 // nanoseconds that the cost takes to come back
	fourth    int64 // argument of the script
	asks      bool  // the server decides
	leased    bool  // a lease may decide
	at        int   // index in the caller's requests
	owed      debt  // of a charge

	tat, wait, hold int64 // the script's answer
}

// limited reports whether the limit has a bucket to ask about.
func (r *request) limited() bool { return r.limit != stint.Unlimited && r.limit != stint.Blocked }

// request checks what it can without the server, and computes the arguments.
func (l *Limiter) request(n *limitsInForce, req *stint.Request, op string) (request, error) {
	r := request{key: req.Key, mode: req.Mode}
	if req.Cost < 0 {
		return r, fmt.Errorf("%w: %d for %v", stint.ErrNegativeCost, req.Cost, req.Key)
	}
	configured, err := n.limitOf(req.Key)
	if err != nil {
		return r, err
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
		if r.limit == stint.Unlimited && configured != stint.Unlimited && op != opRefund { // it may be held
			r.asks, r.name, r.tolerance = true, l.opts.keyOf(req.Key), maxTolerance
		}
		return r, nil
	}
	if err := l.supports(r.limit); err != nil {
		return r, fmt.Errorf("%w: %v", err, req.Key)
	}
	if req.Cost > r.limit.Burst && op != opRefund {
		return r, fmt.Errorf("%w: %d of %d for %v", stint.ErrCostOverBurst, req.Cost, r.limit.Burst, req.Key)
	}
	r.tolerance = int64(r.limit.Tolerance())
	r.interval = r.tolerance / r.limit.Burst
	if r.fourth = r.tolerance; r.limit != configured {
		r.fourth = max(r.tolerance, int64(configured.Tolerance()))
	}
	r.need = math.MaxInt64 // a refund of more than the bucket holds
	if req.Cost <= math.MaxInt64/r.interval {
		r.need = req.Cost * r.interval
	}
	if r.leased = l.mayLease(r.limit, configured); !r.leased { // a lease seldom needs it
		r.name = l.opts.keyOf(req.Key)
	}
	return r, nil
}

// limitOf returns the limit of a key, or why the key is not accepted.
func (n *limitsInForce) limitOf(key stint.Key) (stint.Limit, error) {
	spec, declared := n.names[key.Name]
	switch {
	case !declared:
		return stint.Limit{}, fmt.Errorf("%w %d", stint.ErrUnknownName, key.Name)
	case len(key.ID) > maxIDLen:
		return stint.Limit{}, fmt.Errorf("%w: %d bytes, want at most %d (%s)", stint.ErrInvalidID, len(key.ID), maxIDLen,
			spec.Label)
	case (key.ID == "") != (spec.ID == stint.Shared):
		return stint.Limit{}, fmt.Errorf("%w: %q (%s)", stint.ErrInvalidID, key.ID, spec.Label)
	}
	if limit, ok := n.limits.For(key); ok {
		return limit, nil
	}
	return stint.Unlimited, nil
}

// decision returns what the answer means, at the server's time now.
func (r *request) decision(now int64, op string) stint.Decision {
	d := stint.Decision{Key: r.key, Allowed: true}
	switch {
	case r.limit == stint.Unlimited:
		d.Remaining = math.MaxInt64
		d.Allowed, d.RetryAfter = r.wait == 0, time.Duration(r.wait)
		return d
	case r.limit == stint.Blocked:
		d.Limit = r.limit
		if op != opRefund {
			d.Allowed, d.RetryAfter, d.ResetAfter = false, math.MaxInt64, math.MaxInt64
		}
		return d
	}
	d.Limit = r.limit
	reset := max(0, r.tat-now)
	d.ResetAfter = time.Duration(reset)
	d.Remaining = max(0, r.tolerance-reset) / r.interval
	if op != opRefund {
		d.Allowed, d.RetryAfter = r.wait == 0, time.Duration(r.wait)
	}
	return d
}

// stricter reports whether a is a stricter decision than b, as package stint
// orders them.
func stricter(a, b *stint.Decision) bool {
	if a.Allowed != b.Allowed {
		return b.Allowed
	}
	return cmp.Or(
		cmp.Compare(b.RetryAfter, a.RetryAfter),
		cmp.Compare(a.Remaining, b.Remaining),
		cmp.Compare(b.ResetAfter, a.ResetAfter),
		cmp.Compare(a.Key.Name, b.Key.Name),
		cmp.Compare(a.Key.ID, b.Key.ID),
	) < 0
}
