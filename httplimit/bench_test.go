package httplimit

import (
	"bufio"
	"bytes"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
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
		{"by status", New(lim, nil, Rule{Key: ByIP(perAddress), CountStatus: AuthFailed})(empty)},
		{"denied", New(lim, nil, Rule{Key: ByIP(failures)})(empty)},
		{"observed", New(lim, &Options{Observers: []Observer{{Decisions: func(*http.Request, []Decision) {}}}}, Rule{Key: ByIP(perAddress)})(empty)},
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

// What it costs over one connection of the loopback interface, side by side: requests to each handler take turns, in no order,
// so that whatever else the machine does falls on all of them. The figures are of the tenth that was disturbed least, and of
// the median: of the empty handler, and what others take longer. Those that only set two fields, and only answer as a denial is
// answered, are there to tell what is net/http's part.
func BenchmarkSideBySide(b *testing.B) {
	lim, err := stint.New(stint.NewMemStore(), testLimits(b, map[stint.Name]stint.Limit{
		perAddress: stint.PerSecond(1_000_000_000), failures: stint.PerHour(5),
	}), nil)
	require.NoError(b, err)
	defer lim.Close()
	_, err = lim.Spend(failures.Key("127.0.0.1"), 5)
	require.NoError(b, err)
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	denied := New(lim, nil, Rule{Key: ByIP(failures)})(empty)
	request := httptest.NewRequest("GET", "/", nil)
	request.RemoteAddr = "127.0.0.1:1"
	answer := httptest.NewRecorder()
	denied.ServeHTTP(answer, request)
	require.Equal(b, http.StatusTooManyRequests, answer.Code)
	policy := []string{`"address";q=1000000000;w=1`}
	handlers := map[string]http.Handler{
		"empty": empty,
		"fields": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()[policyField] = policy
			w.Header()[stateField] = []string{`"address";r=999999999;t=1`}
		}),
		"answer": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			w.Write(answer.Body.Bytes())
		}),
		"without-fields": New(lim, &Options{Headers: NoHeaders}, Rule{Key: ByIP(perAddress)})(empty),
		"limited":        New(lim, nil, Rule{Key: ByIP(perAddress)})(empty),
		"denied":         denied,
	}
	mux := http.NewServeMux()
	var order []string
	for name, h := range handlers {
		mux.Handle("/"+name, h)
		order = append(order, name)
	}
	srv := serve(b, mux)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(b, err)
	defer conn.Close()
	r := bufio.NewReader(conn)
	ask := func(name string) float64 {
		request := []byte("GET /" + name + " HTTP/1.1\r\nHost: x\r\n\r\n")
		start := time.Now()
		conn.Write(request)
		for body := 0; ; {
			line, err := r.ReadSlice('\n')
			require.NoError(b, err)
			if length, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
				body, err = strconv.Atoi(string(bytes.TrimSpace(length)))
				require.NoError(b, err)
			}
			if len(line) == 2 {
				r.Discard(body)
				return float64(time.Since(start)) / 1000
			}
		}
	}
	took := make(map[string][]float64)
	for b.Loop() {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, name := range order {
			took[name] = append(took[name], ask(name))
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, us := range took {
		slices.Sort(us)
	}
	for part, of := range map[string]int{"p10": 10, "p50": 2} {
		at := func(name string) float64 { return took[name][len(took[name])/of] }
		b.ReportMetric(at("empty"), "µs-empty-"+part)
		for _, name := range []string{"fields", "without-fields", "limited", "answer", "denied"} {
			b.ReportMetric(at(name)-at("empty"), "µs-"+name+"-"+part)
		}
	}
}
