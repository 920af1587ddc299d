package cache

import (
	"github.com/stint-go/stint/internal/reciprocal"
	"github.com/stint-go/stint/internal/table"
)

// Lease has the arithmetic of a rule's leases. A lease is a TAT that the store
// has ahead of the bucket: until the bucket reaches it, nothing need be saved.
type Lease struct {
	half    int64 // τ÷16
	perHalf reciprocal.Reciprocal
}

// NewLease returns the leases of a rule with a tolerance τ, in nanoseconds.
func NewLease(tolerance int64) Lease {
	return Lease{tolerance / 16, reciprocal.Of(tolerance / 16)}
}

// EndOfTime is the last instant at which a bucket has a lease: the year 2162. An
// instant and a tolerance of 100 years after it are less than 2⁶³ nanoseconds.
const EndOfTime = 1<<63 - 1 - 36525*24*60*60*1e9

// of returns the end of the half lease that a TAT is in, and the end of the
// next half lease. A half lease is a stretch of τ÷16. The store gets the second
// result, which is at most an eighth of τ ahead of the TAT. Half leases of a
// rule end at the same instants for every bucket, so a bucket need not
// remember which TAT the store has.
func (l *Lease) of(tat int64) (end, next int64) {
	step := l.half
	if step == 0 || tat > EndOfTime {
		return tat, tat
	}
	end = l.perHalf.Quotient(tat+step-1, step) * step
	return end, end + step
}

// need is when the store must have a change.
type need uint8

// The needs, the least first.
const (
	needNone  need = iota
	needSoon       // no caller waits for it: half a lease is left
	needFirst      // before the caller is answered
)

// renew returns the lease that a bucket needs when its TAT moves from one
// instant to another, and when the store must have it. meta is the meta word
// of the bucket's slot.
func (l *Lease) renew(from, to int64, meta uint64) (tat int64, when need) {
	end, tat := l.of(to)
	half := tat - end
	sameHalf := from <= end && from > end-half
	nextHalf := from <= end-half && from > end-2*half
	has := meta&table.Covered != 0    // the store has the half lease that the TAT is in
	next := meta&table.Ahead != 0     // it has the half lease after that, too
	coming := meta&table.Pending != 0 // a commit that has not ended saves a lease
	switch {
	case has && sameHalf && (next || coming):
		return tat, needNone
	case has && (sameHalf || nextHalf && next):
		return tat, needSoon
	}
	return tat, needFirst
}
