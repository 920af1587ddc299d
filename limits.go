package stint

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/spell"
)

// Durability is what a decision waits for, and so what a crash may forget.
// After Close nothing is forgotten at any level.
type Durability uint8

// The levels, weakest first. The zero Durability means the Limiter's default.
const (
	Memory  Durability = iota + 1 // a crash may forget everything
	Flushed                       // a crash may forget what was spent since the last flush
	Leased                        // a crash forgets nothing, and may withhold one lease of each bucket
	Synced                        // a crash forgets nothing and withholds nothing
)

var durabilities = [...]string{"default", "memory", "flushed", "leased", "synced"}

// String returns the level as a limits file writes it; "default" for the zero
// Durability.
func (d Durability) String() string {
	if int(d) < len(durabilities) {
		return durabilities[d]
	}
	return "Durability(" + strconv.Itoa(int(d)) + ")"
}

// ParseDurability returns the level that is written memory, flushed, leased or
// synced.
func ParseDurability(s string) (Durability, error) {
	if i := slices.Index(durabilities[1:], s); i >= 0 {
		return Durability(i + 1), nil
	}
	return 0, fmt.Errorf("stint: durability is %s, want %s", spell.Quote(s), spell.WantDurability)
}

// Limit is how much may be spent: at most Burst tokens at once, and Count
// tokens in each Period as time goes on.
type Limit struct {
	Burst  int64         // tokens in a full bucket
	Count  int64         // tokens that return in a Period, evenly spread
	Period time.Duration // at least a nanosecond for each of Count

	Queue      int64      // most tokens that may queue; 0 means no bound
	Durability Durability // 0 means the Limiter's default
}

// Unlimited is the absence of a limit: all ids, or those of an Override, are
// always allowed.
var Unlimited = Limit{Burst: math.MaxInt64, Period: -1}

// PerSecond returns the limit of n in a second, which may come all at once.
func PerSecond(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Second} }

// PerMinute returns the limit of n in a minute, which may come all at once.
func PerMinute(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Minute} }

// PerHour returns the limit of n in an hour, which may come all at once.
func PerHour(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Hour} }

// PerDay returns the limit of n in 24 hours, which may come all at once.
func PerDay(n int64) Limit { return Limit{Burst: n, Count: n, Period: 24 * time.Hour} }

// WithinWindow returns the limit that admits at most n tokens in any window of
// that length, its end excluded, wherever it begins: for the quota of a server.
// PerMinute(n) admits 2n−1, a full bucket and what returns within the minute.
//
// Burst and the Count−1 tokens that return within a window are n together. So
// Burst is 1 + n/50, rounded down, and Count is n − n/50: in the long run the
// limit uses 98 % of n, and all of an n under 50. A larger Burst b would cost
// more of it: Limit{Burst: b, Count: n - b + 1, Period: period}.
func WithinWindow(n int64, period time.Duration) Limit {
	return Limit{Burst: 1 + n/50, Count: n - n/50, Period: period}
}

// WithBurst returns the limit with another Burst: 1 spaces requests evenly.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// ParseLimit returns the limit that is written count/period, such as "5/1m",
// "300/180m" or "2/1w". Its burst is the count, unless another one follows:
// "5/1m burst 20". A period may have weeks, days of 24 hours, then a Go
// duration.
func ParseLimit(s string) (Limit, error) {
	steady, burst, hasBurst := strings.Cut(s, " burst ")
	count, period, _ := strings.Cut(steady, "/")
	if !hasBurst {
		burst = count
	}
	l, errs := Limit{}, [3]error{}
	l.Burst, errs[0] = spell.Int(burst)
	l.Count, errs[1] = spell.Int(count)
	l.Period, errs[2] = spell.Period(period)
	switch wrong := l.mistakes(); {
	case errs == [3]error{} && wrong == nil:
		return l, nil
	case errs == [3]error{}:
		errs[2] = wrong[0]
	case errs[1] != nil || errs[2] == nil || period == "":
		errs[2] = errors.New("want count/period such as 5/1m, 300/3h or 1/1d burst 10")
	}
	return Limit{}, fmt.Errorf("stint: limit %s: %w", spell.Quote(s), errs[2])
}

// String returns the limit as ParseLimit reads it, without Queue and
// Durability: "300/3h", "5/1m burst 20". For Unlimited it returns "unlimited".
func (l Limit) String() string {
	if l == Unlimited {
		return "unlimited"
	}
	s := strconv.FormatInt(l.Count, 10) + "/" + spell.ShortPeriod(l.Period)
	if l.Burst != l.Count {
		s += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	return s
}

// Validate returns nil, or a ConfigError for each field that is out of range.
func (l Limit) Validate() error {
	var errs []error
	for _, m := range l.mistakes() {
		errs = append(errs, &ConfigError{Err: m})
	}
	return errors.Join(errs...)
}

// Interval returns T, the time in which one token returns: Period ÷ Count,
// rounded up to a nanosecond. It is 0 for a limit that is not valid.
func (l Limit) Interval() time.Duration {
	r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.interval)
}

// Tolerance returns τ, the time in which an empty bucket refills: Burst times
// the Interval. It is 0 for a limit that is not valid.
func (l Limit) Tolerance() time.Duration {
	r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.tolerance)
}

// mistakes returns the fields that are out of range.
func (l Limit) mistakes() (errs []*spell.FieldError) {
	if l == Unlimited {
		return nil
	}
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, &spell.FieldError{Field: field, Value: fmt.Sprint(value), Want: want})
		}
	}
	check(l.Burst >= 1, "burst", l.Burst, "at least 1")
	check(l.Count >= 1, "count", l.Count, "at least 1")
	check(l.Period >= 1, "period", spell.ShortPeriod(l.Period), "more than 0")
	if errs == nil { // each field is in range: one may be too large for the others
		_, field, want := newRate(l.Burst, l.Count, int64(l.Period))
		check(field != "burst", field, l.Burst, want)
		check(field != "count", field, l.Count, want)
	}
	check(l.Queue >= 0, "queue", l.Queue, "0 or more")
	check(l.Durability <= Synced, "durability", l.Durability, spell.WantDurability)
	return errs
}

// Override is a limit that holds for some ids instead of the default.
type Override struct {
	IDs   []OverrideID
	Limit Limit
}

// OverrideID is an id of an Override, with a comment: why, or until when.
type OverrideID struct{ ID, Comment string }

// Limits are the limits of a program, a default for each Name and overrides.
// They are immutable: Limiter.SetLimits replaces them.
type Limits struct {
	names     Names
	order     []Name              // the declared
	rules     []rule              // each limit once; rule 0 is zero: unlimited
	settings  []settings          // by Name
	overrides map[Name][]override // by id
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
	leading          int               // parts that an override names; 0 means all
	overrides        map[string]uint32 // rule by canonical id
}

// override is the rule of one id.
type override struct {
	OverrideID
	rule uint32
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
	ls := &Limits{
		names: maps.Clone(names), rules: make([]rule, 1), overrides: make(map[Name][]override),
	}
	b := limitsBuilder{ls, map[Limit]uint32{Unlimited: 0}, names.mistakes()}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		spec := names[name]
		l, given := defaults[name]
		if !given {
			l = cmp.Or(spec.Limit, Unlimited)
		}
		if !given && spec.Limit == (Limit{}) && len(overrides[name]) == 0 {
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
		for i, o := range overrides[name] {
			b.addOverride(name, i+1, o)
		}
		slices.SortFunc(ls.overrides[name], func(x, y override) int {
			return strings.Compare(x.ID, y.ID)
		})
	}
	if b.errs != nil {
		return nil, errors.Join(b.errs...)
	}
	return ls, nil
}

type limitsBuilder struct {
	ls    *Limits
	rules map[Limit]uint32
	errs  []error
}

func (b *limitsBuilder) declare(name Name, spec NameSpec, l Limit) {
	for len(b.ls.settings) <= int(name) {
		b.ls.settings = append(b.ls.settings, settings{})
	}
	s := &b.ls.settings[name]
	s.declared, s.shared = true, spec.ID == Shared
	s.index = uint32(len(b.ls.order))
	b.ls.order = append(b.ls.order, name)
	if spec.Override != nil {
		s.leading = parts(spec.Override)
	}
	s.rule = b.rule(name, "", l)
}

func (b *limitsBuilder) addOverride(name Name, number int, o Override) {
	if !b.ls.declares(name) {
		b.wrong(name, fmt.Errorf("%w %d has an override", ErrUnknownName, name))
		return
	}
	r := b.rule(name, fmt.Sprintf("override %d: ", number), o.Limit)
	if len(o.IDs) == 0 {
		b.wrong(name, fmt.Errorf("override %d: it has no ids", number))
	}
	s := &b.ls.settings[name]
	if s.overrides == nil {
		s.overrides = make(map[string]uint32)
	}
	for _, given := range o.IDs {
		id, err := b.ls.names.OverrideID(name, given.ID)
		if _, twice := s.overrides[id]; err == nil && twice {
			err = fmt.Errorf("id %s is overridden already, as %s", spell.Quote(given.ID), spell.Quote(id))
		}
		if err != nil {
			b.wrong(name, err)
			continue
		}
		s.overrides[id] = r
		b.ls.overrides[name] = append(b.ls.overrides[name], override{OverrideID{id, given.Comment}, r})
	}
}

func (b *limitsBuilder) wrong(name Name, err error) {
	b.errs = append(b.errs, &ConfigError{Label: b.ls.label(name), Err: err})
}

// rule returns the index of the limit in the rules, and reports its mistakes.
func (b *limitsBuilder) rule(name Name, of string, l Limit) uint32 {
	for _, m := range l.mistakes() {
		b.wrong(name, fmt.Errorf("%s%w", of, m))
	}
	i, known := b.rules[l]
	if !known {
		r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
		i = uint32(len(b.ls.rules))
		b.rules[l] = i
		b.ls.rules = append(b.ls.rules, rule{l, r})
	}
	return i
}

// For returns the limit of a bucket: its override, or else the default. It
// returns false if the bucket is unlimited, or if a Limiter does not accept the
// key.
func (ls *Limits) For(key Key) (Limit, bool) {
	r, err := ls.resolve(key)
	if err != nil || r == 0 {
		return Limit{}, false
	}
	return ls.rules[r].limit, true
}

// Default returns the limit of ids without an override. It returns false if
// they are unlimited, or if the Name is not declared.
func (ls *Limits) Default(name Name) (Limit, bool) {
	if !ls.declares(name) || ls.settings[name].rule == 0 {
		return Limit{}, false
	}
	return ls.rules[ls.settings[name].rule].limit, true
}

// Names returns a copy of the declared Names.
func (ls *Limits) Names() Names { return maps.Clone(ls.names) }

// Overrides returns the ids that have an override, in their canonical spelling
// and sorted, with the limit of each.
func (ls *Limits) Overrides(name Name) iter.Seq2[OverrideID, Limit] {
	return func(yield func(OverrideID, Limit) bool) {
		for _, o := range ls.overrides[name] {
			if !yield(o.OverrideID, cmp.Or(ls.rules[o.rule].limit, Unlimited)) {
				return
			}
		}
	}
}

// resolve returns the index in ls.rules of the limit that applies to a key, 0
// if the key is unlimited. The error is ErrUnknownName or ErrInvalidID.
func (ls *Limits) resolve(key Key) (uint32, error) {
	if !ls.declares(key.Name) {
		return 0, fmt.Errorf("%w %d", ErrUnknownName, key.Name)
	}
	s := &ls.settings[key.Name]
	if (key.ID == "") != s.shared || len(key.ID) > maxIDLen {
		_, err := spell.Finish(ls.names[key.Name].format(), key.ID, key.ID, nil)
		return 0, fmt.Errorf("%w (%s)", err, ls.label(key.Name))
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

func (ls *Limits) declares(name Name) bool {
	return int(name) < len(ls.settings) && ls.settings[name].declared
}

// index returns the index of a declared Name in ls.order.
func (ls *Limits) index(name Name) uint32 { return ls.settings[name].index }

// label returns the label of the Name, or "" if it is not declared.
func (ls *Limits) label(name Name) string { return ls.names[name].Label }
