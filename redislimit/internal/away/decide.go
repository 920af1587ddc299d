package away

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

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
func (n *Node) Decide(o *Outage, op script.Op, rs []*script.Request) error {
	if len(rs) == 0 {
		return nil
	}
	reqs := make([]stint.Request, len(rs))
	for i, r := range rs {
		var err error
		if reqs[i], err = n.own(r, op); err != nil {
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
	for i, r := range rs {
		d := &ds[i]
		r.TAT, r.Wait = r.Now+int64(d.ResetAfter), int64(d.RetryAfter)
		r.Taken += d.Taken
		if r.Limited() {
			r.Limit = r.Limit.DividedBy(int64(n.Nodes))
			r.Interval, r.Tolerance = int64(r.Limit.Interval()), int64(r.Limit.Tolerance())
			r.Need = reqs[i].Cost * r.Interval
		}
	}
	if op == script.Check && len(rs) == 1 {
		if b, err := n.Local.Bucket(reqs[0].Key); err == nil && !b.HeldUntil.IsZero() {
			rs[0].Hold = rs[0].Now + max(0, int64(b.HeldUntil.Sub(n.Local.Now())))
		}
	}
	n.Shared.Add(1)
	return nil
}

// own returns the request to the own bucket, which is brought up to the seen one.
func (n *Node) own(r *script.Request, op script.Op) (stint.Request, error) {
	share := r.Limit.DividedBy(int64(n.Nodes))
	req := stint.Request{Key: OwnKey(r.Bucket), Mode: r.Mode, Limit: n.durable(share)}
	if op == script.Check {
		req.Mode = stint.CheckOnly
	}
	if !r.Spent.IsZero() {
		req.Spent = n.spentAt(r.Spent)
	}
	if !r.Limited() { // it may be held
		req.Limit = stint.Limit{}
		return req, nil
	}
	if req.Cost = r.Need / r.Interval; req.Cost > share.Burst && op != script.Refund && op != script.Part {
		return req, fmt.Errorf("%w: %s asks for %d tokens, and the share of this machine is %d", script.ErrAway,
			n.Label(r.Bucket), req.Cost, share.Burst)
	}
	seen, err := n.cutTAT(r.Bucket, r.Most)
	if err == nil && seen > n.now() {
		_, err = n.Local.Raise(n.wide(req.Key, r.Most), time.Unix(0, seen))
	}
	if err != nil {
		return req, fmt.Errorf("%w: and this machine cannot decide by itself: %w", script.ErrAway, err)
	}
	return req, nil
}

// Undo returns what Decide has spent on a bucket, because the call denied or failed
// elsewhere, less what time has brought back. It returns false if the server has been
// charged in between: then the tokens must be returned there. Unless it waits, it also
// returns false while the server is charged.
func (n *Node) Undo(r *script.Request, waits bool) bool {
	o := n.Of(r.Bucket)
	if waits {
		o.settling.Lock()
	} else if !o.settling.TryLock() {
		return false
	}
	defer o.settling.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	spent := script.Instant(n.spentAt(time.Unix(0, r.Now)))
	d, err := n.debt(r.Bucket)
	now := n.now()
	owes, back := d.at(now), r.Need-max(0, now-spent)
	if err != nil || owes < back {
		return false
	}
	if back > 0 {
		n.setDebt(OwnKey(r.Bucket), d.own, d.seen, owes-back)
	}
	return true
}
