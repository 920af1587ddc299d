package httplimit

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// fields returns the header that a handler writes for a request.
func fields(h http.Handler) map[string]string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	got := make(map[string]string)
	for field := range w.Header() {
		got[field] = w.Header().Get(field)
	}
	return got
}

func TestHeaders(t *testing.T) {
	two := []Rule{{Key: ByIP(perAddress)}, {Key: Shared(everyone)}}
	partition := func(key stint.Key) []byte { return []byte{0xff, byte(key.Name)} }
	large := stint.Limit{Burst: math.MaxInt32 * 1_000_000_000, Count: 1e9, Period: time.Second}
	for name, tc := range map[string]struct {
		opts     Options
		everyone stint.Limit
		rules    []Rule
		want     map[string]string
	}{
		"XRateLimit": {Options{Headers: XRateLimit}, stint.PerHour(2), two,
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "1800"}},
		"Draft06": {Options{Headers: Draft06}, stint.PerHour(2), two,
			map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": "1", "Ratelimit-Reset": "1800"}},
		"NoHeaders": {Options{Headers: NoHeaders}, stint.PerHour(2), two, map[string]string{}},
		"Standard": {Options{}, stint.PerHour(2), two, map[string]string{
			"Ratelimit-Policy": `"address";q=5;w=60, "everyone";q=2;w=3600`,
			"Ratelimit":        `"address";r=4;t=12, "everyone";r=1;t=1800`,
		}},
		"partition key": {Options{PartitionKey: partition}, stint.PerHour(2), two[:1], map[string]string{
			"Ratelimit-Policy": `"address";q=5;w=60;pk=:/wE=:`, "Ratelimit": `"address";r=4;t=12;pk=:/wE=:`,
		}},
		"label not in ASCII": {Options{}, stint.PerHour(2), []Rule{{Key: ByIP(oddLabel), Cost: 5}}, map[string]string{
			"Ratelimit-Policy": `"Gr%c3%b6%c3%9fe \"100%25\" \\";q=5;w=60`,
			"Ratelimit":        `"Gr%c3%b6%c3%9fe \"100%25\" \\";r=0;t=12`,
		}},
		"over 15 digits": {Options{}, large, two[1:], map[string]string{
			"Ratelimit-Policy": `"everyone";q=999999999999999;w=2147483647`, "Ratelimit": `"everyone";r=999999999999999;t=1`,
		}},
		"no limit, Standard":   {Options{}, large, []Rule{{Key: ByIP(off)}}, map[string]string{}},
		"no limit, XRateLimit": {Options{Headers: XRateLimit}, large, []Rule{{Key: ByIP(off)}}, map[string]string{}},
		"no limit, Draft06":    {Options{Headers: Draft06}, large, []Rule{{Key: ByIP(off)}}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: tc.everyone})
			h := New(lim, &tc.opts, tc.rules...)(http.HandlerFunc(status))
			require.Equal(t, tc.want, fields(h))
			if tc.everyone == stint.PerHour(2) && len(tc.rules) == 2 {
				fields(h)
				denied := fields(h)
				require.Equal(t, "1800", denied["Retry-After"])
				for field, want := range tc.want {
					switch field {
					case "Ratelimit-Remaining", "X-Ratelimit-Remaining":
						want = "0"
					case "Ratelimit":
						want = `"address";r=3;t=12, "everyone";r=0;t=1800`
					}
					require.Equal(t, want, denied[field])
				}
			}
		})
	}
	lim, _ := newLimiter(t, nil)
	url := limited(t, lim, Rule{Key: ByIP(oddLabel), Cost: 5})
	get(t, url)
	require.Equal(t, []string{`Gr%c3%b6%c3%9fe "100%25" \`}, get(t, url).problem(t).Violated, "as in the header")
}

// Each middleware writes its own rules in its own way, whatever is nested.
func TestHeadersNested(t *testing.T) {
	partition := func(stint.Key) []byte { return []byte("x") }
	const inner = `"address";q=5;w=60`
	shared := Rule{Key: Shared(everyone)}
	for name, tc := range map[string]struct {
		outer, inner Options
		rule         Rule // of the outer one
		want         map[string]string
	}{
		"none": {Options{Headers: NoHeaders}, Options{}, shared, map[string]string{
			"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
		}},
		"none inside": {Options{}, Options{Headers: NoHeaders}, shared, map[string]string{
			"Ratelimit-Policy": `"everyone";q=5;w=60`, "Ratelimit": `"everyone";r=4;t=12`,
		}},
		"partition key": {Options{PartitionKey: partition}, Options{}, shared, map[string]string{
			"Ratelimit-Policy": `"everyone";q=5;w=60;pk=:eA==:, ` + inner,
			"Ratelimit":        `"everyone";r=4;t=12;pk=:eA==:, "address";r=4;t=12`,
		}},
		"partition key inside": {Options{}, Options{PartitionKey: partition}, shared, map[string]string{
			"Ratelimit-Policy": `"everyone";q=5;w=60, ` + inner + `;pk=:eA==:`,
			"Ratelimit":        `"everyone";r=4;t=12, "address";r=4;t=12;pk=:eA==:`,
		}},
		"partition key, nothing new": {Options{PartitionKey: partition}, Options{}, Rule{Key: ByIP(perAddress)}, map[string]string{
			"Ratelimit-Policy": inner + `;pk=:eA==:`, "Ratelimit": `"address";r=4;t=12;pk=:eA==:`,
		}},
		"two kinds": {Options{Headers: XRateLimit}, Options{}, Rule{Key: Shared(everyone), Cost: 2}, map[string]string{
			"X-Ratelimit-Limit": "5", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "12",
			"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
		}},
		"two kinds, after the status": {Options{Headers: XRateLimit}, Options{}, Rule{Key: Shared(everyone), RefundStatus: Status(200)},
			map[string]string{
				"X-Ratelimit-Limit": "5", "X-Ratelimit-Remaining": "5", "X-Ratelimit-Reset": "12",
				"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
			}},
		"one kind": {Options{Headers: XRateLimit}, Options{Headers: XRateLimit}, Rule{Key: Shared(everyone), Cost: 2}, map[string]string{
			"X-Ratelimit-Limit": "5", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "12",
		}},
		"shadow replaced inside": {Options{Headers: NoHeaders}, Options{}, Rule{Key: ByIP(perAddress), Shadow: true}, map[string]string{
			"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			nested := New(lim, &tc.inner, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
			require.Equal(t, tc.want, fields(New(lim, &tc.outer, tc.rule)(nested)))
		})
	}
	// net/http may be writing a value that nested middleware replaces.
	t.Run("values stay", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		nested := New(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(status))
		var before []string
		got := fields(New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			before = w.Header()[stateField]
			nested.ServeHTTP(w, r)
		})))
		require.Equal(t, []string{`"address";r=4;t=12`}, before)
		require.Equal(t, `"address";r=4;t=12, "everyone";r=4;t=12`, got[stateField])
	})
}

// The window has one meaning in every state: r is what the client can use
// within t seconds, and no more.
func TestState(t *testing.T) {
	limit := stint.PerMinute(5) // a token in 12 s
	for name, tc := range map[string]struct {
		allowed         bool
		cost, remaining int64
		retry, full     time.Duration
		locked          time.Duration
		left, window    int64
	}{
		"full":                     {true, 1, 5, 0, 0, 0, 5, 12},
		"almost full":              {true, 1, 4, 0, time.Nanosecond, 0, 4, 1},
		"one spent":                {true, 1, 4, 0, 12 * time.Second, 0, 4, 12},
		"one spent a while ago":    {true, 1, 4, 0, 5*time.Second + 1, 0, 4, 6},
		"two spent":                {true, 1, 3, 0, 24 * time.Second, 0, 3, 12},
		"one left":                 {true, 1, 1, 0, 48 * time.Second, 0, 1, 12},
		"none left":                {true, 1, 0, 0, 60 * time.Second, 0, 0, 12},
		"none left for a while":    {true, 1, 0, 0, 50 * time.Second, 0, 0, 2},
		"none left, nearly one":    {true, 1, 0, 0, 48*time.Second + 1, 0, 0, 1},
		"none left, others queue":  {true, 1, 0, 0, 96 * time.Second, 0, 0, 48},
		"denied":                   {false, 1, 0, 1, 48*time.Second + 1, 0, 0, 1},
		"denied, costs more":       {false, 5, 4, 12 * time.Second, 12 * time.Second, 0, 4, 12},
		"denied, costs much more":  {false, 5, 2, 36 * time.Second, 36 * time.Second, 0, 2, 12},
		"held, costs nothing":      {false, 0, 2, 30 * time.Second, 36 * time.Second, 0, 0, 30},
		"held, empty":              {false, 1, 0, 24 * time.Hour, time.Minute, 0, 0, 86400},
		"held, full":               {false, 1, 5, time.Hour, 0, 0, 0, 3600},
		"locked out by this":       {true, 1, 0, 0, 60 * time.Second, time.Hour, 0, 3600},
		"locked out for less than": {true, 1, 0, 0, 60 * time.Second, time.Second + 1, 0, 2},
	} {
		a := applied{locked: tc.locked, Decision: Decision{Cost: tc.cost, Decision: stint.Decision{
			Allowed: tc.allowed, Remaining: tc.remaining, RetryAfter: tc.retry, ResetAfter: tc.full, Limit: limit,
		}}}
		left, window := a.state()
		require.Equal(t, [2]int64{tc.left, tc.window}, [2]int64{left, window}, name)
		retry := max(1, seconds(a.RetryAfter))
		require.True(t, a.Allowed || window <= retry, "%s: Retry-After ends before the window", name)
	}
}

// A client that uses what is left, and then waits for the window, is never
// denied; and for no less.
func TestStateOfSpends(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.PerMinute(3)})
	h := New(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(status))
	for _, want := range []string{`r=2;t=20`, `r=1;t=20`, `r=0;t=20`, `r=0;t=20`} {
		require.Equal(t, `"everyone";`+want, fields(h)[stateField])
	}
	clock.pass(20 * time.Second)
	require.Empty(t, fields(h)["Retry-After"])
	clock.pass(30 * time.Second) // one is back, and half of another
	require.Equal(t, `"everyone";r=0;t=10`, fields(h)[stateField])
}

// A blocked client gets 429 and the longest Retry-After, and no fields of a
// limit that it does not have.
func TestBlocked(t *testing.T) {
	for _, rule := range []Rule{
		{Key: ByIP(perAddress)},
		{Key: ByIP(perAddress), CountStatus: func(int) bool { return true }},
		{Key: ByIP(perAddress), CountStatus: func(int) bool { return true }, LockOut: time.Minute},
	} {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.Blocked})
		for range 2 {
			res := get(t, limited(t, lim, rule))
			require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
			require.Equal(t, "9223372037", res.Header.Get("Retry-After"))
			require.Empty(t, res.Header.Get("RateLimit"))
			require.Contains(t, res.body, "Try again in 106752 days")
		}
	}
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.Blocked})
	require.Equal(t, http.StatusOK, get(t, limited(t, lim, Rule{Key: ByIP(perAddress), Shadow: true})).StatusCode)
}
