package httplimit

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// origin is a server that counts requests, and answers as it is told.
type origin struct {
	url    string
	seen   atomic.Int64
	answer func(w http.ResponseWriter, r *http.Request)
}

func newOrigin(t *testing.T) *origin {
	o := &origin{answer: func(http.ResponseWriter, *http.Request) {}}
	o.url = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.seen.Add(1)
		o.answer(w, r)
	})).URL
	return o
}

type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

func TestTransportFails(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(2)})
	o := newOrigin(t)
	client := &http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey)}}
	for range 2 {
		res, err := client.Get(o.url)
		require.NoError(t, err)
		res.Body.Close()
	}
	clock.pass(20 * time.Minute)
	b := &body{Reader: strings.NewReader("x")}
	_, err := client.Post(o.url, "text/plain", b)
	var quota *QuotaError
	require.ErrorAs(t, err, &quota)
	require.Equal(t, 10*time.Minute, quota.RetryAfter)
	require.Equal(t, stint.PerHour(2), quota.Limit)
	require.Equal(t, perKey.Key(strings.TrimPrefix(o.url, "http://")), quota.Key)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "httplimit: the quota is used up: try again in 10m0s", quota.Error())
	require.True(t, b.closed)
	require.EqualValues(t, 2, o.seen.Load())

	clock.pass(10 * time.Minute)
	res, err := client.Get(o.url)
	require.NoError(t, err)
	res.Body.Close()
	client.CloseIdleConnections()
}

func TestTransportIsHeldBack(t *testing.T) {
	date := func(after time.Duration) string {
		return time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC).Add(after).Format(http.TimeFormat)
	}
	for name, tc := range map[string]struct {
		status int
		fields []string
		want   time.Duration
	}{
		"seconds":               {429, []string{"Retry-After", "90"}, 90 * time.Second},
		"503":                   {503, []string{"Retry-After", " 90 "}, 90 * time.Second},
		"another status":        {404, []string{"Retry-After", "90"}, 0},
		"a date":                {429, []string{"Date", date(0), "Retry-After", date(time.Hour)}, time.Hour},
		"a date that is over":   {429, []string{"Date", date(0), "Retry-After", date(-time.Hour)}, 0},
		"the longer of two":     {429, []string{"Retry-After", "90", "Retry-After", "100"}, 100 * time.Second},
		"more than the most":    {429, []string{"Retry-After", "9999999"}, 24 * time.Hour},
		"more than an int64":    {429, []string{"Retry-After", "99999999999999999999"}, 24 * time.Hour},
		"negative":              {429, []string{"Retry-After", "-1"}, 0},
		"not a number":          {429, []string{"Retry-After", "soon"}, 0},
		"nothing":               {429, nil, 0},
		"empty":                 {429, []string{"Retry-After", ""}, 0},
		"nothing left":          {200, []string{"RateLimit", `"day";r=0;t=30`}, 30 * time.Second},
		"something left":        {200, []string{"RateLimit", `"day";r=1;t=30`}, 0},
		"one of two":            {200, []string{"RateLimit", `"day";r=5;t=3000, "burst";r=0;t=2`}, 2 * time.Second},
		"the longer policy":     {429, []string{"RateLimit", `"a";r=0;t=20`, "RateLimit", `"b";r=0;t=10`, "Retry-After", "1"}, 20 * time.Second},
		"Retry-After longer":    {429, []string{"RateLimit", `"a";r=0;t=20`, "Retry-After", "21"}, 21 * time.Second},
		"does not say how long": {429, []string{"RateLimit", `"a";r=0`}, 0},
		"malformed":             {200, []string{"RateLimit", `"a";r=0;t=20,`}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lim, clock := newLimiter(t, nil)
			o := newOrigin(t)
			o.answer = func(w http.ResponseWriter, r *http.Request) {
				for i := 0; i < len(tc.fields); i += 2 {
					if tc.fields[i] == "Date" {
						w.Header().Set("Date", tc.fields[i+1])
						continue
					}
					w.Header().Add(tc.fields[i], tc.fields[i+1])
				}
				w.WriteHeader(tc.status)
				io.WriteString(w, "why")
			}
			client := &http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey)}}
			res, err := client.Get(o.url)
			require.NoError(t, err)
			require.Equal(t, "why", read(t, res), "the caller gets the whole response")
			require.Equal(t, tc.status, res.StatusCode)

			_, err = client.Get(o.url)
			if tc.want == 0 {
				require.NoError(t, err)
				return
			}
			var quota *QuotaError
			require.ErrorAs(t, err, &quota)
			require.Equal(t, tc.want, quota.RetryAfter)
			require.EqualValues(t, 1, o.seen.Load())
			clock.pass(tc.want)
			_, err = client.Get(o.url)
			require.NoError(t, err)
		})
	}
}

// What the server asked for outlasts the program, and a shorter wish does not cut it short.
func TestHoldIsDurable(t *testing.T) {
	store, clock := stint.NewMemStore(), newTestClock()
	o := newOrigin(t)
	wait := "3600"
	o.answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", wait)
		w.WriteHeader(429)
	}
	lim, err := stint.New(store, testLimits(t, nil), &stint.Options{Now: clock.now})
	require.NoError(t, err)
	tr := &Transport{Limiter: lim, Key: ByHost(perKey)}
	slow, hurry := make(chan struct{}), make(chan struct{})
	o.answer = func(w http.ResponseWriter, r *http.Request) {
		wait := "3600"
		if r.URL.Path == "/slow" {
			wait = "1"
			close(hurry)
			<-slow
		}
		w.Header().Set("Retry-After", wait)
		w.WriteHeader(429)
	}
	done := make(chan error)
	go func() {
		res, err := (&http.Client{Transport: tr}).Get(o.url + "/slow")
		if err == nil {
			res.Body.Close()
		}
		done <- err
	}()
	<-hurry
	res, err := (&http.Client{Transport: tr}).Get(o.url)
	require.NoError(t, err)
	res.Body.Close()
	close(slow)
	require.NoError(t, <-done)
	require.NoError(t, lim.Close())

	clock.pass(time.Minute)
	lim, err = stint.New(store, testLimits(t, nil), &stint.Options{Now: clock.now})
	require.NoError(t, err)
	defer lim.Close()
	_, err = (&http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey)}}).Get(o.url)
	var quota *QuotaError
	require.ErrorAs(t, err, &quota)
	require.Equal(t, 59*time.Minute, quota.RetryAfter)
}

// roundTrip is a Base that needs no network, for a bubble of synctest.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := stint.New(stint.NewMemStore(), testLimits(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(60).WithBurst(1)}), nil)
		require.NoError(t, err)
		defer lim.Close()
		start := time.Now()
		var sent []time.Duration
		client := &http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey), Wait: true,
			Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				sent = append(sent, time.Since(start))
				res := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}
				if len(sent) == 3 {
					res.Header.Set("RateLimit", `"day";r=0;t=600`)
				}
				return res, nil
			})}}
		for range 5 {
			_, err := client.Get("http://api.example/")
			require.NoError(t, err)
		}
		require.Equal(t, []time.Duration{0, time.Minute, 2 * time.Minute, 12 * time.Minute, 13 * time.Minute}, sent)

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		b := &body{Reader: strings.NewReader("x")}
		req, err := http.NewRequestWithContext(ctx, "POST", "http://api.example/", b)
		require.NoError(t, err)
		_, err = client.Do(req)
		var quota *QuotaError
		require.ErrorAs(t, err, &quota)
		require.Equal(t, time.Minute, quota.RetryAfter)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, b.closed)
		require.Equal(t, 13*time.Minute, time.Since(start), "it fails at once")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		req, err = http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
		require.NoError(t, err)
		_, err = client.Do(req)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorAs(t, err, &quota)
		d, err := lim.Check(perKey.Key("api.example"), 1)
		require.NoError(t, err)
		require.Equal(t, 50*time.Second, d.RetryAfter, "its token was given back")
		require.Len(t, sent, 5)
	})
}

func TestTransportErrors(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	get := func(tr *Transport, url string) error {
		b := &body{Reader: strings.NewReader("x")}
		req, err := http.NewRequest("POST", url, nil)
		require.NoError(t, err)
		req.Body = b
		_, err = tr.RoundTrip(req)
		require.True(t, b.closed)
		return err
	}
	refused := serve(t, http.NotFoundHandler())
	refused.Close()
	err := get(&Transport{Limiter: lim, Key: ByHost(perKey)}, refused.URL)
	require.ErrorContains(t, err, "connection refused")
	require.EqualValues(t, 5, left(t, lim, perKey.Key(strings.TrimPrefix(refused.URL, "http://"))), "the server has not seen it")

	broken := errors.New("broken")
	base := roundTrip(func(r *http.Request) (*http.Response, error) { r.Body.Close(); return nil, broken })
	require.ErrorIs(t, get(&Transport{Limiter: lim, Key: ByHost(perKey), Base: base}, "http://a"), broken)
	require.EqualValues(t, 4, left(t, lim, perKey.Key("a")), "it may have")

	require.ErrorIs(t, get(&Transport{Limiter: lim, Key: ByHost(perKey)}, "file:///x"), ErrNoID)
	require.ErrorIs(t, get(&Transport{Limiter: lim, Key: ByHost(99)}, "http://a"), stint.ErrUnknownName)
	require.ErrorIs(t, get(&Transport{Limiter: lim, Key: ByHost(99), Wait: true}, "http://a"), stint.ErrUnknownName)
	tooMuch := func(*http.Request) int64 { return 6 }
	require.ErrorIs(t, get(&Transport{Limiter: lim, Key: ByHost(perKey), Cost: tooMuch}, "http://a"), stint.ErrCostOverBurst)

	var told error
	closing := roundTrip(func(r *http.Request) (*http.Response, error) {
		require.NoError(t, lim.Close())
		return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"9"}}, Body: http.NoBody}, nil
	})
	tr := &Transport{Limiter: lim, Key: ByHost(perKey), Base: closing, OnError: func(_ *http.Request, err error) { told = err }}
	req, err := http.NewRequest("GET", "http://b", nil)
	require.NoError(t, err)
	res, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, 429, res.StatusCode)
	require.ErrorIs(t, told, stint.ErrClosed)
	tr.CloseIdleConnections()
}

func TestTransportIncomplete(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	for _, transport := range []*Transport{{}, {Limiter: lim}, {Key: ByHost(perAddress)}} {
		_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://localhost/", nil))
		require.EqualError(t, err, "httplimit: a Transport needs a Limiter and a Key")
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

func TestNothingLeft(t *testing.T) {
	for field, want := range map[string]int64{
		`"a";x=@1659578233;r=0;t=5`:          5,
		`"a";x=@-1;r=0;t=5`:                  5,
		`"a";x=@1.5;r=0;t=5`:                 0,
		`"a";x=@;r=0;t=5`:                    0,
		`"a";x=%"f%c3%bc";r=0;t=5`:           5,
		`"a";x=%f;r=0;t=5`:                   0,
		``:                                   0,
		`"a";r=0;t=5`:                        5,
		` "a";r=0;t=5  `:                     5,
		`a;r=0;t=5`:                          5,
		`"a\"\\,;r=1";r=0;t=5`:               5,
		`"a"; r=0; t=5`:                      5,
		`"a";pk=:AAE=:;r=0;x;y=?1;z=1.5;t=5`: 5,
		`"a";r=0;t=5;t=6`:                    6,
		`"a";r=0;t=5,"b";r=0;t=7`:            7,
		`"a";r=0;t=5 ,	"b";r=1;t=7`:          5,
		`"a";r=0;t=999999999999999`:          int64(longest / time.Second),
		`"a";r=-0;t=5`:                       5,
		`"a";r=-1;t=5`:                       0,
		`"a";r=0;t=-5`:                       0,
		`"a";r=0;t=5.0`:                      0,
		`"a";r="0";t=5`:                      0,
		`"a";r;t=5`:                          0,
		`"a";r=0;t=5,`:                       0,
		`"a";r=0;t=5 "b"`:                    0,
		`"a;r=0;t=5`:                         0,
		`"a\x";r=0;t=5`:                      0,
		"\"a\x7f\";r=0;t=5":                  0,
		`"a" ;r=0;t=5`:                       0,
		`"a";R=0;t=5`:                        0,
		`"a";r= 0;t=5`:                       0,
		`"a";r=0;t=`:                         0,
		`"a";r=0;t=5;`:                       0,
		`"a";r=0;t=1234567890123456`:         0,
		`"a";pk=:A,:;r=0;t=5`:                0,
		`"a";pk=:A;r=0;t=5`:                  0,
		`"a";x=?2;r=0;t=5`:                   0,
		`"a";x=@1;r=0;t=5`:                   5,
		`"a";x=1.;r=0;t=5`:                   0,
		`;r=0;t=5`:                           0,
		`,`:                                  0,
	} {
		require.Equal(t, time.Duration(want)*time.Second, nothingLeft([]string{field}), "%q", field)
	}
}

// A server that does not tell the time has that of the client; and no server keeps it away for longer than MaxHold.
func TestTransportHoldsUntil(t *testing.T) {
	for maxHold, want := range map[time.Duration]time.Duration{0: 2 * time.Hour, time.Hour: time.Hour} {
		synctest.Test(t, func(t *testing.T) { // where it is a whole second
			lim, err := stint.New(stint.NewMemStore(), testLimits(t, nil), nil)
			require.NoError(t, err)
			defer lim.Close()
			client := &http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey), MaxHold: maxHold,
				Base: roundTrip(func(r *http.Request) (*http.Response, error) {
					until := time.Now().Add(2 * time.Hour).UTC().Format(http.TimeFormat)
					return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {until}}, Body: http.NoBody, Request: r}, nil
				})}}
			_, err = client.Get("http://a/")
			require.NoError(t, err)
			_, err = client.Get("http://a/")
			var quota *QuotaError
			require.ErrorAs(t, err, &quota)
			require.Equal(t, want, quota.RetryAfter)
		})
	}
}

// Where the line is full, the error says how long too.
func TestTransportQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := stint.Limit{Burst: 1, Count: 1, Period: time.Minute, Queue: 1}
		lim, err := stint.New(stint.NewMemStore(), testLimits(t, map[stint.Name]stint.Limit{perKey: limit}), nil)
		require.NoError(t, err)
		defer lim.Close()
		client := &http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey), Wait: true,
			Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			})}}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := client.Get("http://a/")
				require.NoError(t, err)
			})
		}
		synctest.Wait() // one has gone, and one is in line
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, ctx := range []context.Context{t.Context(), ctx} {
			req, err := http.NewRequestWithContext(ctx, "GET", "http://a/", nil)
			require.NoError(t, err)
			_, err = client.Do(req)
			var quota *QuotaError
			require.ErrorAs(t, err, &quota)
			require.ErrorIs(t, err, stint.ErrQueueFull)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 2*time.Minute, quota.RetryAfter)
			require.Equal(t, limit, quota.Limit)
		}
		wg.Wait()
	})
}

// Those in line when a server asks to be left alone go only after that.
func TestTransportHoldsTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := stint.New(stint.NewMemStore(), testLimits(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(60).WithBurst(1)}), nil)
		require.NoError(t, err)
		defer lim.Close()
		start := time.Now()
		var mu sync.Mutex
		var sent []time.Duration
		client := &http.Client{Transport: &Transport{Limiter: lim, Key: ByHost(perKey), Wait: true,
			Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				sent = append(sent, time.Since(start))
				first := len(sent) == 1
				mu.Unlock()
				res := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}
				if first {
					<-time.After(time.Second) // the others are in line by then
					res.StatusCode = 429
					res.Header.Set("Retry-After", "90")
				}
				return res, nil
			})}}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				_, err := client.Get("http://api.example/")
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.Equal(t, []time.Duration{0, 91 * time.Second, 151 * time.Second, 211 * time.Second}, sent)
	})
}

// A request that nobody waits for any more spends nothing.
func TestTransportCancelled(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	for _, wait := range []bool{false, true} {
		b := &body{Reader: strings.NewReader("x")}
		req, err := http.NewRequestWithContext(ctx, "POST", "http://a", b)
		require.NoError(t, err)
		_, err = (&Transport{Limiter: lim, Key: ByHost(perKey), Wait: wait}).RoundTrip(req)
		require.ErrorIs(t, err, gone)
		require.True(t, b.closed)
		require.EqualValues(t, 5, left(t, lim, perKey.Key("a")))
	}
}

// slowStore is one whose saves wait. saving has room for one.
type slowStore struct {
	*stint.MemStore
	saving, release chan struct{}
}

func (s *slowStore) Save(changes []stint.Change) error {
	select {
	case s.saving <- struct{}{}:
	default:
	}
	<-s.release
	return s.MemStore.Save(changes)
}

// What is cancelled while the spend waits for its commit is not sent, and given back.
func TestTransportCancelledWhileItCommits(t *testing.T) {
	store := &slowStore{stint.NewMemStore(), make(chan struct{}, 1), make(chan struct{})}
	lim, err := stint.New(store, testLimits(t, nil), &stint.Options{Durability: stint.Synced, CommitTimeout: time.Hour})
	require.NoError(t, err)
	defer lim.Close()
	seen := false
	srv := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen = true }))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := (&Transport{Limiter: lim, Key: ByHost(perKey)}).RoundTrip(r)
		ended <- err
	}()
	<-store.saving
	cancel()
	close(store.release)
	require.ErrorIs(t, <-ended, context.Canceled)
	require.False(t, seen)
	key, err := ByHost(perKey)(r)
	require.NoError(t, err)
	require.EqualValues(t, 5, left(t, lim, key))
}

// A request is given back only where no server can have seen it.
func TestTransportCannotDial(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	late := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	tr := &Transport{Limiter: lim, Key: ByHost(perKey), Base: roundTrip(func(*http.Request) (*http.Response, error) { return nil, late })}
	_, err := (&http.Client{Transport: tr}).Get("http://a")
	var failed *url.Error
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Timeout())
	require.EqualValues(t, 5, left(t, lim, perKey.Key("a")))

	for !resent(t, lim, tr) {
		t.Log("once more: the connection was not kept for the second request")
	}
}

// resent has a server end the connection that a second request comes by, and its listener before that. It is false where the second
// request came by a connection of its own: net/http keeps none whose request it does not know to be written 50 ms after the answer.
func resent(t *testing.T, lim *stint.Limiter, tr *Transport) bool {
	var srv *httptest.Server
	srv = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/last" {
			srv.Listener.Close()
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
		}
	}))
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	tr.Base = base
	var got []bool // whether the connections were used before
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { got = append(got, info.Reused) },
	})
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
	require.NoError(t, err)
	res, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.Same(t, req, res.Request)
	require.NoError(t, res.Body.Close())
	req, err = http.NewRequestWithContext(ctx, "GET", srv.URL+"/last", nil)
	require.NoError(t, err)
	_, err = tr.RoundTrip(req)
	if len(got) == 2 && !got[1] {
		return false
	}
	require.ErrorContains(t, err, "connection refused", "when it is sent again")
	require.Equal(t, []bool{false, true}, got)
	require.EqualValues(t, 3, left(t, lim, perKey.Key(strings.TrimPrefix(srv.URL, "http://"))))
	return true
}

// All of the cost is given back of a request that has had no connection, and none of it of one that has.
func TestTransportRefunds(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	send := func(ctx context.Context, url string, base http.RoundTripper) (left int64, err error) {
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		require.NoError(t, err)
		key, err := ByHost(perKey)(req)
		require.NoError(t, err)
		tr := &Transport{Limiter: lim, Key: ByHost(perKey), Cost: func(*http.Request) int64 { return 3 }, Base: base}
		_, err = tr.RoundTrip(req)
		require.Error(t, err)
		b, bucketErr := lim.Bucket(key)
		require.NoError(t, bucketErr)
		return b.Remaining, err
	}

	refused := serve(t, http.NotFoundHandler())
	refused.Close()
	n, _ := send(t.Context(), refused.URL, nil)
	require.EqualValues(t, 5, n, "a connection that is refused")

	ctx, cancel := context.WithCancel(t.Context())
	stuck := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	n, err := send(ctx, "http://stuck", stuck)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 5, n, "cancelled while it dials")

	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // it does not like the handshake
	srv.StartTLS()
	defer srv.Close()
	n, err = send(t.Context(), srv.URL, &http.Transport{})
	require.ErrorContains(t, err, "certificate")
	require.EqualValues(t, 5, n, "a server that is not trusted")
	n, err = send(t.Context(), srv.URL, srv.Client().Transport)
	require.ErrorContains(t, err, "stream error") // of HTTP/2
	require.EqualValues(t, 2, n, "it was sent")

	n, err = send(t.Context(), "gopher://a", nil)
	require.ErrorContains(t, err, "unsupported protocol scheme")
	require.EqualValues(t, 2, n, "another Base might have sent it")
}
