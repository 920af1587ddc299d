package httplimit

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

func TestNew(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	require.Panics(t, func() { Middleware(nil, nil) })
	require.Panics(t, func() { Middleware(lim, nil, Rule{Key: ByIP(perAddress), Pattern: "login"}) })
	require.Panics(t, func() { ClientAddress{IPv6Bits: 129}.ByIP(perAddress) })
	require.Panics(t, func() { ClientAddress{IPv4Bits: 33}.ByIP(perAddress) })
}

func TestMiddleware(t *testing.T) {
	both := []Rule{{Key: ByIP(perAddress)}, {Key: Single(everyone)}, {Key: ByHeader(off, "X-Key"), Optional: true}}
	address := func(ru Rule) []Rule { ru.Key = ByIP(perAddress); return []Rule{ru} }
	closes := func(lim limiter, _ *testClock) { lim.Close() }
	own := func(*http.Request) (stint.Key, error) { return stint.Key{}, errors.New("own") }
	const closed = `
		200: 200
		Error: closed`
	runScenarios(t, map[string]scenario{
		"one rule": {rules: address(Rule{}), script: `
			200: 200
			RateLimit-Policy: "address";q=5;w=60
			RateLimit: "address";r=4;t=12
			Retry-After:
			200: 200 200 200 200 429
			+10.5s
			200: 429
			Retry-After: 2
			RateLimit: "address";r=0;t=2
			Cache-Control: no-store
			Content-Type: application/problem+json
			Body: {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Request cannot be satisfied as assigned quota has been exceeded",` +
			`"status":429,"detail":"Try again in 2 seconds.","violated-policies":["address"]}
			+1.5s
			200: 200 429
			+11.999999999s
			200: 429
			Retry-After: 1`},
		"rules spend together or not at all": {limits: map[stint.Name]stint.Limit{everyone: stint.PerHour(2)}, rules: both,
			script: `
			200 k: 200
			RateLimit-Policy: "address";q=5;w=60, "everyone";q=2;w=3600
			RateLimit: "address";r=4;t=12, "everyone";r=1;t=1800
			200: 200 429 429
			left address 3
			Body: "violated-policies":["everyone"]
			RateLimit: "address";r=3;t=12, "everyone";r=0;t=1800
			spend address 3
			200: 429
			Body: "violated-policies":["address","everyone"]`},
		"cost over the burst": {rules: address(Rule{Cost: 6}), script: `
			200: 400
			Body: more than its limit ever admits
			Error: burst`},
		"cost negative": {rules: address(Rule{CostFunc: costing(-1)}), opts: Options{FailOpen: true}, script: `
			200: 400
			Body: is negative
			Error: negative`},
		"no id": {rules: []Rule{{Key: ByHeader(perNumber, "X-Key")}}, opts: Options{FailOpen: true}, script: `
			200: 400
			Body: "status":400
			Error: the request has no id
			200 1 2: 400
			Error: the request has no id
			200 7: 200
			200 007: 400
			Error: invalid id`}, // two spellings would be two buckets
		"own error": {rules: []Rule{{Key: own, Optional: true}}, script: `
			200: 503
			Body: "status":503
			RateLimit:
			Error: own`},
		"own error, fails open": {rules: []Rule{{Key: own}, {Key: ByIP(perAddress), Cost: 5}}, opts: Options{FailOpen: true},
			script: `
			200: 200
			Error: own
			200: 429
			Error: own`},
		"closed before the handler": {rules: address(Rule{}), outer: []Rule{{Key: Single(everyone)}}, inside: closes,
			script: `
			200: 200
			200: 503`},
		"limits replaced": {
			limits: map[stint.Name]stint.Limit{perAddress: {Burst: 8, Count: 5, Period: time.Minute}}, rules: address(Rule{}),
			inside: func(lim limiter, _ *testClock) { lim.SetLimits(testLimits(t, nil)) }, script: `
			200: 200
			Fields: Ratelimit "address";r=7;t=12 / Ratelimit-Policy "address";q=8;w=96
			200: 200
			Fields: Ratelimit "address";r=3;t=12 / Ratelimit-Policy "address";q=5;w=60`},
		"closed before a spend":    {rules: address(Rule{Count: rules.OneOf(200)}), inside: closes, script: closed},
		"closed before a refund":   {rules: address(Rule{Refund: rules.OneOf(200)}), inside: closes, script: closed},
		"closed before a lock-out": {rules: address(Rule{Cost: 5, LockOut: time.Hour}), inside: closes, script: closed},
	})
}

// Decisions, called by a function of the user, returns the decisions so far.
func TestObservers(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	var asked []int
	ask := func(r *http.Request) { asked = append(asked, len(rules.Decisions(r.Context()))) }
	opts := &Options{Observers: []Observer{
		{Decisions: func(r *http.Request, ds []rules.Decision) { require.Len(t, ds, 1); ask(r) }},
		{Error: func(r *http.Request, err error) { ask(r) }},
	}}
	h := Middleware(lim, opts,
		Rule{Key: ByIP(failures), Count: rules.OneOf(200)},
		Rule{Key: ByHeader(perNumber, "X-Key"), Shadow: true},
	)(http.HandlerFunc(status))
	outer := Middleware(lim, &Options{Decisions: true}, Rule{Key: ByIP(perAddress)})
	require.Equal(t, 200, answerTo(h, withKey("x")).Code)
	require.Equal(t, 200, answerTo(outer(h), withKey("x")).Code)
	require.Equal(t, []int{0, 0, 1, 1, 1, 2}, asked) // the error, the check, and the spend

	asked = nil
	rule := Rule{
		Key:      func(r *http.Request) (stint.Key, error) { ask(r); return failures.Key("a"), nil },
		CostFunc: func(r *http.Request) int64 { ask(r); return 1 },
	}
	require.Equal(t, 200, answerTo(outer(Middleware(lim, nil, rule)(http.HandlerFunc(status))), withKey("")).Code)
	require.Equal(t, []int{1, 1}, asked)
}

// After a panic of a user's function, the decisions are not locked.
func TestPanics(t *testing.T) {
	panics := true
	partition := &Options{PartitionKey: func(stint.Key) []byte {
		if panics {
			panic("oops")
		}
		return nil
	}}
	for name, tc := range map[string]struct {
		opts   *Options
		rule   Rule
		before bool // panics before the handler
	}{
		"key":  {nil, Rule{Key: func(*http.Request) (stint.Key, error) { panic("oops") }}, true},
		"cost": {nil, Rule{Key: ByIP(failures), CostFunc: func(*http.Request) int64 { panic("oops") }}, true},

		"partition key":                  {partition, Rule{Key: ByIP(failures)}, true},
		"partition key after the status": {partition, Rule{Key: ByIP(failures), Count: rules.OneOf(200)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			panics = tc.before
			handler := func(http.ResponseWriter, *http.Request) { panics = true }
			h := Middleware(lim, nil, Rule{Key: ByIP(perAddress), Refund: ServerError})(
				Middleware(lim, tc.opts, tc.rule)(http.HandlerFunc(handler)))
			require.PanicsWithValue(t, "oops", func() { answerTo(h, withKey("")) })
			require.EqualValues(t, 5, left(t, lim, perAddress.Key("192.0.2.1")), "refunded")
		})
	}
}

// docs/performance.md has these figures.
func TestAllocations(t *testing.T) {
	if testlength.Race {
		t.Skip("the race detector makes a sync.Pool forget")
	}
	lim := newMemLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerSecond(1_000_000_000), everyone: stint.PerSecond(1_000_000_000)}, nil)
	spend(t, lim, failures.Key("192.0.2.1"), 5)
	spend(t, lim, failures.Key("2001:db8::/64"), 5)
	spend(t, lim, perKey.Key("used"), 5)
	used := func(*http.Request) (stint.Key, error) { return perKey.Key("used"), nil }
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	proxied := ClientAddress{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, name := range []stint.Name{perAddress, failures} { // allowed and denied
		for _, headers := range []Headers{Standard, XRateLimit, NoHeaders} {
			for n, rules := range [][]Rule{{{Key: ByIP(name)}}, {{Key: ByIP(name)}, {Key: Single(everyone)}}, {{Key: ByIP(name), InFlight: 8}}, {{Key: proxied.ByIP(name)}}, {{Key: ByIP(name)}, {Key: used}}} {
				h := Middleware(lim, &Options{Headers: headers}, rules...)(empty)
				for _, peer := range [][]string{{"192.0.2.1:1234"}, {"[2001:db8::1]:1234"}, {"10.0.0.1:1234", "2001:db8::2, 192.0.2.1"}, {"10.0.0.1:1234", "2001:db8::1"}} {
					r, w := httptest.NewRequest("GET", "/", nil), &discard{header: make(http.Header)}
					r.RemoteAddr, r.Header["X-Forwarded-For"] = peer[0], peer[1:]
					require.Zero(t, testing.AllocsPerRun(200, func() { clear(w.header); h.ServeHTTP(w, r) }), "%d, headers %d, rules %d, %v", name, headers, n, peer)
				}
			}
		}
	}
}

// A request by several rules allocates nothing, whatever the numbers of their limits.
func TestManyPolicies(t *testing.T) {
	if testlength.Race {
		t.Skip("the race detector makes a sync.Pool forget")
	}
	names, labels := stint.Names{}, []string{"a", "b", "c"}
	var rules []Rule
	for i, label := range labels {
		name := stint.Name(1 + 8*i)
		names[name] = stint.NameSpec{Label: label, IDs: stint.Single, Limit: stint.PerSecond(1_000_000_000)}
		rules = append(rules, Rule{Key: Single(name)})
	}
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	h := Middleware(lim, nil, rules...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r, w := httptest.NewRequest("GET", "/", nil), &discard{header: make(http.Header)}
	require.Zero(t, testing.AllocsPerRun(200, func() { clear(w.header); h.ServeHTTP(w, r) }))
	require.Equal(t, 3, strings.Count(w.header.Get("RateLimit-Policy"), "q=1000000000"))
}
