package modeltest

import (
	"slices"
	"time"
)

// Action is something that a World does. Needs is nil if every Env allows it.
type Action struct {
	Name   string
	Weight int
	Do     func(*World)
	Needs  func(Env) bool
}

func faults(e Env) bool  { return e.Disk != nil }
func crashes(e Env) bool { return e.Crashes }
func files(e Env) bool   { return e.File }
func ticks(e Env) bool   { return e.Ticks }
func delays(e Env) bool  { return e.DelayFlush != nil }

// Actions is all that happens to a limiter.
var Actions = []Action{
	{"time passes", 220, (*World).passSome, nil},
	{"spend", 300, func(w *World) { w.request(Spend) }, nil},
	{"check", 40, func(w *World) { w.request(Check) }, nil},
	{"refund", 60, func(w *World) { w.request(Refund) }, nil},
	{"spend all", 80, func(w *World) { w.group(SpendAll) }, nil},
	{"refund all", 20, func(w *World) { w.group(RefundAll) }, nil},
	{"spend each", 20, (*World).spendEach, nil},
	{"reserve", 60, (*World).reserve, nil},
	{"cancel", 25, (*World).cancel, nil},
	{"cancel again", 15, (*World).cancelAgain, nil},
	{"hold", 15, (*World).hold, nil},
	{"reset", 15, (*World).reset, nil},
	{"set limits", 8, (*World).setLimits, nil},
	{"flush", 15, (*World).flush, nil},
	{"tick", 30, (*World).tick, ticks},
	{"reopen", 3, func(w *World) { w.reopen(false, w.limits) }, nil},
	{"reopen with other limits", 2, func(w *World) { w.reopen(false, w.pickLimits()) }, nil},
	{"crash", 5, func(w *World) { w.reopen(true, w.limits) }, crashes},
	{"a save fails", 40, func(w *World) { w.env.Disk.set(FailBefore + Fault(w.rnd.IntN(2))) }, faults},
	{"a load fails", 10, func(w *World) { w.env.Disk.set(FailLoad) }, faults},
	{"crash in a save", 8, func(w *World) { w.env.Disk.set(CrashBefore + Fault(w.rnd.IntN(2))) },
		func(e Env) bool { return e.Disk != nil && e.Crashes }},
	{"commit timeout", 10, (*World).lateSpend, func(e Env) bool { return e.Disk != nil && e.Settle != nil }},
	{"delay a flush", 10, (*World).delayFlush, delays},
	{"end the delayed flush", 8, func(w *World) {
		if w.release != nil {
			w.endFlush()
		}
	}, delays},
	{"bucket", 15, (*World).inspect, nil},
	{"buckets", 4, (*World).list, nil},
	{"stats", 10, (*World).stats, nil},
	{"snapshot", 2, func(w *World) { w.upkeep(Snapshot) }, files},
	{"compact", 1, func(w *World) { w.upkeep(Compact) }, files},
}

// Step does an action, and sometimes looks at a bucket after it.
func (w *World) Step() {
	w.Counts["steps"]++
	total := 0
	for _, a := range Actions {
		if a.Needs == nil || a.Needs(w.env) {
			total += a.Weight
		}
	}
	n := w.rnd.IntN(total)
	for _, a := range Actions {
		if a.Needs != nil && !a.Needs(w.env) {
			continue
		}
		if n -= a.Weight; n < 0 {
			w.action = a.Name
			a.Do(w)
			break
		}
	}
	if !w.dead() {
		w.look(w.pickKey())
	}
	if w.dead() {
		w.reopen(true, w.limits)
	}
	if slices.ContainsFunc(w.keys, func(key Key) bool { return len(w.states[key].file) > 40 }) && w.release == nil {
		w.flush()
	}
}

// pickLimits returns limits for most of the Names; some are off, and some are
// not declared.
func (w *World) pickLimits() Limits {
	levels := w.env.Levels
	if levels == nil {
		levels = []Level{Memory, Flushed, Leased, Synced}
	}
	units := []int64{10, 1e9, 3600e9}
	unit := units[w.rnd.IntN(3)] // of most limits: else time that one needs makes the others full
	pick := func() Limit {
		l := Limit{
			Burst: 1 + w.rnd.Int64N(30), Count: 1 + w.rnd.Int64N(5), Level: levels[w.rnd.IntN(len(levels))],
			Queue: []int64{0, 0, 1 + w.rnd.Int64N(40)}[w.rnd.IntN(3)],
		}
		if w.rnd.IntN(6) == 0 {
			unit = units[w.rnd.IntN(3)]
		}
		l.Period = time.Duration(l.Count + w.rnd.Int64N(unit))
		return l
	}
	ls := Limits{Names: make(map[uint16]*Limit)}
	for name := uint16(1); name <= 4; name++ {
		switch w.rnd.IntN(12) {
		case 0: // not declared
		case 1:
			ls.Names[name] = nil
		default:
			l := pick()
			ls.Names[name] = &l
		}
	}
	if key := w.keys[0]; ls.Names[key.Name] != nil {
		ls.Overrides = append(ls.Overrides, Override{key, pick()})
	}
	return ls
}

// pickKey returns a key, mostly one of a few.
func (w *World) pickKey() Key { return w.keys[w.rnd.IntN([]int{6, 6, len(w.keys)}[w.rnd.IntN(3)])] }

// pickCost returns a cost that the key's bucket may have, and rarely more.
func (w *World) pickCost(key Key) int64 {
	l, on, _ := w.limits.For(key)
	if !on {
		return w.rnd.Int64N(1000)
	}
	if w.rnd.IntN(100) == 0 {
		return l.Burst + 1
	}
	return w.rnd.Int64N(min(l.Burst, []int64{2, 6, 100}[w.rnd.IntN(3)]) + 1)
}

func (w *World) passSome() {
	l, on, _ := w.limits.For(w.pickKey())
	if !on {
		l = Limit{Burst: 1, Count: 1, Period: time.Second}
	}
	switch n := w.rnd.IntN(100); {
	case n < 70:
		w.pass(w.rnd.Int64N(l.T() + 2))
	case n < 95:
		w.pass(w.rnd.Int64N(l.Tau()/2 + 2))
	default:
		w.pass(2 * l.Tau())
	}
}

// refused reports whether a call on one key failed as it should, or without a
// change.
func (w *World) refused(key Key, op Op, cost int64, f Failure) bool {
	l, on, declared := w.limits.For(key)
	switch {
	case w.untouched(f):
	case !declared:
		w.require(f == UnknownName || f == Crashed, "%v is not declared: %q", key, f)
	case on && cost > l.Burst && op != Refund:
		w.require(f == CostOverBurst || f == Crashed, "%v, cost %d: %q", key, cost, f)
	default:
		return false
	}
	return true
}

// request spends, checks or refunds.
func (w *World) request(op Op) {
	key := w.pickKey()
	cost := w.pickCost(key)
	r := w.one(op, key, cost)
	if w.refused(key, op, cost, r.Failure) {
		return
	}
	var d Decision
	if r.Failure == "" {
		d = r.Decisions[0]
	}
	w.decided(key, op, cost, d, r.Failure)
	l, on, _ := w.limits.For(key)
	if on && !d.Allowed && r.Failure == "" && op == Spend && w.rnd.IntN(3) == 0 { // it comes back when it is told to
		w.pass(int64(d.RetryAfter) - 1)
		w.require(!w.again(key, op, cost, l), "%v is admitted before RetryAfter", key)
		w.pass(1)
		w.require(w.again(key, op, cost, l) || w.states[key].TAT.Lo != w.states[key].TAT.Hi || w.dead(), "%v is denied after RetryAfter", key)
	}
}

// again repeats a request, and reports whether it was admitted.
func (w *World) again(key Key, op Op, cost int64, l Limit) bool {
	r := w.one(op, key, cost)
	if w.refused(key, op, cost, r.Failure) {
		return op == ""
	}
	var d Decision
	if r.Failure == "" {
		d = r.Decisions[0]
	}
	w.decided(key, op, cost, d, r.Failure)
	return d.Allowed
}

// decided carries a request out on the model, and compares the decision.
func (w *World) decided(key Key, op Op, cost int64, d Decision, f Failure) {
	w.tb.Helper()
	s := w.states[key]
	l, on, _ := w.limits.For(key)
	lo, hi := s.Decide(l, on, w.now, op, cost)
	if f != "" {
		w.require(f == NotDurable || f == Crashed, "%v: %s", key, f)
		w.faulty(f)
		w.require(op != Check || f == Crashed, "a check fails: %s", f)
		if on && op != Check {
			w.failed(key, op, cost, Span{lo.next, hi.next})
		}
		return
	}
	w.compare(key, d, lo.Decision, hi.Decision)
	if !on {
		return
	}
	was := s.TAT
	next := s.after(l, w.now, op, cost, lo, hi, d)
	if op == Check {
		s.TAT = next
		return
	}
	w.account(key, op, cost, d.Allowed)
	if next != was {
		w.put(key, next)
		if d.Allowed && cost > 0 && (op == Spend || was.Lo > w.now) {
			w.saved(key)
		}
	}
}

// failed notes that a call failed whose effect would lie in a span.
func (w *World) failed(key Key, op Op, cost int64, would Span) {
	w.unknown(key, would)
	if op == Refund && w.states[key].law != nil {
		w.states[key].law.Refund(w.now, cost)
	}
}

// account counts an admission or a refund for the law.
func (w *World) account(key Key, op Op, cost int64, allowed bool) {
	w.tb.Helper()
	switch {
	case op == Refund:
		w.states[key].law.Refund(w.now, cost)
	case op == Spend && allowed:
		w.admit(key, w.now, cost)
	case op == Spend:
		w.Counts["denied"]++
	}
}

func (w *World) pickRequests() (reqs []Request) {
	for range 1 + w.rnd.IntN(6) {
		key := w.pickKey()
		if slices.ContainsFunc(reqs, func(r Request) bool { return r.Key == key }) {
			continue
		}
		l, on, declared := w.limits.For(key)
		cost := w.pickCost(key)
		if declared && (!on || cost <= l.Burst) {
			reqs = append(reqs, Request{key, cost, Mode(w.rnd.IntN(3))})
		}
	}
	return reqs
}

// group spends from several buckets, or refunds to them: all or none.
func (w *World) group(op Op) {
	reqs := w.pickRequests()
	single := map[Op]Op{SpendAll: Spend, RefundAll: Refund}[op]
	strict := [2]Decision{{Allowed: true, Remaining: unlimited}, {Allowed: true, Remaining: unlimited}}
	outcomes := make([][2]outcome, len(reqs))
	exact, voted := true, false
	for i, q := range reqs {
		s, one, cost := w.states[q.Key], single, q.Cost
		if q.Mode == CheckOnly && op == RefundAll {
			cost = 0
		} else if q.Mode == CheckOnly {
			one = Check
		}
		l, on, _ := w.limits.For(q.Key)
		outcomes[i][0], outcomes[i][1] = s.Decide(l, on, w.now, one, cost)
		exact = exact && s.TAT.Lo == s.TAT.Hi
		if q.Mode == SpendOnly {
			continue
		}
		for end := range strict {
			if d := outcomes[i][end].Decision; !voted || stricter(d, strict[end]) {
				strict[end] = d
			}
		}
		voted = true
	}
	r := w.call(Call{Op: op, Reqs: reqs})
	if w.untouched(r.Failure) {
		return
	}
	allowed := r.Failure != ""
	if r.Failure == "" {
		d := r.Decisions[0]
		allowed = d.Allowed
		ok := strict[0].RetryAfter <= d.RetryAfter && d.RetryAfter <= strict[1].RetryAfter && d.Allowed == (d.RetryAfter == 0)
		w.require(ok && (!exact || d.Remaining == strict[0].Remaining), "%s: %+v; the model has %+v", op, d, strict)
	} else {
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%s: %s", op, r.Failure)
		w.faulty(r.Failure)
	}
	var changed []Key
	strictest := Memory
	for _, q := range reqs {
		if l, _, _ := w.limits.For(q.Key); q.Mode != CheckOnly && q.Cost > 0 {
			strictest = max(strictest, l.Level)
		}
	}
	for i, q := range reqs {
		s := w.states[q.Key]
		l, on, _ := w.limits.For(q.Key)
		if !on || q.Mode == CheckOnly {
			continue
		}
		lo, hi := outcomes[i][0], outcomes[i][1]
		next := Span{lo.next, hi.next}
		capped := Span{min(s.TAT.Lo, w.now+l.Tau()), s.TAT.Hi}
		switch {
		case !allowed || q.Cost == 0 || single == Spend && !lo.Allowed:
			next = capped // it was denied: the cap is written, or not
		case single == Spend && !hi.Allowed && q.Mode == SpendOnly:
			next = hull(Span{hi.next, hi.next}, Span{lo.next, lo.next}, capped)
		case single == Spend && !hi.Allowed && r.Failure == "":
			next.Hi = w.now + l.Tau()
		}
		if r.Failure != "" {
			if strictest >= Leased && lo.Allowed && s.TAT.Lo == s.TAT.Hi && next != s.TAT && len(s.file) == 1 {
				w.atomic, w.before, w.would = append(w.atomic, q.Key), append(w.before, w.leaves(q.Key, true)), append(w.would, next)
			}
			w.failed(q.Key, single, q.Cost, next)
			continue
		}
		if allowed && (single == Refund || hi.Allowed) {
			w.account(q.Key, single, q.Cost, true)
		}
		if next != s.TAT {
			if allowed && q.Cost > 0 && (single == Spend && hi.Allowed || single == Refund && s.TAT.Lo > w.now) {
				changed = append(changed, q.Key)
			}
			w.put(q.Key, next)
		}
	}
	w.saved(changed...)
	if !w.dead() {
		w.atomic, w.before, w.would = nil, nil, nil
	}
	for _, q := range reqs {
		if s := w.states[q.Key]; s.TAT.Lo != s.TAT.Hi && !w.dead() {
			w.look(q.Key)
		}
	}
}

func stricter(a, b Decision) bool {
	switch {
	case a.Allowed != b.Allowed:
		return b.Allowed
	case a.RetryAfter != b.RetryAfter:
		return a.RetryAfter > b.RetryAfter
	}
	return a.Remaining < b.Remaining
}

// spendEach decides requests one after the other, some twice on one key.
func (w *World) spendEach() {
	reqs := append(w.pickRequests(), w.pickRequests()...)
	r := w.call(Call{Op: SpendEach, Reqs: reqs})
	for i, q := range reqs {
		op, f := Spend, r.Failure
		if q.Mode == CheckOnly {
			op = Check
		}
		if i < len(r.Decisions) && r.Decisions[i] != (Decision{}) {
			w.decided(q.Key, op, q.Cost, r.Decisions[i], "")
			continue
		}
		w.require(f == NotDurable || f == Crashed || w.untouched(f), "spend each: %q", f)
		w.maybe(q.Key, op, q.Cost)
	}
}

// lateSpend spends while a save takes longer than the caller waits for it.
func (w *World) lateSpend() {
	key := w.pickKey()
	l, on, _ := w.limits.For(key)
	if !on || l.Level < Leased {
		return
	}
	w.env.Disk.set(NoFault)
	lo, hi := w.states[key].Decide(l, on, w.now, Spend, 1)
	_, release := w.env.Disk.Block()
	r := w.one(Spend, key, 1)
	release()
	w.env.Settle()
	if r.Failure == NotDurable {
		w.Counts["late"]++
		w.unknown(key, Span{lo.next, hi.next})
		w.look(key)
	} else if !w.refused(key, Spend, 1, r.Failure) {
		w.decided(key, Spend, 1, r.Decisions[0], r.Failure)
	}
}

// maybe notes a spend that may have been carried out, or denied, or not.
func (w *World) maybe(key Key, op Op, cost int64) {
	l, on, _ := w.limits.For(key)
	if s := w.states[key]; on && op == Spend {
		lo, hi := s.Decide(l, on, w.now, op, cost)
		w.unknown(key, hull(Span{lo.next, hi.next}, Span{min(s.TAT.Lo, w.now+l.Tau()), s.TAT.Hi}))
	}
}

// reserve takes a place in the queue.
func (w *World) reserve() {
	key := w.pickKey()
	cost := w.pickCost(key)
	if l, on, _ := w.limits.For(key); on && w.rnd.IntN(2) == 0 {
		cost = l.Burst // a queue forms
	}
	if len(w.places) >= 6 {
		return
	}
	r := w.one(Reserve, key, cost)
	l, on, _ := w.limits.For(key)
	if w.refused(key, Reserve, cost, r.Failure) {
		return
	}
	s := w.states[key]
	if !on {
		w.require(r.Failure == "" || r.Failure == Crashed, "%v: %s", key, r.Failure)
		return
	}
	at, full := s.Reserve(l, w.now, cost)
	capped := Span{min(s.TAT.Lo, w.now+l.Tau()), min(s.TAT.Hi, w.now+l.Tau())}
	switch {
	case r.Failure == QueueFull:
		w.require(full[1], "%v: the queue of %d is full, and %d wait", key, l.Queue, len(s.Queue))
		w.put(key, Span{capped.Lo, s.TAT.Hi})
		return
	case r.Failure != "":
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
		w.faulty(r.Failure)
		w.unknown(key, Span{capped.Lo, max(s.TAT.Hi, at.Hi, w.now) + cost*l.T()})
		w.look(key)
		return
	}
	w.require(!full[0], "%v: more wait than the queue of %d has room for", key, l.Queue)
	turn := &Turn{w.now + int64(r.Delay), cost}
	w.require(at.Lo <= turn.At && turn.At <= at.Hi, "%v: a turn in %v; the model has %d to %d", key, r.Delay, at.Lo-w.now, at.Hi-w.now)
	p := &place{key, r.Place, turn, r.Delay == 0, w.epoch}
	if p.now {
		w.admit(key, w.now, cost)
		next := Span{max(w.now, s.TAT.Lo) + cost*l.T(), min(max(w.now, s.TAT.Hi)+cost*l.T(), w.now+l.Tau())}
		if cost == 0 {
			next = Span{capped.Lo, s.TAT.Hi}
		}
		w.put(key, next)
		w.gone = append(w.gone, p)
	} else {
		s.Queue = append(s.Queue, turn)
		w.places = append(w.places, p)
		w.put(key, Span{capped.Lo, s.TAT.Hi}) // the cap is written, or not
		w.Counts["queued"]++
	}
	if cost > 0 {
		w.saved(key)
	}
}

// cancel leaves the queue, or has a turn that has come cancelled.
func (w *World) cancel() {
	if len(w.places) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.places))
	p := w.places[i]
	w.places = slices.Delete(w.places, i, i+1)
	w.gone = append(w.gone, p)
	s := w.states[p.key]
	w.maySave(p.key, w.leaves(p.key, false)) // as it was
	r := w.call(Call{Op: Cancel, Place: p.id})
	s.Queue = slices.DeleteFunc(s.Queue, func(t *Turn) bool { return t == p.turn })
	w.maySave(p.key, w.leaves(p.key, false))
	w.require(r.Failure == "" || r.Failure == Crashed || w.untouched(r.Failure), "cancel: %s", r.Failure)
	w.Counts["cancelled"]++
	if r.Failure == "" {
		w.look(p.key)
	}
}

// cancelAgain cancels what was cancelled, or what has come: nothing happens.
func (w *World) cancelAgain() {
	if len(w.gone) > 0 {
		p := w.gone[w.rnd.IntN(len(w.gone))]
		w.call(Call{Op: Cancel, Place: p.id})
		if !w.dead() {
			w.look(p.key)
		}
	}
}

// hold holds a bucket, or ends its hold, and reads where its turns have gone.
func (w *World) hold() {
	key := w.pickKey()
	until := w.now + w.rnd.Int64N(5e9) - 1e9
	if n := len(w.places); n > 0 && w.rnd.IntN(2) == 0 { // over a queue
		p := w.places[w.rnd.IntN(n)]
		key, until = p.key, w.now+w.rnd.Int64N(2*(p.turn.At-w.now)+1)
	}
	r := w.call(Call{Op: Hold, Reqs: []Request{{Key: key}}, Until: until})
	if w.refused(key, Hold, 0, r.Failure) {
		return
	}
	if until <= w.now {
		until = 0
	}
	s := w.states[key]
	if r.Failure == "" {
		s.Hold, s.holds = until, []int64{until}
	} else {
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
		w.faulty(r.Failure)
		s.holds = append(s.holds, until)
		w.heldNow(key, until)
	}
	if w.release != nil {
		s.heldDuring = append(s.heldDuring, s.Hold)
	}
	w.maySave(key, w.leaves(key, true))
	last := int64(0)
	for _, p := range w.places {
		i := slices.Index(s.Queue, p.turn)
		if i < 0 || w.dead() {
			continue
		}
		d := w.call(Call{Op: Delay, Place: p.id})
		if d.Failure == Crashed {
			break
		}
		at := w.now + int64(d.Delay)
		w.require(at >= max(p.turn.At, s.Hold), "%v: a turn at %d is at %d after a hold until %d", key, p.turn.At, at, s.Hold)
		p.turn.At = at
	}
	for _, t := range s.Queue {
		w.require(t.At >= last, "%v: a turn goes before one that came first", key)
		last = t.At
	}
	w.maySave(key, w.leaves(key, true))
}

// reset makes buckets full.
func (w *World) reset() {
	keys := []Key{w.pickKey()}
	if w.env.Disk == nil && w.env.Dead == nil && w.rnd.IntN(2) == 0 {
		keys = append(keys, w.pickKey())
	}
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
		for _, p := range w.places { // they go when their turns come, and are not charged
			if p.key == key {
				p.epoch = 0
			}
		}
		l, on, _ := w.limits.For(key)
		if r.Failure != "" {
			w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
			w.faulty(r.Failure)
			if on {
				next = hull(next, s.tailSpan(l))
			}
			s.holds = append(s.holds, 0)
			w.unknown(key, next)
			s.Queue = nil
			w.heldNow(key, 0)
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

// heldNow finds out which hold is in force after a call that failed.
func (w *World) heldNow(key Key, would int64) {
	s := w.states[key]
	if w.dead() || len(s.Queue) > 0 {
		return
	}
	r := w.one(Check, key, 0)
	if r.Failure == "" {
		retry := int64(r.Decisions[0].RetryAfter)
		w.require(retry == max(0, s.Hold-w.now) || retry == max(0, would-w.now), "%v is held for %d; before the call until %d", key, retry, s.Hold)
		if retry != max(0, s.Hold-w.now) {
			s.Hold = would
		}
	}
}

func (w *World) setLimits() {
	limits := w.pickLimits()
	switch w.rnd.IntN(4) {
	case 0:
		limits = w.limits
	case 1: // one Name goes
		gone := w.pickKey().Name
		limits = Limits{Names: make(map[uint16]*Limit)}
		for name, l := range w.limits.Names {
			if name != gone {
				limits.Names[name] = l
			}
		}
	}
	r := w.call(Call{Op: SetLimits, Limits: &limits})
	if r.Failure == Crashed {
		return
	}
	w.require(r.Failure == "", "set limits: %s", r.Failure)
	w.limits = limits
	w.newLaws()
	for _, key := range w.keys {
		s := w.states[key]
		w.maySave(key, s.TAT)
		w.look(key)
	}
}

func (w *World) flush() {
	if w.release != nil {
		w.endFlush()
	}
	r := w.call(Call{Op: Flush})
	if r.Failure != "" {
		w.faulty(r.Failure)
		return
	}
	w.flushed()
}

// tick has FlushInterval pass: what is Flushed or stricter is saved.
func (w *World) tick() {
	w.call(Call{Op: Tick})
	for key, s := range w.states {
		switch l, _, _ := w.limits.For(key); l.Level {
		case Flushed, Synced:
			s.file = []Span{w.leaves(key, false)}
		case Leased:
			s.file = []Span{hull(w.leaves(key, false), w.leaves(key, true))}
		}
	}
}

// delayFlush begins a flush that is held up, in its save or before it.
func (w *World) delayFlush() {
	if w.release != nil {
		return
	}
	for key, s := range w.states {
		s.during, s.heldDuring = []Span{w.leaves(key, false)}, []int64{s.Hold}
	}
	stopped, release := w.env.DelayFlush([]string{"clock", "save"}[w.rnd.IntN(2)])
	w.release = release
	if !stopped {
		w.endFlush()
	}
	w.Counts["delayed flushes"]++
}

// shows requires that a bucket is shown as it is.
func (w *World) shows(key Key, got Listed) {
	w.tb.Helper()
	s := w.states[key]
	l, on, _ := w.limits.For(key)
	held := int64(0)
	if s.Hold > w.now {
		held = s.Hold
	}
	w.require(got.HeldUntil == held, "%v is shown as held until %d, not %d", key, got.HeldUntil, held)
	if on {
		lo, hi := s.Decide(l, on, w.now, Refund, 0)
		got.Decision.Allowed = true
		w.compare(key, got.Decision, lo.Decision, hi.Decision)
	}
}

func (w *World) inspect() {
	key := w.pickKey()
	r := w.one(Inspect, key, 0)
	if !w.refused(key, Inspect, 0, r.Failure) && r.Failure == "" {
		w.shows(key, r.Listed[0])
	}
}

// list requires that Buckets shows those that are not full, or are held.
func (w *World) list() {
	name := w.pickKey().Name
	r := w.one(Buckets, Key{Name: name}, 0)
	if r.Failure != "" {
		w.faulty(r.Failure)
		return
	}
	shown := make(map[Key]bool)
	for _, b := range r.Listed {
		w.require(!shown[b.Key], "%v is shown twice", b.Key)
		shown[b.Key] = true
		if _, _, declared := w.limits.For(b.Key); declared {
			w.shows(b.Key, b)
		}
	}
	for _, key := range w.keys {
		s := w.states[key]
		if _, on, _ := w.limits.For(key); on && key.Name == name && (s.TAT.Lo > w.now || s.Hold > w.now) {
			w.require(shown[key], "%v is not shown", key)
		}
	}
}

func (w *World) stats() {
	if r := w.call(Call{Op: Stats}); w.env.MaxResident > 0 && r.Failure == "" {
		w.require(r.Resident <= int64(w.env.MaxResident+8), "%d buckets are in memory, of %d", r.Resident, w.env.MaxResident)
	}
}

// upkeep takes a snapshot or compacts the file.
func (w *World) upkeep(op Op) {
	r := w.call(Call{Op: op})
	w.require(r.Failure == "" || r.Failure == Crashed, "%s: %s", op, r.Failure)
	if op == Snapshot && r.Failure == "" { // which flushes
		w.flushed()
	}
}
