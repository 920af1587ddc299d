package stint

import (
	"math/bits"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/reciprocal"
)

// This file has the arithmetic of limits: the Generic Cell Rate Algorithm, as
// the ATM Forum's Traffic Management Specification 4.0 (1996) gives it in its
// virtual scheduling form, over int64 nanoseconds. A bucket is one number, its
// TAT (theoretical arrival time): the instant at which it will be full again. A
// TAT that is past, or absent (0), is a full bucket.
//
// Instants are Unix nanoseconds in [0, endOfTime]. An instant outside counts as
// the nearer of the two. Time stands still there, and no token comes back, so a
// Limiter is stricter then, never more generous.

const (
	maxTolerance = 36525 * 24 * 60 * 60 * 1e9 // 100 years of 365.25 days
	endOfTime    = cache.EndOfTime            // the year 2162: now + τ is an int64 for every limit
)

// rate is a limit in the form that the arithmetic uses.
type rate struct {
	burst     int64
	interval  int64 // T: nanoseconds a token takes to come back
	tolerance int64 // τ = burst·T: nanoseconds an empty bucket takes to refill

	perInterval reciprocal.Reciprocal
	lease       cache.Lease
}

// newRate returns the rate of a limit, or the field that is out of range and
// its valid values.
func newRate(burst, count, period int64) (r rate, field, want string) {
	interval, field, want := intervalOf(burst, count, period)
	if field != "" {
		return rate{}, field, want
	}
	tolerance := burst * interval
	return rate{burst, interval, tolerance, reciprocal.Of(interval), cache.NewLease(tolerance)}, "", ""
}

// intervalOf returns the time in which a token comes back, or else the field
// that is out of range, and what it should be.
func intervalOf(burst, count, period int64) (interval int64, field, want string) {
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
	if burst > maxTolerance/interval {
		return 0, "burst", "a bucket that refills within 100 years"
	}
	return interval, "", ""
}

// instant returns now within the range that the arithmetic is exact in.
func instant(now int64) int64 { return min(max(now, 0), endOfTime) }

// spend returns the TAT after a spend of cost tokens, and 0. If it is denied,
// spend returns the TAT as it was, and the nanoseconds until it would be
// allowed. It takes 0 ≤ cost ≤ burst, and any tat and now.
func (r *rate) spend(tat, now, cost int64) (next, retryAfter int64) {
	now = instant(now)
	base := max(now, tat)
	need := cost * r.interval
	if over := base - now - (r.tolerance - need); over > 0 {
		return tat, over
	}
	return base + need, 0
}

// overtaken reports whether a denial at the instant now, with the nanoseconds
// until it would be allowed, is out of date at a later instant.
func overtaken(now, fresh, retryAfter int64) bool { return instant(fresh)-now >= retryAfter }

// reserve returns the TAT after cost tokens are taken, and the nanoseconds
// until all of them are there. ok is false if the TAT would leave the range of
// an int64.
func (r *rate) reserve(tat, now, cost int64) (next, delay int64, ok bool) {
	now = instant(now)
	base := max(now, tat)
	need := cost * r.interval
	delay = max(0, base-now-(r.tolerance-need))
	if base > 1<<63-1-need {
		return tat, delay, false
	}
	return base + need, delay, true
}

// refund returns the TAT after cost ≥ 0 tokens are given back. It is not before
// now, because a bucket has no more than burst.
func (r *rate) refund(tat, now, cost int64) int64 {
	now = instant(now)
	if tat <= now {
		return tat
	}
	if cost > (tat-now)/r.interval {
		return now
	}
	return tat - cost*r.interval
}

// refundSince is refund of tokens that were spent the nanoseconds `ago` before
// now. In that time some have come back already, and these are not given back
// again.
func (r *rate) refundSince(tat, now, cost, ago int64) int64 {
	now = instant(now)
	back := int64(1<<63 - 1)
	if cost <= back/r.interval {
		back = cost * r.interval
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
func (r *rate) timeFor(ns int64, other *rate) int64 {
	high, low := bits.Mul64(uint64(ns), uint64(r.interval))
	low, carry := bits.Add64(low, uint64(other.interval-1), 0)
	if high += carry; high >= uint64(other.interval) {
		return 1<<63 - 1
	}
	n, _ := bits.Div64(high, low, uint64(other.interval))
	return int64(min(n, 1<<63-1))
}

// clamp returns the TAT, or now + τ if the TAT is further ahead. No spend
// leaves such a TAT: the clock was set back, or the limit was made smaller. No
// request waits longer than an empty bucket takes to refill.
func (r *rate) clamp(tat, now int64) int64 { return min(tat, instant(now)+r.tolerance) }

// remaining returns the tokens in the bucket, rounded down, within [0, burst].
func (r *rate) remaining(tat, now int64) int64 { return r.left(resetAfter(tat, now)) }

// left returns the tokens in a bucket that is full in so many nanoseconds.
func (r *rate) left(reset int64) int64 {
	free := r.tolerance - reset
	if free <= 0 {
		return 0
	}
	return r.perInterval.Quotient(free, r.interval)
}

// resetAfter returns the nanoseconds until the bucket is full.
func resetAfter(tat, now int64) int64 {
	now = instant(now)
	return max(now, tat) - now
}

// state has the numbers of a Decision. None is negative.
type state struct{ wait, remaining, reset int64 }

// stricter returns 1 if Decision.Stricter is true because of the numbers, and
// otherwise 0. It compares them like three digits of one number, because a
// processor cannot predict branches on the state of buckets.
func (a state) stricter(b state) int {
	_, less := bits.Sub64(uint64(b.reset), uint64(a.reset), 0)
	_, less = bits.Sub64(uint64(a.remaining), uint64(b.remaining), less)
	_, less = bits.Sub64(uint64(b.wait), uint64(a.wait), less)
	return int(less)
}

// decide returns the TAT of a bucket after a spend of cost tokens at the instant
// now, and its state then. Before the instant notBefore it denies, and the TAT
// stays as it was. It takes 0 ≤ cost ≤ burst.
func (r *rule) decide(tat, now, cost, notBefore int64) (next int64, found state) {
	at := r.at(now)
	next, found.wait = r.rate.spend(tat, at, cost)
	if found.wait != 0 && at != now {
		found.wait = at - now
	}
	if early := notBefore - now; early > found.wait {
		next, found.wait = tat, early
	}
	found.remaining, found.reset = r.holds(next, now, at)
	return next, found
}

// holds returns the tokens in a bucket with this TAT, and the time until it is
// full.
func (r *rule) holds(tat, now, at int64) (remaining, reset int64) {
	reset = resetAfter(tat, at)
	remaining = r.rate.left(reset)
	if at != now && reset != 0 {
		reset = at - now
	}
	return remaining, reset
}
