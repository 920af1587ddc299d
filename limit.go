package stint

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Durability is what a decision waits for, and so what a crash may forget of it. After Close nothing is forgotten, at
// any level.
type Durability uint8

// The levels, weakest first. The zero Durability means the Limiter's default.
const (
	Memory  Durability = iota + 1 // a crash may forget everything
	Flushed                       // a crash may forget what was spent since the last flush
	Leased                        // a crash forgets nothing, and may withhold one lease of each bucket
	Synced                        // a crash forgets nothing and withholds nothing
)

var durabilities = [...]string{"default", "memory", "flushed", "leased", "synced"}

// String returns the level as a limits file writes it; "default" for the zero Durability.
func (d Durability) String() string {
	if int(d) < len(durabilities) {
		return durabilities[d]
	}
	return "Durability(" + strconv.Itoa(int(d)) + ")"
}

// ParseDurability returns the level that is written memory, flushed, leased or synced.
func ParseDurability(s string) (Durability, error) {
	if i := slices.Index(durabilities[1:], s); i >= 0 {
		return Durability(i + 1), nil
	}
	return 0, fmt.Errorf("stint: durability is %s, want %s", quote(s), wantDurability)
}

// Limit is how much may be spent: at most Burst tokens at once, and Count tokens in each Period as time goes on.
type Limit struct {
	Burst  int64         // what a full bucket holds
	Count  int64         // what comes back in a Period, evenly spread
	Period time.Duration // at least a nanosecond for each of Count

	Queue      int64      // most tokens that may wait in line; 0 means no bound
	Durability Durability // 0 means the Limiter's default
}

// PerSecond returns the limit of n in a second, which may come all at once.
func PerSecond(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Second} }

// PerMinute returns the limit of n in a minute, which may come all at once.
func PerMinute(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Minute} }

// PerHour returns the limit of n in an hour, which may come all at once.
func PerHour(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Hour} }

// PerDay returns the limit of n in 24 hours, which may come all at once.
func PerDay(n int64) Limit { return Limit{Burst: n, Count: n, Period: 24 * time.Hour} }

// WithBurst returns the limit with another Burst: 1 spaces the spending out evenly.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// ParseLimit returns the limit that is written count/period, such as "5/1m", "300/180m" or "2/1w", with a burst of count
// or, as in "5/1m burst 20", the one that follows. The period is as LoadLimits reads it.
func ParseLimit(s string) (Limit, error) {
	steady, burst, hasBurst := strings.Cut(s, " burst ")
	count, period, _ := strings.Cut(steady, "/")
	if !hasBurst {
		burst = count
	}
	l, errs := Limit{}, [3]error{}
	l.Burst, errs[0] = parseInt(burst)
	l.Count, errs[1] = parseInt(count)
	l.Period, errs[2] = parsePeriod(period)
	switch {
	case errs[1] == nil && errs[2] != nil && period != "":
		return Limit{}, fmt.Errorf("stint: limit %s: %w", quote(s), errs[2])
	case errs != [3]error{}:
		return Limit{}, fmt.Errorf("stint: limit %s: want count/period such as 5/1m, 300/3h or 1/1d burst 10", quote(s))
	}
	if wrong := l.mistakes(); wrong != nil {
		return Limit{}, fmt.Errorf("stint: limit %s: %w", quote(s), wrong[0])
	}
	return l, nil
}

// String returns the limit as ParseLimit reads it: "300/3h", "5/1m burst 20". It says nothing of Queue and Durability.
func (l Limit) String() string {
	s := strconv.FormatInt(l.Count, 10) + "/" + shortPeriod(l.Period)
	if l.Burst != l.Count {
		s += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	return s
}

// Validate returns nil, or which fields are out of range and what they should be.
func (l Limit) Validate() error {
	var errs []*ConfigError
	for _, m := range l.mistakes() {
		errs = append(errs, &ConfigError{Err: m})
	}
	return joinErrors(errs)
}

// Interval returns T, the time that a token takes to come back: Period ÷ Count, rounded up to a nanosecond. It is 0 for
// a limit that is not valid.
func (l Limit) Interval() time.Duration {
	r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.interval)
}

// Tolerance returns τ, the time that an empty bucket takes to refill: Burst times the Interval. It is 0 for a limit that
// is not valid.
func (l Limit) Tolerance() time.Duration {
	r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.tolerance)
}

const (
	wantInteger    = "a plain decimal integer"
	wantPeriod     = "a duration such as 90s, 180m, 36h, 1d or 2w"
	wantDurability = "memory, flushed, leased or synced"
)

// fieldError is a field of a limit that is not what it should be.
type fieldError struct{ field, value, want string }

func (e *fieldError) Error() string { return e.field + " is " + e.value + ", want " + e.want }

func (l Limit) mistakes() (errs []*fieldError) {
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, &fieldError{field, fmt.Sprint(value), want})
		}
	}
	check(l.Burst >= 1, "burst", l.Burst, "at least 1")
	check(l.Count >= 1, "count", l.Count, "at least 1")
	check(l.Period >= 1, "period", shortPeriod(l.Period), "more than 0")
	if errs == nil { // what is left is a field that is too much for the others
		_, field, want := newRate(l.Burst, l.Count, int64(l.Period))
		check(field != "burst", field, l.Burst, want)
		check(field != "count", field, l.Count, want)
	}
	check(l.Queue >= 0, "queue", l.Queue, "0 or more")
	check(l.Durability <= Synced, "durability", l.Durability, wantDurability)
	return errs
}

// parsePeriod reads a Go duration that may also have weeks and days, in front: "1w2d12h".
func parsePeriod(s string) (time.Duration, error) {
	wrong := fmt.Errorf("period is %s, want %s", quote(s), wantPeriod)
	var total time.Duration
	add := func(n string, unit time.Duration) bool {
		d, err := time.ParseDuration(n)
		if err != nil || strings.ContainsAny(n, "+-") || d > (math.MaxInt64-total)/unit {
			return false
		}
		total += d * unit
		return true
	}
	rest := s
	for _, unit := range []struct {
		name string
		days time.Duration
	}{{"w", 7}, {"d", 1}} {
		n, after, found := strings.Cut(rest, unit.name)
		if !found {
			continue
		}
		if strings.Trim(n, "0123456789.") != "" || !add(n+"h", 24*unit.days) {
			return 0, wrong
		}
		rest = after
	}
	if (rest != "" || s == "") && !add(rest, 1) {
		return 0, wrong
	}
	return total, nil
}

// shortPeriod is d.String() without the zeros at the end: "3h" for "3h0m0s".
func shortPeriod(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseInt reads an integer in its plain decimal spelling.
func parseInt(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("number is %s, want %s", quote(s), wantInteger)
	}
	return n, nil
}
