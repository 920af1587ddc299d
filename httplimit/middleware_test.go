package httplimit

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

var local = map[stint.Name]stint.Key{
	perAddress: perAddress.Key("127.0.0.1"), failures: failures.Key("127.0.0.1"), perKey: perKey.Key("k"),
}

func TestDenied(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))

	res := get(t, srv.URL)
	require.Equal(t, 200, res.StatusCode)
	require.Equal(t, `"address";q=5;w=60`, res.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"address";r=4;t=12`, res.Header.Get("RateLimit"))
	require.Empty(t, res.Header.Get("Retry-After"))

	require.Equal(t, "200 200 200 200 429", statuses(t, 5, srv.URL))
	clock.pass(10500 * time.Millisecond)
	res = get(t, srv.URL)
	require.Equal(t, 429, res.StatusCode)
	require.Equal(t, "2", res.Header.Get("Retry-After"), "1.5 s, rounded up")
	require.Equal(t, `"address";r=0;t=2`, res.Header.Get("RateLimit"))
	require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
	require.Equal(t, problemJSON{
		Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:    "Request cannot be satisfied as assigned quota has been exceeded",
		Status:   429,
		Detail:   "Try again in 2 seconds.",
		Violated: []string{"address"},
	}, res.problem(t))

	clock.pass(1500 * time.Millisecond)
	require.Equal(t, "200 429", statuses(t, 2, srv.URL))
	clock.pass(12*time.Second - 1)
	require.Equal(t, "1", get(t, srv.URL).Header.Get("Retry-After"), "never 0")
}

func TestAnswerIsWhatTheClientAsksFor(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(1)})
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	get(t, srv.URL)
	const json, html, text = "application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
	for accept, want := range map[string]string{
		"":                         json,
		"*/*":                      json,
		"application/json":         json,
		"application/problem+json": json,
		"image/png":                json,
		"text/plain":               text,
		"text/*":                   text,
		"TEXT/HTML":                html,
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8": html,
		"text/html;q=0.5, application/json":                                          json,
		"text/html;q=0.5, application/json;q=0.4":                                    html,
		"text/html, application/json":                                                json,
		"text/html;q=0":                                                              json,
		"text/html;q=x":                                                              json,
		"text/plain;q=NaN":                                                           json,
		"text/plain;q=0.9, text/html;q=0.8":                                          text,
	} {
		res := get(t, srv.URL, "Accept", accept)
		require.Equal(t, 429, res.StatusCode)
		require.Equal(t, want, res.Header.Get("Content-Type"), accept)
		require.Equal(t, "no-store", res.Header.Get("Cache-Control"), "nor need it say what it varies by")
		require.Contains(t, res.body, "Try again in 60 minutes.")
	}
}

// An answer is not what the handlers around the middleware have said of another body.
func TestAnswerHasItsOwnFields(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	_, err := lim.Spend(local[perAddress], 5)
	require.NoError(t, err)
	limited := New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for field, value := range map[string]string{
			"Content-Length": "3", "Content-Encoding": "gzip", "ETag": `"x"`, "Last-Modified": "x", "Vary": "Origin", "X-Other": "y",
		} {
			w.Header().Set(field, value)
		}
		limited.ServeHTTP(w, r)
	}))
	res := get(t, srv.URL)
	require.Equal(t, 429, res.problem(t).Status, "the whole body")
	require.Equal(t, []string{"Origin"}, res.Header["Vary"])
	require.Equal(t, []string{"y"}, res.Header["X-Other"])
	for _, field := range []string{"Content-Encoding", "Etag", "Last-Modified"} {
		require.NotContains(t, res.Header, field)
	}
}

func TestDeniedHandler(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	denied := func(w http.ResponseWriter, r *http.Request, d stint.Decision) {
		w.WriteHeader(http.StatusTeapot)
		w.Write([]byte(d.RetryAfter.String() + " " + Decisions(r)[0].Label))
	}
	srv := serve(t, New(lim, &Options{Denied: denied}, Rule{Key: ByIP(perAddress), Cost: 5})(http.HandlerFunc(status)))
	get(t, srv.URL)
	res := get(t, srv.URL)
	require.Equal(t, http.StatusTeapot, res.StatusCode)
	require.Equal(t, "1m0s address", res.body)
	require.Equal(t, "60", res.Header.Get("Retry-After"))
}

// Several rules spend together, or not at all.
func TestSeveralRules(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.PerHour(2)})
	srv := serve(t, New(lim, nil,
		Rule{Key: ByIP(perAddress)},
		Rule{Key: Shared(everyone)},
		Rule{Key: ByHeader(off, "X-Key"), Optional: true},
	)(http.HandlerFunc(status)))

	res := get(t, srv.URL, "X-Key", "k")
	require.Equal(t, `"address";q=5;w=60, "everyone";q=2;w=3600`, res.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"address";r=4;t=12, "everyone";r=1;t=1800`, res.Header.Get("RateLimit"))
	require.Equal(t, "200 429 429", statuses(t, 3, srv.URL))
	require.EqualValues(t, 3, left(t, lim, local[perAddress]), "what is denied by one spends from none")

	res = get(t, srv.URL)
	require.Equal(t, []string{"everyone"}, res.problem(t).Violated)
	require.Equal(t, `"address";r=3;t=24, "everyone";r=0;t=1800`, res.Header.Get("RateLimit"))

	_, err := lim.Spend(local[perAddress], 3)
	require.NoError(t, err)
	require.Equal(t, []string{"address", "everyone"}, get(t, srv.URL).problem(t).Violated)
}

func TestCost(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	cost := func(r *http.Request) int64 { return int64(len(r.URL.Query().Get("n"))) }
	var told error
	srv := serve(t, New(lim, &Options{Observers: errorsTo(func(err error) { told = err })},
		Rule{Key: ByIP(perAddress), CostFunc: cost})(http.HandlerFunc(status)))
	require.Equal(t, 200, get(t, srv.URL).StatusCode)
	require.EqualValues(t, 5, left(t, lim, local[perAddress]))
	require.Equal(t, 200, get(t, srv.URL+"?n=xxxx").StatusCode)
	require.EqualValues(t, 1, left(t, lim, local[perAddress]))
	require.Equal(t, "24", get(t, srv.URL+"?n=xxx").Header.Get("Retry-After"))
	require.NoError(t, told)
	res := get(t, srv.URL+"?n=xxxxxx")
	require.Equal(t, 400, res.StatusCode, "it will never pass")
	require.Contains(t, res.problem(t).Detail, "more than its limit ever admits")
	require.ErrorIs(t, told, stint.ErrCostOverBurst)
}

// A cost below 0 is no way to pass, whoever lets through what the Limiter cannot decide.
func TestNegativeCost(t *testing.T) {
	for _, open := range []bool{false, true} {
		lim, _ := newLimiter(t, nil)
		var told error
		srv := serve(t, New(lim, &Options{FailOpen: open, Observers: errorsTo(func(err error) { told = err })},
			Rule{Key: ByIP(perAddress), CostFunc: func(*http.Request) int64 { return -1 }})(http.HandlerFunc(status)))
		res := get(t, srv.URL)
		require.Equal(t, 400, res.StatusCode)
		require.Contains(t, res.problem(t).Detail, "less than nothing")
		require.ErrorIs(t, told, stint.ErrNegativeCost)
	}
}

func TestCountStatus(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	var seen []Decision
	srv := serve(t, New(lim, &Options{Observers: []Observer{{Decisions: func(_ *http.Request, ds []Decision) { seen = append(seen, ds...) }}}},
		Rule{Key: ByIP(failures), CountStatus: AuthFailed})(http.HandlerFunc(status)))
	require.Equal(t, "200 200 200 200 200 200", statuses(t, 6, srv.URL))
	require.EqualValues(t, 5, left(t, lim, local[failures]))
	require.Len(t, seen, 6)
	require.True(t, seen[0].After)

	res := get(t, srv.URL)
	require.Equal(t, `"login";r=5`, res.Header.Get("RateLimit"), "nothing has been spent")
	res = get(t, srv.URL+"?status=401")
	require.Equal(t, `"login";r=4;t=12`, res.Header.Get("RateLimit"), "and now it has")
	require.Len(t, seen, 9)
	require.False(t, seen[8].After)
	require.EqualValues(t, 4, seen[8].Remaining)

	require.Equal(t, "403 403 403 403 429", statuses(t, 5, srv.URL+"?status=403"))
	require.Equal(t, 429, get(t, srv.URL).StatusCode, "also for what would succeed")
	clock.pass(12 * time.Second)
	require.Equal(t, "200 200 401 429", statuses(t, 2, srv.URL)+" "+statuses(t, 2, srv.URL+"?status=401"))
}

func TestRefundStatus(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil,
		Rule{Key: ByIP(perAddress), Cost: 2, RefundStatus: ServerError},
		Rule{Key: ByHeader(perKey, "X-Key"), Cost: 3},
	)(http.HandlerFunc(status)))
	res := get(t, srv.URL+"?status=500", "X-Key", "k")
	require.Equal(t, 500, res.StatusCode)
	require.Equal(t, `"address";r=5, "key";r=2;t=36`, res.Header.Get("RateLimit"))
	require.EqualValues(t, 5, left(t, lim, local[perAddress]))
	require.EqualValues(t, 2, left(t, lim, local[perKey]))
	get(t, srv.URL+"?status=404", "X-Key", "other")
	require.EqualValues(t, 3, left(t, lim, local[perAddress]))
}

func TestLockOut(t *testing.T) {
	for name, ru := range map[string]Rule{
		"counted": {Key: ByIP(failures), LockOut: time.Hour, CountStatus: AuthFailed},
		"given back": {Key: ByIP(failures), LockOut: time.Hour,
			RefundStatus: func(status int) bool { return !AuthFailed(status) }},
	} {
		t.Run(name, func(t *testing.T) {
			lim, clock := newLimiter(t, nil)
			srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(status)))
			require.Equal(t, "401 401 401 401", statuses(t, 4, srv.URL+"?status=401"))
			require.Equal(t, "200 200 200", statuses(t, 3, srv.URL), "the last token is not used up by a success")
			res := get(t, srv.URL+"?status=401")
			require.Equal(t, 401, res.StatusCode)
			require.Equal(t, `"login";r=0;t=3600`, res.Header.Get("RateLimit"))
			clock.pass(59 * time.Minute)
			res = get(t, srv.URL)
			require.Equal(t, 429, res.StatusCode)
			require.Equal(t, "60", res.Header.Get("Retry-After"))
			clock.pass(61 * time.Second)
			require.Equal(t, 200, get(t, srv.URL).StatusCode)
		})
	}
}

// What is left is too little for another request like the one that leaves it.
func TestLockOutByCost(t *testing.T) {
	of := func(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }
	for name, tc := range map[string]struct {
		rule Rule
		want string
	}{
		"counted":         {Rule{Cost: 2, CountStatus: AuthFailed}, "401 401 429"},
		"spent before":    {Rule{Cost: 2}, "401 401 429"},
		"all at once":     {Rule{Cost: 3}, "401 429 429"},
		"cost of its own": {Rule{CostFunc: of(4)}, "401 429 429"},
		"costs nothing":   {Rule{CostFunc: of(0)}, "401 401 401"},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			tc.rule.Key, tc.rule.LockOut = ByIP(failures), time.Hour
			srv := serve(t, New(lim, nil, tc.rule)(http.HandlerFunc(status)))
			require.Equal(t, tc.want, statuses(t, 3, srv.URL+"?status=401"))
			b, err := lim.Bucket(local[failures])
			require.NoError(t, err)
			require.Equal(t, tc.rule.CostFunc == nil, !b.HeldUntil.IsZero(), "a smaller one might pass")
		})
	}
}

// A request that costs nothing has not spent the last token, and one in the shadow keeps nobody out.
func TestNoLockOut(t *testing.T) {
	for name, ru := range map[string]Rule{
		"costs nothing": {CostFunc: func(*http.Request) int64 { return 0 }},
		"shadow":        {Shadow: true, Cost: 5},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			if !ru.Shadow {
				_, err := lim.Spend(local[failures], 5)
				require.NoError(t, err)
			}
			ru.Key, ru.LockOut = ByIP(failures), time.Hour
			srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(status)))
			require.Equal(t, "200 200", statuses(t, 2, srv.URL))
			require.EqualValues(t, 0, left(t, lim, local[failures]))
			b, err := lim.Bucket(local[failures])
			require.NoError(t, err)
			require.Zero(t, b.HeldUntil)
		})
	}
}

// A request that was given back locks nobody out, though there is a line at its bucket by then.
func TestNoLockOutByARefund(t *testing.T) {
	queued := stint.PerMinute(5)
	queued.Queue = 10
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{failures: queued})
	ru := Rule{Key: ByIP(failures), LockOut: time.Hour, RefundStatus: Status(200)}
	srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		for range 2 {
			if _, err := lim.Reserve(local[failures], 4); err != nil {
				panic(err)
			}
		}
	})))
	require.Equal(t, 200, get(t, srv.URL).StatusCode)
	b, err := lim.Bucket(local[failures])
	require.NoError(t, err)
	require.Zero(t, b.HeldUntil)
}

// Who is the last of five, and the only one whose tokens were not given back by others meanwhile, has left enough.
func TestNoLockOutAfterOthersGaveBack(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	inside, right, wrong := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ru := Rule{Key: ByIP(failures), LockOut: time.Hour, RefundStatus: func(status int) bool { return !AuthFailed(status) }}
	srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		if r.URL.Path == "/wrong" {
			<-wrong
			w.WriteHeader(401)
			return
		}
		<-right
	})))
	statuses := make(chan int, 5)
	for _, path := range []string{"/right", "/right", "/right", "/right", "/wrong"} {
		go func() { statuses <- get(t, srv.URL+path).StatusCode }()
		<-inside
	}
	close(right)
	for range 4 {
		require.Equal(t, 200, <-statuses)
	}
	close(wrong)
	require.Equal(t, 401, <-statuses)
	require.EqualValues(t, 4, left(t, lim, local[failures]))
	require.Zero(t, heldUntil(t, lim, local[failures]))
}

// What comes back with time, while a slow handler is at it, keeps nobody from being locked out.
func TestLockOutOfTheSlow(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	ru := Rule{Key: ByIP(failures), Cost: 5, RefundStatus: Status(200), LockOut: time.Hour}
	srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		clock.pass(2 * time.Minute)
		w.WriteHeader(401)
	})))
	require.Equal(t, 401, get(t, srv.URL).StatusCode)
	require.NotZero(t, heldUntil(t, lim, local[failures]))
}

// A hold that somebody else has put there, and that is longer, stays.
func TestLockOutLeavesALongerHold(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	until := clock.now().Add(24 * time.Hour)
	ru := Rule{Key: ByIP(failures), Cost: 5, RefundStatus: Status(200), LockOut: time.Minute}
	srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := lim.Hold(local[failures], until); err != nil {
			panic(err)
		}
		w.WriteHeader(401)
	})))
	res := get(t, srv.URL)
	require.Equal(t, 401, res.StatusCode)
	require.Equal(t, `"login";r=0;t=86400`, res.Header.Get("RateLimit"))
	require.True(t, heldUntil(t, lim, local[failures]).Equal(until))
}

// A rule in the shadow that could not spend has nothing to give back, and keeps no other from it.
func TestShadowThatCouldNotSpend(t *testing.T) {
	for name, cost := range map[string]int64{"more than the burst": 6, "negative": -1} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			_, err := lim.Spend(local[failures], 3)
			require.NoError(t, err)
			meant := Rule{Key: ByIP(perAddress), RefundStatus: Status(200)}
			shadow := Rule{Key: ByIP(failures), Shadow: true, RefundStatus: Status(200), CostFunc: func(*http.Request) int64 { return cost }}
			srv := serve(t, New(lim, nil, meant, shadow)(http.HandlerFunc(status)))
			require.Equal(t, 200, get(t, srv.URL).StatusCode)
			require.EqualValues(t, 2, left(t, lim, local[failures]))
			require.EqualValues(t, 5, left(t, lim, local[perAddress]))
		})
	}
}

// A rule in the shadow that counts statuses denies nobody, and counts.
func TestShadowCountsStatus(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(failures), CountStatus: AuthFailed, Shadow: true})(http.HandlerFunc(status)))
	require.Equal(t, "401 401 401 401 401 401 401", statuses(t, 7, srv.URL+"?status=401"))
	require.EqualValues(t, 0, left(t, lim, local[failures]))
}

// What was not spent is not given back: by a rule in the shadow that would have denied, or by one that counts statuses and did not
// count this one.
func TestRefundsOnlyWhatWasSpent(t *testing.T) {
	for name, ru := range map[string]Rule{
		"would have denied": {Shadow: true, Cost: 3, RefundStatus: Status(200)},
		"not counted":       {CountStatus: AuthFailed, Cost: 3, RefundStatus: Status(200)},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			spent := int64(2)
			if ru.Shadow {
				spent = 3
			}
			_, err := lim.Spend(local[failures], spent)
			require.NoError(t, err)
			ru.Key = ByIP(failures)
			require.Equal(t, 200, get(t, serve(t, New(lim, nil, ru)(http.HandlerFunc(status))).URL).StatusCode)
			require.Equal(t, 5-spent, left(t, lim, local[failures]))
		})
	}
}

func TestShadow(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.PerHour(1), perKey: stint.PerHour(3)})
	var seen [][]Decision
	srv := serve(t, New(lim, &Options{Observers: []Observer{{Decisions: func(_ *http.Request, ds []Decision) { seen = append(seen, ds) }}}},
		Rule{Key: Shared(everyone), Shadow: true},
		Rule{Key: ByHeader(perKey, "X-Key")},
	)(http.HandlerFunc(status)))
	require.Equal(t, "200 200 200 429", statuses(t, 4, srv.URL, "X-Key", "k"))
	require.Equal(t, stint.LimitStats{Allowed: 1, Denied: 2}, lim.Stats().Limits[everyone])
	require.Len(t, seen, 4)
	shadow := seen[1][1]
	require.True(t, shadow.Shadow)
	require.False(t, shadow.Allowed)
	require.Equal(t, time.Hour, shadow.RetryAfter)
	require.Equal(t, "everyone", shadow.Label)

	res := get(t, srv.URL, "X-Key", "other")
	require.Equal(t, `"key";q=3;w=3600`, res.Header.Get("RateLimit-Policy"), "no header")
	require.Equal(t, 400, get(t, srv.URL).StatusCode, "no key")

	broken := Rule{Key: ByHeader(perNumber, "X-Key"), Shadow: true}
	var told error
	srv = serve(t, New(lim, &Options{Observers: errorsTo(func(err error) { told = err })}, broken)(http.HandlerFunc(status)))
	require.Equal(t, 200, get(t, srv.URL, "X-Key", "x").StatusCode)
	require.ErrorIs(t, told, stint.ErrInvalidID)
}

func TestRequestWithoutID(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	var told error
	opts := &Options{FailOpen: true, Observers: errorsTo(func(err error) { told = err })}
	srv := serve(t, New(lim, opts, Rule{Key: ByHeader(perNumber, "X-Key")})(http.HandlerFunc(status)))
	for _, fields := range [][]string{{}, {"X-Key", ""}, {"X-Key", "1", "X-Key", "2"}} {
		told = nil
		res := get(t, srv.URL, fields...)
		require.Equal(t, 400, res.problem(t).Status)
		require.ErrorIs(t, told, ErrNoID)
	}
	require.Equal(t, 400, get(t, srv.URL, "X-Key", "007").StatusCode, "two spellings would be two buckets")
	require.ErrorIs(t, told, stint.ErrInvalidID)
	require.Equal(t, 200, get(t, srv.URL, "X-Key", "7").StatusCode)
}

func TestLimiterFails(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	var told []error
	open := serve(t, New(lim, &Options{FailOpen: true, Observers: errorsTo(func(err error) { told = append(told, err) })},
		Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	undeclared := serve(t, New(lim, nil, Rule{Key: ByIP(99)})(http.HandlerFunc(status)))
	require.Equal(t, 503, get(t, undeclared.URL).StatusCode)
	require.NoError(t, lim.Close())
	res := get(t, srv.URL)
	require.Equal(t, 503, res.problem(t).Status)
	require.Empty(t, res.Header.Get("RateLimit"))
	require.Equal(t, 200, get(t, open.URL).StatusCode)
	require.Len(t, told, 1)
	require.ErrorIs(t, told[0], stint.ErrClosed)
	several := serve(t, New(lim, &Options{FailOpen: true}, Rule{Key: ByIP(perAddress)}, Rule{Key: Shared(everyone)})(http.HandlerFunc(status)))
	require.Equal(t, 200, get(t, several.URL).StatusCode)

	own := errors.New("own")
	key := func(*http.Request) (stint.Key, error) { return stint.Key{}, own }
	failing := serve(t, New(lim, nil, Rule{Key: key})(http.HandlerFunc(status)))
	require.Equal(t, 503, get(t, failing.URL).StatusCode)
}

func TestNested(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(4)})
	var inside []Decision
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inside = Decisions(r) })
	outer := New(lim, nil, Rule{Key: ByIP(perAddress)})
	inner := New(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(perKey, "X-Key")})
	srv := serve(t, outer(inner(h)))
	res := get(t, srv.URL, "X-Key", "k")
	require.EqualValues(t, 4, left(t, lim, local[perAddress]))
	require.Equal(t, `"address";r=4;t=12, "key";r=3;t=900`, res.Header.Get("RateLimit"))
	require.Len(t, inside, 2)
	require.Equal(t, "key", inside[1].Label)
	require.Equal(t, "200 200 200 429", statuses(t, 4, srv.URL, "X-Key", "k"))
	require.EqualValues(t, 0, left(t, lim, local[perAddress]))

	other, _ := newLimiter(t, nil) // is another matter
	srv = serve(t, New(other, nil, Rule{Key: ByIP(perAddress)})(New(lim, nil, Rule{Key: ByIP(perAddress)})(h)))
	require.Equal(t, 429, get(t, srv.URL).StatusCode)
	require.EqualValues(t, 4, left(t, other, local[perAddress]))

	require.Nil(t, Decisions(&http.Request{}))
}

// The decision of a rule in the shadow counts where one nested in it means it.
func TestNestedInShadow(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(2)})
	shadow, meant := Rule{Key: ByIP(perAddress), Shadow: true}, Rule{Key: ByIP(perAddress)}
	srv := serve(t, New(lim, nil, shadow)(New(lim, nil, meant)(http.HandlerFunc(status))))
	require.Equal(t, "200 200 429", statuses(t, 3, srv.URL))
	require.Equal(t, []string{"address"}, get(t, srv.URL).problem(t).Violated)

	// Of several that deny, it is the longest wait that counts.
	lim, _ = newLimiter(t, nil)
	byKey := ByHeader(perKey, "X-Key")
	for _, wait := range []time.Duration{time.Hour, 2 * time.Hour} {
		require.NoError(t, lim.Hold(local[perAddress], lim.Now().Add(wait)))
		require.NoError(t, lim.Hold(local[perKey], lim.Now().Add(3*time.Hour-wait)))
		srv = serve(t, New(lim, nil, shadow, Rule{Key: byKey, Shadow: true})(New(lim, nil, meant, Rule{Key: byKey})(http.HandlerFunc(status))))
		require.Equal(t, "7200", get(t, srv.URL, "X-Key", "k").Header.Get("Retry-After"))
	}

	lim, _ = newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(2)})
	srv = serve(t, New(lim, nil, shadow, meant)(http.HandlerFunc(status)))
	require.Equal(t, "200 200 429", statuses(t, 3, srv.URL))
}

// A rule in the shadow changes nothing for one that is meant, nested in it and of the same bucket: whatever it counts or locks out.
func TestShadowAroundOneThatIsMeant(t *testing.T) {
	for name, c := range map[string]struct {
		shadow, meant Rule
		status, want  string
		held          bool
	}{
		"counts":                 {Rule{CountStatus: AuthFailed}, Rule{}, "200", "200 200 200 200 200 429", false},
		"locks out":              {Rule{LockOut: time.Hour}, Rule{}, "200", "200 200 200 200 200 429", false},
		"the meant one counts":   {Rule{}, Rule{CountStatus: AuthFailed, LockOut: time.Hour}, "401", "401 401 401 401 401 429", true},
		"the meant one refunds":  {Rule{}, Rule{RefundStatus: Status(200)}, "200", "200 200 200 200 200 200", false},
		"the meant one costs 5":  {Rule{}, Rule{Cost: 5}, "200", "200 429 429 429 429 429", false},
		"the shadow one costs 5": {Rule{Cost: 5}, Rule{}, "200", "200 200 200 200 200 429", false},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			c.shadow.Key, c.shadow.Shadow, c.meant.Key = ByIP(failures), true, ByIP(failures)
			srv := serve(t, New(lim, nil, c.shadow)(New(lim, nil, c.meant)(http.HandlerFunc(status))))
			require.Equal(t, c.want, statuses(t, 6, srv.URL+"?status="+c.status))
			require.Equal(t, c.held, !heldUntil(t, lim, local[failures]).IsZero())
		})
	}

	lim, clock := newLimiter(t, nil)
	require.NoError(t, lim.Hold(local[failures], clock.now().Add(time.Hour)))
	require.NoError(t, lim.Hold(local[perAddress], clock.now().Add(2*time.Hour)))
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(failures), Shadow: true})(
		New(lim, nil, Rule{Key: ByIP(failures)}, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))))
	require.Equal(t, "7200", get(t, srv.URL).Header.Get("Retry-After"), "the longest wait")
}

func TestNewRefuses(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	require.PanicsWithValue(t, "httplimit: New: no limiter", func() { New(nil, nil) })
	require.Panics(t, func() { New(lim, nil, Rule{}) })
	require.Panics(t, func() { New(lim, nil, Rule{Key: ByIP(perAddress), Cost: -1}) })
	require.Panics(t, func() { New(lim, nil, Rule{Key: ByIP(perAddress), Pattern: "login"}) })
	require.Panics(t, func() { ClientAddress{IPv6Bits: 129}.ByIP(perAddress) })
}

func TestLimitsReplaced(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	get(t, srv.URL)
	require.NoError(t, lim.SetLimits(testLimits(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(100)})))
	require.Equal(t, `"address";q=100;w=60`, get(t, srv.URL).Header.Get("RateLimit-Policy"))
}

// Many clients at once are admitted exactly as many times as the limit says.
func TestManyAtOnce(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(50)})
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(perKey, "X-Key"), Optional: true})(
		http.HandlerFunc(status)))
	var mu sync.Mutex
	got := make(map[int]int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				res, err := http.Get(srv.URL)
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				mu.Lock()
				got[res.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, map[int]int{200: 50, 429: 110}, got)
}

// What a KeyFunc has read of the body, the handler still has.
func TestFormAsKey(t *testing.T) {
	byUser := func(r *http.Request) (stint.Key, error) { return perKey.Key(r.FormValue("user")), nil }
	lim, _ := newLimiter(t, nil)
	for _, pattern := range []string{"", "POST /login"} {
		srv := serve(t, New(lim, nil, Rule{Pattern: pattern, Key: byUser})(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(r.FormValue("password"))) })))
		res, err := http.PostForm(srv.URL+"/login", url.Values{"user": {"ada"}, "password": {"lovelace"}})
		require.NoError(t, err)
		require.Equal(t, "lovelace", read(t, res))
	}
	require.EqualValues(t, 3, left(t, lim, perKey.Key("ada")))
}

// So with files.
func TestFilesAsKey(t *testing.T) {
	byUser := func(r *http.Request) (stint.Key, error) {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			return stint.Key{}, err
		}
		return perKey.Key(r.FormValue("user")), nil
	}
	lim, _ := newLimiter(t, nil)
	for _, pattern := range []string{"", "POST /up/{id}"} {
		srv := serve(t, New(lim, nil, Rule{Pattern: pattern, Key: byUser})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f, header, err := r.FormFile("file")
			require.NoError(t, err)
			io.WriteString(w, header.Filename+" ")
			io.Copy(w, f)
		})))
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		require.NoError(t, w.WriteField("user", "ada"))
		part, err := w.CreateFormFile("file", "name")
		require.NoError(t, err)
		io.WriteString(part, "lovelace")
		require.NoError(t, w.Close())
		res, err := http.Post(srv.URL+"/up/7", w.FormDataContentType(), &body)
		require.NoError(t, err)
		require.Equal(t, "name lovelace", read(t, res))
	}
	require.EqualValues(t, 3, left(t, lim, perKey.Key("ada")))
}

// What fails after the handler is told, and stops nothing.
func TestLimiterFailsAfterTheHandler(t *testing.T) {
	for name, ru := range map[string]Rule{
		"spend":    {Key: ByIP(failures), CountStatus: Status(200)},
		"refund":   {Key: ByIP(failures), RefundStatus: Status(200)},
		"lock out": {Key: ByIP(failures), Cost: 5, LockOut: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			var told []error
			h := New(lim, &Options{Observers: errorsTo(func(err error) { told = append(told, err) })}, ru)(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { require.NoError(t, lim.Close()) }))
			require.Equal(t, 200, get(t, serve(t, h).URL).StatusCode)
			require.Len(t, told, 1)
			require.ErrorIs(t, told[0], stint.ErrClosed)
		})
	}
}

// Hooks may ask for the decisions, whenever they are called, and are told those that the request does not carry yet.
func TestHooksMayAsk(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	var asked []int
	ask := func(r *http.Request) { asked = append(asked, len(Decisions(r))) }
	opts := &Options{Observers: []Observer{
		{Decisions: func(r *http.Request, ds []Decision) { require.Len(t, ds, 1); ask(r) }},
		{Error: func(r *http.Request, err error) { ask(r) }},
	}}
	h := New(lim, opts,
		Rule{Key: ByIP(failures), CountStatus: Status(200)},
		Rule{Key: ByHeader(perNumber, "X-Key"), Shadow: true},
	)(http.HandlerFunc(status))
	require.Equal(t, 200, get(t, serve(t, h).URL, "X-Key", "x").StatusCode)
	require.Equal(t, []int{0, 0, 1}, asked) // the number that is none, the check, and what was spent after
	asked = nil
	outer := New(lim, nil, Rule{Key: ByIP(perAddress)})
	require.Equal(t, 200, get(t, serve(t, outer(h)).URL, "X-Key", "x").StatusCode)
	require.Equal(t, []int{1, 2, 2}, asked)
}

// What a request that was denied left behind is not another's.
func TestDeniedInTurn(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1), failures: stint.PerHour(1)})
	var told []string
	opts := &Options{Observers: []Observer{{Decisions: func(r *http.Request, ds []Decision) {
		for _, d := range ds {
			told = append(told, d.Label)
		}
	}}}}
	srv := serve(t, New(lim, opts,
		Rule{Pattern: "/both", Key: ByHeader(perKey, "X-Key")}, Rule{Pattern: "/both", Key: ByIP(failures)},
		Rule{Pattern: "/one", Key: ByHeader(perKey, "X-Key")})(http.HandlerFunc(status)))
	for range 3 {
		told = nil
		get(t, srv.URL+"/both", "X-Key", "k")
		require.Equal(t, []string{"key", "login"}, told)
		told = nil
		res := get(t, srv.URL+"/one", "X-Key", "k")
		require.Equal(t, 429, res.StatusCode)
		require.Equal(t, []string{"key"}, res.problem(t).Violated)
		require.Equal(t, []string{"key"}, told)
		told = nil
		require.Equal(t, 200, get(t, srv.URL+"/none").StatusCode)
		require.Empty(t, told)
	}
}

// What panics in nested middleware keeps nobody else from what the request carries.
func TestNestedPanics(t *testing.T) {
	oops := func() { panic("oops") }
	for name, tc := range map[string]struct {
		opts *Options
		rule Rule
	}{
		"key":           {nil, Rule{Key: func(*http.Request) (stint.Key, error) { oops(); return stint.Key{}, nil }}},
		"cost":          {nil, Rule{Key: ByIP(failures), CostFunc: func(*http.Request) int64 { oops(); return 1 }}},
		"partition key": {&Options{PartitionKey: func(stint.Key) []byte { oops(); return nil }}, Rule{Key: ByIP(failures)}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			h := New(lim, nil, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(
				New(lim, tc.opts, tc.rule)(http.HandlerFunc(status)))
			r := httptest.NewRequest("GET", "/", nil)
			require.PanicsWithValue(t, "oops", func() { h.ServeHTTP(httptest.NewRecorder(), r) })
			require.EqualValues(t, 5, left(t, lim, perAddress.Key("192.0.2.1")), "given back")
		})
	}
}

// Nor does what panics once the status is known.
func TestSettlingPanics(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	panics := false
	partition := func(stint.Key) []byte {
		if panics {
			panic("oops")
		}
		return nil
	}
	inner := New(lim, &Options{PartitionKey: partition}, Rule{Key: ByIP(failures), CountStatus: Status(200)})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panics = true }))
	h := New(lim, nil, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(inner)
	require.PanicsWithValue(t, "oops", func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) }) // or deadlocks
	require.EqualValues(t, 5, left(t, lim, perAddress.Key("192.0.2.1")), "given back")
}

// What is asked of a rule in nested middleware may ask what was decided before.
func TestRulesMayAsk(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	var asked []int
	ask := func(r *http.Request) { asked = append(asked, len(Decisions(r))) }
	rule := Rule{
		Key:      func(r *http.Request) (stint.Key, error) { ask(r); return failures.Key("a"), nil },
		CostFunc: func(r *http.Request) int64 { ask(r); return 1 },
	}
	h := New(lim, nil, Rule{Key: ByIP(perAddress)})(New(lim, nil, rule)(http.HandlerFunc(status)))
	require.Equal(t, 200, get(t, serve(t, h).URL).StatusCode)
	require.Equal(t, []int{1, 1}, asked)
}

// A request of the ordinary kind costs what docs/performance.md says.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerSecond(1_000_000_000)})
	_, err := lim.Spend(failures.Key("192.0.2.1"), 5)
	require.NoError(t, err)
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, most := range map[stint.Name]float64{perAddress: 5, failures: 6} {
		h := New(lim, nil, Rule{Key: ByIP(name)})(empty)
		r, w := httptest.NewRequest("GET", "/", nil), &discard{header: make(http.Header)}
		require.LessOrEqual(t, testing.AllocsPerRun(200, func() { clear(w.header); h.ServeHTTP(w, r) }), most, name)
	}
}

// The files that an upload is kept in meanwhile are gone once it has been served, whoever has read the form.
func TestUploadsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // on Windows
	files := func() int {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		return len(entries)
	}
	lim, _ := newLimiter(t, nil)
	kept := 0
	read := func(_ http.ResponseWriter, r *http.Request) {
		require.NoError(t, r.ParseMultipartForm(1))
		kept = files()
		panic("oops") // however it ends
	}
	denied := func(w http.ResponseWriter, r *http.Request, _ stint.Decision) { read(w, r) }
	for name, h := range map[string]http.Handler{
		"handler": New(lim, nil, Rule{Key: Shared(everyone)})(New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(read))),
		"waiting": New(lim, nil, Rule{Key: ByIP(failures), CountStatus: AuthFailed})(http.HandlerFunc(read)),
		"denied":  New(lim, &Options{Denied: denied}, Rule{Key: func(*http.Request) (stint.Key, error) { return perKey.Key("k"), nil }})(nil),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lim.Spend(perKey.Key("k"), 5)
			require.NoError(t, err)
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { recover() }()
				h.ServeHTTP(w, r)
			}))
			var body bytes.Buffer
			w := multipart.NewWriter(&body)
			part, err := w.CreateFormFile("file", "name")
			require.NoError(t, err)
			part.Write(make([]byte, 1000))
			require.NoError(t, w.Close())
			res, err := http.Post(srv.URL, w.FormDataContentType(), &body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			srv.Close()
			require.Equal(t, 1, kept)
			require.Zero(t, files())
		})
	}
}
