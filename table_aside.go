package stint

import (
	"slices"
	"strings"
)

// aside is what few buckets have, kept out of their slots.
type aside struct {
	hold int64   // nobody passes before; 0: none
	lost bool    // a save of the hold failed: the store may have another, until a flush has saved this one
	line []*turn // of those who wait, in order
}

// turn is that of one who waits.
type turn struct{ at, cost int64 }

// needs returns the TAT that the bucket has at the least once all in line have gone when their turns came.
func (a *aside) needs(r *rate) (tat int64) {
	for _, t := range a.line {
		if tat = max(tat, t.at); t.cost > (1<<63-1-tat)/r.interval {
			return 1<<63 - 1
		}
		tat += t.cost * r.interval
	}
	return tat
}

// delayLineLocked moves those who still wait, and the TAT behind them, so that the first does not go before hold: where they are
// as far apart as they were, no more go at once than did.
func (s *shard) delayLineLocked(key Key, a *aside, now int64) {
	waiting := slices.IndexFunc(a.line, func(t *turn) bool { return t.at > now })
	if waiting < 0 || a.line[waiting].at >= a.hold {
		return
	}
	later := a.hold - a.line[waiting].at
	for _, t := range a.line[waiting:] {
		t.at += min(later, 1<<63-1-t.at)
	}
	if i, ok := s.findLocked(key, s.table.hash(key)); ok {
		tat := s.at(i).tat()
		s.writeLocked(i, tat+min(later, 1<<63-1-tat))
	}
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
	if a.hold == 0 && len(a.line) == 0 && !a.lost {
		delete(s.aside, key)
		if resident {
			s.at(i).clear(flagAside)
		}
	}
}

// lineOver reports whether there was a line, and nobody is left in it.
func (a *aside) lineOver(now int64) bool { return len(a.line) > 0 && a.line[len(a.line)-1].at <= now }

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
