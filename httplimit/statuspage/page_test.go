package statuspage

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

func TestNew(t *testing.T) {
	require.PanicsWithValue(t, "statuspage: New: no limiter", func() { New(nil, nil) })
	lim, _ := newLimiter(t, nil, nil)
	require.Equal(t, "5", get(New(lim, nil), "").Header().Get("Refresh"))
	require.Equal(t, "1", get(New(lim, &Options{Refresh: -1}), "").Header().Get("Refresh"))
	require.Empty(t, get(New(lim, nil), "?refresh=0").Header().Get("Refresh"))
}

func TestPageHTML(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{1: {Label: `<script>alert("label")</script>`}},
		map[stint.Name]stint.Limit{1: stint.PerDay(2000).WithBurst(7)}, map[stint.Name][]stint.Override{
			1: {{IDs: []stint.OverrideID{{ID: "a"}, {ID: "b"}}, Limit: stint.PerHour(1)}},
		})
	require.NoError(t, err)
	store := faultyStore{MemStore: stint.NewMemStore(), save: func() error { return errors.New("disk full") }}
	lim, err := stint.New(store, limits, &stint.Options{Now: newClock().now})
	require.NoError(t, err)
	defer lim.Close()
	p := New(lim, &Options{Title: "A & B"})
	require.Equal(t, 200, asker(p, httplimit.Rule{Key: httplimit.ByHeader(1, "X-Key")})(1, `"><img src=x>`))
	require.Error(t, lim.Flush())

	res := get(p, "")
	policy, body := res.Header().Get("Content-Security-Policy"), res.Body.String()
	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "frame-ancestors 'none'")
	require.Equal(t, "same-origin", res.Header().Get("Referrer-Policy"), "the forms need an Origin")
	for _, text := range []string{"<script", "<img", "http://", "https://"} {
		require.NotContains(t, body, text)
	}
	for _, text := range []string{
		"No decisions in the last five minutes", "A &amp; B", "Something is wrong", "disk full",
		"2\u202f000 per day, burst 7", "2 overrides", "6 of 7",
	} {
		require.Contains(t, body, text)
	}
	require.NotContains(t, body, `class="grid"`, "no line strikes the text through")
	for _, format := range []string{"", "json", "prometheus"} {
		require.Equal(t, "no-store", get(p, "?format="+format).Header().Get("Cache-Control"))
	}
	require.Equal(t, 400, get(p, "?format=xml").Code)
	require.Equal(t, 405, do(p, "DELETE", "", nil).Code)
}

func TestTexts(t *testing.T) {
	every := func(period time.Duration) string {
		return limitText(stint.Limit{Burst: 5, Count: 5, Period: period})
	}
	for got, want := range map[string]string{
		rateText(0): "0", rateText(0.01): "<0.1", rateText(0.24): "0.2", rateText(3): "3", rateText(9.96): "10",
		rateText(1234.4): "1\u202f234", countText(1234567): "1\u202f234\u202f567", countText(123): "123",
		countText(-1234): "-1\u202f234",
		bytesText(0):     "0\u202fB", bytesText(1536): "1.5\u202fKiB", bytesText(16 << 20): "16.0\u202fMiB",
		bytesText(200 << 30): "200\u202fGiB",
		durationText(0):      "–", durationText(0.00025): "250\u202fµs", durationText(0.0125): "12.5\u202fms",
		durationText(2): "2.0\u202fs",
		waitText(0):     "now", waitText(0.1): "1\u202fs", waitText(60): "1\u202fmin", waitText(3601): "2\u202fh",
		waitText(1e6):                               "12\u202fd",
		limitText(stint.PerSecond(100)):             "100 per second",
		limitText(stint.PerMinute(5).WithBurst(20)): "5 per minute, burst 20",
		every(15 * time.Minute):                     "5 per 15 minutes",
		every(36 * time.Hour):                       "5 per 36 hours",
		every(90 * time.Second):                     "5 per 90 seconds",
		every(time.Millisecond):                     "5 per 1ms",
		limitText(stint.Blocked):                    "blocked",
		limitText(stint.Limit{}):                    "no limit",
	} {
		require.Equal(t, want, got)
	}
	for v, want := range map[float64]float64{0: 0.1, 0.3: 0.5, 101: 200, 1000: 1000} {
		require.Equal(t, want, niceCeil(v))
	}
}
