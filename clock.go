package stint

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock tells the time of decisions: the wall clock as it stood at the start, and the monotonic clock since. It runs ahead
// when the wall clock does, and never goes back.
type clock struct {
	simulated func() time.Time // instead of all this
	base      time.Time        // with the monotonic reading of the start
	start     int64            // the wall clock then, Unix nanoseconds
	ahead     atomic.Int64     // how far it was set ahead since

	wall func() int64 // Unix nanoseconds

	mu       sync.Mutex // guards what follows
	behind   int64      // how far the wall clock was behind when last looked at
	forward  int64      // steps so far
	backward int64
	stepped  chan struct{} // closed, and replaced, at a step forward
}

// A wall clock that is disciplined by a time server drifts from the monotonic one by less than this in a while; what
// is more is a step.
const smallestStep = int64(250 * time.Millisecond)

func newClock(simulated func() time.Time) *clock {
	base := time.Now()
	return &clock{
		simulated: simulated,
		base:      base,
		start:     unixNano(base),
		wall:      func() int64 { return unixNano(time.Now()) },
		stepped:   make(chan struct{}),
	}
}

// now returns Unix nanoseconds.
func (c *clock) now() int64 {
	if c.simulated != nil {
		return unixNano(c.simulated())
	}
	return c.start + c.ahead.Load() + int64(time.Since(c.base))
}

// follow compares the two clocks, and sets this one ahead where the wall clock is. It returns the step that the wall
// clock made since it was last called: 0 where it made none.
func (c *clock) follow() (step time.Duration) {
	if c.simulated != nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	behind := c.now() - c.wall()
	moved := c.behind - behind // since last time: positive where the wall clock gained
	if behind < 0 {
		c.ahead.Add(-behind)
		behind = 0
	}
	c.behind = behind
	switch {
	case moved >= smallestStep:
		c.forward++
		close(c.stepped)
		c.stepped = make(chan struct{})
	case moved <= -smallestStep:
		c.backward++
	default:
		return 0
	}
	return time.Duration(moved)
}

// step returns a channel that is closed when the clock next steps forward.
func (c *clock) step() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepped
}

// steps returns how often the wall clock stepped ahead, and back.
func (c *clock) steps() (forward, backward int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forward, c.backward
}

// unixNano returns t in Unix nanoseconds, or the end of the arithmetic's range that it is beyond.
func unixNano(t time.Time) int64 {
	if t.Before(time.Unix(0, 0)) {
		return 0
	}
	if t.After(time.Unix(0, endOfTime)) {
		return endOfTime
	}
	return t.UnixNano()
}
