package away

import (
	"cmp"
	"math/bits"
	"strconv"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// nodesName has a bucket for each Name whose TAT says for how many machines the
// debts of the Name were made. A debt is in the time of a share, so it is worth
// less if there are more machines.
const nodesName = ownBit

func nodesKey(name stint.Name) stint.Key { return nodesName.Key(strconv.Itoa(int(name))) }

// fewestKey is the key of a bucket that says for how few machines debts of the Name
// were made, if they were made for fewer than nodesKey says. An empty share of two
// machines is four times an empty one of eight.
func fewestKey(name stint.Name) stint.Key { return nodesName.Key("fewest." + strconv.Itoa(int(name))) }

// allNodesKey is the record for all Names together, which older files have. It
// counts for the Names without a record of their own.
var allNodesKey = nodesName.Key("")

func nodesSpec(id stint.IDFormat) stint.NameSpec {
	return stint.NameSpec{Label: "redislimit.nodes", ID: id, Limit: stint.Unlimited}
}

// The number is in the low bits of the TAT. The high bits are far in the future,
// so that the bucket stays.
const (
	nodesBits = 32
	farAway   = 50 * 365 * 24 * time.Hour
)

// nodesIn returns the number of machines in the TAT of a record, or 0 if there is
// no record.
func (n *Node) nodesIn(tat int64) int64 {
	if tat <= n.now() {
		return 0
	}
	return tat & (1<<nodesBits - 1)
}

// adoptEarlier adopts the debts on names. own are the Names of the home, which
// declare nodesName without ids, so that allNodesKey can be read. Afterwards
// nodesName has ids.
func (n *Node) adoptEarlier(own, names stint.Names) error {
	tat, err := n.TAT(allNodesKey)
	if err != nil {
		return err
	}
	n.allNodes = n.nodesIn(tat)
	own[nodesName] = nodesSpec(stint.AnyID)
	limits, err := stint.NewLimits(own)
	if err != nil {
		return err
	}
	if err := n.Local.SetLimits(limits); err != nil {
		return err
	}
	return n.adopt(n.fresh(names))
}

// fresh returns the names that have shares and are not adopted. The caller holds
// mu.
func (n *Node) fresh(names stint.Names) (fresh []stint.Name) {
	for name := range names {
		if n.Shares(name) && !n.adopted[name] {
			fresh = append(fresh, name)
		}
	}
	return fresh
}

// adopt makes the debts on Names of an earlier process worth as much with this
// number of machines as they were with its own, and lets them be charged. If the
// process dies in between, some debts are worth more than that, and never less.
// The caller holds mu.
func (n *Node) adopt(names []stint.Name) error {
	if n.Config.Local != "" { // otherwise there is no earlier process
		if err := n.rescale(names); err != nil {
			return err
		}
		for _, o := range n.Outages() {
			o.mayOwe()
		}
	}
	for _, name := range names {
		n.adopted[name] = true
	}
	return nil
}

// rescale brings the debts on Names to this number of machines, and then the
// records. Debts grow before the records say so, and shrink afterwards.
func (n *Node) rescale(names []stint.Name) error {
	is := int64(n.Nodes)
	shrink := make(map[stint.Name]int64) // Names whose debts were made for more machines
	for _, name := range names {
		tat, err := n.TAT(nodesKey(name))
		if err != nil {
			return err
		}
		fewest, err := n.TAT(fewestKey(name))
		if err != nil {
			return err
		}
		recorded := n.nodesIn(tat)
		was := cmp.Or(recorded, n.allNodes, is)
		n.fewest[name] = min(cmp.Or(n.nodesIn(fewest), was), was, is)
		switch {
		case recorded == is && tat > n.now()+int64(farAway)/2:
			continue
		case was > is:
			shrink[name] = was
		case was < is:
			if err := n.scaleDebts(name, is, was); err != nil {
				return err
			}
			if err := n.setNumber(fewestKey(name), n.fewest[name]); err != nil {
				return err
			}
			if err := n.Local.Flush(); err != nil {
				return err
			}
		}
		if err := n.setNumber(nodesKey(name), is); err != nil {
			return err
		}
	}
	if err := n.Local.Flush(); err != nil {
		return err
	}
	for name, was := range shrink {
		if err := n.scaleDebts(name, is, was); err != nil {
			return err
		}
	}
	return nil
}

// setNumber records a number of machines. The next flush saves it.
func (n *Node) setNumber(key stint.Key, number int64) error {
	tat, err := n.TAT(key)
	if err != nil {
		return err
	}
	next := (max(n.now()+int64(farAway), tat)>>nodesBits+1)<<nodesBits | number
	_, err = n.Local.Raise(n.wide(key, script.MaxTolerance), time.Unix(0, next))
	return err
}

// scaleDebts multiplies the debts on a Name by is ÷ was.
func (n *Node) scaleDebts(name stint.Name, is, was int64) error {
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
		if err := n.setDebt(b.Key, d.own, d.seen, scaled(owes, is, was)); err != nil {
			return err
		}
	}
	return nil
}

// scaled returns d × is ÷ was, in nanoseconds, or MaxTolerance if that is less.
func scaled(d, is, was int64) int64 {
	high, low := bits.Mul64(uint64(d), uint64(is))
	if high >= uint64(was) {
		return script.MaxTolerance
	}
	q, _ := bits.Div64(high, low, uint64(was))
	return int64(min(q, script.MaxTolerance))
}
