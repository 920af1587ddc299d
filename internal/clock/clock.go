package clock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the wall clock of its start plus the monotonic time since. A wall
// clock that cannot be right is left aside until it can.
type Clock struct {
	simulated func() time.Time // replaces both clocks; may be nil
	end       int64            // latest instant
	base      time.Time        // start, with its monotonic reading
	start     int64            // the time at base
	ahead     atomic.Int64     // sum of the steps forward

	mu       sync.Mutex       // guards the fields below
	wall     func() time.Time // the wall clock
	behind   int64            // lag of the wall clock at the last Follow
	doubt    error            // why the wall clock was not believed at the begin; nil once it is
	forward  int64            // steps ahead so far
	backward int64            // steps back so far
	stepped  chan struct{}
}

// smallestStep separates a step from drift: a wall clock that a time server
// disciplines drifts by less between two calls of Follow.
const smallestStep = int64(250 * time.Millisecond)

// A wall clock is not believed if it is before the release of this version, or
// so far ahead of the last save that no device is switched off for so long.
var earliest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

const (
	farAhead  = 10 * 365 * 24 * int64(time.Hour)
	farBehind = 24 * int64(time.Hour)
)

// New returns a Clock that ends at the instant end. If simulated is not nil,
// the Clock tells its time instead. wall is the wall clock; nil means the
// system's.
func New(simulated, wall func() time.Time, end int64) *Clock {
	c := &Clock{simulated: simulated, end: end, wall: wall, base: time.Now(), stepped: make(chan struct{})}
	if wall == nil {
		c.wall = time.Now
	}
	c.start = c.Instant(c.wall())
	return c
}

// Begin compares the wall clock with the time of the last save, or 0. If the
// wall clock is wrong, time goes on from there, until Follow finds it right.
// Begin returns how far it is from the save then, or 0.
//
// It is wrong if it is behind the save by at most a day, or before the release
// of this version, or far ahead. If it is behind by more than a day, the save
// is what was wrong.
func (c *Clock) Begin(seen int64) time.Duration {
	if c.simulated != nil || seen == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	step := c.start - seen
	if step >= 0 && step <= farAhead || step < -farBehind && c.start >= earliest {
		return 0
	}
	c.doubt = fmt.Errorf("stint: the clock says %s and the last save was at %s: time goes on from the save, "+
		"until the clock is right", time.Unix(0, c.start).UTC().Format(time.RFC3339),
		time.Unix(0, seen).UTC().Format(time.RFC3339))
	c.start, c.behind = seen, max(0, -step)
	return time.Duration(step)
}

// Health returns why the wall clock is not believed since Begin, or nil.
func (c *Clock) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubt
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

// Follow sets the Clock ahead if the wall clock is ahead of it, unless it is
// years ahead. It returns the step that the wall clock made since the last
// call, or 0.
func (c *Clock) Follow() (step time.Duration) {
	if c.simulated != nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	behind := c.Now() - c.Instant(c.wall())
	if behind < -farAhead {
		return 0
	}
	moved := c.behind - behind // positive if the wall clock gained
	if behind <= 0 {
		c.doubt = nil
	}
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
