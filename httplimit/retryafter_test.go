package httplimit

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestAskedToWait(t *testing.T) {
	date := func(after time.Duration) string {
		return time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC).Add(after).Format(http.TimeFormat)
	}
	unix := func(after int64) string {
		return strconv.FormatInt(time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC).Unix()+after, 10)
	}
	for name, tc := range map[string]struct {
		status int
		fields []string
		want   time.Duration
	}{
		"seconds":             {429, []string{"Retry-After", "90"}, 90 * time.Second},
		"503":                 {503, []string{"Retry-After", " 90 "}, 90 * time.Second},
		"banned":              {418, []string{"Retry-After", "90"}, 90 * time.Second}, // Binance
		"overloaded":          {529, []string{"retry-after", "90"}, 90 * time.Second}, // Anthropic
		"calm":                {420, []string{"Retry-After", "90"}, 90 * time.Second},
		"too large for now":   {413, []string{"Retry-After", "90"}, 90 * time.Second},
		"500":                 {500, []string{"Retry-After", "90"}, 90 * time.Second},
		"504":                 {504, []string{"Retry-After", date(2 * time.Hour)}, 2 * time.Hour},
		"404, soon":           {404, []string{"Retry-After", "soon"}, 0},
		"not ready":           {202, []string{"Retry-After", "90"}, 0},
		"ready elsewhere":     {303, []string{"Retry-After", "90"}, 0}, // after a POST
		"date":                {429, []string{"Date", date(0), "Retry-After", date(time.Hour)}, time.Hour},
		"date that is over":   {429, []string{"Date", date(0), "Retry-After", date(-time.Hour)}, time.Second},
		"longer of two":       {429, []string{"Retry-After", "90", "Retry-After", "100"}, 100 * time.Second},
		"joined":              {429, []string{"Retry-After", "120, 60"}, 120 * time.Second},
		"joined, no spaces":   {503, []string{"Retry-After", "60,120,,soon"}, 120 * time.Second},
		"joined, one in each": {429, []string{"Retry-After", "60", "Retry-After", "90,30"}, 90 * time.Second},
		"joined with a date":  {429, []string{"Date", date(0), "Retry-After", "60, " + date(time.Hour)}, time.Hour},
		"joined dates":        {429, []string{"Date", date(0), "Retry-After", date(time.Hour) + "," + date(time.Minute)}, time.Hour},
		"an old date, joined": {429, []string{"Date", date(0), "Retry-After",
			"Wednesday, 03-Feb-21 05:05:06 GMT, Wed Feb  3 06:05:06 2021"}, 2 * time.Hour},
		"over MaxHold":        {429, []string{"Retry-After", "9999999"}, 24 * time.Hour},
		"over an int64":       {429, []string{"Retry-After", "99999999999999999999"}, 24 * time.Hour},
		"fraction":            {429, []string{"Retry-After", "9.9"}, 9900 * time.Millisecond},
		"negative":            {429, []string{"Retry-After", "-5"}, time.Second},
		"zero":                {429, []string{"Retry-After", "0"}, time.Second},
		"not a number":        {429, []string{"Retry-After", "soon"}, time.Second},
		"two points":          {429, []string{"Retry-After", "1.2.3"}, time.Second},
		"nothing":             {429, nil, time.Second},
		"empty":               {429, []string{"Retry-After", ""}, time.Second},
		"503 and nothing":     {503, nil, 0},
		"403":                 {403, []string{"Retry-After", "90"}, 90 * time.Second},
		"403 and no time":     {403, []string{"Retry-After", ""}, time.Second},
		"403 that is none":    {403, nil, 0},
		"403, something left": {403, []string{"X-RateLimit-Remaining", "7", "X-RateLimit-Reset", "90"}, 0},
		"403, nothing left":   {403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "90"}, 90 * time.Second},
		"403, no Reset":       {403, []string{"X-RateLimit-Remaining", "0"}, time.Second},

		"date without Date":  {503, []string{"Retry-After", date(2 * time.Hour)}, 2 * time.Hour},
		"Unix time to retry": {429, []string{"Retry-After", unix(90)}, 90 * time.Second},
		"Unix time":          {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(90)}, 90 * time.Second},
		"milliseconds": {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(90) + "250"},
			90250 * time.Millisecond},
		"its fraction": {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(90) + ".5"},
			90500 * time.Millisecond},
		"Unix time, over":   {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(-1)}, 0},
		"Reset of draft 06": {200, []string{"RateLimit-Remaining", "0", "RateLimit-Reset", "90"}, 90 * time.Second},
		"Reset as a date": {200, []string{"X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", date(time.Minute)},
			time.Minute},
		"less than nothing": {429, []string{"X-RateLimit-Remaining", "-3", "X-RateLimit-Reset", "90"}, 90 * time.Second},
		"no limit":          {200, []string{"X-RateLimit-Remaining", "-1", "X-RateLimit-Reset", "90"}, 0},
		"a limit of none": {200, []string{"X-RateLimit-Limit", "0", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset",
			unix(90)}, 0},
		"less than one": {200, []string{"X-RateLimit-Remaining", "0.9", "X-RateLimit-Reset", "90"}, 90 * time.Second},
		"one left":      {200, []string{"X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "90"}, 0},
		"longest of all": {429, []string{"Retry-After", "9", "RateLimit", `"a";r=0;t=20`, "X-RateLimit-Remaining", "0",
			"X-RateLimit-Reset", "30", "RateLimit-Remaining", "4", "RateLimit-Reset", "900"}, 30 * time.Second},
		"429, Reset alone":           {429, []string{"X-RateLimit-Reset", "90"}, 90 * time.Second},
		"429, Reset and Retry-After": {429, []string{"X-RateLimit-Reset", "90", "Retry-After", "5"}, 5 * time.Second},
		"429, Reset of what has some": {429, []string{"X-RateLimit-Remaining", "5", "X-RateLimit-Reset", "90"},
			time.Second},
		"Reset alone without a refusal":   {200, []string{"X-RateLimit-Reset", "90"}, 0},
		"Reset far away":                  {429, []string{"X-RateLimit-Reset", "99999999999999999999"}, 24 * time.Hour},
		"malformed policy is not nothing": {403, []string{"RateLimit", `"a";r=0;t=20,`}, 0},
		"nothing left":                    {200, []string{"RateLimit", `"day";r=0;t=30`}, 30 * time.Second},
		"something left":                  {200, []string{"RateLimit", `"day";r=1;t=30`}, 0},
		"one of two":                      {200, []string{"RateLimit", `"day";r=5;t=3000, "burst";r=0;t=2`}, 2 * time.Second},
		"longer policy": {429, []string{"RateLimit", `"a";r=0;t=20`, "RateLimit", `"b";r=0;t=10`,
			"Retry-After", "1"}, 20 * time.Second},
		"draft 07":                 {200, []string{"RateLimit", "limit=5, remaining=0, reset=58"}, 58 * time.Second},
		"draft 07, something left": {200, []string{"RateLimit", "limit=5, remaining=1, reset=58"}, 0},
		"draft 07, reset alone":    {429, []string{"RateLimit", "reset=58;x=1"}, 58 * time.Second},
		"OpenAI, requests": {200, []string{"x-ratelimit-limit-requests", "200", "x-ratelimit-remaining-requests", "0",
			"x-ratelimit-reset-requests", "7m12s", "x-ratelimit-remaining-tokens", "39500", "x-ratelimit-reset-tokens",
			"15m"}, 7*time.Minute + 12*time.Second},
		"OpenAI, tokens": {429, []string{"retry-after-ms", "2590", "retry-after", "3", "x-ratelimit-remaining-requests",
			"9", "x-ratelimit-reset-requests", "6m0s", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens",
			"2m59.56s"}, 179560 * time.Millisecond},
		"Azure":               {429, []string{"retry-after-ms", "2590"}, 2590 * time.Millisecond},
		"Cosmos":              {429, []string{"x-ms-retry-after-ms", "86400000"}, 24 * time.Hour},
		"503 in milliseconds": {503, []string{"retry-after-ms", "20"}, 20 * time.Millisecond},
		"403 in milliseconds": {403, []string{"retry-after-ms", ""}, time.Second},
		"Cerebras": {200, []string{"x-ratelimit-remaining-requests-day", "0", "x-ratelimit-reset-requests-day",
			"33011.5", "x-ratelimit-remaining-tokens-minute", "0", "x-ratelimit-reset-tokens-minute", "11.382867097854614"},
			33011500 * time.Millisecond},
		"Anthropic": {200, []string{"anthropic-ratelimit-requests-limit", "50", "anthropic-ratelimit-requests-remaining",
			"0", "anthropic-ratelimit-requests-reset", "2021-02-03T04:05:27Z", "anthropic-ratelimit-input-tokens-remaining",
			"0", "anthropic-ratelimit-input-tokens-reset", "2021-02-03T05:06:06+01:00",
			"anthropic-ratelimit-output-tokens-remaining", "8000", "anthropic-ratelimit-output-tokens-reset",
			"2021-02-03T04:55:06Z", "Date", date(0)}, time.Minute},
		"Jira": {429, []string{"X-RateLimit-Reset", "2021-02-03T04:07Z", "Date", date(0)}, 114 * time.Second},
		"longer Retry-After": {429, []string{"RateLimit", `"a";r=0;t=20`, "Retry-After", "21"},
			21 * time.Second},
		"does not say how long": {429, []string{"RateLimit", `"a";r=0`}, time.Second},
		"malformed":             {200, []string{"RateLimit", `"a";r=0;t=20,`}, 0},
	} {
		t.Run(name, func(t *testing.T) { testHold(t, &Transport{}, tc.status, tc.fields, tc.want) })
	}
	t.Run("MaxHold", func(t *testing.T) {
		testHold(t, &Transport{MaxHold: time.Minute}, 429, []string{"Retry-After", "90"}, time.Minute)
	})
	for name, tc := range map[string]struct {
		status int
		until  time.Duration
		ok     bool
		fields []string
		want   time.Duration
	}{
		"knows":               {200, time.Minute, true, nil, time.Minute},
		"wins over longer":    {429, time.Minute, true, []string{"Retry-After", "900"}, time.Minute},
		"wins over shorter":   {429, time.Minute, true, []string{"Retry-After", "9"}, time.Minute},
		"knows of no wait":    {429, -time.Minute, true, []string{"Retry-After", "9"}, 0},
		"does not know":       {429, time.Minute, false, []string{"Retry-After", "9"}, 9 * time.Second},
		"up to MaxHold":       {403, 48 * time.Hour, true, nil, 24 * time.Hour},
		"403 with its signal": {403, time.Minute, true, nil, time.Minute},
	} {
		t.Run("Backoff, "+name, func(t *testing.T) {
			hook := func(res *http.Response) (time.Time, bool) {
				require.Equal(t, tc.status, res.StatusCode)
				return newTestClock().now().Add(tc.until), tc.ok
			}
			testHold(t, &Transport{Backoff: hook}, tc.status, tc.fields, tc.want)
		})
	}
}

// Retry-After of a redirect is the time until the next request, if the method is
// idempotent.
func TestRedirect(t *testing.T) {
	for method, want := range map[string]time.Duration{"GET": 5 * time.Second, "HEAD": 5 * time.Second, "POST": 0, "PATCH": 0} {
		inBubble(t, stint.PerSecond(1000), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			start := time.Now()
			tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/new" {
					return answered(r, 200), nil
				}
				return answered(r, 307, "Location", "/new", "Retry-After", "5"), nil
			})
			r, err := http.NewRequest(method, "http://a/old", nil)
			require.NoError(t, err)
			res, err := (&http.Client{Transport: tr}).Do(r)
			require.NoError(t, err)
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, want, time.Since(start), method)
		})
	}
}

// If Retry-After and Reset differ by a thousand times, the smaller was meant.
func TestMilliseconds(t *testing.T) {
	for name, tc := range map[string]struct {
		after, reset string
		want         time.Duration
		told         bool
	}{
		"Retry-After in milliseconds": {"60000", "58", 58 * time.Second, true},
		"rounded up":                  {"59400", "60", time.Minute, true},
		"later in the window":         {"60000", "3", 3 * time.Second, true},
		"Reset in milliseconds":       {"7", "7000", 7 * time.Second, true},
		"not a thousand times":        {"900", "1", 15 * time.Minute, false},
		"nearly a thousand times":     {"50000", "60", 50000 * time.Second, false},
		"only one":                    {"60000", "", 60000 * time.Second, false},
		"only Reset":                  {"", "60000", 60000 * time.Second, false},
		"a Reset that is over":        {"60000", "0", 60000 * time.Second, false},
	} {
		for _, remaining := range []string{"0", ""} {
			t.Run(name+", Remaining "+remaining, func(t *testing.T) {
				told := ""
				tr := &Transport{OnError: func(_ *http.Request, err error) { told = err.Error() }}
				testHold(t, tr, 429, []string{"Retry-After", tc.after, "x-ratelimit-reset", tc.reset,
					"x-ratelimit-remaining", remaining}, tc.want)
				require.Equal(t, tc.told, told != "", told)
			})
		}
	}
	told := ""
	testHold(t, &Transport{OnError: func(_ *http.Request, err error) { told = err.Error() }}, 429,
		[]string{"Retry-After", "60000", "x-ratelimit-reset", "58"}, 58*time.Second)
	require.Equal(t, "httplimit: Retry-After is 16h40m0s and Reset 58s, so one of them may be in milliseconds: "+
		"obeying the shorter", told)
}

// docs/agents.md lists the fields.
func TestDialects(t *testing.T) {
	page, err := os.ReadFile("../docs/agents.md")
	require.NoError(t, err)
	for _, d := range dialects {
		require.Contains(t, string(page), "`"+strings.ToLower(strings.Replace(d.reset, "Reset", "*", 1))+"`")
		for _, name := range []string{d.limit, d.remaining, d.reset} {
			require.Equal(t, http.CanonicalHeaderKey(name), name)
		}
	}
	for _, f := range retryFields {
		require.Contains(t, string(page), "`"+strings.ToLower(f.name)+"`")
		require.Equal(t, http.CanonicalHeaderKey(f.name), f.name)
	}
}

// testHold checks how long a response keeps the next request away.
func testHold(t *testing.T, tr *Transport, status int, fields []string, want time.Duration) {
	lim, clock := newLimiter(t, nil)
	seen := 0
	tr.Limiter, tr.Key = lim, ByHost(perKey)
	tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
		seen++
		if seen > 1 {
			return answered(r, 200), nil
		}
		return answered(r, status, fields...), nil
	})
	res, err := send(t, t.Context(), tr, "http://a")
	require.NoError(t, err)
	require.Equal(t, status, res.StatusCode)
	if want > 0 {
		_, err = send(t, t.Context(), tr, "http://a")
		require.Equal(t, want, quotaError(t, err).RetryAfter)
		require.Equal(t, 1, seen)
		clock.pass(want)
	}
	tr.Backoff = nil
	_, err = send(t, t.Context(), tr, "http://a")
	require.NoError(t, err)
}

// If the clocks agree, the client's clock supplies the fraction of a second
// that Date lacks.
func TestServerTime(t *testing.T) {
	theirs := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for ahead, want := range map[time.Duration]time.Duration{
		0: 0, 700 * time.Millisecond: 700 * time.Millisecond, 1900 * time.Millisecond: 1900 * time.Millisecond,
		-time.Nanosecond: 0, 2 * time.Second: 0, time.Hour: 0, -time.Hour: 0,
	} {
		got := serverTime(theirs.Format(http.TimeFormat), theirs.Add(ahead))
		require.Equal(t, want, got.Sub(theirs), ahead)
	}
	require.Equal(t, theirs, serverTime("", theirs))
}

func TestPolicies(t *testing.T) {
	for want, fields := range map[time.Duration][]string{
		5 * time.Second: {
			`"a";r=0;t=5`, ` "a";r=0;t=5  `, `a;r=0;t=5`, `"a"; r=0; t=5`, `"a";r=-0;t=5`, `"a";r=0;t=6;t=5`,
			`"a\"\\,;r=1";r=0;t=5`, `"a";pk=:AAE=:;r=0;x;y=?1;z=1.5;t=5`, `"a";x="b;r=1";r=0;t=5`,
			`"a";x=@1659578233;r=0;t=5`, `"a";x=@-1;r=0;t=5`, `"a";x=@1;r=0;t=5`, `"a";x=%"f%c3%bc";r=0;t=5`,
			`"a";r=0;t=5 ,	"b";r=1;t=7`,
			`"a";r=0;pk=:YQ:;t=5`, `"a";pk=:YWI:;t=5;r=0`, `"a";pk=:YWJjZA:;x=:YWJj:;r=0;t=5`, `"a";x="=:YQ:";r=0;t=5`,
		},
		7 * time.Second: {`"a";r=0;t=5,"b";r=0;t=7`},
		longest:         {`"a";r=0;t=999999999999999`},
		0: {
			``, `,`, `;r=0;t=5`, `"a";r=0;t=5,`, `"a";r=0;t=5 "b"`, `"a" ;r=0;t=5`, `"a";r= 0;t=5`, `"a";r=0;t=`, `"a";r=0;t=5;`,
			`"a";r=-1;t=5`, `"a";r=0;t=-5`, `"a";r=0;t=5.0`, `"a";r="0";t=5`, `"a";r;t=5`, `"a";R=0;t=5`,
			`"a;r=0;t=5`, `"a\x";r=0;t=5`, "\"a\x7f\";r=0;t=5", `"a";x=%f;r=0;t=5`,
			`"a";pk=:A,:;r=0;t=5`, `"a";pk=:A;r=0;t=5`, `"a";pk=:A:;r=0;t=5`, `"a";x=?2;r=0;t=5`, `"a";x=1.;r=0;t=5`,
			`"a";x=@1.5;r=0;t=5`, `"a";x=@;r=0;t=5`, `"a";r=0;t=1234567890123456`,
		},
	} {
		for _, field := range fields {
			var a asked
			a.policies([]string{field})
			require.Equal(t, want, a.wait, "%q", field)
		}
	}
}
