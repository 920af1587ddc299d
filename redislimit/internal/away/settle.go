package away

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Debt is what a bucket at the server is charged.
type Debt struct {
	Key       stint.Key
	Need      int64 // nanoseconds
	Tolerance int64 // the bucket is empty then

	TAT int64 // the answer
	Err error

	owed debt
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
		owing := keysOf(keys)
		if all {
			owing = o.allKeys
		}
		err := o.chargeKeys(owing, patience)
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

// Whole returns the outage of the whole server.
func (n *Node) Whole() *Outage { return &n.whole }

// allKeys yields the own buckets that have spent.
func (o *Outage) allKeys(yield func(stint.Key, error) bool) {
	for b, err := range o.node.ownBuckets() {
		if err != nil {
			err = fmt.Errorf("redislimit: Options.Local: debts cannot be read: %w", err)
		} else if b.ResetAfter <= 0 {
			continue // only held
		}
		if !yield(b.Key, err) {
			return
		}
	}
}

func keysOf(keys map[stint.Key]struct{}) iter.Seq2[stint.Key, error] {
	return func(yield func(stint.Key, error) bool) {
		for key := range keys {
			if !yield(key, nil) {
				return
			}
		}
	}
}

// chargeKeys charges the debts of own buckets once. Decisions go on, and may make
// new ones.
func (o *Outage) chargeKeys(keys iter.Seq2[stint.Key, error], patience time.Duration) error {
	n := o.node
	var debts []Debt
	chargeThese := func() error {
		err := n.charge(debts, patience)
		n.mu.Lock()
		n.paid(debts)
		n.mu.Unlock()
		debts = debts[:0]
		return err
	}
	for key, err := range keys {
		if err != nil {
			return err
		}
		n.mu.RLock()
		d, owes, err := o.debtOf(key)
		n.mu.RUnlock()
		if err != nil {
			return err
		}
		if owes {
			debts = append(debts, d)
		}
		if len(debts) == debtsAtOnce {
			if err := chargeThese(); err != nil {
				return err
			}
		}
	}
	return chargeThese()
}

// debtOf returns what this machine spent on a bucket of the outage's server, less
// what time has brought back. owes is false if nothing is left to charge. The
// caller holds Node.mu.
func (o *Outage) debtOf(own stint.Key) (d Debt, owes bool, err error) {
	n := o.node
	d.Key = stint.Key{Name: own.Name &^ ownBit, ID: own.ID}
	if n.Of(d.Key) != o {
		return d, false, nil
	}
	if d.owed, err = n.debt(d.Key); err != nil {
		return d, false, fmt.Errorf("redislimit: Options.Local: a debt cannot be read: %w", err)
	}
	now := n.now()
	excess := d.owed.at(now)
	if excess == 0 {
		return d, false, nil
	}
	d.Need = (excess-1)/int64(n.Nodes) + 1
	d.Tolerance = int64(n.Limit(d.Key).Tolerance())
	if excess > n.longest(d.Key) || d.owed.seen > now+d.Tolerance { // requests had a larger limit of their own
		d.Tolerance = max(d.Tolerance, d.owed.own-now)
	}
	return d, true, nil
}

// charge charges debts, and returns the error of one that stays. A key that is not
// a bucket cannot be charged, and its debt ends, because decisions on it are
// errors, too.
func (n *Node) charge(debts []Debt, patience time.Duration) (failed error) {
	if len(debts) == 0 {
		return nil
	}
	n.Server.Charge(debts, patience)
	for i := range debts {
		d := &debts[i]
		if _, wrong := errors.AsType[script.WrongKey](d.Err); wrong {
			n.Note(d.Err)
			d.Err = nil
		}
		if failed == nil {
			failed = d.Err
		}
	}
	return failed
}

// paid ends the debts that were charged. What this machine has spent since then
// is the new debt. The caller holds Node.mu.
func (n *Node) paid(debts []Debt) {
	for i := range debts {
		c := &debts[i]
		if c.Err != nil {
			continue
		}
		n.charges.Add(1)
		d, err := n.debt(c.Key)
		now := n.now()
		since := d.at(now) - c.owed.at(now)
		full, err2 := n.Local.Raise(n.wide(c.Key, script.MaxTolerance), time.Unix(0, max(0, c.TAT+n.ahead())))
		if err != nil || err2 != nil || n.setDebt(OwnKey(c.Key), d.own, script.Instant(full), since) != nil {
			continue // it is charged again
		}
		n.Charged.Add(1)
	}
}
