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
	var rep report
	require.NoError(t, json.Unmarshal(res.Body.Bytes(), &rep))
	require.True(t, rep.Healthy)
	require.Zero(t, rep.FileBytes)
	require.Len(t, rep.Limits, len(testNames))
	require.Empty(t, rep.limit("off").Limit)

	address := rep.limit("address")
	require.Equal(t, "5/1m", address.Limit)
	require.Equal(t, [3]int64{6, 4, 0}, [3]int64{address.Allowed, address.Denied, address.Errors})
	require.Len(t, address.Fullest, 1)
	require.Len(t, address.MostDenied, 1)
	b := address.MostDenied[0]
	require.Equal(t, client.ID, b.ID)
	b.bucketID = bucketID{}
	require.Equal(t, bucketReport{Burst: 5, RetryAfter: 12, ResetAfter: 60, Denied: 4}, b)
	key := rep.limit("key").Fullest[0]
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
	for _, b := range p.report().limit("key").Fullest {
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
		l := p.report().limit("address")
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
	require.Contains(t, html, `50/s</p>`)
}

// A denial by a Shadow rule is not listed as a denial, and a check of a rule
// with Count not as a spend.
func TestReportShadowAndAfter(t *testing.T) {
	p, lim, _ := newPage(t, nil, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress), Shadow: true}, httplimit.Rule{Key: byKey},
		httplimit.Rule{Key: httplimit.ByIP(failures), Count: httplimit.AuthFailed})
	require.Equal(t, 200, ask(5, "k"))
	require.Equal(t, 429, ask(1, "k"))
	require.NoError(t, lim.Reset(perKey.Key("k")))
	require.Equal(t, 200, ask(2, "k"))
	rep := p.report()
	address, key := rep.limit("address"), rep.limit("key")
	require.EqualValues(t, 2, address.Denied)
	require.True(t, address.Shadow)
	require.Empty(t, address.MostDenied)
	require.Len(t, address.Fullest, 1)
	require.False(t, key.Shadow)
	require.Len(t, key.MostDenied, 1)
	require.Contains(t, get(p, "").Body.String(),
		"2 denied</span> (including those of Shadow rules, which stop no request)")
	require.Empty(t, p.observed[failures].spent.current.all)
}

func TestReportConfiguration(t *testing.T) {
	lim, _ := newLimiter(t, nil, map[stint.Name]stint.Limit{
		perKey: {Burst: 5, Count: 5, Period: time.Minute, Queue: 1077, Durability: stint.Memory},
	})
	p := New(lim, nil)
	rep := p.report()
	key, address := rep.limit("key"), rep.limit("address")
	require.EqualValues(t, 1077, key.Queue)
	require.Equal(t, []string{"memory", "flushed", ""},
		[]string{key.Durability, address.Durability, rep.limit("off").Durability})
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
	rep := p.report()
	require.EqualValues(t, 1, rep.Commit.Count)
	require.Positive(t, rep.Commit.Last)
	require.GreaterOrEqual(t, rep.FileBytes, int64(4*4096))
	require.Contains(t, get(p, "").Body.String(), "Last commit")
	require.Equal(t, "synced", rep.limit("key").Durability, "the Limiter's default")
	for _, metric := range []string{`file_bytes`, `file_free_bytes`, `journal_bytes`, `journal_buckets`,
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
	fields(reflect.TypeFor[report]())
}

func TestReportReuse(t *testing.T) {
	p, _, clock := newPage(t, nil, nil)
	first := p.report()
	require.Same(t, first, p.report())
	clock.Advance(time.Second)
	require.NotSame(t, first, p.report())
}

func TestObserver(t *testing.T) {
	t.Run("flood", func(t *testing.T) {
		lim, _ := newLimiter(t, nil, nil)
		p := New(lim, nil)
		before := p.looked
		for i := range 100_000 {
			p.Observer().Decisions(nil, denied(perKey.Key(fmt.Sprint("flood", i))))
		}
		require.Equal(t, before, p.looked, "no sample within a second")
		require.Len(t, p.observed[perKey].denied.current.all, maxCounters)
		require.Len(t, p.observed[perKey].denied.current.index, maxCounters)
		require.Zero(t, lim.Stats().Resident)
	})
	t.Run("while a report waits for the store", func(t *testing.T) {
		loading, release := make(chan struct{}), make(chan struct{})
		lim, clock := newLimiter(t, faultyStore{Store: stint.NewMemStore(), load: func(stint.Key) error {
			loading <- struct{}{}
			<-release
			return nil
		}}, nil)
		p := New(lim, nil)
		p.observe(nil, allowed(perKey.Key("a")))
		done := make(chan *report)
		go func() { done <- p.report() }()
		<-loading
		clock.Advance(time.Minute)
		p.observe(nil, allowed(perKey.Key("a"))) // a deadlock if it waits for the report
		close(release)
		<-done
		p.observe(nil, allowed(perKey.Key("a")))
		require.True(t, p.looked.Equal(clock.Now()), "a sample is taken again")
	})
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
			`stint_decisions_total{limit="key",decision="allowed"} 5`, `stint_decisions_total{limit="key",decision="denied"} 4`,
			`stint_errors_total{limit="key"} 3`, "stint_flushes_total 1", "stint_flush_failures_total 2",
			"stint_flushed_buckets_total 1", "stint_commits_total 0", "stint_healthy 1",
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
		require.Contains(t, body, `stint_decisions_total{limit="login",decision="allowed"} 1`)
		require.NotContains(t, body, `limit=""`)
	})
}

func TestHideIDs(t *testing.T) {
	lim, _ := newLimiter(t, faultyStore{Store: stint.NewMemStore(), load: func(key stint.Key) error {
		if key.ID == "unreadable" {
			return fmt.Errorf("cannot read key %v", key.ID)
		}
		return nil
	}}, nil)
	p := New(lim, &Options{HideIDs: true, AllowReset: true})
	asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})(7, "")
	p.observe(nil, allowed(perKey.Key("unreadable")))
	require.False(t, lim.Allow(perKey.Key("unreadable")))
	require.ErrorContains(t, lim.Health(), "unreadable")
	require.NoError(t, errorOf(lim.Hold(client, lim.Now().Add(time.Hour))))
	for _, query := range []string{"?", "?format=json", "?format=prometheus", "?id=" + client.ID,
		"?reset=" + p.bucketID(client).Token} {
		body := get(p, query).Body.String()
		require.NotContains(t, body, client.ID)
		require.NotContains(t, body, `role="search"`)
		require.NotContains(t, body, "key unreadable")
	}
	html := get(p, "").Body.String()
	require.Regexp(t, `#[0-9a-f]{6}`, html)
	require.Contains(t, html, "the error may name ids, which this page hides")

	require.NoError(t, lim.Close())
	res := post(p, "reset="+p.bucketID(client).Token)
	require.Equal(t, http.StatusServiceUnavailable, res.Code)
	require.Equal(t, "The bucket could not be changed: the error may name ids, which this page hides\n", res.Body.String())
}

// A blocked client is shown as denied, and its limit as blocked.
func TestReportBlocked(t *testing.T) {
	p, _, _ := newPage(t, nil, map[stint.Name]stint.Limit{perAddress: stint.Blocked})
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	require.Equal(t, http.StatusTooManyRequests, ask(3, ""))
	rep := p.report()
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
		before := p.report()
		clock.Advance(-back)
		for range 5 {
			_, err := lim.Spend(perKey.Key(back.String()), 1)
			require.NoError(t, err)
		}
		clock.Advance(2 * time.Second)
		after := p.report()
		require.True(t, clock.Now().Equal(after.Time), "it is of %v", after.Time)
		require.EqualValues(t, before.limit("key").Allowed+5, after.limit("key").Allowed)
	}
	clock.Advance(slotLen)
	var sum float64
	for _, perSecond := range p.report().limit("key").AllowedHistory {
		sum += perSecond * slotLen.Seconds()
	}
	require.InDelta(t, 5, sum, 0.01, "the charts begin anew")
}
