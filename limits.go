package stint

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/stint-go/stint/internal/idmap"
	"github.com/stint-go/stint/internal/share"
	"github.com/stint-go/stint/internal/spell"
)

// Override is a limit of one id, in place of the default of its Name. A plan is
// a list of them, one for each Name that it changes.
type Override struct {
	Key     Key    // the id, or the leading part of it that NameSpec.Override declares
	Limit   Limit  // the zero Limit removes an override
	Comment string // why, or until when
}

// Limits are the limits of a program, a default for each Name and overrides.
// They are immutable: With returns a copy, and Limiter.SetLimits replaces them.
type Limits struct {
	rules     []rule      // in the book when the Limits were made
	members   []member    // by Name; nil if no limit has a Parent
	book      *rulebook   // shared with the results of With
	order     []Name      // all that are declared
	specs     []NameSpec  // by index in order
	settings  []settings  // by Name
	overrides []overrides // by index in order
	totals    []share.Sum // of the floors of each total
}

// overrides has the overrides of one Name, by canonical id.
type overrides struct {
	rules    idmap.Map[uint32]
	comments idmap.Map[string] // the nonempty ones
}

// settings are what resolve needs to know about a Name.
type settings struct {
	declared, shared bool
	index            uint32 // in Limits.order
	rule             uint32 // of ids without an override
	leading          int    // parts that an override names; 0 means all
}

// The indices of the rules without arithmetic, which need no bucket.
const (
	unlimited uint32 = iota
	blocked
)

// NewLimits returns the limits with these overrides, or a ConfigError for each
// mistake, joined. Ids are in any spelling of their format.
//
// The default of a Name is the Limit of its NameSpec, or none if that is
// Unlimited. A Name without a Limit is a mistake, unless it has overrides: then
// its other ids are not limited.
func NewLimits(names Names, overrides ...Override) (*Limits, error) {
	book := newRulebook()
	ls := &Limits{rules: book.rules, book: book}
	b := limitsBuilder{ls, names.mistakes()}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		b.declare(name, names[name])
	}
	var trees int
	var wrong map[Name][]string
	ls.members, trees, wrong = names.members()
	ls.totals = make([]share.Sum, trees)
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		for _, text := range wrong[name] {
			b.mistaken(name, nil, "%s", text)
		}
	}
	lists := make(map[Name][]*Override)
	for i := range overrides {
		o := &overrides[i]
		lists[o.Key.Name] = append(lists[o.Key.Name], o)
	}
	for i, name := range ls.order {
		l := ls.specs[i].Limit
		isFloor := ls.member(name).role == floorRole // without a limit it promises nothing
		if l == (Limit{}) && lists[name] == nil && !isFloor {
			b.wrong(name, errors.New("it has no limit: give its NameSpec a Limit, or stint.Unlimited"))
		}
		ls.settings[name].rule = b.rule(name, nil, cmp.Or(l, Unlimited))
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		b.override(name, lists[name])
	}
	b.checkShares()
	if b.errs != nil {
		return nil, errors.Join(b.errs...)
	}
	book.tidyAt = max(minTidy, 2*len(ls.rules))
	return ls, nil
}

// withNames returns the limits with Names that are not declared yet. They have
// no limit: they are for requests that bring their own. The other Names, and all
// limits, stay as they are. The error is a ConfigError for each mistake, joined. A
// number that is declared under another label is ErrNameMismatch.
func (ls *Limits) withNames(names Names) (*Limits, error) {
	with := *ls
	with.settings, with.overrides = slices.Clone(ls.settings), slices.Clone(ls.overrides)
	with.order, with.specs = slices.Clone(ls.order), slices.Clone(ls.specs)
	b := limitsBuilder{ls: &with}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		spec := names[name]
		if with.declares(name) {
			if with.label(name) != spec.Label {
				b.wrong(name, fmt.Errorf("%w: %d has this label, not %s", ErrNameMismatch, name, spell.Quote(spec.Label)))
			}
			continue
		}
		spec.Limit = Unlimited
		b.declare(name, spec)
		if spec.Parent != 0 || spec.Floor != 0 {
			b.wrong(name, errors.New("it has a Parent or a Floor: declare it with NewLimits"))
		}
	}
	if errs := append(b.errs, with.Names().mistakes()...); errs != nil {
		return nil, errors.Join(errs...)
	}
	return &with, nil
}

// With returns the limits with other overrides, such as another plan of an id.
// An override with the zero Limit removes the one of its Key. All others stay.
// The error is a ConfigError for each mistake, joined. With checks the limits
// that come of it, and nothing in between: tokens can move from one floor to
// another even if the total is promised to the last token.
//
// With takes microseconds, however many ids there are, because both Limits share
// what they have in common. A limit that is new to them takes 250 bytes. When a
// thousand such limits have come, and no more than half of all are still in use,
// one call looks at all overrides and drops the others. There are at most 2²⁷
// different limits.
func (ls *Limits) With(overrides ...Override) (*Limits, error) {
	other, _, err := ls.tidied().with(overrides)
	return other, err
}

// with is With, with the same rulebook. It also returns the overrides with
// canonical ids.
func (ls *Limits) with(overrides []Override) (*Limits, []Override, error) {
	other := *ls
	other.overrides = slices.Clone(ls.overrides)
	b := limitsBuilder{ls: &other}
	changes := b.canonical(overrides)
	for _, c := range changes {
		o := &other.overrides[ls.index(c.Key.Name)]
		if o.comments = o.comments.Without(c.Key.ID); c.Comment != "" {
			o.comments = o.comments.With(c.Key.ID, c.Comment)
		}
		if c.Limit != (Limit{}) {
			o.rules = o.rules.With(c.Key.ID, b.rule(c.Key.Name, &c.Key, c.Limit))
		} else {
			o.rules, o.comments = o.rules.Without(c.Key.ID), o.comments.Without(c.Key.ID)
		}
	}
	b.recheckShares(ls, changes)
	if b.errs != nil {
		return nil, nil, errors.Join(b.errs...)
	}
	return &other, changes, nil
}

// canonical returns the overrides with canonical ids, in order of the Names and
// ids, so that the same overrides in another order have the same mistakes.
func (b *limitsBuilder) canonical(overrides []Override) []Override {
	all := slices.Clone(overrides)
	slices.SortFunc(all, func(x, y Override) int { return x.Key.compare(y.Key) })
	seen := make(map[Key]bool, len(all))
	good := all[:0]
	for _, o := range all {
		given := o.Key
		var err error
		if spec, ok := b.ls.Spec(given.Name); ok {
			o.Key.ID, err = spec.canonicalOverride(given.ID)
		} else {
			err = notDeclared(given.Name, given.ID)
		}
		if err == nil && seen[o.Key] {
			err = overriddenTwice(given, o.Key)
		}
		if err != nil {
			b.wrong(given.Name, err)
			continue
		}
		seen[o.Key] = true
		good = append(good, o)
	}
	return good
}

func overriddenTwice(given, canonical Key) error {
	return fmt.Errorf("id %s is overridden already, as %s", spell.Quote(given.ID), spell.Quote(canonical.ID))
}

type limitsBuilder struct {
	ls   *Limits
	errs []error
}

// declare enters a Name, for which there is no limit yet.
func (b *limitsBuilder) declare(name Name, spec NameSpec) {
	for len(b.ls.settings) <= int(name) {
		b.ls.settings = append(b.ls.settings, settings{})
	}
	s := &b.ls.settings[name]
	s.declared, s.shared = true, spec.ID == Shared
	s.index = uint32(len(b.ls.order))
	b.ls.order, b.ls.specs = append(b.ls.order, name), append(b.ls.specs, spec)
	b.ls.overrides = append(b.ls.overrides, overrides{})
	if spec.Override != nil {
		s.leading = parts(spec.Override)
	}
}

// override enters the overrides of one Name.
func (b *limitsBuilder) override(name Name, list []*Override) {
	if !b.ls.declares(name) {
		b.wrong(name, fmt.Errorf("%w %d has an override", ErrUnknownName, name))
		return
	}
	spec := b.ls.specs[b.ls.index(name)]
	var rules idmap.Builder[uint32]
	var comments idmap.Builder[string]
	for _, o := range list {
		b.checkListed(*o)
		rule := b.rule(name, &o.Key, o.Limit)
		id, err := spec.canonicalOverride(o.Key.ID)
		if err == nil && !rules.Put(id, rule) {
			err = overriddenTwice(o.Key, name.Key(id))
		}
		if err != nil {
			b.wrong(name, err)
		} else if o.Comment != "" {
			comments.Put(id, o.Comment)
		}
	}
	b.ls.overrides[b.ls.index(name)] = overrides{rules.Map(), comments.Map()}
}

func (b *limitsBuilder) wrong(name Name, err error) {
	b.errs = append(b.errs, &ConfigError{Label: b.ls.label(name), Err: err})
}

// rule returns the index of the limit in the rules, or reports its mistakes: of
// the override of a key, or of the default if there is none.
func (b *limitsBuilder) rule(name Name, override *Key, l Limit) (index uint32) {
	mistakes := l.mistakes()
	onCalendar := l.FollowsCalendar() && b.ls.member(name).role != plainRole
	if mistakes == nil && !onCalendar {
		var err error
		if index, b.ls.rules, err = b.ls.book.number(l); err != nil {
			b.wrong(name, err)
		}
		return index
	}
	prefix := ""
	if override != nil {
		prefix = fmt.Sprintf("override of %s: ", spell.Quote(override.ID))
	}
	if onCalendar {
		b.mistaken(name, override, "%s%v follows the calendar: a total, its shares and its floors are rates",
			prefix, l)
		return 0
	}
	for _, m := range mistakes {
		b.wrong(name, fmt.Errorf("%s%w", prefix, m))
	}
	return 0
}

// For returns the limit of a bucket: its override, or else the default. It
// returns false if the bucket is unlimited, or if a Limiter does not accept the
// key.
func (ls *Limits) For(key Key) (Limit, bool) {
	r, err := ls.resolve(key)
	if err != nil || r == unlimited {
		return Limit{}, false
	}
	return ls.rules[r].limit, true
}

// Spec returns the declaration of a Name, whose Limit is that of ids without an
// override. It returns false if the Name is not declared. It copies no map, as
// Names does.
func (ls *Limits) Spec(name Name) (NameSpec, bool) {
	if !ls.declares(name) {
		return NameSpec{}, false
	}
	return ls.specs[ls.index(name)], true
}

// Names returns the declared Names, in a map that is the caller's.
func (ls *Limits) Names() Names {
	names := make(Names, len(ls.order))
	for i, name := range ls.order {
		names[name] = ls.specs[i]
	}
	return names
}

// Overrides returns the overrides of a Name, with ids in their canonical
// spelling and sorted. It sorts at each call: a million ids take a second.
func (ls *Limits) Overrides(name Name) iter.Seq[Override] {
	return func(yield func(Override) bool) {
		if !ls.declares(name) {
			return
		}
		o := &ls.overrides[ls.index(name)]
		for _, id := range slices.Sorted(o.rules.IDs()) {
			rule, _ := o.rules.Get(id)
			comment, _ := o.comments.Get(id)
			if !yield(Override{name.Key(id), cmp.Or(ls.rules[rule].limit, Unlimited), comment}) {
				return
			}
		}
	}
}

// CountOverrides returns the number of ids that have an override.
func (ls *Limits) CountOverrides(name Name) int {
	if !ls.declares(name) {
		return 0
	}
	return ls.overrides[ls.index(name)].rules.Len()
}

// resolve returns the index in ls.rules of the limit that applies to a key. The
// error is ErrUnknownName or ErrInvalidID.
func (ls *Limits) resolve(key Key) (uint32, error) {
	if !ls.declares(key.Name) {
		return 0, fmt.Errorf("%w %d", ErrUnknownName, key.Name)
	}
	s := &ls.settings[key.Name]
	if (key.ID == "") != s.shared || len(key.ID) > maxIDLen {
		_, err := spell.Finish(ls.specs[s.index].format(), key.ID, key.ID, nil)
		return 0, fmt.Errorf("%w (%s)", err, ls.label(key.Name))
	}
	if o := &ls.overrides[s.index].rules; o.Len() > 0 {
		if id, ok := leading(key.ID, s.leading); ok {
			if r, ok := o.Get(id); ok {
				return r, nil
			}
		}
	}
	return s.rule, nil
}

// leading returns the first parts of an id, or all of it if parts is 0. ok is
// false if the id has no further part.
func leading(id string, parts int) (first string, ok bool) {
	if parts == 0 {
		return id, true
	}
	for i := range len(id) {
		if id[i] == ':' {
			parts--
		}
		if parts == 0 {
			return id[:i], true
		}
	}
	return "", false
}

// accepts reports whether ls is not nil and resolves the key.
func (ls *Limits) accepts(key Key) bool {
	if ls == nil {
		return false
	}
	_, err := ls.resolve(key)
	return err == nil
}

func (ls *Limits) declares(name Name) bool {
	return int(name) < len(ls.settings) && ls.settings[name].declared
}

// index returns the index of a declared Name in ls.order.
func (ls *Limits) index(name Name) uint32 { return ls.settings[name].index }

// label returns the label of the Name, or "" if it is not declared.
func (ls *Limits) label(name Name) string {
	if !ls.declares(name) {
		return ""
	}
	return ls.specs[ls.index(name)].Label
}

// labeled returns a key as errors have it: "Logins:bob", or "Total" without an
// id. A Name that is not declared stays a number.
func (ls *Limits) labeled(key Key) string {
	return spell.Bucket(ls.label(key.Name), uint16(key.Name), key.ID)
}
