package caddylimit_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/stretchr/testify/require"
)

// A benched is a kind of request to Caddy's server, without a network.
type benched struct {
	server *caddyhttp.Server
	r      *http.Request
	status int
}

// benchedRequests starts Caddy, and returns requests to an empty handler, to one
// behind a zone, and to one that a zone denies.
func benchedRequests(b *testing.B) map[string]benched {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(`{
	admin off
	persist_config off
	auto_https off
	default_bind 127.0.0.1
	storage file_system `+b.TempDir()+`
	storage_clean_interval off
	stint {
		file `+filepath.Join(b.TempDir(), "limits.db")+`
	}
}
http://127.0.0.1:0 {
	stint /zone {
		zone all {
			limit 1000000/1s
		}
	}
	stint /denied {
		zone denied {
			limit blocked
		}
	}
	respond 200
}`), nil)
	require.NoError(b, err)
	require.NoError(b, caddy.Load(config, true))
	b.Cleanup(func() { caddy.Stop() })
	app, err := caddy.ActiveContext().App("http")
	require.NoError(b, err)
	requests := make(map[string]benched)
	for name, status := range map[string]int{"empty": 200, "zone": 200, "denied": 429} {
		r := httptest.NewRequest("GET", "http://127.0.0.1/"+name, nil)
		r.RemoteAddr = "192.0.2.1:1234"
		requests[name] = benched{app.(*caddyhttp.App).Servers["srv0"], r, status}
	}
	return requests
}

// serve makes the server answer n requests.
func (of benched) serve(b *testing.B, n int) {
	for range n {
		w := &response{header: make(http.Header)}
		of.server.ServeHTTP(w, of.r)
		if w.status != of.status {
			b.Fatal(w.status)
		}
	}
}

// BenchmarkRequest measures requests in Caddy's server, each kind by itself.
func BenchmarkRequest(b *testing.B) {
	for name, of := range benchedRequests(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			of.serve(b, b.N)
		})
	}
}

// BenchmarkBeside is Y6: what a zone adds to a request. It serves ten
// requests of each kind by turns, and reports medians of the turns, which other
// work on the machine disturbs little. "zone-ns" is the difference between a
// request with a zone and one to an empty handler.
func BenchmarkBeside(b *testing.B) {
	const turn = 10
	requests := benchedRequests(b)
	timed := func(of benched) time.Duration {
		start := time.Now()
		of.serve(b, turn)
		return time.Since(start) / turn
	}
	var empty, zone, denied []time.Duration
	for b.Loop() {
		without := timed(requests["empty"])
		empty = append(empty, without)
		zone = append(zone, timed(requests["zone"])-without)
		denied = append(denied, timed(requests["denied"])-without)
	}
	b.ReportMetric(0, "ns/op") // of all three
	b.ReportMetric(median(empty), "empty-ns")
	b.ReportMetric(median(zone), "zone-ns")
	b.ReportMetric(median(denied), "denied-ns")
}

func median(of []time.Duration) float64 {
	slices.Sort(of)
	return float64(of[len(of)/2])
}

type response struct {
	header http.Header
	status int
}

func (w *response) Header() http.Header         { return w.header }
func (w *response) Write(p []byte) (int, error) { return len(p), nil }
func (w *response) WriteHeader(status int)      { w.status = status }
