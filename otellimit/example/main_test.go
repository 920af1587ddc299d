package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/httplimit/statuspage"
	"github.com/stint-go/stint/otellimit"
)

const (
	perAddress stint.Name = 1 + iota
	logins
)

var names = stint.Names{
	perAddress: {Label: "address", Limit: stint.PerMinute(5)},
	logins:     {Label: "login", Limit: stint.Limit{Burst: 1, Count: 1, Period: time.Hour, Durability: stint.Synced}},
}

// TestPrometheus scrapes the metrics over HTTP, as Prometheus does.
func TestPrometheus(t *testing.T) {
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Error("SDK:", err) }))
	t.Cleanup(func() { otel.SetErrorHandler(before) })
	registry := prometheus.NewPedanticRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry))
	require.NoError(t, err)
	provider := sdk.NewMeterProvider(sdk.WithReader(exporter))
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	lim, err := stint.Open(filepath.Join(t.TempDir(), "quota.db"), limits, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	_, err = otellimit.Register(provider.Meter("test"), lim, nil)
	require.NoError(t, err)
	o, err := otellimit.NewObserver(provider.Meter("test"))
	require.NoError(t, err)
	status := statuspage.New(lim, nil)
	observers := []httplimit.Observer{otellimit.For[*http.Request](o), status.Observer()}
	limited := func(rs ...httplimit.Rule) func(http.Handler) http.Handler {
		return httplimit.Middleware(lim, &httplimit.Options{Observers: observers}, rs...)
	}
	none := func(*http.Request) int64 { return -1 }
	ofB := func(*http.Request) (stint.Key, error) { return logins.Key("b"), nil }
	for _, ru := range []httplimit.Rule{ // an error, a denial, and one for want of a place that stops no request
		{Key: httplimit.ByHeader(logins, "X-None")},
		{Key: ofB, InFlightFunc: none},
		{Key: ofB, InFlightFunc: none, Shadow: true},
	} {
		limited(ru)(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	h := limited(httplimit.Rule{Key: httplimit.ByIP(perAddress)})(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := httptest.NewServer(h)
	defer srv.Close()
	for range 3 {
		_, err := lim.Spend(logins.Key("a"), 1)
		require.NoError(t, err)
	}
	_, err = lim.Spend(perAddress.Key("a"), 1) // for a flush; the logins are commits
	require.NoError(t, err)
	require.NoError(t, lim.Flush())

	res, err := srv.Client().Get(srv.URL)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	problems, err := promlint.New(strings.NewReader(string(body))).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	_, err = parser.TextToMetricFamilies(strings.NewReader(string(body)))
	require.NoError(t, err)
	page := httptest.NewRecorder()
	status.ServeHTTP(page, httptest.NewRequest("GET", "/?format=prometheus", nil))
	ofPage := labels(page.Body.String())
	delete(ofPage, "stint_build_info") // OpenTelemetry has versions in the resource
	assert.Equal(t, ofPage, labels(string(body)), "one dashboard reads both")
	for line, n := range map[string]int{
		`stint_decisions_total{`: 2 * len(names), `stint_errors_total{`: len(names),
		`stint_requests_total{`: 4, `stint_clock_steps_total{`: 2, `stint_healthy{`: 1,
	} {
		assert.Equal(t, n, strings.Count(string(body), "\n"+line), "%s in\n%s", line, body)
	}
	assert.Regexp(t, `(?m)^stint_decisions_total\{.*stint_decision="denied",stint_limit="login"\} 2$`, string(body))
}

// labels returns the names of the labels that each metric of stint's has, without
// those of the exporter.
func labels(text string) map[string][]string {
	all := make(map[string][]string)
	for _, line := range regexp.MustCompile(`(?m)^(stint_\w+)(.*) \S+$`).FindAllStringSubmatch(text, -1) {
		all[line[1]] = append([]string{}, all[line[1]]...)
		for _, label := range regexp.MustCompile(`[{,](\w+)="`).FindAllStringSubmatch(line[2], -1) {
			if !strings.HasPrefix(label[1], "otel_") && !slices.Contains(all[line[1]], label[1]) {
				all[line[1]] = append(all[line[1]], label[1])
			}
		}
		slices.Sort(all[line[1]])
	}
	return all
}
