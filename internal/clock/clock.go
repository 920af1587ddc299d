package clock

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the time of the wall clock at its start plus the monotonic time
// since. It ignores a wall clock that cannot be right.
type Clock struct {
	simulated func() time.Time // replaces both clocks; may be nil
	end       int64            // latest instant
	base      time.Time        // a moment at the start, with its monotonic reading
	start     int64            // the time at base, by the wall clock or the file
	ahead     atomic.Int64     // sum of the steps forward

	mu       sync.Mutex       // guards the fields below
	wall     func() time.Time // the wall clock
	behind   int64            // lag of the wall clock at the last Follow
	doubt    error            // reason to doubt the wall clock; may be nil
	wrong    bool             // the wall clock is behind, or too far ahead
	up       int64            // machine time at base, at most
	unsure   int64            // how much less the machine time at base may be
	last     int64            // time of the last save before Begin; 0 if none
	was      Record           // in the file at Begin
	record   Record
	unsaved  bool  // the file may have another record
	forward  int64 // steps ahead so far
	backward int64 // steps back so far
	stepped  chan struct{}
}

// smallestStep separates a step from drift. A time server corrects a wall clock
// by less than this between two calls of Follow.
const smallestStep = int64(250 * time.Millisecond)

// A wall clock is not believed if it is before the release of this version.
var earliest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

const (
	// A wall clock is not believed either if it is this far ahead of the file's
	// time. A device that was really off for that long loses little. If the wall
	// clock is after the release, and this far behind the file's time, it is
	// believed: the clock was wrong at the save.
	farAhead = 10 * 365 * 24 * int64(time.Hour)

	// A wall clock that is at most this far behind the file's time is believed. It
	// was set back a little after the save.
	littleBehind = 5 * int64(time.Second)

	// If a wall clock that says 2026 or later has been behind for this time, while
	// the machine was running, it is believed: the clock was wrong at the save.
	patience = int64(time.Hour)

	// startSlack is the error of Record.Start that is not worth a save.
	startSlack = int64(time.Second)
)

// New returns a Clock that ends at the instant end. If simulated is not nil,
// the Clock tells its time instead. wall is the wall clock, and machine the time
// that the machine has been running; nil means the system's. With a wall and
// without a machine, only the time of this Clock counts.
func New(simulated, wall func() time.Time, machine Machine, end int64) *Clock {
	c := &Clock{simulated: simulated, end: end, wall: wall, up: 1, stepped: make(chan struct{})}
	if simulated != nil {
		return c
	}
	if wall == nil {
		c.wall = time.Now
		if machine == nil {
			machine = system
		}
	}
	c.start, c.base = c.readBoth()
	if machine != nil {
		c.record.Boot, c.up = machine(c.start)
		c.up = max(1, c.up)
	}
	if c.record.kernel() {
		c.unsure = int64(time.Since(c.base))
	}
	return c
}

// readBoth reads the wall clock, and then the monotonic one. The process may be
// stopped between the two. In this order the Clock is late then, and never ahead,
// and the next Follow corrects it. But the next process that has the file may be
// less late, and gives each bucket the difference, so the readings that are closest
// together count.
func (c *Clock) readBoth() (start int64, base time.Time) {
	const tries, close = 8, 10 * time.Microsecond
	least := time.Duration(math.MaxInt64)
	before := time.Now()
	for range tries {
		is := c.wall()
		after := time.Now()
		if gap := after.Sub(before); gap <= least { // the machine time is read soon after the last
			start, base, least = c.Instant(is), after, gap
		}
		if least < close {
			break
		}
		before = after
	}
	return start, base
}

// Begin compares the wall clock with the file's time: that of the last save and
// what the machine has been running since, as the Record says. seen is the time
// of the last save; 0 means none. Unless the wall clock is believed, time goes
// on from the file's time until Follow finds the wall clock right, and Begin
// returns how far off the wall clock is. If a wall clock that is behind is
// believed, Begin returns by how much the file's time went back.
func (c *Clock) Begin(seen int64, was Record) (wrong, back time.Duration) {
	if c.simulated != nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = seen
	file := was
	if was.Moving != 0 && was.Moving != seen {
		was = Record{} // an earlier process moved the holds, and saved the time with them
	}
	c.was = was
	wall, is := c.start, &c.record // is has the Boot of this machine
	base, sameBoot := seen, is.Boot != "" && is.Boot == was.Boot
	switch {
	case seen == 0:
	case sameBoot:
		base = max(seen, was.Start+c.up-c.unsure)
	case is.kernel() && was.kernel():
		base = seen + c.up - c.unsure // the save was before this boot
	}
	waited := was.waited(seen)
	is.Behind, is.Waited = 0, waited
	if sameBoot {
		is.Behind, is.Waited = min(was.Behind, c.up), was.Waited
		waited = is.waitedAt(c.up)
	}
	switch step := wall - base; {
	case seen == 0 || step >= 0 && (step <= farAhead || base < earliest):
	case wall >= earliest && (step < -farAhead || step < 0 && waited >= patience):
		back = time.Duration(-step)
	case step < 0 && -step <= littleBehind:
		c.start, c.behind = base, -step
	default:
		is.notePatience(step < 0 && wall >= earliest, c.up)
		c.start, c.behind = base, max(0, -step)
		wrong, c.wrong = time.Duration(step), true
		c.doubt = fmt.Errorf("stint: the clock says %s and the last save was at %s: time goes on from the save, "+
			"until the clock is right", time.Unix(0, wall).UTC().Format(time.RFC3339),
			time.Unix(0, seen).UTC().Format(time.RFC3339))
	}
	if wrong == 0 { // it is believed
		is.Behind, is.Waited = 0, 0
	}
	is.Start = c.start - c.up
	if sameBoot && max(is.Start-was.Start, was.Start-is.Start) <= startSlack {
		is.Start = was.Start
	}
	c.unsaved = *is != file
	return wrong, back
}

// Record returns what the file should have, and whether it may have something
// else. Saved says that it has.
func (c *Clock) Record() (r Record, unsaved bool) {
	if c.simulated != nil {
		return Record{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record, c.unsaved
}

// Saved notes that the file has a Record.
func (c *Clock) Saved(r Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsaved = c.record != r
}

// Moving returns the record to save before holds and buckets are moved back. seen
// is the time of the last save.
func (c *Clock) Moving(seen int64) Record {
	r := c.was
	r.Moving = seen
	return r
}

// Simulated reports whether the Clock tells the time of a simulation, which no
// process has to know later.
func (c *Clock) Simulated() bool { return c.simulated != nil }

// Wrong reports whether the wall clock is behind the Clock, or so far ahead that
// it is not believed. Time then goes on by the machine's, also if the wall clock
// was set back while this process runs, which is no reason for Health to fail.
func (c *Clock) Wrong() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong
}

// Last returns the time of the last save before Begin. It is not after Now.
func (c *Clock) Last() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.last, c.Now())
}

// Health returns the reason why the wall clock is not believed, or nil.
func (c *Clock) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubt
}

// Seen returns the time to store with a save, for Begin of the next process, if
// the store has no Record. It is Now, unless the wall clock has been behind for
// so long that it is believed: then it is the time of the wall clock.
func (c *Clock) Seen() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.simulated == nil && c.behind > 0 && c.record.waitedAt(c.machineLocked()) >= patience {
		return max(0, c.Now()-c.behind)
	}
	return c.Now()
}

// Now returns the time in Unix nanoseconds.
func (c *Clock) Now() int64 {
	if c.simulated != nil {
		return c.Instant(c.simulated())
	}
	return c.start + c.ahead.Load() + int64(time.Since(c.base))
}

// machineLocked returns the machine time: for as long as this process runs, by
// its monotonic clock.
func (c *Clock) machineLocked() int64 { return c.up + int64(time.Since(c.base)) }

// Instant returns t in Unix nanoseconds, within the range of the Clock.
func (c *Clock) Instant(t time.Time) int64 { return Instant(t, c.end) }

// Instant returns t in Unix nanoseconds, at least 0 and at most end.
func Instant(t time.Time, end int64) int64 {
	if t.Before(time.Unix(0, 0)) {
		return 0
	}
	if t.After(time.Unix(0, end)) {
		return end
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
	before, wall, now := c.Now(), c.Instant(c.wall()), c.Now()
	// The wall clock was read between two readings of this one. Between them the
	// process may have been stopped, so what is known stays if it agrees with both.
	behind := min(max(c.behind, before-wall), now-wall)
	was := c.record
	if behind < -farAhead && now >= earliest {
		c.wrong = true
		c.record.notePatience(false, c.machineLocked()) // it is not behind
		c.unsaved = c.unsaved || c.record != was
		return 0
	}
	moved := c.behind - behind // positive if the wall clock gained
	if c.record.Boot == wallBoot && (moved >= smallestStep || moved <= -smallestStep) {
		c.up += moved // machine time is the wall clock's
		c.record.Start -= moved
		if c.record.Behind != 0 {
			c.record.Behind = max(1, c.record.Behind+moved)
		}
	}
	up := c.machineLocked()
	if c.wrong = behind > littleBehind; !c.wrong {
		c.record.Behind, c.record.Waited = 0, 0
		c.doubt = nil
	} else if c.record.notePatience(wall >= earliest, up); c.record.waitedAt(up) >= patience && wall >= earliest {
		c.doubt = nil
	}
	if behind < 0 {
		c.ahead.Add(-behind)
		if start := c.start + c.ahead.Load() - c.up; start-c.record.Start > startSlack {
			c.record.Start = start
		}
		behind = 0
	}
	c.unsaved = c.unsaved || c.record != was
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
