package stint

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/stint-go/stint/internal/share"
	"github.com/stint-go/stint/internal/spell"
)

// role is the place of a Name in a tree of shares.
type role uint8

const (
	plainRole role = iota // none
	classRole             // it has a Parent
	floorRole
	totalRole
)

// member is a Name in a tree of shares.
type member struct {
	role  role
	class Name // of a floor
	floor Name // of a class; 0 if it has none
	total Name
	sum   int // index in Limits.totals
}

// members returns the place of each Name in a tree of shares, the number of
// trees, and the mistakes by Name.
func (ns Names) members() (all []member, trees int, mistakes map[Name][]string) {
	mistakes = ns.mistakesInTrees()
	set := func(name Name, m member) {
		for len(all) <= int(name) {
			all = append(all, member{})
		}
		all[name] = m
	}
	for _, name := range slices.Sorted(maps.Keys(ns)) {
		spec := ns[name]
		if spec.Parent == 0 || mistakes[name] != nil {
			continue
		}
		if int(spec.Parent) >= len(all) || all[spec.Parent].role == plainRole {
			set(spec.Parent, member{role: totalRole, total: spec.Parent, sum: trees})
			trees++
		}
		sum := all[spec.Parent].sum
		set(name, member{role: classRole, floor: spec.Floor, total: spec.Parent, sum: sum})
		if spec.Floor != 0 {
			set(spec.Floor, member{role: floorRole, class: name, total: spec.Parent, sum: sum})
		}
	}
	return all, trees, mistakes
}

// member returns the place of a Name in a tree of shares. ls may be nil.
func (ls *Limits) member(name Name) member {
	if ls == nil || int(name) >= len(ls.members) {
		return member{}
	}
	return ls.members[name]
}

func (ls *Limits) isShare(name Name) bool {
	return ls.members != nil && ls.member(name).role != plainRole
}

// Share returns the buckets that a request for a key takes from besides its own:
// the total, and the floor of the id, which is zero if it has none. kept is how
// many tokens loans leave in the total: the bursts of all floors. ok is false if
// the limit has no Parent.
func (ls *Limits) Share(key Key) (total, floor Key, kept int64, ok bool) {
	m := ls.member(key.Name)
	if m.role != classRole {
		return Key{}, Key{}, 0, false
	}
	floor, _ = ls.floorOf(m, key.ID)
	return m.total.Key(""), floor, ls.kept(m.total), true
}

// kept returns the tokens that loans leave in a total.
func (ls *Limits) kept(total Name) int64 {
	if m := ls.member(total); m.role == totalRole {
		return ls.totals[m.sum].Burst()
	}
	return 0
}

// floorOf returns the floor of an id of a class.
func (ls *Limits) floorOf(m member, id string) (Key, bool) {
	if m.floor == 0 {
		return Key{}, false
	}
	key := m.floor.Key(id)
	if rule, err := ls.resolve(key); err != nil || rule <= blocked {
		return Key{}, false
	}
	return key, true
}

// floors yields the ids of a class that have a floor, and their rules.
func (ls *Limits) floors(m member) iter.Seq2[string, uint32] {
	return func(yield func(string, uint32) bool) {
		if m.floor == 0 {
			return
		}
		ids := ls.overrides[ls.index(m.floor)].rules.IDs()
		if ls.settings[m.floor].shared {
			ids = slices.Values([]string{""})
		}
		for id := range ids {
			if rule, err := ls.resolve(m.floor.Key(id)); err == nil && rule > blocked && !yield(id, rule) {
				return
			}
		}
	}
}

// classes yields the limits that share a total.
func (ls *Limits) classes(sum int) iter.Seq2[Name, member] {
	return func(yield func(Name, member) bool) {
		for name, m := range ls.members {
			if m.role == classRole && m.sum == sum && !yield(Name(name), m) {
				return
			}
		}
	}
}

// sameTrees returns an error if a Name that both Limits declare has different
// places in their trees of shares.
func (ls *Limits) sameTrees(other *Limits) error {
	for _, name := range other.order {
		was, is := ls.member(name), other.member(name)
		if was.sum, is.sum = 0, 0; ls.declares(name) && was != is {
			return fmt.Errorf("stint: %s: its Parent or Floor, or its place in a tree of shares, has changed: "+
				"open another Limiter", other.label(name))
		}
	}
	return nil
}

// checkShares adds up the floors. It reports floors that are above their
// ceilings, and floors that together are more than their total.
func (b *limitsBuilder) checkShares() {
	ls := b.ls
	for name, m := range ls.members {
		if m.role != classRole || m.floor == 0 {
			continue
		}
		if s := &ls.settings[m.floor]; s.rule != unlimited && (!s.shared || s.rule == blocked) {
			b.mistaken(m.floor, nil, "it is the floor of %s: want overrides for the ids that have one, "+
				"and no default", ls.label(Name(name)))
		}
		before := len(b.errs)
		count := make(map[uint32]int64) // floors by rule
		for id, rule := range ls.floors(m) {
			count[rule]++
			b.checkFloor(Name(name), id)
		}
		for rule, n := range count {
			r := &ls.rules[rule].rate
			ls.totals[m.sum].Add(n, r.burst, r.interval)
		}
		slices.SortFunc(b.errs[before:], func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	}
	for _, m := range ls.members {
		if m.role == totalRole {
			b.checkTotal(m)
		}
	}
}

// checkListed reports a floor that is Unlimited or Blocked.
func (b *limitsBuilder) checkListed(o Override) {
	if m := b.ls.member(o.Key.Name); m.role == floorRole && (o.Limit.IsUnlimited() || o.Limit.IsBlocked()) {
		b.mistaken(o.Key.Name, &o.Key, "a floor of %s is %v: want a limit", b.ls.label(m.class), o.Limit)
	}
}

// checkFloor reports a floor that is above its ceiling.
func (b *limitsBuilder) checkFloor(class Name, id string) {
	ls := b.ls
	floor := ls.member(class).floor.Key(id)
	f, err := ls.resolve(floor)
	c, err2 := ls.resolve(class.Key(id))
	if errors.Join(err, err2) != nil || f <= blocked || c <= blocked {
		return
	}
	low, high := &ls.rules[f], &ls.rules[c]
	if low.rate.burst > high.rate.burst {
		b.mistaken(floor.Name, &floor, "the burst for %s is %d, above that of the ceiling, %s: %d",
			spell.Quote(id), low.rate.burst, ls.label(class), high.rate.burst)
	}
	if low.rate.interval < high.rate.interval {
		b.mistaken(floor.Name, &floor, "the rate for %s, %v, is above that of the ceiling, %s: %v",
			spell.Quote(id), low.limit.WithBurst(low.limit.Count), ls.label(class), high.limit.WithBurst(high.limit.Count))
	}
}

// checkTotal reports floors that are more than their total.
func (b *limitsBuilder) checkTotal(m member) {
	ls := b.ls
	key := m.total.Key("")
	of, err := ls.resolve(key)
	if err != nil || of <= blocked {
		return
	}
	total, sum := &ls.rules[of], &ls.totals[m.sum]
	var labels []string
	for name := range ls.classes(m.sum) {
		labels = append(labels, ls.label(name))
	}
	classes := strings.Join(labels, " and ")
	if !sum.FitsBurst(total.rate.burst) {
		b.mistaken(m.total, &key, "the bursts of the floors of %s add up to %d: want less than its burst, %d",
			classes, sum.Burst(), total.rate.burst)
	}
	promised := func(yield func(*rule) bool) {
		for _, class := range ls.classes(m.sum) {
			for _, floor := range ls.floors(class) {
				if !yield(&ls.rules[floor]) {
					return
				}
			}
		}
	}
	intervals := func(yield func(int64) bool) {
		promised(func(r *rule) bool { return yield(r.rate.interval) })
	}
	if !sum.FitsRate(total.rate.interval, intervals) {
		rates := func(yield func(int64, int64) bool) {
			promised(func(r *rule) bool { return yield(r.limit.Count, int64(r.limit.Period)) })
		}
		l := total.limit
		tokens, more := share.Promised(l.Count, int64(l.Period), rates)
		text := fmt.Sprintf("the floors of %s add up to %s/%s: want no more than its %v", classes, tokens,
			spell.ShortPeriod(l.Period), l.WithBurst(l.Count))
		if !more {
			text += fmt.Sprintf(", rounded to a token each %v", l.Interval())
		}
		b.mistaken(m.total, &key, "%s", text)
	}
}

// recheckShares is checkShares after With has changed overrides.
func (b *limitsBuilder) recheckShares(old *Limits, changes []Override) {
	ls := b.ls
	ls.totals = slices.Clone(old.totals)
	totals := make(map[Name]member)
	ids, classes := make(map[Key]bool), make(map[Name]bool) // whose floors may be above their ceilings
	for _, c := range changes {
		m := ls.member(c.Key.Name)
		switch m.role {
		case totalRole:
			totals[c.Key.Name] = m
		case classRole:
			if ls.settings[c.Key.Name].leading == 0 {
				ids[c.Key] = true
			} else { // one override is the ceiling of many
				classes[c.Key.Name] = true
			}
		case floorRole:
			b.checkListed(c)
			sum := &ls.totals[m.sum]
			if rule, _ := old.resolve(c.Key); rule > blocked {
				sum.Add(-1, old.rules[rule].rate.burst, old.rules[rule].rate.interval)
			}
			if rule, _ := ls.resolve(c.Key); rule > blocked {
				sum.Add(1, ls.rules[rule].rate.burst, ls.rules[rule].rate.interval)
			}
			ids[m.class.Key(c.Key.ID)] = true
			totals[m.total] = ls.member(m.total)
		}
	}
	before := len(b.errs)
	for key := range ids {
		if !classes[key.Name] {
			b.checkFloor(key.Name, key.ID)
		}
	}
	for class := range classes {
		for id := range ls.floors(ls.member(class)) {
			b.checkFloor(class, id)
		}
	}
	slices.SortFunc(b.errs[before:], func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		b.checkTotal(totals[name])
	}
}

// mistaken reports a mistake in a tree of shares: in the override of a key, or
// in the default if there is none.
func (b *limitsBuilder) mistaken(name Name, override *Key, format string, args ...any) {
	m := &share.Mistake{Label: b.ls.label(name), Text: fmt.Sprintf(format, args...)}
	if override != nil {
		m.ID, m.OfID = override.ID, true
	}
	b.wrong(name, m)
}

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
