package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// BenchmarkServe measures the middleware around an empty handler, without a
// network.
func BenchmarkServe(b *testing.B) {
	lim, err := stint.New(stint.NewMemStore(), testLimits(b, map[stint.Name]stint.Limit{
		perAddress: stint.PerSecond(1_000_000_000), everyone: stint.PerSecond(1_000_000_000), failures: stint.PerHour(5),
	}), nil)
	require.NoError(b, err)
	defer lim.Close()
	_, err = lim.Spend(failures.Key("192.0.2.1"), 5)
	require.NoError(b, err)
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for _, bc := range []struct {
		name string
		h    http.Handler
	}{
		{"empty", empty},
		{"one rule", Middleware(lim, nil, Rule{Key: ByIP(perAddress)})(empty)},
		{"two rules", Middleware(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: Single(everyone)})(empty)},
		{"pattern", Middleware(lim, nil, Rule{Pattern: "GET /", Key: ByIP(perAddress)})(empty)},
		{"other pattern", Middleware(lim, nil, Rule{Pattern: "POST /login", Key: ByIP(perAddress)})(empty)},
		{"by status", Middleware(lim, nil, Rule{Key: ByIP(perAddress), Count: AuthFailed})(empty)},
		{"in flight", Middleware(lim, nil, Rule{Key: ByIP(perAddress), InFlight: 8})(empty)},
		{"settled", Middleware(lim, nil, Rule{Key: ByIP(perAddress), Settle: true})(http.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) { rules.Settle(r.Context(), perAddress, 1) }))},
		{"denied", Middleware(lim, nil, Rule{Key: ByIP(failures)})(empty)},
		{"observed", Middleware(lim, &Options{Observers: []Observer{{Decisions: func(*http.Request, []rules.Decision) {}}}},
			Rule{Key: ByIP(perAddress)})(empty)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequest("GET", "/", nil)
			w := &discard{header: make(http.Header)}
			for b.Loop() {
				clear(w.header)
				bc.h.ServeHTTP(w, r)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
