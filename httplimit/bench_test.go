package httplimit

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// What the middleware costs beside an empty handler, without a network.
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
		{"one rule", New(lim, nil, Rule{Key: ByIP(perAddress)})(empty)},
		{"two rules", New(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: Shared(everyone)})(empty)},
		{"pattern", New(lim, nil, Rule{Pattern: "GET /", Key: ByIP(perAddress)})(empty)},
		{"other pattern", New(lim, nil, Rule{Pattern: "POST /login", Key: ByIP(perAddress)})(empty)},
		{"by status", New(lim, nil, Rule{Key: ByIP(perAddress), CountStatus: Failed})(empty)},
		{"denied", New(lim, nil, Rule{Key: ByIP(failures)})(empty)},
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

// What it costs over one connection of the loopback interface, side by side: requests with and without it take turns, so that
// whatever else the machine does falls on both. The figures are of the tenth that was disturbed least, and of the median.
func BenchmarkSideBySide(b *testing.B) {
	lim, err := stint.New(stint.NewMemStore(), testLimits(b, map[stint.Name]stint.Limit{
		perAddress: stint.PerSecond(1_000_000_000),
	}), nil)
	require.NoError(b, err)
	defer lim.Close()
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	mux := http.NewServeMux()
	mux.Handle("/without", empty)
	mux.Handle("/with", New(lim, nil, Rule{Key: ByIP(perAddress)})(empty))
	srv := serve(b, mux)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(b, err)
	defer conn.Close()
	r := bufio.NewReader(conn)
	ask := func(request []byte) float64 {
		start := time.Now()
		conn.Write(request)
		for {
			line, err := r.ReadSlice('\n')
			require.NoError(b, err)
			if len(line) == 2 {
				return float64(time.Since(start))
			}
		}
	}
	var with, without []float64
	requests := [][]byte{[]byte("GET /without HTTP/1.1\r\nHost: x\r\n\r\n"), []byte("GET /with HTTP/1.1\r\nHost: x\r\n\r\n")}
	for b.Loop() {
		without = append(without, ask(requests[0]))
		with = append(with, ask(requests[1]))
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(0, "ns/op")
	for name, at := range map[string]int{"p10": len(with) / 10, "p50": len(with) / 2} {
		b.ReportMetric(without[at]/1000, "µs-without-"+name)
		b.ReportMetric((with[at]-without[at])/1000, "µs-cost-"+name)
	}
}
