package rules

import (
	"time"

	"github.com/stint-go/stint"
)

// lockOut holds the bucket of a rule if it has too few tokens left for another
// request like this one.
func (p *Pass[R, O]) lockOut(a *part[R, O]) error {
	if a.rule.LockOut <= 0 || a.Shadow {
		return nil
	}
	p.mu.Lock()
	was := *a
	p.mu.Unlock()
	if was.state != spent || was.Cost <= 0 {
		return nil
	}
	locked, err := was.lockOut(p.door.lim)
	if err != nil || locked == 0 {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.Locked, p.changed = locked, true
	return nil
}

// lockOut locks the rule's bucket out, and returns the rest of its hold, or 0 if
// there are enough tokens left. A total or a floor that has too few tokens locks no
// id out, because others may have emptied it.
func (a *part[R, O]) lockOut(lim stint.Decider) (rest time.Duration, err error) {
	d, least := &a.Decision, a.Cost
	if a.rule.CostFunc != nil {
		least = 1
	}
	if d.Remaining >= least { // of several buckets the one with the fewest decides
		return 0, nil
	}
	now := lim.Now()
	b, err := lim.Bucket(d.RuleKey)
	if err != nil {
		return 0, err
	}
	// Since the decision, other requests may have returned tokens. Tokens that
	// came back with time do not count.
	left, interval := b.Remaining, b.Limit.Interval()
	switch {
	case b.Limit.Count == 0:
		return 0, nil
	case interval <= 0 || b.Limit.FollowsCalendar(): // tokens do not come back one by one
	case d.Key == d.RuleKey:
		back := d.ResetAfter - now.Sub(d.At()) - b.ResetAfter
		left = d.Remaining + int64(back/interval)
	default:
		left -= int64(now.Sub(d.At()) / interval)
	}
	if left >= least {
		return 0, nil
	}
	until, err := lim.Hold(d.RuleKey, now.Add(a.rule.LockOut)) // a longer hold stays
	if err != nil {
		return 0, err
	}
	return until.Sub(now), nil
}
