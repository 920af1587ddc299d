package httplimit

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

// requireRunning: so many requests run, of the key k.
func requireRunning(t *testing.T, lim stint.Decider, want int64) {
	t.Helper()
	running := int64(0)
	for found := range rules.InFlightOf(lim) {
		require.Equal(t, "k", found.Key.ID)
		running += found.Running
	}
	require.Equal(t, want, running)
}

func TestInFlight(t *testing.T) {
	byKey := ByHeader(perKey, "X-Key")
	t.Run("denial", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		for name, tc := range map[string]struct {
			headers Headers
			want    map[string]string
		}{
			"standard": {Standard, map[string]string{
				"RateLimit-Policy": `"key";q=2;qu="concurrent-requests"`, "RateLimit": `"key";r=0;t=1`}},
			"x": {XRateLimit, map[string]string{
				"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}},
			"none": {NoHeaders, map[string]string{"RateLimit": "", "RateLimit-Policy": ""}},
		} {
			t.Run(name, func(t *testing.T) {
				require.NoError(t, lim.Reset(perKey.Key("k")))
				var h http.Handler
				var denied *httptest.ResponseRecorder
				h = Middleware(lim, &Options{Headers: tc.headers}, Rule{Key: byKey, InFlight: 2})(http.HandlerFunc(
					func(http.ResponseWriter, *http.Request) {
						if w := answerTo(h, withKey("k")); w.Code == 429 {
							requireRunning(t, lim, 2)
							denied = w
						}
					}))
				require.Equal(t, 200, answerTo(h, withKey("k")).Code)
				requireRunning(t, lim, 0)
				require.EqualValues(t, 3, left(t, lim, perKey.Key("k")), "a denial spends nothing")
				require.Equal(t, "1", denied.Header().Get("Retry-After"))
				for field, want := range tc.want {
					require.Equal(t, want, denied.Header().Get(field), field)
				}
				require.Contains(t, denied.Body.String(), `"violated-policies":["key"]`)
				require.Contains(t, denied.Body.String(), "at the same time")
			})
		}
	})
	t.Run("an Unlimited Name has nothing but places", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		h := Middleware(lim, nil, Rule{Key: ByHeader(off, "X-Key"), InFlight: 3})(http.HandlerFunc(status))
		w := answerTo(h, withKey("k"))
		require.Equal(t, `"off";q=3;qu="concurrent-requests"`, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, `"off";r=2;t=1`, w.Header().Get("RateLimit"))
	})
	t.Run("however the handler ends", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.Unlimited})
		h := Middleware(lim, nil, Rule{Key: byKey, InFlight: 1})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("End") {
			case "panic":
				panic("x")
			case "abort":
				panic(http.ErrAbortHandler)
			case "goexit":
				runtime.Goexit()
			}
		}))
		for _, end := range []string{"panic", "abort", "goexit", ""} {
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { recover() }()
				r := withKey("k")
				r.Header.Set("End", end)
				answerTo(h, r)
			})
			wg.Wait()
			requireRunning(t, lim, 0)
		}
		partition := Middleware(lim, &Options{PartitionKey: func(stint.Key) []byte { panic("x") }},
			Rule{Key: byKey, InFlight: 1})(http.HandlerFunc(status))
		require.Panics(t, func() { answerTo(partition, withKey("k")) })
		requireRunning(t, lim, 0)
	})
}

// However many ask, and however they end, no more run than may, and every place
// comes back once.
func TestInFlightStorm(t *testing.T) {
	t.Parallel()
	const callers, most = 64, 8
	lim := newMemLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerSecond(1000)}, nil)
	var inside, served atomic.Int64
	h := Middleware(lim, nil,
		Rule{Key: ByHeader(off, "X-Key"), InFlight: most, InFlightWait: time.Millisecond, InFlightQueue: 10},
		Rule{Key: ByHeader(perKey, "X-Key"), InFlight: 2 * most, Refund: ServerError},
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := inside.Add(1); n > most {
			t.Errorf("%d inside", n)
		}
		defer inside.Add(-1)
		switch served.Add(1) % 8 {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			runtime.Gosched()
		case 2:
			w.WriteHeader(500)
		}
	}))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range testlength.Of(1_000_000, 20_000) / callers {
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(4) == 0 {
					go cancel()
				}
				func() {
					defer func() { recover() }()
					w := answerTo(h, withKey("k").WithContext(ctx))
					require.True(t, w.Code != 429 || w.Body.Len() > 100)
				}()
				cancel()
			}
		})
	}
	wg.Wait()
	require.NotZero(t, served.Load())
	requireRunning(t, lim, 0)
}

// A client sees nothing of the bound of a Shadow rule, even if another rule has the
// same key.
func TestShadowInFlight(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1)})
	for _, name := range []stint.Name{perKey, off} { // denied, and unlimited
		key := ByHeader(name, "X-Key")
		var inner *httptest.ResponseRecorder
		var h http.Handler
		seen := &Options{Observers: []Observer{{Decisions: func(_ *http.Request, ds []rules.Decision) {
			require.Equal(t, rules.InFlight{Limit: 1, Running: ds[0].InFlight.Running, Denied: inner != nil, Shadow: true},
				ds[0].InFlight)
		}}}}
		h = Middleware(lim, seen, Rule{Key: key}, Rule{Key: key, InFlight: 1, Shadow: true})(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) {
				if inner == nil { // another request comes while this one runs
					inner = httptest.NewRecorder()
					h.ServeHTTP(inner, withKey("x"))
				}
			}))
		answerTo(h, withKey("x"))
		require.NotContains(t, inner.Header().Get("RateLimit-Policy"), "concurrent", name)
		require.NotContains(t, inner.Body.String(), "at the same time", name)
	}
}
