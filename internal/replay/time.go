package replay

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"
)

// logTime reads times. A time of syslog has no year. It gets the year that
// brings it nearest to the time before it.
type logTime struct {
	layout string    // of all times; "" for the known ones
	year   int       // of the first; 0 for the latest with that date
	before time.Time // the last that had no year

	inferred yearSummary // of times without a year, if the first year is not given
}

var errNoSuchDay = errors.New(
	"has February 29 in a year without that day: give the year of the first line with --year")

const logTimeLayout = "02/Jan/2006:15:04:05 -0700"

const syslogLayout = "Jan _2 15:04:05"

// parse returns Unix nanoseconds, if the time is countable.
func (t *logTime) parse(b []byte) (at int64, err error) {
	if t.layout == "" {
		if unix, ok := parseLogTime(b); ok {
			return unix * 1e9, nil
		}
		if at, ok := parseUnixTime(b); ok {
			return at, nil
		}
	}
	text := string(bytes.TrimSpace(b))
	for _, layout := range t.layouts(text) {
		if when, err := time.Parse(layout, text); err == nil && !inventedZone(layout, when) {
			if when.Year() == 0 {
				if when, err = t.inYear(when); err != nil {
					return 0, err
				}
			}
			if !countable(when) {
				break
			}
			return when.UnixNano(), nil
		}
	}
	return 0, errFieldTime
}

func (t *logTime) layouts(text string) []string {
	if t.layout != "" {
		return []string{t.layout}
	}
	if text == "" || text[0] < '0' || text[0] > '9' {
		return []string{syslogLayout}
	}
	return []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", time.DateTime,
		"2006-01-02T15:04:05Z0700", "02/Jan/2006:15:04:05"} // the last two are of journalctl and HAProxy
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

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// parseLogTime is time.Parse of logTimeLayout, but eight times as fast. It
// accepts only the years in which a limiter can count.
func parseLogTime(b []byte) (unix int64, ok bool) {
	if len(b) != len(logTimeLayout) || b[2] != '/' || b[6] != '/' ||
		b[11] != ':' || b[14] != ':' || b[17] != ':' || b[20] != ' ' {
		return 0, false
	}
	month := 1
	for ; months[3*month-3:3*month] != string(b[3:6]); month++ {
		if month == 12 {
			return 0, false
		}
	}
	day, ok1 := digits(b[0:2])
	year, ok2 := digits(b[7:11])
	hour, ok3 := digits(b[12:14])
	minute, ok4 := digits(b[15:17])
	second, ok5 := digits(b[18:20])
	zoneHour, ok6 := digits(b[22:24])
	zoneMinute, ok7 := digits(b[24:26])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 {
		return 0, false
	}
	if hour > 23 || minute > 59 || second > 59 || zoneHour > 23 || zoneMinute > 59 {
		return 0, false
	}
	date := time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC)
	if date.Day() != day || !countable(date) {
		return 0, false // the 31st of a month of 30
	}
	east := int64(zoneHour*3600 + zoneMinute*60)
	switch b[21] {
	case '+':
		return date.Unix() - east, true
	case '-':
		return date.Unix() + east, true
	}
	return 0, false
}

func digits(b []byte) (n int, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, len(b) > 0
}

// parseUnixTime reads seconds since 1970 with or without a fraction,
// milliseconds, microseconds or nanoseconds. The number of digits tells them
// apart.
func parseUnixTime(b []byte) (at int64, ok bool) {
	whole, fraction, _ := bytes.Cut(b, []byte("."))
	if _, ok := digits(whole); !ok || len(whole) < 9 || len(bytes.Trim(fraction, "0123456789")) > 0 {
		return 0, false
	}
	units := []string{"s", "ms", "us", "ns"}
	since, err := time.ParseDuration(string(b) + units[min(len(whole)/3-3, 3)])
	return int64(since), err == nil && countable(time.Unix(0, int64(since)).UTC())
}

// countable reports whether a limiter can count in the time's year.
func countable(t time.Time) bool { return t.Year() >= 1970 && t.Year() <= 2161 }
