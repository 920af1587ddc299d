package clock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the time of the wall clock at its start plus the monotonic time
// since. It ignores a wall clock that cannot be right.
type Clock struct {
	simulated func() time.Time // replaces both clocks; may be nil
	end       int64            // latest instant
	base      time.Time        // start, with its monotonic reading
	start     int64            // the time at base
	ahead     atomic.Int64     // sum of the steps forward

	mu       sync.Mutex       // guards the fields below
	wall     func() time.Time // the wall clock
	behind   int64            // lag of the wall clock at the last Follow
	doubt    error            // reason to doubt the wall clock; may be nil
	forward  int64            // steps ahead so far
	backward int64            // steps back so far
	stepped  chan struct{}
}

// smallestStep separates a step from drift. A time server corrects a wall clock
// by less than this between two calls of Follow.
const smallestStep = int64(250 * time.Millisecond)

// A wall clock is not believed if it is before the release of this version.
var earliest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

const (
	// A wall clock is not believed either if it is this far ahead of the last
	// save. A device that was really off for that long loses little. If the wall
	// clock is after the release, and this far behind the last save, it is
	// believed: the clock was wrong at the save.
	farAhead = 10 * 365 * 24 * int64(time.Hour)

	// A wall clock that is at most this far behind the last save is believed. It
	// was set back a little after the save.
	littleBehind = 5 * int64(time.Second)

	// If a wall clock that says 2026 or later is still behind after this time, it
	// is believed: the clock was wrong at the save.
	patience = time.Hour
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

// Begin compares the wall clock with seen, the time of the last save; 0 means
// none. If the wall clock is behind it, or ten years ahead, time goes on from
// the save until Follow finds the wall clock right. Begin returns how far a
// wall clock that is not believed is from the save, and 0 if the wall clock is
// believed.
func (c *Clock) Begin(seen int64) time.Duration {
	if c.simulated != nil || seen == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	step := c.start - seen
	if step >= 0 && (step <= farAhead || seen < earliest) || step < -farAhead && c.start >= earliest {
		return 0
	}
	said := c.start
	c.start, c.behind = seen, max(0, -step)
	if c.behind > 0 && c.behind <= littleBehind {
		return 0
	}
	c.doubt = fmt.Errorf("stint: the clock says %s and the last save was at %s: time goes on from the save, "+
		"until the clock is right", time.Unix(0, said).UTC().Format(time.RFC3339),
		time.Unix(0, seen).UTC().Format(time.RFC3339))
	return time.Duration(step)
}

// Health returns the reason why the wall clock is not believed, or nil.
func (c *Clock) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubt
}

// Seen returns the time to store with a save, for Begin of the next process. It
// is the time of the wall clock, or Now if the wall clock is not believed. If
// the wall clock was set back, Now is ahead of it. But the next process starts
// at the wall clock.
func (c *Clock) Seen() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doubt != nil || c.simulated != nil {
		return c.Now()
	}
	return max(0, c.Now()-c.behind)
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

// Follow sets the Clock ahead if the wall clock is ahead of it. It ignores a
// wall clock ten years ahead, unless the Clock itself is before the release of
// this version. It returns the step that the wall clock made since the last
// call, or 0.
func (c *Clock) Follow() (step time.Duration) {
	if c.simulated != nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, wall := c.Now(), c.Instant(c.wall())
	behind := now - wall
	if behind < -farAhead && now >= earliest {
		return 0
	}
	moved := c.behind - behind // positive if the wall clock gained
	if behind <= littleBehind || wall >= earliest && time.Since(c.base) >= patience {
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
