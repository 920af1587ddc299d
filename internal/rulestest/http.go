package rulestest

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// HTTP is the Door of the middleware of package httplimit.
func HTTP(_ testing.TB, lim stint.Decider, layers ...[]Rule) func(Request) bool {
	var do Request // of the innermost call
	reached := false
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := do
		req.Handle(r.Context(), layers[len(layers)-1])
		reached = true
		w.WriteHeader(map[Outcome]int{"": 200, OK: 200, Failed: 401,
			Broken: 500}[req.Outcome])
	})
	for i := len(layers) - 1; i >= 0; i-- {
		byID := func(name stint.Name) httplimit.KeyFunc { return httplimit.ByHeader(name, "X-Id") }
		h = httplimit.Middleware(lim, nil, RulesOf(lim, layers[i], byID, httplimit.Single,
			httplimit.AuthFailed, httplimit.ServerError)...)(h)
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
