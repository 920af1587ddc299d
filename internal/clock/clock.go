package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the wall clock of its start plus the monotonic time since.
type Clock struct {
	simulated func() time.Time // replaces both clocks; may be nil
	end       int64            // latest instant
	base      time.Time        // start, with its monotonic reading
	start     int64            // wall clock at base
	ahead     atomic.Int64     // sum of the steps forward

	mu       sync.Mutex       // guards the fields below
	wall     func() time.Time // the wall clock
	behind   int64            // lag of the wall clock at the last Follow
	forward  int64            // steps ahead so far
	backward int64            // steps back so far
	stepped  chan struct{}
}

// smallestStep separates a step from drift. A time server corrects a wall clock
// by less than this between two calls of Follow.
const smallestStep = int64(250 * time.Millisecond)

// New returns a Clock that ends at the instant end. If simulated is not nil,
// the Clock tells its time instead.
func New(simulated func() time.Time, end int64) *Clock {
	base := time.Now()
	c := &Clock{
		simulated: simulated,
		end:       end,
		wall:      time.Now,
		base:      base,
		stepped:   make(chan struct{}),
	}
	c.start = c.Instant(base)
	return c
}

// Now returns the time in Unix nanoseconds.
func (c *Clock) Now() int64 {
	if c.simulated != nil {
		return c.Instant(c.simulated())
	}
	return c.start + c.ahead.Load() + int64(time.Since(c.base))
}

// Instant returns t in Unix nanoseconds, within the range of the Clock.
func (c *Clock) Instant(t time.Time) int64 {
	if t.Before(time.Unix(0, 0)) {
		return 0
	}
	if t.After(time.Unix(0, c.end)) {
		return c.end
	}
	return t.UnixNano()
}

// Follow sets the Clock ahead if the wall clock is ahead of it. It returns
// the step that the wall clock made since the last call, or 0.
func (c *Clock) Follow() (step time.Duration) {
	if c.simulated != nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	behind := c.Now() - c.Instant(c.wall())
	moved := c.behind - behind // positive if the wall clock gained
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

// SetWall replaces the wall clock that Follow reads. It is for tests.
func (c *Clock) SetWall(wall func() time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = wall
}

// NextStep returns a channel that is closed at the next step forward.
func (c *Clock) NextStep() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepped
}

// Steps returns how often the wall clock stepped ahead, and how often back.
func (c *Clock) Steps() (forward, backward int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forward, c.backward
}
