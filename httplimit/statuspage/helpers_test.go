package statuspage

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/status"
)

// What a report has.
const (
	slots      = 60
	slotLen    = 5 * time.Second
	shownHolds = 100
)

const (
	perAddress stint.Name = 1 + iota
	failures
	perKey
	off
)

var (
	testNames = stint.Names{
		perAddress: {Label: "address", IDs: stint.IPAddress, Limit: stint.Unlimited},
		failures:   {Label: "login", Limit: stint.Unlimited},
		perKey:     {Label: "key", Limit: stint.Unlimited}, off: {Label: "off", Limit: stint.Unlimited},
	}
	client = perAddress.Key("192.0.2.1") // of httptest.NewRequest
)

// testLimits has others, and 5 a minute for each name that others lacks, except
// off.
func testLimits(t testing.TB, others map[stint.Name]stint.Limit) *stint.Limits {
	t.Helper()
	limits := map[stint.Name]stint.Limit{}
	for _, name := range []stint.Name{perAddress, failures, perKey} {
		limits[name] = stint.PerMinute(5)
	}
	for name, limit := range others {
		limits[name] = limit
	}
	all, err := stint.NewLimits(testNames.WithLimits(limits))
	require.NoError(t, err)
	return all
}

// newClock returns a clock at 2001-09-09 01:46:40 UTC.
func newClock() *modeltest.Clock {
	clock := modeltest.NewClock()
	clock.Set(1e18)
	return clock
}

// newLimiter returns a Limiter of testLimits with a store, or a MemStore.
func newLimiter(t testing.TB, store stint.Store, others map[stint.Name]stint.Limit) (*stint.Limiter, *modeltest.Clock) {
	t.Helper()
	if store == nil {
		store = stint.NewMemStore()
	}
	clock := newClock()
	lim, err := stint.New(store, testLimits(t, others), &stint.Options{Now: clock.Now})
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	return lim, clock
}

// newPage returns a page of newLimiter's Limiter with a MemStore.
func newPage(t testing.TB, opts *Options, others map[stint.Name]stint.Limit) (*Page, *stint.Limiter, *modeltest.Clock) {
	t.Helper()
	lim, clock := newLimiter(t, nil, others)
	return New(lim, opts), lim, clock
}

// asker returns a function that sends requests with an X-Key through the
// middleware of rules, and returns the last status.
func asker(p *Page, rules ...httplimit.Rule) func(times int, key string) int {
	opts := &httplimit.Options{Observers: []httplimit.Observer{p.Observer()}}
	h := httplimit.Middleware(p.lim, opts, rules...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return func(times int, key string) int {
		var w *httptest.ResponseRecorder
		for range times {
			r := httptest.NewRequest("GET", "/", nil)
			if key != "" {
				r.Header.Set("X-Key", key)
			}
			w = httptest.NewRecorder()
			h.ServeHTTP(w, r)
		}
		return w.Code
	}
}

var byKey = httplimit.ByHeader(perKey, "X-Key")

// get returns the page's answer to a query. fields are names and values.
func get(p *Page, query string, fields ...string) *httptest.ResponseRecorder {
	return do(p, "GET", query, nil, fields...)
}

func do(p *Page, method, query string, body io.Reader, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://page.example/"+query, body)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// limitOf returns what a report has about the limit of a label, or nil.
func limitOf(rep *status.Report, label string) *status.LimitReport {
	for i := range rep.Limits {
		if rep.Limits[i].Label == label {
			return &rep.Limits[i]
		}
	}
	return nil
}

// faultyStore is a MemStore with calls replaced.
type faultyStore struct {
	stint.Store
	save func() error
	load func(stint.Key) error
}

func (s faultyStore) Save(changes []stint.Change) error {
	if s.save != nil {
		if err := s.save(); err != nil {
			return err
		}
	}
	return s.Store.Save(changes)
}

func (s faultyStore) Load(key stint.Key) (int64, error) {
	if s.load != nil && key != (stint.Key{}) { // New reads the time of the last save
		if err := s.load(key); err != nil {
			return 0, err
		}
	}
	return s.Store.Load(key)
}
