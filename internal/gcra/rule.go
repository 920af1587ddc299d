package gcra

import (
	"math"
	"time"

	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/queue"
)

// Rule is a limit, ready for decisions. One whose Rate has no Burst has no
// arithmetic: it allows everything, or denies everything. A Rule of 96 bytes lies in
// two cache lines.
type Rule struct {
	Rate    Rate
	Lease   Lease
	Periods *calendar.Clock // nil unless the limit follows the calendar

	// The rest of the limit, as the caller of the package spells it.
	Count, Queue int64
	Period       time.Duration
	Calendar     calendar.Index
	Level        Level // 0 means the default
	Kind         uint8 // of a limit without arithmetic
	_            [8]byte
}

// Level is what a change waits for, and so what a crash may forget.
type Level uint8

// The levels, weakest first. 0 means the default.
const (
	Memory  Level = iota + 1 // a crash may forget everything
	Flushed                  // a crash may forget what changed since the last flush
	Leased                   // a crash forgets nothing, and may withhold one lease of each bucket
	Synced                   // a crash forgets nothing and withholds nothing
)

// Or returns the level, or another one if it is 0. cmp.Or takes several times as
// long, because it puts its arguments into an array and loops over that.
func (l Level) Or(byDefault Level) Level {
	if l != 0 {
		return l
	}
	return byDefault
}

// Limited reports whether the rule has arithmetic.
func (r *Rule) Limited() bool { return r.Rate.Burst != 0 }

// QueueRate returns what a queue has to know of the limit.
func (r *Rule) QueueRate() queue.Rate {
	return queue.Rate{Interval: r.Rate.Interval, Tolerance: r.Rate.Tolerance}
}

// MostQuota is the largest quota that follows the calendar. A bucket's TAT is the
// end of the period plus a nanosecond for each token that was used. So many, and a
// lease of an eighth of them, do not hide the end, which is a multiple of a quarter of
// an hour.
const MostQuota = 700_000_000_000

// SetRolling gives the rule the arithmetic of a limit whose tokens return evenly.
func (r *Rule) SetRolling(burst, count, period int64) {
	r.Rate, _, _ = NewRate(burst, count, period)
	r.Lease = newLease(r.Rate.Tolerance)
}

// SetQuota gives the rule the arithmetic of a quota that follows the calendar, of
// which a token is a nanosecond.
func (r *Rule) SetQuota(quota int64, c *calendar.Calendar) {
	r.Rate, _, _ = NewRate(quota, quota, quota)
	r.Lease = newQuotaLease(quota)
	r.Periods = calendar.NewClock(c)
}

// Spend returns the TAT of a bucket after a spend of cost tokens at the instant now
// that leaves at least so many, and the nanoseconds until it would be allowed: 0 if it
// is. If it is denied, the TAT stays as it was. Spend also returns At(now). It takes
// cost, leave ≥ 0 with cost + leave ≤ burst.
func (r *Rule) Spend(tat, now, cost, leave int64) (next, at, wait int64) {
	at = r.At(now)
	next, wait = r.Rate.Spend(tat, at, cost, leave)
	if wait != 0 && at != now {
		wait = at - now
	}
	return next, at, wait
}

// Holds returns the tokens in a bucket with this TAT, and the time until it is
// full. at is At(now).
func (r *Rule) Holds(tat, now, at int64) (remaining, reset int64) {
	reset = resetAfter(tat, at)
	remaining = r.Rate.left(reset)
	if at != now && reset != 0 {
		reset = at - now
	}
	return remaining, reset
}

// At returns the instant that the arithmetic takes for now. For a limit that
// follows the calendar that is the end of the period: its buckets are full until
// then, less a nanosecond for each token that was used.
func (r *Rule) At(now int64) int64 {
	if r.Periods == nil {
		return now
	}
	return r.Periods.End(now)
}

// Refund returns the TAT after tokens are given back at the instant now, which were
// spent at the instant `spent`. Nothing is returned to a later period. A bucket that
// is full again needs no TAT that is ahead.
func (r *Rule) Refund(tat, now, cost, spent int64) int64 {
	if r.Periods == nil {
		return r.Rate.refundSince(tat, now, cost, now-spent)
	}
	if spent < r.Periods.Now(now).Start {
		return tat
	}
	at := r.At(now)
	next := r.Rate.Refund(tat, at, cost)
	if next == at && tat > at {
		return now
	}
	return next
}

// Clamp is Rate.Clamp at the instant now. A quota keeps what was used under a
// larger one: the bucket is empty until the period ends, and no longer.
func (r *Rule) Clamp(tat, now int64) int64 {
	if r.Periods == nil {
		return r.Rate.Clamp(tat, now)
	}
	return min(tat, Instant(r.At(now))+MostQuota)
}

// quarter divides the difference between the ends of any two periods, because all
// offsets of zones are multiples of it. So do minute and second, if a start is no
// multiple of the quarter of an hour.
const quarter, minute, second = 15 * minute, int64(time.Minute), int64(time.Second)

// believed is how many tokens a bucket may have used under a larger quota than the
// rule's. The TAT of one bucket of a rolling limit in `chance` looks like that.
const believed, chance = quarter / chance, 50_000

// longest is more than any period has left, in whatever zone. A TAT further ahead
// was saved while the clock was ahead.
const longest = 370 * 24 * int64(time.Hour)

// used returns how many tokens a TAT that is ahead of now says were used in the
// period of a quota, whatever its zone, start and unit: what is left if the TAT is
// divided by the time that all ends of periods are multiples of. It is 0 if that
// period is over. ok is false if a rolling limit left the TAT, or if it is of the
// next period of the rule: then the clock was ahead.
func (r *Rule) used(tat, now int64) (used int64, ok bool) {
	ahead := tat - Instant(r.At(now))
	if 0 <= ahead && ahead < quarter {
		return min(ahead, MostQuota), true
	}
	if over := tat - r.Periods.Now(now).Start; 0 <= over && over < quarter {
		return 0, true // of the period before, which ended where no remainder may say it: in a gap of the zone's clock
	}
	if tat-now > longest {
		return 0, false
	}
	most := max(r.Rate.Burst+r.Rate.Burst/8, believed) // with a lease
	for _, step := range [...]int64{quarter, minute, second} {
		if step < quarter {
			most = min(most, step/chance)
		}
		if used = (ahead%step + step) % step; 0 < used && used <= most {
			break
		}
		used = 0
	}
	switch end := tat - used; {
	case used == 0 || end == r.Periods.Period(r.At(now)).End:
		return 0, false
	case end <= now:
		return 0, true
	}
	return used, true
}

// Read returns the TAT of a bucket that may have been saved under another rule, or
// when the clock was ahead. It is Clamp, but a quota keeps what was used in one of
// another zone, start or unit.
func (r *Rule) Read(tat, now int64) int64 {
	if r.Periods != nil && tat > now {
		if used, ok := r.used(tat, now); ok && used == 0 {
			return now
		} else if ok {
			return Instant(r.At(now)) + used
		}
	}
	return r.Clamp(tat, now)
}

// Remaining is Rate.Remaining at the instant now.
func (r *Rule) Remaining(tat, now int64) int64 { return r.Rate.Remaining(tat, r.At(now)) }

// ResetAfter returns the nanoseconds until the bucket is full.
func (r *Rule) ResetAfter(tat, now int64) int64 {
	at := r.At(now)
	switch {
	case r.Periods == nil:
		return resetAfter(tat, now)
	case tat <= Instant(at):
		return 0
	}
	return at - now
}

// SameTime reports whether the rules give a TAT the same meaning.
func (r *Rule) SameTime(other *Rule) bool { return r.Calendar == other.Calendar }

// Converts reports whether a bucket with the same TAT has other tokens used under
// another rule.
func (r *Rule) Converts(was *Rule) bool {
	return r.Limited() && was.Limited() && !(r.SameTime(was) && (r.Periods != nil || r.Rate.Interval == was.Rate.Interval))
}

// After returns the TAT of a bucket in memory when the rule takes the place of
// another one. If convert is true, or if both follow a calendar, that keeps what was
// used. Otherwise a rolling limit that becomes a quota leaves a bucket empty that
// would not have been full before the period ends.
func (r *Rule) After(was *Rule, tat, now int64, convert bool) int64 {
	switch {
	case convert, r.Periods != nil && was.Periods != nil && !r.SameTime(was):
		return r.convert(tat, now, was)
	case r.Periods == nil || r.SameTime(was) || tat <= now:
		return tat
	}
	if _, ok := r.used(tat, now); !ok && was.Limited() && tat > r.At(now) {
		return r.Clamp(math.MaxInt64, now)
	}
	return r.Read(tat, now)
}

// convert returns the TAT of a bucket in which as many tokens were used as under
// another rule. It rounds up, to a nanosecond of the new limit, or to a token if
// one of the rules is a quota. An empty bucket stays empty under a smaller limit.
// A quota keeps what was used beyond it.
func (r *Rule) convert(tat, now int64, was *Rule) int64 {
	ahead := tat - Instant(was.At(now)) // a period may end after the arithmetic does
	if ahead <= 0 {
		return min(tat, now)
	}
	if r.Periods == nil && was.Periods == nil {
		used := r.Rate.timeFor(min(ahead, was.Rate.Tolerance), &was.Rate)
		return Instant(now) + min(used, r.Rate.Tolerance)
	}
	used := (ahead-1)/was.Rate.Interval + 1
	if r.Periods != nil {
		return r.Clamp(Instant(r.At(now))+min(used, MostQuota), now)
	}
	return Instant(now) + min(used, r.Rate.Burst)*r.Rate.Interval
}
