package httplimit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

const (
	RequestsPerAddress stint.Name = 1
	FailedLogins       stint.Name = 2
	RequestsPerServer  stint.Name = 3
)

// open returns a Limiter of a few limits. A real program calls stint.Open.
func open() *stint.Limiter {
	limits, err := stint.NewLimits(stint.Names{
		RequestsPerAddress: {Label: "requests", Limit: stint.PerMinute(100)},
		FailedLogins:       {Label: "login", Limit: stint.PerHour(2)},
		RequestsPerServer:  {Label: "server", Limit: stint.PerDay(1)},
	})
	if err != nil {
		panic(err)
	}
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // makes the output the same in each run
	limiter, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return noon }})
	if err != nil {
		panic(err)
	}
	return limiter
}

// wrongPassword answers every login.
var wrongPassword = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	http.Error(w, "wrong password", http.StatusUnauthorized)
})

// ask sends a request to a handler and returns its answer.
func ask(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/login", nil))
	return w
}

func ExampleMiddleware_pattern() {
	limiter := open()
	defer limiter.Close()
	mux := http.NewServeMux()
	mux.Handle("POST /login", wrongPassword)
	limit := httplimit.Middleware(limiter, nil,
		httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)},
		httplimit.Rule{
			Pattern: "POST /login", Key: httplimit.ByIP(FailedLogins),
			Refund: func(status int) bool { return !httplimit.AuthFailed(status) }, // a right password costs nothing
		},
	)
	h := limit(mux)
	for range 3 {
		res := ask(h)
		fmt.Println(res.Code, res.Header().Get("RateLimit"))
	}
	// Output:
	// 401 "requests";r=99;t=1, "login";r=1;t=1800
	// 401 "requests";r=98;t=1, "login";r=0;t=1800
	// 429 "requests";r=98;t=1, "login";r=0;t=1800
}

// The second wrong password locks the address out for a day. A right password costs
// nothing.
func ExampleRule() {
	limiter := open()
	defer limiter.Close()
	h := httplimit.Middleware(limiter, nil, httplimit.Rule{
		Pattern: "POST /login",
		Key:     httplimit.ByIP(FailedLogins),
		Refund:  func(status int) bool { return !httplimit.AuthFailed(status) },
		LockOut: 24 * time.Hour,
	})(wrongPassword)
	for range 3 {
		res := ask(h)
		fmt.Println(res.Code, res.Header().Get("RateLimit"))
	}
	// Output:
	// 401 "login";r=1;t=1800
	// 401 "login";r=0;t=86400
	// 429 "login";r=0;t=86400
}

func ExampleServerError() {
	listed := rules.OneOf(http.StatusConflict, http.StatusTeapot)
	for _, status := range []int{401, 403, 409, 499, 500} {
		fmt.Println(status, httplimit.AuthFailed(status), httplimit.ServerError(status), listed(status))
	}
	// Output:
	// 401 true false false
	// 403 true false false
	// 409 false false true
	// 499 false false false
	// 500 false true false
}

func ExampleObserver() {
	limiter := open()
	defer limiter.Close()
	log := httplimit.Observer{
		Decisions: func(r *http.Request, ds []rules.Decision) {
			for _, d := range ds {
				fmt.Println(r.Method, d.Label, d.Allowed, d.RetryAfter)
			}
		},
		Error: func(r *http.Request, err error) { fmt.Println(err) },
	}
	h := httplimit.Middleware(limiter, &httplimit.Options{Observers: []httplimit.Observer{log}},
		httplimit.Rule{Key: httplimit.ByIP(RequestsPerServer)},
		httplimit.Rule{Key: httplimit.ByHeader(RequestsPerAddress, "X-Key"), Shadow: true},
	)(wrongPassword)
	ask(h)
	ask(h)
	// Output:
	// rules: the request has no id
	// POST server true 0s
	// rules: the request has no id
	// POST server false 24h0m0s
}

func ExampleHeaders() {
	limiter := open()
	defer limiter.Close()
	opts := &httplimit.Options{Headers: httplimit.Draft06}
	h := httplimit.Middleware(limiter, opts, httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})(wrongPassword)
	header := ask(h).Header()
	fmt.Println(header.Get("RateLimit-Limit"), header.Get("RateLimit-Remaining"), header.Get("RateLimit-Reset"))
	// Output: 100 99 1
}

func ExampleMiddleware_decisions() {
	limiter := open()
	defer limiter.Close()
	opts := &httplimit.Options{Decisions: true}
	ask(httplimit.Middleware(limiter, opts, httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, d := range rules.Decisions(r.Context()) {
				fmt.Println(d.Label, "leaves", d.Remaining)
			}
		})))
	// Output: requests leaves 99
}

func ExampleKeyFunc() {
	r := httptest.NewRequest("GET", "/users/7", nil)
	r.SetPathValue("user", "7")
	r.SetBasicAuth("ada", "lovelace")
	r.AddCookie(&http.Cookie{Name: "session", Value: "s-1"})
	for _, key := range []httplimit.KeyFunc{
		httplimit.ByIP(1),
		httplimit.ByPathValue(1, "user"),
		httplimit.ByBasicAuthUser(1),
		httplimit.ByCookie(1, "session"),
		httplimit.ByHeader(1, "X-API-Key"),
		httplimit.Single(1),
		httplimit.ByHost(1), // of a client's request
	} {
		fmt.Println(key(r))
	}
	// Output:
	// 1:192.0.2.1 <nil>
	// 1:7 <nil>
	// 1:ada <nil>
	// 1:s-1 <nil>
	// 0: rules: the request has no id
	// 1: <nil>
	// 0: rules: the request has no id
}

// A key that the program has issued has a limit of its own. Other clients share
// the limit of their address.
func ExampleKeyFunc_firstOf() {
	issued := map[string]bool{"k-17": true}
	byHeader := httplimit.ByHeader(RequestsPerServer, "X-API-Key")
	byIssuedKey := func(r *http.Request) (stint.Key, error) {
		if !issued[r.Header.Get("X-API-Key")] {
			return stint.Key{}, rules.ErrNoID
		}
		return byHeader(r)
	}
	key := rules.FirstOf(byIssuedKey, httplimit.ByIP(RequestsPerAddress))
	for _, sent := range []string{"", "k-17", "made up"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-API-Key", sent)
		fmt.Println(key(r))
	}
	// Output:
	// 1:192.0.2.1 <nil>
	// 3:k-17 <nil>
	// 1:192.0.2.1 <nil>
}

func ExampleClientAddress() {
	clients := httplimit.ClientAddress{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711" // the proxy, which adds the last entry
	r.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.66")
	fmt.Println(clients.Of(r))
	fmt.Println(clients.ByIP(RequestsPerAddress)(r))
	// Output:
	// 198.51.100.66
	// 1:198.51.100.66 <nil>
}

func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "an answer")
	}))
	defer server.Close()
	limiter := open() // a file keeps the quota across runs
	defer limiter.Close()

	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, Key: httplimit.ByHost(RequestsPerServer)}}
	for range 2 {
		res, err := client.Get(server.URL)
		var quota *rules.QuotaError
		if errors.As(err, &quota) {
			fmt.Println("not sent: wait", quota.RetryAfter)
			continue
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		fmt.Println(string(body))
	}
	// Output:
	// an answer
	// not sent: wait 24h0m0s
}

// The Gemini API says in the body how long to wait.
func ExampleTransport_backoff() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		io.WriteString(w, `{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [
			{"@type": "type.googleapis.com/google.rpc.Help"},
			{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]}}`)
	}))
	defer server.Close()
	limiter := open() // a file keeps the wait across runs
	defer limiter.Close()

	backoff := func(res *http.Response) (until time.Time, ok bool) {
		if res.StatusCode != http.StatusTooManyRequests {
			return until, false
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(body)) // for the program
		var answer struct {
			Error struct{ Details []struct{ RetryDelay string } }
		}
		json.Unmarshal(body, &answer)
		for _, detail := range answer.Error.Details {
			if wait, err := time.ParseDuration(detail.RetryDelay); err == nil {
				return limiter.Now().Add(wait), true
			}
		}
		return until, false
	}
	transport := &httplimit.Transport{Limiter: limiter, Key: httplimit.ByHost(RequestsPerAddress), Backoff: backoff}
	client := &http.Client{Transport: transport}
	for range 2 {
		res, err := client.Get(server.URL)
		var quota *rules.QuotaError
		if errors.As(err, &quota) {
			fmt.Println("not sent: wait", quota.RetryAfter)
			continue
		}
		res.Body.Close()
		fmt.Println(res.Status)
	}
	// Output:
	// 429 Too Many Requests
	// not sent: wait 34s
}

// Of a flood of denials the log has one line for each client and minute.
func ExampleMiddleware_logDenials() {
	limiter := open()
	defer limiter.Close()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey { // makes the output the same in each run
				return slog.Attr{}
			}
			return a
		},
	}))
	opts := &httplimit.Options{Observers: []httplimit.Observer{rules.LogDenials[*http.Request](logger, time.Minute)}}
	h := httplimit.Middleware(limiter, opts, httplimit.Rule{Key: httplimit.ByIP(RequestsPerServer)})(wrongPassword)
	for range 100 {
		ask(h)
	}
	// Output: level=WARN msg="request denied" limit=server id=192.0.2.1 retry_after=24h0m0s shadow=false left_out=0
}
