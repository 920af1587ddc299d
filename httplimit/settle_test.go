package httplimit

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// byKeyBound is a rule with Settle, whose bound is in the field X-Bound.
func byKeyBound(bound int64) Rule {
	return Rule{Key: ByHeader(perKey, "X-Key"), Cost: bound, Settle: true}
}

// The fields have the state after the true cost.
func TestSettle(t *testing.T) {
	for name, tc := range map[string]struct {
		held        bool
		cost, short int64
		field       string
	}{
		"less":                       {false, 1, 0, `"key";r=4;t=12`},
		"more than there is":         {false, 7, 2, `"key";r=0;t=12`},
		"held, so nothing more goes": {true, 4, 1, `"key";r=0;t=3600`},
	} {
		t.Run(name, func(t *testing.T) {
			lim, clock := newLimiter(t, nil)
			h := Middleware(lim, nil, byKeyBound(3))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if tc.held {
					require.NoError(t, errorOf(lim.Hold(perKey.Key("k"), clock.now().Add(time.Hour))))
				}
				short, err := rules.Settle(r.Context(), perKey, tc.cost)
				require.NoError(t, err)
				require.Equal(t, tc.short, short)
			}))
			require.Equal(t, tc.field, answerTo(h, withKey("k")).Header().Get("RateLimit"))
		})
	}
}

// A client that disconnects is settled by the deferred call.
func TestSettleDisconnected(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	settled := make(chan error, 1)
	srv := serve(t, Middleware(lim, nil, byKeyBound(5))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := int64(0)
		defer func() {
			_, err := rules.Settle(r.Context(), perKey, sent)
			settled <- err
		}()
		for sent < 2 {
			io.WriteString(w, "data: x\n\n")
			http.NewResponseController(w).Flush()
			sent++
		}
		<-r.Context().Done()
	})))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
	require.NoError(t, err)
	req.Header.Set("X-Key", "k")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	cancel()
	res.Body.Close()
	require.NoError(t, <-settled)
	require.EqualValues(t, 3, left(t, lim, perKey.Key("k")))
}

// SetStatus tells the rules the status that code around them writes.
func TestSetStatus(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	// A framework whose handlers return an error: it writes the status of the
	// error after the middleware has returned.
	framework := func(adapter bool, layers ...func(http.Handler) http.Handler) *httptest.ResponseRecorder {
		var h http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // it returns an error
			if adapter {
				SetStatus(r, 100) // no final status
				SetStatus(r, 401)
			}
		})
		for _, layer := range layers {
			h = layer(h)
		}
		return answerTo(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			w.WriteHeader(401)
		}), withKey(""))
	}
	counts := Middleware(lim, nil, Rule{Key: ByIP(failures), Count: AuthFailed})
	refunds := Middleware(lim, nil, Rule{Key: ByIP(perAddress), Refund: AuthFailed})
	for adapter, want := range map[bool][2]int64{false: {5, 4}, true: {4, 5}} { // left
		require.NoError(t, lim.Reset(ofClient["login"], ofClient["address"]))
		w := framework(adapter, counts, refunds)
		require.Equal(t, 401, w.Code)
		require.Equal(t, want, [2]int64{left(t, lim, ofClient["login"]), left(t, lim, ofClient["address"])})
		if adapter {
			require.Equal(t, 2, strings.Count(w.Header().Get("RateLimit"), ";r="))
			require.Contains(t, w.Header().Get("RateLimit"), `"login";r=4;`)
		}
	}
	SetStatus(httptest.NewRequest("GET", "/", nil), 401) // not through middleware: nothing happens
}

// spending is a Limiter whose second call takes a while.
type spending struct {
	stint.Decider
	begun chan struct{}
	calls *atomic.Int64
}

func (s spending) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if s.calls.Add(1) == 2 {
		close(s.begun)
		for range 10_000 {
			runtime.Gosched()
		}
	}
	return s.Decider.Do(ctx, reqs, ds)
}

// The header is not written while a SetStatus in another goroutine changes it, as
// in a handler that http.TimeoutHandler answers for.
func TestSetStatusBeside(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	slow := spending{lim, make(chan struct{}), new(atomic.Int64)}
	var set sync.WaitGroup
	h := Middleware(slow, nil, Rule{Key: ByIP(failures), Count: AuthFailed})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			set.Go(func() { SetStatus(r, http.StatusUnauthorized) })
			<-slow.begun
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
	w := answerTo(h, withKey(""))
	set.Wait()
	require.Equal(t, `"login";r=4;t=12`, w.Result().Header.Get("RateLimit"))
}
