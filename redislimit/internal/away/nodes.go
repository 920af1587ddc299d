package away

import (
	"math/bits"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// nodesKey is the bucket whose TAT says for how many machines the debts in the
// file were made. A debt is in the time of a share, so it is worth less if there
// are more machines.
var nodesKey = stint.Key{Name: ownBit}

// The number is in the low bits of the TAT. The high bits are far in the future,
// so that the bucket stays.
const (
	nodesBits = 32
	farAway   = 50 * 365 * 24 * time.Hour
)

// adoptDebts makes the debts of an earlier process worth as much with this number
// of machines as they were with its own. If the process dies in between, some
// debts are worth more than that, and never less.
func (n *Node) adoptDebts(names stint.Names) error {
	tat, err := n.TAT(nodesKey)
	if err != nil {
		return err
	}
	was := int64(n.Nodes)
	if tat > n.now() {
		was = tat & (1<<nodesBits - 1)
	}
	is := int64(n.Nodes)
	if is > was {
		if err := n.scaleDebts(names, is, was); err != nil {
			return err
		}
	}
	if err := n.setNodes(tat); err != nil {
		return err
	}
	if is < was {
		return n.scaleDebts(names, is, was)
	}
	return nil
}

// setNodes records the number of machines.
func (n *Node) setNodes(tat int64) error {
	next := (max(n.now()+int64(farAway), tat)>>nodesBits+1)<<nodesBits | int64(n.Nodes)
	if tat > n.now()+int64(farAway)/2 && tat&(1<<nodesBits-1) == int64(n.Nodes) {
		return nil
	}
	req := n.wide(nodesKey, script.MaxTolerance)
	req.Limit.Durability = stint.Synced
	_, err := n.Local.Raise(req, time.Unix(0, next))
	return err
}

// scaleDebts multiplies all debts by is ÷ was.
func (n *Node) scaleDebts(names stint.Names, is, was int64) error {
	for name := range names {
		if !n.Shares(name) {
			continue
		}
		for b, err := range n.Local.Buckets(name | ownBit) {
			if err != nil {
				return err
			}
			d, err := n.debt(stint.Key{Name: name, ID: b.Key.ID})
			if err != nil {
				return err
			}
			owes := d.at(n.now())
			if owes == 0 {
				continue
			}
			high, low := bits.Mul64(uint64(owes), uint64(is))
			scaled := int64(script.MaxTolerance)
			if high < uint64(was) {
				q, _ := bits.Div64(high, low, uint64(was))
				scaled = int64(min(q, script.MaxTolerance))
			}
			if err := n.setDebt(b.Key, d.own, d.seen, scaled); err != nil {
				return err
			}
		}
	}
	return nil
}
