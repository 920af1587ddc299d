package stint

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestEventLogValue(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	logged := func(e Event) string {
		var out strings.Builder
		slog.New(slog.NewTextHandler(&out, nil)).Info("stint", "event", e)
		_, text, _ := strings.Cut(out.String(), "msg=stint ")
		return strings.TrimSuffix(text, "\n")
	}
	const prefix = "event.time=2026-03-01T12:00:00.000Z"
	for _, c := range []struct {
		event Event
		want  string
	}{
		{Event{Kind: FlushFailed, Time: at, Err: errors.New("disk full")},
			`event.kind="flush failed" ` + prefix + ` event.error="disk full"`},
		{Event{Kind: FlushRecovered, Time: at}, `event.kind="flush recovered" ` + prefix},
		{Event{Kind: ClockStepped, Time: at, Step: -time.Hour},
			`event.kind="clock stepped" ` + prefix + ` event.step=-1h0m0s`},
		{Event{Kind: FileSetAside, Time: at, Err: ErrCorrupt, Path: "quota.db.corrupt-1"},
			`event.kind="file set aside" ` + prefix + fmt.Sprintf(" event.error=%q", ErrCorrupt) +
				" event.path=quota.db.corrupt-1"},
	} {
		assert.Equal(t, c.want, logged(c.event))
	}
}
