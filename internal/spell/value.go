package spell

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The values of a limit's fields, for FieldError.Want.
const (
	WantInteger    = "a plain decimal integer"
	WantPeriod     = "a duration such as 90s, 180m, 36h, 1d or 2w"
	WantDurability = "memory, flushed, leased or synced"
)

// FieldError is a mistake in one field of a limit.
type FieldError struct{ Field, Value, Want string }

func (e *FieldError) Error() string { return e.Field + " is " + e.Value + ", want " + e.Want }

// Bucket returns a bucket as errors have it: "Logins:bob", or "Total" without an
// id. If its limit has no label, Bucket returns the number instead.
func Bucket(label string, number uint16, id string) string {
	switch {
	case label == "":
		return strconv.Itoa(int(number)) + ":" + id
	case id == "":
		return label
	}
	return label + ":" + id
}

// Quote returns s in quotes. If s is long, it returns the first 80 bytes.
func Quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}

// Line returns s, in quotes if it has characters that a line of text cannot show.
func Line(s string) string {
	if quoted := strconv.Quote(s); quoted[1:len(quoted)-1] != s {
		return Quote(s)
	}
	return s
}

// Int returns an integer in its plain decimal spelling.
func Int(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, &intError{Quote(s), err}
	}
	return n, nil
}

type intError struct {
	quoted string
	cause  error // of strconv; nil if the spelling is not plain
}

func (e *intError) Error() string { return "number is " + e.quoted + ", want " + WantInteger }

func (e *intError) Unwrap() error { return e.cause }

// Period returns a Go duration that may also have weeks and days at its start:
// "1w2d12h".
func Period(s string) (time.Duration, error) {
	wrong := &FieldError{"period", Quote(s), WantPeriod}
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

// MeantPeriod returns the period that a text such as "min", "m" or "10 hours"
// stands for, as Period reads it. For other texts it returns "".
func MeantPeriod(s string) string {
	unit := strings.TrimLeft(s, "0123456789")
	n := s[:len(s)-len(unit)]
	if n == "" {
		n = "1"
	}
	unit = strings.ToLower(strings.TrimSpace(unit))
	if len(unit) > 1 {
		unit = strings.TrimSuffix(unit, "s")
	}
	for _, words := range [][]string{
		{"s", "sec", "second"}, {"m", "min", "minute"}, {"h", "hr", "hour"}, {"d", "day"}, {"w", "wk", "week"},
	} {
		if slices.Contains(words, unit) {
			return n + words[0]
		}
	}
	return ""
}

// ShortPeriod returns d.String() without zeros at the end: "3h", not "3h0m0s".
func ShortPeriod(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
