package calendar

import (
	"math"
	"time"
)

// Period is a period of a calendar, such as one day, in Unix nanoseconds.
type Period struct {
	Start int64
	End   int64 // the start of the next one
}

// Contains reports whether the instant is in the period.
func (p *Period) Contains(now int64) bool { return p.Start <= now && now < p.End }

const (
	hour = int64(time.Hour)
	day  = 24 * hour

	// Clocks of zones differ from UTC by less. In the tz database they differ by
	// less than 16 hours.
	mostOffset = 32 * hour
)

// Period returns the period that contains the instant now.
func (c *Calendar) Period(now int64) Period {
	if c.unit == Hour {
		return Period{c.hourStart(now), c.hourEnd(now)}
	}
	n := c.number(floorDiv(now+offset(instant(now, c.zone))-c.start, day))
	start := c.begin(n)
	for start > now {
		n--
		start = c.begin(n)
	}
	end := c.begin(n + 1)
	for end <= now {
		n++
		start, end = end, c.begin(n+1)
	}
	return Period{start, end}
}

// number returns the number of the period that a date is in. The date is in
// days since 1970-01-01.
func (c *Calendar) number(date int64) int64 {
	switch c.unit {
	case Day:
		return date
	case Week:
		return floorDiv(date+3, 7) // 1970-01-01 was a Thursday
	}
	t := time.Unix(date*86400, 0).UTC()
	return floorDiv(int64(t.Year())*12+int64(t.Month())-1, units[c.unit].months)
}

// firstDate returns the first date of a period, in days since 1970-01-01.
func (c *Calendar) firstDate(number int64) int64 {
	switch c.unit {
	case Day:
		return number
	case Week:
		return number*7 - 3
	}
	months := number * units[c.unit].months // since January of the year 0
	return time.Date(0, time.January+time.Month(months), 1, 0, 0, 0, 0, time.UTC).Unix() / 86400
}

// begin returns the instant at which a period begins: the last one at which the
// clock of the zone reaches the start of its first date, or passes it.
func (c *Calendar) begin(number int64) int64 {
	reading := c.firstDate(number)*day + c.start
	last := int64(0)
	for at := reading - mostOffset; ; {
		t := instant(at, c.zone)
		ahead := offset(t)
		from, until := bounds(t)
		if exact := reading - ahead; exact >= from && exact < until {
			last = exact
		}
		if until > reading+mostOffset {
			return last
		}
		at = until
		if at+ahead <= reading && reading < at+offset(instant(at, c.zone)) {
			last = at
		}
	}
}

// hourEnd returns the first start of an hour after now.
func (c *Calendar) hourEnd(now int64) int64 {
	for {
		t := instant(now, c.zone)
		next := now + hour - c.sinceHour(t)
		_, until := bounds(t)
		if next < until {
			return next
		}
		if now = until; c.sinceHour(instant(now, c.zone)) == 0 {
			return now
		}
	}
}

// hourStart returns the last start of an hour that is not after now.
func (c *Calendar) hourStart(now int64) int64 {
	for {
		t := instant(now, c.zone)
		last := now - c.sinceHour(t)
		from, _ := bounds(t)
		if last >= from {
			return last
		}
		now = from - 1
	}
}

// sinceHour returns the time since the start of an hour by the clock of the
// zone, as if it had not been set since.
func (c *Calendar) sinceHour(t time.Time) int64 {
	return floorMod(t.UnixNano()+offset(t)-c.start, hour)
}

// bounds returns the stretch around t in which the offset of its zone is the
// same. The offset may be the same before and after, too.
func bounds(t time.Time) (from, until int64) {
	from, until = math.MinInt64, math.MaxInt64
	first, end := t.ZoneBounds()
	if !first.IsZero() {
		from = first.UnixNano()
	}
	if !end.IsZero() {
		until = end.UnixNano()
	}
	if until <= t.UnixNano() { // Go 1.26 returns the begin of 31 December for all of that day in leap years
		until = t.Truncate(24 * time.Hour).Add(24 * time.Hour).UnixNano()
	}
	return from, until
}

// instant returns the time in the zone.
func instant(nanos int64, zone *time.Location) time.Time { return time.Unix(0, nanos).In(zone) }

// offset returns how far the clock of the time's zone is ahead of UTC.
func offset(t time.Time) int64 {
	_, seconds := t.Zone()
	return int64(seconds) * int64(time.Second)
}

func floorMod(a, b int64) int64 { return a - b*floorDiv(a, b) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
