package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/internal/rulestest"
)

// door is the middleware as a door of rulestest.
func door(t testing.TB, lim stint.Decider, layers ...[]rulestest.Rule) func(rulestest.Request) bool {
	var do rulestest.Request // of the innermost call
	reached := false
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached = true
		req := do
		if req.Inside != nil {
			req.Inside()
		}
		for _, cost := range req.Settle {
			for _, ru := range layers[len(layers)-1] {
				httplimit.Settle(r, ru.Name, cost)
			}
		}
		reached = true
		w.WriteHeader(map[rulestest.Outcome]int{"": 200, rulestest.OK: 200, rulestest.Failed: 401,
			rulestest.Broken: 500}[req.Outcome])
	})
	for i := len(layers) - 1; i >= 0; i-- {
		var rules []httplimit.Rule
		for _, ru := range layers[i] {
			key := httplimit.ByHeader(ru.Name, "X-Id")
			if spec, _ := lim.Limits().Spec(ru.Name); spec.ID == stint.Shared {
				key = httplimit.Shared(ru.Name)
			}
			as := httplimit.Rule{Key: key, Cost: ru.Cost, LockOut: ru.LockOut, Optional: ru.Optional,
				Shadow: ru.Shadow, Settle: ru.Settle, InFlight: ru.InFlight}
			if ru.Count {
				as.CountStatus = httplimit.AuthFailed
			}
			if ru.Refund {
				as.RefundStatus = httplimit.ServerError
			}
			rules = append(rules, as)
		}
		h = httplimit.Middleware(lim, nil, rules...)(h)
	}
	return func(req rulestest.Request) bool {
		do, reached = req, false
		r := httptest.NewRequest("GET", "/", nil)
		if req.ID != "" {
			r.Header.Set("X-Id", req.ID)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		return reached
	}
}

// TestRules runs the rules with every kind of limit, on a Limiter, the owner of
// a file and a guest.
func TestRules(t *testing.T) {
	t.Run("limiter", func(t *testing.T) {
		t.Parallel()
		rulestest.Run(t, door, &decidertest.Subject{Name: "limiter",
			Open: func(t testing.TB, c decidertest.Config) (stint.Decider, error) {
				return stint.Open(filepath.Join(t.TempDir(), "q.db"), c.Limits,
					&stint.Options{Durability: c.Level, Now: c.Now})
			}})
	})
	for _, role := range []hostlimit.Role{hostlimit.RoleOwner, hostlimit.RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			rulestest.Run(t, door, &decidertest.Subject{Name: role.String(),
				Open: func(t testing.TB, c decidertest.Config) (stint.Decider, error) {
					folder, err := os.MkdirTemp("", "rules") // a short path, for the socket
					require.NoError(t, err)
					t.Cleanup(func() { os.RemoveAll(folder) })
					opts := hostlimit.Options{LimiterOptions: stint.Options{Durability: c.Level, Now: c.Now}}
					opts.TakeoverTimeout, opts.LimiterOptions.LockTimeout = time.Minute, time.Minute // the machine may be busy
					var l *hostlimit.Limiter
					for range role { // the first is the owner
						opened, err := hostlimit.Open(filepath.Join(folder, "q.db"), c.Limits, &opts)
						if err != nil {
							return nil, err
						}
						t.Cleanup(func() { opened.Close() })
						l = opened
					}
					require.Equal(t, role, l.Role())
					return l, nil
				}})
		})
	}
}
