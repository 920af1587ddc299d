package stint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/spell"
	"github.com/stint-go/stint/internal/table"
)

// Limit is how much may be spent: at most Burst tokens at once, and Count
// tokens in each Period as time goes on.
type Limit struct {
	Burst  int64         // tokens in a full bucket
	Count  int64         // tokens that return in a Period, evenly spread
	Period time.Duration // at least a nanosecond for each of Count

	Queue      int64      // most tokens that may queue; 0 means no bound
	Durability Durability // 0 means the Limiter's default
}

// Two Limits without arithmetic, for all ids or for those of an Override.
var (
	// Unlimited is the absence of a limit: every request is allowed.
	Unlimited = Limit{Burst: math.MaxInt64, Period: -1}

	// Blocked denies every request, whatever its cost. RetryAfter and ResetAfter
	// are math.MaxInt64 nanoseconds, 292 years. Reserve and Wait return
	// ErrBlocked, but requests that are in the queue keep their turns. The bucket
	// keeps its state for a later limit: Refund changes nothing.
	Blocked = Limit{Period: -1}
)

// PerSecond returns a limit of n tokens in a second, with a burst of n.
func PerSecond(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Second} }

// PerMinute returns a limit of n tokens in a minute, with a burst of n.
func PerMinute(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Minute} }

// PerHour returns a limit of n tokens in an hour, with a burst of n.
func PerHour(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Hour} }

// PerDay returns a limit of n tokens in 24 hours, with a burst of n. It admits
// up to 2n−1 in the first 24 hours; WithinWindow is for hard quotas.
func PerDay(n int64) Limit { return Limit{Burst: n, Count: n, Period: 24 * time.Hour} }

// WithinWindow returns a limit that admits at most n tokens in any window of
// that length, its end excluded. It is for hard quotas. PerMinute(n) admits
// 2n−1 within a minute: a full bucket, and the tokens that return.
//
// Burst and the Count−1 tokens that return within a window are n together. So
// Burst is 1 + n/50, rounded down, and Count is n − n/50: in the long run the
// limit uses 98 % of n, and all of an n under 50. With a larger Burst b it uses
// less: Limit{Burst: b, Count: n - b + 1, Period: period}.
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
		if !hasBurst && wrong[0].Field == "burst" { // it was written as the count
			wrong[0].Field = "count"
		}
		errs[2] = wrong[0]
	case errs[1] != nil || errs[2] == nil || period == "":
		errs[2] = errors.New("want count/period such as 5/1m, 300/3h or 1/1d burst 10")
	}
	return Limit{}, fmt.Errorf("stint: limit %s: %w", spell.Quote(s), errs[2])
}

// String returns the limit as ParseLimit reads it, without Queue and
// Durability: "300/3h", "5/1m burst 20". For Unlimited and Blocked it returns
// "unlimited" and "blocked".
func (l Limit) String() string {
	switch l {
	case Unlimited:
		return "unlimited"
	case Blocked:
		return "blocked"
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
	r, _, _ := gcra.New(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.Interval)
}

// Tolerance returns τ, the time in which an empty bucket refills: Burst times
// the Interval. It is 0 for a limit that is not valid.
func (l Limit) Tolerance() time.Duration {
	r, _, _ := gcra.New(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.Tolerance)
}

// mistakes returns the fields that are out of range.
func (l Limit) mistakes() (errs []*spell.FieldError) {
	if l == Unlimited || l == Blocked {
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
		_, field, want := gcra.New(l.Burst, l.Count, int64(l.Period))
		check(field != "burst", field, l.Burst, want)
		check(field != "count", field, l.Count, want)
	}
	check(l.Queue >= 0, "queue", l.Queue, "0 or more")
	check(l.Durability <= Synced, "durability", l.Durability, spell.WantDurability)
	return errs
}

// rule is one limit, ready for the arithmetic.
type rule struct {
	limit Limit
	rate  gcra.Rate
}

// limited reports whether the rule has arithmetic: it is neither Unlimited nor
// Blocked.
func (r *rule) limited() bool { return r.rate.Burst != 0 }

var (
	unlimitedRule rule // in a Decision its Limit is zero
	blockedRule   = rule{limit: Blocked}
)

// givenRules caches the rules of limits that callers give.
type givenRules [256]atomic.Pointer[rule]

// of returns the rule of a limit that a caller gives. The error is Validate's.
func (g *givenRules) of(l Limit) (*rule, error) {
	switch l {
	case Unlimited:
		return &unlimitedRule, nil
	case Blocked:
		return &blockedRule, nil
	}
	const odd = 0x9E3779B97F4A7C15
	h := ((uint64(l.Burst)*odd^uint64(l.Count))*odd^uint64(l.Period))*odd ^ uint64(l.Queue)<<3 ^ uint64(l.Durability)
	at := &g[h*odd>>56]
	if r := at.Load(); r != nil && r.limit == l {
		return r, nil
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	r := &rule{limit: l}
	r.rate, _, _ = gcra.New(l.Burst, l.Count, int64(l.Period))
	at.Store(r)
	return r, nil
}

// same reports whether two limits are the same. A limit without a level has the
// default level.
func same(a, b Limit, level Durability) bool {
	a.Durability, b.Durability = cmp.Or(a.Durability, level), cmp.Or(b.Durability, level)
	return a == b
}

// give makes the Limit of req, if it has one, the given limit of r.
func (l *Limiter) give(r *request, req *Request) (err error) {
	if req.Limit != (Limit{}) {
		r.given, err = l.given.of(req.Limit)
	}
	return err
}

// useConfiguredLocked drops a given limit that equals the configured one. Only
// the configured limit has leases, which last for several requests.
func (r *request) useConfiguredLocked(level Durability) {
	if r.given != nil && same(r.given.limit, r.shard.limits.rules[r.rule].limit, level) {
		r.given = nil
	}
}

// ruleLocked returns the rule that the request is held to.
func (r *request) ruleLocked() *rule {
	if r.given != nil {
		return r.given
	}
	return &r.shard.limits.rules[r.rule]
}

// clampLocked clamps a TAT that was loaded. A bucket in memory is not clamped
// to a given limit, because other requests may bring larger limits.
func (r *request) clampLocked(now int64) {
	configured, held := &r.shard.limits.rules[r.rule].rate, &r.ruleLocked().rate
	if held.Tolerance < configured.Tolerance {
		held = configured
	}
	if !r.resident && held.Tolerance > 0 {
		r.tat = held.Clamp(r.tat, now)
	}
}

// keepGivenLocked marks a bucket that was changed under a given limit. So a
// flush saves it at the level of that limit, not at the configured level.
func (r *request) keepGivenLocked(b table.Slot, level Durability) {
	b.Clear(table.Covered) // the lease is of the configured limit
	if level > Memory {
		b.Set(table.Flush)
		i, _ := r.shard.findLocked(r.key, r.hash)
		r.shard.MarkDirty(i)
	}
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
		for id, rule := range ls.floors(m) {
			r := &ls.rules[rule].rate
			ls.totals[m.sum].Add(r.Burst, r.Interval)
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

// checkListed reports a floor that is Unlimited or Blocked.
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
	if low.rate.Burst > high.rate.Burst {
		b.mistaken(floor, []string{id}, "the burst for %s is %d, above that of the ceiling, %s: %d",
			spell.Quote(id), low.rate.Burst, ls.label(class), high.rate.Burst)
	}
	if low.rate.Interval < high.rate.Interval {
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
	if !sum.FitsBurst(total.rate.Burst) {
		b.mistaken(m.total, nil, "the bursts of the floors of %s add up to %d: want less than its burst, %d",
			of, sum.Burst(), total.rate.Burst)
	}
	intervals := func(yield func(int64) bool) {
		for _, class := range ls.classes(m.sum) {
			for _, rule := range ls.floors(class) {
				if !yield(ls.rules[rule].rate.Interval) {
					return
				}
			}
		}
	}
	if !sum.FitsRate(total.rate.Interval, intervals) {
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
				sum.Remove(old.rules[rule].rate.Burst, old.rules[rule].rate.Interval)
			}
			if rule, _ := ls.resolve(name.Key(canonical)); rule > blocked {
				sum.Add(ls.rules[rule].rate.Burst, ls.rules[rule].rate.Interval)
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

// sameTrees returns an error if a Name that both Limits declare has different
// places in their trees of shares.
func (ls *Limits) sameTrees(other *Limits) error {
	for name := range other.names {
		was, is := ls.member(name), other.member(name)
		if was.sum, is.sum = 0, 0; ls.declares(name) && was != is {
			return fmt.Errorf("stint: %s: its Parent or Floor, or its place in a tree of shares, has changed: "+
				"open another Limiter", other.label(name))
		}
	}
	return nil
}
