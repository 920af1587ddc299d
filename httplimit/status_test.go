package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func reportOf(t *testing.T, s *StatusPage) *report {
	t.Helper()
	res := get(t, serve(t, s).URL+"?format=json")
	require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	var rep report
	require.NoError(t, json.Unmarshal([]byte(res.body), &rep))
	return &rep
}

func (rep *report) limit(label string) *limitReport {
	for i := range rep.Limits {
		if rep.Limits[i].Label == label {
			return &rep.Limits[i]
		}
	}
	return nil
}

func TestStatusReport(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	s := StatusHandler(lim, nil)
	srv := serve(t, New(lim, &Options{OnDecision: s.Observe},
		Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(perKey, "X-Key"), Optional: true})(http.HandlerFunc(status)))
	statuses(t, 8, srv.URL)
	statuses(t, 1, srv.URL, "X-Key", "k")
	clock.pass(12 * time.Second)
	statuses(t, 1, srv.URL, "X-Key", "k")

	rep := reportOf(t, s)
	require.True(t, rep.Healthy)
	require.Zero(t, rep.FileBytes, "it has none")
	require.Len(t, rep.Limits, len(testNames))
	require.Empty(t, rep.limit("off").Limit)

	address := rep.limit("address")
	require.Equal(t, "5/1m", address.Limit)
	require.Equal(t, [3]int64{6, 4, 0}, [3]int64{address.Allowed, address.Denied, address.Errors})
	require.Len(t, address.Fullest, 1)
	require.Len(t, address.MostDenied, 1)
	b := address.MostDenied[0]
	require.Equal(t, "127.0.0.1", b.ID)
	require.EqualValues(t, 4, b.Denied)
	require.EqualValues(t, 12, b.RetryAfter)
	require.EqualValues(t, 60, b.ResetAfter)
	key := rep.limit("key").Fullest[0]
	require.Equal(t, [2]int64{4, 5}, [2]int64{key.Remaining, key.Burst})
	require.EqualValues(t, 12, key.ResetAfter)

	require.EqualValues(t, 4, left(t, lim, local[perKey]), "the page spends nothing")
}

// Of the buckets, the ones that are denied longest come first, and then those with the least left, however much was spent.
func TestStatusFullestFirst(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	s := StatusHandler(lim, nil)
	srv := serve(t, New(lim, &Options{OnDecision: s.Observe}, Rule{Key: ByHeader(perKey, "X-Key")})(http.HandlerFunc(status)))
	statuses(t, 4, srv.URL, "X-Key", "refilled")
	clock.pass(36 * time.Second)
	statuses(t, 3, srv.URL, "X-Key", "fuller")
	statuses(t, 1, srv.URL, "X-Key", "held")
	require.NoError(t, lim.Hold(perKey.Key("held"), lim.Now().Add(time.Hour)))
	var ids []string
	for _, b := range reportOf(t, s).limit("key").Fullest {
		ids = append(ids, b.ID)
	}
	require.Equal(t, []string{"held", "fuller", "refilled"}, ids)
}

// What is certain of the chart: when the middleware has decided, however long nobody looks after that, and how much others have.
func TestStatusChart(t *testing.T) {
	clock := &testClock{base: time.Unix(1_000_000_000, 0)} // at the beginning of a slot
	lim, err := stint.New(stint.NewMemStore(), testLimits(t, nil), &stint.Options{Now: clock.now})
	require.NoError(t, err)
	defer lim.Close()
	s := StatusHandler(lim, nil)
	h := New(lim, &Options{OnDecision: s.Observe}, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
	request := func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) }
	burst := func() {
		for range 100 {
			request()
			clock.pass(5 * time.Millisecond)
		}
	}
	history := func(pass time.Duration) (allowed, denied []float64) {
		clock.pass(pass)
		l := s.report().limit("address")
		return l.AllowedHistory, l.DeniedHistory
	}

	burst() // 5 and 95
	for range 24 {
		require.True(t, lim.Allow(perAddress.Key("elsewhere")))
		clock.pass(10 * time.Second)
	}
	allowed, denied := history(-500 * time.Millisecond)
	require.Len(t, allowed, slots-1)
	first := slots - 1 - 48 // slots ago, all of which are over
	require.Zero(t, allowed[first-1])
	require.Zero(t, denied[first-1])
	require.InDelta(t, 1.1, allowed[first], 1e-9)
	require.InDelta(t, 19, denied[first], 1e-9)
	for i := first + 1; i < slots-1; i++ {
		require.InDelta(t, 0.1, allowed[i], 1e-9, i)
		require.Zero(t, denied[i])
	}

	burst() // as soon as it was looked at, and the next to look is a request
	clock.pass(100 * time.Second)
	request()
	allowed, denied = history(4500 * time.Millisecond)
	first = slots - 1 - 21
	require.InDelta(t, 1, allowed[first], 0.1)
	require.InDelta(t, 19, denied[first], 0.1)
	require.InDelta(t, 0, denied[first+1], 0.1)
	require.InDelta(t, 0, denied[slots-2], 0.1)
}

// What a rule in the shadow denies is not shown as if somebody had been stopped, nor is a check as if something were spent.
func TestStatusOfShadowRules(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	s := StatusHandler(lim, nil)
	srv := serve(t, New(lim, &Options{OnDecision: s.Observe}, Rule{Key: ByIP(perAddress), Shadow: true}, Rule{Key: ByIP(perIP)},
		Rule{Key: ByIP(failures), CountStatus: Failed})(http.HandlerFunc(status)))
	require.Equal(t, "200 200 200 200 200 429", statuses(t, 6, srv.URL))
	require.NoError(t, lim.Reset(perIP.Key("127.0.0.1")))
	require.Equal(t, "200 200", statuses(t, 2, srv.URL))
	rep := reportOf(t, s)
	address, ip := rep.limit("address"), rep.limit("ip")
	require.EqualValues(t, 2, address.Denied)
	require.True(t, address.Shadow)
	require.Empty(t, address.MostDenied)
	require.Len(t, address.Fullest, 1)
	require.False(t, ip.Shadow)
	require.Len(t, ip.MostDenied, 1)
	require.Equal(t, 1, strings.Count(get(t, serve(t, s).URL).body, "2 denied</span> (also by Shadow rules, which stop nobody)"))
	require.Empty(t, s.spent[failures].current.counters)
}

func TestStatusConfiguration(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{
		perKey: {Burst: 5, Count: 5, Period: time.Minute, Queue: 1077, Durability: stint.Memory},
	})
	s := StatusHandler(lim, nil)
	rep := reportOf(t, s)
	require.EqualValues(t, 1077, rep.limit("key").Queue)
	require.Equal(t, "memory", rep.limit("key").Durability)
	require.Zero(t, rep.limit("address").Queue)
	require.Equal(t, "default", rep.limit("address").Durability)
	require.Empty(t, rep.limit("off").Durability)
	page := get(t, serve(t, s).URL).body
	require.Contains(t, page, "5 per minute, queue 1\u202f077 · memory durability")
	require.Contains(t, page, "5 per minute · default durability")
}

// The numbers for Prometheus are those that their names say.
func TestStatusPrometheus(t *testing.T) {
	store := &failsTwice{MemStore: stint.NewMemStore()}
	lim, err := stint.New(store, testLimits(t, nil), &stint.Options{FlushInterval: time.Hour})
	require.NoError(t, err)
	defer lim.Close()
	for range 9 {
		_, err := lim.Spend(perKey.Key("a"), 1)
		require.NoError(t, err)
	}
	for range 3 {
		_, err := lim.Spend(perKey.Key("a"), 6)
		require.ErrorIs(t, err, stint.ErrCostOverBurst)
	}
	require.Error(t, lim.Flush())
	require.Error(t, lim.Flush())
	require.NoError(t, lim.Flush())
	body := get(t, serve(t, StatusHandler(lim, nil)).URL+"?format=prometheus").body
	for _, line := range []string{
		`stint_decisions_total{limit="key",decision="allowed"} 5`, `stint_decisions_total{limit="key",decision="denied"} 4`,
		`stint_errors_total{limit="key"} 3`, "stint_flushes_total 1", "stint_flush_failures_total 2",
	} {
		require.Contains(t, body, line+"\n")
	}
}

type failsTwice struct {
	*stint.MemStore
	saves int
}

func (s *failsTwice) Save(changes []stint.Change) error {
	if s.saves++; s.saves <= 2 {
		return errors.New("disk full")
	}
	return s.MemStore.Save(changes)
}

// Names that are declared no longer have no label, and are told of no more: two series of one name are an error to Prometheus.
func TestStatusOfNamesThatAreGone(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	lim.Allow(perAddress.Key("a"))
	lim.Allow(perKey.Key("a"))
	lim.Allow(failures.Key("a"))
	srv := serve(t, StatusHandler(lim, nil))
	limits, err := stint.NewLimits(stint.Names{failures: {Label: "login", Limit: stint.PerMinute(5)}}, nil, nil)
	require.NoError(t, err)
	require.NoError(t, lim.SetLimits(limits))
	body := get(t, srv.URL+"?format=prometheus").body
	require.Contains(t, body, `stint_decisions_total{limit="login",decision="allowed"} 1`)
	require.NotContains(t, body, `limit=""`)
}

// The page tells of the file, and of the commits that decisions waited for.
func TestStatusOfAFile(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{perKey: {Label: "key", Limit: stint.PerHour(5)}}, nil, nil)
	require.NoError(t, err)
	lim, err := stint.Open(filepath.Join(t.TempDir(), "stint.db"), limits, &stint.Options{Durability: stint.Synced})
	require.NoError(t, err)
	defer lim.Close()
	s := StatusHandler(lim, nil)
	require.NotContains(t, get(t, serve(t, s).URL).body, "Last commit")
	require.True(t, lim.Allow(perKey.Key("a")))
	s = StatusHandler(lim, nil)
	rep := reportOf(t, s)
	require.EqualValues(t, 1, rep.Commit.Count)
	require.Positive(t, rep.Commit.Last)
	require.GreaterOrEqual(t, rep.FileBytes, int64(4*4096))
	require.Contains(t, get(t, serve(t, s).URL).body, "Last commit")
}

// A copy of the file is one that can be opened, with what was just decided in it; it is given to those only who are meant to
// have it, and one at a time.
func TestStatusSnapshot(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{perKey: {Label: "key", Limit: stint.PerHour(5)}}, nil, nil)
	require.NoError(t, err)
	lim, err := stint.Open(filepath.Join(t.TempDir(), "stint.db"), limits, nil)
	require.NoError(t, err)
	defer lim.Close()
	require.True(t, lim.Allow(perKey.Key("a")))

	require.Equal(t, 403, get(t, serve(t, StatusHandler(lim, nil)).URL+"?format=snapshot").StatusCode)
	s := StatusHandler(lim, &StatusOptions{AllowSnapshot: true})
	url := serve(t, s).URL + "?format=snapshot"
	res := get(t, url)
	require.Equal(t, 200, res.StatusCode)
	require.Equal(t, "application/octet-stream", res.Header.Get("Content-Type"))
	path := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, os.WriteFile(path, []byte(res.body), 0o600))
	store, err := stint.OpenBolt(path, nil, &stint.BoltOptions{ReadOnly: true})
	require.NoError(t, err)
	defer store.Close()
	tat, err := store.Load(perKey.Key("a"))
	require.NoError(t, err)
	require.Positive(t, tat)

	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
		require.Equal(t, want, get(t, url, "Sec-Fetch-Site", site).StatusCode, site)
		require.Equal(t, want, do(t, "HEAD", url, "Sec-Fetch-Site", site).StatusCode, site)
	}

	head, err := http.Head(url)
	require.NoError(t, err)
	require.NoError(t, head.Body.Close())
	require.Equal(t, 200, head.StatusCode)

	s.copying.Lock()
	res = get(t, url)
	require.Equal(t, 503, res.StatusCode)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	s.copying.Unlock()

	require.NoError(t, lim.Close())
	require.Equal(t, 503, get(t, url).StatusCode)
	memory, _ := newLimiter(t, nil)
	res = get(t, serve(t, StatusHandler(memory, &StatusOptions{AllowSnapshot: true})).URL+"?format=snapshot")
	require.Equal(t, 503, res.StatusCode)
	require.Contains(t, res.body, "has no file to copy")
}

// A copy that fails half way does not look like a whole one.
func TestStatusSnapshotCutShort(t *testing.T) {
	lim, err := stint.New(halfCopied{stint.NewMemStore()}, testLimits(t, nil), nil)
	require.NoError(t, err)
	defer lim.Close()
	res, err := http.Get(serve(t, StatusHandler(lim, &StatusOptions{AllowSnapshot: true})).URL + "?format=snapshot")
	if err == nil {
		_, err = io.ReadAll(res.Body)
		res.Body.Close()
	}
	require.Error(t, err)
}

type halfCopied struct{ *stint.MemStore }

func (halfCopied) Snapshot(w io.Writer) (int64, error) {
	n, _ := w.Write(make([]byte, 100_000))
	return int64(n), errors.New("disk full")
}

// What is asked again within a second is answered from memory, and what the Limiter has counted is looked at once a second.
func TestStatusIsCheap(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	s := StatusHandler(lim, nil)
	first := s.report()
	require.Same(t, first, s.report())
	clock.pass(time.Second)
	require.NotSame(t, first, s.report())

	s = StatusHandler(lim, nil)
	before := s.looked
	for i := range 100_000 {
		key := perKey.Key(fmt.Sprint("flood", i))
		s.Observe(nil, []Decision{{Decision: stint.Decision{Key: key}, Cost: 1}})
	}
	require.Equal(t, before, s.looked)
	require.Len(t, s.denied[perKey].current.counters, tallied)
	require.Len(t, s.denied[perKey].current.index, tallied)
	require.Zero(t, lim.Stats().Resident)
}

// Requests do not wait while a report is made, which may wait for the disk.
func TestReportStallsNobody(t *testing.T) {
	store := &stalledLoads{stint.NewMemStore(), make(chan struct{}), make(chan struct{})}
	clock := newTestClock()
	lim, err := stint.New(store, testLimits(t, nil), &stint.Options{Now: clock.now})
	require.NoError(t, err)
	defer lim.Close()
	s := StatusHandler(lim, nil)
	observe := func() {
		s.Observe(nil, []Decision{{Decision: stint.Decision{Key: perKey.Key("a"), Allowed: true}, Cost: 1}})
	}
	observe()
	done := make(chan *report)
	go func() { done <- s.report() }()
	<-store.loading
	clock.pass(time.Minute)
	observe() // deadlocks if it waits for the report
	close(store.release)
	<-done
	observe()
	require.True(t, s.looked.Equal(clock.now()), "and now it can")
}

// stalledLoads is a store that loads nothing until it is released.
type stalledLoads struct {
	*stint.MemStore
	loading, release chan struct{}
}

func (s *stalledLoads) Load(key stint.Key) (int64, error) {
	s.loading <- struct{}{}
	<-s.release
	return s.MemStore.Load(key)
}

func TestHiddenIDs(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	s := StatusHandler(lim, &StatusOptions{HideIDs: true})
	srv := serve(t, New(lim, &Options{OnDecision: s.Observe}, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	statuses(t, 7, srv.URL)
	page := serve(t, s)
	for _, format := range []string{"", "json", "prometheus"} {
		require.NotContains(t, get(t, page.URL+"?format="+format).body, "127.0.0.1")
	}
	require.Regexp(t, `#[0-9a-f]{6}`, get(t, page.URL).body)

	// Nor is what an error says.
	lim, err := stint.New(unreadable{stint.NewMemStore()}, testLimits(t, nil), nil)
	require.NoError(t, err)
	s = StatusHandler(lim, &StatusOptions{HideIDs: true, AllowReset: true})
	s.Observe(nil, []Decision{{Decision: stint.Decision{Key: perKey.Key("name"), Allowed: true}, Cost: 1}})
	require.False(t, lim.Allow(perKey.Key("name")))
	require.ErrorContains(t, lim.Health(), "name")
	page = serve(t, s)
	require.Contains(t, get(t, page.URL).body, "the error may name ids, which this page hides")
	for _, format := range []string{"", "json", "prometheus"} {
		require.NotContains(t, get(t, page.URL+"?format="+format).body, "key name")
	}
	require.NoError(t, lim.Close())
	res, err := http.PostForm(page.URL, url.Values{"reset": {s.token(perKey.Key("name"))}})
	require.NoError(t, err)
	require.Equal(t, "The bucket could not be reset: the error may name ids, which this page hides\n", read(t, res))
}

type unreadable struct{ *stint.MemStore }

func (unreadable) Load(key stint.Key) (int64, error) {
	return 0, fmt.Errorf("cannot read key %v", key.ID)
}

func TestStatusReset(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	allowed, forbidden := StatusHandler(lim, &StatusOptions{AllowReset: true}), StatusHandler(lim, nil)
	both := func(r *http.Request, ds []Decision) { allowed.Observe(r, ds); forbidden.Observe(r, ds) }
	srv := serve(t, New(lim, &Options{OnDecision: both}, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	statuses(t, 6, srv.URL)
	page, other := serve(t, allowed), serve(t, forbidden)
	token := reportOf(t, allowed).limit("address").MostDenied[0].Token
	post := func(url, token string, fields ...string) response {
		req, err := http.NewRequest("POST", url, strings.NewReader("reset="+token))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		res.Body.Close()
		return response{Response: res}
	}
	host, err := url.Parse(page.URL)
	require.NoError(t, err)

	require.Equal(t, 403, post(other.URL, forbidden.token(perAddress.Key("127.0.0.1"))).StatusCode, "it was not told so")
	require.Equal(t, 403, post(page.URL, token, "Sec-Fetch-Site", "cross-site").StatusCode)
	require.Equal(t, 403, post(page.URL, token, "Sec-Fetch-Site", "same-site").StatusCode)
	require.Equal(t, 403, post(page.URL, token, "Origin", "https://evil.example").StatusCode)
	require.Equal(t, 403, post(page.URL, token, "Origin", "null").StatusCode)
	require.Equal(t, 404, post(page.URL, strings.Repeat("0", 32)).StatusCode)
	require.Equal(t, 404, post(page.URL, "").StatusCode)
	require.Equal(t, 405, do(t, "DELETE", page.URL).StatusCode)
	require.Equal(t, 404, post(page.URL, token+"&padding="+strings.Repeat("x", 1<<12)).StatusCode, "it is too long")
	require.EqualValues(t, 0, left(t, lim, local[perAddress]))
	require.NotContains(t, get(t, other.URL).body, "<form")

	res := post(page.URL, token, "Sec-Fetch-Site", "same-origin", "Origin", "http://"+host.Host)
	require.Equal(t, 303, res.StatusCode)
	require.Equal(t, "?", res.Header.Get("Location"))
	require.EqualValues(t, 5, left(t, lim, local[perAddress]))
	require.Empty(t, reportOf(t, allowed).limit("address").Fullest, "who comes back to the page sees it at once")

	require.NoError(t, lim.Hold(local[perAddress], lim.Now().Add(time.Hour)))
	require.Equal(t, 303, post(page.URL, token, "Origin", "http://"+host.Host).StatusCode)
	require.Equal(t, 200, get(t, srv.URL).StatusCode, "the hold is over too")
}

func TestStatusPageHTML(t *testing.T) {
	names := stint.Names{1: {Label: `<script>alert("label")</script>`}}
	limits, err := stint.NewLimits(names, map[stint.Name]stint.Limit{1: stint.PerDay(2000).WithBurst(7)}, map[stint.Name][]stint.Override{
		1: {{IDs: []stint.OverrideID{{ID: "a"}, {ID: "b"}}, Limit: stint.PerHour(1)}},
	})
	require.NoError(t, err)
	clock := newTestClock()
	lim, err := stint.New(failingStore{stint.NewMemStore()}, limits, &stint.Options{Now: clock.now})
	require.NoError(t, err)
	defer lim.Close()
	s := StatusHandler(lim, &StatusOptions{Title: "A & B"})
	h := New(lim, &Options{OnDecision: s.Observe}, Rule{Key: ByHeader(1, "X-Key")})(http.HandlerFunc(status))
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Key", `"><img src=x>`)
	h.ServeHTTP(httptest.NewRecorder(), r)
	require.Error(t, lim.Flush())

	res := get(t, serve(t, s).URL)
	require.Equal(t, "5", res.Header.Get("Refresh"))
	require.Contains(t, res.Header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Contains(t, res.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	require.Equal(t, "same-origin", res.Header.Get("Referrer-Policy"), "the forms need an Origin")
	for _, format := range []string{"", "json", "prometheus"} {
		require.Equal(t, "no-store", get(t, serve(t, s).URL+"?format="+format).Header.Get("Cache-Control"))
	}
	require.NotContains(t, res.body, "<script")
	require.NotContains(t, res.body, "<img")
	require.NotContains(t, res.body, "http://")
	require.NotContains(t, res.body, "https://")
	for _, text := range []string{"A &amp; B", "Something is wrong", "disk full", "2\u202f000 per day, burst 7", "2 overrides", "6 of 7"} {
		require.Contains(t, res.body, text)
	}
	require.Empty(t, get(t, serve(t, s).URL+"?refresh=0").Header.Get("Refresh"))
	require.Equal(t, "1", get(t, serve(t, StatusHandler(lim, &StatusOptions{Refresh: -1})).URL).Header.Get("Refresh"))
	require.Equal(t, 400, get(t, serve(t, s).URL+"?format=xml").StatusCode)
	require.Contains(t, get(t, serve(t, s).URL+"?format=prometheus").body, "stint_healthy 0\n")
}

type failingStore struct{ *stint.MemStore }

func (failingStore) Save([]stint.Change) error { return errors.New("disk full") }

func TestSeries(t *testing.T) {
	start := time.Unix(1_000_000_000, 0) // at the beginning of a slot
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	last := func(s *series, n int) (allowed, denied []float64) {
		a, d := s.perSecond()
		require.Len(t, a, slots-1)
		return a[len(a)-n:], d[len(d)-n:]
	}
	var s series
	s.add(at(0), at(5), 50, 5)
	s.add(at(5), at(15), 20, 0)
	allowed, denied := last(&s, 4)
	require.Equal(t, []float64{0, 10, 2, 2}, allowed)
	require.Equal(t, []float64{0, 1, 0, 0}, denied)

	s.add(at(15), at(16), 100, 0)
	s.add(at(16), at(21), 100, 0)
	allowed, _ = last(&s, 2)
	require.InDeltaSlice(t, []float64{2, 36}, allowed, 1e-9, "the current slot is not over")

	s.advance(at(21 + 300))
	allowed, _ = s.perSecond()
	require.Equal(t, make([]float64, slots-1), allowed, "all of it is long ago")

	s.add(at(321), at(321+3000), 3000, 0)
	allowed, _ = s.perSecond()
	require.InDelta(t, 1, allowed[0], 1e-9, "what a long silence ends with was spread over it")
}

func TestTally(t *testing.T) {
	var l lately
	now := time.Unix(1_000_000_000, 0)
	heavy := perKey.Key("heavy")
	for i := range 10_000 {
		l.add(now, perKey.Key(fmt.Sprint(i)), 1)
		if i%20 == 0 {
			l.add(now, heavy, 1)
		}
	}
	top := l.counts(now)[0]
	require.Equal(t, heavy, top.key, "no flood hides it")
	require.LessOrEqual(t, top.n, int64(500), "and nothing is said of it that is not certain")
	require.Greater(t, top.n, int64(250))

	l.add(now.Add(generation), heavy, 7)
	require.Equal(t, top.n+7, l.counts(now.Add(generation))[0].n)
	l.add(now.Add(2*generation), heavy, 1)
	require.Equal(t, []counter{{key: heavy, n: 8}}, l.counts(now.Add(2*generation)))
	require.Empty(t, l.counts(now.Add(4*generation)))
	l.add(now.Add(9*generation), heavy, 1)
	require.Equal(t, []counter{{key: heavy, n: 1}}, l.counts(now.Add(9*generation)))
}

// An id may be a part of a header of a megabyte, which is not kept for it.
func TestTallyKeepsNoRequest(t *testing.T) {
	header := strings.Repeat("id=0123456789; ", tallied)
	begin := uintptr(unsafe.Pointer(unsafe.StringData(header)))
	var found tally
	for n := range tallied + 1 { // one takes the place of another
		found.add(perKey.Key(header[n:n+12]), 1)
		found.add(perKey.Key(header[n:n+13]), 1)
	}
	inside := func(key stint.Key) bool {
		return uintptr(unsafe.Pointer(unsafe.StringData(key.ID)))-begin < uintptr(len(header))
	}
	require.True(t, inside(perKey.Key(header[1:])))
	for _, c := range found.counters {
		require.False(t, inside(c.key))
	}
	for key := range found.index {
		require.False(t, inside(key))
	}
}

func TestTexts(t *testing.T) {
	for _, tc := range [][2]string{
		{rateText(0), "0"}, {rateText(0.01), "<0.1"}, {rateText(0.24), "0.2"}, {rateText(3), "3"}, {rateText(9.96), "10"},
		{rateText(1234.4), "1\u202f234"},
		{countText(1234567), "1\u202f234\u202f567"}, {countText(123), "123"}, {countText(-1234), "-1\u202f234"},
		{bytesText(0), "0\u202fB"}, {bytesText(1536), "1.5\u202fKiB"}, {bytesText(16 << 20), "16.0\u202fMiB"}, {bytesText(200 << 30), "200\u202fGiB"},
		{durationText(0), "–"}, {durationText(0.00025), "250\u202fµs"}, {durationText(0.0125), "12.5\u202fms"}, {durationText(2), "2.0\u202fs"},
		{waitText(0), "now"}, {waitText(0.1), "1\u202fs"}, {waitText(60), "1\u202fmin"}, {waitText(3601), "2\u202fh"}, {waitText(1e6), "12\u202fd"},
		{fmt.Sprint(niceCeil(0)), "0.1"}, {fmt.Sprint(niceCeil(0.3)), "0.5"}, {fmt.Sprint(niceCeil(101)), "200"}, {fmt.Sprint(niceCeil(1000)), "1000"},
	} {
		require.Equal(t, tc[1], tc[0])
	}
	for limit, want := range map[stint.Limit]string{
		stint.PerSecond(100):                           "100 per second",
		stint.PerMinute(5).WithBurst(20):               "5 per minute, burst 20",
		{Burst: 5, Count: 5, Period: 15 * time.Minute}: "5 per 15 minutes",
		{Burst: 5, Count: 5, Period: 36 * time.Hour}:   "5 per 36 hours",
		{Burst: 5, Count: 5, Period: 90 * time.Second}: "5 per 90 seconds",
		{Burst: 5, Count: 5, Period: time.Millisecond}: "5 per 1ms",
	} {
		rep := limitReport{Limit: limit.String(), Burst: limit.Burst, Count: limit.Count, Period: limit.Period.Seconds()}
		require.Equal(t, want, limitText(rep))
	}
}
