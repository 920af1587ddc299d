package stint

import (
	"errors"
	"fmt"
	"time"
)

// makeRoom removes a bucket or more from memory. It flushes where none can go before it is saved.
func (l *Limiter) makeRoom() error {
	full := func() bool { return l.table.resident.Load() >= int64(l.opts.MaxResident) }
	evict := func(used bool) bool {
		n := l.table.evict(l.clock.now(), used, full)
		l.evictions.Add(int64(n))
		return n > 0 || !full() // others may take the room; one who made some may have it
	}
	for range 2 { // the first time around may only find that all were used since the last
		if evict(false) {
			return nil
		}
	}
	timer := time.NewTimer(l.opts.CommitTimeout)
	defer timer.Stop()
	for !evict(true) {
		f := l.flushForRoom(evict)
		select {
		case <-f.done:
			if f.err != nil {
				return fmt.Errorf("%w: %d, %w", ErrFull, l.opts.MaxResident, f.err)
			}
		case <-timer.C:
			return fmt.Errorf("%w: %d, and no answer from the store for %v", ErrFull, l.opts.MaxResident, l.opts.CommitTimeout)
		}
	}
	return nil
}

// roomFlush is a flush that all wait for who need room.
type roomFlush struct {
	done chan struct{}
	err  error // valid once done is closed
}

// flushForRoom begins a flush, if none is under way, after which something can be evicted that has been used.
func (l *Limiter) flushForRoom(evict func(used bool) bool) *roomFlush {
	l.roomMu.Lock()
	defer l.roomMu.Unlock()
	if l.room == nil {
		f := &roomFlush{done: make(chan struct{})}
		l.room = f
		go func() {
			f.err = l.flushUntil(func() bool { return evict(true) })
			l.roomMu.Lock()
			l.room = nil
			l.roomMu.Unlock()
			close(f.done)
		}()
	}
	return l.room
}

// flushUntil flushes until there is room.
func (l *Limiter) flushUntil(room func() bool) error {
	unsaved := func(err error) error { return fmt.Errorf("and they cannot be saved: %w", err) }
	if err := l.flusher.flushAndWait(); err != nil { // what is in a commit stays until that has ended
		return unsaved(err)
	}
	if room() {
		return nil
	}
	l.flusher.mu.Lock() // while nobody else saves, none is kept for being saved
	defer l.flusher.mu.Unlock()
	for range 4 {
		for next := 0; next >= 0; {
			var err error
			if next, _, err = l.flusher.flushPartLocked(true, next, false); err != nil {
				return unsaved(err)
			}
			if room() {
				return nil
			}
		}
	}
	return errors.New("each with a line, or in use")
}
