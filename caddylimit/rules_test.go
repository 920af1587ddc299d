package caddylimit

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/internal/rulestest"
)

// door is a chain of Handlers as a door of rulestest. A zone has no cost, no
// Settle and no bucket for all requests. A handler that fails returns an error,
// as Caddy's do.
func door(t testing.TB, lim stint.Decider, layers ...[]rulestest.Rule) func(rulestest.Request) bool {
	var do rulestest.Request // of the innermost call
	reached := false
	var chain caddyhttp.Handler = caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		req := do
		if req.Inside != nil {
			req.Inside()
		}
		reached = true
		switch req.Outcome {
		case rulestest.Failed:
			w.WriteHeader(http.StatusUnauthorized)
		case rulestest.Broken:
			return caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream is gone"))
		}
		return nil
	})
	for i := len(layers) - 1; i >= 0; i-- {
		app := &App{started: make(chan struct{}), metrics: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"},
			[]string{"zone", "result"})}
		close(app.started)
		h := &Handler{app: app, errors: app.metrics.WithLabelValues("", "error")}
		var rules []httplimit.Rule
		for _, ru := range layers[i] {
			spec, _ := lim.Limits().Spec(ru.Name)
			if ru.Cost > 1 || ru.Settle || spec.ID == stint.Shared {
				return nil
			}
			z := &Zone{Name: spec.Label, number: ru.Name, Key: "{http.request.header.X-Id}", LockOut: caddy.Duration(ru.LockOut),
				Optional: ru.Optional, Shadow: ru.Shadow, InFlight: ru.InFlight}
			if ru.Count {
				z.CountStatus = []int{http.StatusUnauthorized}
			}
			if ru.Refund {
				z.RefundStatus = []int{http.StatusBadGateway}
			}
			z.counters(app.metrics)
			h.Zones, rules = append(h.Zones, z), append(rules, z.rule())
		}
		h.limit(lim, rules)
		inner := chain
		chain = caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return h.ServeHTTP(w, r, inner) })
	}
	return func(req rulestest.Request) bool {
		do, reached = req, false
		r := httptest.NewRequest("GET", "/", nil)
		if req.ID != "" {
			r.Header.Set("X-Id", req.ID)
		}
		w := httptest.NewRecorder()
		err := chain.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil))
		require.True(t, err == nil || w.Code == http.StatusOK, "Caddy writes the status of an error: %v", err)
		return reached
	}
}

// TestRules runs the zones with every kind of limit.
func TestRules(t *testing.T) {
	t.Parallel()
	rulestest.Run(t, door, &decidertest.Subject{Name: "owner",
		Open: func(t testing.TB, c decidertest.Config) (stint.Decider, error) {
			folder, err := os.MkdirTemp("", "rules") // a short path, for the socket
			require.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(folder) })
			l, err := hostlimit.Open(filepath.Join(folder, "q.db"), c.Limits, &hostlimit.Options{
				LimiterOptions: stint.Options{Durability: c.Level, Now: c.Now}})
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { l.Close() })
			return l, nil
		}})
}
