package stint

import (
	"fmt"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/spell"
)

// EachHour returns a quota of n tokens that is full again at each full hour by
// the clock of the zone. A nil zone is UTC.
//
// A bucket of such a limit keeps what was used until its period ends, and is
// full then: nothing returns in between. If a smaller quota comes and goes in that
// time, or one of another zone, start or unit, what was used stays used until the
// period ends that is the present one then. n is at most 7·10¹¹. Such a limit has no
// queue and no other burst, so Reserve returns errors.ErrUnsupported. If a rate
// should spread the quota over its period, ask both limits in one SpendAll.
func EachHour(n int64, zone *time.Location) Limit { return each(calendar.Hour, n, zone) }

// EachDay returns a quota of n tokens that is full again at each midnight in the
// zone. If a clock that is set leaves out a midnight, the quota is full again
// when the clock is set. If a midnight comes twice, it is the second one.
// Otherwise EachDay is like EachHour.
func EachDay(n int64, zone *time.Location) Limit { return each(calendar.Day, n, zone) }

// EachWeek is EachDay for the midnights at which a Monday begins.
func EachWeek(n int64, zone *time.Location) Limit { return each(calendar.Week, n, zone) }

// EachMonth is EachDay for the midnights at which a month begins.
func EachMonth(n int64, zone *time.Location) Limit { return each(calendar.Month, n, zone) }

// EachYear is EachDay for the midnights at which a year begins.
func EachYear(n int64, zone *time.Location) Limit { return each(calendar.Year, n, zone) }

func each(unit calendar.Unit, n int64, zone *time.Location) Limit {
	return Limit{Burst: n, Count: n, Period: unit.Nominal(), calendar: calendar.Of(unit, zone, 0)}
}

// StartingAt moves the start of the day, such as to 4h for a quota that ends at
// four in the morning: EachMonth(n, zone).StartingAt(4*time.Hour) ends at four on
// the first of the month. d is at least 0 and less than 24 hours, or less than
// an hour for EachHour. For a limit that does not follow the calendar, only 0 is
// valid.
func (l Limit) StartingAt(d time.Duration) Limit {
	switch c := l.calendar.Calendar(); {
	case c != nil:
		l.calendar = calendar.Of(c.Unit(), c.Zone(), d)
	case d != 0:
		l.calendar = calendar.Of(calendar.None, time.UTC, d)
	}
	return l
}

// FollowsCalendar reports whether the limit is a quota that follows the calendar,
// such as one of EachDay.
func (l Limit) FollowsCalendar() bool { return l.calendar != 0 }

// PeriodAt returns the period of a quota that follows the calendar that contains
// the time t: from start, and until end, when the quota is full again. Both are
// in the zone of the limit. They are zero for other limits.
func (l Limit) PeriodAt(t time.Time) (start, end time.Time) {
	c := l.calendar.Calendar()
	if c == nil || c.Check() != nil {
		return time.Time{}, time.Time{}
	}
	p := c.Period(clock.Instant(t, gcra.EndOfTime))
	return time.Unix(0, p.Start).In(c.Zone()), time.Unix(0, p.End).In(c.Zone())
}

// parseQuota returns a limit that is written as a count for each period of a
// calendar. The text of both is s.
func parseQuota(s, count, periods string) (Limit, error) {
	n, err := spell.Int(count)
	if err == nil {
		periods, burst, hasBurst := strings.Cut(periods, " burst ")
		var index calendar.Index
		if index, err = calendar.Parse(periods); err == nil {
			unit := index.Calendar().Unit()
			l := Limit{Burst: n, Count: n, Period: unit.Nominal(), calendar: index}
			if hasBurst {
				err = fmt.Errorf("burst is %s, want none: a quota that follows the calendar has no other burst; "+
					"a rolling limit is %s/%s burst %[1]s", burst, count, spell.ShortPeriod(unit.Nominal()))
			} else if wrong := l.mistakes(); wrong != nil {
				err = wrong[0]
			} else {
				return l, nil
			}
		}
	}
	return Limit{}, fmt.Errorf("stint: limit %s: %w", spell.Quote(s), err)
}

// calendarMistakes reports what is wrong with a limit that follows the calendar.
func (l Limit) calendarMistakes(check func(ok bool, field string, value any, want string)) {
	c := l.calendar.Calendar()
	if c.Unit() == calendar.None {
		check(false, "start", c.Start(), "0: only a limit that follows the calendar has a start")
		return
	}
	most := spell.ShortPeriod(c.Unit().Most())
	check(!c.FarFromUTC(), "zone", c.ZoneText(), "a clock that differs from UTC by at most 24h")
	check(c.Check() == nil, "start", c.Start(), "0 or more, and less than "+most)
	check(l.Count >= 1 && l.Count <= gcra.MostQuota, "quota", l.Count, "1 to 700000000000")
	check(l.Burst == l.Count, "burst", l.Burst,
		fmt.Sprintf("%d, the quota: a quota that follows the calendar has no other burst, and cannot be divided", l.Count))
	check(l.Period == c.Unit().Nominal(), "period", spell.ShortPeriod(l.Period),
		fmt.Sprintf("%s, as the quota is for each %v", spell.ShortPeriod(c.Unit().Nominal()), c.Unit()))
	check(l.Queue == 0, "queue", l.Queue, "none: requests for a quota that follows the calendar wait for the next "+
		c.Unit().String())
}
