package redislimit

import (
	"fmt"
	"math"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// request returns a bucket's part in a call. It checks what it can without the server, and
// computes the arguments.
func (l *Limiter) request(n *limitsInForce, req *stint.Request, op script.Op) (script.Request, error) {
	r := script.Request{Bucket: req.Key, Since: &n.since, Mode: req.Mode, Cost: req.Cost, Leave: req.Leave, Spent: req.Spent}
	if req.Mode == stint.UpTo {
		r.Mode = stint.CheckAndSpend
	}
	configured, err := n.Check(req, op == script.Refund)
	if err != nil {
		return r, err
	}
	r.Limit, r.Given = configured, req.Limit
	if req.Limit != (stint.Limit{}) {
		r.Limit = req.Limit
	}
	if r.Asks = r.Limited(); !r.Asks {
		if r.Limit == stint.Unlimited && configured != stint.Unlimited && op != script.Refund {
			r.Asks, r.Tolerance = true, script.MaxTolerance
		}
		r.Now = script.Instant(l.Now())
		return r, nil
	}
	if err := l.supports(r.Limit); err != nil {
		return r, fmt.Errorf("%w: %s", err, n.labeled(req.Key))
	}
	leave := req.Leave
	if op == script.Refund {
		leave = 0
	}
	r.Tolerance = int64(r.Limit.Tolerance())
	r.Interval = r.Tolerance / r.Limit.Burst
	if r.Fourth = r.Tolerance; r.Limit != configured {
		r.Fourth = max(r.Fourth, int64(configured.Tolerance()))
	}
	r.Left = leave * r.Interval
	r.Tolerance -= r.Left  // so the bucket seems to be empty while it has these tokens
	r.Need = math.MaxInt64 // a refund of more than the bucket holds
	if req.Cost <= math.MaxInt64/r.Interval {
		r.Need = req.Cost * r.Interval
	}
	switch {
	case op == script.Part:
		if r.Fourth = r.Interval; r.Limit != configured || leave > 0 {
			r.Mode = stint.CheckOnly // it cuts nothing down
		}
	case op == script.Refund && !req.Spent.IsZero():
		r.Op, r.Fourth = script.Undo, script.Instant(req.Spent)
	}
	// A limit that a Request brings has no lease, and neither has one with a burst under
	// 8. A request that must leave tokens asks the server, which knows all of them.
	r.Leased = l.durability(r.Limit) == stint.Leased && r.Limit == configured && r.Limit.Burst >= 8 && leave == 0
	return r, nil
}
