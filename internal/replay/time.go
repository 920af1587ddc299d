package replay

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// logTime reads times. A time of syslog has no year. It gets the year that
// brings it nearest to the time before it.
type logTime struct {
	layout string    // of all times; "" for the known ones
	latest string    // the layout of the last time
	year   int       // of the first; 0 for the latest with that date
	before time.Time // the last that had no year

	inferred yearSummary // of times without a year, if the first year is not given
}

var errNoSuchDay = errors.New(
	"has February 29 in a year without that day: give the year of the first line with --year")

const syslogLayout = "Jan _2 15:04:05"

// layouts are those of the known times. A fraction of a second may follow after a
// point or a comma, and " +0200" at the end.
var layouts = []string{
	"02/Jan/2006:15:04:05", "02/Jan/2006 15:04:05", // access logs and HAProxy, Python
	time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04:05Z0700",
	"2006-01-02 15:04:05 MST", "Mon 2006-01-02 15:04:05 MST", // PostgreSQL, journalctl -o short-full
	"2006/01/02 15:04:05", "2006/01/02 - 15:04:05", // Go's package log and nginx, gin
	"02-Jan-2006 15:04:05", "Mon Jan _2 15:04:05 2006", // BIND, Apache
	syslogLayout,
}

// parse returns Unix nanoseconds, if the time is countable.
func (t *logTime) parse(b []byte) (at int64, err error) {
	text, east := string(bytes.TrimSpace(b)), int64(0)
	if t.layout == "" {
		if at, ok := parseUnixTime(b); ok {
			return at, nil
		}
		if n := len(text) - 6; n > 0 && text[n] == ' ' && (text[n+1] == '+' || text[n+1] == '-') { // time.Parse would allocate a zone
			zone, err := strconv.Atoi(text[n+1:])
			if err != nil || max(zone, -zone) > 2359 || zone%100 > 59 || zone%100 < -59 {
				return 0, errFieldTime
			}
			text, east = text[:n], int64(zone/100*60+zone%100)*60e9
		}
	}
	when, ok := t.in(text, cmp.Or(t.layout, t.latest, layouts[0]))
	for i := 0; !ok && i < len(layouts) && t.layout == ""; i++ {
		when, ok = t.in(text, layouts[i])
	}
	if ok && when.Year() == 0 {
		when, err = t.inYear(when)
	}
	if err == nil && (!ok || !countable(when)) {
		err = errFieldTime
	}
	return when.UnixNano() - east, err
}

// in returns the time in a layout, which is the first one for the next time.
func (t *logTime) in(text, layout string) (when time.Time, ok bool) {
	when, err := time.Parse(layout, text)
	if ok = err == nil && !inventedZone(layout, when); ok {
		t.latest = layout
	}
	return when, ok
}

// inventedZone reports whether package time did not know the zone's name here,
// and took UTC instead.
func inventedZone(layout string, when time.Time) bool {
	name, east := when.Zone()
	return east == 0 && strings.Contains(layout, "MST") && !strings.Contains(layout, "07") &&
		when.Location() != time.Local && !slices.Contains([]string{"UTC", "GMT", "WET"}, name)
}

// inYear adds the year to a time. If that year lacks the day, it returns an error.
func (t *logTime) inYear(when time.Time) (time.Time, error) {
	in := func(year int) time.Time { return when.AddDate(year, 0, 0) }
	year := t.year
	switch {
	case !t.before.IsZero():
		year = t.before.Year()
		for _, y := range []int{year - 1, year + 1} {
			if in(y).Sub(t.before).Abs() < in(year).Sub(t.before).Abs() {
				year = y
			}
		}
	case t.year == 0:
		tomorrow := time.Now().AddDate(0, 0, 1)
		year = tomorrow.Year()
		for in(year).After(tomorrow) || in(year).Day() != when.Day() { // February 29 is rare
			year--
		}
	}
	if in(year).Day() != when.Day() {
		return time.Time{}, errNoSuchDay
	}
	t.before = in(year)
	if t.year == 0 {
		i := &t.inferred
		i.Lines, i.First, i.Last = i.Lines+1, min(cmp.Or(i.First, year), year), max(i.Last, year)
	}
	return t.before, nil
}

func isNumber(b []byte) bool { return len(b) > 0 && len(bytes.Trim(b, "0123456789")) == 0 }

// parseUnixTime reads seconds since 1970 with or without a fraction,
// milliseconds, microseconds or nanoseconds. The number of digits tells them
// apart.
func parseUnixTime(b []byte) (at int64, ok bool) {
	whole, fraction, _ := bytes.Cut(b, []byte("."))
	if !isNumber(whole) || len(whole) < 9 || len(bytes.Trim(fraction, "0123456789")) > 0 {
		return 0, false
	}
	units := []string{"s", "ms", "us", "ns"}
	since, err := time.ParseDuration(string(b) + units[min(len(whole)/3-3, 3)])
	return int64(since), err == nil && countable(time.Unix(0, int64(since)).UTC())
}

// countable reports whether a limiter can count in the time's year.
func countable(t time.Time) bool { return t.Year() >= 1970 && t.Year() <= 2161 }
