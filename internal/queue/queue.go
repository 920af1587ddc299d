package queue

import (
	"math"
	"slices"
)

// Turn is one waiting request.
type Turn struct {
	At   int64 // instant at which it may go, Unix nanoseconds
	Cost int64 // tokens
	Rate Rate  // rate of this turn; zero means the r of Advance and Tail
}

// Rate is the part of a limit that the arithmetic needs.
type Rate struct {
	Interval  int64 // nanoseconds in which a token comes back
	Tolerance int64 // nanoseconds in which an empty bucket refills
}

// Queue holds the waiting turns of a bucket in the order of their instants.
type Queue struct{ turns []*Turn }

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
func (q *Queue) Join(t *Turn) { q.turns = append(q.turns, t) }

// Leave removes a turn, and reports whether it was still waiting.
func (q *Queue) Leave(t *Turn) bool {
	i := slices.Index(q.turns, t)
	if i < 0 {
		return false
	}
	q.turns = slices.Delete(q.turns, i, i+1)
	return true
}

// Take empties the queue and returns its turns. Put is the inverse.
func (q *Queue) Take() []*Turn {
	turns := q.turns
	q.turns = nil
	return turns
}

// Put gives an empty queue the turns that Take returned.
func (q *Queue) Put(turns []*Turn) {
	if len(q.turns) == 0 {
		q.turns = turns
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
func (q *Queue) Tokens() (n int64) {
	for _, t := range q.turns {
		n += t.Cost
	}
	return n
}

// Advance charges the turns whose instant has come, and returns the TAT.
func (q *Queue) Advance(tat, now int64, r Rate) int64 {
	came := 0
	for ; came < len(q.turns) && q.turns[came].At <= now; came++ {
		tat = r.charge(tat, q.turns[came])
	}
	q.turns = slices.Delete(q.turns, 0, came)
	return tat
}

// Tail returns the TAT after all turns.
func (q *Queue) Tail(tat int64, r Rate) int64 {
	for _, t := range q.turns {
		tat = r.charge(tat, t)
	}
	return tat
}

// charge returns the TAT after a turn went at its instant. The limit may have
// become smaller since the turn joined. So the TAT is never later than if the
// bucket were empty at that instant.
func (r Rate) charge(tat int64, t *Turn) int64 {
	if t.Rate != (Rate{}) {
		r = t.Rate
	}
	empty := add(t.At, r.Tolerance)
	if t.Cost > empty/r.Interval {
		return empty
	}
	return min(add(max(tat, t.At), t.Cost*r.Interval), empty)
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
	return true
}

// add returns a + b for a, b ≥ 0, or the largest int64.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
