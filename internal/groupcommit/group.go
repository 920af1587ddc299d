package groupcommit

import (
	"errors"
	"runtime"
	"sync"
	"time"
)

// ErrTimeout is returned by Await if the save takes too long. The work is
// still in its Batch, and the save may yet succeed.
var ErrTimeout = errors.New("no commit in time")

// ErrStopped is returned by Await if its caller stopped waiting. As after
// ErrTimeout, the save may yet succeed.
var ErrStopped = errors.New("stopped waiting for the commit")

// Batch is the work of one save.
type Batch[W any] struct {
	Work W // changed between Lock and Unlock, and by the save

	group   *Group[W]
	callers int           // callers that wait for the save
	begun   time.Time     // time of its first work
	timer   *time.Timer   // closes overdue
	overdue chan struct{} // closed at the end or at the timeout
	done    chan struct{}
	err     error // valid once done is closed
}

// Group runs the saves of one store.
type Group[W any] struct {
	order   sync.Locker // locked during a save
	save    func(*Batch[W]) error
	timeout time.Duration // longest wait of a caller
	pause   time.Duration // longest wait of work without callers

	yield func() // runtime.Gosched

	wake    chan struct{} // signals a next batch
	hurry   chan struct{} // signals a caller that waits
	full    chan struct{} // signals that as many callers wait as expected
	stop    chan struct{}
	stopped chan struct{}

	mu       sync.Mutex
	next     *Batch[W] // nil if there is no work
	saving   *Batch[W] // nil if no save is under way
	expected int       // callers that may submit work soon
	spare    W         // Work of the last batch, for reuse
	stats    Stats
}

// Stats count saves.
type Stats struct {
	Saves    int64 // saves that succeeded
	Failures int64
	Last     time.Duration // duration of the last save
	Longest  time.Duration
	Err      error // error of the last save
}

// New returns a Group that calls save, one Batch at a time, with order locked.
// A caller waits for at most timeout. Work that no caller waits for is saved
// after at most pause. The Work of a saved Batch is reused as the empty Work of
// a later one, so save must reset it.
func New[W any](timeout, pause time.Duration, order sync.Locker, save func(*Batch[W]) error) *Group[W] {
	g := &Group[W]{
		order: order, save: save, timeout: timeout, pause: pause, yield: runtime.Gosched,
		wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), full: make(chan struct{}, 1),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go g.run()
	return g
}

// Lock gives the caller the next Batch until Unlock. If wait is true, the
// caller is going to call Await on it.
func (g *Group[W]) Lock(wait bool) *Batch[W] {
	g.mu.Lock()
	if g.next == nil {
		b := &Batch[W]{
			Work: g.spare, group: g, begun: time.Now(),
			overdue: make(chan struct{}), done: make(chan struct{}),
		}
		var none W
		g.next, g.spare = b, none
		b.timer = time.AfterFunc(g.timeout, func() { close(b.overdue) })
		signal(g.wake)
	}
	if wait {
		if g.next.callers++; g.next.callers == 1 {
			signal(g.hurry)
		}
		if g.next.callers == g.expected {
			signal(g.full)
		}
	}
	return g.next
}

// Unlock ends the use of a Batch that Lock returned.
func (g *Group[W]) Unlock() { g.mu.Unlock() }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Late reports whether saves are late. Then the goroutine that saves may be
// waiting for a processor, and the caller should yield. The caller holds the
// Lock.
func (g *Group[W]) Late() bool {
	oldest := g.next
	if g.saving != nil {
		oldest = g.saving
	}
	return oldest != nil && time.Since(oldest.begun) > 4*g.pause
}

// Await waits for the save, for a caller that has waited since begun. It returns
// the save's error, or ErrTimeout, or ErrStopped when stop is closed. stop may be
// nil.
func (b *Batch[W]) Await(begun time.Time, stop <-chan struct{}) error {
	select {
	case <-b.overdue:
	case <-stop:
		return ErrStopped
	}
	select {
	case <-b.done:
		return b.err
	default: // the first caller has waited for the timeout; this one may have come later
	}
	select {
	case <-b.done:
		return b.err
	case <-stop:
		return ErrStopped
	case <-time.After(b.group.timeout - time.Since(begun)):
		return ErrTimeout
	}
}

// Done returns a channel that is closed when the save has ended.
func (b *Batch[W]) Done() <-chan struct{} { return b.done }

// Err returns the error of a save that has ended.
func (b *Batch[W]) Err() error { return b.err }

// run saves until Close.
func (g *Group[W]) run() {
	defer close(g.stopped)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-g.wake:
			pause.Reset(g.pause)
			select {
			case <-g.hurry:
			case <-pause.C:
			case <-g.stop:
			}
			g.saveNext()
		case <-g.stop:
			g.saveNext()
			return
		}
	}
}

// patience is how many times in a row gather yields the processor without a new
// caller. gatherMost bounds all yields together: while goroutines compute, one may
// take milliseconds.
const (
	patience   = 32
	gatherMost = 100 * time.Millisecond
)

// gather yields the processor to callers that are about to submit work. It
// returns when as many have come as expected, or when no more come. On a disk
// that syncs in 0.1 ms, 64 callers share a save by 60 with it and by 49 without,
// and 64 callers in four other processes by 13 and by 9.
func (g *Group[W]) gather() {
	begun := time.Now()
	most := 0
	for idle := 0; idle < patience; idle++ {
		g.mu.Lock()
		callers := g.expected
		if g.next != nil {
			callers = g.next.callers
		}
		g.mu.Unlock()
		switch {
		case callers >= g.expected:
			return
		case callers > most:
			most, idle = callers, 0
		}
		if time.Since(begun) > gatherMost {
			return
		}
		g.yield()
	}
	g.linger()
}

// lingerMost bounds the time of linger, which a machine without a free processor
// would otherwise stretch.
const lingerMost = 10 * time.Millisecond

// linger waits for callers in other processes, for which the answers and the
// next requests take longer than some yields. Without it a save takes one half
// of them, and the next save the other half. linger waits for at most half the
// time of a save, and only if a quarter of the callers are missing. On a disk that
// syncs in 5 ms, 64 callers in four other processes make 2.2 times as many
// decisions with it, and 64 of this process 1.25 times.
func (g *Group[W]) linger() {
	select {
	case <-g.full: // of an earlier save
	default:
	}
	g.mu.Lock()
	missing, most := g.missingLocked(), min(g.stats.Last/2, lingerMost)
	few := missing < 2 || missing < g.expected/4
	g.mu.Unlock()
	if few || most <= 0 {
		return
	}
	select {
	case <-g.full:
	case <-time.After(most):
	}
}

// missingLocked returns how many callers are expected and have not come.
func (g *Group[W]) missingLocked() int {
	if g.next == nil {
		return g.expected
	}
	return g.expected - g.next.callers
}

func (g *Group[W]) saveNext() {
	g.gather()
	g.order.Lock()
	g.mu.Lock()
	b := g.next
	g.next, g.saving = nil, b
	g.mu.Unlock()
	if b == nil {
		g.order.Unlock()
		return
	}
	begun := time.Now()
	b.err = g.save(b)
	took := time.Since(begun)
	g.order.Unlock()

	g.mu.Lock()
	g.stats.Last, g.stats.Longest, g.stats.Err = took, max(g.stats.Longest, took), b.err
	if b.err == nil {
		g.stats.Saves++
	} else {
		g.stats.Failures++
	}
	g.saving, g.expected = nil, b.callers
	if g.next != nil {
		g.expected += g.next.callers
	}
	var none W
	g.spare, b.Work = b.Work, none
	close(b.done)
	g.mu.Unlock()
	if b.timer.Stop() {
		close(b.overdue)
	}
}

// Stats returns the counts so far.
func (g *Group[W]) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// Close saves the work that is left, and waits for that save. After Close no
// caller may submit work.
func (g *Group[W]) Close() {
	close(g.stop)
	<-g.stopped
}
