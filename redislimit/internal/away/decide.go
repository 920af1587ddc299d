package away

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Part is one bucket's part in a decision of this machine.
type Part struct {
	stint.Request
	Most int64 // nanoseconds that the TAT may be ahead

	Share    stint.Limit // of this machine: the limit of the decision
	Decision stint.Decision
	Taken    int64         // of a script.Part
	Hold     time.Duration // until the end of a hold, of a check
	charges  int64         // charges that the server had answered before
}

// While calls f if the outage is under way. It does not end before f returns.
// While its last debts are charged, While waits, but not after until. Then it
// returns an error, and does not call f.
func (n *Node) While(o *Outage, until time.Time, f func()) (was bool, err error) {
	for o.away.Load() {
		n.mu.RLock()
		charging, away := o.charging, o.away.Load()
		waits := charging != nil && charging.Err() == nil
		if away && !waits {
			f()
		}
		n.mu.RUnlock()
		if !waits {
			return away, nil
		}
		select {
		case <-charging.Done():
		case <-time.After(time.Until(until)):
			return true, fmt.Errorf("%w: it is back, and is being charged", script.ErrAway)
		}
	}
	return false, nil
}

// Decide decides on buckets that have shares, without the server. The caller is in
// While. After an error nothing was spent on this machine, except that after
// stint.ErrNotDurable the tokens may be spent.
func (n *Node) Decide(o *Outage, op script.Op, parts []*Part) error {
	reqs := make([]stint.Request, len(parts))
	for i, p := range parts {
		var err error
		if reqs[i], err = n.own(p, op); err != nil {
			return err
		}
	}
	ds := make([]stint.Decision, len(reqs))
	var err error
	switch op {
	case script.Refund:
		for i := range reqs {
			if ds[i], err = n.Local.Refund(reqs[i]); err != nil {
				break
			}
		}
	case script.Part:
		reqs[0].Mode = stint.UpTo
		ds[0], err = n.Local.SpendAll(reqs[0])
		parts[0].Taken = ds[0].Taken
		o.spent(reqs)
	default:
		_, err = n.Local.Do(context.Background(), reqs, ds)
		o.spent(reqs)
	}
	if errors.Is(err, stint.ErrNotDurable) {
		return fmt.Errorf("redislimit: server is away, and this machine decided by itself: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%w: and this machine cannot decide by itself: %w", script.ErrAway, err)
	}
	for i, p := range parts {
		p.Decision, p.charges = ds[i], n.charges.Load()
	}
	if op == script.Check && len(parts) == 1 {
		if b, err := n.Local.Bucket(reqs[0].Key); err == nil && !b.HeldUntil.IsZero() {
			parts[0].Hold = b.HeldUntil.Sub(n.Local.Now())
		}
	}
	n.Shared.Add(1)
	return nil
}

// own returns the request to the own bucket, which is brought up to the seen one,
// and puts this machine's share into the part.
func (n *Node) own(p *Part, op script.Op) (stint.Request, error) {
	p.Share = p.Limit.DividedBy(int64(n.Nodes))
	req := stint.Request{Key: OwnKey(p.Key), Mode: p.Mode, Limit: n.durable(p.Share)}
	if op == script.Check {
		req.Mode = stint.CheckOnly
	}
	if !p.Spent.IsZero() {
		req.Spent = n.spentAt(p.Spent)
	}
	if p.Limit.IsUnlimited() || p.Limit.IsBlocked() { // it may be held
		req.Limit = stint.Limit{}
		return req, nil
	}
	if req.Cost = p.Cost; req.Cost > req.Limit.Burst && op != script.Refund && op != script.Part {
		return req, fmt.Errorf("%w: %s asks for %d tokens, and the share of this machine is %d", script.ErrAway,
			n.Label(p.Key), req.Cost, req.Limit.Burst)
	}
	seen, err := n.cutTAT(p.Key, p.Most)
	if err == nil && seen > n.now() {
		_, err = n.Local.Raise(n.wide(req.Key, p.Most), time.Unix(0, seen))
	}
	if err != nil {
		return req, fmt.Errorf("%w: and this machine cannot decide by itself: %w", script.ErrAway, err)
	}
	return req, nil
}

// Undo returns what Decide has spent on a bucket, because the call denied or
// failed elsewhere. It returns false if the server has been charged in between,
// or is being charged: then the tokens must be returned there.
func (n *Node) Undo(p *Part) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.Of(p.Key).charging != nil {
		return false
	}
	if n.charges.Load() != p.charges {
		d, err := n.debt(p.Key)
		if err != nil || d.at(n.now()) < p.Cost*int64(p.Share.Interval()) {
			return false
		}
	}
	n.Local.Refund(stint.Request{Key: OwnKey(p.Key), Cost: p.Cost, Limit: n.durable(p.Share), Spent: stint.JustSpent})
	return true
}
