package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

var quiet = log.New(io.Discard, "", 0)

var hostKey = perKey.Key("a") // of http://a

// send sends a request with a body, which must be closed if it fails.
func send(t testing.TB, ctx context.Context, tr *Transport, url string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", url, nil)
	require.NoError(t, err)
	b := &body{}
	r.Body = b
	res, err := tr.RoundTrip(r)
	if err != nil {
		require.True(t, b.closed, err)
		return nil, err
	}
	require.Same(t, r, res.Request)
	require.NoError(t, res.Body.Close())
	return res, nil
}

type body struct{ closed bool }

func (b *body) Read([]byte) (int, error) { return 0, io.EOF }
func (b *body) Close() error             { b.closed = true; return nil }

// quotaError returns the *rules.QuotaError of a request that was not sent.
func quotaError(t testing.TB, err error) *rules.QuotaError {
	t.Helper()
	var quota *rules.QuotaError
	require.ErrorAs(t, err, &quota)
	return quota
}

// roundTrip is a Base without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answered returns a response. fields are names and values.
func answered(r *http.Request, status int, fields ...string) *http.Response {
	if r.Body != nil {
		r.Body.Close()
	}
	res := &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}
	for i := 0; i < len(fields); i += 2 {
		res.Header.Add(fields[i], fields[i+1])
	}
	return res
}

// answering returns a Base that answers with these statuses in turn. The last one
// stays.
func answering(statuses ...int) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		status := statuses[0]
		if len(statuses) > 1 {
			statuses = statuses[1:]
		}
		return answered(r, status), nil
	}
}

// sendAll sends n requests.
func sendAll(t testing.TB, tr *Transport, n int) {
	t.Helper()
	for range n {
		_, err := send(t, t.Context(), tr, "http://a")
		require.NoError(t, err)
	}
}

// inBubble runs a test in a bubble of synctest, with a Transport that waits.
func inBubble(t *testing.T, limit stint.Limit, f func(t *testing.T, lim *stint.Limiter, tr *Transport)) {
	synctest.Test(t, func(t *testing.T) {
		// Without a flush each second, because the clock of the bubble goes on for hours.
		lim := newMemLimiter(t, map[stint.Name]stint.Limit{perKey: limit}, &stint.Options{FlushInterval: 1000 * time.Hour})
		f(t, lim, &Transport{Limiter: lim, Key: ByHost(perKey), Wait: true})
	})
}

func TestTransport(t *testing.T) {
	limit := stint.PerHour(2)
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perKey: limit})
	tr := &Transport{Limiter: lim, Key: ByHost(perKey), Base: answering(404)}
	sendAll(t, tr, 2)
	clock.pass(20 * time.Minute)
	_, err := send(t, t.Context(), tr, "http://a")
	require.Equal(t, &rules.QuotaError{Key: hostKey, Limit: limit, RetryAfter: 10 * time.Minute}, quotaError(t, err))
	require.EqualError(t, err, "stint: the quota is used up or held: try again in 10m0s")
	clock.pass(10 * time.Minute)
	sendAll(t, tr, 1)
}

// OnWait has the time until a request's own turn, behind those that wait already.
func TestTransportOnWait(t *testing.T) {
	inBubble(t, stint.PerMinute(1), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
		waits := make(chan string, 3)
		tr.Base = answering(200)
		tr.OnWait = func(r *http.Request, wait time.Duration) { waits <- fmt.Sprint(r.URL, " ", wait) }
		sendAll(t, tr, 1)
		require.Empty(t, waits, "it has its tokens")
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := send(t, t.Context(), tr, "http://a")
				done <- err
			}()
			synctest.Wait()
		}
		require.Equal(t, []string{"http://a 1m0s", "http://a 2m0s"}, []string{<-waits, <-waits})
		soon, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := send(t, soon, tr, "http://a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, waits, "it does not wait")
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	})
}

func TestTransportErrors(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.Blocked})
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	ofHost, ofBlocked := ByHost(perKey), func(*http.Request) (stint.Key, error) { return everyone.Key(""), nil }
	for name, tc := range map[string]struct {
		ctx  context.Context
		lim  stint.Decider
		key  KeyFunc
		url  string
		want error
	}{
		"no host":           {t.Context(), lim, ofHost, "file:///x", rules.ErrNoID},
		"undeclared":        {t.Context(), lim, ByHost(99), "http://a", stint.ErrUnknownName},
		"over the burst":    {t.Context(), lim, ofHost, "http://a", stint.ErrCostOverBurst},
		"cancelled":         {ctx, lim, ofHost, "http://a", gone},
		"blocked":           {t.Context(), lim, ofBlocked, "http://a", stint.ErrBlocked},
		"neither":           {t.Context(), nil, nil, "http://a", nil},
		"without a Limiter": {t.Context(), nil, ofHost, "http://a", nil},
		"without a Key":     {t.Context(), lim, nil, "http://a", nil},
	} {
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", Wait ", wait), func(t *testing.T) {
				_, err := send(t, tc.ctx, &Transport{Limiter: tc.lim, Key: tc.key, Cost: costing(6), Wait: wait}, tc.url)
				switch tc.want {
				case nil:
					require.ErrorContains(t, err, " needs a ")
				case stint.ErrBlocked:
					require.Equal(t, stint.Blocked, quotaError(t, err).Limit)
					require.Equal(t, everyone.Key(""), quotaError(t, err).Key)
					require.EqualError(t, err, "stint: the limit blocks all requests")
					fallthrough
				default:
					require.ErrorIs(t, err, tc.want)
				}
				require.EqualValues(t, 5, left(t, lim, hostKey), "nothing is spent")
			})
		}
	}
	t.Run("of a hold", func(t *testing.T) {
		var told error
		tr := &Transport{Limiter: lim, Key: ByHost(perKey), OnError: func(_ *http.Request, err error) { told = err },
			Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				return answered(r, 429, "Retry-After", "9"), lim.Close()
			})}
		res, err := send(t, t.Context(), tr, "http://b")
		require.NoError(t, err)
		require.Equal(t, 429, res.StatusCode)
		require.ErrorIs(t, told, stint.ErrClosed)
		tr.CloseIdleConnections()
	})
}

func TestTransportWait(t *testing.T) {
	each := stint.PerHour(60).WithBurst(1)
	t.Run("in line", func(t *testing.T) {
		inBubble(t, each, func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			start := time.Now()
			var sent []time.Duration
			tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				sent = append(sent, time.Since(start))
				if len(sent) == 3 {
					return answered(r, 200, "RateLimit", `"day";r=0;t=600`), nil
				}
				return answered(r, 200), nil
			})
			sendAll(t, tr, 5)
			require.Equal(t, []time.Duration{0, time.Minute, 2 * time.Minute, 12 * time.Minute, 13 * time.Minute}, sent)

			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := send(t, ctx, tr, "http://a")
			require.Equal(t, time.Minute, quotaError(t, err).RetryAfter)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 13*time.Minute, time.Since(start), "it fails at once")

			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(10*time.Second, cancel)
			_, err = send(t, ctx, tr, "http://a")
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, errors.As(err, new(*rules.QuotaError)))
			d, err := lim.Check(hostKey, 1)
			require.NoError(t, err)
			require.Equal(t, 50*time.Second, d.RetryAfter, "the token is returned")
			require.Len(t, sent, 5)
		})
	})
	t.Run("full queue", func(t *testing.T) {
		limit := stint.Limit{Burst: 1, Count: 1, Period: time.Minute, Queue: 1}
		inBubble(t, limit, func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			tr.Base = answering(200)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { sendAll(t, tr, 1) })
			}
			synctest.Wait() // one is sent, one is in line
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for _, ctx := range []context.Context{t.Context(), ctx} {
				_, err := send(t, ctx, tr, "http://a")
				quota := quotaError(t, err)
				require.ErrorIs(t, err, stint.ErrQueueFull)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, 2*time.Minute, quota.RetryAfter)
				require.Equal(t, limit, quota.Limit)
			}
			wg.Wait()
		})
	})
}

// A request's tokens are returned only if no server can have seen it.
func TestTransportRefund(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	srv := httptest.NewUnstartedServer(http.HandlerFunc(abort))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = quiet // of the handshake
	srv.StartTLS()
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	broken := errors.New("broken")
	late := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	failing := func(err error) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) { r.Body.Close(); return nil, err })
	}
	connected := func(err error) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(r.Context())
			trace.GetConn("a:80")
			trace.GotConn(httptrace.GotConnInfo{Reused: true})
			return failing(err).RoundTrip(r)
		})
	}
	for name, tc := range map[string]struct {
		url  string
		base http.RoundTripper
		text string
		left int64
	}{
		"refused": {"http://127.0.0.1:0", nil, "connect: ", 5}, // at which nothing can listen
		"cancelled while dialling": {"http://a", &http.Transport{DialContext: func(ctx context.Context, _,
			_ string) (net.Conn, error) {
			cancel()
			<-ctx.Done()
			return nil, ctx.Err()
		}}, "context canceled", 5},
		"certificate":      {srv.URL, &http.Transport{}, "certificate", 5},
		"Base cannot dial": {"http://a", failing(late), "timeout", 5},
		"sent over HTTP/2": {srv.URL, srv.Client().Transport, "stream error", 2},
		"dialled again":    {"http://a", connected(late), "timeout", 2}, // after the kept connection was closed
		"Base fails":       {"http://a", failing(broken), "broken", 2},
		"unknown scheme":   {"gopher://a", nil, "unsupported protocol scheme", 2},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			tr := &Transport{Limiter: lim, Key: ByHost(perKey), Cost: costing(3), Base: tc.base}
			ctx := ctx
			if tc.text != context.Canceled.Error() {
				ctx = context.WithoutCancel(ctx)
			}
			_, err := send(t, ctx, tr, tc.url)
			require.ErrorContains(t, err, tc.text)
			u, urlErr := url.Parse(tc.url)
			require.NoError(t, urlErr)
			require.Equal(t, tc.left, left(t, lim, perKey.Key(u.Host)))
		})
	}
	t.Run("two quotas", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		inner := &Transport{Limiter: lim, Key: Single(everyone), Base: answering(200)}
		outer := &Transport{Limiter: lim, Key: ByHost(perKey), Base: inner}
		sendAll(t, outer, 1)
		require.EqualValues(t, 4, left(t, lim, hostKey))
		require.EqualValues(t, 4, left(t, lim, everyone.Key("")))
		spend(t, lim, everyone.Key(""), 4)
		_, err := send(t, t.Context(), outer, "http://a")
		require.Equal(t, everyone.Key(""), quotaError(t, err).Key)
		require.EqualValues(t, 4, left(t, lim, hostKey), "what was not sent costs nothing")
		ofX := func(*http.Request) (stint.Key, error) { return failures.Key("x"), nil }
		outermost := &Transport{Limiter: lim, Key: ofX, Base: outer}
		_, err = send(t, t.Context(), outermost, "http://a")
		quotaError(t, err)
		require.EqualValues(t, 4, left(t, lim, hostKey), "of three quotas, too")
		require.EqualValues(t, 5, left(t, lim, failures.Key("x")))

		clock.pass(time.Hour)
		tries := 0
		inner.Base = failing(broken)
		retrying := roundTrip(func(r *http.Request) (*http.Response, error) {
			tries++
			if trace := httptrace.ContextClientTrace(r.Context()); tries == 1 {
				trace.GotConn(httptrace.GotConnInfo{}) // sent, and lost
			}
			return inner.RoundTrip(r)
		})
		spend(t, lim, everyone.Key(""), 5)
		outer.Base = retrying
		_, err = send(t, t.Context(), outer, "http://a")
		quotaError(t, err)
		require.EqualValues(t, 4, left(t, lim, hostKey), "a server may have seen the first try")
	})
	t.Run("after a while", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		tr := &Transport{Limiter: lim, Key: ByHost(perKey), Cost: costing(5)}
		tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
			clock.pass(48 * time.Second) // four tokens are back, and others spend them
			spend(t, lim, hostKey, 4)
			r.Body.Close()
			return nil, &net.OpError{Op: "dial", Err: broken}
		})
		_, err := send(t, t.Context(), tr, "http://a")
		require.ErrorIs(t, err, broken)
		require.EqualValues(t, 1, left(t, lim, hostKey), "only the fifth returns")
	})
}

// The true cost of a request replaces its bound.
func TestTransportSettle(t *testing.T) {
	for name, tc := range map[string]struct {
		costs []int64 // passed to done
		left  int64
		err   string
	}{
		"less":     {costs: []int64{1}, left: 4},
		"too many": {costs: []int64{9}, left: 0},
		"twice":    {costs: []int64{2, 1}, left: 3},
		"not":      {left: 2},
		"negative": {costs: []int64{-1}, left: 2, err: "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			failure := ""
			sendAll(t, &Transport{
				Limiter: lim, Key: ByHost(perKey), Cost: costing(3), Base: answering(200),
				OnError: func(_ *http.Request, err error) { failure = err.Error() },
				Settle: func(res *http.Response, done func(int64)) {
					require.Equal(t, 200, res.StatusCode)
					for _, cost := range tc.costs {
						done(cost)
					}
				},
			}, 1)
			require.Equal(t, tc.left, left(t, lim, hostKey))
			require.Contains(t, failure, tc.err)
			require.Equal(t, tc.err == "", failure == "")
		})
	}
}

func TestByHost(t *testing.T) {
	for url, want := range map[string]string{
		"http://Example.COM/x":    "example.com",
		"http://example.com.":     "example.com",
		"http://example.com:80":   "example.com",
		"https://example.com:443": "example.com",
		"https://example.com:80":  "example.com:80",
		"http://[2001:DB8::1]:99": "[2001:db8::1]:99",
		"http://u:p@example.com":  "example.com",
	} {
		r, err := http.NewRequest("GET", url, nil)
		require.NoError(t, err)
		key, err := ByHost(perKey)(r)
		require.NoError(t, err)
		require.Equal(t, perKey.Key(want), key, url)
	}
}

// The true cost after a Wait returns no token that time has brought back, even if
// the commit took long.
func TestTransportSettleAfterSlowCommit(t *testing.T) {
	for _, wait := range []bool{false, true} {
		t.Run("Wait "+strconv.FormatBool(wait), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim, end := newSlowLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerSecond(1).WithBurst(10)})
				var settle func(cost int64)
				tr := &Transport{
					Limiter: lim, Key: ByHost(perKey), Cost: costing(10), Wait: wait, Base: answering(200),
					Settle: func(_ *http.Response, done func(cost int64)) { settle = done },
				}
				begun := time.Now()
				time.AfterFunc(4*time.Second, end)
				sendAll(t, tr, 1)
				<-time.After(10*time.Second - time.Since(begun)) // all 10 are back
				d, err := lim.Spend(hostKey, 10)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				settle(0)
				d, err = lim.Check(hostKey, 0)
				require.NoError(t, err)
				require.Zero(t, d.Remaining)
			})
		})
	}
}
