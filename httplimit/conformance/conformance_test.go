package conformance

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/httplimit/statuspage"
)

var labels = []string{
	"login", "with space", `quo"te`, `back\slash`, `\"`, `"`, "semi;colon", "com,ma", "eq=ual", "100%", "Größe", "日本語",
	"emoji 🐢",
	"tab\tnewline\nreturn\r", "\x00\x7f", "bad\xffutf8", ";r=0", `a";q=1, "b`, strings.Repeat("long ", 40),
}

// limiter returns a Limiter whose clock stands still: a refund leaves out the time
// since the spend began, which on a busy machine is longer than a request takes.
func limiter(t *testing.T, limit func(i int) stint.Limit) *stint.Limiter {
	t.Helper()
	names := stint.Names{}
	for i, label := range labels {
		names[stint.Name(i+1)] = stint.NameSpec{Label: label, Limit: limit(i)}
	}
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	still := time.Now()
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return still }})
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	return lim
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(body)
}

var ok = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// A parser of RFC 9651 reads each header field as it was meant.
func TestStructuredFields(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	random := func(int) stint.Limit {
		l := stint.Limit{Burst: 1 + rnd.Int64N(20), Count: 1 + rnd.Int64N(1000),
			Period: time.Duration(1+rnd.Int64N(1e6)) * time.Millisecond}
		if rnd.IntN(4) == 0 {
			l = stint.Limit{Burst: 1 << rnd.IntN(60), Count: 1e9, Period: time.Second}
		}
		return l
	}
	for range 20 {
		lim := limiter(t, random)
		pk := func(key stint.Key) []byte { return []byte(key.String() + "\x00\xff") }
		var rules []httplimit.Rule
		for i := range labels {
			rules = append(rules, httplimit.Rule{Key: httplimit.ByIP(stint.Name(i + 1))})
		}
		url := serve(t, httplimit.Middleware(lim, &httplimit.Options{PartitionKey: pk}, rules...)(ok))
		for range 25 {
			res, _ := get(t, url)
			policies, err := httpsfv.UnmarshalList(res.Header.Values("RateLimit-Policy"))
			require.NoError(t, err, res.Header)
			states, err := httpsfv.UnmarshalList(res.Header.Values("RateLimit"))
			require.NoError(t, err, res.Header)
			require.Len(t, policies, len(labels))
			require.Len(t, states, len(labels))
			empty := int64(0) // longest window with nothing left
			for i := range labels {
				spec, _ := lim.Limits().Spec(stint.Name(i + 1))
				limit := spec.Limit
				policy, state := policies[i].(httpsfv.Item), states[i].(httpsfv.Item)
				require.IsType(t, "", policy.Value)
				require.Equal(t, policy.Value, state.Value)
				if i < 9 {
					require.Equal(t, labels[i], policy.Value)
				}
				require.Equal(t, []string{"q", "w", "pk"}, policy.Params.Names())
				require.Equal(t, min(limit.Burst, 999_999_999_999_999), integer(t, policy, "q"))
				window := int64(math.Ceil(limit.Tolerance().Seconds()))
				require.Equal(t, window, integer(t, policy, "w"))
				require.GreaterOrEqual(t, window, int64(1))

				left := integer(t, state, "r")
				require.LessOrEqual(t, left, limit.Burst)
				require.GreaterOrEqual(t, left, int64(0))
				reset := integer(t, state, "t")
				require.GreaterOrEqual(t, reset, int64(1))
				require.LessOrEqual(t, reset, int64(math.Ceil(limit.Interval().Seconds())), "until the next token")
				if left == 0 {
					empty = max(empty, reset)
				}
				for _, item := range []httpsfv.Item{policy, state} {
					partition, ok := item.Params.Get("pk")
					require.True(t, ok)
					require.Equal(t, fmt.Sprintf("%d:127.0.0.1\x00\xff", i+1), string(partition.([]byte)))
				}
			}
			if res.StatusCode == http.StatusTooManyRequests {
				retry, err := strconv.ParseInt(res.Header.Get("Retry-After"), 10, 64)
				require.NoError(t, err)
				require.GreaterOrEqual(t, retry, empty, "no earlier than the end of a window with nothing left")
			}
		}
	}
}

// integer returns a parameter that is an Integer.
func integer(t *testing.T, item httpsfv.Item, param string) int64 {
	t.Helper()
	value, _ := item.Params.Get(param)
	require.IsType(t, int64(0), value, param)
	return value.(int64)
}

// Prometheus' own parser reads the metrics. No label holds an id.
func TestPrometheus(t *testing.T) {
	lim := limiter(t, func(int) stint.Limit { return stint.PerHour(2) })
	status := statuspage.New(lim, nil)
	var rules []httplimit.Rule
	for i := range labels {
		rules = append(rules, httplimit.Rule{Key: httplimit.ByIP(stint.Name(i + 1))})
	}
	url := serve(t, httplimit.Middleware(lim, &httplimit.Options{Observers: []httplimit.Observer{status.Observer()}},
		rules...)(ok))
	for range 3 {
		get(t, url)
	}
	res, text := get(t, serve(t, status)+"?format=prometheus")
	require.Equal(t, expfmt.TypeTextPlain, expfmt.ResponseFormat(res.Header).FormatType())
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err, text)
	for name, f := range families {
		require.True(t, strings.HasPrefix(name, "stint_"), name)
		require.NotEmpty(t, f.GetHelp(), name)
		require.Equal(t, strings.HasSuffix(name, "_total"), f.GetType() == dto.MetricType_COUNTER, name)
	}
	decisions := families["stint_decisions_total"].GetMetric()
	require.Len(t, decisions, 2*len(labels))
	for i, m := range decisions {
		pairs := m.GetLabel()
		require.Len(t, pairs, 2)
		require.Equal(t, strings.ToValidUTF8(labels[i/2], "\uFFFD"), pairs[0].GetValue())
		require.Equal(t, []string{"allowed", "denied"}[i%2], pairs[1].GetValue())
		require.Equal(t, []float64{2, 1}[i%2], m.GetCounter().GetValue())
	}
	require.NotContains(t, text, "127.0.0.1")
}

func TestChi(t *testing.T) {
	lim := limiter(t, func(int) stint.Limit { return stint.PerHour(2) })
	r := chi.NewRouter()
	r.Use(httplimit.Middleware(lim, nil, httplimit.Rule{Pattern: "/users/{id}", Key: httplimit.ByPathValue(2, "id")}))
	r.Route("/orders", func(r chi.Router) {
		r.With(httplimit.Middleware(lim, nil, httplimit.Rule{Key: httplimit.ByPathValue(3, "order")})).Get("/{order}", ok)
	})
	r.Get("/users/{user}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, chi.URLParam(r, "user")) })
	twice(t, serve(t, r))
}

func TestGorilla(t *testing.T) {
	lim := limiter(t, func(int) stint.Limit { return stint.PerHour(2) })
	r := mux.NewRouter()
	r.Use(httplimit.Middleware(lim, nil,
		httplimit.Rule{Pattern: "/users/{id}", Key: httplimit.ByPathValue(2, "id")},
		httplimit.Rule{Pattern: "/orders/", Key: func(r *http.Request) (stint.Key,
			error) {
			return stint.Name(3).Key(mux.Vars(r)["order"]), nil
		}},
	))
	r.Handle("/orders/{order}", ok)
	r.HandleFunc("/users/{user}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, mux.Vars(r)["user"]) })
	twice(t, serve(t, r))
}

// twice sends three requests for each bucket. Two of them are allowed.
func twice(t *testing.T, url string) {
	t.Helper()
	for _, path := range []string{"/users/7", "/users/8", "/orders/9", "/orders/10"} {
		for i := range 3 {
			res, body := get(t, url+path)
			require.Equal(t, i == 2, res.StatusCode == http.StatusTooManyRequests, path)
			if i < 2 && strings.HasPrefix(path, "/users/") {
				require.Equal(t, path, "/users/"+body)
			}
			require.NotEmpty(t, res.Header.Get("RateLimit"))
		}
	}
}
