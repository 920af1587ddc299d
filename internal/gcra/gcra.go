package gcra

import "math/bits"

const (
	MaxTolerance = 36525 * 24 * 60 * 60 * 1e9 // 100 years of 365.25 days
	EndOfTime    = 1<<63 - 1 - MaxTolerance   // the year 2162: now + τ is an int64 for every limit
)

// Rate is a limit in the form that the arithmetic uses.
type Rate struct {
	Burst     int64
	Interval  int64   // T: nanoseconds a token takes to come back
	Tolerance int64   // τ = burst·T: nanoseconds an empty bucket takes to refill
	tokens    divisor // by T
	halves    divisor // by τ÷16, half of a lease
}

// divisor divides by means of a multiplication, because a division costs as
// much as the rest of a decision.
type divisor struct {
	n          int64
	reciprocal uint64 // ⌊(2⁶⁴−1)÷n⌋
}

func newDivisor(n int64) divisor { return divisor{n, (1<<64 - 1) / uint64(max(n, 1))} }

// quotient returns ⌊x÷n⌋, for x ≥ 0.
func (d *divisor) quotient(x int64) int64 {
	high, _ := bits.Mul64(uint64(x), d.reciprocal) // ⌊x÷n⌋, or one less
	q := int64(high)
	if x-q*d.n >= d.n {
		q++
	}
	return q
}

// New returns the rate of a limit, or the field that is out of range and
// its valid values.
func New(burst, count, period int64) (r Rate, field, want string) {
	switch {
	case burst < 1:
		return Rate{}, "burst", "at least 1"
	case period < 1:
		return Rate{}, "period", "more than 0"
	case count < 1:
		return Rate{}, "count", "at least 1"
	case count > period:
		return Rate{}, "count", "at most 1 per nanosecond of the period"
	}
	interval := (period-1)/count + 1
	if burst > MaxTolerance/interval {
		return Rate{}, "burst", "a bucket that refills within 100 years"
	}
	tolerance := burst * interval
	return Rate{burst, interval, tolerance, newDivisor(interval), newDivisor(tolerance / 16)}, "", ""
}

// instant returns now within the range that the arithmetic is exact in.
func instant(now int64) int64 { return min(max(now, 0), EndOfTime) }

// Spend returns the TAT after a spend of cost tokens, and 0. If it is denied,
// Spend returns the TAT as it was, and the nanoseconds until it would be
// allowed. It takes 0 ≤ cost ≤ burst, and any tat and now.
func (r *Rate) Spend(tat, now, cost int64) (next, retryAfter int64) {
	now = instant(now)
	base := max(now, tat)
	need := cost * r.Interval
	if over := base - now - (r.Tolerance - need); over > 0 {
		return tat, over
	}
	return base + need, 0
}

// Reserve returns the TAT after cost tokens are taken, and the nanoseconds
// until all of them are there. ok is false if the TAT would leave the range of
// an int64.
func (r *Rate) Reserve(tat, now, cost int64) (next, delay int64, ok bool) {
	now = instant(now)
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
	now = instant(now)
	if tat <= now {
		return tat
	}
	if cost > (tat-now)/r.Interval {
		return now
	}
	return tat - cost*r.Interval
}

// Clamp returns the TAT, or now + τ if the TAT is further ahead. No spend
// leaves such a TAT: the clock was set back, or the limit was made smaller. No
// request waits longer than an empty bucket takes to refill.
func (r *Rate) Clamp(tat, now int64) int64 { return min(tat, instant(now)+r.Tolerance) }

// Remaining returns the tokens in the bucket, rounded down, within [0, burst].
func (r *Rate) Remaining(tat, now int64) int64 {
	free := r.Tolerance - ResetAfter(tat, now)
	if free <= 0 {
		return 0
	}
	return r.tokens.quotient(free)
}

// ResetAfter returns the nanoseconds until the bucket is full.
func ResetAfter(tat, now int64) int64 {
	now = instant(now)
	return max(now, tat) - now
}

// Lease returns the end of the half lease that a TAT is in, and the end of the
// next half lease. A half lease is a stretch of τ÷16. The store gets the second
// result, which is at most an eighth of τ ahead of the TAT. Half leases of a
// limit end at the same instants for every bucket, so a bucket need not
// remember which TAT the store has.
func (r *Rate) Lease(tat int64) (end, next int64) {
	step := r.halves.n
	if step == 0 || tat > EndOfTime {
		return tat, tat
	}
	end = r.halves.quotient(tat+step-1) * step
	return end, end + step
}

// Need is when the store must have a change.
type Need uint8

const (
	NeedNone  Need = iota
	NeedSoon       // no caller waits for it: half a lease is left
	NeedFirst      // before the caller is answered
)

// Renew returns the lease that a bucket needs when its TAT moves from one
// instant to a later one, and when the store must have it. covered means that
// the store has the half lease of the first instant. ahead means that it has
// the next half lease too. pending means that a commit is about to save a
// lease.
func (r *Rate) Renew(from, to int64, covered, ahead, pending bool) (tat int64, when Need) {
	end, tat := r.Lease(to)
	step := tat - end
	sameHalf := from <= end && from > end-step
	nextHalf := from <= end-step && from > end-2*step
	switch {
	case covered && sameHalf && (ahead || pending):
		return tat, NeedNone
	case covered && (sameHalf || nextHalf && ahead):
		return tat, NeedSoon
	}
	return tat, NeedFirst
}
