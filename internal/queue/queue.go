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
	// Sooner wakes a caller that sleeps until the turn, if it comes sooner than the
	// caller has Seen. A nil channel means that no caller sleeps.
	Sooner chan struct{}
	Seen   int64 // instant until which the caller sleeps

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
// out from then on. Those behind it move up, but not before start.
func (q *Queue) Leave(t *Turn, tat, start int64, r Rate) bool {
	t.left = true
	i, _ := slices.BinarySearchFunc(q.turns, t.At, func(u *Turn, at int64) int { return cmp.Compare(u.At, at) })
	for ; i < len(q.turns) && q.turns[i].At == t.At; i++ {
		if q.turns[i] == t {
			q.startAt(tat, r)
			q.deleteAt(i)
			q.moveUp(i, start)
			q.wake()
			return true
		}
	}
	return false
}

// deleteAt removes a turn, and forgets the tails of those behind it.
func (q *Queue) deleteAt(i int) {
	q.tokens -= q.turns[i].Cost
	q.known = min(q.known, i)
	if i > len(q.turns)/2 {
		q.turns = slices.Delete(q.turns, i, i+1)
	} else { // move the shorter part
		copy(q.turns[1:], q.turns[:i])
		q.dropFirst(1)
	}
}

// moveUp gives each turn from the i-th on the instant that it would have if it
// joined now, behind those before it, unless it goes earlier already.
func (q *Queue) moveUp(i int, start int64) {
	tail := q.tailOf(i)
	if i > 0 {
		start = max(start, q.turns[i-1].At)
	}
	for _, t := range q.turns[i:] {
		own := q.rate.of(t)
		t.At = min(t.At, max(start, own.charged(max(start, tail), t.Cost)-own.Tolerance))
		tail = q.rate.charge(tail, t)
		start, t.tail = t.At, tail
	}
	q.known = len(q.turns)
}

// wake wakes the first caller that sleeps, if its turn comes sooner than it knows.
// When that turn comes, it is the turn of the next one to be told.
func (q *Queue) wake() {
	for _, t := range q.turns {
		if t.Sooner != nil {
			t.wake()
			return
		}
	}
}

func (t *Turn) wake() {
	if t.Sooner == nil || t.At >= t.Seen {
		return
	}
	t.Seen = t.At
	select {
	case t.Sooner <- struct{}{}:
	default: // it has not seen the last one yet
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
	for _, t := range turns {
		t.wake()
	}
	q.turns, q.tokens, q.known = nil, 0, 0
	return turns
}

// Put gives an empty queue the turns that Take returned, except those that have
// left since. Those behind them move up, but not before start.
func (q *Queue) Put(turns []*Turn, tat, start int64, r Rate) {
	if len(q.turns) > 0 {
		return
	}
	gap := -1
	for _, t := range turns {
		if !t.left {
			q.Join(t)
		} else if gap < 0 {
			gap = len(q.turns)
		}
	}
	if gap >= 0 {
		q.startAt(tat, r)
		q.moveUp(gap, start)
		q.wake()
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
	if came > 0 {
		q.wake()
	}
	return tat
}

// Tail returns the TAT after all turns.
func (q *Queue) Tail(tat int64, r Rate) int64 {
	q.startAt(tat, r)
	return q.tailOf(len(q.turns))
}

// tailOf returns the TAT after the first n turns.
func (q *Queue) tailOf(n int) int64 {
	for ; q.known < n; q.known++ {
		tail := q.tat
		if q.known > 0 {
			tail = q.turns[q.known-1].tail
		}
		q.turns[q.known].tail = q.rate.charge(tail, q.turns[q.known])
	}
	if n == 0 {
		return q.tat
	}
	return q.turns[n-1].tail
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
	r = r.of(t)
	empty := add(t.At, r.Tolerance)
	return max(tat, min(r.charged(max(tat, t.At), t.Cost), empty))
}

// charged returns the TAT after so many tokens, or the largest int64.
func (r Rate) charged(tat, cost int64) int64 {
	if cost > (math.MaxInt64-tat)/r.Interval {
		return math.MaxInt64
	}
	return tat + cost*r.Interval
}

// of returns the rate of a turn.
func (r Rate) of(t *Turn) Rate {
	if t.Rate != (Rate{}) {
		return t.Rate
	}
	return r
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
