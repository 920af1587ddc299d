package rulestest

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

// HTTP is the Door of the middleware of package httplimit.
func HTTP(_ testing.TB, lim stint.Decider, layers ...[]Rule) func(Request) bool {
	var do Request // of the innermost call
	reached := false
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := do
		req.run(func(cost int64) {
			for _, ru := range layers[len(layers)-1] {
				rules.Settle(r.Context(), ru.Name, cost)
			}
		})
		reached = true
		w.WriteHeader(map[Outcome]int{"": 200, OK: 200, Failed: 401,
			Broken: 500}[req.Outcome])
	})
	for i := len(layers) - 1; i >= 0; i-- {
		var rules []httplimit.Rule
		for _, ru := range layers[i] {
			key := httplimit.ByHeader(ru.Name, "X-Id")
			if spec, _ := lim.Limits().Spec(ru.Name); spec.ID == stint.Shared {
				key = httplimit.Shared(ru.Name)
			}
			as := httplimit.Rule{Key: key, Cost: ru.Cost, LockOut: ru.LockOut, LockOutMax: ru.Longest,
				Optional: ru.Optional, Shadow: ru.Shadow, Settle: ru.Settle, InFlight: ru.InFlight}
			if ru.Count {
				as.Count = httplimit.AuthFailed
			}
			if ru.Refund {
				as.Refund = httplimit.ServerError
			}
			rules = append(rules, as)
		}
		h = httplimit.Middleware(lim, nil, rules...)(h)
	}
	return func(req Request) bool {
		do, reached = req, false
		r := httptest.NewRequest("GET", "/", nil)
		if req.ID != "" {
			r.Header.Set("X-Id", req.ID)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		return reached
	}
}
