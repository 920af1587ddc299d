package httplimit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// The chart shows the last five minutes, in slots of five seconds.
const (
	slotLen = 5 * time.Second
	slots   = 60
)

// series is what the last slots counted, for one limit.
type series struct {
	allowed, denied [slots]float64 // decisions, by number of the slot modulo slots
	newest          int64          // number of the slot
}

// add spreads decisions evenly over the time that they were made in.
func (s *series) add(from, to time.Time, allowed, denied int64) {
	s.advance(to)
	whole := float64(to.Sub(from))
	for slot := max(slotOf(from), s.newest-slots+1); slot <= s.newest; slot++ {
		start := time.Unix(0, slot*int64(slotLen))
		part := float64(earlier(to, start.Add(slotLen)).Sub(later(from, start))) / whole
		s.allowed[slot%slots] += part * float64(allowed)
		s.denied[slot%slots] += part * float64(denied)
	}
}

// advance empties the slots that have begun since.
func (s *series) advance(to time.Time) {
	now := slotOf(to)
	for slot := max(s.newest+1, now-slots+1); slot <= now; slot++ {
		s.allowed[slot%slots], s.denied[slot%slots] = 0, 0
	}
	s.newest = max(s.newest, now)
}

// perSecond returns the rates of the slots that are over, oldest first.
func (s *series) perSecond() (allowed, denied []float64) {
	for slot := s.newest - slots + 1; slot < s.newest; slot++ {
		i := (slot%slots + slots) % slots
		allowed = append(allowed, s.allowed[i]/slotLen.Seconds())
		denied = append(denied, s.denied[i]/slotLen.Seconds())
	}
	return allowed, denied
}

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(slotLen) }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// generation is how long a tally is kept: what is shown is of this one and the one before.
const generation = 5 * time.Minute

// lately tallies buckets in the last one or two generations.
type lately struct {
	current, previous tally
	since             time.Time // when the current one began
}

func (l *lately) add(now time.Time, key stint.Key, n int64) {
	if age := now.Sub(l.since); age >= generation {
		l.previous = l.current
		if age >= 2*generation {
			l.previous = tally{}
		}
		l.current, l.since = tally{}, now
	}
	l.current.add(key, n)
}

// counts returns the buckets with the most, and how much is certain of it, for the tallies that are not too old.
func (l *lately) counts(now time.Time) []counter {
	sum := make(map[stint.Key]int64)
	if now.Sub(l.since) < 2*generation {
		for _, t := range []*tally{&l.current, &l.previous} {
			for _, c := range t.counters {
				sum[c.key] += c.n - c.over
			}
		}
	}
	all := make([]counter, 0, len(sum))
	for key, n := range sum {
		all = append(all, counter{key: key, n: n})
	}
	slices.SortFunc(all, func(a, b counter) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.key.ID, b.key.ID))
	})
	return all
}

// tallied is how many buckets a tally has room for.
const tallied = 64

// tally finds the buckets that most is counted for, in bounded memory: the space-saving algorithm. A bucket that there is
// no room for takes the place of the one with the least, and its count, which is remembered as uncertain.
type tally struct {
	index    map[stint.Key]int
	counters []counter
	last     int // of counters: what was added to last
}

type counter struct {
	key     stint.Key
	n, over int64 // over of n may have been another bucket's
}

func (t *tally) add(key stint.Key, n int64) {
	if t.last < len(t.counters) && t.counters[t.last].key == key { // a flood
		t.counters[t.last].n += n
		return
	}
	if i, ok := t.index[key]; ok {
		t.counters[i].n += n
		t.last = i
		return
	}
	key.ID = strings.Clone(key.ID) // it may be a part of a long header, which is not to be kept with it
	if t.index == nil {
		t.index = make(map[stint.Key]int, tallied)
	}
	if len(t.counters) < tallied {
		t.index[key] = len(t.counters)
		t.counters = append(t.counters, counter{key: key, n: n})
		return
	}
	least := 0
	for i := range t.counters {
		if t.counters[i].n < t.counters[least].n {
			least = i
		}
	}
	c := &t.counters[least]
	delete(t.index, c.key)
	*c = counter{key: key, n: c.n + n, over: c.n}
	t.index[key] = least
}
