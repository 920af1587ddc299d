package modeltest

import (
	"slices"
	"time"
)

// Action is a kind of step of a World. Needs is nil if every Env allows it.
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
func settles(e Env) bool { return e.Disk != nil && e.Settle != nil }
func delays(e Env) bool  { return e.DelayFlush != nil }

// Actions lists everything that may happen to a limiter.
var Actions = []Action{
	{"time passes", 220, (*World).passSome, nil},
	{"spend", 300, func(w *World) { w.request(Spend) }, nil},
	{"spend up to", 40, (*World).spendUpTo, nil},
	{"check", 40, func(w *World) { w.request(Check) }, nil},
	{"refund", 60, func(w *World) { w.request(Refund) }, nil},
	{"spend all", 60, func(w *World) { w.group(SpendAll, w.withLimits(w.pickRequests())) }, nil},
	{"do", 40, func(w *World) { w.group(Do, w.withLimits(w.pickRequests())) }, nil},
	{"refund all", 20, func(w *World) { w.group(RefundAll, w.withSpent(w.pickRequests())) }, nil},
	{"spend each", 20, (*World).spendEach, nil},
	{"reserve", 60, (*World).reserve, nil},
	{"cancel", 25, (*World).cancel, nil},
	{"hang up", 15, (*World).hangUp, nil},
	{"cancel again", 15, (*World).cancelAgain, nil},
	{"hold", 15, func(w *World) { w.hold(Hold) }, nil},
	{"set hold", 15, func(w *World) { w.hold(SetHold) }, nil},
	{"reset", 15, (*World).reset, nil},
	{"set limits", 8, (*World).setLimits, nil},
	{"set overrides", 15, (*World).setOverrides, nil},
	{"flip limits", 10, (*World).flipLimits, nil},
	{"flip overrides", 10, (*World).flipOverrides, nil},
	{"flush", 15, (*World).flush, nil},
	{"tick", 30, (*World).tick, ticks},
	{"reopen", 3, func(w *World) { w.closeAndReopen(w.limits) }, nil},
	{"reopen with other limits", 2, func(w *World) { w.closeAndReopen(w.pickLimits()) }, nil},
	{"crash", 5, func(w *World) { w.reopen(true, w.limits) }, crashes},
	{"a save fails", 40, func(w *World) { w.env.Disk.set(FailBefore + Fault(w.rnd.IntN(2))) },
		faults},
	{"a load fails", 10, func(w *World) { w.env.Disk.set(FailLoad) }, faults},
	{"crash in a save", 8, func(w *World) { w.env.Disk.set(CrashBefore + Fault(w.rnd.IntN(2))) },
		func(e Env) bool { return e.Disk != nil && e.Crashes }},
	{"commit timeout", 30, (*World).commitLate, settles},
	{"calls in commits", 60, (*World).flight, func(e Env) bool { return settles(e) && e.MaxResident == 0 }},
	{"delay a flush", 10, (*World).delayFlush, delays},
	{"end the delayed flush", 8, func(w *World) {
		if w.release != nil {
			w.endFlush()
		}
	}, delays},
	{"bucket", 15, (*World).inspect, nil},
	{"buckets", 4, (*World).list, nil},
	{"stats", 10, (*World).stats, nil},
	{"the file is taken away", 10, (*World).takeAway, func(e Env) bool { return e.TakeAway != nil }},
	{"snapshot", 4, func(w *World) { w.upkeep(Snapshot) }, files},
	{"compact", 4, func(w *World) { w.upkeep(Compact) }, files},
}

// Step does an action, and then looks at a bucket, unless the process is dead.
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
			w.Counts[a.Name]++
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
	if slices.ContainsFunc(w.keys, func(key Key) bool { return len(w.states[key].file) > 40 }) &&
		w.release == nil {
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
	unit := units[w.rnd.IntN(3)] // shared by most limits, so that none is always full
	pick := func() Limit {
		l := Limit{
			Burst: 1 + w.rnd.Int64N(30), Count: 1 + w.rnd.Int64N(5),
			Level: levels[w.rnd.IntN(len(levels))],
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
		case 2:
			ls.Names[name] = &Limit{Blocked: true}
		default:
			l := pick()
			ls.Names[name] = &l
		}
	}
	if key := w.keys[0]; ls.Names[key.Name] != nil {
		ls.Overrides = append(ls.Overrides, Override{key, pick()})
		if w.rnd.IntN(8) == 0 {
			ls.Overrides[0].Limit = Limit{Blocked: true}
		}
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
