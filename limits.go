package stint

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Override is a limit that holds for some ids in place of the default.
type Override struct {
	IDs   []OverrideID
	Limit Limit
}

// OverrideID is an id that an Override holds for, and a comment: why, or until when.
type OverrideID struct{ ID, Comment string }

// Limits are the limits of a program: a default for each Name, and overrides. They do not change; a Limiter can be given
// others.
type Limits struct {
	names     Names
	order     []Name     // the declared
	rules     []rule     // each limit once; the first is none: off
	settings  []settings // by Name
	overrides []override // by label, then id
}

// rule is one limit, ready for the arithmetic.
type rule struct {
	limit Limit
	rate  rate
}

// settings are what resolve needs to know of a Name.
type settings struct {
	declared, shared bool
	index            uint32            // in Limits.order
	rule             uint32            // of ids without an override
	leading          int               // the parts of an id that an override names; 0 where it names all of it
	overrides        map[string]uint32 // rule by canonical id
}

// override is one id's, as DumpOverrides writes it.
type override struct {
	label, id, comment string
	rule               uint32
}

// NewLimits returns the limits with these defaults and overrides. A declared Name that has neither is off. What is wrong
// is returned all at once, as ConfigErrors, joined.
func NewLimits(names Names, defaults map[Name]Limit, overrides map[Name][]Override) (*Limits, error) {
	b := limitsBuilder{
		ls:    &Limits{names: maps.Clone(names), rules: make([]rule, 1)},
		rules: make(map[Limit]uint32),
		errs:  names.mistakes(),
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		b.declare(name, names[name])
	}
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		b.setDefault(name, defaults[name])
	}
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		for i, o := range overrides[name] {
			b.addOverride(name, i+1, o)
		}
	}
	if b.errs != nil {
		return nil, joinErrors(b.errs)
	}
	slices.SortFunc(b.ls.overrides, func(x, y override) int {
		return cmp.Or(strings.Compare(x.label, y.label), strings.Compare(x.id, y.id))
	})
	return b.ls, nil
}

type limitsBuilder struct {
	ls    *Limits
	rules map[Limit]uint32
	errs  []*ConfigError
}

func (b *limitsBuilder) declare(name Name, spec NameSpec) {
	for len(b.ls.settings) <= int(name) {
		b.ls.settings = append(b.ls.settings, settings{})
	}
	s := &b.ls.settings[name]
	s.declared, s.shared = true, isShared(spec.ID)
	s.index = uint32(len(b.ls.order))
	b.ls.order = append(b.ls.order, name)
	if spec.Override != nil {
		s.leading = parts(spec.Override)
	}
}

func (b *limitsBuilder) setDefault(name Name, l Limit) {
	if !b.ls.declares(name) {
		b.wrong(name, fmt.Errorf("%w %d has a default", ErrUnknownName, name))
		return
	}
	for _, m := range l.mistakes() {
		b.wrong(name, m)
	}
	b.ls.settings[name].rule = b.rule(l)
}

func (b *limitsBuilder) addOverride(name Name, number int, o Override) {
	if !b.ls.declares(name) {
		b.wrong(name, fmt.Errorf("%w %d has an override", ErrUnknownName, name))
		return
	}
	for _, m := range o.Limit.mistakes() {
		b.wrong(name, fmt.Errorf("override %d: %w", number, m))
	}
	if len(o.IDs) == 0 {
		b.wrong(name, fmt.Errorf("override %d: it has no ids", number))
	}
	s, r := &b.ls.settings[name], b.rule(o.Limit)
	if s.overrides == nil {
		s.overrides = make(map[string]uint32)
	}
	for _, given := range o.IDs {
		id, err := b.ls.names.overrideID(name, given.ID)
		if _, twice := s.overrides[id]; err == nil && twice {
			err = fmt.Errorf("id %s is overridden already, as %s", quote(given.ID), quote(id))
		}
		if err != nil {
			b.wrong(name, err)
			continue
		}
		s.overrides[id] = r
		b.ls.overrides = append(b.ls.overrides, override{b.ls.label(name), id, given.Comment, r})
	}
}

func (b *limitsBuilder) wrong(name Name, err error) {
	b.errs = append(b.errs, &ConfigError{Label: b.ls.label(name), Err: err})
}

// rule returns the index of the limit among the rules.
func (b *limitsBuilder) rule(l Limit) uint32 {
	i, known := b.rules[l]
	if !known {
		r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
		i = uint32(len(b.ls.rules))
		b.rules[l] = i
		b.ls.rules = append(b.ls.rules, rule{l, r})
	}
	return i
}

// For returns the limit that a bucket is held to: an override, or else the default. Where there is none, or the key is
// not one that a Limiter takes, it returns false.
func (ls *Limits) For(key Key) (Limit, bool) {
	r, err := ls.resolve(key)
	if err != nil || r == 0 {
		return Limit{}, false
	}
	return ls.rules[r].limit, true
}

// Default returns the limit of ids that no override names. Where there is none it returns false.
func (ls *Limits) Default(name Name) (Limit, bool) {
	if !ls.declares(name) {
		return Limit{}, false
	}
	r := ls.settings[name].rule
	return ls.rules[r].limit, r != 0
}

// Names returns what the program declared, as a copy.
func (ls *Limits) Names() Names { return maps.Clone(ls.names) }

// DumpOverrides writes the overrides as CSV, sorted: name,id,count,burst,period,comment, with ids in their canonical
// spelling.
func (ls *Limits) DumpOverrides(w io.Writer) error {
	c := csv.NewWriter(w)
	c.Write([]string{"name", "id", "count", "burst", "period", "comment"})
	for _, o := range ls.overrides {
		l := ls.rules[o.rule].limit
		count, burst := strconv.FormatInt(l.Count, 10), strconv.FormatInt(l.Burst, 10)
		c.Write([]string{o.label, o.id, count, burst, shortPeriod(l.Period), o.comment})
	}
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("stint: dump overrides: %w", err)
	}
	return nil
}

// resolve returns the index in ls.rules of the limit that applies to a key, 0 where none is configured. The error is
// ErrUnknownName or ErrInvalidID.
func (ls *Limits) resolve(key Key) (uint32, error) {
	if !ls.declares(key.Name) {
		return 0, fmt.Errorf("%w %d", ErrUnknownName, key.Name)
	}
	s := &ls.settings[key.Name]
	if (key.ID == "") != s.shared || len(key.ID) > maxIDLen {
		return 0, ls.refuse(key)
	}
	if s.overrides != nil {
		if id, ok := leading(key.ID, s.leading); ok {
			if r, ok := s.overrides[id]; ok {
				return r, nil
			}
		}
	}
	return s.rule, nil
}

// refuse returns why the length of an id is wrong.
func (ls *Limits) refuse(key Key) error {
	why := checkLen(key.ID)
	if ls.settings[key.Name].shared {
		why = errSharedID
	}
	return fmt.Errorf("%w (%s)", &idError{key.ID, ls.names[key.Name].format(), why}, ls.label(key.Name))
}

func (ls *Limits) declares(name Name) bool {
	return int(name) < len(ls.settings) && ls.settings[name].declared
}

// index returns the place of a declared Name in ls.order.
func (ls *Limits) index(name Name) uint32 { return ls.settings[name].index }

// label returns how a limits file calls the Name, "" where it is not declared.
func (ls *Limits) label(name Name) string { return ls.names[name].Label }

// leading returns the first parts of an id, all of it for 0. ok is false where it has no more than that.
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
