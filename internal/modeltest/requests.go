package modeltest

import (
	"slices"
	"time"
)

// refused reports whether a call on one key failed before it changed anything,
// and requires that the failure is the right one.
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
	l, on, _ := w.limits.For(key)
	w.decided(key, l, on, op, cost, 0, d, r.Failure)
	comesBack := w.rnd.IntN(3) == 0 // after RetryAfter
	if comesBack && on && !d.Allowed && r.Failure == "" && op == Spend {
		w.pass(int64(d.RetryAfter) - 1)
		w.require(!w.again(key, op, cost, l), "%v is admitted before RetryAfter", key)
		w.pass(1)
		w.require(w.again(key, op, cost, l) || w.states[key].TAT.Lo != w.states[key].TAT.Hi ||
			w.dead(), "%v is denied after RetryAfter", key)
	}
}

// spendUpTo spends what a bucket has.
func (w *World) spendUpTo() {
	key := w.pickKey()
	cost := 2 * w.pickCost(key)
	q := w.withLimits([]Request{{Key: key}})[0]
	q.Cost = cost
	q.Leave = w.pickLeave(q, min(cost, 1))
	r := w.call(Call{Op: SpendUpTo, Reqs: []Request{q}})
	if w.refused(key, SpendUpTo, 0, r.Failure) {
		return
	}
	l, on := w.limitOf(q)
	taken, most, least := r.Taken, int64(0), int64(0)
	if on {
		w.states[key].advance(w.now)
		most, least = w.states[key].free(l, w.now, cost, q.Leave)
	}
	if r.Failure != "" {
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%v: %s", key, r.Failure)
		w.faulty(r.Failure)
		if on {
			w.unknown(key, w.upTo(key, l, most, least, q.Leave))
		}
		return
	}
	d := r.Decisions[0]
	switch {
	case on:
		w.require(least <= taken && taken <= most, "%v: %d of %d are taken; the model has %d to %d", key, taken, cost, least, most)
	case d.Allowed:
		w.require(taken == cost, "%v: %d of %d are taken", key, taken, cost)
	default:
		w.require(taken == 0, "%v: %d of %d are taken", key, taken, cost)
	}
	w.decided(key, l, on, Spend, max(taken, min(cost, 1)), q.Leave, d, "") // it asks for one at least
}

// upTo returns the TATs that a SpendUpTo may lead to, if it takes most from the
// fuller end of the TAT and least from the emptier one. What it leaves in between
// is less than a token.
func (w *World) upTo(key Key, l Limit, most, least, leave int64) Span {
	lo, hi := w.states[key].Decide(l, true, w.now, Spend, most, leave)
	would := w.outcomes(lo, hi, l)
	if least < most {
		would.Lo = min(would.Lo, w.now+l.Tau()-(leave+1)*l.T()+1)
	}
	return would
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
	w.decided(key, l, true, op, cost, 0, d, r.Failure)
	return d.Allowed
}

// decided does a request on the model, and compares the decisions.
func (w *World) decided(key Key, l Limit, on bool, op Op, cost, leave int64, d Decision, f Failure) {
	w.tb.Helper()
	s := w.states[key]
	lo, hi := s.Decide(l, on, w.now, op, cost, leave)
	if f != "" {
		w.require(f == NotDurable || f == Crashed, "%v: %s", key, f)
		w.faulty(f)
		w.require(op != Check || f == Crashed, "a check fails: %s", f)
		if on && op != Check {
			w.failed(key, op, cost, w.outcomes(lo, hi, l))
		}
		return
	}
	w.compare(key, d, lo.Decision, hi.Decision)
	if !on {
		return
	}
	if op == Check {
		w.looked(key, l, cost, lo, hi, d)
		return
	}
	w.account(key, op, cost, d.Allowed)
	w.put(key, s.after(l, w.now, op, cost, lo, hi, d))
	if d.Allowed && cost > 0 {
		w.savedAt(l.Level, key)
	}
}

// outcomes returns the TATs that an allowed request may lead to, from the
// decisions at both ends of the TAT.
func (w *World) outcomes(lo, hi outcome, l Limit) Span {
	if lo.Allowed && !hi.Allowed {
		return Span{lo.next, w.now + l.Tau()}
	}
	return Span{lo.next, hi.next}
}

// failed handles a failed call. If it had succeeded, the TAT would be in the
// span `would`.
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
			q := Request{Key: key, Cost: cost, Mode: Mode(w.rnd.IntN(3))}
			q.Leave = w.pickLeave(q, cost)
			reqs = append(reqs, q)
		}
	}
	return reqs
}

// pickLeave returns how many tokens a request must leave, mostly 0.
func (w *World) pickLeave(q Request, cost int64) int64 {
	l, on := w.limitOf(q)
	if !on || w.rnd.IntN(3) > 0 {
		return 0
	}
	return w.rnd.Int64N(l.Burst - cost + 1)
}

// withLimits gives some of the requests limits of their own. These are never
// less strict than the limits in force, so the same laws apply.
func (w *World) withLimits(reqs []Request) []Request {
	levels := w.env.Levels
	if levels == nil {
		levels = []Level{Memory, Flushed, Leased, Synced}
	}
	for i := range reqs {
		q := &reqs[i]
		l, on, _ := w.limits.For(q.Key)
		level := levels[w.rnd.IntN(len(levels))]
		if !on || level < l.Level || w.rnd.IntN(3) > 0 {
			continue
		}
		given := Limit{Count: 1, Period: time.Duration(min(l.T()+w.rnd.Int64N(l.T()+1), l.Tau())), Level: level,
			most: l.Tau()}
		given.Burst = 1 + w.rnd.Int64N(l.Tau()/int64(given.Period))
		q.Limit, q.Cost = &given, min(q.Cost, given.Burst)
		q.Leave = min(q.Leave, given.Burst-q.Cost)
	}
	return reqs
}

// withSpent tells when some of the requests were spent.
func (w *World) withSpent(reqs []Request) []Request {
	for i := range reqs {
		if l, on, _ := w.limits.For(reqs[i].Key); on && w.rnd.IntN(2) == 0 {
			reqs[i].Spent = w.now - w.rnd.Int64N(l.Tau()/2+2)
		}
	}
	return reqs
}

// limitOf returns the limit that applies to a request, and whether there is
// one.
func (w *World) limitOf(q Request) (l Limit, on bool) {
	if q.Limit != nil {
		return *q.Limit, true
	}
	l, on, _ = w.limits.For(q.Key)
	return l, on
}

// group spends from several buckets, or refunds to them: all or none. It
// returns the failure.
func (w *World) group(op Op, reqs []Request) Failure {
	single := map[Op]Op{SpendAll: Spend, Do: Spend, RefundAll: Refund}[op]
	strict := [2]Decision{{Allowed: true, Remaining: unlimited},
		{Allowed: true, Remaining: unlimited}}
	outcomes := make([][2]outcome, len(reqs))
	exact, voted := true, false
	for i, q := range reqs {
		s, one, cost := w.states[q.Key], single, q.Cost
		if q.Mode == CheckOnly && op == RefundAll {
			cost = 0
		} else if q.Mode == CheckOnly {
			one = Check
		}
		l, on := w.limitOf(q)
		outcomes[i][0], outcomes[i][1] = s.Decide(l, on, w.now, one, cost, q.Leave)
		if q.Spent != 0 && on {
			outcomes[i][0] = s.decideSpent(l, s.TAT.Lo, w.now, one, cost, q.Leave, w.now-q.Spent)
			outcomes[i][1] = s.decideSpent(l, s.TAT.Hi, w.now, one, cost, q.Leave, w.now-q.Spent)
		}
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
		return r.Failure
	}
	allowed := r.Failure != ""
	if r.Failure == "" {
		d := r.Decisions[0]
		allowed = d.Allowed
		ok := strict[0].RetryAfter <= d.RetryAfter && d.RetryAfter <= strict[1].RetryAfter &&
			d.Allowed == (d.RetryAfter == 0)
		w.require(ok && (!exact || d.Remaining == strict[0].Remaining),
			"%s: %+v; the model has %+v", op, d, strict)
		for i, d := range r.Decisions[1:] {
			w.compare(reqs[i].Key, d, outcomes[i][0].Decision, outcomes[i][1].Decision)
		}
	} else {
		w.require(r.Failure == NotDurable || r.Failure == Crashed, "%s: %s", op, r.Failure)
		w.faulty(r.Failure)
	}
	var changed []Key
	strictest, committed := Memory, Memory // committed leaves out requests that spend nothing
	for _, q := range reqs {
		if l, _ := w.limitOf(q); q.Mode != CheckOnly && q.Cost > 0 {
			strictest = max(strictest, l.Level)
		}
	}
	for i, q := range reqs {
		s := w.states[q.Key]
		l, on := w.limitOf(q)
		if !on {
			continue
		}
		if q.Mode == CheckOnly && single == Spend {
			w.put(q.Key, s.TAT.cap(w.now+l.clamp()))
			continue
		}
		lo, hi := outcomes[i][0], outcomes[i][1]
		next := Span{lo.next, hi.next}
		capped := s.TAT.cap(w.now + l.clamp())
		switch {
		case !allowed || q.Cost == 0 || q.Mode == CheckOnly || single == Spend && !lo.Allowed:
			next = capped
		case single == Spend && !hi.Allowed && q.Mode == SpendOnly:
			next = hull(w.outcomes(lo, hi, l), capped)
		case single == Spend:
			next = w.outcomes(lo, hi, l)
		}
		if r.Failure != "" {
			before := w.leaves(q.Key, true)
			known := len(s.file) == 1 && before.Lo <= s.file[0].Lo && s.file[0].Hi <= before.Hi
			if known && strictest >= Leased && lo.Allowed && next != s.TAT {
				w.atomic = append(w.atomic, q.Key)
				w.before = append(w.before, before)
				w.would = append(w.would, next)
			}
			w.failed(q.Key, single, q.Cost, next)
			continue
		}
		if allowed && q.Mode != CheckOnly && (single == Refund || hi.Allowed) {
			w.account(q.Key, single, q.Cost, true)
		}
		took := single == Spend && hi.Allowed || single == Refund && lo.next < capped.Lo
		if took && allowed && q.Cost > 0 && q.Mode != CheckOnly {
			changed, committed = append(changed, q.Key), max(committed, l.Level)
		}
		w.put(q.Key, next)
	}
	w.savedAt(committed, changed...)
	if !w.dead() {
		w.atomic, w.before, w.would = nil, nil, nil
	}
	for _, q := range reqs {
		if s := w.states[q.Key]; s.TAT.Lo != s.TAT.Hi && !w.dead() && !w.late {
			w.look(q.Key)
		}
	}
	return r.Failure
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

// spendEach decides requests one after the other, some twice on one key. They
// wait for a commit together. If it fails, other answers on their keys may have
// seen what is returned then.
func (w *World) spendEach() {
	reqs := w.withLimits(append(w.pickRequests(), w.pickRequests()...))
	r := w.call(Call{Op: DoEach, Reqs: reqs})
	decided := func(i int) bool { return i < len(r.Decisions) && r.Decisions[i] != (Decision{}) }
	lost := make(map[Key]bool)
	for i, q := range reqs {
		lost[q.Key] = lost[q.Key] || !decided(i)
	}
	for i, q := range reqs {
		op, f := Spend, r.Failure
		if q.Mode == CheckOnly {
			op = Check
		}
		l, on := w.limitOf(q)
		switch {
		case !decided(i):
			w.require(f == NotDurable || f == Crashed || w.untouched(f), "spend each: %q", f)
			w.maybe(q, op)
		case lost[q.Key]:
			w.roughly(q, l, on, op, r.Decisions[i])
		default:
			w.decided(q.Key, l, on, op, q.Cost, q.Leave, r.Decisions[i], "")
		}
	}
}

// roughly is decided for an answer that may have seen a spend which was returned
// since: it does not narrow the TAT.
func (w *World) roughly(q Request, l Limit, on bool, op Op, d Decision) {
	lo, hi := w.states[q.Key].Decide(l, on, w.now, op, q.Cost, q.Leave)
	w.compare(q.Key, d, lo.Decision, hi.Decision)
	if on && op == Spend && d.Allowed {
		w.account(q.Key, op, q.Cost, true)
		w.put(q.Key, w.outcomes(lo, hi, l))
	}
}

// maybe handles a spend that was carried out, or denied, or lost.
func (w *World) maybe(q Request, op Op) {
	l, on := w.limitOf(q)
	if s := w.states[q.Key]; on && op == Spend {
		lo, hi := s.Decide(l, on, w.now, op, q.Cost, q.Leave)
		w.unknown(q.Key, hull(w.outcomes(lo, hi, l), s.TAT.cap(w.now+l.clamp())))
	}
}
