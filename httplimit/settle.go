package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/settle"
)

// Errors of Settle.
var (
	// ErrSettled says that the cost of a request was settled before, or that
	// RefundStatus has returned its tokens.
	ErrSettled = errors.New("httplimit: the cost of the request is settled already")

	// ErrNotSettled says that no rule with Settle has decided on the request under
	// that name.
	ErrNotSettled = errors.New("httplimit: no rule with Settle has decided on the request")
)

// Settle replaces the cost of a request by the true one, in tokens. name is the
// limit of a rule with Settle. If the request used less than its bound, the rest
// returns, except for what time has brought back already. If it used more, Settle
// spends as many more tokens as there are, and short is how many were missing.
//
// Settle may be called after the response has begun, and after the handler has
// returned. It is best deferred, so that a client that disconnects settles, too.
// A second call for a name returns ErrSettled. After any error the bound stays
// spent; after stint.ErrNotDurable, or if a Decider lost an answer, more may be
// spent. A negative cost is stint.ErrNegativeCost, and may be corrected.
//
// In any stretch of time, the true costs are at most burst + elapsed ÷ interval,
// and the sum of short. A true cost up to the bound counts when the request was
// admitted. What it used beside the bound counts when it is settled, because no
// bucket can know it before. If each bound is a true one, short is always 0, and
// the limit is exact. If the limit follows the calendar, the true costs of each
// period, counted in the same way, are at most the quota and the sum of short.
// Nothing returns to a later period than that of the spend.
//
// If the Limiter failed and FailOpen let the request pass, there is nothing to
// settle: the error is ErrNotSettled. If a Shadow rule did not spend, short is
// the cost.
func Settle(r *http.Request, name stint.Name, cost int64) (short int64, err error) {
	if cost < 0 {
		return 0, fmt.Errorf("httplimit: Settle: %w: %d", stint.ErrNegativeCost, cost)
	}
	c := carriedBy(r)
	if c == nil {
		return 0, ErrNotSettled
	}
	found, mine := c.claim(name)
	switch {
	case !found:
		return 0, ErrNotSettled
	case len(mine) == 0:
		return 0, ErrSettled
	}
	for _, i := range mine {
		more, err1 := c.settle(i, cost)
		short, err = max(short, more), errors.Join(err, err1)
	}
	return short, err
}

// claim marks the decisions of rules with Settle and a name as settled. found
// reports whether there is one, and mine are the indices of those that were not
// settled before.
func (c *carried) claim(name stint.Name) (found bool, mine []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.applied {
		a := &c.applied[i]
		if !a.rule.Settle || a.RuleKey.Name != name {
			continue
		}
		found = true
		if !a.settled {
			a.settled = true
			mine = append(mine, i)
		}
	}
	return found, mine
}

// settle replaces the bound that a rule has spent.
func (c *carried) settle(i int, cost int64) (short int64, err error) {
	c.mu.Lock()
	a := c.applied[i]
	c.mu.Unlock()
	if !a.hasSpent() {
		return cost, nil
	}
	bound := settle.Bound{Key: a.RuleKey, Cost: a.Cost, At: time.Unix(0, a.begun)}
	short, d, err := bound.Replace(a.rule.by.lim, cost)
	if err != nil {
		return max(0, cost-a.Cost), fmt.Errorf("httplimit: Settle: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := &c.applied[i]
	now.locked = 0
	if !d.Allowed {
		now.locked = d.RetryAfter // of a hold or a queue, because what it spent was there
	}
	d.Allowed, d.RetryAfter = true, 0
	now.setState(&d)
	now.Cost, now.fresh = cost-short, true
	return short, nil
}

// SetStatus tells the rules of a request which status the client will get, if
// code around the middleware writes it. It is for frameworks whose handlers return
// an error, and which write the status of that error only after the middleware has
// returned: call it in the adapter between the middleware and the framework. The
// first status counts, whether SetStatus or the handler chooses it. A status
// below 200, except 101, is ignored. An Observer must not call SetStatus: it may
// run while the rules act on a status, and would wait for itself.
func SetStatus(r *http.Request, status int) {
	c := carriedBy(r)
	if c == nil || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	c.mu.Lock()
	w := c.writer
	c.mu.Unlock()
	for ; w != nil; w = w.outer {
		w.choose(status)
	}
}
