package gcra

import "github.com/stint-go/stint/internal/reciprocal"

// Lease has the arithmetic of a rule's leases. A lease is a TAT that the store
// has ahead of the bucket: until the bucket reaches it, nothing need be saved.
type Lease struct {
	half    int64 // half of a lease
	perHalf reciprocal.Reciprocal
}

// newLease returns the leases of a rule with a tolerance τ, in nanoseconds: a
// lease is at most an eighth of τ.
func newLease(tolerance int64) Lease {
	return Lease{tolerance / 16, reciprocal.Of(tolerance / 16)}
}

// newQuotaLease returns the leases of a quota of the calendar, of which a token is
// a nanosecond. What a crash withholds of it comes back only at the end of the
// period, so a lease is at most a hundredth of the quota, or one token. TestQuotaLeases
// has what that costs in commits.
func newQuotaLease(quota int64) Lease {
	half := max(1, quota/200)
	return Lease{half, reciprocal.Of(half)}
}

// Of returns the end of the half lease that a TAT is in, and the end of the
// next half lease. The store gets the second result, which is less than two halves
// ahead of the TAT. Half leases of a
// rule end at the same instants for every bucket, so a bucket need not
// remember which TAT the store has. After the end of time there are none.
func (l *Lease) Of(tat int64) (end, next int64) {
	step := l.half
	if step == 0 || tat > EndOfTime {
		return tat, tat
	}
	end = l.perHalf.Quotient(tat+step-1, step) * step
	return end, end + step
}
