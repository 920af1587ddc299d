package away

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// charge is what a bucket at the server is charged.
type charge struct {
	key  stint.Key
	owed debt
	trip script.Trip
}

const (
	debtsAtOnce = 1024 // buckets that are charged together
	maxPasses   = 30
	lastDebts   = 512 // the most that decisions wait for, until there were maxPasses
)

// settle charges the server's buckets with what this machine has spent by itself,
// and then calls done while it holds Node.mu. The first pass reads all debts, and
// each further one those that decisions have made since. When few are left,
// decisions wait for one more pass, for a quarter of Timeout at most. If they have
// made new debts after all, there are further passes, and after maxPasses they wait
// for Timeout. If a charge fails, settle returns the error and keeps the debt.
func (o *Outage) settle(patience time.Duration, done func()) error {
	n := o.node
	o.settling.Lock()
	defer o.settling.Unlock()
	all := o.owes.Load()
	for pass := 1; ; pass++ {
		n.mu.Lock()
		keys := o.recent
		all = all || o.unread || len(keys) > maxRecent
		o.recent, o.unread = nil, false
		last, goOn := !all && (len(keys) <= lastDebts || pass >= maxPasses), func() {}
		if last {
			wait := n.Timeout / 4 // so that a decision that waits has time for a trip
			if pass >= maxPasses {
				wait = n.Timeout
			}
			o.charging, goOn = context.WithTimeout(context.Background(), wait)
		}
		n.mu.Unlock()
		owing := bucketsOf(keys)
		if all {
			owing = n.ownBuckets()
		}
		err := o.charge(owing, patience)
		n.mu.Lock()
		over := last && err == nil && len(o.recent) == 0 && !o.unread
		if over {
			o.owes.Store(false)
			done()
		}
		o.charging, all = nil, false
		n.mu.Unlock()
		goOn()
		if over || err != nil {
			return err
		}
	}
}

// mayOwe says that there may be debts of an earlier process. The caller holds
// Node.mu.
func (o *Outage) mayOwe() {
	o.owes.Store(true)
	o.unread = true
}

// SettleEarlier charges what an earlier process has spent by itself, except at a
// server that is away, which is charged when it is back. A server that cannot be
// charged is away.
func (n *Node) SettleEarlier() {
	for _, o := range n.Outages() {
		if o.away.Load() || !o.owes.Load() {
			continue
		}
		if err := o.settle(n.patience(), func() {}); err != nil {
			o.Begin(err)
		}
	}
}

func bucketsOf(keys map[stint.Key]struct{}) iter.Seq2[stint.Bucket, error] {
	return func(yield func(stint.Bucket, error) bool) {
		for key := range keys {
			if !yield(stint.Bucket{Key: key}, nil) {
				return
			}
		}
	}
}

// charge charges the debts of own buckets once. Decisions go on, and may make
// new ones.
func (o *Outage) charge(own iter.Seq2[stint.Bucket, error], patience time.Duration) error {
	n := o.node
	var charges []*charge
	for b, err := range own {
		if err != nil {
			return fmt.Errorf("redislimit: Options.Local: debts cannot be read: %w", err)
		}
		n.mu.RLock()
		c, err := o.chargeFor(b.Key)
		n.mu.RUnlock()
		if err != nil {
			return err
		}
		if c != nil {
			charges = append(charges, c)
		}
		if len(charges) == debtsAtOnce {
			if err := n.pay(charges, patience); err != nil {
				return err
			}
			charges = charges[:0]
		}
	}
	return n.pay(charges, patience)
}

// chargeFor returns what to charge for an own bucket of the outage's server: the debt,
// less what time has brought back. It returns nil if nothing is left. The caller holds
// Node.mu.
func (o *Outage) chargeFor(own stint.Key) (*charge, error) {
	n := o.node
	key := stint.Key{Name: own.Name &^ ownBit, ID: own.ID}
	if n.Of(key) != o {
		return nil, nil
	}
	owed, err := n.debt(key)
	if err != nil {
		return nil, fmt.Errorf("redislimit: Options.Local: a debt cannot be read: %w", err)
	}
	now := n.now()
	excess := owed.at(now)
	if excess == 0 {
		return nil, nil
	}
	tolerance := int64(n.Limit(key).Tolerance())
	if excess > n.longest(key) || owed.seen > now+tolerance { // requests had a larger limit of their own
		tolerance = max(tolerance, owed.own-now)
	}
	r := &script.Request{Since: n.Loaded(), Key: n.Name(key), Need: (excess-1)/int64(n.Nodes) + 1, Tolerance: tolerance}
	return &charge{key, owed, script.Trip{Op: script.Charge, Requests: []*script.Request{r}}}, nil
}

// pay makes charges, and returns the error of one that failed. What this machine has
// spent since they were read is the new debt. A key that is not a bucket cannot be
// charged, and its debt ends, because decisions on it are errors, too.
func (n *Node) pay(charges []*charge, patience time.Duration) (failed error) {
	if len(charges) == 0 {
		return nil
	}
	var trips []*script.Trip
	for _, c := range charges {
		trips = append(trips, &c.trip)
	}
	n.Server.Charge(trips, patience)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range charges {
		err := c.trip.Err
		if _, wrong := errors.AsType[script.WrongKey](err); wrong {
			n.Note(err)
		} else if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		d, err := n.debt(c.key)
		now := n.now()
		since := d.at(now) - c.owed.at(now)
		tat := time.Unix(0, max(0, c.trip.Requests[0].TAT+n.ahead()))
		full, err2 := n.Local.Raise(n.wide(c.key, script.MaxTolerance), tat)
		if err != nil || err2 != nil || n.setDebt(OwnKey(c.key), d.own, script.Instant(full), since) != nil {
			continue // it is charged again
		}
		n.Charged.Add(1)
	}
	return failed
}
