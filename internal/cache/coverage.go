package cache

import (
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

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
func renew(l *gcra.Lease, from, to int64, meta uint64) (tat int64, when need) {
	end, tat := l.Of(to)
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
