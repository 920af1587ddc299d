package modeltest

import "slices"

// mostPlaces is how many turns wait at most.
const mostPlaces = 12

// reserve takes a place in the queue.
func (w *World) reserve() {
	key := w.pickKey()
	cost := w.pickCost(key)
	if l, on, _ := w.limits.For(key); on && w.rnd.IntN(2) == 0 {
		cost = l.Burst // a queue forms
	}
	if len(w.places) < mostPlaces/2 {
		w.reserveAt(key, cost)
	}
}

// hangUp makes a queue, and lets some leave it, wherever they are.
func (w *World) hangUp() {
	key := w.pickKey()
	l, on, _ := w.limits.For(key)
	for n := 2 + w.rnd.IntN(5); n > 0 && on && !w.dead() && len(w.places) < mostPlaces; n-- {
		w.reserveAt(key, min(l.Burst, w.pickCost(key)+w.rnd.Int64N(2)*l.Burst))
	}
	for range 1 + w.rnd.IntN(5) {
		var at []int
		for i, p := range w.places {
			if p.key == key {
				at = append(at, i)
			}
		}
		if len(at) == 0 || w.dead() {
			return
		}
		w.cancelPlace(at[w.rnd.IntN(len(at))])
		if on && w.rnd.IntN(3) == 0 {
			w.pass(w.rnd.Int64N(l.T() + 2))
		}
	}
}

func (w *World) reserveAt(key Key, cost int64) {
	q := w.withLimits([]Request{{Key: key, Cost: cost}})[0]
	if cost = q.Cost; q.Limit != nil {
		q.Limit.Queue = w.rnd.Int64N(3) * q.Limit.Burst
	}
	r := w.call(Call{Op: Reserve, Reqs: []Request{q}})
	if w.refused(key, Reserve, cost, r.Failure) {
		return
	}
	l, on := w.limitOf(q)
	configured, _, _ := w.limits.For(key)
	s := w.states[key]
	if !on {
		want := Failure("")
		if l.Blocked {
			want = IsBlocked
		}
		w.require(r.Failure == want || r.Failure == Crashed, "%v: %q", key, r.Failure)
		return
	}
	at, full := s.Reserve(l, w.now, cost)
	capped := s.TAT.cap(w.now + l.clamp())
	switch {
	case r.Failure == QueueFull:
		w.require(full[1], "%v: the queue of %d is full, and %d wait", key, l.Queue, len(s.Queue))
		return
	case r.Failure != "":
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
		w.faulty(r.Failure)
		w.maySave(key, Span{capped.Lo, at.Hi + l.Tau() + configured.Tau()/8})
		w.unknown(key, Span{capped.Lo, max(s.TAT.Hi, at.Hi, w.now) + cost*l.T()})
		w.look(key)
		return
	}
	w.require(!full[0], "%v: more wait than the queue of %d allows", key, l.Queue)
	turn := &Turn{w.now + int64(r.Delay), cost, q.Limit}
	w.require(at.Lo <= turn.At && turn.At <= at.Hi, "%v: a turn in %v; the model has %d to %d", key,
		r.Delay, at.Lo-w.now, at.Hi-w.now)
	p := &place{key, r.Place, turn, r.Delay == 0, w.epoch}
	if p.now {
		w.admit(key, w.now, cost)
		next := Span{max(w.now, s.TAT.Lo) + cost*l.T(),
			min(max(w.now, s.TAT.Hi)+cost*l.T(), w.now+l.Tau())}
		if cost == 0 {
			next = capped
		}
		w.put(key, next)
		w.gone = append(w.gone, p)
	} else {
		s.Queue = append(s.Queue, turn)
		w.places = append(w.places, p)
		w.put(key, capped)
		w.Counts["queued"]++
	}
	if cost > 0 {
		w.savedAt(l.Level, key)
	}
}

// cancel cancels a reservation whose turn has not come.
func (w *World) cancel() {
	if len(w.places) == 0 {
		return
	}
	w.cancelPlace(w.rnd.IntN(len(w.places)))
}

// cancelGiven cancels the turns with limits of their own, before other limits
// come that may be stricter than these.
func (w *World) cancelGiven() {
	for {
		// A turn that leaves may let others come, and then they are places no longer.
		i := slices.IndexFunc(w.places, func(p *place) bool { return p.turn.limit != nil })
		if i < 0 {
			return
		}
		w.cancelPlace(i)
	}
}

func (w *World) cancelPlace(i int) {
	p := w.places[i]
	w.places = slices.Delete(w.places, i, i+1)
	w.gone = append(w.gone, p)
	w.maySave(p.key, w.leaves(p.key, true)) // a crash may leave the turn
	r := w.call(Call{Op: Cancel, Place: p.id})
	w.require(r.Failure == "" || r.Failure == NotDurable || r.Failure == Crashed ||
		w.untouched(r.Failure), "cancel: %s", r.Failure)
	if r.Failure == NotDurable {
		w.faulty(r.Failure)
	}
	w.Counts["cancelled"]++
	w.moveUp(p.key, p.turn)
	if (r.Failure == "" || r.Failure == NotDurable) && !w.dead() { // the tokens are back in memory
		w.look(p.key)
	}
}

// moveUp takes a turn out of the model's queue, and reads the new instants of those
// behind it.
func (w *World) moveUp(key Key, gone *Turn) {
	s := w.states[key]
	behind, at := s.leave(gone, w.now)
	for _, end := range []func(Span) int64{func(a Span) int64 { return a.Hi }, func(a Span) int64 { return a.Lo }} {
		for i, t := range behind { // a crash may leave either
			t.At = end(at[i])
		}
		w.maySave(key, w.leaves(key, true))
	}
	for i, t := range behind {
		n := slices.IndexFunc(w.places, func(p *place) bool { return p.turn == t })
		if n < 0 || w.dead() {
			continue
		}
		r := w.call(Call{Op: Delay, Place: w.places[n].id})
		if r.Failure == Crashed {
			break
		}
		t.At = w.now + int64(r.Delay)
		w.require(at[i].Lo <= t.At && t.At <= at[i].Hi, "%v: a turn moves up to %d; the model has %d to %d", key,
			r.Delay, at[i].Lo-w.now, at[i].Hi-w.now)
		w.Counts["moved up"]++
	}
	if len(behind) > 0 && !w.dead() {
		w.Counts["left the middle"]++
	}
	w.maySave(key, w.leaves(key, true))
	w.pass(0) // the turns that have come
}

// cancelAgain repeats a Cancel, which must change nothing.
func (w *World) cancelAgain() {
	if len(w.gone) > 0 {
		p := w.gone[w.rnd.IntN(len(w.gone))]
		w.call(Call{Op: Cancel, Place: p.id})
		if !w.dead() {
			w.look(p.key)
		}
	}
}

// hold holds a bucket, or sets the end of its hold, and reads the new instants of
// its turns. Hold never ends a hold, nor moves its end forward.
func (w *World) hold(op Op) {
	key := w.pickKey()
	until := w.now + w.rnd.Int64N(5e9) - 1e9
	if n := len(w.places); n > 0 && w.rnd.IntN(2) == 0 { // over a queue
		p := w.places[w.rnd.IntN(n)]
		key, until = p.key, w.now+w.rnd.Int64N(2*(p.turn.At-w.now)+1)
	}
	s := w.states[key]
	switch {
	case op == SetHold:
		until *= int64(w.rnd.IntN(2))
	case s.unseen:
		return
	}
	r := w.call(Call{Op: op, Reqs: []Request{{Key: key}}, Until: until})
	if w.refused(key, op, 0, r.Failure) {
		return
	}
	if op == Hold {
		until = max(until, s.Hold)
	}
	if until <= w.now {
		until = 0
	}
	if op == Hold && r.Failure == "" {
		w.require(r.Until == until, "%v is held until %d, not %d", key, r.Until, until)
		if until == 0 { // it promises nothing: a crash may bring back a hold that failed
			return
		}
	}
	if r.Failure == "" {
		s.Hold, s.holds, s.unseen = until, []int64{until}, false
	} else {
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
		w.faulty(r.Failure)
		s.holds = append(s.holds, until)
		moved := w.leaves(key, true)
		w.maySave(key, Span{moved.Lo, moved.Hi + max(0, until-w.now)})
		w.heldNow(key, until)
	}
	if w.release != nil {
		s.heldDuring = append(s.heldDuring, s.mayHold()...)
	}
	w.maySave(key, w.leaves(key, true))
	last, moved := int64(0), false
	for _, p := range w.places {
		if !slices.Contains(s.Queue, p.turn) || w.dead() {
			continue
		}
		d := w.call(Call{Op: Delay, Place: p.id})
		if d.Failure == Crashed {
			break
		}
		at := w.now + int64(d.Delay)
		w.require(at >= max(p.turn.At, s.Hold), "%v: a turn at %d moved to %d in a hold until %d",
			key, p.turn.At, at, s.Hold)
		moved = moved || at != p.turn.At
		if p.turn.At = at; r.Failure != "" {
			p.epoch = 0 // a crash may forget the delay
		}
	}
	if w.dead() { // the new instants of the turns may be unknown
		tail := w.leaves(key, true)
		w.maySave(key, Span{tail.Lo, tail.Hi + max(0, until-w.now)})
		return
	}
	for _, t := range s.Queue {
		w.require(t.At >= last, "%v: a turn goes before one that came first", key)
		last = t.At
	}
	if w.maySave(key, w.leaves(key, true)); r.Failure == "" && moved {
		w.saved(key)
	}
}

// reset makes buckets full.
func (w *World) reset() {
	keys := []Key{w.pickKey()}
	if w.env.Disk == nil && w.env.Dead == nil && w.rnd.IntN(2) == 0 {
		keys = append(keys, w.pickKey())
	}
	w.resetKeys(keys...)
}

func (w *World) resetKeys(keys ...Key) {
	var reqs []Request
	for _, key := range keys {
		if _, _, declared := w.limits.For(key); !declared {
			return
		}
		reqs = append(reqs, Request{Key: key})
	}
	r := w.call(Call{Op: Reset, Reqs: reqs})
	if w.untouched(r.Failure) {
		return
	}
	for _, key := range keys {
		s := w.states[key]
		next := Span{min(s.TAT.Lo, w.now), min(s.TAT.Hi, w.now)}
		if s.law != nil {
			s.law.Reset()
		}
		for _, p := range w.places { // their callers go at their turns, but are not charged
			if p.key == key {
				p.epoch = 0
			}
		}
		l, on, _ := w.limits.For(key)
		if r.Failure != "" {
			w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
			w.faulty(r.Failure)
			if on {
				next = hull(next, s.tailSpan())
			}
			s.holds = append(s.holds, 0)
			w.maySave(key, Span{0, w.now})
			w.unknown(key, next)
			if len(s.Queue) == 0 {
				w.heldNow(key, 0)
			} else if s.Queue = nil; !w.dead() { // turns may still wait, or not
				w.resetKeys(key)
			}
			if w.release != nil && s.unseen {
				s.heldDuring = append(s.heldDuring, s.mayHold()...)
			}
			continue
		}
		if s.Hold != 0 && w.release != nil {
			s.heldDuring = append(s.heldDuring, 0)
		}
		s.Queue, s.Hold = nil, 0
		w.put(key, next)
		if on && l.Level >= Leased {
			s.file = []Span{{0, s.TAT.Hi}}
		}
		s.holds = []int64{0}
	}
}

// heldNow finds out, after a failed call, whether that call's hold is in force.
func (w *World) heldNow(key Key, would int64) {
	s := w.states[key]
	if w.dead() || len(s.Queue) > 0 {
		return
	}
	l, on, _ := w.limits.For(key)
	if l.Blocked { // its decisions do not show the hold
		s.unseen = true
		return
	}
	r := w.one(Check, key, 0)
	if r.Failure == "" {
		retry := int64(r.Decisions[0].RetryAfter)
		was := retry == max(0, s.Hold-w.now)
		w.require(was || retry == max(0, would-w.now), "%v is held for %d more; before the call it was for %d",
			key, retry, max(0, s.Hold-w.now))
		if !was {
			s.Hold = would
		}
		if on {
			lo, hi := s.Decide(l, on, w.now, Check, 0, 0)
			w.looked(key, l, 0, lo, hi, r.Decisions[0])
		}
	}
}
