package modeltest

import (
	"math/rand/v2"
	"slices"
	"time"
)

// flight is a time in which saves are held up, and calls on one bucket wait for
// their commits. Memory has each change at once, so later calls decide on it.
// Then the commits succeed or fail, one after the other.
//
// The laws, however the calls mix:
//
//   - A call that was acknowledged counts, and is in the file.
//   - A call that failed counts or does not count, in memory and in the file.
//   - New limits hold for what comes after them. The next request cuts what is
//     further ahead than they allow. An override keeps what was used, even if it is not durable.
//   - A turn whose Reserve failed, or that was cancelled, is in no queue. Those behind
//     it may go earlier, never later.
//   - The hold in force is that of the newest call. If that call failed, it is
//     that of the last one that was acknowledged.
//
// So after each commit the bucket is what the acknowledged calls lead to, and
// the failed ones widen that to an interval.
type flight struct {
	*World
	key   Key
	l     Limit
	tau   int64           // the longest of the limits
	start Bucket          // before the calls
	first map[*Turn]int64 // instants of its turns
	calls []*flightCall
	lost  bool  // a failed reset may have put turns back, or not; or a turn moved before its Reserve returned
	low   int64 // the earliest TAT since the start, and the latest
	top   int64
}

// flightCall is a call that has begun.
type flightCall struct {
	Call
	at     int64 // when it began
	epoch  int
	l      Limit // in force then; of new limits, from then on
	was    Limit // of new limits: in force before
	cost   int64 // of a SpendUpTo: what it takes, or 1
	lo, hi outcome
	turn   *Turn           // that a Reserve adds or a Cancel removes
	turnAt int64           // its instant when a Reserve adds it
	moves  map[*Turn]int64 // new instants of turns
	full   bool            // the queue is full
	hold   int64           // end of the hold that it puts in force
	moved  bool            // that hold moved the queue
	counts bool            // the law counts it as admitted, as long as no reply says otherwise
	broken error           // what the law says if it was admitted

	replies chan Reply
	done    bool
	reply   Reply
}

func (c *flightCall) failed() bool { return c.done && c.reply.Failure != "" }

// holds reports whether the call sets the end of a hold. A Hold that asks for
// the past does neither.
func (c *flightCall) holds() bool {
	return c.Op == SetHold || c.Op == Reset || c.Op == Hold && c.hold != 0
}

func (w *World) flight() {
	key := w.pickKey()
	if n := len(w.places); n > 0 && w.rnd.IntN(2) == 0 { // with a queue
		key = w.places[w.rnd.IntN(n)].key
	}
	s := w.states[key]
	l, on, _ := w.limits.For(key)
	if !on || l.Level < Leased && w.rnd.IntN(4) > 0 || s.TAT.Lo != s.TAT.Hi || s.TAT.Hi > w.now+l.Tau() || s.unseen {
		return
	}
	f := &flight{World: w, key: key, l: l, tau: l.Tau(), start: s.Bucket, low: s.TAT.Lo}
	f.start.Queue, f.first = slices.Clone(s.Queue), make(map[*Turn]int64)
	for _, t := range s.Queue {
		f.first[t] = t.At
	}
	w.env.Disk.set(NoFault)
	w.env.Disk.begin()
	var release func()
	var held <-chan struct{}
	hold := func() {
		held, release = w.env.Disk.Block()
		w.tb.Cleanup(release) // if the test fails, before the System is closed
	}
	hold()
	f.update()
	for range 1 + w.rnd.IntN(3) {
		for range 1 + w.rnd.IntN(3) {
			f.begin()
		}
		select {
		case <-held: // end this save, and hold up the next
			w.env.Disk.set([]Fault{NoFault, FailBefore, FailAfter}[w.rnd.IntN(3)])
			end := release
			hold()
			end()
			w.env.Settle()
			f.collect()
		default:
		}
		if w.rnd.IntN(2) == 0 && !f.reserving() {
			w.pass(w.rnd.Int64N(l.T() + 2))
			f.update()
		}
	}
	w.env.Disk.set([]Fault{NoFault, FailBefore, FailAfter}[w.rnd.IntN(3)])
	release()
	w.env.Settle()
	w.env.Disk.set(NoFault)
	f.collect()
	f.end()
}

// reserving reports whether a Reserve waits for its commit.
func (f *flight) reserving() bool {
	return slices.ContainsFunc(f.calls, func(c *flightCall) bool { return c.Op == Reserve && !c.done })
}

// begin begins a call, and waits until it waits for its commit.
func (f *flight) begin() {
	s, l := f.states[f.key], f.l
	exact := s.TAT.Lo == s.TAT.Hi
	c := &flightCall{at: f.now, epoch: f.epoch, l: l, replies: make(chan Reply, 1)}
	ops := []Op{Spend, Spend, Spend, Refund, Refund, SpendUpTo, Reserve, Reserve, Cancel, Cancel, Hold, SetHold, Reset, SetLimits,
		SetOverrides}
	c.Op, c.Now, c.Reqs = ops[f.rnd.IntN(len(ops))], f.now, []Request{{Key: f.key}}
	switch c.Op {
	case Spend:
		c.cost = min(f.pickCost(f.key), l.Burst)
	case Refund:
		c.cost = f.rnd.Int64N(l.Burst + 2)
	case SpendUpTo:
		if !exact || f.lost {
			return
		}
		c.Reqs[0].Cost = 2 * f.pickCost(f.key)
		c.cost, _ = s.free(l, f.now, c.Reqs[0].Cost, 0)
		c.cost = max(c.cost, min(c.Reqs[0].Cost, 1)) // it asks for one at least
	case Reserve:
		if c.cost = oneOf(f.rnd, l.Burst, min(f.pickCost(f.key), l.Burst)); !exact || f.lost || len(f.places) >= 6 {
			return
		}
		at, full := s.Reserve(l, f.now, c.cost)
		c.turn, c.turnAt, c.full = &Turn{At: at.Lo, Cost: c.cost}, at.Lo, full[0]
	case Cancel:
		i := slices.IndexFunc(f.places, func(p *place) bool { return p.key == f.key })
		if i < 0 {
			return
		}
		p := f.places[i]
		c.Place, c.turn = p.id, p.turn
		f.places, f.gone = slices.Delete(f.places, i, i+1), append(f.gone, p)
		f.lost = f.lost || f.reserving()
	case Hold, SetHold:
		c.Until = f.now + f.rnd.Int64N(2*l.Tau()+2) - l.Tau()/2
		if c.hold = c.Until; c.Op == Hold {
			c.hold = max(c.hold, s.Hold)
		}
		if c.hold <= f.now {
			c.hold = 0
		}
		if len(s.Queue) > 0 && s.Queue[0].At < c.hold {
			c.moved, c.moves = true, make(map[*Turn]int64)
			for _, t := range s.Queue {
				c.moves[t] = t.At + c.hold - s.Queue[0].At
			}
		}
	case SetLimits, SetOverrides:
		if slices.ContainsFunc(s.Queue, func(t *Turn) bool { return t.limit != nil }) {
			return // as before any new limits
		}
		if c.Op == SetOverrides && l.Level >= Leased {
			return // it would wait for a mutex until the save has ended, and Settle for it
		}
		f.changeLimit(c)
	case Reset:
		s.law.Reset()
		for _, p := range f.places { // their callers go at their turns, but are not charged
			if p.key == f.key {
				p.epoch = 0
			}
		}
	}
	op := c.Op
	if c.Op == SpendUpTo {
		op = Spend
	} else if op != SetLimits && op != SetOverrides {
		c.Reqs[0].Cost = c.cost
	}
	switch op {
	case Spend, Refund:
		c.lo, c.hi = s.Decide(l, true, f.now, op, c.cost, 0)
		if op == Refund {
			f.pass(0) // turns that have moved up came before it: it may make the bucket full
			s.law.Refund(f.now, c.cost)
		} else {
			c.counts = c.lo.Allowed || f.lost
		}
	case Reserve:
		c.counts = !c.full && c.turn.At <= f.now
	}
	if c.counts {
		c.broken = s.law.Admit(f.now, c.cost)
	}
	f.calls = append(f.calls, c)
	go func() { c.replies <- f.sys.Do(c.Call) }()
	f.env.Settle()
	f.collect()
	f.Counts["in commits: "+string(c.Op)]++
}

// changeLimit gives the bucket a limit of its own, in new limits or as an
// override. It has the level of the last, so that the same calls wait for commits.
func (f *flight) changeLimit(c *flightCall) {
	c.was = c.l
	c.l.Burst, c.l.Period = 1+f.rnd.Int64N(2*c.l.Burst), 1+c.l.Period/2+time.Duration(f.rnd.Int64N(int64(c.l.Period)))
	c.l.Count, c.l.Queue = min(c.l.Count, int64(c.l.Period)), f.rnd.Int64N(2)*c.l.Queue
	if c.Op == SetLimits && c.l.Level >= Leased { // to keep what was used it would wait for the save
		c.l.Count, c.l.Period = c.was.Count, c.was.Period
	}
	limits := f.limits
	limits.Overrides = slices.DeleteFunc(slices.Clone(limits.Overrides), func(o Override) bool { return o.Key == f.key })
	limits.Overrides = append(limits.Overrides, Override{f.key, c.l})
	f.limits, f.l, f.tau = limits, c.l, max(f.tau, c.l.Tau())
	if c.Op == SetLimits {
		c.Limits, c.Reqs = &limits, nil
		f.newLaws()
		return
	}
	c.Limits = &Limits{Overrides: []Override{{f.key, c.l}}}
	f.epoch++
	f.newLaw(f.key)
}

// oneOf returns one of the numbers.
func oneOf(rnd *rand.Rand, n ...int64) int64 { return n[rnd.IntN(len(n))] }

// collect takes the replies that have come.
func (f *flight) collect() {
	for _, c := range f.calls {
		if c.done {
			continue
		}
		select {
		case c.reply = <-c.replies:
		default:
			continue
		}
		c.done = true
		f.World.calls = append(f.World.calls, entry{c.Call, c.reply, f.action})
		f.replied(c)
	}
	f.update()
	f.lookAtTurns()
	f.update()
}

// lookAtTurns notes which turns have moved up.
func (f *flight) lookAtTurns() {
	moves := make(map[*Turn]int64)
	for _, p := range f.places {
		if !slices.Contains(f.states[f.key].Queue, p.turn) {
			continue
		}
		r := f.call(Call{Op: Delay, Place: p.id})
		at := f.now + int64(r.Delay)
		if at == p.turn.At {
			continue
		}
		again := func(c *flightCall) bool { return c.holds() && c.failed() } // the earlier hold is in force again
		f.require(at < p.turn.At || slices.ContainsFunc(f.calls, again),
			"%v: a turn moves from %d to %d", f.key, p.turn.At-f.now, at-f.now)
		moves[p.turn] = at
		f.Counts["moved up in commits"]++
	}
	if len(moves) > 0 {
		f.calls = append(f.calls, &flightCall{at: f.now, l: f.l, moves: moves, done: true})
	}
}

// replied checks a reply.
func (f *flight) replied(c *flightCall) {
	r := c.reply
	if c.full {
		f.require(r.Failure == QueueFull, "%v: more wait than the queue of %d allows: %q", f.key, c.l.Queue, r.Failure)
		return
	}
	law := f.states[f.key].law
	if r.Failure != "" {
		f.require(r.Failure == NotDurable, "%v: %s", f.key, r.Failure)
		f.faulty(r.Failure)
		if c.counts {
			law.Refund(f.now, c.cost)
		}
		f.lost = f.lost || (c.Op == Reserve || c.holds()) && f.reserving()
		return
	}
	defer func() { f.require(c.broken == nil, "%v: the law: %v", f.key, c.broken) }()
	switch c.Op {
	case Spend, SpendUpTo, Refund:
		d := r.Decisions[0]
		if !f.lost {
			f.compare(f.key, d, c.lo.Decision, c.hi.Decision)
		}
		if c.Op == SpendUpTo && d.Allowed && !f.lost {
			f.require(r.Taken == c.cost, "%v: %d are taken, not %d", f.key, r.Taken, c.cost)
		}
		if c.counts && !d.Allowed {
			law.Refund(f.now, c.cost)
			c.broken = nil
		}
	case Hold:
		f.require(r.Until == c.hold, "%v is held until %d, not %d", f.key, r.Until, c.hold)
	case Reserve:
		f.require(f.lost || int64(r.Delay) >= max(0, c.turn.At-f.now), "%v: a turn in %v, not %d", f.key, r.Delay, c.turn.At-f.now)
		p := &place{f.key, r.Place, c.turn, c.turnAt <= c.at, c.epoch}
		if f.taken(c) {
			p.epoch = 0
		}
		if p.now {
			f.gone = append(f.gone, p)
		} else {
			f.places = append(f.places, p)
		}
	}
}

// taken reports whether a reset took the turn of a reservation out of the queue.
func (f *flight) taken(of *flightCall) bool {
	after := f.calls[slices.Index(f.calls, of):]
	return slices.ContainsFunc(after, func(c *flightCall) bool { return c.Op == Reset })
}

// update gives the model what memory has.
func (f *flight) update() {
	s := f.states[f.key]
	b := f.replay(nil)
	s.TAT = b.TAT
	s.Queue, s.Hold = b.Queue, f.held()
	tail := s.tailSpan()
	f.low, f.top = min(f.low, tail.Lo), max(f.top, tail.Hi)
}

// held returns the end of the hold in force.
func (f *flight) held() int64 {
	hold, newest := f.start.Hold, true
	for _, c := range slices.Backward(f.calls) {
		if !c.holds() {
			continue
		}
		if newest && !c.failed() || c.done && !c.failed() {
			return c.hold
		}
		newest = false
	}
	return hold
}

// replay returns the bucket after the calls. Turns are charged by the limit that
// is in force, or by rate.
func (f *flight) replay(rate *Limit) Bucket {
	b := f.start
	if rate != nil {
		b.Rate = *rate
	}
	b.Queue = slices.Clone(b.Queue)
	for t, at := range f.first {
		t.At = at
	}
	for _, c := range f.calls {
		b.advance(c.at)
		for t, at := range c.moves {
			t.At = at
		}
		change := func(to func(int64) int64) {
			lo, hi := to(b.TAT.Lo), to(b.TAT.Hi)
			if c.failed() {
				lo, hi = min(lo, b.TAT.Lo), max(hi, b.TAT.Hi)
			}
			b.TAT = Span{lo, hi}
		}
		switch c.Op {
		case Spend, SpendUpTo, Refund, Reserve, Reset:
			// It cuts the bucket, unless it changed nothing, or what it did was taken back.
			b.TAT.Lo = min(b.TAT.Lo, c.at+c.l.clamp())
		}
		spend := func(tat int64) int64 { return min(max(tat, c.at)+c.cost*c.l.T(), c.at+c.l.Tau()) }
		switch c.Op {
		case Spend, SpendUpTo:
			switch denied := c.done && !c.failed() && !c.reply.Decisions[0].Allowed; {
			case denied || !c.lo.Allowed && !c.hi.Allowed && !f.lost || c.cost == 0:
			case !c.done && c.lo.Allowed != c.hi.Allowed:
				b.TAT.Hi = max(b.TAT.Hi, spend(b.TAT.Hi))
			default:
				change(spend)
			}
		case Refund:
			change(func(tat int64) int64 { return max(min(tat, c.at), tat-c.cost*c.l.T()) })
		case Reserve:
			switch {
			case c.full || c.cost == 0 && c.turnAt <= c.at:
			case c.turnAt <= c.at:
				change(spend)
			case !c.failed():
				c.turn.At = c.turnAt
				b.Queue = append(b.Queue, c.turn)
			}
		case Cancel:
			b.Queue = slices.DeleteFunc(b.Queue, func(t *Turn) bool { return t == c.turn })
		case SetLimits, SetOverrides:
			if c.was.T() != c.l.T() {
				b.convert(c.was, c.l, c.at)
			}
			if rate == nil {
				b.Rate = c.l
			}
		case Reset:
			change(func(tat int64) int64 { return min(tat, c.at) })
			left := slices.DeleteFunc(slices.Clone(b.Queue), func(t *Turn) bool {
				return slices.ContainsFunc(f.calls, func(o *flightCall) bool {
					return o.turn == t && (o.Op == Cancel || o.failed())
				})
			})
			if c.failed() && len(left) > 0 {
				f.lost = true
				continue
			}
			b.Queue = nil
		}
	}
	b.advance(f.now)
	return b
}

// end puts what the flight leaves into the model.
func (f *flight) end() {
	s := f.states[f.key]
	saved, forgets := false, false
	for _, c := range f.calls {
		f.require(c.done, "%s has no answer", c.Op)
		if !c.failed() && c.cost > 0 && (c.Op == Reserve || c.Op == Spend && c.reply.Decisions[0].Allowed) {
			saved = true
		}
		if !c.holds() {
			continue
		}
		if c.failed() {
			forgets = forgets || c.moved // a crash may forget that turns moved
			s.holds = append(s.holds, c.hold)
		} else {
			s.holds = []int64{c.hold}
		}
	}
	span := Span{f.low, f.top + f.tau/8}
	if saved && f.l.Level >= Leased {
		span.Lo = s.tailSpan().Lo
		for _, c := range f.calls {
			switch c.Op {
			case SetLimits: // the file may have the turns as the limit before it charged them
				was := f.replay(&c.was)
				span.Lo = min(span.Lo, was.tailSpan().Lo)
				span.Lo = min(span.Lo, f.low)
			case SetOverrides: // the file may have what was saved before it
				span.Lo = min(span.Lo, f.low)
			}
		}
		if f.lost {
			span.Lo = min(span.Lo, s.TAT.Lo)
		}
		if forgets {
			span.Lo = f.low
		}
		s.file = []Span{span}
	} else {
		f.maySave(f.key, span)
	}
	for _, p := range f.places {
		if p.key == f.key && forgets {
			p.epoch = 0
		}
	}
	f.Counts["flights"]++
	if f.lost {
		f.Counts["flights that lose sight of the queue"]++
		s.Queue = nil
		f.resetKeys(f.key)
	}
	f.look(f.key)
}
