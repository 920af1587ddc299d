package httplimit

import (
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

func TestHeaders(t *testing.T) {
	two := []Rule{{Key: ByIP(perAddress)}, {Key: Single(everyone)}}
	hourly := map[stint.Name]stint.Limit{everyone: stint.PerHour(2)}
	large := map[stint.Name]stint.Limit{everyone: {Burst: math.MaxInt32 * 1_000_000_000, Count: 1e9, Period: time.Second}}
	blocked := map[stint.Name]stint.Limit{perAddress: stint.Blocked}
	partition := Options{PartitionKey: func(key stint.Key) []byte { return []byte{0xff, byte(key.Name)} }}
	always := func(int) bool { return true }
	const none = `
		200: 200
		Fields:`
	const forever = `
		200: 429 429
		Retry-After: 
		Body: The limit blocks the request.
		Fields:`
	runScenarios(t, map[string]scenario{
		"XRateLimit": {limits: hourly, opts: Options{Headers: XRateLimit}, rules: two, script: `
			200: 200
			Fields: X-Ratelimit-Limit 2 / X-Ratelimit-Remaining 1 / X-Ratelimit-Reset 1800
			200: 200 429
			Fields: X-Ratelimit-Limit 2 / X-Ratelimit-Remaining 0 / X-Ratelimit-Reset 1800`},
		"Draft06": {limits: hourly, opts: Options{Headers: Draft06}, rules: two, script: `
			200: 200
			Fields: Ratelimit-Limit 2 / Ratelimit-Remaining 1 / Ratelimit-Reset 1800
			200: 200 429
			Fields: Ratelimit-Limit 2 / Ratelimit-Remaining 0 / Ratelimit-Reset 1800`},
		"NoHeaders": {limits: hourly, opts: Options{Headers: NoHeaders}, rules: two, script: `
			200: 200 200 429
			Retry-After: 1800
			Fields:`},
		"partition key": {opts: partition, rules: two[:1], script: `
			200: 200
			Fields: Ratelimit "address";r=4;t=12;pk=:/wE=: / Ratelimit-Policy "address";q=5;w=60;pk=:/wE=:`},
		"7/1h": {limits: map[stint.Name]stint.Limit{perAddress: stint.PerHour(7), everyone: stint.PerMinute(11)}, rules: two, script: `
			200: 200
			RateLimit-Policy: "address";q=7;w=3600, "everyone";q=11;w=60`},
		"20 of 7/1h": {limits: map[stint.Name]stint.Limit{perAddress: stint.PerHour(7).WithBurst(20)}, rules: two[:1], script: `
			200: 200
			RateLimit-Policy: "address";q=20;w=10286`},
		"label not in ASCII": {rules: []Rule{{Key: ByIP(oddLabel), Cost: 5}}, script: `
			200: 200
			RateLimit: "Gr%c3%b6%c3%9fe \"100%25\" \\";r=0;t=12
			RateLimit-Policy: "Gr%c3%b6%c3%9fe \"100%25\" \\";q=5;w=60
			200: 429
			Body: "violated-policies":["Gr%c3%b6%c3%9fe \"100%25\" \\"]`},
		"over 15 digits": {limits: large, rules: two[1:], script: `
			200: 200
			Fields: Ratelimit "everyone";r=999999999999999;t=1 / Ratelimit-Policy "everyone";q=999999999999999;w=2147483647`},
		"no limit, Standard":   {rules: []Rule{{Key: ByIP(off)}}, script: none},
		"no limit, XRateLimit": {rules: []Rule{{Key: ByIP(off)}}, opts: Options{Headers: XRateLimit}, script: none},
		"blocked":              {limits: blocked, rules: two[:1], script: forever},
		"blocked, counts": {limits: blocked, rules: []Rule{{Key: ByIP(perAddress), Count: always,
			LockOut: time.Minute}}, script: forever},
		"blocked, Shadow rule": {limits: blocked, rules: []Rule{{Key: ByIP(perAddress), Shadow: true}}, script: none},
		"blocked beside a full day": {rules: two, script: `
			200: 429
			Fields: Ratelimit "everyone";r=5;t=71694 / Ratelimit-Policy "everyone";q=5;w=86400`, // it is 04:05:06
			limits: map[stint.Name]stint.Limit{perAddress: stint.Blocked, everyone: stint.EachDay(5, time.UTC)}},
		// A client that uses what is left, and then waits for t, is never denied.
		"waits": {limits: map[stint.Name]stint.Limit{everyone: stint.PerMinute(3)}, rules: two[1:], script: `
			200: 200
			RateLimit: "everyone";r=2;t=20
			200: 200 200 429
			RateLimit: "everyone";r=0;t=20
			+20s
			200: 200
			+30s
			200: 200
			RateLimit: "everyone";r=0;t=10`},
	})
}

// Each middleware writes its own rules by its own Options, even if nested.
func TestHeadersNested(t *testing.T) {
	partition := Options{PartitionKey: func(stint.Key) []byte { return []byte("x") }}
	address, shared := []Rule{{Key: ByIP(perAddress)}}, []Rule{{Key: Single(everyone)}}
	const inner = ` Ratelimit "address";r=4;t=12 / Ratelimit-Policy "address";q=5;w=60`
	for name, tc := range map[string]struct {
		outerOpts, opts Options
		outer           []Rule
		want            string
	}{
		"none": {Options{Headers: NoHeaders}, Options{}, shared, inner},
		"none inside": {Options{}, Options{Headers: NoHeaders}, shared,
			` Ratelimit "everyone";r=4;t=12 / Ratelimit-Policy "everyone";q=5;w=60`},
		"partition key": {partition, Options{}, shared, ` Ratelimit "everyone";r=4;t=12;pk=:eA==:, "address";r=4;t=12` +
			` / Ratelimit-Policy "everyone";q=5;w=60;pk=:eA==:, "address";q=5;w=60`},
		"partition key inside": {Options{}, partition, shared,
			` Ratelimit "everyone";r=4;t=12, "address";r=4;t=12;pk=:eA==:` +
				` / Ratelimit-Policy "everyone";q=5;w=60, "address";q=5;w=60;pk=:eA==:`},
		"the same bucket": {partition, Options{}, address, ` Ratelimit "address";r=4;t=12;pk=:eA==:, "address";r=3;t=12` +
			` / Ratelimit-Policy "address";q=5;w=60;pk=:eA==:, "address";q=5;w=60`},
		"two kinds": {Options{Headers: XRateLimit}, Options{}, []Rule{{Key: Single(everyone), Cost: 2}},
			inner + ` / X-Ratelimit-Limit 5 / X-Ratelimit-Remaining 3 / X-Ratelimit-Reset 12`},
		"two kinds, after the status": {Options{Headers: XRateLimit}, Options{}, []Rule{{Key: Single(everyone),
			Refund: rules.OneOf(200)}},
			inner + ` / X-Ratelimit-Limit 5 / X-Ratelimit-Remaining 5 / X-Ratelimit-Reset 12`},
		"one kind": {Options{Headers: XRateLimit}, Options{Headers: XRateLimit}, []Rule{{Key: Single(everyone), Cost: 2}},
			` X-Ratelimit-Limit 5 / X-Ratelimit-Remaining 3 / X-Ratelimit-Reset 12`},
	} {
		t.Run(name, scenario{opts: tc.opts, outerOpts: tc.outerOpts, outer: tc.outer, rules: address,
			script: "200: 200\nFields:" + tc.want}.run)
	}
	// net/http may be writing a value that nested middleware replaces.
	t.Run("values stay", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		nested := Middleware(lim, nil, Rule{Key: Single(everyone)})(http.HandlerFunc(status))
		var before []string
		w := answerTo(Middleware(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				before = w.Header()[stateField]
				nested.ServeHTTP(w, r)
			})), withKey(""))
		require.Equal(t, []string{`"address";r=4;t=12`}, before)
		require.Equal(t, `"address";r=4;t=12, "everyone";r=4;t=12`, w.Header().Get("RateLimit"))
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
		"one spent, two kept":      {true, 1, 2, 0, 12 * time.Second, 0, 2, 12}, // by a total, for its floors
		"three spent, one kept":    {true, 1, 1, 0, 36*time.Second - 1, 0, 1, 12},
		"denied":                   {false, 1, 0, 1, 48*time.Second + 1, 0, 0, 1},
		"denied, costs more":       {false, 5, 4, 12 * time.Second, 12 * time.Second, 0, 4, 12},
		"denied, costs much more":  {false, 5, 2, 36 * time.Second, 36 * time.Second, 0, 2, 12},
		"held, costs nothing":      {false, 0, 2, 30 * time.Second, 36 * time.Second, 0, 0, 30},
		"held, empty":              {false, 1, 0, 24 * time.Hour, time.Minute, 0, 0, 86400},
		"held, full":               {false, 1, 5, time.Hour, 0, 0, 0, 3600},
		"locked out by this":       {true, 1, 0, 0, 60 * time.Second, time.Hour, 0, 3600},
		"locked out for less than": {true, 1, 0, 0, 60 * time.Second, time.Second + 1, 0, 12}, // until the next token
		"locked out with a token":  {true, 2, 1, 0, 48 * time.Second, time.Second + 1, 0, 2},
	} {
		a := shown{Decision: &rules.Decision{Locked: tc.locked, Cost: tc.cost, Decision: stint.Decision{
			Allowed: tc.allowed, Remaining: tc.remaining, RetryAfter: tc.retry, ResetAfter: tc.full, Limit: limit,
		}}}
		left, window := a.state(nil)
		require.Equal(t, [2]int64{tc.left, tc.window}, [2]int64{left, window}, name)
		left, window = a.state(&policy{interval: limit.Interval()})
		require.Equal(t, [2]int64{tc.left, tc.window}, [2]int64{left, window}, name)
		retry := max(1, seconds(a.RetryAfter))
		require.True(t, a.Allowed || window <= retry, "%s: Retry-After ends before the window", name)
	}
}

// RateLimit has what the fields have.
func TestRateLimit(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(2), perIP: stint.EachDay(9, time.UTC)})
	var ds []rules.Decision
	h := Middleware(lim, nil,
		Rule{Key: ByIP(perAddress), InFlight: 3}, Rule{Key: ByIP(perKey)}, Rule{Key: ByIP(off)}, Rule{Key: ByIP(perIP)},
		Rule{Key: ByIP(failures), Shadow: true}, Rule{Key: Single(everyone), Count: ServerError},
	)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ds = rules.Decisions(r.Context()) }))
	w := answerTo(h, withKey(""))
	policy, state := RateLimit(lim, ds)
	require.Equal(t, w.Header().Get("RateLimit-Policy"), policy)
	require.Equal(t, w.Header().Get("RateLimit"), state)
	require.Contains(t, policy, `"key";q=2;w=3600`)
	policy, state = RateLimit(lim, nil)
	require.Empty(t, policy+state)
}

// A lock-out that ends before the bucket has a token is not what the client waits
// for: the answer that locks out says the same as the next one.
func TestHeadersOfAShortLockOut(t *testing.T) {
	for name, limit := range map[string]stint.Limit{"rolling": stint.PerHour(3), "calendar": stint.EachDay(3, time.UTC)} {
		for _, headers := range []Headers{Standard, XRateLimit} {
			lim, clock := newLimiter(t, map[stint.Name]stint.Limit{failures: limit})
			clock.pass(12*time.Hour - clock.now().Sub(clock.now().Truncate(24*time.Hour)) + time.Second)
			h := Middleware(lim, &Options{Headers: headers}, Rule{Key: ByIP(failures), Count: AuthFailed, LockOut: 5 * time.Minute})(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }))
			fields := func() string {
				f := answerTo(h, withKey("")).Header()
				return fmt.Sprint(f["Ratelimit"], f["X-Ratelimit-Remaining"], f["X-Ratelimit-Reset"])
			}
			fields()
			fields()
			third, next := fields(), fields()
			require.Equal(t, next, third, name)
			if name == "rolling" {
				require.Contains(t, third, "1200")
			}
		}
	}
}

// After a refund the bucket is full, whatever time the handler took: the fields say
// so, and not that a part of a token is missing.
func TestHeadersOfARefund(t *testing.T) {
	var now atomic.Int64
	now.Store(1e18)
	limits := testLimits(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(10)})
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return time.Unix(0, now.Add(1000)) }})
	require.NoError(t, err)
	defer lim.Close()
	h := Middleware(lim, nil, Rule{Key: ByIP(perAddress), Refund: rules.OneOf(200)})(http.HandlerFunc(status))
	require.Equal(t, `"address";r=10;t=6`, answerTo(h, withKey("")).Header().Get("RateLimit"))
}
