package stint

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/spell"
)

// Limit is how much may be spent: at most Burst tokens at once, and Count
// tokens in each Period as time goes on. The limits of EachHour, EachDay,
// EachWeek, EachMonth and EachYear are quotas that are full again when the
// calendar says so: Burst and Count are the quota, and Period is its usual
// length.
type Limit struct {
	Burst  int64         // tokens in a full bucket
	Count  int64         // tokens that return in a Period, evenly spread
	Period time.Duration // at least a nanosecond for each of Count

	Queue      int64      // most tokens that may queue; 0 means no bound
	Durability Durability // 0 means the Limiter's default

	kind     kind
	calendar calendar.Index // 0 unless it is a quota of EachHour and its like
}

// kind says whether a Limit has numbers.
type kind uint8

const (
	limitedKind kind = iota
	unlimitedKind
	blockedKind
)

// Two Limits without numbers, for all ids or for those of an Override. Compare a Limit
// with them by ==.
var (
	// Unlimited is the absence of a limit: every request is allowed.
	Unlimited = Limit{kind: unlimitedKind}

	// Blocked denies every request, whatever its cost. RetryAfter and ResetAfter
	// are math.MaxInt64 nanoseconds, 292 years. Reserve and Wait return
	// ErrBlocked, but requests that are in the queue keep their turns. The bucket
	// keeps its state for a later limit: Refund changes nothing.
	Blocked = Limit{kind: blockedKind}
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

// WithBurst returns the limit with another Burst: 1 spaces requests evenly. A
// quota that follows the calendar has no other burst: the result is not valid.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
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
	if l.FollowsCalendar() {
		l.Burst /= n // Validate reports it
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

// ParseLimit returns the limit that is written count/period, such as "5/1m",
// "300/180m" or "2/1w". Its burst is the count, unless another one follows:
// "5/1m burst 20". A period may have weeks, days of 24 hours, then a Go
// duration. "10/s", "5/min" and "300/h" are short for 10/1s, 5/1m and 300/1h.
//
// A quota that follows the calendar is written count/hour, day, week, month or
// year, with its zone unless that is UTC, and with its start if it has one:
// "1000/month", "50/day@America/Los_Angeles", "50/day@Europe/Berlin from 4h". A
// zone is a name of the tz database, an offset such as +02:00, or Local. A
// program on a machine without that database imports time/tzdata.
func ParseLimit(s string) (Limit, error) {
	steady, burst, hasBurst := strings.Cut(s, " burst ")
	count, period, _ := strings.Cut(steady, "/")
	if calendar.IsUnit(period) {
		return parseQuota(s, count, strings.TrimPrefix(s, count+"/"))
	}
	if !hasBurst {
		burst = count
	}
	l, errs := Limit{}, [3]error{}
	l.Burst, errs[0] = spell.Int(burst)
	l.Count, errs[1] = spell.Int(count)
	switch period {
	case "s", "min", "h":
		period = "1" + strings.TrimSuffix(period, "in")
	}
	l.Period, errs[2] = spell.Period(period)
	switch wrong := l.mistakes(); {
	case errs == [3]error{} && wrong == nil:
		return l, nil
	case errs == [3]error{}:
		if !hasBurst && wrong[0].Field == "burst" { // it was written as the count
			wrong[0].Field = "count"
		}
		errs[2] = wrong[0]
	case period == "" || !strings.ContainsAny(count, "0123456789") || errs[1] == nil && errs[2] == nil:
		errs[2] = errors.New("want count/period such as 5/1m, 300/3h or 1/1d burst 10")
	case errors.Is(errs[1], strconv.ErrRange):
		errs[2] = &spell.FieldError{Field: "count", Value: count, Want: "at most 9223372036854775807"}
	case errs[1] != nil:
		errs[2] = &spell.FieldError{Field: "count", Value: spell.Quote(count), Want: spell.WantInteger}
	}
	if meant := meantLimit(steady); meant != steady {
		meant += strings.TrimPrefix(s, steady)
		if _, err := ParseLimit(meant); err == nil {
			errs[2] = fmt.Errorf("%w; did you mean %s?", errs[2], meant)
		}
	}
	return Limit{}, fmt.Errorf("stint: limit %s: %w", spell.Quote(s), errs[2])
}

// meantLimit returns what a text such as "1,000/1h", "5r/s" or "5 per minute" may
// stand for.
func meantLimit(s string) string {
	count, period, _ := strings.Cut(strings.Replace(s, " per ", "/", 1), "/")
	count = strings.TrimSuffix(strings.NewReplacer(",", "", "_", "", " ", "").Replace(count), "r")
	period = strings.TrimSpace(period)
	return count + "/" + cmp.Or(spell.MeantPeriod(period), period)
}

// String returns the limit as ParseLimit reads it, without Queue and
// Durability: "300/3h", "5/1m burst 20", "1000/month". For Unlimited and Blocked
// it returns "unlimited" and "blocked".
func (l Limit) String() string {
	switch l.kind {
	case unlimitedKind:
		return "unlimited"
	case blockedKind:
		return "blocked"
	}
	s := strconv.FormatInt(l.Count, 10) + "/"
	if c := l.calendar.Calendar(); c != nil {
		s += c.String()
	} else {
		s += spell.ShortPeriod(l.Period)
	}
	if l.Burst != l.Count {
		s += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	return s
}

// MarshalText returns the limit as UnmarshalText reads it: as String does, with its
// Queue and its Durability: "5/1m burst 20 queue 100 leased". It is empty for the
// zero Limit. So a Limit can be a field of JSON or YAML, or a flag of flag.TextVar. If
// the limit is not valid, the error is a ConfigError.
func (l Limit) MarshalText() ([]byte, error) {
	if l.isZero() {
		return nil, nil
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	text := l.String()
	if l.Queue > 0 {
		text += queueWord + strconv.FormatInt(l.Queue, 10)
	}
	if l.Durability != 0 {
		text += " " + l.Durability.String()
	}
	return []byte(text), nil
}

// UnmarshalText reads what ParseLimit reads, then " queue 100" and a Durability if
// they are there, and also "unlimited", "blocked" and the empty text of the zero
// Limit.
func (l *Limit) UnmarshalText(text []byte) error {
	s := string(text)
	switch s {
	case "":
		*l = Limit{}
		return nil
	case Unlimited.String():
		*l = Unlimited
		return nil
	case Blocked.String():
		*l = Blocked
		return nil
	}
	var level Durability
	if i := strings.LastIndexByte(s, ' '); i >= 0 {
		if d, err := ParseDurability(s[i+1:]); err == nil {
			level, s = d, s[:i]
		}
	}
	s, queued, hasQueue := strings.Cut(s, queueWord)
	parsed, err := ParseLimit(s)
	if err != nil {
		return err
	}
	if hasQueue {
		if parsed.Queue, err = spell.Int(queued); err == nil && parsed.Queue < 1 {
			err = errors.New("want 1 or more")
		}
		if err != nil {
			return fmt.Errorf("stint: limit %s: queue: %w", spell.Quote(string(text)), err)
		}
	}
	parsed.Durability = level
	if err := parsed.Validate(); err != nil { // a quota that follows the calendar has no queue
		return err
	}
	*l = parsed
	return nil
}

const queueWord = " queue "

// Validate returns nil, or a ConfigError for each field that is out of range.
func (l Limit) Validate() error {
	var errs []error
	for _, m := range l.mistakes() {
		errs = append(errs, &ConfigError{Err: m})
	}
	return errors.Join(errs...)
}

// mistakes returns the fields that are out of range.
func (l Limit) mistakes() (errs []*spell.FieldError) {
	if l == Unlimited || l == Blocked {
		return nil
	}
	defer func() {
		if l.Durability > Synced {
			errs = append(errs, &spell.FieldError{Field: "durability", Value: l.Durability.String(), Want: spell.WantDurability})
		}
	}()
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, &spell.FieldError{Field: field, Value: fmt.Sprint(value), Want: want})
		}
	}
	if l.kind != limitedKind {
		none := fmt.Sprintf("none: the limit is %v", l)
		check(l.Burst == 0, "burst", l.Burst, none)
		check(l.Count == 0, "count", l.Count, none)
		check(l.Period == 0, "period", spell.ShortPeriod(l.Period), none)
		check(l.Queue == 0, "queue", l.Queue, none)
		check(l.Durability == 0, "durability", l.Durability, none)
		check(l.calendar == 0, "start", "given", none)
		return errs
	}
	if l.FollowsCalendar() {
		l.calendarMistakes(check)
		return errs
	}
	check(l.Burst >= 1, "burst", l.Burst, "at least 1")
	check(l.Count >= 1, "count", l.Count, "at least 1")
	check(l.Period >= 1, "period", spell.ShortPeriod(l.Period), "more than 0")
	if errs == nil { // each field is in range: one may be too large for the others
		_, field, want := gcra.NewRate(l.Burst, l.Count, int64(l.Period))
		check(field != "burst", field, l.Burst, want)
		check(field != "count", field, l.Count, want)
	}
	check(l.Queue >= 0, "queue", l.Queue, "0 or more")
	return errs
}

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

// isZero is a comparison with Limit{}, which the compiler makes a call that reads
// the Limit in larger pieces than the caller has just written it.
func (l *Limit) isZero() bool {
	return l.Burst|l.Count|int64(l.Period)|l.Queue == 0 && l.Durability == 0 && l.kind == 0 && l.calendar == 0
}
