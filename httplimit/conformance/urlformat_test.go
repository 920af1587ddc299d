package conformance

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// TestURLFormat shows what happens when middleware changes the path that chi
// routes by: a rule with a Pattern around the router does not see the change.
// Middleware on the route itself does.
func TestURLFormat(t *testing.T) {
	const logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{
		logins: {Label: "logins", Limit: stint.PerHour(1)},
	})
	require.NoError(t, err)
	login := func(w http.ResponseWriter, r *http.Request) {}
	statuses := func(h http.Handler) (statuses []int) {
		for _, path := range []string{"/login.json", "/login.xml"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
			statuses = append(statuses, w.Code)
		}
		return statuses
	}
	open := func() *stint.Limiter {
		limiter, err := stint.New(stint.NewMemStore(), limits, nil)
		require.NoError(t, err)
		t.Cleanup(func() { limiter.Close() })
		return limiter
	}

	around := httplimit.Middleware(open(), nil, httplimit.Rule{
		Pattern: "POST /login", Key: httplimit.ByIP(logins),
	})
	r := chi.NewRouter()
	r.Use(middleware.URLFormat)
	r.Post("/login", login)
	require.Equal(t, []int{200, 200}, statuses(around(r)), "the pitfall")

	limit := httplimit.Middleware(open(), nil, httplimit.Rule{Key: httplimit.ByIP(logins)})
	r = chi.NewRouter()
	r.Use(middleware.URLFormat)
	r.With(limit).Post("/login", login)
	require.Equal(t, []int{200, 429}, statuses(r))
}
