package stint

import (
	"math"
	"time"
)

// Mode says what part a Request has in a SpendAll or Do.
type Mode uint8

// The modes. CheckAndSpend is the zero Mode.
//
// UpTo takes none from a bucket that is held, has a queue, or is Blocked, and all
// from one without a limit. The cost may be over the limit's Burst. Decision.Taken
// says how many it took, and the rest of the Decision is that of a spend of so
// many. If the limit is a share of a total, it takes what ceiling, floor and total
// have.
const (
	CheckAndSpend Mode = iota // takes part in the decision, and spends
	CheckOnly                 // takes part in the decision, and spends nothing
	SpendOnly                 // takes no part in the decision, and spends if it can
	UpTo                      // takes as many of its tokens as there are; the request must be alone
)

// Request is one of several that are decided together.
//
// Limit is for programs that find the limit of a request themselves, such as
// the plan of a customer. It replaces the configured one for this request, at
// its own Durability, and may differ from request to request: a bucket is one
// number, whatever the limits are. Each request is held to its own limit, and all
// together spend no more than the largest allows, if all of them follow the same
// calendar, or none follows one. A bucket that was emptied under a larger limit
// has no tokens for a smaller one until its ResetAfter is less than the smaller
// one's Tolerance. A bucket that is read from the file is cut down to the larger
// of the given and the configured limit: what a still larger one used beyond that
// is forgotten, unless the limit is a quota that follows the calendar. A Check does
// so, too, and so does the first request after a change of the configured limit,
// even in memory. Stats count such a request like others.
//
// If the Limit is not the configured one, a Leased limit commits every request
// as a Synced one does. A mistake in it is a ConfigError, and nothing is spent.
type Request struct {
	Key   Key
	Cost  int64 // in tokens, usually 1; a request that costs 0 spends nothing
	Mode  Mode
	Limit Limit // zero: the configured one

	// Spent is for Refund: the instant of the spend, as Wait returns it, or an
	// instant before that, by Limiter.Now. The refund leaves out what has come
	// back with time since. JustSpent says that the instant is not known. If
	// SetOverrides has given the id a slower limit since the spend, the refund may
	// return tokens that came back under the faster one.
	Spent time.Time
}

// SpentAt returns the request with that Spent.
func (r Request) SpentAt(t time.Time) Request {
	r.Spent = t
	return r
}

// JustSpent is the Spent of a refund that returns the whole cost, as if the tokens
// had been taken at this moment. It is for callers that do not know the instant,
// such as an operator. If some tokens have come back with time since the spend, the
// bucket then admits more than its limit.
var JustSpent = time.Unix(0, math.MaxInt64)
