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
