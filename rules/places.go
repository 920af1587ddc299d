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
// gRPC servers with the same Limiter count together. It is made for the first rule that
// counts them.
var inFlight = sync.OnceValue(newPlaces)

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

// entry is guarded by the mu of its chain. A request that has a place has a
// pointer to it, and gives it back with leave.
type entry struct {
	chain   *chain
	key     bucket
	running int64
	queue   list.List // of *waiter, first come first
	next    *entry
}

type waiter struct {
	most  int64
	enter chan struct{} // closed under mu when the request has its place
}

func newPlaces() *places { return &places{seed: maphash.MakeSeed()} }

func (t *places) chain(key bucket) *chain {
	return &t.chains[maphash.Comparable(t.seed, key)%uint64(len(t.chains))]
}

// enter takes a place of a key, or returns nil if there is none. It waits for one
// as long as b and ctx allow. No request passes those that wait already, even if
// its own bound is higher. ctx is used only to wait.
func (t *places) enter(ctx context.Context, key bucket, b bound) (*entry, Running) {
	c := t.chain(key)
	c.mu.Lock()
	e := c.findLocked(key)
	if e.queue.Len() == 0 && e.running < b.most {
		e.running++
		running := e.running
		c.mu.Unlock()
		return e, Running{Key: key.key, Running: running}
	}
	defer c.mu.Unlock()
	defer c.tidyLocked(e)
	if b.wait <= 0 || b.most < 1 || e.queue.Len() >= b.queue || ctx.Err() != nil {
		return nil, e.state()
	}
	w := &waiter{most: b.most, enter: make(chan struct{})}
	at := e.queue.PushBack(w)
	c.mu.Unlock()
	ended := w.await(ctx, b.wait)
	c.mu.Lock()
	select {
	case <-w.enter:
		if !ended {
			return e, e.state()
		}
		e.running-- // the place is for the next one
	default:
		e.queue.Remove(at)
	}
	e.admitLocked()
	return nil, e.state()
}

// await waits for the turn of a waiter, or for as long as it may. It reports
// whether the context has ended.
func (w *waiter) await(ctx context.Context, most time.Duration) (ended bool) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-w.enter:
	case <-timer.C:
	case <-ctx.Done():
		return true
	}
	return false
}

// force takes a place of a key, however many requests run.
func (t *places) force(key bucket) (*entry, Running) {
	c := t.chain(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(key)
	e.running++
	return e, e.state()
}

// leave gives a place back. Call it once for each place.
func (e *entry) leave() {
	c := e.chain
	c.mu.Lock()
	e.running--
	e.admitLocked()
	c.tidyLocked(e)
	c.mu.Unlock()
}

// findLocked returns the entry of a key, and adds one if there is none.
func (c *chain) findLocked(key bucket) *entry {
	for e := c.first; e != nil; e = e.next {
		if e.key == key {
			return e
		}
	}
	e := c.spare
	if c.spare = nil; e == nil {
		e = &entry{chain: c}
	}
	e.key, e.next = key, c.first
	c.first = e
	return e
}

// tidyLocked removes an entry if nothing runs or waits.
func (c *chain) tidyLocked(e *entry) {
	if e.running > 0 || e.queue.Len() > 0 {
		return
	}
	at := &c.first
	for *at != e {
		at = &(*at).next
	}
	*at = e.next
	*e = entry{chain: c}
	c.spare = e
}

// admitLocked lets the first waiters in, as far as there are places.
func (e *entry) admitLocked() {
	for first := e.queue.Front(); first != nil; first = e.queue.Front() {
		w := first.Value.(*waiter)
		if e.running >= w.most {
			return
		}
		e.queue.Remove(first)
		e.running++
		close(w.enter)
	}
}

func (e *entry) state() Running { return Running{e.key.key, e.running, e.queue.Len()} }

// Running has the requests of a key that run or wait for their place.
type Running struct {
	Key     stint.Key
	Running int64
	Waiting int
}

// InFlightOf yields the keys of a Limiter whose requests have places in flight, in
// no particular order: of all doors in this process.
func InFlightOf(lim stint.Decider) iter.Seq[Running] { return inFlight().of(lim) }

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
