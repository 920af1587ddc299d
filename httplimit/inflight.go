package httplimit

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/places"
)

// taken has the places of a request in one middleware.
type taken struct {
	room [2]places.Place[places.Bucket]
	n    int
	more []places.Place[places.Bucket]
	of   []*gate

	c           *carried // nil if nothing knows of the places
	first, last int      // of the decisions in c
}

// known says which decisions of c have the places.
func (t *taken) known(c *carried, first, last int) { t.c, t.first, t.last = c, first, last }

func (t *taken) add(p places.Place[places.Bucket]) {
	if t.n < len(t.room) {
		t.room[t.n] = p
		t.n++
		return
	}
	t.more = append(t.more, p)
}

// leave gives the places back. If the handler around the middleware calls it
// again, the request takes new ones.
func (t *taken) leave() {
	if t.c != nil {
		t.c.mu.Lock()
		for i := t.first; i < t.last; i++ {
			t.c.applied[i].gate = nil
		}
		t.c.mu.Unlock()
		t.c = nil
	}
	if t.n == 0 && t.of == nil {
		return
	}
	for _, p := range t.room[:t.n] {
		p.Leave()
	}
	for _, p := range t.more {
		p.Leave()
	}
	for _, p := range t.of {
		p.leave()
	}
	t.n, t.more, t.of = 0, nil, nil
}

// gate is the bound on requests in flight of a rule. The requests of a rule
// share it, except for those of a Shadow rule: each of these has a gate with its
// place, because a nested rule of the same key, which may deny, gives that back
// and takes its own.
type gate struct {
	rule  *Rule
	place places.Place[places.Bucket] // of a Shadow rule's request
	once  sync.Once
}

func (g *gate) leave() { g.once.Do(g.place.Leave) }

// noPlace is how long a request without a place is asked to wait.
const noPlace = time.Second

// enter takes the places of the rules with a bound on requests in flight. It
// returns the index of the first rule that finds none, or -1. All places are
// given back then.
func (m *middleware) enter(ctx context.Context, c *carried, mine []applied, held *taken) (denied int) {
	for i := range mine {
		a := &mine[i]
		if a.gate == nil {
			continue
		}
		if has, shadow := c.place(m.lim, a.RuleKey); has || shadow != nil && a.gate.rule.Shadow {
			a.gate = nil
			continue
		} else if shadow != nil {
			shadow.leave()
		}
		key := places.Bucket{Limiter: m.lim, Key: a.RuleKey}
		if a.gate.rule.Shadow {
			place, state := places.Requests.Force(key)
			a.gate = &gate{rule: a.gate.rule, place: place}
			held.of = append(held.of, a.gate)
			a.running = state.Running
			a.noPlace = state.Running > a.most
			continue
		}
		place, state := places.Requests.Enter(ctx, key, places.Bound{
			Most: a.most, Wait: a.gate.rule.InFlightWait, Queue: a.gate.rule.InFlightQueue})
		a.running = state.Running
		if !place.Taken() {
			a.noPlace = true
			a.Decision = stint.Decision{Key: a.RuleKey, RetryAfter: noPlace}
			held.leave()
			return i
		}
		held.add(place)
	}
	return -1
}

// place reports whether a request has a place of a key already, and returns
// that of a Shadow rule. c may be nil.
func (c *carried) place(lim stint.Decider, key stint.Key) (has bool, shadow *gate) {
	if c == nil {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.applied {
		a := &c.applied[i]
		if a.gate != nil && a.RuleKey == key && a.rule.by.lim == lim {
			if !a.gate.rule.Shadow {
				return true, nil
			}
			shadow = a.gate
		}
	}
	return false, shadow
}

// Running has the requests of a key that run or wait for their place.
type Running struct {
	Key     stint.Key
	Running int64
	Waiting int
}

// InFlightOf yields the keys of a Limiter whose requests have places in flight, in
// no particular order: of all middleware in this process, and of package
// grpclimit.
func InFlightOf(lim stint.Decider) iter.Seq[Running] {
	return func(yield func(Running) bool) {
		for key, state := range places.Requests.All() {
			if key.Limiter == lim && !yield(Running{key.Key, state.Running, state.Waiting}) {
				return
			}
		}
	}
}
