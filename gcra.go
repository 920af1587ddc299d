package stint

import (
	"time"

	"github.com/stint-go/stint/internal/gcra"
)

// Package gcra has the arithmetic: what one TAT says, and what a spend makes of it.
// Here a Limit becomes the rule by which that is done.

// Interval returns T, the time in which one token returns: Period ÷ Count,
// rounded up to a nanosecond. It is 0 for a limit that is not valid. For a quota
// that follows the calendar, Interval and Tolerance are its Period: no token
// returns before the period ends, and PeriodAt knows when that is.
func (l Limit) Interval() time.Duration {
	if l.FollowsCalendar() {
		return l.Period
	}
	interval, _, _ := gcra.IntervalOf(l.Burst, l.Count, int64(l.Period))
	return time.Duration(interval)
}

// Tolerance returns τ, the time in which an empty bucket refills: Burst times
// the Interval. It is 0 for a limit that is not valid.
func (l Limit) Tolerance() time.Duration {
	if l.FollowsCalendar() {
		return l.Period
	}
	interval, _, _ := gcra.IntervalOf(l.Burst, l.Count, int64(l.Period))
	return time.Duration(l.Burst * interval)
}

var (
	unlimitedRule = gcra.Rule{Kind: uint8(unlimitedKind)}
	blockedRule   = gcra.Rule{Kind: uint8(blockedKind)}
)

// newRule returns the rule of a limit. ok is false if the limit is not valid, or
// if it is Unlimited or Blocked.
func newRule(l Limit) (r gcra.Rule, ok bool) {
	r.Count, r.Period, r.Queue, r.Calendar = l.Count, l.Period, l.Queue, l.calendar
	r.Level, r.Kind = gcra.Level(l.Durability), uint8(l.kind)
	if l.mistakes() != nil || l.kind != limitedKind {
		return r, false
	}
	if c := l.calendar.Calendar(); c != nil {
		r.SetQuota(l.Count, c)
	} else {
		r.SetRolling(l.Burst, l.Count, int64(l.Period))
	}
	return r, true
}

// limitOf returns the limit that a rule was made of, if it is valid.
func limitOf(r *gcra.Rule) (l Limit) {
	l.set(r)
	return l
}

// set sets the fields of a limit one by one: a copy of a Limit that was just made is
// slow, as all says of a Decision.
func (l *Limit) set(r *gcra.Rule) {
	l.Burst, l.Count, l.Period, l.Queue = r.Rate.Burst, r.Count, r.Period, r.Queue
	l.Durability, l.kind, l.calendar = Durability(r.Level), kind(r.Kind), r.Calendar
}

// is reports whether a limit is that of a rule. A limit without a level has the
// default level.
func (l *Limit) is(r *gcra.Rule, byDefault Durability) bool {
	level := gcra.Level(byDefault)
	return l.Burst == r.Rate.Burst && l.Count == r.Count && l.Period == r.Period && l.Queue == r.Queue &&
		uint8(l.kind) == r.Kind && l.calendar == r.Calendar && gcra.Level(l.Durability).Or(level) == r.Level.Or(level)
}
