// Package places counts how many requests of a key run at the same time, and
// lets others wait for their turn. It keeps nothing on disk: after a crash no
// request runs.
package places

import (
	"container/list"
	"context"
	"hash/maphash"
	"iter"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// Requests has the requests that run in this process, over all doors: HTTP and
// gRPC servers with the same Limiter count together.
var Requests = NewTable[Bucket]()

// Bucket is a key of Requests: two Limiters may have the same stint.Key.
type Bucket struct {
	Limiter stint.Decider
	Key     stint.Key
}

// Bound says how many requests of a key may run.
type Bound struct {
	Most  int64         // a request enters if fewer run; below 1 none enters
	Wait  time.Duration // how long a request may wait for its turn
	Queue int           // it waits if fewer others do
}

// State is a key at one instant.
type State struct {
	Running int64
	Waiting int
}

// A Table counts running requests by key. An entry exists only while a request
// of its key runs or waits. The Table is a hash table of fixed size, which costs
// less than a map whose keys come and go with every request.
type Table[K comparable] struct {
	seed   maphash.Seed
	chains [4096]chain[K]
}

// chain has the entries whose keys have the same hash.
type chain[K comparable] struct {
	mu    sync.Mutex
	first *entry[K] // guarded by mu
	spare *entry[K] // saves an allocation; guarded by mu
}

// entry is guarded by the mu of its chain.
type entry[K comparable] struct {
	key     K
	running int64
	queue   *list.List // of *waiter, first come first; nil if none waits
	next    *entry[K]
}

// waiter is a request in a queue.
type waiter struct {
	most  int64
	enter chan struct{} // closed under mu when the request has its place
}

// A Place is what Leave gives back. The zero Place is none.
type Place[K comparable] struct {
	chain *chain[K]
	entry *entry[K]
}

// NewTable returns a Table without entries.
func NewTable[K comparable]() *Table[K] { return &Table[K]{seed: maphash.MakeSeed()} }

func (t *Table[K]) chain(key K) *chain[K] {
	return &t.chains[maphash.Comparable(t.seed, key)%uint64(len(t.chains))]
}

// Enter takes a place of a key, or returns the zero Place if there is none. It
// waits for one as long as b and ctx allow. No request passes those that wait
// already, even if its own bound is higher. ctx is used only to wait.
func (t *Table[K]) Enter(ctx context.Context, key K, b Bound) (Place[K], State) {
	c := t.chain(key)
	c.mu.Lock()
	e := c.findLocked(key)
	if e.queue == nil && e.running < b.Most {
		e.running++
		running := e.running
		c.mu.Unlock()
		return Place[K]{c, e}, State{Running: running}
	}
	if b.Wait <= 0 || b.Most < 1 || e.waiting() >= b.Queue || ctx.Err() != nil {
		defer c.mu.Unlock()
		defer c.tidyLocked(e)
		return Place[K]{}, e.state()
	}
	w := &waiter{most: b.Most, enter: make(chan struct{})}
	if e.queue == nil {
		e.queue = list.New()
	}
	at := e.queue.PushBack(w)
	c.mu.Unlock()
	return c.await(ctx, e, b.Wait, at)
}

// await waits for the turn of a waiter.
func (c *chain[K]) await(
	ctx context.Context, e *entry[K], wait time.Duration, at *list.Element,
) (Place[K], State) {
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
			return Place[K]{c, e}, e.state()
		}
		e.running-- // the place is for the next one
	default:
		e.queue.Remove(at)
	}
	e.admit()
	defer c.tidyLocked(e)
	return Place[K]{}, e.state()
}

// Force takes a place of a key, however many requests run.
func (t *Table[K]) Force(key K) (Place[K], State) {
	c := t.chain(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(key)
	e.running++
	return Place[K]{c, e}, e.state()
}

// Leave gives a place back. Call it once for each place that is not zero.
func (p Place[K]) Leave() {
	p.chain.mu.Lock()
	p.entry.running--
	p.entry.admit()
	p.chain.tidyLocked(p.entry)
	p.chain.mu.Unlock()
}

// Taken reports whether the place is not the zero one.
func (p Place[K]) Taken() bool { return p.entry != nil }

// findLocked returns the entry of a key, and adds one if there is none.
func (c *chain[K]) findLocked(key K) *entry[K] {
	for e := c.first; e != nil; e = e.next {
		if e.key == key {
			return e
		}
	}
	e := c.spare
	if c.spare = nil; e == nil {
		e = new(entry[K])
	}
	e.key, e.next = key, c.first
	c.first = e
	return e
}

// tidyLocked removes an entry if nothing runs or waits.
func (c *chain[K]) tidyLocked(e *entry[K]) {
	if e.running > 0 || e.queue != nil {
		return
	}
	at := &c.first
	for *at != e {
		at = &(*at).next
	}
	*at = e.next
	*e = entry[K]{}
	c.spare = e
}

// admit lets the first waiters in, as far as there are places.
func (e *entry[K]) admit() {
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

func (e *entry[K]) waiting() int {
	if e.queue == nil {
		return 0
	}
	return e.queue.Len()
}

func (e *entry[K]) state() State { return State{e.running, e.waiting()} }

// All yields the keys with requests that run or wait, in no particular order.
func (t *Table[K]) All() iter.Seq2[K, State] {
	return func(yield func(K, State) bool) {
		type found struct {
			key   K
			state State
		}
		var all []found
		for i := range t.chains {
			c := &t.chains[i]
			all = all[:0]
			c.mu.Lock()
			for e := c.first; e != nil; e = e.next {
				all = append(all, found{e.key, e.state()})
			}
			c.mu.Unlock()
			for _, f := range all {
				if !yield(f.key, f.state) {
					return
				}
			}
		}
	}
}
