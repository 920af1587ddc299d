package hostlimit

import (
	"sync"
	"time"
)

// listener calls OnEvent with one event at a time, in a goroutine of its own,
// so that a slow OnEvent holds up nothing. A nil listener does nothing.
type listener struct {
	mu     sync.Mutex
	events chan Event // nil once closed
	silent chan struct{}
}

// listen returns a listener that calls f, or nil if f is nil.
func listen(f func(Event)) *listener {
	if f == nil {
		return nil
	}
	l := &listener{events: make(chan Event, 64), silent: make(chan struct{})}
	go func(events <-chan Event) {
		defer close(l.silent)
		for e := range events {
			f(e)
		}
	}(l.events)
	return l
}

// tell queues an event. If 64 are queued, OnEvent misses this one.
func (l *listener) tell(e Event) {
	if l == nil {
		return
	}
	e.Time = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.events == nil {
		return
	}
	select {
	case l.events <- e:
	default:
	}
}

// close waits until OnEvent has seen all events.
func (l *listener) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	if l.events != nil {
		close(l.events)
		l.events = nil
	}
	l.mu.Unlock()
	<-l.silent
}
