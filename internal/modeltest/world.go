package modeltest

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// state is the model of one key.
type state struct {
	Bucket
	law *Law // nil while the key has no limit

	file       []Span  // TATs that a crash may leave
	holds      []int64 // holds that a crash may leave
	during     []Span  // file, since a delayed flush began
	heldDuring []int64
	unseen     bool // no decision shows the hold: the Name is not declared, or is Blocked
}

// mayHold returns the holds that may be in force.
func (s *state) mayHold() []int64 {
	if s.unseen {
		return slices.Clone(s.holds)
	}
	return []int64{s.Hold}
}

// place is a reservation of the World.
type place struct {
	key   Key
	id    int   // of the System
	turn  *Turn // its instant and cost
	now   bool  // the turn came at once
	epoch int   // epoch of the limits at that time
}

// World takes a System through a random history, with the model beside it.
type World struct {
	tb   testing.TB
	env  Env
	seed uint64
	rnd  *rand.Rand
	sys  System

	now    int64
	limits Limits
	epoch  int // number of changes of the limits
	keys   []Key
	states map[Key]*state
	places []*place
	gone   []*place // cancelled, or their turn has come
	atomic []Key    // keys of a commit that a crash interrupted
	before []Span   // their TATs before it
	would  []Span   // their TATs after it

	release func() Reply // ends the delayed flush; nil if none
	late    bool         // a save is held up, so calls may time out
	calls   []entry      // the last few calls
	action  string
	Counts  map[string]int // number of times by event
}

// NewWorld returns a World with a System that is opened on an empty store.
func NewWorld(tb testing.TB, env Env, seed uint64) *World {
	w := &World{
		tb: tb, env: env, seed: seed, rnd: rand.New(rand.NewPCG(seed, 0)), now: 1_800_000_000e9,
		states: make(map[Key]*state), Counts: make(map[string]int),
	}
	for i := range 24 {
		key := Key{uint16(1 + i%4), fmt.Sprint("id-", strings.Repeat("x", i/8*11), i)}
		w.keys = append(w.keys, key)
		w.states[key] = &state{file: []Span{{}}, holds: []int64{0}}
	}
	w.limits = w.pickLimits()
	w.newLaws()
	w.sys = env.Open(w.limits)
	return w
}

func (w *World) require(ok bool, format string, args ...any) {
	w.tb.Helper()
	if !ok {
		w.failf(format, args...)
	}
}

// call calls the System. If the System waits for a delayed flush, call ends the
// delay.
func (w *World) call(c Call) (r Reply) {
	c.Now = w.now
	if w.env.Disk != nil && w.release == nil {
		w.env.Disk.begin()
	}
	if w.release == nil {
		r = w.sys.Do(c)
	} else {
		done := make(chan Reply, 1)
		go func() { done <- w.sys.Do(c) }()
		select {
		case r = <-done:
		case <-time.After(5 * time.Millisecond): // any time leads to the same outcome
			w.endFlush()
			r = <-done
		}
	}
	w.calls = append(w.calls[max(0, len(w.calls)-300):], entry{c, r, w.action})
	return r
}

// one makes a call on one key.
func (w *World) one(op Op, key Key, cost int64) Reply {
	return w.call(Call{Op: op, Reqs: []Request{{Key: key, Cost: cost}}})
}

// faulty requires that a fault explains the failure.
func (w *World) faulty(f Failure) {
	w.tb.Helper()
	met := w.dead() // perhaps in the renewal of a lease
	if w.env.Disk != nil && !met {
		met, _ = w.env.Disk.state()
	}
	w.require(met || w.late || f == Crashed && w.env.Dead != nil, "it failed without a fault: %s", f)
	w.Counts["faults"]++
}

// untouched reports whether a call failed before it changed anything.
func (w *World) untouched(f Failure) bool {
	if f == Full || f == NotLoaded {
		w.faulty(f)
		return true
	}
	return false
}

func (w *World) dead() bool {
	if w.env.Disk != nil {
		if _, dead := w.env.Disk.state(); dead {
			return true
		}
	}
	return w.env.Dead != nil && w.env.Dead()
}

// put gives a bucket a TAT, and adds it to those that a crash may leave.
func (w *World) put(key Key, tat Span) {
	s := w.states[key]
	s.TAT = tat
	w.maySave(key, w.leaves(key, true))
}

// leaves returns the TATs that a save of the bucket may store.
func (w *World) leaves(key Key, lease bool) Span {
	s := w.states[key]
	span := s.tailSpan()
	if l, _, _ := w.limits.For(key); lease && l.Level == Leased {
		span.Hi += l.Tau() / 8
	}
	return span
}

// maySave adds a span to those that a crash may leave of the bucket.
func (w *World) maySave(key Key, span Span) {
	s := w.states[key]
	add := func(to []Span) []Span {
		has := func(f Span) bool { return f.Lo <= span.Lo && span.Hi <= f.Hi }
		if slices.ContainsFunc(to, has) {
			return to
		}
		return append(to, span)
	}
	if s.file = add(s.file); w.release != nil {
		s.during = add(s.during)
	}
}

// saved models a durable call on the buckets, if one of their levels asks for
// that. All of the buckets are in one commit then.
func (w *World) saved(keys ...Key) {
	strictest := Memory
	for _, key := range keys {
		l, _, _ := w.limits.For(key)
		strictest = max(strictest, l.Level)
	}
	w.savedAt(strictest, keys...)
}

// savedAt is saved for buckets whose strictest level is known.
func (w *World) savedAt(strictest Level, keys ...Key) {
	if strictest < Leased {
		return
	}
	for _, key := range keys {
		w.states[key].file = []Span{w.leaves(key, true)}
	}
}

// unknown handles a failed call: the bucket's TAT is as before, or is in the
// span `would`.
func (w *World) unknown(key Key, would Span) {
	s := w.states[key]
	s.TAT = hull(s.TAT, would)
	w.maySave(key, w.leaves(key, true))
}

// compare requires that a decision lies between the decisions lo and hi at the
// ends of the TAT.
func (w *World) compare(key Key, d Decision, lo, hi Decision) {
	w.tb.Helper()
	s := w.states[key]
	ok := d.Allowed == (d.RetryAfter == 0) && lo.RetryAfter <= d.RetryAfter &&
		d.RetryAfter <= hi.RetryAfter
	ok = ok && (lo.Allowed != hi.Allowed || between(lo.Remaining, d.Remaining, hi.Remaining) &&
		between(int64(lo.ResetAfter), int64(d.ResetAfter), int64(hi.ResetAfter)))
	w.require(ok, "%v: %+v; the model has %+v to %+v; TAT %d to %d ahead, hold %d, %d wait", key, d,
		lo, hi,
		s.TAT.Lo-w.now, s.TAT.Hi-w.now, s.Hold-w.now, len(s.Queue))
	w.Counts["compared"]++
	if s.TAT.Lo == s.TAT.Hi {
		w.Counts["exactly"]++
	}
}

func between(a, n, b int64) bool { return min(a, b) <= n && n <= max(a, b) }

// admit counts an admission for the law.
func (w *World) admit(key Key, at, cost int64) {
	w.tb.Helper()
	s := w.states[key]
	if s.law != nil {
		if err := s.law.Admit(at, cost); err != nil {
			w.failf("%v: the law: %v", key, err)
		}
	}
	w.Counts["admitted"]++
}

// pass lets time pass, and admits the turns whose instants come.
func (w *World) pass(d int64) {
	w.now += d
	slices.SortStableFunc(w.places, func(a, b *place) int {
		return cmp.Compare(a.turn.At,
			b.turn.At)
	})
	w.places = slices.DeleteFunc(w.places, func(p *place) bool {
		if p.turn.At > w.now {
			return false
		}
		if p.epoch == w.epoch {
			w.admit(p.key, p.turn.At, p.turn.Cost)
		}
		w.gone = append(w.gone, p)
		return true
	})
	for key, s := range w.states {
		if s.advance(w.now) {
			w.maySave(key, w.leaves(key, false))
		}
	}
	w.gone = w.gone[max(0, len(w.gone)-8):]
}

// newLaws begins a new Law for each key, under the limits in force.
func (w *World) newLaws() {
	w.epoch++
	for key := range w.states {
		w.newLaw(key)
	}
}

// newLaw begins a new Law for a key, under the limit in force.
func (w *World) newLaw(key Key) {
	s := w.states[key]
	l, on, _ := w.limits.For(key)
	if on {
		s.Rate, s.law = l, NewLaw(l)
	} else {
		s.law = nil
	}
}

// look compares a bucket of the System with the model, and narrows the model's
// TAT by the answer.
func (w *World) look(key Key) {
	w.tb.Helper()
	s := w.states[key]
	r := w.one(Check, key, 0)
	l, on, declared := w.limits.For(key)
	if w.untouched(r.Failure) || r.Failure == Crashed {
		return
	}
	if !declared {
		w.require(r.Failure == UnknownName || r.Failure == Crashed, "%v is not declared: %+v", key,
			r)
		return
	}
	w.require(r.Failure == "", "%v: %s", key, r.Failure)
	if s.unseen && !l.Blocked {
		file := s.holds
		w.holdFound(key, r.Decisions[0])
		s.holds = file
	}
	lo, hi := s.Decide(l, on, w.now, Check, 0, 0)
	w.compare(key, r.Decisions[0], lo.Decision, hi.Decision)
	if on {
		w.looked(key, l, 0, lo, hi, r.Decisions[0])
	}
}

// looked handles the answer to a Check.
func (w *World) looked(key Key, l Limit, cost int64, lo, hi outcome, d Decision) {
	s := w.states[key]
	w.put(key, s.after(l, w.now, Check, cost, lo, hi, d).cap(w.now+l.clamp()))
}

// flushed models a flush that has saved everything.
func (w *World) flushed() {
	for key, s := range w.states {
		if !s.unseen {
			s.holds = []int64{s.Hold}
		}
		s.file = []Span{w.leaves(key, false)}
	}
}

// endFlush lets the delayed flush go on. Changes since its start may or may not
// be saved.
func (w *World) endFlush() {
	r := w.release()
	w.release = nil
	if r.Failure != "" {
		w.faulty(r.Failure)
		return
	}
	for _, s := range w.states {
		if s.file = s.during; !s.unseen {
			s.holds = s.heldDuring
		}
	}
}

// reopen closes the System, or crashes it. Then it opens another System, and
// compares its buckets with the model.
func (w *World) reopen(crash bool, limits Limits) {
	if w.release != nil {
		w.endFlush()
	}
	if crash = crash || w.dead(); !crash {
		r := w.call(Call{Op: Close})
		if r.Failure == "" {
			w.flushed()
			w.Counts["reopened"]++
		} else {
			w.faulty(r.Failure)
			crash = true
		}
	}
	if crash {
		w.Counts["crashes"]++
	}
	w.sys.Crash()
	for key, s := range w.states { // the turns end with the process
		s.Queue = nil
		if l, _, _ := w.limits.For(key); crash && l.Level < Leased && s.law != nil {
			s.law.Reset()
		}
	}
	w.places, w.gone = nil, nil
	if describe(limits) != describe(w.limits) {
		w.limits = limits
		w.newLaws()
	}
	w.sys = w.env.Open(w.limits)
	for _, key := range w.keys {
		w.found(key)
	}
	w.wholeOrNot()
}

// found compares the TAT that a System finds on file with the TATs of the
// model.
func (w *World) found(key Key) {
	s := w.states[key]
	l, on, declared := w.limits.For(key)
	if !declared || !on {
		s.TAT = hull(s.file[0], s.file...)
		if s.unseen = !declared || l.Blocked; s.unseen {
			return
		}
	}
	r := w.one(Check, key, 0)
	if r.Failure == Crashed { // killed again
		s.TAT = hull(s.file[0], s.file...)
		return
	}
	w.require(r.Failure == "", "%v: %s", key, r.Failure)
	d := r.Decisions[0]
	if w.holdFound(key, d); !on {
		return
	}
	seen, cap := w.now+int64(d.ResetAfter), w.now+l.Tau()
	may := slices.DeleteFunc(slices.Clone(s.file), func(f Span) bool {
		return max(w.now, min(f.Lo, cap)) > seen || max(w.now, min(f.Hi, cap)) < seen
	})
	w.require(len(may) > 0, "%v: found a TAT %d ahead of %d; a crash may leave %v; the TAT was %v", key,
		seen-w.now, w.now, s.file, s.TAT)
	s.TAT = hull(may[0], may...).narrow(seen, w.now, l.Tau())
	s.file = []Span{s.TAT}
	w.put(key, s.TAT.cap(w.now+l.Tau())) // the Check has written that
}

// holdFound compares a hold that was on file with the holds of the model.
func (w *World) holdFound(key Key, d Decision) {
	s := w.states[key]
	hold := int64(0)
	if d.RetryAfter > 0 {
		hold = w.now + int64(d.RetryAfter)
	}
	ok := slices.ContainsFunc(s.holds, func(h int64) bool { return h == hold || hold == 0 && h <= w.now })
	w.require(ok, "%v is held until %d; it may be any of %v", key, hold, s.holds)
	s.Hold, s.holds, s.unseen = hold, []int64{hold}, false
}

// wholeOrNot requires that a crash has left all changes of one commit, or none.
func (w *World) wholeOrNot() {
	all, none := true, true
	for i, key := range w.atomic {
		l, on, _ := w.limits.For(key)
		if s := w.states[key]; on && s.TAT.Lo == s.TAT.Hi && w.before[i].Hi < w.would[i].Lo &&
			s.TAT.Lo > w.now && s.TAT.Lo < w.now+l.Tau() {
			all, none = all && s.TAT.Lo >= w.would[i].Lo, none && s.TAT.Lo <= w.before[i].Hi
		}
	}
	w.require(all || none, "a part of one commit on %v is there", w.atomic)
	w.atomic, w.before, w.would = nil, nil, nil
}

// Run takes the System through a number of steps.
func (w *World) Run(steps int) {
	for range steps {
		w.Step()
	}
}

// End requires that every bucket is full one tolerance after the last event. It
// closes the System.
func (w *World) End() {
	w.action = "end"
	if w.release != nil {
		w.endFlush()
	}
	if w.env.Disk != nil {
		w.env.Disk.set(NoFault)
	}
	if w.dead() {
		w.reopen(true, w.limits)
	}
	for _, s := range w.states {
		w.now = max(w.now, s.last(), s.Hold)
	}
	var keys []Key
	for _, key := range w.keys {
		if _, on, _ := w.limits.For(key); on { // the spend caps a TAT that is too far ahead
			w.one(Spend, key, 1)
			keys = append(keys, key)
		}
	}
	tau := func(key Key) int64 { l, _, _ := w.limits.For(key); return l.Tau() }
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Compare(tau(a), tau(b)) })
	for last := w.now; len(keys) > 0; keys = keys[1:] {
		key := keys[0]
		w.now = last + tau(key)
		l, _, _ := w.limits.For(key)
		d := w.one(Check, key, l.Burst).Decisions[0]
		w.require(d.Allowed && d.Remaining == 0,
			"%v is stranded: %+v, a tolerance of %d after the last event", key, d, l.Tau())
	}
	r := w.call(Call{Op: Close})
	w.require(r.Failure == "", "close: %s", r.Failure)
	w.sys.Crash()
}

// Close ends a World whose test stops before End.
func (w *World) Close() { w.sys.Crash() }

const unlimited = math.MaxInt64
