package stint

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/idmap"
	"github.com/stint-go/stint/internal/spell"
)

// Override is a limit of one id, in place of the default of its Name. A plan is
// a list of them, one for each Name that it changes.
type Override struct {
	Key     Key    // the id, or the leading part of it that NameSpec.OverrideIDs declares
	Limit   Limit  // the zero Limit removes an override
	Comment string // why, or until when
}

// Limits are the limits of a program, a default for each Name and overrides.
// They are immutable: With returns a copy, and Limiter.SetLimits replaces them.
type Limits struct {
	rules     []gcra.Rule // in the book when the Limits were made
	book      *rulebook   // shared with the results of With
	order     []Name      // all that are declared
	specs     []NameSpec  // by index in order
	settings  []settings  // by Name
	overrides []overrides // by index in order
}

// overrides has the overrides of one Name, by canonical id.
type overrides struct {
	rules    idmap.Map[uint32]
	comments idmap.Map[string] // the nonempty ones
}

// settings are what resolve needs to know about a Name.
type settings struct {
	declared, single bool
	lent             bool   // by Declare: SetLimits keeps it declared
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
	lists := make(map[Name][]*Override)
	for i := range overrides {
		o := &overrides[i]
		lists[o.Key.Name] = append(lists[o.Key.Name], o)
	}
	for i, name := range ls.order {
		l := ls.specs[i].Limit
		if l == (Limit{}) && lists[name] == nil {
			b.wrong(name, errors.New("it has no limit: give its NameSpec a Limit, or stint.Unlimited"))
		}
		ls.settings[name].rule = b.rule(name, nil, cmp.Or(l, Unlimited))
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		b.override(name, lists[name])
	}
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
	numbers := make(map[string]Name, len(ls.order))
	for i, name := range ls.order {
		numbers[ls.specs[i].Label] = name
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		spec := names[name]
		if number, ok := numbers[spec.Label]; ok && number != name {
			b.wrong(number, fmt.Errorf("%w: it is %d, not %d", ErrNameMismatch, number, name))
			continue
		}
		if with.declares(name) {
			with.settings[name].lent = true
			if with.label(name) != spec.Label {
				b.wrong(name, fmt.Errorf("%w: %d has this label, not %s", ErrNameMismatch, name, spell.Quote(spec.Label)))
			}
			continue
		}
		spec.Limit = Unlimited
		b.declare(name, spec)
		with.settings[name].lent = true
	}
	if errs := append(b.errs, with.Names().mistakes()...); errs != nil {
		return nil, errors.Join(errs...)
	}
	return &with, nil
}

// withLent returns the limits with the Names that Declare has added to old.
func (ls *Limits) withLent(old *Limits) (*Limits, error) {
	lent := make(Names)
	for i, name := range old.order {
		if old.settings[name].lent {
			lent[name] = NameSpec{Label: old.specs[i].Label, IDs: old.specs[i].IDs}
		}
	}
	if len(lent) == 0 {
		return ls, nil
	}
	return ls.withNames(lent)
}

// lends reports whether Declare has added all of the names, with these labels.
func (ls *Limits) lends(names Names) bool {
	for name, spec := range names {
		if !ls.declares(name) || !ls.settings[name].lent || ls.label(name) != spec.Label {
			return false
		}
	}
	return true
}

// With returns the limits with other overrides, such as another plan of an id.
// An override with the zero Limit removes the one of its Key. All others stay.
// The error is a ConfigError for each mistake, joined.
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
	s.declared, s.single = true, spec.IDs == Single
	s.index = uint32(len(b.ls.order))
	b.ls.order, b.ls.specs = append(b.ls.order, name), append(b.ls.specs, spec)
	b.ls.overrides = append(b.ls.overrides, overrides{})
	if spec.OverrideIDs != nil {
		s.leading = spell.Parts(spec.OverrideIDs)
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
	if mistakes == nil {
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
	for _, m := range mistakes {
		b.wrong(name, fmt.Errorf("%s%w", prefix, m))
	}
	return 0
}

// For returns the limit of a bucket: its override, or else the default. A key that a
// Limiter does not accept is Unlimited.
func (ls *Limits) For(key Key) (l Limit) {
	r, err := ls.resolve(key)
	if err != nil {
		return Unlimited
	}
	l.set(&ls.rules[r]) // a copy of what limitOf returns takes 11 of 33 ns
	return l
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
			if !yield(Override{name.Key(id), limitOf(&ls.rules[rule]), comment}) {
				return
			}
		}
	}
}

// Override returns the limit that an id has by an override: Unlimited and Blocked
// count, and the default of the Name does not. The id is in any spelling, as in an
// Override. It returns false if there is no override for it.
func (ls *Limits) Override(key Key) (Limit, bool) {
	spec, ok := ls.Spec(key.Name)
	if !ok {
		return Limit{}, false
	}
	id, err := spec.canonicalOverride(key.ID)
	if err != nil {
		return Limit{}, false
	}
	rule, ok := ls.overrides[ls.index(key.Name)].rules.Get(id)
	if !ok {
		return Limit{}, false
	}
	return limitOf(&ls.rules[rule]), true
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
	if (key.ID == "") != s.single || len(key.ID) > maxIDLen {
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

// inForce returns the limits for the cache.
func (ls *Limits) inForce() *cache.Limits {
	return &cache.Limits{Rules: ls.rules, Resolve: func(key cache.Key) (rule, byDefault uint32, err error) {
		rule, err = ls.resolve(Key{Name(key.Name), key.ID})
		if err == nil {
			byDefault = ls.settings[key.Name].rule
		}
		return rule, byDefault, err
	}}
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
