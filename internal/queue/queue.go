package queue

import (
	"cmp"
	"math"
	"slices"
)

// Turn is one waiting request.
type Turn struct {
	At   int64 // instant at which it may go, Unix nanoseconds
	Cost int64 // tokens
	Rate Rate  // rate of this turn; zero means the r of Advance and Tail
	// Charged says that Advance has charged the turn. Take does not set it.
	Charged bool

	left bool  // its caller has left
	tail int64 // TAT after it, if it is one of Queue.known
}

// Rate is the part of a limit that the arithmetic needs.
type Rate struct {
	Interval  int64 // nanoseconds in which a token comes back
	Tolerance int64 // nanoseconds in which an empty bucket refills
}

// Queue holds the waiting turns of a bucket in the order of their instants. It
// remembers the TAT after each turn, so a bucket with many turns is not slow.
type Queue struct {
	turns  []*Turn
	tokens int64 // cost of all turns
	known  int   // how many turns, from the first, have a tail
	tat    int64 // of the bucket, from which the tails go on
	rate   Rate  // of the tails
}

// Len returns the number of turns that Advance has not charged.
func (q *Queue) Len() int { return len(q.turns) }

// Waiting returns the number of turns that come after now.
func (q *Queue) Waiting(now int64) int {
	n := len(q.turns)
	for n > 0 && q.turns[len(q.turns)-n].At <= now {
		n--
	}
	return n
}

// Join adds a turn to the end. Its instant must not be before Last.
func (q *Queue) Join(t *Turn) {
	q.turns = append(q.turns, t)
	q.tokens += t.Cost
}

// Leave removes a turn, and reports whether it was still waiting. Put leaves it
// out from then on.
func (q *Queue) Leave(t *Turn) bool {
	t.left = true
	i, _ := slices.BinarySearchFunc(q.turns, t.At, func(u *Turn, at int64) int { return cmp.Compare(u.At, at) })
	for ; i < len(q.turns) && q.turns[i].At == t.At; i++ {
		if q.turns[i] == t {
			q.deleteAt(i)
			return true
		}
	}
	return false
}

// deleteAt removes a turn, and corrects the tails of those behind it, up to the
// first that stays the same: then all further ones do.
func (q *Queue) deleteAt(i int) {
	tail := q.tat
	if 0 < i && i <= q.known {
		tail = q.turns[i-1].tail
	}
	for _, t := range q.turns[min(i+1, q.known):q.known] {
		old := t.tail
		if tail = q.rate.charge(tail, t); tail == old {
			break
		}
		t.tail = tail
	}
	q.tokens -= q.turns[i].Cost
	if i < q.known {
		q.known--
	}
	if i > len(q.turns)/2 {
		q.turns = slices.Delete(q.turns, i, i+1)
	} else { // move the shorter part
		copy(q.turns[1:], q.turns[:i])
		q.dropFirst(1)
	}
}

// dropFirst removes the first n turns.
func (q *Queue) dropFirst(n int) {
	clear(q.turns[:n])
	q.turns = q.turns[n:]
}

// Take empties the queue and returns its turns. Put is the inverse.
func (q *Queue) Take() []*Turn {
	turns := q.turns
	q.turns, q.tokens, q.known = nil, 0, 0
	return turns
}

// Put gives an empty queue the turns that Take returned, except those that have
// left since.
func (q *Queue) Put(turns []*Turn) {
	if len(q.turns) > 0 {
		return
	}
	for _, t := range turns {
		if !t.left {
			q.Join(t)
		}
	}
}

// Last returns the instant of the last turn, or 0.
func (q *Queue) Last() int64 {
	if len(q.turns) == 0 {
		return 0
	}
	return q.turns[len(q.turns)-1].At
}

// Tokens returns the cost of all turns.
func (q *Queue) Tokens() int64 { return q.tokens }

// Advance charges the turns whose instant has come, and returns the TAT.
func (q *Queue) Advance(tat, now int64, r Rate) int64 {
	q.startAt(tat, r)
	came := 0
	for ; came < len(q.turns) && q.turns[came].At <= now; came++ {
		t := q.turns[came]
		tat, t.Charged = r.charge(tat, t), true
		q.tokens -= t.Cost
	}
	q.dropFirst(came)
	q.known, q.tat = max(0, q.known-came), tat
	return tat
}

// Tail returns the TAT after all turns.
func (q *Queue) Tail(tat int64, r Rate) int64 {
	q.startAt(tat, r)
	if q.known > 0 {
		tat = q.turns[q.known-1].tail
	}
	for ; q.known < len(q.turns); q.known++ {
		t := q.turns[q.known]
		tat = r.charge(tat, t)
		t.tail = tat
	}
	return tat
}

// startAt forgets the tails if they do not go on from this TAT at this rate.
func (q *Queue) startAt(tat int64, r Rate) {
	if q.tat != tat || q.rate != r {
		q.known, q.tat, q.rate = 0, tat, r
	}
}

// charge returns the TAT after a turn went at its instant. The limit may have
// become smaller since the turn joined. So the turn takes no more than if it left
// the bucket empty at that instant. It gives nothing back, either: the TAT may be
// later than that, if the turn has a smaller limit of its own.
func (r Rate) charge(tat int64, t *Turn) int64 {
	if t.Rate != (Rate{}) {
		r = t.Rate
	}
	empty := add(t.At, r.Tolerance)
	if t.Cost > empty/r.Interval {
		return max(tat, empty)
	}
	return max(tat, min(add(max(tat, t.At), t.Cost*r.Interval), empty))
}

// Delay makes all turns later by the same time, so that the first does not go
// before `until`. It reports whether any moved.
func (q *Queue) Delay(until int64) bool {
	if len(q.turns) == 0 || q.turns[0].At >= until {
		return false
	}
	later := until - q.turns[0].At
	for _, t := range q.turns {
		t.At = add(t.At, later)
	}
	q.known = 0
	return true
}

// add returns a + b for a, b ≥ 0, or the largest int64.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
