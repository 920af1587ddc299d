package redislimit

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

const (
	debtsAtOnce  = 1024 // buckets that are charged together
	settlePasses = 4    // during the last one decisions wait
)

// settleDebts charges the server's buckets with what this machine has spent by
// itself, and then ends the time away. Decisions go on during the first passes,
// and wait during the last. If the server is away again, settleDebts returns
// the error, and keeps the debts that it has not charged.
func (l *Limiter) settleDebts(o *outage) error {
	h := l.home
	if h == nil {
		l.endAway(o)
		return nil
	}
	for pass := 1; ; pass++ {
		last := pass == settlePasses
		if last {
			h.mu.Lock()
		}
		before := o.spends.Load()
		err := l.charge(o, before, last)
		if !last {
			h.mu.Lock()
		}
		done := err == nil && o.spends.Load() == before
		if done {
			o.settled.Store(before)
			l.endAway(o)
		}
		h.mu.Unlock()
		if done || err != nil {
			return err
		}
	}
}

// settleEarlier charges what an earlier process has spent by itself.
func (l *Limiter) settleEarlier() {
	for _, o := range l.outages() {
		o.settled.Store(-1)
		if err := l.settleDebts(o); err != nil {
			l.beginAway(o, err)
		}
	}
}

// charge charges all debts once. If locked is false, decisions go on and may make
// new ones.
func (l *Limiter) charge(o *outage, spends int64, locked bool) error {
	h := l.home
	if o.settled.Load() == spends {
		return nil
	}
	var rs []request
	n := l.Load()
	for name := range n.names {
		if l.opts.away(name) != AwayShare {
			continue
		}
		for b, err := range h.l.Buckets(name | ownBit) {
			if err != nil {
				l.note(err)
				break // a bucket that cannot be read spends nothing
			}
			if b.ResetAfter <= 0 {
				continue // only held
			}
			if r, owes := l.debtOf(n, b.Key, locked); owes && l.outageOf(r.name) == o {
				rs = append(rs, r)
			}
			if len(rs) == debtsAtOnce {
				if err := l.chargeThese(n, rs, locked); err != nil {
					return err
				}
				rs = rs[:0]
			}
		}
	}
	return l.chargeThese(n, rs, locked)
}

// debtOf returns the request that charges a bucket with what this machine
// spent, less what time has brought back. owes is false if nothing is left to
// charge, or the debt cannot be read.
func (l *Limiter) debtOf(n *limitsInForce, own stint.Key, locked bool) (r request, owes bool) {
	h := l.home
	if !locked {
		h.mu.RLock()
		defer h.mu.RUnlock()
	}
	r.key = stint.Key{Name: own.Name &^ ownBit, ID: own.ID}
	r.limit, _ = n.limits.For(r.key)
	now := h.now()
	var err error
	r.owed, err = h.debt(r.key)
	excess := r.owed.at(now)
	if err != nil || excess == 0 {
		return r, false
	}
	r.need = (excess-1)/h.nodes + 1
	r.tolerance = max(int64(r.limit.Tolerance()), r.owed.own-now)
	r.name = l.opts.keyOf(r.key)
	return r, true
}

// chargeThese charges some buckets. If the server refuses to charge one of them,
// its debt is dropped, because decisions on it are errors too.
func (l *Limiter) chargeThese(n *limitsInForce, rs []request, locked bool) error {
	if len(rs) == 0 {
		return nil
	}
	trips := l.split(opCharge, rs)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range trips {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t := &trips[i]
			if t.err = l.chargeOnce(t, n); t.err == nil || isAway(t.err) {
				return
			}
			l.note(t.err)
			for j := range t.requests { // one of them may be the reason
				one := trip{op: opCharge, requests: t.requests[j : j+1]}
				if one.err = l.chargeOnce(&one, n); isAway(one.err) {
					t.err = one.err
					return
				}
				t.now = max(t.now, one.now)
			}
			t.err = nil
		})
	}
	wg.Wait()
	if !locked {
		l.home.mu.Lock()
		defer l.home.mu.Unlock()
	}
	var failed error
	for i := range trips {
		if failed = cmp.Or(failed, trips[i].err); trips[i].err == nil {
			l.paid(&trips[i])
		}
	}
	return failed
}

// chargeOnce makes one call, although the server still counts as away.
func (l *Limiter) chargeOnce(t *trip, n *limitsInForce) error {
	t.limits, t.deadline = n, time.Now().Add(l.opts.Timeout)
	err := l.tryCall([]*trip{t}, false)
	return cmp.Or(err, t.err)
}

func isAway(err error) bool { return errors.Is(err, ErrAway) || errors.Is(err, ErrNoAnswer) }

// paid ends the debts that were charged. What this machine has spent since then
// is the new debt.
func (l *Limiter) paid(t *trip) {
	h := l.home
	for i := range t.requests {
		r := &t.requests[i]
		own := ownKey(r.key)
		d, err := h.debt(r.key)
		now := h.now()
		since := d.at(now) - r.owed.at(now)
		ahead := now - instant(l.Now())
		full, err2 := h.l.Raise(h.wide(r.key, maxTolerance), time.Unix(0, max(0, r.tat+ahead)))
		if err != nil || err2 != nil || h.setDebt(own, d.own, instant(full), since) != nil {
			continue // it is charged again
		}
		l.stats.charged.Add(1)
	}
}
