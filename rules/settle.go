package rules

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stint-go/stint"
)

// Errors of Settle.
var (
	// ErrSettled says that the cost of a request was settled before, or that its
	// tokens were refunded.
	ErrSettled = errors.New("rules: the cost of the request is settled already")

	// ErrNotSettled says that no rule with Settle has decided on the request under
	// that name.
	ErrNotSettled = errors.New("rules: no rule with Settle has decided on the request")
)

// Settle replaces the cost of a request by the true one, in tokens, at all doors
// around it. ctx is that of Pass.Context, or made from it, such as that of an *http.Request. name is the
// limit of a rule with Settle. If the request used less
// than its bound, the rest returns, except for what time has brought back already.
// If it used more, Settle spends as many more tokens as there are, and short is
// how many were missing.
//
// Settle may be called at any time, even after the end of the request. It is best
// deferred, so that a request that breaks off settles, too. A second call for a
// name returns ErrSettled. After any error the bound stays spent; after
// stint.ErrNotDurable, or if a Decider lost an answer, more may be spent. A
// negative cost is stint.ErrNegativeCost, and may be corrected.
//
// In any stretch of time, the true costs are at most burst + elapsed ÷ interval,
// and the sum of short. A true cost up to the bound counts when the request was
// admitted. What it used beside the bound counts when it is settled, because no
// bucket can know it before. If each bound is a true one, short is always 0, and
// the limit is exact. If the limit follows the calendar, the true costs of each
// period, counted in the same way, are at most the quota and the sum of short.
// Nothing returns to a later period than that of the spend.
//
// If the Limiter failed and the door let the request pass, there is nothing to
// settle: the error is ErrNotSettled. If a Shadow rule did not spend, short is
// the cost.
func Settle(ctx context.Context, name stint.Name, cost int64) (short int64, err error) {
	if cost < 0 {
		return 0, fmt.Errorf("rules: Settle: %w: %d", stint.ErrNegativeCost, cost)
	}
	inner := passOf(ctx)
	if inner == nil {
		return 0, ErrNotSettled
	}
	outermost := inner
	for p := inner; p != nil; p = p.around() {
		outermost = p
	}
	// Otherwise each of two calls could settle one of two doors.
	settling := outermost.settlement()
	settling.Lock()
	defer settling.Unlock()
	found, settles := false, false
	for p := inner; p != nil; p = p.around() {
		decided, claimed, more, err1 := p.settle(name, cost)
		found, settles = found || decided, settles || claimed
		short, err = max(short, more), errors.Join(err, err1)
	}
	switch {
	case !found:
		return 0, ErrNotSettled
	case !settles:
		return 0, ErrSettled
	}
	return short, err
}

func (p *Pass[R, O]) settlement() *sync.Mutex { return &p.settling }

// settle replaces the bounds that the rules of a limit have spent. decided reports
// whether there is such a rule, and claimed whether it was not settled before.
func (p *Pass[R, O]) settle(name stint.Name, cost int64) (decided, claimed bool, short int64, err error) {
	for i := range p.parts {
		a := &p.parts[i]
		if !a.rule.Settle || a.RuleKey.Name != name {
			continue
		}
		p.mu.Lock()
		was := *a
		first := a.to(settle)
		p.mu.Unlock()
		decided = decided || was.isDecided()
		if !first {
			continue
		}
		claimed = true
		more, err1 := p.replace(a, &was, cost)
		short, err = max(short, more), errors.Join(err, err1)
	}
	return decided, claimed, short, err
}

// replace replaces the bound that a rule has spent.
func (p *Pass[R, O]) replace(a, was *part[R, O], cost int64) (short int64, err error) {
	if was.state != spent {
		return cost, nil
	}
	short, d, err := replaceBound(p.door.lim, was.took(), cost)
	if err != nil {
		return max(0, cost-was.Cost), fmt.Errorf("rules: Settle: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.Cost = cost - short
	p.replaced(a, &d)
	return short, nil
}

// replaceBound returns the tokens that a request did not use of its bound, which it
// has spent, or spends those that it used beside it, as far as the bucket has them.
// short is how many it does not have. bound.Spent is the instant of the spend: what
// time has brought back since does not return again.
//
// The Decision is the state after that. After an error the bound stays spent,
// and short is what the request used beside it; after stint.ErrNotDurable, or
// if a Decider lost an answer, more may be spent.
func replaceBound(lim stint.Decider, bound stint.Request, cost int64) (short int64, d stint.Decision, err error) {
	switch more := cost - bound.Cost; {
	case cost < 0:
		return 0, d, fmt.Errorf("%w: %d for %v", stint.ErrNegativeCost, cost, bound.Key)
	case more < 0:
		bound.Cost = -more
		d, err = lim.Refund(bound)
		return 0, d, err
	case more > 0:
		d, err = ask(context.Background(), lim, stint.Request{Key: bound.Key, Cost: more, Mode: stint.UpTo})
		if short = more - d.Taken; err != nil || d.Taken > 0 {
			return short, d, err
		}
	}
	d, err = ask(context.Background(), lim, stint.Request{Key: bound.Key, Mode: stint.CheckOnly})
	return short, d, err
}
