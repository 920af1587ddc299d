package httplimit

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestNew(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	require.PanicsWithValue(t, "httplimit: New: no limiter", func() { New(nil, nil) })
	require.Panics(t, func() { New(lim, nil, Rule{}) })
	require.Panics(t, func() { New(lim, nil, Rule{Key: ByIP(perAddress), Cost: -1}) })
	require.Panics(t, func() { New(lim, nil, Rule{Key: ByIP(perAddress), Pattern: "login"}) })
	require.Panics(t, func() { ClientAddress{IPv6Bits: 129}.ByIP(perAddress) })
}

func TestMiddleware(t *testing.T) {
	t.Run("one rule", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		url := limited(t, lim, Rule{Key: ByIP(perAddress)})
		res := get(t, url)
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, `"address";q=5;w=60`, res.Header.Get("RateLimit-Policy"))
		require.Equal(t, `"address";r=4;t=12`, res.Header.Get("RateLimit"))
		require.Empty(t, res.Header.Get("Retry-After"))

		require.Equal(t, "200 200 200 200 429", statuses(t, 5, url))
		clock.pass(10500 * time.Millisecond)
		res = get(t, url)
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
		require.Equal(t, "200 429", statuses(t, 2, url))
		clock.pass(12*time.Second - 1)
		require.Equal(t, "1", get(t, url).Header.Get("Retry-After"), "never 0")
	})
	t.Run("rules spend together or not at all", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.PerHour(2)})
		url := limited(t, lim, Rule{Key: ByIP(perAddress)}, Rule{Key: Shared(everyone)},
			Rule{Key: ByHeader(off, "X-Key"), Optional: true})
		res := get(t, url, "X-Key", "k")
		require.Equal(t, `"address";q=5;w=60, "everyone";q=2;w=3600`, res.Header.Get("RateLimit-Policy"))
		require.Equal(t, `"address";r=4;t=12, "everyone";r=1;t=1800`, res.Header.Get("RateLimit"))
		require.Equal(t, "200 429 429", statuses(t, 3, url))
		require.EqualValues(t, 3, left(t, lim, local[perAddress]))

		res = get(t, url)
		require.Equal(t, []string{"everyone"}, res.problem(t).Violated)
		require.Equal(t, `"address";r=3;t=12, "everyone";r=0;t=1800`, res.Header.Get("RateLimit"))
		spend(t, lim, local[perAddress], 3)
		require.Equal(t, []string{"address", "everyone"}, get(t, url).problem(t).Violated)
	})
	t.Run("limits replaced", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		url := limited(t, lim, Rule{Key: ByIP(perAddress)})
		get(t, url)
		require.NoError(t, lim.SetLimits(testLimits(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(100)})))
		require.Equal(t, `"address";q=100;w=60`, get(t, url).Header.Get("RateLimit-Policy"))
	})
	t.Run("many at once", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(50)})
		url := limited(t, lim, Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(perKey, "X-Key"), Optional: true})
		var mu sync.Mutex
		got := make(map[int]int)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					res, err := http.Get(url)
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
	})
}

func TestCost(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	cost := func(r *http.Request) int64 { return int64(len(r.URL.Query().Get("n"))) }
	url, errs := failing(t, lim, Options{}, Rule{Key: ByIP(perAddress), CostFunc: cost})
	require.Equal(t, 200, get(t, url).StatusCode)
	require.EqualValues(t, 5, left(t, lim, local[perAddress]))
	require.Equal(t, 200, get(t, url+"?n=xxxx").StatusCode)
	require.EqualValues(t, 1, left(t, lim, local[perAddress]))
	require.Equal(t, "24", get(t, url+"?n=xxx").Header.Get("Retry-After"))
	require.Empty(t, *errs)

	for name, tc := range map[string]struct {
		opts   Options
		cost   int64
		detail string
		want   error
	}{
		"over the burst":       {Options{}, 6, "more than its limit ever admits", stint.ErrCostOverBurst},
		"negative":             {Options{}, -1, "less than nothing", stint.ErrNegativeCost},
		"negative, fails open": {Options{FailOpen: true}, -1, "less than nothing", stint.ErrNegativeCost},
	} {
		t.Run(name, func(t *testing.T) {
			url, errs := failing(t, lim, tc.opts, Rule{Key: ByIP(perAddress), CostFunc: costing(tc.cost)})
			res := get(t, url)
			require.Equal(t, 400, res.StatusCode)
			require.Contains(t, res.problem(t).Detail, tc.detail)
			require.Len(t, *errs, 1)
			require.ErrorIs(t, (*errs)[0], tc.want)
		})
	}
}

func TestErrors(t *testing.T) {
	t.Run("no id", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		url, errs := failing(t, lim, Options{FailOpen: true}, Rule{Key: ByHeader(perNumber, "X-Key")})
		for _, fields := range [][]string{{}, {"X-Key", ""}, {"X-Key", "1", "X-Key", "2"}} {
			require.Equal(t, 400, get(t, url, fields...).problem(t).Status)
			require.ErrorIs(t, last(*errs), ErrNoID)
		}
		require.Equal(t, 400, get(t, url, "X-Key", "007").StatusCode, "two spellings would be two buckets")
		require.ErrorIs(t, last(*errs), stint.ErrInvalidID)
		require.Len(t, *errs, 4)
		require.Equal(t, 200, get(t, url, "X-Key", "7").StatusCode)
	})
	t.Run("of the program", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		key := func(*http.Request) (stint.Key, error) { return stint.Key{}, errors.New("own") }
		for _, f := range []KeyFunc{ByIP(99), key} {
			require.Equal(t, 503, get(t, limited(t, lim, Rule{Key: f})).StatusCode)
		}
	})
	t.Run("of the limiter", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		require.NoError(t, lim.Close())
		res := get(t, limited(t, lim, Rule{Key: ByIP(perAddress)}))
		require.Equal(t, 503, res.problem(t).Status)
		require.Empty(t, res.Header.Get("RateLimit"))
		url, errs := failing(t, lim, Options{FailOpen: true}, Rule{Key: ByIP(perAddress)}, Rule{Key: Shared(everyone)})
		require.Equal(t, 200, get(t, url).StatusCode)
		require.Len(t, *errs, 1)
		require.ErrorIs(t, (*errs)[0], stint.ErrClosed)
	})
	for name, ru := range map[string]Rule{
		"after the status: spend":    {Key: ByIP(failures), CountStatus: Status(200)},
		"after the status: refund":   {Key: ByIP(failures), RefundStatus: Status(200)},
		"after the status: lock out": {Key: ByIP(failures), Cost: 5, LockOut: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			var errs []error
			h := New(lim, &Options{Observers: errorsTo(&errs)}, ru)(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { require.NoError(t, lim.Close()) }))
			require.Equal(t, 200, get(t, serve(t, h).URL).StatusCode)
			require.Len(t, errs, 1)
			require.ErrorIs(t, errs[0], stint.ErrClosed)
		})
	}
}

func TestObservers(t *testing.T) {
	// Functions of the user may call Decisions, which has the decisions so far.
	t.Run("call Decisions", func(t *testing.T) {
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
		require.Equal(t, []int{0, 0, 1}, asked) // the error, the check, and the spend
		asked = nil
		outer := New(lim, nil, Rule{Key: ByIP(perAddress)})
		require.Equal(t, 200, get(t, serve(t, outer(h)).URL, "X-Key", "x").StatusCode)
		require.Equal(t, []int{1, 2, 2}, asked)

		asked = nil
		rule := Rule{
			Key:      func(r *http.Request) (stint.Key, error) { ask(r); return failures.Key("a"), nil },
			CostFunc: func(r *http.Request) int64 { ask(r); return 1 },
		}
		require.Equal(t, 200, get(t, serve(t, outer(New(lim, nil, rule)(http.HandlerFunc(status)))).URL).StatusCode)
		require.Equal(t, []int{1, 1}, asked)
		require.Nil(t, Decisions(&http.Request{}))
	})
	t.Run("two, in order", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1), failures: stint.PerHour(1)})
		var told []string
		observe := func(prefix string) Observer {
			return Observer{Decisions: func(_ *http.Request, ds []Decision) {
				for _, d := range ds {
					told = append(told, prefix+d.Label)
				}
			}}
		}
		srv := serve(t, New(lim, &Options{Observers: []Observer{observe("1 "), {}, observe("2 ")}},
			Rule{Pattern: "/both", Key: ByHeader(perKey, "X-Key")}, Rule{Pattern: "/both", Key: ByIP(failures)},
			Rule{Pattern: "/one", Key: ByHeader(perKey, "X-Key")})(http.HandlerFunc(status)))
		for range 3 { // a denied request leaves nothing to the next one
			told = nil
			get(t, srv.URL+"/both", "X-Key", "k")
			require.Equal(t, []string{"1 key", "1 login", "2 key", "2 login"}, told)
			told = nil
			res := get(t, srv.URL+"/one", "X-Key", "k")
			require.Equal(t, 429, res.StatusCode)
			require.Equal(t, []string{"key"}, res.problem(t).Violated)
			require.Equal(t, []string{"1 key", "2 key"}, told)
			told = nil
			require.Equal(t, 200, get(t, srv.URL+"/none").StatusCode)
			require.Empty(t, told)
		}
	})
}

// A function that panics leaves the decisions of the request unlocked.
func TestPanics(t *testing.T) {
	oops, panics := func() { panic("oops") }, true
	partition := &Options{PartitionKey: func(stint.Key) []byte {
		if panics {
			oops()
		}
		return nil
	}}
	for name, tc := range map[string]struct {
		opts   *Options
		rule   Rule
		before bool // panics before the handler
	}{
		"key":                            {nil, Rule{Key: func(*http.Request) (stint.Key, error) { oops(); return stint.Key{}, nil }}, true},
		"cost":                           {nil, Rule{Key: ByIP(failures), CostFunc: func(*http.Request) int64 { oops(); return 1 }}, true},
		"partition key":                  {partition, Rule{Key: ByIP(failures)}, true},
		"partition key after the status": {partition, Rule{Key: ByIP(failures), CountStatus: Status(200)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			panics = tc.before
			handler := func(http.ResponseWriter, *http.Request) { panics = true }
			h := New(lim, nil, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(
				New(lim, tc.opts, tc.rule)(http.HandlerFunc(handler)))
			require.PanicsWithValue(t, "oops", func() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			})
			require.EqualValues(t, 5, left(t, lim, perAddress.Key("192.0.2.1")), "refunded")
		})
	}
}

// docs/performance.md has these figures.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerSecond(1_000_000_000)})
	spend(t, lim, failures.Key("192.0.2.1"), 5)
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, most := range map[stint.Name]float64{perAddress: 4, failures: 0} {
		h := New(lim, nil, Rule{Key: ByIP(name)})(empty)
		r, w := httptest.NewRequest("GET", "/", nil), &discard{header: make(http.Header)}
		require.LessOrEqual(t, testing.AllocsPerRun(200, func() { clear(w.header); h.ServeHTTP(w, r) }), most, name)
	}
}
