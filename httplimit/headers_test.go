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

func TestDialects(t *testing.T) {
	for _, tc := range []struct {
		headers Headers
		want    map[string]string
	}{
		{XRateLimit, map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "1800"}},
		{Draft06, map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": "1", "Ratelimit-Reset": "1800"}},
		{NoHeaders, map[string]string{}},
		{Standard, map[string]string{
			"Ratelimit-Policy": `"address";q=5;w=60, "everyone";q=2;w=3600`,
			"Ratelimit":        `"address";r=4;t=12, "everyone";r=1;t=1800`,
		}},
	} {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.PerHour(2)})
		srv := serve(t, New(lim, &Options{Headers: tc.headers}, Rule{Key: ByIP(perAddress)}, Rule{Key: Shared(everyone)})(
			http.HandlerFunc(status)))
		res := get(t, srv.URL)
		for field := range map[string]bool{"Content-Length": true, "Date": true} {
			res.Header.Del(field)
		}
		got := make(map[string]string)
		for field := range res.Header {
			got[field] = res.Header.Get(field)
		}
		require.Equal(t, tc.want, got)
		require.Equal(t, "200 429", statuses(t, 2, srv.URL))
		res = get(t, srv.URL)
		require.Equal(t, "1800", res.Header.Get("Retry-After"))
		for field, want := range tc.want {
			switch field[max(0, len(field)-5):] {
			case "ining":
				require.Equal(t, "0", res.Header.Get(field))
			case "Limit", "Reset":
				require.Equal(t, want, res.Header.Get(field))
			}
		}
	}
}

func TestPartitionKey(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	pk := func(key stint.Key) []byte { return []byte{0xff, byte(key.Name)} }
	srv := serve(t, New(lim, &Options{PartitionKey: pk}, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	res := get(t, srv.URL)
	require.Equal(t, `"address";q=5;w=60;pk=:/wE=:`, res.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"address";r=4;t=12;pk=:/wE=:`, res.Header.Get("RateLimit"))
}

func TestOddLabel(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(oddLabel), Cost: 5})(http.HandlerFunc(status)))
	res := get(t, srv.URL)
	require.Equal(t, `"Gr%c3%b6%c3%9fe \"100%25\" \\";q=5;w=60`, res.Header.Get("RateLimit-Policy"))
	require.Equal(t, []string{`Gr%c3%b6%c3%9fe "100%25" \`}, get(t, srv.URL).problem(t).Violated, "the same name")
}

func TestOff(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	for _, headers := range []Headers{Standard, XRateLimit, Draft06} {
		srv := serve(t, New(lim, &Options{Headers: headers}, Rule{Key: ByIP(off)})(http.HandlerFunc(status)))
		res := get(t, srv.URL)
		require.Equal(t, 200, res.StatusCode)
		require.Len(t, res.Header, 2, "Date and Content-Length")
	}
}

// The fields are of GCRA, which has neither window nor reset of its own.
func TestState(t *testing.T) {
	limit := stint.PerMinute(5) // a token in 12 s
	for _, tc := range []struct {
		a           applied
		left, reset int64
	}{
		{made(limit, true, 4, 0, 12*time.Second), 4, 12},
		{made(limit, true, 4, 0, 11*time.Second+1), 4, 12},
		{made(limit, true, 5, 0, 0), 5, 0},
		{made(limit, true, 0, 0, 60*time.Second), 0, 12},
		{made(limit, true, 0, 0, 50*time.Second), 0, 2},
		{made(limit, true, 0, 0, 48*time.Second+1), 0, 1},
		{made(limit, false, 0, 1, 48*time.Second+1), 0, 1},
		{made(limit, false, 2, 30*time.Second, 36*time.Second), 2, 30},
		{made(limit, false, 0, 24*time.Hour, 0), 0, 86400},
		{withCost(1, made(limit, false, 5, time.Hour, 0)), 0, 3600}, // held, and full
		{withCost(5, made(limit, false, 4, 12*time.Second, 12*time.Second)), 4, 12},
	} {
		left, reset := tc.a.state()
		require.Equal(t, [2]int64{tc.left, tc.reset}, [2]int64{left, reset}, "%+v", tc.a.Decision)
	}
}

func made(l stint.Limit, allowed bool, remaining int64, retry, reset time.Duration) applied {
	return applied{Decision: Decision{Decision: stint.Decision{
		Allowed: allowed, Remaining: remaining, RetryAfter: retry, ResetAfter: reset, Limit: l,
	}}}
}

func withCost(cost int64, a applied) applied {
	a.Cost = cost
	return a
}

// An Integer of RFC 9651 has at most 15 digits.
func TestLargeNumbers(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{
		everyone: {Burst: math.MaxInt32 * 1_000_000_000, Count: 1e9, Period: time.Second},
	})
	h := New(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(status))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, `"everyone";q=999999999999999;w=2147483647`, w.Header().Get("RateLimit-Policy"))
	require.Equal(t, `"everyone";r=999999999999999;t=1`, w.Header().Get("RateLimit"))
}

// What one response says stays as it is when the next request comes, whatever the middleware keeps for that: net/http writes
// the header once the handler has returned.
func TestHeaderStays(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	require.NoError(t, lim.Hold(off.Key("held"), lim.Now().Add(time.Hour)))
	h := New(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(off, "X-Off"), Optional: true})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func(id string) http.Header {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Off", id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Header()
	}
	header := ask("held") // denied by a limit that nothing is told of
	require.Equal(t, []string{`"address";r=5`}, header[stateField])
	for range 5 {
		ask("free")
	}
	require.Equal(t, []string{`"address";r=5`}, header[stateField])
}

// Each middleware tells of its own rules as it was told to, whatever is nested in it.
func TestNestedDialects(t *testing.T) {
	partition := func(stint.Key) []byte { return []byte("x") }
	const inner = `"address";q=5;w=60`
	for name, tc := range map[string]struct {
		outer, inner Options
		rule         Rule // the outer one
		want         map[string]string
	}{
		"none": {Options{Headers: NoHeaders}, Options{}, Rule{Key: Shared(everyone)}, map[string]string{
			"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
		}},
		"none inside": {Options{}, Options{Headers: NoHeaders}, Rule{Key: Shared(everyone)}, map[string]string{
			"Ratelimit-Policy": `"everyone";q=5;w=60`, "Ratelimit": `"everyone";r=4;t=12`,
		}},
		"partition key": {Options{PartitionKey: partition}, Options{}, Rule{Key: Shared(everyone)}, map[string]string{
			"Ratelimit-Policy": `"everyone";q=5;w=60;pk=:eA==:, ` + inner, "Ratelimit": `"everyone";r=4;t=12;pk=:eA==:, "address";r=4;t=12`,
		}},
		"partition key inside": {Options{}, Options{PartitionKey: partition}, Rule{Key: Shared(everyone)}, map[string]string{
			"Ratelimit-Policy": `"everyone";q=5;w=60, ` + inner + `;pk=:eA==:`, "Ratelimit": `"everyone";r=4;t=12, "address";r=4;t=12;pk=:eA==:`,
		}},
		"partition key, nothing new": {Options{PartitionKey: partition}, Options{}, Rule{Key: ByIP(perAddress)}, map[string]string{
			"Ratelimit-Policy": inner + `;pk=:eA==:`, "Ratelimit": `"address";r=4;t=12;pk=:eA==:`,
		}},
		"two kinds": {Options{Headers: XRateLimit}, Options{}, Rule{Key: Shared(everyone), Cost: 2}, map[string]string{
			"X-Ratelimit-Limit": "5", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "24",
			"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
		}},
		"two kinds, status waited for": {Options{Headers: XRateLimit}, Options{}, Rule{Key: Shared(everyone), RefundStatus: Status(200)},
			map[string]string{
				"X-Ratelimit-Limit": "5", "X-Ratelimit-Remaining": "5", "X-Ratelimit-Reset": "0",
				"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
			}},
		"one kind": {Options{Headers: XRateLimit}, Options{Headers: XRateLimit}, Rule{Key: Shared(everyone), Cost: 2}, map[string]string{
			"X-Ratelimit-Limit": "5", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "24",
		}},
		"shadow that is meant inside": {Options{Headers: NoHeaders}, Options{}, Rule{Key: ByIP(perAddress), Shadow: true}, map[string]string{
			"Ratelimit-Policy": inner, "Ratelimit": `"address";r=4;t=12`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			nested := New(lim, &tc.inner, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
			got := make(map[string]string)
			nested.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) // what it keeps of this is not of the next
			require.NoError(t, lim.Reset(perAddress.Key("192.0.2.1")))
			w := httptest.NewRecorder()
			New(lim, &tc.outer, tc.rule)(nested).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			for field := range w.Header() {
				got[field] = w.Header().Get(field)
			}
			require.Equal(t, tc.want, got)
		})
	}
}

// Nor does what is nested change what a header has already: http.TimeoutHandler may have answered in its place.
func TestHeaderStaysInNested(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	nested := New(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var before []string
	h := New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before = w.Header()[stateField]
		nested.ServeHTTP(w, r)
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, []string{`"address";r=4;t=12`}, before)
	require.Equal(t, []string{`"address";r=4;t=12, "everyone";r=4;t=12`}, w.Header()[stateField])
}
