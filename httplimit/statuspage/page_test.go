package statuspage

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/status"
)

func TestNew(t *testing.T) {
	require.PanicsWithValue(t, "statuspage: New: no limiter", func() { New(nil, nil) })
	lim, _ := newLimiter(t, nil, nil)
	require.Equal(t, "5", get(New(lim, nil), "").Header().Get("Refresh"))
	require.Equal(t, "1", get(New(lim, &Options{Refresh: -1}), "").Header().Get("Refresh"))
	require.Empty(t, get(New(lim, nil), "?refresh=0").Header().Get("Refresh"))
}

func TestPageHTML(t *testing.T) {
	const name stint.Name = 1
	limits, err := stint.NewLimits(
		stint.Names{name: {Label: `<script>alert("label")</script>`, Limit: stint.PerDay(2000).WithBurst(7)}},
		stint.Override{Key: name.Key("a"), Limit: stint.PerHour(1)},
		stint.Override{Key: name.Key("b"), Limit: stint.PerHour(1)},
	)
	require.NoError(t, err)
	store := faultyStore{Store: stint.NewMemStore(), save: func() error { return errors.New("disk full") }}
	lim, err := stint.New(store, limits, &stint.Options{Now: newClock().Now})
	require.NoError(t, err)
	defer lim.Close()
	p := New(lim, &Options{Title: "A & B"})
	require.Equal(t, 200, asker(p, httplimit.Rule{Key: httplimit.ByHeader(1, "X-Key")})(1, `"><img src=x>`))
	require.Error(t, lim.Flush())

	res := get(p, "")
	policy, body := res.Header().Get("Content-Security-Policy"), res.Body.String()
	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "frame-ancestors 'none'")
	require.Equal(t, "no-referrer", res.Header().Get("Referrer-Policy"))
	for _, text := range []string{"<script", "<img", "http://", "https://"} {
		require.NotContains(t, body, text)
	}
	for _, text := range []string{
		"No decisions in the last five minutes", "A &amp; B", "Something is wrong", "disk full",
		"2000/24h burst 7", "2 overrides", "6 of 7",
	} {
		require.Contains(t, body, text)
	}
	require.NotContains(t, body, `class="grid"`, "no line strikes the text through")
	for _, format := range []string{"", "json", "prometheus"} {
		require.Equal(t, "no-store", get(p, "?format="+format).Header().Get("Cache-Control"))
	}
	require.Equal(t, 400, get(p, "?format=xml").Code)
}

// The page only looks: it answers no method that could change something, and has
// no form but that of the search.
func TestPageOnlyLooks(t *testing.T) {
	p, lim, clock := newPage(t, nil, nil)
	require.Equal(t, 429, asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})(6, ""))
	require.NoError(t, errorOf(lim.Hold(client, clock.Now().Add(time.Hour))))
	before, err := lim.Bucket(client)
	require.NoError(t, err)
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		for _, query := range []string{"", "?format=json", "?id=" + client.ID} {
			res := do(p, method, query, strings.NewReader("reset="+client.ID), "Content-Type", "application/x-www-form-urlencoded")
			require.Equal(t, 405, res.Code)
			require.Equal(t, "GET, HEAD", res.Header().Get("Allow"))
		}
	}
	for _, query := range []string{"?reset=" + client.ID, "?end=" + client.ID, "?for=24h&hold=" + client.ID, "?id=" + client.ID} {
		body := get(p, query).Body.String()
		require.Equal(t, 1, strings.Count(body, "<form "), query)
		require.NotContains(t, body, `method="post"`)
	}
	after, err := lim.Bucket(client)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		rateText(0): "0", rateText(0.01): "<0.1", rateText(0.24): "0.2", rateText(3): "3", rateText(9.96): "10",
		rateText(1234.4): "1\u202f234", countText(1234567): "1\u202f234\u202f567", countText(123): "123",
		countText(-1234): "-1\u202f234",
		durationText(0):  "–", durationText(0.00025): "250\u202fµs", durationText(0.0125): "12.5\u202fms",
		durationText(2): "2.0\u202fs",
		waitText(0):     "now", waitText(0.1): "100ms", waitText(3601): "1h1m", waitText(1e6): "11d14h",
		waitText(float64(math.MaxInt64) / 1e9):                                      "never",
		limitText(stint.PerSecond(100)):                                             "100/1s",
		limitText(stint.PerMinute(5).WithBurst(20)):                                 "5/1m burst 20",
		limitText(stint.Limit{Burst: 5, Count: 5, Period: time.Minute, Queue: 1e3}): "5/1m, queue 1\u202f000",
		limitText(stint.Blocked):                                                    "blocked",
		limitText(stint.Unlimited):                                                  "no limit",
	} {
		require.Equal(t, want, got)
	}
	for v, want := range map[float64]float64{0: 0.1, 0.3: 0.5, 101: 200, 1000: 1000} {
		require.Equal(t, want, niceCeil(v))
	}
}

// The bucket of a quota that follows the calendar is shown with the instant at
// which it resets, and is full without one.
func TestPageCalendar(t *testing.T) {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	require.NoError(t, err)
	others := map[stint.Name]stint.Limit{perAddress: stint.EachMonth(5, pacific)}
	p, lim, clock := newPage(t, nil, others)
	search := func() string { return get(p, "?id="+client.ID).Body.String() }
	const what = "</span> · 5 on the first of each month at 00:00 America/Los_Angeles</p>\n"
	require.Contains(t, search(), what+"<p>5 of 5 left</p>")
	require.Equal(t, 200, asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})(2, ""))
	require.Contains(t, search(), what+"<p>3 of 5 left, resets on 1 October at 00:00 America/Los_Angeles</p>")

	clock.Advance(time.Second) // a report is at most that old
	l := limitOf(p.collector.Report(), "address")
	require.Equal(t, "5/month@America/Los_Angeles", l.Limit)
	require.Len(t, l.Fullest, 1)
	untilReset := time.Date(2001, 10, 1, 0, 0, 0, 0, pacific).Sub(clock.Now()).Seconds()
	l.Fullest[0].BucketID = status.BucketID{}
	require.Equal(t, status.BucketReport{Burst: 5, Remaining: 3, ResetAfter: untilReset}, l.Fullest[0])
	require.Contains(t, get(p, "").Body.String(), "<td>3 of 5</td><td>22d6h</td>")
	require.Contains(t, get(p, "").Body.String(), `<th scope="col">resets in</th>`)
	require.Contains(t, get(p, "").Body.String(), `<p class="what">5 on the first of each month at 00:00 America/Los_Angeles`)

	clock.Advance(time.Duration(untilReset) * time.Second)
	require.Contains(t, search(), what+"<p>5 of 5 left</p>")
	clock.Advance(time.Second)
	require.Empty(t, limitOf(p.collector.Report(), "address").Fullest)

	monthly := stint.EachMonth(5, nil).StartingAt(time.Hour + 30*time.Second)
	require.NoError(t, lim.SetOverrides(stint.Override{Key: client, Limit: monthly}))
	require.Equal(t, 200, asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})(2, ""))
	require.Contains(t, search(), "<p>3 of 5 left, resets on 1 November at 01:00:30 UTC</p>")
}

// Requests in flight are shown: now, at most, and denied.
func TestPageInFlight(t *testing.T) {
	p, lim, _ := newPage(t, nil, nil)
	entered, release := make(chan bool), make(chan bool)
	h := httplimit.Middleware(lim, &httplimit.Options{Observers: []httplimit.Observer{p.Observer()}},
		httplimit.Rule{Key: httplimit.ByIP(perAddress), InFlight: 2})(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) {
			entered <- true
			<-release
		}))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) })
		<-entered
	}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	require.Contains(t, get(p, "/").Body.String(), `2 now</span>, at most 2 of one bucket, <span class="d">1 denied`)
	require.Contains(t, get(p, "/?format=prometheus").Body.String(), `stint_requests_in_flight{stint_limit="address"} 2`)
	close(release)
	wg.Wait()
}

// The numbers of a list have columns of their own width, and an id cannot
// reverse the text beside it.
func TestPageCSS(t *testing.T) {
	require.NotContains(t, pageCSS, "table-layout: fixed", "numbers ran into each other")
	require.Regexp(t, `th, td \{ padding: \.3rem 0 \.3rem \.9rem;`, pageCSS)
	require.Regexp(t, `\.id \{ unicode-bidi: isolate;`, pageCSS)
}

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }
