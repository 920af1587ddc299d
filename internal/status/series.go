package status

import "time"

// A chart shows the last five minutes in slots of five seconds.
const (
	slotLen = 5 * time.Second
	slots   = 60
)

// series has the decisions of one limit in the last slots. A slot's index is
// its number modulo slots, and its number is the Unix time over slotLen.
type series struct {
	allowed, denied [slots]float64
	newest          int64 // number of the current slot
}

// add spreads decisions evenly over the time between from and to.
func (s *series) add(from, to time.Time, allowed, denied int64) {
	s.advance(to)
	begin, end := from.UnixNano(), to.UnixNano()
	for slot := max(slotOf(from), s.newest-slots+1); slot <= s.newest; slot++ {
		start := slot * int64(slotLen)
		inside := min(end, start+int64(slotLen)) - max(begin, start)
		part := float64(inside) / float64(end-begin)
		s.allowed[slot%slots] += part * float64(allowed)
		s.denied[slot%slots] += part * float64(denied)
	}
}

// advance empties the slots that have begun since the last call.
func (s *series) advance(to time.Time) {
	now := slotOf(to)
	for slot := max(s.newest+1, now-slots+1); slot <= now; slot++ {
		s.allowed[slot%slots], s.denied[slot%slots] = 0, 0
	}
	s.newest = max(s.newest, now)
}

// perSecond returns the rates of all slots except the current one, oldest
// first.
func (s *series) perSecond() (allowed, denied []float64) {
	for slot := s.newest - slots + 1; slot < s.newest; slot++ {
		i := (slot%slots + slots) % slots
		allowed = append(allowed, s.allowed[i]/slotLen.Seconds())
		denied = append(denied, s.denied[i]/slotLen.Seconds())
	}
	return allowed, denied
}

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(slotLen) }
