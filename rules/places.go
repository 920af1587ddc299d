package rules

import (
	"container/list"
	"context"
	"hash/maphash"
	"iter"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// inFlight has the requests that run in this process, over all doors: HTTP and
// gRPC servers with the same Limiter count together.
var inFlight = newPlaces()

// bucket is a key of inFlight: two Limiters may have the same stint.Key.
type bucket struct {
	lim stint.Decider
	key stint.Key
}

// bound says how many requests of a bucket may run.
type bound struct {
	most  int64         // a request enters if fewer run; below 1 none enters
	wait  time.Duration // how long a request may wait for its turn
	queue int           // it waits if fewer others do
}

// places counts how many requests of a bucket run at the same time, and lets others
// wait for their turn. It keeps nothing on disk: after a crash no request runs. An
// entry exists only while a request of its bucket runs or waits. The hash table is
// of fixed size, which costs less than a map whose keys come and go with every
// request.
type places struct {
	seed   maphash.Seed
	chains [4096]chain
}

// chain has the entries whose keys have the same hash.
type chain struct {
	mu    sync.Mutex
	first *entry // guarded by mu
	spare *entry // saves an allocation; guarded by mu
}

// entry is guarded by the mu of its chain.
type entry struct {
	key     bucket
	running int64
	queue   *list.List // of *waiter, first come first; nil if none waits
	next    *entry
}

// waiter is a request in a queue.
type waiter struct {
	most  int64
	enter chan struct{} // closed under mu when the request has its place
}

// A place is what leave gives back. The zero place is none.
type place struct {
	chain *chain
	entry *entry
}

func newPlaces() *places { return &places{seed: maphash.MakeSeed()} }

func (t *places) chain(key bucket) *chain {
	return &t.chains[maphash.Comparable(t.seed, key)%uint64(len(t.chains))]
}

// enter takes a place of a key, or returns the zero place if there is none. It
// waits for one as long as b and ctx allow. No request passes those that wait
// already, even if its own bound is higher. ctx is used only to wait.
func (t *places) enter(ctx context.Context, key bucket, b bound) (place, Running) {
	c := t.chain(key)
	c.mu.Lock()
	e := c.findLocked(key)
	if e.queue == nil && e.running < b.most {
		e.running++
		running := e.running
		c.mu.Unlock()
		return place{c, e}, Running{Key: key.key, Running: running}
	}
	if b.wait <= 0 || b.most < 1 || e.waiting() >= b.queue || ctx.Err() != nil {
		defer c.mu.Unlock()
		defer c.tidyLocked(e)
		return place{}, e.state()
	}
	w := &waiter{most: b.most, enter: make(chan struct{})}
	if e.queue == nil {
		e.queue = list.New()
	}
	at := e.queue.PushBack(w)
	c.mu.Unlock()
	return c.await(ctx, e, b.wait, at)
}

// await waits for the turn of a waiter.
func (c *chain) await(
	ctx context.Context, e *entry, wait time.Duration, at *list.Element,
) (place, Running) {
	w := at.Value.(*waiter)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	ended := false
	select {
	case <-w.enter:
	case <-timer.C:
	case <-ctx.Done():
		ended = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-w.enter:
		if !ended {
			return place{c, e}, e.state()
		}
		e.running-- // the place is for the next one
	default:
		e.queue.Remove(at)
	}
	e.admit()
	defer c.tidyLocked(e)
	return place{}, e.state()
}

// force takes a place of a key, however many requests run.
func (t *places) force(key bucket) (place, Running) {
	c := t.chain(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(key)
	e.running++
	return place{c, e}, e.state()
}

// leave gives a place back. Call it once for each place that is not zero.
func (p place) leave() {
	p.chain.mu.Lock()
	p.entry.running--
	p.entry.admit()
	p.chain.tidyLocked(p.entry)
	p.chain.mu.Unlock()
}

// taken reports whether the place is not the zero one.
func (p place) taken() bool { return p.entry != nil }

// findLocked returns the entry of a key, and adds one if there is none.
func (c *chain) findLocked(key bucket) *entry {
	for e := c.first; e != nil; e = e.next {
		if e.key == key {
			return e
		}
	}
	e := c.spare
	if c.spare = nil; e == nil {
		e = new(entry)
	}
	e.key, e.next = key, c.first
	c.first = e
	return e
}

// tidyLocked removes an entry if nothing runs or waits.
func (c *chain) tidyLocked(e *entry) {
	if e.running > 0 || e.queue != nil {
		return
	}
	at := &c.first
	for *at != e {
		at = &(*at).next
	}
	*at = e.next
	*e = entry{}
	c.spare = e
}

// admit lets the first waiters in, as far as there are places.
func (e *entry) admit() {
	for e.queue != nil {
		first := e.queue.Front()
		if first == nil {
			e.queue = nil
			return
		}
		w := first.Value.(*waiter)
		if e.running >= w.most {
			return
		}
		e.queue.Remove(first)
		e.running++
		close(w.enter)
	}
}

func (e *entry) waiting() int {
	if e.queue == nil {
		return 0
	}
	return e.queue.Len()
}

func (e *entry) state() Running { return Running{e.key.key, e.running, e.waiting()} }

// Running has the requests of a key that run or wait for their place.
type Running struct {
	Key     stint.Key
	Running int64
	Waiting int
}

// InFlightOf yields the keys of a Limiter whose requests have places in flight, in
// no particular order: of all doors in this process.
func InFlightOf(lim stint.Decider) iter.Seq[Running] { return inFlight.of(lim) }

func (t *places) of(lim stint.Decider) iter.Seq[Running] {
	return func(yield func(Running) bool) {
		var all []Running
		for i := range t.chains {
			c := &t.chains[i]
			all = all[:0]
			c.mu.Lock()
			for e := c.first; e != nil; e = e.next {
				if e.key.lim == lim {
					all = append(all, e.state())
				}
			}
			c.mu.Unlock()
			for _, r := range all {
				if !yield(r) {
					return
				}
			}
		}
	}
}
