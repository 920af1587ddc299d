package share

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Node has the parts of a limit's declaration that matter in a tree of shares.
type Node struct {
	Label         string
	Format        string // of its ids
	Shared        bool   // it has one bucket for everyone
	Prefix        bool   // an override may name only a part of the id
	Parent, Floor uint16 // 0: none
}

// Tree has the declarations by number.
type Tree map[uint16]Node

// Mistakes returns all that is wrong with the Parents and Floors, by number.
func (t Tree) Mistakes() map[uint16][]string {
	numbers := slices.Sorted(maps.Keys(t))
	children, owners := make(map[uint16]uint16), make(map[uint16]uint16) // the first of each Parent and Floor
	for _, n := range slices.Backward(numbers) {
		children[t[n].Parent] = n
		owners[t[n].Floor] = n
	}
	all := make(map[uint16][]string)
	for _, n := range numbers {
		wrong := func(format string, args ...any) { all[n] = append(all[n], fmt.Sprintf(format, args...)) }
		if t[n].Parent != 0 {
			t.checkParent(n, wrong)
		}
		if t[n].Floor != 0 {
			t.checkFloor(n, children[t[n].Floor], owners[t[n].Floor], wrong)
		}
	}
	return all
}

func (t Tree) checkParent(n uint16, wrong func(format string, args ...any)) {
	parent, declared := t[t[n].Parent]
	if !declared {
		wrong("its Parent, Name %d, is not declared", t[n].Parent)
		return
	}
	if back := t.backTo(n); back != "" {
		wrong("its Parent leads back to it: %s", back)
	} else if parent.Parent != 0 {
		wrong("its Parent, %s, has a Parent: want two levels", parent.Label)
	}
	if !parent.Shared {
		wrong("its Parent, %s, has ids of format %s: want stint.Shared", parent.Label, parent.Format)
	}
}

// checkFloor reports what is wrong with the Floor of n. child is a limit with
// that Floor as its Parent, or 0. owner is the first limit with that Floor.
func (t Tree) checkFloor(n, child, owner uint16, wrong func(format string, args ...any)) {
	node := t[n]
	floor, declared := t[node.Floor]
	switch {
	case !declared:
		wrong("its Floor, Name %d, is not declared", node.Floor)
		return
	case node.Floor == n || node.Floor == node.Parent:
		wrong("its Floor, %s, is itself or its Parent: want another limit", floor.Label)
		return
	}
	if node.Parent == 0 {
		wrong("it has a Floor and no Parent: want both, or no Floor")
	}
	if floor.Parent != 0 || floor.Floor != 0 {
		wrong("its Floor, %s, has a Parent or a Floor: want a limit with neither", floor.Label)
	}
	if floor.Format != node.Format || floor.Prefix {
		wrong("its Floor, %s, has ids of format %s: want %s, and no Override", floor.Label, floor.Format, node.Format)
	}
	if child != 0 {
		wrong("its Floor, %s, is the Parent of %s", floor.Label, t[child].Label)
	}
	if owner != n {
		wrong("its Floor, %s, is also the Floor of %s: want a Floor for each", floor.Label, t[owner].Label)
	}
}

// backTo returns the path from a limit through its Parents back to the limit,
// or "".
func (t Tree) backTo(n uint16) string {
	way := []string{t[n].Label}
	for next := t[n].Parent; next != 0 && len(way) <= len(t); next = t[next].Parent {
		if way = append(way, t[next].Label); next == n {
			return strings.Join(way, ", ")
		}
	}
	return ""
}
