package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// maxCalls is the most script calls of one lane that are under way. Trips that
// arrive during these calls share the next one. With one call at a time, either
// the server or this process would be idle.
const maxCalls = 2

// lanes order the trips of each slot. A trip calls the server at once if its
// lane has fewer than maxCalls calls under way. Otherwise it waits. The first
// waiting trip leads the next call, which also takes trips that wait behind it.
// Trips leave a lane in the order in which they came. By a trip's deadline all
// earlier calls have ended, unless a synced call must send its script again. So no
// trip needs a timer.
type lanes struct {
	mu sync.Mutex
	of map[laneOf]*lane // lanes in use
}

// laneOf says which trips may share a call: trips to one slot, if all of them
// wait for replicas or none does.
type laneOf struct {
	slot   uint16
	synced bool
}

type lane struct {
	under   int // calls under way
	waiting []*trip
}

// news is what a waiting trip receives.
type news int

const (
	answered news = iota
	leads         // it makes the next call
	alone         // its call ran nothing; it calls again, alone
)

// run asks the server, together with trips that wait at the same time. After
// an error other than stint.ErrNotDurable the answers mean nothing.
func (l *Limiter) run(t *trip, n *limitsInForce) {
	if l.away.Load() {
		t.err = fmt.Errorf("%w: it has not come back", ErrAway)
		return
	}
	of := l.laneOf(t)
	t.limits = n
	if t.deadline.IsZero() { // a trip that asks again keeps its own
		t.deadline = time.Now().Add(l.timeout(of.synced))
	}
	l.lanes.mu.Lock()
	in := l.lanes.of[of]
	if in == nil {
		in = new(lane)
		l.lanes.of[of] = in
	}
	if in.under < maxCalls {
		in.under++
		l.lanes.mu.Unlock()
		l.lead(t, of, in)
		return
	}
	t.news = make(chan news, 1)
	in.waiting = append(in.waiting, t)
	l.lanes.mu.Unlock()
	switch <-t.news {
	case leads:
		l.lead(t, of, in)
	case alone:
		l.callAlone(t, of.synced)
	}
}

func (l *Limiter) laneOf(t *trip) (of laneOf) {
	if l.cluster.Load() {
		of.slot = slotOf(t.requests[0].name)
	}
	for i := range t.requests {
		of.synced = of.synced || t.op != opCheck && l.durability(t.requests[i].limit) == stint.Synced
	}
	return of
}

// lead makes a call with the trip and trips that wait behind it. Then the first
// trip that still waits leads the next call. If the trip is late, lead makes no
// call.
func (l *Limiter) lead(t *trip, of laneOf, in *lane) {
	batch, again := []*trip{t}, false
	if !l.late(t, of.synced) {
		l.lanes.mu.Lock()
		batch = in.take(t)
		l.lanes.mu.Unlock()
		again = l.call(batch, of.synced)
	}
	l.lanes.mu.Lock()
	if len(in.waiting) > 0 {
		next := in.waiting[0]
		in.waiting = in.waiting[1:]
		next.news <- leads
	} else if in.under--; in.under == 0 && l.cluster.Load() {
		delete(l.lanes.of, of)
	}
	l.lanes.mu.Unlock()
	what := answered
	if again {
		what = alone
	}
	for _, other := range batch[1:] {
		other.news <- what
	}
	if again {
		l.callAlone(t, of.synced)
	}
}

// late reports whether half of a trip's time is over. If so, late ends the trip
// with ErrAway. If the last call had no answer in time, the trip counts as
// another call without an answer.
func (l *Limiter) late(t *trip, synced bool) bool {
	if time.Until(t.deadline) >= l.timeout(synced)/2 {
		return false
	}
	t.err = fmt.Errorf("%w: the calls before it took too long", ErrAway)
	if l.timeouts.Load() > 0 {
		l.watch(fmt.Errorf("%w: %w", ErrNoAnswer, context.DeadlineExceeded))
	}
	return true
}

func (l *Limiter) callAlone(t *trip, synced bool) {
	if !l.late(t, synced) {
		l.call([]*trip{t}, synced)
	}
}

// take returns the trip, and as many waiting trips as fit into its call. The
// caller holds lanes.mu.
func (in *lane) take(t *trip) []*trip {
	batch, requests := []*trip{t}, len(t.requests)
	for len(in.waiting) > 0 {
		next := in.waiting[0]
		if requests += len(next.requests); requests > maxTogether || next.limits != t.limits {
			break
		}
		batch = append(batch, next)
		in.waiting = in.waiting[1:]
	}
	return batch
}

// call makes one script call. It returns true if nothing ran and one trip of
// the batch may be the reason. Each trip must then call alone.
func (l *Limiter) call(batch []*trip, synced bool) (again bool) {
	if l.away.Load() { // it went away while they waited
		finish(batch, fmt.Errorf("%w: it has not come back", ErrAway))
		return false
	}
	err := l.tryCall(batch, synced)
	if len(batch) > 1 && refused(err) {
		return true
	}
	finish(batch, err)
	for _, t := range batch {
		err = cmp.Or(err, t.err)
	}
	l.note(err)
	for range batch { // each of its callers has waited
		l.watch(err)
	}
	return false
}

// timeout returns how long a trip may take. The replicas get as much time as the
// server.
func (l *Limiter) timeout(synced bool) time.Duration {
	if synced {
		return 2 * l.opts.Timeout
	}
	return l.opts.Timeout
}

// finish gives all trips the error. If it is nil, each has its own answer.
func finish(batch []*trip, err error) {
	if err == nil {
		return
	}
	for _, t := range batch {
		t.err = err
	}
}

// refused reports whether nothing ran, for a reason that may be in one trip
// only.
func refused(err error) bool {
	var replied ServerError
	return errors.Is(err, errNothingRan) && !errors.Is(err, ErrAway) ||
		errors.As(err, &replied) && strings.HasPrefix(string(replied), "TRYAGAIN")
}
