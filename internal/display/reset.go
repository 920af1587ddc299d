package display

import (
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/calendar"
)

// Reset returns when a quota that follows the calendar is full again, by the
// clock of its zone: "at 00:00 Europe/Berlin", or "on 1 December at 04:00 UTC" if
// that is more than a day away, or the quota is for a year. The year follows if it
// is not this one.
func Reset(l stint.Limit, now time.Time) string {
	_, end := l.PeriodAt(now)
	now = now.In(end.Location())
	text := "at " + strings.TrimSuffix(end.Format("15:04:05"), ":00") + " " + calendar.Of(calendar.Day, end.Location(), 0).Calendar().ZoneText()
	if end.Sub(now) <= 24*time.Hour && !strings.Contains(l.String(), "/year") {
		return text
	}
	layout := "2 January"
	if end.Year() != now.Year() {
		layout = "2 January 2006"
	}
	return "on " + end.Format(layout) + " " + text
}

// Resets returns in words when a quota that follows the calendar is full again:
// "each day at 00:00 Europe/Berlin". For other limits it returns "".
func Resets(l stint.Limit) string {
	_, period, _ := strings.Cut(l.String(), "/")
	index, err := calendar.Parse(period)
	if !l.FollowsCalendar() || err != nil {
		return ""
	}
	c := index.Calendar()
	at := time.Time{}.Add(c.Start())
	clock := strings.TrimSuffix(at.Format("15:04:05.999999999"), ":00")
	if c.Unit() == calendar.Hour {
		clock = strings.TrimPrefix(clock, "00")
	}
	return c.Unit().Begins() + " at " + clock + " " + c.ZoneText()
}
