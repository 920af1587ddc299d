package serve

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/resp/resptest"
)

// The replies of STINT commands are exact for quotas that follow the calendar:
// both times are those until the period ends.
func TestServeCalendar(t *testing.T) {
	zone := func(name string) *time.Location {
		z, err := time.LoadLocation(name)
		require.NoError(t, err)
		return z
	}
	start, err := time.Parse(time.RFC3339, "2027-03-27T12:00:00+01:00") // the day before the clock is set in Berlin
	require.NoError(t, err)
	clock := modeltest.NewClock()
	clock.Set(start.UnixNano())
	s := newTestServer(t, clock, stint.Names{
		2: {Label: "Daily", Limit: stint.EachDay(5, zone("Europe/Berlin"))},
		3: {Label: "Monthly", Limit: stint.EachMonth(100, zone("America/Los_Angeles")).StartingAt(4 * time.Hour)},
		4: {Label: "Rate", Limit: stint.PerHour(2)},
	})
	c := &serveConn{server: s, known: true}
	for _, step := range [][2]string{
		{"STINT.SPEND Daily a 1", "[0 5 4 -1 43200 Daily]"},
		{"STINT.SPEND Daily a 4", "[0 5 0 -1 43200 Daily]"},
		{"STINT.SPEND Daily a 1", "[1 5 0 43200 43200 Daily]"},
		{"STINT.CHECK Daily a 1", "[1 5 0 43200 43200 Daily]"},
		{"STINT.REFUND Daily a 2", "[0 5 2 -1 43200 Daily]"},
		{"STINT.CHECK Daily a 2", "[0 5 0 -1 43200 Daily]"},
		{"STINT.REFUND Daily a 9", "[0 5 5 -1 0 Daily]"},
		{"STINT.SPEND Daily a 6", "-OVERBURST cost over burst: 6 of 5 for Daily:a"},
		{"STINT.SPEND Daily a 2 Rate a 2", "[0 2 0 -1 3600 Rate]"},
		{"STINT.SPEND Daily a 1 Rate a 1", "[1 2 0 1800 3600 Rate]"},
		{"STINT.SPEND Daily a 3 Rate b 1", "[0 5 0 -1 43200 Daily]"},
		{"STINT.SPEND Daily a 1 Rate b 1", "[1 5 0 43200 43200 Daily]"},
		{"STINT.CHECK Rate b 0", "[0 2 1 -1 1800 Rate]"},
		{"STINT.SPEND Monthly a 30", "[0 100 70 -1 432000 Monthly]"}, // until 1 April, 11:00 UTC

		{"wait 11h59m59.5s", ""},
		{"STINT.SPEND Daily a 1", "[1 5 0 1 1 Daily]"},
		{"wait 500ms", ""},
		{"STINT.SPEND Daily a 2", "[0 5 3 -1 82800 Daily]"}, // a day of 23 hours
		{"STINT.REFUND Daily a 1", "[0 5 4 -1 82800 Daily]"},
		{"STINT.HOLD Daily a 90000", "OK"},
		{"STINT.SPEND Daily a 1", "[1 5 4 90000 82800 Daily]"},
		{"STINT.RESET Daily a", "OK"},
		{"STINT.SPEND Daily a 1", "[0 5 4 -1 82800 Daily]"},

		{"wait 107h59m59s", ""},
		{"STINT.SPEND Monthly a 71", "[1 100 70 1 1 Monthly]"},
		{"wait 1s", ""},
		{"STINT.SPEND Monthly a 71", "[0 100 29 -1 2592000 Monthly]"},
	} {
		if wait, ok := strings.CutPrefix(step[0], "wait "); ok {
			d, err := time.ParseDuration(wait)
			require.NoError(t, err)
			clock.Advance(d)
			continue
		}
		c.do(bytes.Fields([]byte(step[0])))
		reply := resptest.Client{In: bufio.NewReader(bytes.NewReader(c.out.Buf))}
		require.Equal(t, step[1], reply.Reply(t), step[0])
		c.out.Buf = c.out.Buf[:0]
	}
}
