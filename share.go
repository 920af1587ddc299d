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

// role is the part that a Name has in a tree of shares.
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

// member returns the part of a Name. ls may be nil.
func (ls *Limits) member(name Name) member {
	if ls == nil || int(name) >= len(ls.members) {
		return member{}
	}
	return ls.members[name]
}

func (l *Limiter) isClass(name Name) bool {
	ls := l.limits.Load()
	return int(name) < len(ls.members) && ls.members[name].role == classRole
}

// kept returns the tokens that loans leave in a total.
func (ls *Limits) kept(total Name) int64 {
	if m := ls.member(total); m.role == totalRole {
		return ls.totals[m.sum].Burst()
	}
	return 0
}

// Share is what a limit with a Parent shares.
type Share struct {
	Total Key
	Floor Key   // zero if the id has no floor
	Kept  int64 // tokens that loans leave in the total: the bursts of all floors
}

// Share returns the buckets that a request for a key takes from besides its
// own. It returns false if the limit has no Parent.
func (ls *Limits) Share(key Key) (Share, bool) {
	m := ls.member(key.Name)
	if m.role != classRole {
		return Share{}, false
	}
	s := Share{Total: m.total.Key(""), Kept: ls.kept(m.total)}
	if floor, ok := ls.floorOf(m, key.ID); ok {
		s.Floor = floor
	}
	return s, true
}

// floorOf returns the floor of an id of a class.
func (ls *Limits) floorOf(m member, id string) (Key, bool) {
	if m.floor == 0 {
		return Key{}, false
	}
	key := m.floor.Key(id)
	rule, err := ls.resolve(key)
	return key, err == nil && rule > blocked
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

// sameTrees returns an error if a Name that both limits declare has another
// part in one than in the other.
func (ls *Limits) sameTrees(other *Limits) error {
	for name := range other.names {
		was, is := ls.member(name), other.member(name)
		if was.sum, is.sum = 0, 0; ls.declares(name) && was != is {
			return fmt.Errorf("stint: %s: its Parent or Floor, or what it is to others, has changed: "+
				"open another Limiter", other.label(name))
		}
	}
	return nil
}

// mistaken reports a mistake in a tree of shares, in a whole limit if there is
// no id.
func (b *limitsBuilder) mistaken(name Name, id []string, format string, args ...any) {
	m := &share.Mistake{Label: b.ls.label(name), Text: fmt.Sprintf(format, args...)}
	if len(id) > 0 {
		m.ID, m.OfID = id[0], true
	}
	b.wrong(name, m)
}

// plant sets the members of all trees, or reports their mistakes.
func (b *limitsBuilder) plant() {
	ls := b.ls
	set := func(name Name, m member) {
		for len(ls.members) <= int(name) {
			ls.members = append(ls.members, member{})
		}
		ls.members[name] = m
	}
	names := slices.Sorted(maps.Keys(ls.names))
	children, owners := make(map[Name]Name), make(map[Name]Name) // the first of each total and floor
	for _, name := range slices.Backward(names) {
		children[ls.names[name].Parent] = name
		owners[ls.names[name].Floor] = name
	}
	for _, name := range names {
		spec := ls.names[name]
		wrong := ls.names.wrongShare(name, children, owners)
		for _, text := range wrong {
			b.mistaken(name, nil, "%s", text)
		}
		if wrong != nil || spec.Parent == 0 {
			continue
		}
		total := ls.member(spec.Parent)
		if total.role == plainRole {
			total = member{role: totalRole, total: spec.Parent, sum: len(ls.totals)}
			ls.totals = append(ls.totals, share.Sum{})
			set(spec.Parent, total)
		}
		set(name, member{classRole, 0, spec.Floor, spec.Parent, total.sum})
		if spec.Floor != 0 {
			set(spec.Floor, member{floorRole, name, 0, spec.Parent, total.sum})
		}
	}
}

// wrongShare returns the mistakes in the Parent and Floor of a Name.
func (ns Names) wrongShare(name Name, children, owners map[Name]Name) (texts []string) {
	wrong := func(format string, args ...any) { texts = append(texts, fmt.Sprintf(format, args...)) }
	spec := ns[name]
	if spec.Parent != 0 {
		parent, declared := ns[spec.Parent]
		switch back := ns.backTo(name); {
		case !declared:
			wrong("its Parent, Name %d, is not declared", spec.Parent)
		case back != "":
			wrong("its Parent leads back to it: %s", back)
		case parent.Parent != 0:
			wrong("its Parent, %s, has a Parent: want two levels", parent.Label)
		}
		if declared && parent.ID != Shared {
			wrong("its Parent, %s, has ids of format %v: want stint.Shared", parent.Label, parent.format())
		}
	}
	if spec.Floor == 0 {
		return texts
	}
	floor, declared := ns[spec.Floor]
	switch {
	case !declared:
		wrong("its Floor, Name %d, is not declared", spec.Floor)
		return texts
	case spec.Floor == name || spec.Floor == spec.Parent:
		wrong("its Floor, %s, is itself or its Parent: want a limit of its own", floor.Label)
		return texts
	}
	if spec.Parent == 0 {
		wrong("it has a Floor and no Parent")
	}
	if floor.Parent != 0 || floor.Floor != 0 {
		wrong("its Floor, %s, has a Parent or a Floor: want a limit without", floor.Label)
	}
	if got, want := floor.format().String(), spec.format().String(); got != want || floor.Override != nil {
		wrong("its Floor, %s, has ids of format %s: want %s, and no Override", floor.Label, got, want)
	}
	if child, ok := children[spec.Floor]; ok {
		wrong("its Floor, %s, is the Parent of %s", floor.Label, ns[child].Label)
	}
	if owner := owners[spec.Floor]; owner != name {
		wrong("its Floor, %s, is that of %s, too", floor.Label, ns[owner].Label)
	}
	return texts
}

// backTo returns the way from a Name over its Parents back to it, or "".
func (ns Names) backTo(name Name) string {
	way := []string{ns[name].Label}
	for next := ns[name].Parent; next != 0 && len(way) <= len(ns); next = ns[next].Parent {
		if way = append(way, ns[next].Label); next == name {
			return strings.Join(way, ", ")
		}
	}
	return ""
}

// checkShares adds up the floors, and reports those that are above their
// ceilings or more than their total.
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
		for id, rule := range ls.floors(m) {
			r := &ls.rules[rule].rate
			ls.totals[m.sum].Add(r.burst, r.interval)
			b.checkFloor(Name(name), id)
		}
		slices.SortFunc(b.errs[before:], func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	}
	for _, m := range ls.members {
		if m.role == totalRole {
			b.checkTotal(m)
		}
	}
}

// checkListed reports an override that is no floor.
func (b *limitsBuilder) checkListed(name Name, id OverrideID, l Limit) {
	if m := b.ls.member(name); m.role == floorRole && (l == Unlimited || l == Blocked) {
		b.mistaken(name, []string{id.ID}, "a floor of %s is %v: want a limit", b.ls.label(m.class), l)
	}
}

// checkFloor reports a floor that is above its ceiling.
func (b *limitsBuilder) checkFloor(class Name, id string) {
	ls := b.ls
	floor := ls.member(class).floor
	f, err := ls.resolve(floor.Key(id))
	c, err2 := ls.resolve(class.Key(id))
	if errors.Join(err, err2) != nil || f <= blocked || c <= blocked {
		return
	}
	low, high := &ls.rules[f], &ls.rules[c]
	if low.rate.burst > high.rate.burst {
		b.mistaken(floor, []string{id}, "the burst for %s is %d, above that of the ceiling, %s: %d",
			spell.Quote(id), low.rate.burst, ls.label(class), high.rate.burst)
	}
	if low.rate.interval < high.rate.interval {
		b.mistaken(floor, []string{id}, "the rate for %s, %v, is above that of the ceiling, %s: %v",
			spell.Quote(id), low.limit.WithBurst(low.limit.Count), ls.label(class), high.limit.WithBurst(high.limit.Count))
	}
}

// checkTotal reports floors that are more than their total.
func (b *limitsBuilder) checkTotal(m member) {
	ls := b.ls
	rule, err := ls.resolve(m.total.Key(""))
	if err != nil || rule <= blocked {
		return
	}
	total, sum := &ls.rules[rule], &ls.totals[m.sum]
	var labels []string
	for name := range ls.classes(m.sum) {
		labels = append(labels, ls.label(name))
	}
	of := strings.Join(labels, " and ")
	if !sum.FitsBurst(total.rate.burst) {
		b.mistaken(m.total, nil, "the bursts of the floors of %s add up to %d: want less than its burst, %d",
			of, sum.Burst(), total.rate.burst)
	}
	intervals := func(yield func(int64) bool) {
		for _, class := range ls.classes(m.sum) {
			for _, rule := range ls.floors(class) {
				if !yield(ls.rules[rule].rate.interval) {
					return
				}
			}
		}
	}
	if !sum.FitsRate(total.rate.interval, intervals) {
		b.mistaken(m.total, nil, "the floors of %s add up to %.9g a second: want no more than its %v",
			of, sum.PerSecond(), total.limit.WithBurst(total.limit.Count))
	}
}

// recheckShares is checkShares after With has changed the limits of an id.
func (b *limitsBuilder) recheckShares(old *Limits, id OverrideID, limits map[Name]Limit) {
	ls := b.ls
	ls.totals = slices.Clone(old.totals)
	changed := make(map[Name]member) // totals, by Name
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		m := ls.member(name)
		canonical, err := ls.names.OverrideID(name, id.ID)
		if m.role == plainRole || err != nil {
			continue
		}
		switch m.role {
		case totalRole:
			changed[name] = m
		case classRole:
			if ls.settings[name].leading == 0 {
				b.checkFloor(name, canonical)
				break
			}
			for covered := range ls.floors(m) { // one override is the ceiling of many
				b.checkFloor(name, covered)
			}
		case floorRole:
			b.checkListed(name, id, limits[name])
			sum := &ls.totals[m.sum]
			if rule, _ := old.resolve(name.Key(canonical)); rule > blocked {
				sum.Remove(old.rules[rule].rate.burst, old.rules[rule].rate.interval)
			}
			if rule, _ := ls.resolve(name.Key(canonical)); rule > blocked {
				sum.Add(ls.rules[rule].rate.burst, ls.rules[rule].rate.interval)
			}
			if _, both := limits[m.class]; !both || ls.settings[m.class].leading != 0 {
				b.checkFloor(m.class, canonical)
			}
			changed[m.total] = ls.member(m.total)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		b.checkTotal(changed[name])
	}
}
