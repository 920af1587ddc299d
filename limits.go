package stint

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/idmap"
	"github.com/stint-go/stint/internal/share"
	"github.com/stint-go/stint/internal/spell"
)

// Override is a limit that holds for some ids instead of the default.
type Override struct {
	IDs   []OverrideID
	Limit Limit
}

// OverrideID is an id of an Override, with a comment: why, or until when.
type OverrideID struct{ ID, Comment string }

// Group is a list of ids that have several limits in common, such as those of a
// plan.
type Group struct {
	IDs    []OverrideID
	Limits map[Name]Limit
}

// Groups returns the overrides of the groups, as NewLimits takes them: an id may
// be in several groups if these have no Name in common.
func Groups(groups ...Group) map[Name][]Override {
	overrides := make(map[Name][]Override)
	for _, g := range groups {
		for name, l := range g.Limits {
			overrides[name] = append(overrides[name], Override{g.IDs, l})
		}
	}
	return overrides
}

// Limits are the limits of a program, a default for each Name and overrides.
// They are immutable: With returns a copy, and Limiter.SetLimits replaces them.
type Limits struct {
	names     Names
	order     []Name      // all that are declared
	rules     []rule      // in the book when the Limits were made
	book      *rulebook   // shared with the results of With
	settings  []settings  // by Name
	overrides []overrides // by index in order
	members   []member    // by Name; nil if no limit has a Parent
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

// rulebook has each limit once. A rule keeps its index, so an index means the
// same rule under all Limits that share the book.
type rulebook struct {
	mu    sync.Mutex
	rules []rule // append-only
	index map[Limit]uint32
}

// number returns the index of a limit, and all rules.
func (b *rulebook) number(l Limit) (uint32, []rule) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, known := b.index[l]
	if !known {
		r, _, _ := gcra.New(l.Burst, l.Count, int64(l.Period))
		i = uint32(len(b.rules))
		b.index[l] = i
		b.rules = append(b.rules, rule{l, r})
	}
	return i, b.rules
}

// NewLimits returns the limits with these defaults and overrides, or a
// ConfigError for each mistake, joined.
//
// The default of a Name is the one in defaults or, if it is not there, the
// Limit of its NameSpec. Unlimited in either means no limit. A Name with
// neither is a mistake, unless it has overrides: then its other ids are not
// limited.
func NewLimits(
	names Names, defaults map[Name]Limit, overrides map[Name][]Override,
) (*Limits, error) {
	book := &rulebook{
		rules: []rule{unlimited: {}, blocked: {limit: Blocked}},
		index: map[Limit]uint32{Unlimited: unlimited, Blocked: blocked},
	}
	ls := &Limits{names: maps.Clone(names), rules: book.rules, book: book}
	b := limitsBuilder{ls, names.mistakes()}
	var trees int
	var wrong map[uint16][]string
	ls.members, trees, wrong = names.members()
	ls.totals = make([]share.Sum, trees)
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		for _, text := range wrong[name] {
			b.mistaken(Name(name), nil, "%s", text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		spec := names[name]
		l, given := defaults[name]
		if !given {
			l = cmp.Or(spec.Limit, Unlimited)
		}
		isFloor := ls.member(name).role == floorRole // without a limit it promises nothing
		if !given && spec.Limit == (Limit{}) && len(overrides[name]) == 0 && !isFloor {
			b.wrong(name, errors.New("it has no limit: give its NameSpec a Limit, or stint.Unlimited"))
		}
		b.declare(name, spec, l)
	}
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		if !ls.declares(name) {
			b.wrong(name, fmt.Errorf("%w %d has a default", ErrUnknownName, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		b.override(name, overrides[name])
	}
	b.checkShares()
	if b.errs != nil {
		return nil, errors.Join(b.errs...)
	}
	return ls, nil
}

// With returns the limits with other overrides of one id, such as another plan.
// limits has the new override of the id for each Name, and the zero Limit
// removes an override. The overrides of other Names stay. The error is a
// ConfigError for each mistake, joined.
//
// With takes microseconds, however many ids there are, because both Limits share
// what they have in common. A limit that is new to them takes 250 bytes, which
// are freed with the last of these Limits.
func (ls *Limits) With(id OverrideID, limits map[Name]Limit) (*Limits, error) {
	other := *ls
	other.overrides = slices.Clone(ls.overrides)
	b := limitsBuilder{ls: &other}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		canonical, err := ls.names.OverrideID(name, id.ID)
		if err != nil {
			b.wrong(name, err)
			continue
		}
		o := &other.overrides[ls.index(name)]
		if o.comments = o.comments.Without(canonical); id.Comment != "" {
			o.comments = o.comments.With(canonical, id.Comment)
		}
		if l := limits[name]; l != (Limit{}) {
			o.rules = o.rules.With(canonical, b.rule(name, "", l))
		} else {
			o.rules, o.comments = o.rules.Without(canonical), o.comments.Without(canonical)
		}
	}
	b.recheckShares(ls, id, limits)
	if b.errs != nil {
		return nil, errors.Join(b.errs...)
	}
	return &other, nil
}

// DividedBy returns the part of the limit that each of n machines may use by
// itself: the burst ÷ n, at least 1, and n times the interval. All n together use
// no more than the limit, or than n tokens at once if its burst is less than n.
// If n divides the burst, an empty bucket refills in the same time. So two
// buckets that are full at the same instant, one of each limit, have the same
// fraction of their bursts. Unlimited and Blocked stay as they are.
func (l Limit) DividedBy(n int64) Limit {
	interval := int64(l.Interval())
	if n <= 1 || interval == 0 {
		return l
	}
	l.Burst = max(1, l.Burst/n)
	if n > gcra.MaxTolerance/interval { // then the new burst is 1
		l.Count, l.Period = 1, gcra.MaxTolerance
	} else if int64(l.Period) == l.Count*interval && n <= math.MaxInt64/int64(l.Period) {
		l.Period *= time.Duration(n)
	} else {
		l.Count, l.Period = 1, time.Duration(n*interval)
	}
	if l.Queue > 0 {
		l.Queue = max(1, l.Queue/n)
	}
	return l
}

type limitsBuilder struct {
	ls   *Limits
	errs []error
}

func (b *limitsBuilder) declare(name Name, spec NameSpec, l Limit) {
	for len(b.ls.settings) <= int(name) {
		b.ls.settings = append(b.ls.settings, settings{})
	}
	s := &b.ls.settings[name]
	s.declared, s.shared = true, spec.ID == Shared
	s.index = uint32(len(b.ls.order))
	b.ls.order = append(b.ls.order, name)
	b.ls.overrides = append(b.ls.overrides, overrides{})
	if spec.Override != nil {
		s.leading = parts(spec.Override)
	}
	s.rule = b.rule(name, "", l)
}

func (b *limitsBuilder) override(name Name, given []Override) {
	if !b.ls.declares(name) {
		b.wrong(name, fmt.Errorf("%w %d has an override", ErrUnknownName, name))
		return
	}
	var rules idmap.Builder[uint32]
	var comments idmap.Builder[string]
	for i, o := range given {
		rule := b.rule(name, fmt.Sprintf("override %d: ", i+1), o.Limit)
		if len(o.IDs) == 0 {
			b.wrong(name, fmt.Errorf("override %d: it has no ids", i+1))
		}
		for _, given := range o.IDs {
			b.checkListed(name, given, o.Limit)
			id, err := b.ls.names.OverrideID(name, given.ID)
			if err == nil && !rules.Put(id, rule) {
				err = fmt.Errorf("id %s is overridden already, as %s", spell.Quote(given.ID), spell.Quote(id))
			}
			if err != nil {
				b.wrong(name, err)
			} else if given.Comment != "" {
				comments.Put(id, given.Comment)
			}
		}
	}
	b.ls.overrides[b.ls.index(name)] = overrides{rules.Map(), comments.Map()}
}

func (b *limitsBuilder) wrong(name Name, err error) {
	b.errs = append(b.errs, &ConfigError{Label: b.ls.label(name), Err: err})
}

// rule returns the index of the limit in the rules, or reports its mistakes.
func (b *limitsBuilder) rule(name Name, of string, l Limit) (index uint32) {
	mistakes := l.mistakes()
	for _, m := range mistakes {
		b.wrong(name, fmt.Errorf("%s%w", of, m))
	}
	if mistakes == nil {
		index, b.ls.rules = b.ls.book.number(l)
	}
	return index
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

// Default returns the limit of ids without an override. It returns false if
// they are unlimited, or if the Name is not declared.
func (ls *Limits) Default(name Name) (Limit, bool) {
	if !ls.declares(name) || ls.settings[name].rule == unlimited {
		return Limit{}, false
	}
	return ls.rules[ls.settings[name].rule].limit, true
}

// Names returns a copy of the declared Names.
func (ls *Limits) Names() Names { return maps.Clone(ls.names) }

// Overrides returns the ids that have an override, in their canonical spelling
// and sorted, with the limit of each. It sorts at each call: a million ids take
// a second.
func (ls *Limits) Overrides(name Name) iter.Seq2[OverrideID, Limit] {
	return func(yield func(OverrideID, Limit) bool) {
		if !ls.declares(name) {
			return
		}
		o := &ls.overrides[ls.index(name)]
		for _, id := range slices.Sorted(o.rules.IDs()) {
			rule, _ := o.rules.Get(id)
			comment, _ := o.comments.Get(id)
			if !yield(OverrideID{id, comment}, cmp.Or(ls.rules[rule].limit, Unlimited)) {
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
		_, err := spell.Finish(ls.names[key.Name].format(), key.ID, key.ID, nil)
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

// accepts reports whether ls is not nil and resolves the key.
func (ls *Limits) accepts(key Key) bool {
	if ls == nil {
		return false
	}
	_, err := ls.resolve(key)
	return err == nil
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

func (ls *Limits) declares(name Name) bool {
	return int(name) < len(ls.settings) && ls.settings[name].declared
}

// index returns the index of a declared Name in ls.order.
func (ls *Limits) index(name Name) uint32 { return ls.settings[name].index }

// label returns the label of the Name, or "" if it is not declared.
func (ls *Limits) label(name Name) string { return ls.names[name].Label }
