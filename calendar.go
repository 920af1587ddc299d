package stint

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/spell"
)

// mostQuota is the largest quota. A bucket's TAT is the end of the period plus a
// nanosecond for each token that was used, so that of an earlier period is past
// before the present one ends.
const mostQuota = 1_000_000_000_000

// EachHour returns a quota of n tokens that is full again at each full hour by
// the clock of the zone. A nil zone is UTC.
//
// A bucket of such a limit keeps what was used until its period ends, and is
// full then: nothing returns in between. If a smaller quota comes and goes in that
// time, what was used stays used. n is at most 10¹². Such a limit has no
// queue and no other burst, so Reserve returns errors.ErrUnsupported. It is not for
// totals and shares. If a rate should spread the quota over its period, ask both
// limits in one SpendAll.
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
	now := min(max(t.Unix(), 0), endOfTime/int64(time.Second))*int64(time.Second) + int64(t.Nanosecond())
	p := c.Period(now)
	return time.Unix(0, p.Start).In(c.Zone()), time.Unix(0, p.End).In(c.Zone())
}

// Resets returns in words when a quota that follows the calendar is full again:
// "each day at 00:00 Europe/Berlin". For other limits it returns "".
func (l Limit) Resets() string {
	c := l.calendar.Calendar()
	if c == nil || c.Check() != nil {
		return ""
	}
	at := time.Time{}.Add(c.Start())
	clock := strings.TrimSuffix(at.Format("15:04:05.999999999"), ":00")
	if c.Unit() == calendar.Hour {
		clock = strings.TrimPrefix(clock, "00")
	}
	return c.Unit().Begins() + " at " + clock + " " + c.ZoneText()
}

// State returns the whole tokens at the time now in a bucket of the limit that
// is full at the time full, by its TAT, and how long it takes until it is full.
// It is for programs that read TATs from a file. The results are 0 for a limit
// that is not valid.
func (l Limit) State(full, now time.Time) (remaining int64, resetAfter time.Duration) {
	r, ok := newRule(l)
	if !ok {
		return 0, 0
	}
	nanos := func(t time.Time) int64 {
		return min(max(t.Unix(), 0), endOfTime/int64(time.Second))*int64(time.Second) + int64(t.Nanosecond())
	}
	at := nanos(now)
	tat := r.clamp(nanos(full), at)
	return r.remaining(tat, at), time.Duration(r.resetAfter(tat, at))
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
	check(l.Count >= 1 && l.Count <= mostQuota, "quota", l.Count, "1 to 1000000000000")
	check(l.Burst == l.Count, "burst", l.Burst,
		fmt.Sprintf("%d, the quota: a quota that follows the calendar has no other burst, and cannot be divided", l.Count))
	check(l.Period == c.Unit().Nominal(), "period", spell.ShortPeriod(l.Period),
		fmt.Sprintf("%s, as the quota is for each %v", spell.ShortPeriod(c.Unit().Nominal()), c.Unit()))
	check(l.Queue == 0, "queue", l.Queue, "none: requests for a quota that follows the calendar wait for the next "+
		c.Unit().String())
}

// newRule returns the rule of a limit. ok is false if the limit is not valid, or
// if it is Unlimited or Blocked.
func newRule(l Limit) (r rule, ok bool) {
	r.limit = l
	if l.mistakes() != nil || l.IsUnlimited() || l.IsBlocked() {
		return r, false
	}
	if c := l.calendar.Calendar(); c != nil {
		r.rate, _, _ = newRate(l.Count, l.Count, l.Count) // a token is a nanosecond
		r.periods = calendar.NewClock(c)
	} else {
		r.rate, _, _ = newRate(l.Burst, l.Count, int64(l.Period))
	}
	return r, true
}

// at returns the instant that the arithmetic takes for now. For a limit that
// follows the calendar that is the end of the period: its buckets are full until
// then, less a nanosecond for each token that was used.
func (r *rule) at(now int64) int64 {
	if r.periods == nil {
		return now
	}
	return r.periods.End(now)
}

// refund is rate.refund at the instant now, for tokens that were spent at the
// instant `spent`, or 0 if that is not known. Nothing is returned to a later
// period. A bucket that is full again needs no TAT that is ahead.
func (r *rule) refund(tat, now, cost, spent int64) int64 {
	switch {
	case r.periods != nil && spent != 0 && spent < r.periods.Now(now).Start:
		return tat
	case r.periods != nil:
		at := r.at(now)
		next := r.rate.refund(tat, at, cost)
		if next == at && tat > at {
			return now
		}
		return next
	case spent != 0:
		return r.rate.refundSince(tat, now, cost, now-spent)
	}
	return r.rate.refund(tat, now, cost)
}

// clamp is rate.clamp at the instant now. A quota keeps what was used under a
// larger one: the bucket is empty until the period ends, and no longer.
func (r *rule) clamp(tat, now int64) int64 {
	if r.periods == nil {
		return r.rate.clamp(tat, now)
	}
	return min(tat, instant(r.at(now))+mostQuota)
}

// remaining is rate.remaining at the instant now.
func (r *rule) remaining(tat, now int64) int64 { return r.rate.remaining(tat, r.at(now)) }

// resetAfter returns the nanoseconds until the bucket is full.
func (r *rule) resetAfter(tat, now int64) int64 {
	at := r.at(now)
	switch {
	case r.periods == nil:
		return resetAfter(tat, now)
	case tat <= instant(at):
		return 0
	}
	return at - now
}

// sameTime reports whether the rules give a TAT the same meaning.
func (r *rule) sameTime(other *rule) bool { return r.limit.calendar == other.limit.calendar }

// converts reports whether a bucket with the same TAT has other tokens used under
// another rule.
func (r *rule) converts(was *rule) bool {
	return r.limited() && was.limited() && !(r.sameTime(was) && (r.periods != nil || r.rate.interval == was.rate.interval))
}

// after returns the TAT of a bucket in memory when the rule takes the place of
// another one. If convert is true, that keeps what was used. Otherwise a rolling
// limit that becomes a quota leaves a bucket empty that would not have been full
// before the period ends.
func (r *rule) after(was *rule, tat, now int64, convert bool) int64 {
	switch {
	case convert:
		return r.convert(tat, now, was)
	case r.periods != nil && was.limited() && was.periods == nil && tat > r.at(now):
		return r.clamp(math.MaxInt64, now)
	}
	return tat
}

// convert returns the TAT of a bucket in which as many tokens were used as under
// another rule. It rounds up, to a nanosecond of the new limit, or to a token if
// one of the rules is a quota. An empty bucket stays empty under a smaller limit.
// A quota keeps what was used beyond it.
func (r *rule) convert(tat, now int64, was *rule) int64 {
	ahead := tat - instant(was.at(now)) // a period may end after the arithmetic does
	if ahead <= 0 {
		return min(tat, now)
	}
	if r.periods == nil && was.periods == nil {
		used := r.rate.timeFor(min(ahead, was.rate.tolerance), &was.rate)
		return instant(now) + min(used, r.rate.tolerance)
	}
	used := (ahead-1)/was.rate.interval + 1
	if r.periods != nil {
		return r.clamp(instant(r.at(now))+min(used, mostQuota), now)
	}
	return instant(now) + min(used, r.rate.burst)*r.rate.interval
}
