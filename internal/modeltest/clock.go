package modeltest

import (
	"sync"
	"sync/atomic"
	"time"
)

// Clock is a clock that a test moves. One reading can be held: its caller gets
// the time at which it asked, and gets it late.
type Clock struct {
	ns      atomic.Int64
	skip    atomic.Int64 // readings until the one to hold
	reading atomic.Pointer[heldReading]
}

type heldReading struct{ held, release chan struct{} }

// NewClock returns a clock at an instant at which half a lease begins, for a
// tolerance of 100 hours.
func NewClock() *Clock {
	c := &Clock{}
	c.Set(1_800_000_000_000_000_000)
	return c
}

// Now returns the time.
func (c *Clock) Now() time.Time {
	now := c.ns.Load()
	if r := c.reading.Load(); r != nil && c.skip.Add(-1) < 0 && c.reading.CompareAndSwap(r, nil) {
		close(r.held)
		<-r.release
	}
	return time.Unix(0, now)
}

// Nanos returns the time in Unix nanoseconds. It is never held.
func (c *Clock) Nanos() int64 { return c.ns.Load() }

// Set sets the clock to an instant in Unix nanoseconds.
func (c *Clock) Set(ns int64) { c.ns.Store(ns) }

// Advance lets time pass.
func (c *Clock) Advance(d time.Duration) { c.ns.Add(int64(d)) }

// Hold holds the reading after skip others.
func (c *Clock) Hold(skip int64) (held <-chan struct{}, release func()) {
	r := &heldReading{make(chan struct{}), make(chan struct{})}
	c.skip.Store(skip)
	c.reading.Store(r)
	return r.held, sync.OnceFunc(func() {
		c.reading.Store(nil)
		close(r.release)
	})
}
