package main

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// logTime reads times. A time of syslog has no year: it gets the one that
// brings it nearest to the time before.
type logTime struct {
	layout string    // of all times; "" for the known ones
	year   int       // of the first; 0 for the latest with that date
	before time.Time // the last that had no year
}

const logTimeLayout = "02/Jan/2006:15:04:05 -0700"

const syslogLayout = "Jan _2 15:04:05"

// parse returns Unix nanoseconds, if the year is one that a limiter counts in.
func (t *logTime) parse(b []byte) (at int64, ok bool) {
	if t.layout == "" {
		if unix, ok := parseLogTime(b); ok {
			return unix * 1e9, true
		}
		if at, ok := parseUnixTime(b); ok {
			return at, true
		}
	}
	text := string(bytes.TrimSpace(b))
	for _, layout := range t.layouts() {
		if when, err := time.Parse(layout, text); err == nil && !inventedZone(layout, when) {
			if when.Year() == 0 {
				when = t.inYear(when)
			}
			return when.UnixNano(), when.Year() >= 1970 && when.Year() <= 2161
		}
	}
	return 0, false
}

func (t *logTime) layouts() []string {
	if t.layout != "" {
		return []string{t.layout}
	}
	return []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", time.DateTime, syslogLayout}
}

// inventedZone reports whether package time did not know the zone's name here,
// and took UTC instead.
func inventedZone(layout string, when time.Time) bool {
	name, east := when.Zone()
	return east == 0 && strings.Contains(layout, "MST") && !strings.Contains(layout, "07") &&
		when.Location() != time.Local && !slices.Contains([]string{"UTC", "GMT", "WET"}, name)
}

func (t *logTime) inYear(when time.Time) time.Time {
	in := func(year int) time.Time { return when.AddDate(year, 0, 0) }
	switch {
	case !t.before.IsZero():
		year := t.before.Year()
		for _, y := range []int{year - 1, year + 1} {
			if in(y).Sub(t.before).Abs() < in(year).Sub(t.before).Abs() {
				year = y
			}
		}
		t.before = in(year)
	case t.year != 0:
		t.before = in(t.year)
	default:
		tomorrow := time.Now().AddDate(0, 0, 1)
		year := tomorrow.Year()
		for in(year).After(tomorrow) || in(year).Day() != when.Day() { // February 29 is rare
			year--
		}
		t.before = in(year)
	}
	return t.before
}

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// parseLogTime is time.Parse of logTimeLayout in an eighth of the time. It
// takes only the years that a limiter counts in.
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
	if year < 1970 || year > 2161 || hour > 23 || minute > 59 || second > 59 || zoneHour > 23 || zoneMinute > 59 {
		return 0, false
	}
	date := time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC)
	if date.Day() != day {
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
	return n, true
}

// parseUnixTime reads seconds since 1970 with or without a fraction,
// milliseconds, microseconds or nanoseconds. The number of digits tells them
// apart.
func parseUnixTime(b []byte) (at int64, ok bool) {
	whole, fraction, _ := bytes.Cut(b, []byte("."))
	n, err := strconv.ParseInt(string(whole), 10, 64)
	if err != nil || n < 0 || len(whole) < 9 {
		return 0, false
	}
	unit := int64(1)
	for most := int64(1e17); n < most && unit < 1e9; most /= 1000 {
		unit *= 1000
	}
	if n > (math.MaxInt64-unit)/unit {
		return 0, false
	}
	at = n * unit
	for _, c := range fraction {
		if unit /= 10; c < '0' || c > '9' {
			return 0, false
		}
		at += int64(c-'0') * unit
	}
	return at, at < time.Date(2162, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
}
