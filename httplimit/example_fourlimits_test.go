package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// The four limits of a large payment API: requests of an account, its requests
// at the same time, a part of the whole that is kept for critical requests, and
// a part of each worker.
func Example_fourLimits() {
	const PerAccount, Running, Fleet, Worker stint.Name = 1, 2, 3, 4
	limits, err := stint.NewLimits(stint.Names{
		PerAccount: {Label: "requests", Limit: stint.PerSecond(3)},
		Running:    {Label: "concurrent", Limit: stint.Unlimited}, // only places in flight
		Worker:     {Label: "worker", IDs: stint.Single, Limit: stint.Unlimited},

		Fleet: {Label: "fleet", IDs: stint.Single, Limit: stint.PerSecond(10)},
	})
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limiter, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	isCritical := func(r *http.Request) bool { return r.Method == "POST" }
	account := func(name stint.Name) httplimit.KeyFunc { return httplimit.ByHeader(name, "Account") }
	limit := httplimit.Middleware(limiter, nil,
		httplimit.Rule{Key: account(PerAccount)},
		httplimit.Rule{Key: account(Running), InFlight: 2},
		httplimit.Rule{Key: httplimit.Single(Fleet), LeaveFunc: func(r *http.Request) int64 {
			if isCritical(r) {
				return 0
			}
			return 4 // of ten tokens, four are always kept for critical requests
		}},
		httplimit.Rule{Key: httplimit.Single(Worker), InFlightFunc: func(r *http.Request) int64 {
			if isCritical(r) {
				return 50
			}
			return 40 // the last ten places of a worker are for critical requests
		}},
	)

	ask := func(h http.Handler, method, account string) int {
		r := httptest.NewRequest(method, "/", nil)
		r.Header.Set("Account", account)
		w := httptest.NewRecorder()
		limit(h).ServeHTTP(w, r)
		return w.Code
	}
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	show := func(what string, statuses ...int) { fmt.Println(what, statuses) }

	show("requests of an account:", ask(ok, "GET", "a"), ask(ok, "GET", "a"), ask(ok, "GET", "a"), ask(ok, "GET", "a"))

	now = now.Add(time.Second)
	third := 0
	ask(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		ask(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { third = ask(ok, "GET", "a") }), "GET", "a")
	}), "GET", "a")
	show("a third one at the same time:", third)

	now = now.Add(time.Second)
	flood := func(method, account string) (passed int) {
		for i := range 20 {
			if ask(ok, method, fmt.Sprint(account, i)) == 200 {
				passed++
			}
		}
		return passed
	}
	show("passed while others flood:", flood("GET", "other"), flood("POST", "critical"))

	now = now.Add(time.Second)
	var at []int // statuses while 40 requests run
	var nest http.HandlerFunc
	running := 0
	nest = func(http.ResponseWriter, *http.Request) {
		if running++; running%5 == 0 {
			now = now.Add(time.Second) // the fleet has tokens again
		}
		if running < 40 {
			ask(nest, "GET", fmt.Sprint("busy", running))
			return
		}
		at = append(at, ask(ok, "GET", "late"), ask(ok, "POST", "late"))
	}
	ask(nest, "GET", "busy")
	show("a worker with 40 requests:", at...)
	// Output:
	// requests of an account: [200 200 200 429]
	// a third one at the same time: [429]
	// passed while others flood: [6 4]
	// a worker with 40 requests: [429 200]
}
