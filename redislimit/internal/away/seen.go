package away

import (
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// ahead returns the time of Local less the server's, for instants that must not
// come too early here. It reads Local's clock last, because the process may be
// stopped between the two.
func (n *Node) ahead() int64 {
	server := script.Instant(n.Server.Time())
	return n.now() - server
}

// spentAt returns, by the time of Local, an instant of the server at which tokens
// were spent, for a refund. It must not come too late, so it reads Local's clock
// first.
func (n *Node) spentAt(spent time.Time) time.Time {
	if spent.Equal(stint.JustSpent) {
		return spent
	}
	now := time.Unix(0, n.now())
	return now.Add(spent.Sub(n.Server.Time()))
}

// SawTAT raises the seen bucket to a TAT of the server, which is ahead by most at
// most.
func (n *Node) SawTAT(key stint.Key, tat, most int64) {
	tat += n.ahead()
	seen := n.wide(key, most)
	o := n.Of(key)
	n.mu.RLock()
	if !o.away.Load() && !o.owes.Load() {
		n.Local.Raise(seen, time.Unix(0, tat))
		n.mu.RUnlock()
		return
	}
	n.mu.RUnlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepDebt(key, func() { n.Local.Raise(seen, time.Unix(0, tat)) })
}

// keepDebt lets change move a seen bucket, and moves the own bucket so that the debt
// stays the same. The caller holds mu.
func (n *Node) keepDebt(key stint.Key, change func()) {
	d, err := n.debt(key)
	change()
	now := n.now()
	if err != nil || d.own <= now {
		return
	}
	if seen, err := n.TAT(key); err == nil {
		n.setDebt(OwnKey(key), d.own, seen, d.at(now))
	}
}

// SawRefund gives tokens back to a seen bucket.
func (n *Node) SawRefund(req stint.Request) {
	req.Limit.Durability = n.wide(req.Key, 1).Limit.Durability
	if !req.Spent.IsZero() {
		req.Spent = n.spentAt(req.Spent)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepDebt(req.Key, func() { n.Local.Refund(req) })
}

// SawReset makes the buckets of a key full.
func (n *Node) SawReset(key stint.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Local.Reset(key, OwnKey(key))
}

// SawHold gives a key in the home the hold that it has at the server. A hold
// waits for a commit, so another goroutine sets it.
func (n *Node) SawHold(key stint.Key, hold int64) {
	own := OwnKey(key)
	n.holdsMu.Lock()
	known, has := n.holds[own]
	if !has && hold == 0 || known == hold {
		n.holdsMu.Unlock()
		return
	}
	if len(n.holds)%1024 == 1023 {
		now := script.Instant(n.Server.Time())
		for key, end := range n.holds {
			if end >= 0 && end <= now {
				delete(n.holds, key)
			}
		}
	}
	n.holds[own] = hold
	n.holdsMu.Unlock()
	ahead := n.ahead()
	n.Begin(func() {
		n.holdOrder.Lock() // the last one reads the newest end
		defer n.holdOrder.Unlock()
		n.holdsMu.Lock()
		end, has := n.holds[own]
		if end == 0 {
			delete(n.holds, own)
		}
		n.holdsMu.Unlock()
		if has {
			until := time.Unix(0, max(0, end+ahead))
			if in, err := n.Local.Hold(own, until); err == nil && in.After(until) { // the server's ends earlier now
				n.Local.Release(own)
				n.Local.Hold(own, until)
			}
		}
	})
}
