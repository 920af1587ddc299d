package httplimit

import (
	"context"
	"math/rand/v2"
	"net/http"
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

// requireNoneInFlight: no place of a Limiter is taken.
func requireNoneInFlight(t testing.TB, lim stint.Decider) {
	t.Helper()
	for left := range rules.InFlightOf(lim) {
		t.Errorf("%+v is left", left)
	}
}

// blocking is a handler that stays until release is closed.
type blocking struct {
	entered chan struct{}
	release chan struct{}
}

func newBlocking() *blocking {
	return &blocking{make(chan struct{}, 1000), make(chan struct{})}
}

func (b *blocking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.entered <- struct{}{}
	<-b.release
	status(w, r)
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
				var seen []rules.Decision
				inner := newBlocking()
				h := Middleware(lim, &Options{Headers: tc.headers, Observers: []Observer{{
					Decisions: func(_ *http.Request, ds []rules.Decision) { seen = append(seen, ds...) },
				}}}, Rule{Key: ByHeader(perNumber, "X-Number"), Optional: true}, Rule{Key: byKey, InFlight: 2})(inner)
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() { answerTo(h, withKey("k")) })
					<-inner.entered
				}
				spent := left(t, lim, perKey.Key("k"))
				seen = nil
				w := answerTo(h, withKey("k"))
				require.Equal(t, 429, w.Code)
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				for field, want := range tc.want {
					require.Equal(t, want, w.Header().Get(field), field)
				}
				require.Contains(t, w.Body.String(), `"violated-policies":["key"]`)
				require.Contains(t, w.Body.String(), "at the same time")
				require.Equal(t, spent, left(t, lim, perKey.Key("k")), "it spends nothing")
				require.Len(t, seen, 1)
				require.Equal(t, rules.InFlight{Limit: 2, Running: 2, Denied: true}, seen[0].InFlight)
				require.False(t, seen[0].Allowed)
				close(inner.release)
				wg.Wait()
				requireNoneInFlight(t, lim)
				require.Equal(t, 200, answerTo(h, withKey("k")).Code)
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
			requireNoneInFlight(t, lim)
		}
		partition := Middleware(lim, &Options{PartitionKey: func(stint.Key) []byte { panic("x") }},
			Rule{Key: byKey, InFlight: 1})(http.HandlerFunc(status))
		require.Panics(t, func() { answerTo(partition, withKey("k")) })
		requireNoneInFlight(t, lim)
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
	requireNoneInFlight(t, lim)
}
