package httplimit

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
)

const (
	perAddress stint.Name = 1 + iota
	failures
	perKey
	everyone
	off
	oddLabel
	perNumber
	perIP
)

var testNames = stint.Names{
	perAddress: {Label: "address"},
	failures:   {Label: "login"},
	perKey:     {Label: "key"},
	everyone:   {Label: "everyone", IDs: stint.Single},
	off:        {Label: "off"},
	oddLabel:   {Label: `Größe "100%" \`},
	perNumber:  {Label: "number", IDs: idformat.RegID},
	perIP:      {Label: "ip", IDs: stint.IPAddress},
}

// testClock stands still until pass is called.
type testClock struct {
	base time.Time
	gone atomic.Int64
}

func (c *testClock) now() time.Time       { return c.base.Add(time.Duration(c.gone.Load())) }
func (c *testClock) pass(d time.Duration) { c.gone.Add(int64(d)) }
func newTestClock() *testClock            { return &testClock{base: time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC)} }

// limiter is what most tests need. Module redislimit runs them with its own.
type limiter interface {
	SetHold(key stint.Key, until time.Time) error
	stint.Decider
	Reset(keys ...stint.Key) error
	SetLimits(limits *stint.Limits) error
	Close() error
}

// newLimiter returns a Limiter with the limits in others. Each other Name has 5
// a minute, except off, which has no limit.
func newLimiter(t testing.TB, others map[stint.Name]stint.Limit) (limiter, *testClock) {
	t.Helper()
	clock := newTestClock()
	lim := openLimiter(t, testLimits(t, others), clock.now)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim, clock
}

// newMemLimiter is newLimiter with other Options. It has no server.
func newMemLimiter(t testing.TB, others map[stint.Name]stint.Limit, opts *stint.Options) *stint.Limiter {
	t.Helper()
	lim, err := stint.New(stint.NewMemStore(), testLimits(t, others), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim
}

// slowStore has saves that wait for release.
type slowStore struct {
	stint.Store
	release chan struct{}
}

func (s slowStore) Save(changes []stint.Change) error {
	<-s.release
	return s.Store.Save(changes)
}

// newSlowLimiter returns a Limiter whose commits wait until end is called.
func newSlowLimiter(t testing.TB, others map[stint.Name]stint.Limit) (lim *stint.Limiter, end func()) {
	t.Helper()
	s := slowStore{stint.NewMemStore(), make(chan struct{})}
	end = sync.OnceFunc(func() { close(s.release) })
	lim, err := stint.New(s, testLimits(t, others), &stint.Options{
		Durability: stint.Synced, CommitTimeout: time.Hour, FlushInterval: 24 * time.Hour,
		Now: time.Now, // no flush after the first change, whose mutex stops the time of a bubble
	})
	require.NoError(t, err)
	t.Cleanup(func() { end(); require.NoError(t, lim.Close()) })
	return lim, end
}

func testLimits(t testing.TB, others map[stint.Name]stint.Limit) *stint.Limits {
	t.Helper()
	defaults := make(map[stint.Name]stint.Limit)
	for name := range testNames {
		if defaults[name] = stint.PerMinute(5); name == off {
			defaults[name] = stint.Unlimited
		}
	}
	for name, l := range others {
		defaults[name] = l
	}
	limits, err := stint.NewLimits(testNames.WithLimits(defaults))
	require.NoError(t, err)
	return limits
}

// serve starts a server on the loopback interface.
func serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

type response struct {
	*http.Response
	body string
}

// get sends a request. fields are names and values.
func get(t testing.TB, url string, fields ...string) response {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	require.NoError(t, err)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	return response{res, read(t, res)}
}

// read returns the body of a response, to its end.
func read(t testing.TB, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(body)
}

// statuses returns the statuses of n requests, as "200 200 429".
func statuses(t testing.TB, n int, url string, fields ...string) string {
	t.Helper()
	var all []string
	for range n {
		all = append(all, get(t, url, fields...).Status[:3])
	}
	return strings.Join(all, " ")
}

// status answers with the status in the request.
func status(w http.ResponseWriter, r *http.Request) {
	code := 200
	if s := r.URL.Query().Get("status"); s != "" {
		json.Unmarshal([]byte(s), &code)
	}
	w.WriteHeader(code)
}

// withKey returns a request with a key.
func withKey(id string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Key", id)
	return r
}

// answerTo serves a request.
func answerTo(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func left(t testing.TB, lim stint.Decider, key stint.Key) int64 {
	t.Helper()
	d, err := lim.Do(context.Background(), []stint.Request{{Key: key, Mode: stint.CheckOnly}}, nil)
	require.NoError(t, err)
	return d.Remaining
}

func heldUntil(t testing.TB, lim stint.Decider, key stint.Key) time.Time {
	t.Helper()
	b, err := lim.Bucket(key)
	require.NoError(t, err)
	return b.HeldUntil
}

var local = map[stint.Name]stint.Key{ // of clients of serve
	perAddress: perAddress.Key("127.0.0.1"), failures: failures.Key("127.0.0.1"), perKey: perKey.Key("k"),
}

// costing returns a CostFunc.
func costing(n int64) func(*http.Request) int64 {
	return func(*http.Request) int64 { return n }
}

func spend(t testing.TB, lim stint.Decider, key stint.Key, n int64) {
	t.Helper()
	_, err := lim.Do(context.Background(), []stint.Request{key.Cost(n)}, nil)
	require.NoError(t, err)
}

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }
