package calendar

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/spell"
)

// ErrNoDatabase is the error of every zone except UTC and fixed offsets if the
// machine has no tz database.
var ErrNoDatabase = errors.New(
	`no time zones on this machine: install tzdata, or import _ "time/tzdata" in the program`)

// Zone returns the zone with a name of the tz database, such as Europe/Berlin.
// It also accepts UTC, Local, and fixed offsets such as +02:00.
func Zone(name string) (*time.Location, error) {
	switch name {
	case "":
		return nil, errors.New("zone is empty, want a name such as Europe/Berlin")
	case "UTC":
		return time.UTC, nil
	}
	if offset, ok := parseOffset(name); ok {
		return time.FixedZone(name, offset), nil
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	return loadLocked(name)
}

// loadLocked returns a zone of the tz database. table.mu is held.
func loadLocked(name string) (*time.Location, error) {
	if zone := table.zones[name]; zone != nil {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		if _, none := time.LoadLocation("Europe/London"); none != nil {
			return nil, fmt.Errorf("zone %s: %w", spell.Quote(name), ErrNoDatabase)
		}
		return nil, fmt.Errorf("zone is %s, want a name of the tz database such as Europe/Berlin", spell.Quote(name))
	}
	if table.zones == nil {
		table.zones = make(map[string]*time.Location)
	}
	table.zones[name] = zone
	return zone, nil
}

// zoneTextLocked returns the text for ZoneText. table.mu is held.
func zoneTextLocked(zone *time.Location) string {
	text := zone.String()
	if zone == time.UTC || zone == time.Local {
		return text
	}
	if known, err := loadLocked(text); text == "" || err != nil || !sameClock(known, zone) {
		if t := time.Unix(0, 0).In(zone); isFixed(t) {
			return offsetText(t)
		}
	}
	return text
}

// isFixed reports whether the offset of the time's zone never changes.
func isFixed(t time.Time) bool {
	from, until := t.ZoneBounds()
	return from.IsZero() && until.IsZero()
}

// FarFromUTC reports whether the clock of the zone always differs from UTC by more
// than a day. Such a zone has no text.
func (c *Calendar) FarFromUTC() bool {
	t := instant(0, c.zone)
	return isFixed(t) && max(offset(t), -offset(t)) > day
}

// offsetText returns a fixed offset: "+02:00", "-00:00:30", or "UTC".
func offsetText(t time.Time) string {
	_, seconds := t.Zone()
	sign := '+'
	if seconds < 0 {
		sign, seconds = '-', -seconds
	}
	switch {
	case seconds == 0:
		return "UTC"
	case seconds%60 != 0:
		return fmt.Sprintf("%c%02d:%02d:%02d", sign, seconds/3600, seconds/60%60, seconds%60)
	}
	return fmt.Sprintf("%c%02d:%02d", sign, seconds/3600, seconds/60%60)
}

// parseOffset reads what offsetText writes of an offset of at most a day. The
// result is in seconds.
func parseOffset(s string) (seconds int, ok bool) {
	if s == "" || s[0] != '+' && s[0] != '-' {
		return 0, false
	}
	parts := strings.Split(s[1:], ":")
	if len(parts) != 2 && len(parts) != 3 {
		return 0, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil || len(part) != 2 || i > 0 && n > 59 {
			return 0, false
		}
		seconds = 60*seconds + int(n)
	}
	if len(parts) == 2 {
		seconds *= 60
	}
	if seconds > int(day/1e9) {
		return 0, false
	}
	if s[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

// end is the year 2162, in which the arithmetic of limits ends.
var end = time.Date(2162, 4, 11, 0, 0, 0, 0, time.UTC).UnixNano()

// sameClock reports whether the clocks of two zones show the same time from 1970
// to 2162.
func sameClock(a, b *time.Location) bool {
	if a == b {
		return true
	}
	for at := int64(0); at < end; {
		inA, inB := instant(at, a), instant(at, b)
		_, untilA := bounds(inA)
		_, untilB := bounds(inB)
		if offset(inA) != offset(inB) || untilA != untilB {
			return false
		}
		at = untilA
	}
	return true
}
