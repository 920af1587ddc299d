package stint

import (
	"slices"
	"strings"
)

// aside is what few buckets have, kept out of their slots.
type aside struct {
	hold int64   // nobody passes before; 0: none
	lost bool    // a save of the hold failed: the store may have another, until a flush has saved this one
	late int     // holds that are in a commit
	line []*turn // of those who wait, in order
	gone int64   // the TAT that the bucket has at the least for those whose turns came before all of these
}

// turn is that of one who waits.
type turn struct {
	at, cost int64
	batch    *batch // the commit that it was taken in, if there was one
	failed   bool   // that commit did: it leaves once its tokens are back, until when the line is not to end
	next     int64  // the TAT that it left,
	took     int64  // how far it was moved for that, from where it was or from now,
	reset    uint32 // when there had been so many of shard.resets
}

// join puts a turn at the end of the line. Those that have come leave it: it may stand for ever.
func (a *aside) join(t *turn, r *rate, now int64) {
	if len(a.line) == 0 {
		a.gone = 0
	}
	came := 0
	for r.interval > 0 && came < len(a.line) && a.line[came].at <= now {
		came++
	}
	a.gone = r.afterTurns(a.gone, a.line[:came])
	a.line = append(slices.Delete(a.line, 0, came), t)
}

func (a *aside) leave(t *turn) {
	a.line = slices.DeleteFunc(a.line, func(in *turn) bool { return in == t })
}

// needs returns the TAT that the bucket has at the least once all in line have gone when their turns came.
func (a *aside) needs(r *rate) (tat int64) {
	if len(a.line) == 0 {
		return 0
	}
	return r.afterTurns(a.gone, a.line)
}

// afterTurns returns the TAT that is left by those who go when their turns come.
func (r *rate) afterTurns(tat int64, line []*turn) int64 {
	for _, t := range line {
		if t.failed {
			continue
		}
		if tat = max(tat, t.at); t.cost > (1<<63-1-tat)/r.interval {
			return 1<<63 - 1
		}
		tat += t.cost * r.interval
	}
	return tat
}

// delay moves those who still wait, so that the first does not go before hold, and returns by how much, for the TAT behind
// them: where they are as far apart as they were, no more go at once than did.
func (a *aside) delay(now int64) (later int64) {
	waiting := slices.IndexFunc(a.line, func(t *turn) bool { return t.at > now })
	if waiting < 0 || a.line[waiting].at >= a.hold {
		return 0
	}
	later = a.hold - a.line[waiting].at
	for _, t := range a.line[waiting:] {
		t.at += min(later, 1<<63-1-t.at)
		t.next += min(later, 1<<63-1-t.next)
	}
	return later
}

// waiting returns how many tokens those have taken who still wait.
func (a *aside) waiting(now int64) (tokens int64) {
	for _, t := range a.line {
		if t.at > now {
			tokens += t.cost
		}
	}
	return tokens
}

// notBefore returns when a newcomer may pass at the earliest.
func (a *aside) notBefore() int64 {
	if len(a.line) > 0 {
		return max(a.hold, a.line[len(a.line)-1].at)
	}
	return a.hold
}

// tidyAsideLocked ends a line that is over, and drops an aside that is empty.
func (s *shard) tidyAsideLocked(key Key, a *aside, now int64) {
	i, resident := s.findLocked(key, s.table.hash(key))
	if resident && a.lineOver(now) {
		s.endLineLocked(i, a, now)
	}
	if a.hold == 0 && len(a.line) == 0 && !a.lost && a.late == 0 {
		delete(s.aside, key)
		if resident {
			s.at(i).clear(flagAside)
		}
	}
}

// lineOver reports whether nobody is left in line.
func (a *aside) lineOver(now int64) bool { return len(a.line) == 0 || a.line[len(a.line)-1].at <= now }

// endLineLocked ends a line that is over, and leaves a TAT no further ahead than spending could have brought it.
func (s *shard) endLineLocked(i uint32, a *aside, now int64) {
	a.line = nil
	b := s.at(i)
	if b.rule() == 0 || s.limits == nil {
		return
	}
	if tat := s.limits.rules[b.rule()].rate.clamp(b.tat(), now); tat != b.tat() {
		s.writeLocked(i, tat)
	}
}

// asideLocked returns the key's aside, made if it has none.
func (s *shard) asideLocked(key Key, h uint64) *aside {
	a := s.aside[key]
	if a == nil {
		if s.aside == nil {
			s.aside = make(map[Key]*aside)
		}
		a = &aside{}
		s.aside[Key{key.Name, strings.Clone(key.ID)}] = a
		if i, ok := s.findLocked(key, h); ok {
			s.at(i).set(flagAside)
		}
	}
	return a
}
