package statuspage

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/status"
	"github.com/stint-go/stint/rules"
)

func TestReport(t *testing.T) {
	p, lim, clock := newPage(t, nil, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)}, httplimit.Rule{Key: byKey, Optional: true})
	ask(8, "")
	ask(1, "k")
	clock.Advance(12 * time.Second)
	ask(1, "k")

	res := get(p, "?format=json")
	require.Equal(t, "application/json", res.Header().Get("Content-Type"))
	rep := new(status.Report)
	require.NoError(t, json.Unmarshal(res.Body.Bytes(), rep))
	require.True(t, rep.Healthy)
	require.Zero(t, rep.FileBytes)
	require.Len(t, rep.Limits, len(testNames))
	require.Empty(t, limitOf(rep, "off").Limit)

	address := limitOf(rep, "address")
	require.Equal(t, "5/1m", address.Limit)
	require.Equal(t, [3]int64{6, 4, 0}, [3]int64{address.Allowed, address.Denied, address.Errors})
	require.Len(t, address.Fullest, 1)
	require.Len(t, address.MostDenied, 1)
	b := address.MostDenied[0]
	require.Equal(t, client.ID, b.ID)
	b.BucketID = status.BucketID{}
	require.Equal(t, status.BucketReport{Burst: 5, RetryAfter: 12, ResetAfter: 60, Denied: 4}, b)
	key := limitOf(rep, "key").Fullest[0]
	require.Equal(t, [2]int64{4, 5}, [2]int64{key.Remaining, key.Burst})
	require.EqualValues(t, 12, key.ResetAfter)

	d, err := lim.Check(perKey.Key("k"), 0)
	require.NoError(t, err)
	require.EqualValues(t, 4, d.Remaining, "the page spends nothing")
}

// Buckets with the longest wait come first, then those with the fewest tokens.
func TestReportFullestFirst(t *testing.T) {
	p, lim, clock := newPage(t, nil, nil)
	ask := asker(p, httplimit.Rule{Key: byKey})
	ask(4, "refilled")
	clock.Advance(36 * time.Second)
	ask(3, "fuller")
	ask(1, "held")
	require.NoError(t, errorOf(lim.Hold(perKey.Key("held"), lim.Now().Add(time.Hour))))
	var ids []string
	for _, b := range limitOf(p.collector.Report(), "key").Fullest {
		ids = append(ids, b.ID)
	}
	require.Equal(t, []string{"held", "fuller", "refilled"}, ids)
}

// The chart is exact about when observed decisions were made, and about how
// many others there were.
func TestReportChart(t *testing.T) {
	p, lim, clock := newPage(t, nil, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	burst := func() { // 5 are allowed, 95 denied
		for range 100 {
			ask(1, "")
			clock.Advance(5 * time.Millisecond)
		}
	}
	history := func(pass time.Duration) (allowed, denied []float64) {
		clock.Advance(pass)
		l := limitOf(p.collector.Report(), "address")
		return l.AllowedHistory, l.DeniedHistory
	}

	burst()
	for range 24 {
		require.True(t, lim.Allow(perAddress.Key("192.0.2.99")))
		clock.Advance(10 * time.Second)
	}
	allowed, denied := history(-500 * time.Millisecond)
	require.Len(t, allowed, slots-1)
	first := slots - 1 - 48 // the slot of the burst
	require.Zero(t, allowed[first-1])
	require.Zero(t, denied[first-1])
	require.InDelta(t, 1.1, allowed[first], 1e-9)
	require.InDelta(t, 19, denied[first], 1e-9)
	for i := first + 1; i < slots-1; i++ {
		require.InDelta(t, 0.1, allowed[i], 1e-9, i)
		require.Zero(t, denied[i])
	}

	burst() // right after a sample; a request takes the next sample
	clock.Advance(100 * time.Second)
	ask(1, "")
	allowed, denied = history(4500 * time.Millisecond)
	first = slots - 1 - 21
	require.InDelta(t, 1, allowed[first], 0.1)
	require.InDelta(t, 19, denied[first], 0.1)
	require.InDelta(t, 0, denied[first+1], 0.1)
	require.InDelta(t, 0, denied[slots-2], 0.1)
	html := get(p, "").Body.String()
	require.Contains(t, html, `<path class="grid"`)
	require.Contains(t, html, `<path class="fa" d="M`)
	require.Contains(t, html, `<path class="fd" d="M`)
	require.Contains(t, html, `20/s</p>`)
}

// After idle minutes, the first request has a bar in its own slot only.
func TestReportChartIdle(t *testing.T) {
	p, _, clock := newPage(t, nil, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	get(p, "") // an operator looks, and again after five minutes
	clock.Advance(5 * time.Minute)
	ask(1, "")
	clock.Advance(5 * time.Second)
	get(p, "")
	var bars []int
	for i, perSecond := range limitOf(p.collector.Report(), "address").AllowedHistory {
		if perSecond > 0 {
			bars = append(bars, i)
		}
	}
	require.Equal(t, []int{slots - 2}, bars)
}

// Denials by a lock-out, by a check of a rule with Count and for want of a place are
// what clients were told, and no decisions of a bucket to spend.
func TestReportRequests(t *testing.T) {
	p, lim, _ := newPage(t, nil, nil)
	all := func(int) bool { return true }
	login := asker(p, httplimit.Rule{Key: httplimit.ByIP(failures), Count: all, LockOut: time.Hour})
	for i := range 13 {
		require.Equal(t, i < 5, login(1, "") == 200, i)
	}
	none := func(*http.Request) int64 { return -1 }
	places := asker(p, httplimit.Rule{Key: byKey, InFlightFunc: none})
	require.Equal(t, 429, places(2, "k"))
	bound := asker(p, httplimit.Rule{Key: byKey, InFlightFunc: none, Shadow: true})
	require.Equal(t, 200, bound(3, "k"))
	broken := asker(p, httplimit.Rule{Key: httplimit.ByHeader(perKey, "X-None")})
	require.Equal(t, 400, broken(1, ""))

	rep := p.collector.Report()
	failed, key := limitOf(rep, "login"), limitOf(rep, "key")
	require.Equal(t, []int64{5, 0, 5, 8, 0, 0}, []int64{failed.Allowed, failed.Denied, failed.RequestsAllowed,
		failed.RequestsDenied, failed.ShadowDenied, failed.InFlightDenied})
	require.Equal(t, []int64{3, 0, 0, 2, 3, 5}, []int64{key.Allowed, key.Denied, key.RequestsAllowed,
		key.RequestsDenied, key.ShadowDenied, key.InFlightDenied})
	require.EqualValues(t, 8, failed.MostDenied[0].Denied)
	html, text := get(p, "").Body.String(), get(p, "?format=prometheus").Body.String()
	require.Contains(t, html, `Requests since the start <span class="a">5 allowed</span>, <span class="d">8 denied</span></p>`)
	require.Contains(t, html, `<span class="d">2 denied</span>, 3 denied by Shadow rules, which stop none</p>`)
	for _, line := range []string{
		`stint_decisions_total{stint_limit="login",stint_decision="denied"} 0`,
		`stint_requests_total{stint_limit="login",stint_decision="allowed"} 5`,
		`stint_requests_total{stint_limit="login",stint_decision="denied"} 8`,
		`stint_requests_total{stint_limit="key",stint_decision="denied",stint_in_flight="true"} 2`,
		`stint_requests_total{stint_limit="key",stint_decision="denied",stint_shadow="true",stint_in_flight="true"} 3`,
		`stint_requests_total{stint_decision="error"} 1`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.NotContains(t, get(New(lim, nil), "?format=prometheus").Body.String(), "stint_requests_total")
}

// A denial by a Shadow rule is not listed as a denial.
func TestReportShadow(t *testing.T) {
	p, lim, _ := newPage(t, nil, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress), Shadow: true}, httplimit.Rule{Key: byKey})
	require.Equal(t, 200, ask(5, "k"))
	require.Equal(t, 429, ask(1, "k"))
	require.NoError(t, lim.Reset(perKey.Key("k")))
	require.Equal(t, 200, ask(2, "k"))
	rep := p.collector.Report()
	address, key := limitOf(rep, "address"), limitOf(rep, "key")
	require.EqualValues(t, 2, address.Denied)
	require.EqualValues(t, 3, address.ShadowDenied, "one of them a check, of a request that the key denied")
	require.Zero(t, address.RequestsDenied)
	require.Empty(t, address.MostDenied)
	require.Len(t, address.Fullest, 1)
	require.Zero(t, key.ShadowDenied)
	require.EqualValues(t, 1, key.RequestsDenied)
	require.Len(t, key.MostDenied, 1)
	require.Contains(t, get(p, "").Body.String(),
		"0 denied</span>, 3 denied by Shadow rules, which stop none</p>")
}

func TestReportConfiguration(t *testing.T) {
	lim, _ := newLimiter(t, nil, map[stint.Name]stint.Limit{
		perKey: {Burst: 5, Count: 5, Period: time.Minute, Queue: 1077, Durability: stint.Memory},
	})
	p := New(lim, nil)
	rep := p.collector.Report()
	key, address := limitOf(rep, "key"), limitOf(rep, "address")
	require.EqualValues(t, 1077, key.Queue)
	require.Equal(t, []string{"memory", "flushed", ""},
		[]string{key.Durability, address.Durability, limitOf(rep, "off").Durability})
	require.Zero(t, address.Queue)
	html := get(p, "").Body.String()
	require.Contains(t, html, "5/1m, queue 1\u202f077 · memory durability")
	require.Contains(t, html, "5/1m · flushed durability")
}

func TestReportFile(t *testing.T) {
	lim, err := stint.Open(filepath.Join(t.TempDir(), "stint.db"), testLimits(t, nil),
		&stint.Options{Durability: stint.Synced})
	require.NoError(t, err)
	defer lim.Close()
	require.NotContains(t, get(New(lim, nil), "").Body.String(), "Last commit")
	require.True(t, lim.Allow(perKey.Key("a")))
	p := New(lim, nil)
	rep := p.collector.Report()
	require.EqualValues(t, 1, rep.Commit.Count)
	require.Positive(t, rep.Commit.Last)
	require.GreaterOrEqual(t, rep.FileBytes, int64(4*4096))
	require.Contains(t, get(p, "").Body.String(), "Last commit")
	require.Equal(t, "synced", limitOf(rep, "key").Durability, "the Limiter's default")
	for _, metric := range []string{`file_size_bytes`, `file_free_bytes`, `journal_size_bytes`, `journal_buckets`,
		`build_info\{version=".+",goversion="go.+"\}`} {
		require.Regexp(t, `(?m)^stint_`+metric+` \d`, get(p, "?format=prometheus").Body.String())
	}
}

// The package documentation has every field of the JSON.
func TestReportDocumentation(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(doc), "// # JSON\n")
	text, _, _ = strings.Cut(text, "// # Files\n")
	var fields func(of reflect.Type)
	fields = func(of reflect.Type) {
		for of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			require.Regexp(t, `\b`+name+`\b`, text)
			fields(of.Field(i).Type)
		}
	}
	fields(reflect.TypeFor[status.Report]())
}

func TestReportReuse(t *testing.T) {
	p, _, clock := newPage(t, nil, nil)
	first := p.collector.Report()
	require.Same(t, first, p.collector.Report())
	clock.Advance(time.Second)
	require.NotSame(t, first, p.collector.Report())
}

func TestPrometheus(t *testing.T) {
	t.Run("numbers", func(t *testing.T) {
		saves := 0
		lim, _ := newLimiter(t, faultyStore{Store: stint.NewMemStore(), save: func() error {
			if saves++; saves <= 2 {
				return errors.New("disk full")
			}
			return nil
		}}, nil)
		for range 9 {
			lim.Allow(perKey.Key("a"))
		}
		for range 3 {
			_, err := lim.Spend(perKey.Key("a"), 6)
			require.ErrorIs(t, err, stint.ErrCostOverBurst)
		}
		require.Error(t, lim.Flush())
		require.Error(t, lim.Flush())
		require.Contains(t, get(New(lim, nil), "?format=prometheus").Body.String(), "stint_healthy 0\n")
		require.NoError(t, lim.Flush())
		body := get(New(lim, nil), "?format=prometheus").Body.String()
		for _, line := range []string{
			`stint_decisions_total{stint_limit="key",stint_decision="allowed"} 5`, `stint_decisions_total{stint_limit="key",stint_decision="denied"} 4`,
			`stint_errors_total{stint_limit="key"} 3`, "stint_flushes_total 1", "stint_flush_failures_total 2",
			"stint_flush_buckets_total 1", "stint_commits_total 0", "stint_healthy 1",
		} {
			require.Contains(t, body, line+"\n")
		}
	})
	// Prometheus refuses two series with the same labels.
	t.Run("undeclared names", func(t *testing.T) {
		lim, _ := newLimiter(t, nil, nil)
		for _, key := range []stint.Key{client, perKey.Key("a"), failures.Key("a")} {
			lim.Allow(key)
		}
		p := New(lim, nil)
		limits, err := stint.NewLimits(stint.Names{failures: {Label: "login", Limit: stint.PerMinute(5)}})
		require.NoError(t, err)
		require.NoError(t, lim.SetLimits(limits))
		body := get(p, "?format=prometheus").Body.String()
		require.Contains(t, body, `stint_decisions_total{stint_limit="login",stint_decision="allowed"} 1`)
		require.NotContains(t, body, `stint_limit=""`)
	})
}

func TestHideIDs(t *testing.T) {
	lim, _ := newLimiter(t, faultyStore{Store: stint.NewMemStore(), load: func(key stint.Key) error {
		if key.ID == "unreadable" {
			return fmt.Errorf("cannot read key %v", key.ID)
		}
		return nil
	}}, nil)
	p := New(lim, &Options{HideIDs: true})
	asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})(7, "")
	p.collector.Observe([]rules.Decision{{Decision: stint.Decision{Allowed: true}, RuleKey: perKey.Key("unreadable"), Cost: 1}})
	require.False(t, lim.Allow(perKey.Key("unreadable")))
	require.ErrorContains(t, lim.Health(), "unreadable")
	require.NoError(t, errorOf(lim.Hold(client, lim.Now().Add(time.Hour))))
	for _, query := range []string{"?", "?format=json", "?format=prometheus", "?id=" + client.ID} {
		body := get(p, query).Body.String()
		require.NotContains(t, body, client.ID)
		require.NotContains(t, body, `role="search"`)
		require.NotContains(t, body, "key unreadable")
	}
	html := get(p, "").Body.String()
	require.Regexp(t, `#[0-9a-f]{6}`, html)
	require.Contains(t, html, "the error may name ids, which this page hides")
	hidden := p.collector.BucketID(client).ID
	require.Equal(t, hidden, p.collector.BucketID(client).ID, "the same until the program ends")
	require.NotEqual(t, hidden, p.collector.BucketID(perKey.Key(client.ID)).ID)
	require.NotEqual(t, hidden, New(lim, &Options{HideIDs: true}).collector.BucketID(client).ID, "nobody can compute it")
}

// A blocked client is shown as denied, and its limit as blocked.
func TestReportBlocked(t *testing.T) {
	p, _, _ := newPage(t, nil, map[stint.Name]stint.Limit{perAddress: stint.Blocked})
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	require.Equal(t, http.StatusTooManyRequests, ask(3, ""))
	rep := p.collector.Report()
	require.Equal(t, "blocked", rep.Limits[0].Limit)
	require.Zero(t, rep.Limits[0].Period)
	require.Contains(t, get(p, "").Body.String(), ">blocked by default")
	denied := rep.Limits[0].MostDenied
	require.Len(t, denied, 1)
	require.EqualValues(t, 3, denied[0].Denied)
	require.Equal(t, "never", waitText(denied[0].RetryAfter))
}

// A clock that is behind, as that of the next owner of a file may be, stops neither
// the report nor the charts.
func TestReportClockBehind(t *testing.T) {
	p, lim, clock := newPage(t, nil, nil)
	for _, back := range []time.Duration{0, time.Hour} {
		clock.Advance(time.Minute)
		before := p.collector.Report()
		clock.Advance(-back)
		for range 5 {
			_, err := lim.Spend(perKey.Key(back.String()), 1)
			require.NoError(t, err)
		}
		clock.Advance(2 * time.Second)
		after := p.collector.Report()
		require.True(t, clock.Now().Equal(after.Time), "it is of %v", after.Time)
		require.EqualValues(t, limitOf(before, "key").Allowed+5, limitOf(after, "key").Allowed)
	}
	clock.Advance(5 * time.Second)
	var sum float64
	for _, perSecond := range limitOf(p.collector.Report(), "key").AllowedHistory {
		sum += perSecond * slotLen.Seconds()
	}
	require.InDelta(t, 5, sum, 0.01, "the charts begin anew")
}
