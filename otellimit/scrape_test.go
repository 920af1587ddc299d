package otellimit_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/otellimit"
)

// TestStat compares the metrics with what `stint stat --json` says of the same
// file at the same moment.
func TestStat(t *testing.T) {
	dir := t.TempDir()
	command, file := filepath.Join(dir, "stint"), filepath.Join(dir, "quota.db")
	out, err := exec.Command("go", "-C", "..", "build", "-o", command, "./cmd/stint").CombinedOutput()
	require.NoError(t, err, string(out))

	lim, err := stint.Open(file, newLimits(t, names), &stint.Options{FlushInterval: time.Hour}) // the file stays as it is
	require.NoError(t, err)
	defer lim.Close()
	provider, reader := newMeter(t)
	register(t, provider, lim, nil)
	for i := range 300 {
		spend(t, lim, perAddress.Key("a"+strings.Repeat("x", i)), 1)
	}
	spend(t, lim, class.Key(""), 3)
	require.NoError(t, lim.Flush())

	before := collect(t, reader)
	copied, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file+".copy", copied, 0o600))
	text, err := exec.Command(command, "stat", "--json", "--db", file+".copy").Output()
	require.NoError(t, err)
	after := collect(t, reader)
	var stat struct {
		Bytes, Free, Journal float64
		FreeBytes            float64 `json:"free_bytes"`
		JournalBytes         float64 `json:"journal_bytes"`
		Journaled            float64
		Limits               []struct {
			Name string
			Live int64
		}
	}
	require.NoError(t, json.Unmarshal(text, &stat))
	live := int64(0)
	for _, l := range stat.Limits {
		live += l.Live
	}
	require.EqualValues(t, 303, live) // a total and its floor have buckets, too
	for name, want := range map[string]float64{
		"stint.file.size": stat.Bytes, "stint.file.free": stat.FreeBytes, "stint.journal.size": stat.JournalBytes,
		"stint.journal.buckets": stat.Journaled, "stint.buckets.resident": float64(live), "stint.buckets.dirty": 0,
	} {
		assert.Equal(t, map[string]float64{"": want}, series(t, before[name]), name)
		assert.Equal(t, series(t, before[name]), series(t, after[name]), name)
	}
	assert.Positive(t, stat.Bytes)
	assert.Positive(t, stat.Journaled)
}

// TestPrometheus scrapes the metrics over HTTP, as Prometheus does.
func TestPrometheus(t *testing.T) {
	failOnSDKErrors(t)
	registry := prometheus.NewPedanticRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry))
	require.NoError(t, err)
	provider := sdk.NewMeterProvider(sdk.WithReader(exporter))
	lim := open(t, filepath.Join(t.TempDir(), "quota.db"), names)
	register(t, provider, lim, nil)
	o, err := otellimit.NewObserver(provider.Meter("test"))
	require.NoError(t, err)
	h := httplimit.Middleware(lim, &httplimit.Options{Observers: []httplimit.Observer{otellimit.For[*http.Request](o)}},
		httplimit.Rule{Key: httplimit.ByIP(perAddress)})(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := httptest.NewServer(h)
	defer srv.Close()
	spend(t, lim, logins.Key("a"), 3)
	spend(t, lim, class.Key(""), 3)
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
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	require.NoError(t, err)
	for _, name := range []string{
		"stint_decisions_total", "stint_errors_total", "stint_buckets_resident",
		"stint_buckets_dirty", "stint_flush_duration_seconds", "stint_file_size_bytes", "stint_file_free_bytes",
		"stint_journal_size_bytes", "stint_journal_buckets", "stint_clock_steps_total", "stint_requests_total",
	} {
		assert.Contains(t, families, name)
	}
	for line, n := range map[string]int{
		`stint_decisions_total{`: 2 * len(names), `stint_errors_total{`: len(names),
		`stint_requests_total{`: 1, `stint_clock_steps_total{`: 2, `stint_healthy{`: 1,
	} {
		assert.Equal(t, n, strings.Count(string(body), "\n"+line), "%s in\n%s", line, body)
	}
	assert.Regexp(t, `(?m)^stint_decisions_total\{.*stint_decision="denied",stint_limit="login"\} 2$`, string(body))
}
