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
	callers int           // that wait for it
	begun   time.Time     // when its first work came
	timer   *time.Timer   // closes overdue
	overdue chan struct{} // closed with done, or when the save takes too long
	done    chan struct{}
	err     error // valid once done is closed
}

// Group runs the saves of one store.
type Group[W any] struct {
	order   sync.Locker // held during a save
	save    func(*Batch[W]) error
	timeout time.Duration // longest that a caller waits
	pause   time.Duration // longest that work waits if no caller does

	wake    chan struct{} // there is a next batch
	hurry   chan struct{} // a caller waits for it
	stop    chan struct{}
	stopped chan struct{}

	mu       sync.Mutex
	next     *Batch[W] // nil if there is no work
	saving   *Batch[W] // nil if no save is under way
	expected int       // callers that may come soon
	spare    W         // of the last batch, for reuse
	stats    Stats
}

// Stats count saves.
type Stats struct {
	Saves    int64 // that succeeded
	Failures int64
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error // why the last one failed; nil if it did not
}

// New returns a Group that calls save, one Batch at a time, with order locked.
// A caller waits for at most timeout; work that no caller waits for is saved
// after at most pause. What save leaves in the Work of its Batch becomes the
// start of a later one's.
func New[W any](timeout, pause time.Duration, order sync.Locker, save func(*Batch[W]) error) *Group[W] {
	g := &Group[W]{
		order: order, save: save, timeout: timeout, pause: pause,
		wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go g.run()
	return g
}

// Lock gives the caller the next Batch until Unlock. With wait, the caller is
// going to call Await on it.
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

// Late reports whether saves are late: the goroutine that saves may wait for a
// processor behind all callers, and the caller should yield. Lock is held.
func (g *Group[W]) Late() bool {
	oldest := g.next
	if g.saving != nil {
		oldest = g.saving
	}
	return oldest != nil && time.Since(oldest.begun) > 4*g.pause
}

// Await waits for the save. It returns its error, or ErrTimeout, or ErrStopped
// when stop is closed, which may be nil.
func (b *Batch[W]) Await(stop <-chan struct{}) error {
	begun := time.Now()
	select {
	case <-b.overdue:
	case <-stop:
		return ErrStopped
	}
	select {
	case <-b.done:
		return b.err
	default: // the first caller has waited for too long: look at the clock
	}
	timer := time.NewTimer(b.group.timeout - time.Since(begun))
	defer timer.Stop()
	select {
	case <-b.done:
		return b.err
	case <-stop:
		return ErrStopped
	case <-timer.C:
		return ErrTimeout
	}
}

// Done is closed when the save has ended; Err is its error then.
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

// patience is how often in a row the processor is left to callers of whom none
// comes.
const patience = 32

// gather lets callers come that are about to. It returns once there are as
// many as expected, or no more come.
func (g *Group[W]) gather() {
	most := 0
	for idle := 0; idle < patience; idle++ {
		g.mu.Lock()
		callers := g.expected
		if g.next != nil {
			callers = g.next.callers
		}
		g.mu.Unlock()
		if callers >= g.expected {
			return
		}
		if callers > most {
			most, idle = callers, 0
		}
		runtime.Gosched()
	}
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

// Close saves the work that is left, and waits for it. No caller may come
// after it.
func (g *Group[W]) Close() {
	close(g.stop)
	<-g.stopped
}
