package modeltest

import "slices"

// closeAndReopen closes the System and opens another. In a test that kills
// processes, seven calls out of eight do nothing.
func (w *World) closeAndReopen(limits Limits) {
	if w.env.Dead == nil || w.rnd.IntN(8) == 0 {
		w.reopen(false, limits)
	}
}

func (w *World) setLimits() {
	if w.cancelGiven(); w.dead() {
		return
	}
	limits := w.pickLimits()
	switch w.rnd.IntN(4) {
	case 0:
		limits = w.limits
	case 1: // one Name is declared no longer
		gone := w.pickKey().Name
		limits = Limits{Names: make(map[uint16]*Limit)}
		for name, l := range w.limits.Names {
			if name != gone {
				limits.Names[name] = l
			}
		}
	}
	if !w.putLimits(w.limits, limits) {
		return
	}
	w.limits = limits
	w.newLaws()
	for _, key := range w.keys {
		w.maySave(key, w.leaves(key, true))
		w.lookAnew(key)
	}
}

// putLimits puts limits in force. A key whose override comes, goes or changes keeps
// what it used, unless its bucket cannot be read. It reports whether the System lives.
func (w *World) putLimits(from, limits Limits) bool {
	durable, failed := false, false
	converted := make(map[Key]Span)
	for key, s := range w.states {
		was, is, converts := from.converts(limits, key)
		if !converts {
			continue
		}
		b := s.Bucket
		b.Queue = slices.Clone(b.Queue)
		b.convert(was, is, w.now)
		converted[key], durable = b.TAT, durable || max(was.Level, is.Level) >= Leased
		span := b.tailSpan()
		span.Hi += is.Tau() / 8
		w.maySave(key, span)
	}
	r := w.call(Call{Op: SetLimits, Limits: &limits})
	if r.Failure == Crashed {
		return false
	}
	if r.Failure != "" {
		w.require(durable && r.Failure == NotDurable, "set limits: %s", r.Failure)
		w.faulty(r.Failure)
		failed = true
	} else if w.env.Disk != nil {
		met, dead := w.env.Disk.state()
		failed = met || dead
	}
	for key, tat := range converted {
		s := w.states[key]
		s.advance(w.now)
		if failed { // perhaps it could not be read
			tat = hull(tat, s.TAT)
		}
		s.TAT = tat
		w.maySave(key, w.leaves(key, true))
		w.Counts["kept what it used"]++
	}
	if durable && !failed { // or the only bucket to be saved is the one that could not be read
		w.flushed()
	}
	return true
}

// converts reports whether other limits change the override of a key, so that it keeps
// what it used.
func (ls Limits) converts(to Limits, key Key) (was, is Limit, converts bool) {
	overridden := func(ls Limits) bool {
		return slices.ContainsFunc(ls.Overrides, func(o Override) bool { return o.Key == key })
	}
	was, wasOn, _ := ls.For(key)
	is, isOn, _ := to.For(key)
	return was, is, wasOn && isOn && was.T() != is.T() && (overridden(ls) || overridden(to))
}

// flipLimits puts other limits in force, and the same ones again before any
// request comes. That changes no bucket, so the laws go on.
func (w *World) flipLimits() {
	if w.cancelGiven(); w.dead() {
		return
	}
	others, in := w.pickLimits(), w.limits
	converted := make(map[Key]bool)
	rate := func(key Key, limits *Limits) {
		if l, on, _ := limits.For(key); on {
			w.states[key].Rate = l
		}
	}
	for _, limits := range []*Limits{&others, &w.limits} {
		for key := range w.states {
			if _, _, converts := in.converts(*limits, key); converts {
				converted[key] = true
			}
		}
		for key := range w.states {
			w.maySave(key, w.leaves(key, true))
			rate(key, limits)
			w.maySave(key, w.leaves(key, true))
		}
		if !w.putLimits(in, *limits) {
			for key := range w.states { // the next process begins with these
				rate(key, &w.limits)
			}
			return
		}
		in = *limits
	}
	for key := range converted {
		w.epoch++
		w.newLaw(key)
		w.look(key)
	}
	w.lookAnew(w.pickKey())
}

// flipOverrides gives a key another burst, and the one before again. That changes
// no bucket while no request comes, so the law goes on.
func (w *World) flipOverrides() {
	key := w.pickKey()
	l, on, _ := w.limits.For(key)
	if w.cancelGiven(); w.dead() || !on {
		return
	}
	back := Limits{Names: map[uint16]*Limit{}}
	for _, o := range w.limits.Overrides {
		if o.Key == key {
			back.Overrides = []Override{o}
		}
	}
	l.Burst, l.Queue = 1+w.rnd.Int64N(2*l.Burst), 0
	there := Limits{Names: map[uint16]*Limit{}, Overrides: []Override{{key, l}}}
	for _, one := range []*Limits{&there, &back} {
		w.maySave(key, w.leaves(key, true))
		r := w.call(Call{Op: SetOverrides, Reqs: []Request{{Key: key}}, Limits: one})
		if r.Failure == Crashed {
			return
		}
		w.require(r.Failure == "", "flip overrides: %s", r.Failure)
	}
	w.lookAnew(key)
}

// lookAnew looks at a bucket under other limits. If the bucket was Blocked, that
// shows whether it is held, before a queue makes it wait, too.
func (w *World) lookAnew(key Key) {
	w.look(key)
	if l, _, _ := w.limits.For(key); w.states[key].unseen && !l.Blocked { // the load failed
		w.look(key)
	}
}

// setOverrides gives a key a limit of its own, or the default of its Name.
func (w *World) setOverrides() {
	key := w.pickKey()
	if _, _, declared := w.limits.For(key); !declared {
		return
	}
	if w.cancelGiven(); w.dead() {
		return
	}
	limits, one := w.limits, Limits{Names: map[uint16]*Limit{}}
	isKey := func(o Override) bool { return o.Key == key }
	limits.Overrides = slices.DeleteFunc(slices.Clone(limits.Overrides), isKey)
	if picked := w.pickLimits().Overrides; len(picked) > 0 && w.rnd.IntN(3) > 0 {
		one.Overrides = []Override{{key, picked[0].Limit}}
		limits.Overrides = append(limits.Overrides, one.Overrides[0])
	}
	was, wasOn, _ := w.limits.For(key)
	is, isOn, _ := limits.For(key)
	converts := wasOn && isOn && was.T() != is.T()
	durable := converts && max(was.Level, is.Level) >= Leased
	r := w.call(Call{Op: SetOverrides, Reqs: []Request{{Key: key}}, Limits: &one})
	s := w.states[key]
	switch {
	case r.Failure == "":
	case converts && w.untouched(r.Failure):
		return
	case r.Failure == Crashed:
		if converts { // the file may have the converted bucket, but no limit lasts
			b := s.Bucket
			b.convert(was, is, w.now)
			span := b.tailSpan()
			span.Hi += is.Tau() / 8
			w.maySave(key, span)
		}
		return
	default:
		w.require(durable && r.Failure == NotDurable, "set overrides: %s", r.Failure)
		w.faulty(r.Failure)
	}
	if converts {
		s.convert(was, is, w.now)
	}
	w.limits = limits
	w.epoch++
	w.newLaw(key)
	w.maySave(key, w.leaves(key, true))
	if durable && r.Failure == "" {
		w.flushed()
	}
	w.lookAnew(key)
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

// tick lets FlushInterval pass, which saves the buckets at Flushed or stricter.
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

// delayFlush begins a flush that is held up in its save or before.
func (w *World) delayFlush() {
	if w.release != nil {
		return
	}
	for key, s := range w.states {
		s.during, s.heldDuring = []Span{w.leaves(key, false)}, s.mayHold()
	}
	stopped, release := w.env.DelayFlush([]string{"clock", "save"}[w.rnd.IntN(2)])
	w.release = release
	if !stopped {
		w.endFlush()
	}
	w.Counts["delayed flushes"]++
}

// shows requires that a listed bucket agrees with the model.
func (w *World) shows(key Key, got Listed) {
	w.tb.Helper()
	s := w.states[key]
	l, on, _ := w.limits.For(key)
	held := int64(0)
	if s.Hold > w.now {
		held = s.Hold
	}
	w.require(got.HeldUntil == held || s.unseen, "%v is shown as held until %d, not %d",
		key, got.HeldUntil, held)
	if on {
		lo, hi := s.Decide(l, on, w.now, Refund, 0, 0)
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

// list requires that Buckets shows each bucket that is not full or is held.
func (w *World) list() {
	name := w.pickKey().Name
	r := w.one(Buckets, Key{Name: name}, 0)
	if r.Failure != "" {
		w.faulty(r.Failure)
		return
	}
	met := false // a fault explains missing buckets
	if w.env.Disk != nil {
		met, _ = w.env.Disk.state()
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
		if _, on, _ := w.limits.For(key); on && key.Name == name &&
			(s.TAT.Lo > w.now || s.Hold > w.now) {
			w.require(shown[key] || met, "%v is not shown", key)
		}
	}
}

func (w *World) stats() {
	if r := w.call(Call{Op: Stats}); w.env.MaxResident > 0 && r.Failure == "" {
		w.require(r.Resident <= int64(w.env.MaxResident+8), "%d buckets are in memory, of %d",
			r.Resident, w.env.MaxResident)
	}
}

// takeAway puts another file in place of the System's for a few calls. Until the
// file is back, nothing that needs a save is acknowledged.
func (w *World) takeAway() {
	put := w.env.TakeAway()
	w.late = true // calls may fail
	for range 1 + w.rnd.IntN(4) {
		switch w.rnd.IntN(6) {
		case 0:
			w.request(Refund)
		case 1:
			w.hold([]Op{Hold, SetHold}[w.rnd.IntN(2)])
		case 2:
			w.reserve()
		case 3:
			w.group(SpendAll, w.pickRequests())
		case 4:
			r := w.call(Call{Op: Flush})
			w.require(r.Failure != "", "a flush succeeds without the file")
		default:
			w.request(Spend)
			q := w.calls[len(w.calls)-1]
			if l, on, _ := w.limits.For(q.call.Reqs[0].Key); on && l.Level == Synced && q.reply.Failure == "" {
				d := q.reply.Decisions[0]
				w.require(q.call.Reqs[0].Cost == 0 || !d.Allowed, "a spend is acknowledged without the file: %+v", d)
			}
		}
	}
	put()
	w.late = false
	w.flush()
}

// upkeep takes a snapshot or compacts the file.
func (w *World) upkeep(op Op) {
	r := w.call(Call{Op: op})
	w.Counts[string(op)]++
	w.require(r.Failure == "" || r.Failure == Crashed, "%s: %s", op, r.Failure)
	if op == Snapshot && r.Failure == "" { // Snapshot flushes
		w.flushed()
	}
}
