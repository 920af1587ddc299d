package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

const (
	RequestsPerAddress stint.Name = 1
	FailedLogins       stint.Name = 2
	RequestsPerServer  stint.Name = 3
)

// open returns a Limiter of a few limits. A program would stint.Open a file.
func open() *stint.Limiter {
	limits, err := stint.NewLimits(
		stint.Names{
			RequestsPerAddress: {Label: "requests"},
			FailedLogins:       {Label: "login"},
			RequestsPerServer:  {Label: "server"},
		},
		map[stint.Name]stint.Limit{
			RequestsPerAddress: stint.PerMinute(100),
			FailedLogins:       stint.PerHour(2),
			RequestsPerServer:  stint.PerDay(1),
		}, nil)
	if err != nil {
		panic(err)
	}
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // an example has the same output at any time
	limiter, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return noon }})
	if err != nil {
		panic(err)
	}
	return limiter
}

func ExampleNew() {
	limiter := open()
	defer limiter.Close()
	limit := httplimit.New(limiter, nil,
		httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)},
		httplimit.Rule{Pattern: "POST /login", Key: httplimit.ByIP(FailedLogins), CountStatus: httplimit.AuthFailed},
	)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "wrong password", http.StatusUnauthorized)
	})
	server := httptest.NewServer(limit(mux))
	defer server.Close()

	for range 3 {
		res, err := http.Post(server.URL+"/login", "", nil)
		if err != nil {
			panic(err)
		}
		res.Body.Close()
		fmt.Println(res.StatusCode, res.Header.Get("RateLimit"))
	}
	// Output:
	// 401 "requests";r=99;t=1, "login";r=1;t=1800
	// 401 "requests";r=98;t=2, "login";r=0;t=1800
	// 429 "requests";r=98;t=2, "login";r=0;t=1800
}

func ExampleClientAddress() {
	clients := httplimit.ClientAddress{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711" // our proxy, which adds to what it was sent
	r.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.66")
	fmt.Println(clients.Of(r))

	key, err := clients.ByIP(RequestsPerAddress)(r)
	fmt.Println(key, err)
	// Output:
	// 198.51.100.66
	// 1:198.51.100.66 <nil>
}

func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "an answer") }))
	defer server.Close()
	limiter := open() // of a file, for a program that is run again and again
	defer limiter.Close()

	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, Key: httplimit.ByHost(RequestsPerServer)}}
	for range 2 {
		res, err := client.Get(server.URL)
		var over *httplimit.QuotaError
		if errors.As(err, &over) {
			fmt.Println("not sent: wait", over.RetryAfter)
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

// Clients with a key that we have given out have a limit of their own; those who make one up have that of their address.
func ExampleFirstOf() {
	given := map[string]bool{"k-17": true}
	byHeader := httplimit.ByHeader(RequestsPerServer, "X-API-Key")
	byGivenKey := func(r *http.Request) (stint.Key, error) {
		if !given[r.Header.Get("X-API-Key")] {
			return stint.Key{}, httplimit.ErrNoID
		}
		return byHeader(r)
	}
	key := httplimit.FirstOf(byGivenKey, httplimit.ByIP(RequestsPerAddress))
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

func ExampleDecisions() {
	limiter := open()
	defer limiter.Close()
	limit := httplimit.New(limiter, nil, httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, d := range httplimit.Decisions(r) {
			fmt.Println(d.Label, "leaves", d.Remaining)
		}
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	// Output: requests leaves 99
}
