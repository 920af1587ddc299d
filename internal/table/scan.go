package table

import "math/bits"

// Outcome is what a visitor did with a bucket.
type Outcome uint8

// The outcomes of a visit. Again and Defer are for NextDirty.
const (
	Done    Outcome = iota // nothing is left to do
	Again                  // visit the bucket in the next round, too
	Defer                  // visit it in the next round of all
	Removed                // Remove was called on it
)

// BeginDirty begins a round of visits to the dirty buckets. If all is true, the
// round also visits those that an earlier round deferred. A round may be left
// unfinished: the next one visits what is still dirty.
func (s *Slots) BeginDirty(all bool) {
	if all && s.deferred {
		s.deferred = false
		for w := range s.marks {
			s.marks[w] = 1<<64 - 1
		}
	}
	s.round = 0
}

const (
	dirtyAhead = 16 // words of marks to prefetch ahead
	dirtyStep  = 64 // dirty buckets after which NextDirty returns
)

// NextDirty visits the next few dirty buckets of the round, and reports whether
// some are left. The caller may release the lock before the next call. The round
// visits each bucket that was dirty when it began, unless it was cleaned or
// removed before its visit. It may visit a bucket twice.
func (s *Slots) NextDirty(visit func(i uint32, b Slot) Outcome) (more bool) {
	for visits := 0; int(s.round) < len(s.marks)+dirtyAhead; s.round++ {
		if visits >= dirtyStep {
			return true
		}
		if next := int(s.round); next < len(s.marks) {
			for rest := s.marks[next]; rest != 0; rest &= rest - 1 {
				s.prefetchSlot(s.firstOf(next, rest))
			}
		}
		if w := s.visited(); w >= 0 {
			for marked := s.marks[w]; marked != 0; {
				group := marked & -marked
				s.marks[w] &^= group
				visits += s.eachInGroup(s.firstOf(w, group), visit)
				// A removal may have moved dirty slots into later groups.
				marked = s.marks[w] &^ (group<<1 - 1)
			}
		}
	}
	return false
}

// visited returns the number of words of marks that the round has visited, if
// it is not negative.
func (s *Slots) visited() int { return int(s.round) - dirtyAhead }

// firstOf returns the first slot of the first group in a word of marks.
func (s *Slots) firstOf(word int, marks uint64) uint32 {
	return uint32(word*64+bits.TrailingZeros64(marks)) << s.groupShift
}

func (s *Slots) eachInGroup(first uint32, visit func(i uint32, b Slot) Outcome) (visits int) {
	end := min(first+1<<s.groupShift, s.capacity.Load())
	for i := first; i < end; i++ {
		b := s.At(i)
		if !b.Has(Dirty) {
			continue
		}
		visits++
		switch visit(i, b) {
		case Again:
			s.mark(i)
		case Defer:
			s.deferred = true
		case Removed:
			i-- // another may have moved here
		}
	}
	return visits
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

// evictStep is the number of slots that one call of Evict scans, or more if a
// window is longer.
const evictStep = 128

// EvictSteps returns how many calls of Evict scan all slots. It needs no lock.
func (s *Slots) EvictSteps() int { return int(s.capacity.Load()+evictStep-1) / evictStep }

// window returns the slots that Evict scans in a row. Then it leaps to another
// window, so that the buckets that it removes are spread over the shard. If it went
// from slot to slot, the slots before it would be crowded, and a search long.
func (s *Slots) window() uint32 { return 16 << s.groupShift }

// windows returns the number of windows, at most maxGroups/16.
func (s *Slots) windows() uint32 { return (s.capacity.Load() + s.window() - 1) / s.window() }

// leapOf returns a number near n divided by the golden ratio that has no divisor in
// common with n. Leaps of that many windows get to each of n windows, and spread
// them evenly at any time.
func leapOf(n uint32) uint16 {
	leap := uint32(uint64(n)*(Golden>>32)>>32) | 1
	for gcd(leap, n) > 1 {
		leap += 2
	}
	return uint16(leap)
}

func gcd(a, b uint32) uint32 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// Evict scans the slots of the next few windows, and returns how many it scanned,
// and how many buckets it removed. It removes full buckets that the store does not
// have. It also removes buckets that the store has as they are, unless they have
// the flag Used. If forget is true, it takes that flag from the buckets that stay.
// Three kinds of buckets stay, with their flags: those in a commit, those in the
// save whose number is `saving`, and those that busy reports.
func (s *Slots) Evict(now int64, saving uint64, forget bool, busy func(Slot) bool) (scanned, removed int) {
	n, long := s.windows(), s.window()
	for range min(n, max(1, evictStep/long)) {
		s.hand = uint16((uint32(s.hand) + uint32(s.leap)) % n)
		i := uint32(s.hand) * long
		end := min(i+long, s.capacity.Load())
		for looks := 2 * long; i < end && looks > 0; looks-- {
			scanned++
			b := s.At(i)
			m := b.Meta()
			switch unknown := b.TAT() <= now && m&Stored == 0; {
			case m == 0 || m&Pending != 0 || saving != 0 && m&SaveMask == saving:
			case m&Gate != 0 && busy(b):
			case unknown || m&(Dirty|Used) == 0:
				s.Remove(i)
				removed++
				continue // another may have moved here
			case forget:
				b.Clear(Used)
			}
			i++
		}
	}
	return scanned, removed
}
