package stint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// mistakesInTrees returns all that is wrong with the Parents and Floors.
func (ns Names) mistakesInTrees() map[Name][]string {
	names := slices.Sorted(maps.Keys(ns))
	children, owners := make(map[Name]Name), make(map[Name]Name) // the first of each Parent and Floor
	for _, n := range slices.Backward(names) {
		children[ns[n].Parent] = n
		owners[ns[n].Floor] = n
	}
	all := make(map[Name][]string)
	for _, n := range names {
		wrong := func(format string, args ...any) { all[n] = append(all[n], fmt.Sprintf(format, args...)) }
		if ns[n].Parent != 0 {
			ns.checkParent(n, wrong)
		}
		if ns[n].Floor != 0 {
			ns.checkFloor(n, children[ns[n].Floor], owners[ns[n].Floor], wrong)
		}
	}
	return all
}

func (ns Names) checkParent(n Name, wrong func(format string, args ...any)) {
	parent, declared := ns[ns[n].Parent]
	if !declared {
		wrong("its Parent, Name %d, is not declared", ns[n].Parent)
		return
	}
	if back := ns.backTo(n); back != "" {
		wrong("its Parent leads back to it: %s", back)
	} else if parent.Parent != 0 {
		wrong("its Parent, %s, has a Parent: want two levels", parent.Label)
	}
	if parent.ID != Shared {
		wrong("its Parent, %s, has ids of format %v: want stint.Shared", parent.Label, parent.format())
	}
}

// checkFloor reports what is wrong with the Floor of n. child is a limit with
// that Floor as its Parent, or 0. owner is the first limit with that Floor.
func (ns Names) checkFloor(n, child, owner Name, wrong func(format string, args ...any)) {
	spec := ns[n]
	floor, declared := ns[spec.Floor]
	switch {
	case !declared:
		wrong("its Floor, Name %d, is not declared", spec.Floor)
		return
	case spec.Floor == n || spec.Floor == spec.Parent:
		wrong("its Floor, %s, is itself or its Parent: want another limit", floor.Label)
		return
	}
	if spec.Parent == 0 {
		wrong("it has a Floor and no Parent: want both, or no Floor")
	}
	if floor.Parent != 0 || floor.Floor != 0 {
		wrong("its Floor, %s, has a Parent or a Floor: want a limit with neither", floor.Label)
	}
	if is, want := floor.format().String(), spec.format().String(); is != want || floor.Override != nil {
		wrong("its Floor, %s, has ids of format %s: want %s, and no Override", floor.Label, is, want)
	}
	if child != 0 {
		wrong("its Floor, %s, is the Parent of %s", floor.Label, ns[child].Label)
	}
	if owner != n {
		wrong("its Floor, %s, is also the Floor of %s: want a Floor for each", floor.Label, ns[owner].Label)
	}
}

// backTo returns the path from a limit through its Parents back to the limit,
// or "".
func (ns Names) backTo(n Name) string {
	way := []string{ns[n].Label}
	for next := ns[n].Parent; next != 0 && len(way) <= len(ns); next = ns[next].Parent {
		if way = append(way, ns[next].Label); next == n {
			return strings.Join(way, ", ")
		}
	}
	return ""
}
