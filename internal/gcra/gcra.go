// Package gcra has limits in the form that decisions use, and their arithmetic:
// the Generic Cell Rate Algorithm, as the ATM Forum's Traffic Management
// Specification 4.0 (1996) gives it in its virtual scheduling form, over int64
// nanoseconds. A bucket is one number, its TAT (theoretical arrival time): the
// instant at which it will be full again. A TAT that is past, or absent (0), is a
// full bucket.
//
// Instants are Unix nanoseconds in [0, EndOfTime]. An instant outside counts as
// the nearer of the two. Time stands still there, and no token comes back, so a
// Limiter is stricter then, never more generous.
//
// A Rate is what a limit allows in the long run and at once. A Rule is a whole
// limit, which may follow the calendar. A Lease says how far ahead of a bucket
// the store may be. Nothing here reads a clock, locks or stores.
package gcra

import (
	"math/bits"

	"github.com/stint-go/stint/internal/reciprocal"
)

const (
	// MaxTolerance is the longest time in which a bucket refills: 100 years of
	// 365.25 days.
	MaxTolerance = 36525 * 24 * 60 * 60 * 1e9

	// EndOfTime is the last instant, in the year 2162: an instant and a tolerance
	// are an int64 together.
	EndOfTime = 1<<63 - 1 - MaxTolerance
)

// Rate is the numbers of a limit.
type Rate struct {
	Burst     int64
	Interval  int64 // T: nanoseconds a token takes to come back
	Tolerance int64 // τ = burst·T: nanoseconds an empty bucket takes to refill

	perInterval reciprocal.Reciprocal
}

// NewRate returns the rate of a limit, or the field that is out of range and
// its valid values.
func NewRate(burst, count, period int64) (r Rate, field, want string) {
	interval, field, want := IntervalOf(burst, count, period)
	if field != "" {
		return Rate{}, field, want
	}
	return Rate{burst, interval, burst * interval, reciprocal.Of(interval)}, "", ""
}

// IntervalOf returns the time in which a token comes back, or else the field
// that is out of range, and what it should be.
func IntervalOf(burst, count, period int64) (interval int64, field, want string) {
	switch {
	case burst < 1:
		return 0, "burst", "at least 1"
	case period < 1:
		return 0, "period", "more than 0"
	case count < 1:
		return 0, "count", "at least 1"
	case count > period:
		return 0, "count", "at most 1 per nanosecond of the period"
	}
	interval = (period-1)/count + 1
	if burst > MaxTolerance/interval {
		return 0, "burst", "a bucket that refills within 100 years"
	}
	return interval, "", ""
}

// Instant returns now within the range that the arithmetic is exact in.
func Instant(now int64) int64 { return min(max(now, 0), EndOfTime) }

// Spend returns the TAT after a spend of cost tokens that leaves at least so many
// in the bucket, and 0. If it is denied, spend returns the TAT as it was, and the
// nanoseconds until it would be allowed. A spend of none that leaves none is always
// allowed. It takes cost, leave ≥ 0 with cost + leave ≤ burst, and any tat and now.
func (r *Rate) Spend(tat, now, cost, leave int64) (next, retryAfter int64) {
	now = Instant(now)
	base := max(now, tat)
	if over := base - now - (r.Tolerance - (cost+leave)*r.Interval); over > 0 {
		if cost+leave == 0 { // a smaller limit has less than none
			over = 0
		}
		return tat, over
	}
	return base + cost*r.Interval, 0
}

// Overtaken reports whether a denial at the instant now, with the nanoseconds
// until it would be allowed, is out of date at a later instant.
func Overtaken(now, fresh, retryAfter int64) bool { return Instant(fresh)-now >= retryAfter }

// Reserve returns the TAT after cost tokens are taken, and the nanoseconds
// until all of them are there. ok is false if the TAT would leave the range of
// an int64.
func (r *Rate) Reserve(tat, now, cost int64) (next, delay int64, ok bool) {
	now = Instant(now)
	base := max(now, tat)
	need := cost * r.Interval
	delay = max(0, base-now-(r.Tolerance-need))
	if base > 1<<63-1-need {
		return tat, delay, false
	}
	return base + need, delay, true
}

// Refund returns the TAT after cost ≥ 0 tokens are given back. It is not before
// now, because a bucket has no more than burst.
func (r *Rate) Refund(tat, now, cost int64) int64 {
	now = Instant(now)
	if tat <= now {
		return tat
	}
	if cost > (tat-now)/r.Interval {
		return now
	}
	return tat - cost*r.Interval
}

// refundSince is refund of tokens that were spent the nanoseconds `ago` before
// now. In that time some have come back already, and these are not given back
// again.
func (r *Rate) refundSince(tat, now, cost, ago int64) int64 {
	now = Instant(now)
	back := int64(1<<63 - 1)
	if cost <= back/r.Interval {
		back = cost * r.Interval
	}
	if back -= max(ago, 0); back <= 0 || tat <= now {
		return tat
	}
	if back > tat-now {
		return now
	}
	return tat - back
}

// timeFor returns the nanoseconds in which a bucket of rate r regains as many
// tokens as one of another rate does in ns ≥ 0: rounded up, or the largest int64.
func (r *Rate) timeFor(ns int64, other *Rate) int64 {
	high, low := bits.Mul64(uint64(ns), uint64(r.Interval))
	low, carry := bits.Add64(low, uint64(other.Interval-1), 0)
	if high += carry; high >= uint64(other.Interval) {
		return 1<<63 - 1
	}
	n, _ := bits.Div64(high, low, uint64(other.Interval))
	return int64(min(n, 1<<63-1))
}

// Clamp returns the TAT, or now + τ if the TAT is further ahead. No spend
// leaves such a TAT: the clock was set back, or the limit was made smaller. No
// request waits longer than an empty bucket takes to refill.
func (r *Rate) Clamp(tat, now int64) int64 { return min(tat, Instant(now)+r.Tolerance) }

// Remaining returns the tokens in the bucket, rounded down, within [0, burst].
func (r *Rate) Remaining(tat, now int64) int64 { return r.left(resetAfter(tat, now)) }

// Admits reports whether a full bucket has the tokens of a request, and as many as
// it must leave.
func (r *Rate) Admits(cost, leave int64) bool {
	return uint64(cost) <= uint64(r.Burst) && uint64(leave) <= uint64(r.Burst-cost) // they may be negative
}

// left returns the tokens in a bucket that is full in so many nanoseconds.
func (r *Rate) left(reset int64) int64 {
	free := r.Tolerance - reset
	if free <= 0 {
		return 0
	}
	return r.perInterval.Quotient(free, r.Interval)
}

// ResetAfter returns the nanoseconds until the bucket is full.
func resetAfter(tat, now int64) int64 {
	now = Instant(now)
	return max(now, tat) - now
}

// State is a bucket after a decision, in numbers of which none is negative.
type State struct {
	Wait      int64 // nanoseconds until the request would pass; 0 if it passed
	Remaining int64 // tokens
	Reset     int64 // nanoseconds until the bucket is full
}

// Stricter returns 1 if a decision that leaves a is stricter than one that
// leaves b, and otherwise 0. It compares them like three digits of one number, because a
// processor cannot predict branches on the state of buckets.
func (a State) Stricter(b State) int {
	_, less := bits.Sub64(uint64(b.Reset), uint64(a.Reset), 0)
	_, less = bits.Sub64(uint64(a.Remaining), uint64(b.Remaining), less)
	_, less = bits.Sub64(uint64(b.Wait), uint64(a.Wait), less)
	return int(less)
}
