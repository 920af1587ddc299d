package table

import "math/bits"

// Outcome is what a visitor did with a bucket.
type Outcome uint8

// The outcomes of a visit. Again and Defer are for EachDirty.
const (
	Done    Outcome = iota // nothing is left to do
	Again                  // visit the bucket next time, too
	Defer                  // visit it in the next EachDirty with all
	Removed                // Remove was called on it
)

// EachDirty visits the dirty buckets, except those that an earlier visit
// deferred. If all is true it visits those, too.
func (s *Slots) EachDirty(all bool, visit func(i uint32, b Slot) Outcome) {
	unmarked := all && s.deferred
	if all {
		s.deferred = false
	}
	const ahead = 16 // words of marks to prefetch ahead
	for next := range len(s.marks) + ahead {
		if next < len(s.marks) {
			if unmarked {
				s.marks[next] = 1<<64 - 1
			}
			for rest := s.marks[next]; rest != 0; rest &= rest - 1 {
				s.prefetchSlot(s.firstOf(next, rest))
			}
		}
		if w := next - ahead; w >= 0 {
			for marked := s.marks[w]; marked != 0; {
				group := marked & -marked
				s.marks[w] &^= group
				s.eachInGroup(s.firstOf(w, group), visit)
				// A removal may have moved dirty slots into later groups.
				marked = s.marks[w] &^ (group<<1 - 1)
			}
		}
	}
}

// firstOf returns the first slot of the first group in a word of marks.
func (s *Slots) firstOf(word int, marks uint64) uint32 {
	return uint32(word*64+bits.TrailingZeros64(marks)) << s.groupShift
}

func (s *Slots) eachInGroup(first uint32, visit func(i uint32, b Slot) Outcome) {
	end := min(first+1<<s.groupShift, s.capacity.Load())
	for i := first; i < end; i++ {
		b := s.At(i)
		if !b.Has(Dirty) {
			continue
		}
		switch visit(i, b) {
		case Again:
			s.mark(i)
		case Defer:
			s.deferred = true
		case Removed:
			i-- // another may have moved here
		}
	}
}

// Each visits every bucket. visit may call Remove on its own bucket, and then
// returns Removed.
func (s *Slots) Each(visit func(i uint32, b Slot) Outcome) {
	for i := uint32(0); i < s.capacity.Load(); i++ {
		if b := s.At(i); b.Meta() != 0 && visit(i, b) == Removed {
			i-- // another may have moved here
		}
	}
}

// Evict scans the next part of the slots, and returns how many buckets it
// removed. It removes full buckets that the store does not have. It also
// removes buckets that the store has as they are, unless they were used since
// the last scan of that part. If used is true, it removes those too. Three
// kinds of buckets stay: those in a commit, those in the save whose number is
// `saving`, and those that busy reports.
func (s *Slots) Evict(now int64, used bool, saving uint64, busy func(Slot) bool) (removed int) {
	keep := uint64(Dirty | Used)
	if used {
		keep = Dirty
	}
	for range min(s.capacity.Load(), max(16, s.capacity.Load()/8)) {
		if s.hand >= s.capacity.Load() {
			s.hand = 0
		}
		b := s.At(s.hand)
		m := b.Meta()
		switch unknown := b.TAT() <= now && m&Stored == 0; {
		case m == 0 || m&Pending != 0 || saving != 0 && m&SaveMask == saving:
		case m&Gate != 0 && busy(b):
		case unknown || m&keep == 0:
			s.Remove(s.hand)
			removed++
			continue // another may have moved here
		default:
			b.Clear(Used)
		}
		s.hand++
	}
	return removed
}
