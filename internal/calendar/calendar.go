package calendar

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/spell"
)

// Unit is the length of a period. Its number is stored nowhere: files and other
// processes get the text of a calendar.
type Unit uint8

// The units. The zero Unit is none: a limit that does not follow the calendar.
const (
	None Unit = iota
	Hour
	Day
	Week
	Month
	Year
)

// units has what distinguishes the units.
var units = [...]struct {
	word, adverb string
	nominal      time.Duration
	months       int64  // in a period; 0 if it is shorter than a month
	begins       string // before the time of day at which a period begins
}{
	None:  {word: "none"},
	Hour:  {"hour", "hourly", time.Hour, 0, "each hour"},
	Day:   {"day", "daily", 24 * time.Hour, 0, "each day"},
	Week:  {"week", "weekly", 7 * 24 * time.Hour, 0, "each Monday"},
	Month: {"month", "monthly", 730 * time.Hour, 1, "on the first of each month"},
	Year:  {"year", "yearly", 8760 * time.Hour, 12, "on 1 January"},
}

// Units returns all units except None, the shortest first.
func Units() (all []Unit) {
	for u := range units[1:] {
		all = append(all, Unit(u+1))
	}
	return all
}

// String returns the word of the unit, such as "day".
func (u Unit) String() string { return units[u].word }

// Adverb returns the adverb of the unit, such as "daily".
func (u Unit) Adverb() string { return units[u].adverb }

// Nominal returns the average length of a period.
func (u Unit) Nominal() time.Duration { return units[u].nominal }

// Begins returns on which days a period begins: "each day", "on 1 January".
func (u Unit) Begins() string { return units[u].begins }

// ParseUnit returns the unit with a word: one that spelling, which is Unit.String or
// Unit.Adverb, returns. The error says which words there are.
func ParseUnit(s string, spelling func(Unit) string) (Unit, error) {
	if u := unitOf(s, spelling); u != None {
		return u, nil
	}
	var words []string
	for _, u := range Units() {
		words = append(words, spelling(u))
	}
	last := len(words) - 1
	return None, fmt.Errorf("want %s or %s", strings.Join(words[:last], ", "), words[last])
}

func unitOf(s string, spelling func(Unit) string) Unit {
	for u := Hour; int(u) < len(units); u++ {
		if s == spelling(u) {
			return u
		}
	}
	return None
}

// Calendar is a sequence of periods without gaps.
type Calendar struct {
	unit     Unit
	zone     *time.Location
	zoneText string
	start    int64 // after the midnight or full hour of the zone, in nanoseconds
}

// Index stands for a Calendar within this process. 0 is none.
type Index uint32

// table has every calendar of the process, by Index. It only grows, as limits
// with new calendars are made.
var table struct {
	mu    sync.Mutex // guards the rest
	all   atomic.Pointer[[]*Calendar]
	of    map[Calendar]Index        // by all fields except zoneText
	zones map[string]*time.Location // that were loaded
}

// Of returns the calendar with these parts. A nil zone is UTC. Check tells
// whether the start is in range.
func Of(unit Unit, zone *time.Location, start time.Duration) Index {
	if zone == nil {
		zone = time.UTC
	}
	key := Calendar{unit: unit, zone: zone, start: int64(start)} // a zone that is loaded twice is two pointers
	table.mu.Lock()
	defer table.mu.Unlock()
	if i, ok := table.of[key]; ok {
		return i
	}
	c := key
	c.zoneText = zoneTextLocked(zone)
	all := known()
	i := slices.IndexFunc(all, c.same)
	if i < 0 {
		i = len(all)
		all = append(all, &c) // readers of a shorter slice do not see it
		table.all.Store(&all)
	}
	const most = 1000 // programs load a zone once, or each time
	if len(table.of) >= most || table.of == nil {
		table.of = make(map[Calendar]Index)
	}
	table.of[key] = Index(i)
	return Index(i)
}

// same reports whether two calendars are one. Zones may have one name and different
// clocks.
func (c *Calendar) same(other *Calendar) bool {
	return other != nil && c.unit == other.unit && c.start == other.start && c.zoneText == other.zoneText &&
		sameClock(c.zone, other.zone)
}

func known() []*Calendar {
	if all := table.all.Load(); all != nil {
		return *all
	}
	return []*Calendar{0: nil}
}

// Calendar returns the calendar, or nil for 0.
func (i Index) Calendar() *Calendar { return known()[i] }

// Unit returns the length of a period.
func (c *Calendar) Unit() Unit { return c.unit }

// Zone returns the time zone whose clock counts.
func (c *Calendar) Zone() *time.Location { return c.zone }

// ZoneText returns the zone as the function Zone reads it: its name in the tz
// database, or its offset if that is fixed. A zone that was made in another way
// keeps its own name.
func (c *Calendar) ZoneText() string { return c.zoneText }

// Start returns when a date begins, after midnight; of hours, after the full
// hour.
func (c *Calendar) Start() time.Duration { return time.Duration(c.start) }

// Most returns what a start must be less than.
func (u Unit) Most() time.Duration {
	if u == Hour {
		return time.Hour
	}
	return 24 * time.Hour
}

// Check returns an error if the start is out of range, or if there is no unit.
func (c *Calendar) Check() error {
	switch most := c.unit.Most(); {
	case c.unit == None:
		return fmt.Errorf("only a limit that follows the calendar has a start, such as 100/day from 4h")
	case c.start < 0 || c.start >= int64(most):
		return fmt.Errorf("start is %s, want 0 or more, and less than %s", spell.ShortPeriod(c.Start()),
			spell.ShortPeriod(most))
	}
	return nil
}

// String returns the calendar as Parse reads it: "month", "day@Europe/Berlin",
// "day@America/Los_Angeles from 4h". UTC is not written.
func (c *Calendar) String() string {
	s := c.unit.String()
	if c.zoneText != "UTC" {
		s += "@" + c.zoneText
	}
	if c.start != 0 {
		s += " from " + spell.ShortPeriod(c.Start())
	}
	return s
}

// IsUnit reports whether the text begins with a unit, and so is meant for
// Parse.
func IsUnit(s string) bool {
	word, _, _ := strings.Cut(s, " ")
	word, _, _ = strings.Cut(word, "@")
	return unitOf(word, Unit.String) != None
}

// Parse returns the calendar that is written as String writes it.
func Parse(s string) (Index, error) {
	rest, start, hasStart := strings.Cut(s, " from ")
	word, zoneName, hasZone := strings.Cut(rest, "@")
	unit, err := ParseUnit(word, Unit.String)
	if err != nil {
		return 0, fmt.Errorf("period is %q, %w", word, err)
	}
	zone := time.UTC
	var after time.Duration
	if hasZone {
		if zone, err = Zone(zoneName); err != nil {
			return 0, err
		}
	}
	if hasStart {
		if after, err = time.ParseDuration(start); err != nil {
			return 0, fmt.Errorf("start is %q, want a duration such as 4h", start)
		}
	}
	if err := (&Calendar{unit: unit, start: int64(after)}).Check(); err != nil {
		return 0, err // before the table has it
	}
	return Of(unit, zone, after), nil
}

// Clock finds the period of an instant. It remembers the last period, so a
// call takes a few nanoseconds until that period ends.
type Clock struct {
	*Calendar
	last atomic.Pointer[Period]
}

// NewClock returns a Clock for the calendar.
func NewClock(c *Calendar) *Clock {
	k := &Clock{Calendar: c}
	k.last.Store(&Period{})
	return k
}

// Last returns the period that the Clock remembers. It may be another one than
// the present one.
func (k *Clock) Last() *Period { return k.last.Load() }

// End returns the end of the period that contains now.
func (k *Clock) End(now int64) int64 { return k.Now(now).End }

// Now returns the period that contains now.
func (k *Clock) Now(now int64) *Period {
	if p := k.last.Load(); p.Contains(now) {
		return p
	}
	return k.find(now)
}

// find computes the period of now, and remembers it if it is the latest.
// Callers that read the clock just before the end of a period may come later.
func (k *Clock) find(now int64) *Period {
	p := k.Period(now)
	if p.Start >= k.last.Load().Start {
		k.last.Store(&p)
	}
	return &p
}
