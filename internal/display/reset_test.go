package display

import (
	"testing"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestReset(t *testing.T) {
	now := time.Date(2026, 11, 23, 20, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"5/hour":                        "at 21:00 UTC",
		"5/day@Europe/Berlin":           "at 00:00 Europe/Berlin",
		"5/day@+05:30 from 4h":          "at 04:00 +05:30",
		"5/week":                        "on 30 November at 00:00 UTC",
		"5/month@America/Los_Angeles":   "on 1 December at 00:00 America/Los_Angeles",
		"5/year@Europe/Berlin from 30m": "on 1 January 2027 at 00:30 Europe/Berlin",
	} {
		limit, err := stint.ParseLimit(text)
		require.NoError(t, err)
		require.Equal(t, want, Reset(limit, now), text)
	}
	limit := stint.EachDay(5, time.FixedZone("CET", 60*60))
	require.Equal(t, "at 00:00 +01:00", Reset(limit, now), "as the text of the limit has it")
}

func TestResets(t *testing.T) {
	for text, want := range map[string]string{
		"5/hour":                      "each hour at :00 UTC",
		"5/hour from 15m":             "each hour at :15 UTC",
		"5/hour from 15m30s":          "each hour at :15:30 UTC",
		"5/day@Europe/Berlin":         "each day at 00:00 Europe/Berlin",
		"5/day from 500ms":            "each day at 00:00:00.5 UTC",
		"5/week from 4h30m1s":         "each Monday at 04:30:01 UTC",
		"5/month@America/Los_Angeles": "on the first of each month at 00:00 America/Los_Angeles",
		"5/year@+01:00 from 4h":       "on 1 January at 04:00 +01:00",
		"5/1h":                        "",
	} {
		limit, err := stint.ParseLimit(text)
		require.NoError(t, err)
		require.Equal(t, want, Resets(limit), text)
	}
}
