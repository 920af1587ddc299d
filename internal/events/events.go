// Package events delivers events to a listener.
package events

import "sync"

// Queue calls a listener with one event at a time, in a goroutine of its own, so
// that a slow listener holds up nothing. A nil Queue does nothing.
type Queue[E any] struct {
	mu     sync.Mutex
	events chan E // nil once closed
	silent chan struct{}
}

// New returns a Queue that calls listen, or nil if listen is nil.
func New[E any](listen func(E)) *Queue[E] {
	if listen == nil {
		return nil
	}
	q := &Queue[E]{events: make(chan E, 64), silent: make(chan struct{})}
	go func(events <-chan E) {
		defer close(q.silent)
		for e := range events {
			listen(e)
		}
	}(q.events)
	return q
}

// Add queues an event. If 64 are queued, the listener misses this one.
func (q *Queue[E]) Add(e E) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case q.events <- e: // never, once it is closed
	default:
	}
}

// Close returns after the listener has heard all events.
func (q *Queue[E]) Close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	if q.events != nil {
		close(q.events)
		q.events = nil
	}
	q.mu.Unlock()
	<-q.silent
}
