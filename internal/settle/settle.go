// Package settle replaces the bound that a request has spent by its true cost.
package settle

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-go/stint"
)

// A Bound is what a request has spent before its cost was known.
type Bound struct {
	Key  stint.Key
	Cost int64
	At   time.Time // no later than the spend, by the Limiter's clock
}

// Replace returns the tokens that a request did not use, or spends those that
// it used beside the bound, as far as the bucket has them. short is how many it
// does not have. A bound that is returned after a while brings no token back
// that time has brought back already, as stint.Request.Spent says.
//
// The Decision is the state after that. After an error the bound stays spent,
// and short is what the request used beside it; after stint.ErrNotDurable, or
// if a Decider lost an answer, more may be spent.
func (b Bound) Replace(lim stint.Decider, cost int64) (short int64, d stint.Decision, err error) {
	switch more := cost - b.Cost; {
	case cost < 0:
		return 0, d, fmt.Errorf("%w: %d for %v", stint.ErrNegativeCost, cost, b.Key)
	case more < 0:
		d, err = lim.Refund(stint.Request{Key: b.Key, Cost: -more, Spent: b.At})
		return 0, d, err
	case more > 0:
		d, err = lim.Do(context.Background(), []stint.Request{{Key: b.Key, Cost: more, Mode: stint.UpTo}}, nil)
		return more - d.Taken, d, err
	}
	d, err = lim.Do(context.Background(), []stint.Request{{Key: b.Key, Mode: stint.CheckOnly}}, nil)
	return 0, d, err
}
