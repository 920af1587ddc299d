package grpclimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/settle"
)

// Errors of Settle.
var (
	// ErrSettled says that the cost of a call was settled before, or that
	// RefundCode has returned its tokens.
	ErrSettled = errors.New("grpclimit: the cost of the call is settled already")

	// ErrNotSettled says that no rule with Settle has decided on the call under
	// that name.
	ErrNotSettled = errors.New("grpclimit: no rule with Settle has decided on the call")
)

// Settle replaces the cost of a call by the true one, in tokens. name is the
// limit of a rule with Settle, and ctx that of the handler. If the call used less
// than its bound, the rest returns, except for what time has brought back already.
// If it used more, Settle spends as many more tokens as there are, and short is
// how many were missing. httplimit.Settle says what that guarantees.
//
// Settle may be called after the handler has returned. A second call for a name
// returns ErrSettled. After any error the bound stays spent; after
// stint.ErrNotDurable, or if a Decider lost an answer, more may be spent. A
// negative cost is stint.ErrNegativeCost, and may be corrected. If FailOpen let
// the call pass, the error is ErrNotSettled.
func Settle(ctx context.Context, name stint.Name, cost int64) (short int64, err error) {
	if cost < 0 {
		return 0, fmt.Errorf("grpclimit: Settle: %w: %d", stint.ErrNegativeCost, cost)
	}
	c := carriedBy(ctx)
	if c == nil {
		return 0, ErrNotSettled
	}
	c.mu.Lock()
	var mine []*applied
	found := false
	for _, a := range c.applied {
		if a.rule.Settle && a.decided && !a.idle && a.RuleKey.Name == name {
			found = true
			if !a.settled && !a.refunded {
				a.settled = true
				mine = append(mine, a)
			}
		}
	}
	c.mu.Unlock()
	switch {
	case !found:
		return 0, ErrNotSettled
	case mine == nil:
		return 0, ErrSettled
	}
	for _, a := range mine {
		more, err1 := c.settle(a, cost)
		short, err = max(short, more), errors.Join(err, err1)
	}
	return short, err
}

// settle replaces the bound that a rule has spent.
func (c *carried) settle(a *applied, cost int64) (short int64, err error) {
	c.mu.Lock()
	spent, bound := a.hasSpent(), settle.Bound{Key: a.RuleKey, Cost: a.Cost, At: a.at}
	c.mu.Unlock()
	if !spent { // a Shadow rule
		return cost, nil
	}
	short, _, err = bound.Replace(a.by.lim, cost)
	if err != nil {
		return max(0, cost-bound.Cost), fmt.Errorf("grpclimit: Settle: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a.Cost, a.changed = cost-short, true
	return short, nil
}
