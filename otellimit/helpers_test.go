package otellimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/otellimit"
	"github.com/stint-go/stint/rules"
)

const (
	perAddress stint.Name = 1 + iota
	logins
	total
	class
	floor
)

var names = stint.Names{
	perAddress: {Label: "address", Limit: stint.PerMinute(5)},
	logins:     {Label: "login", Limit: stint.PerHour(1)},
	total:      {Label: "total", IDs: stint.Single, Limit: stint.PerHour(10)},
	class:      {Label: "class", IDs: stint.Single, Limit: stint.PerHour(10)},
	floor:      {Label: "floor", IDs: stint.Single, Limit: stint.PerHour(2)},
}

// newLimits returns the limits of names.
func newLimits(t testing.TB, names stint.Names) *stint.Limits {
	t.Helper()
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	return limits
}

// failOnSDKErrors makes errors of the SDK fail the test. Tests that use it do
// not run in parallel, because the handler is global.
func failOnSDKErrors(t testing.TB) {
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Error("SDK:", err) }))
	t.Cleanup(func() { otel.SetErrorHandler(before) })
}

// newMeter returns a provider and its reader. Errors of the SDK fail the test.
func newMeter(t testing.TB, opts ...sdk.Option) (*sdk.MeterProvider, *sdk.ManualReader) {
	failOnSDKErrors(t)
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(append(opts, sdk.WithReader(reader))...)
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return provider, reader
}

// collect returns the metrics of a reader by name.
func collect(t testing.TB, reader *sdk.ManualReader) map[string]metricdata.Metrics {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	all := make(map[string]metricdata.Metrics)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			require.NotContains(t, all, m.Name)
			all[m.Name] = m
		}
	}
	return all
}

// series returns the values of a metric, by their attributes in the form
// "key=value,key=value".
func series(t testing.TB, m metricdata.Metrics) map[string]float64 {
	t.Helper()
	values := make(map[string]float64)
	put := func(attrs attribute.Set, value float64) {
		var all []string
		for _, a := range attrs.ToSlice() {
			all = append(all, string(a.Key)+"="+fmt.Sprint(a.Value.AsInterface()))
		}
		values[strings.Join(all, ",")] = value
	}
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			put(p.Attributes, float64(p.Value))
		}
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			put(p.Attributes, float64(p.Value))
		}
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			put(p.Attributes, p.Value)
		}
	case nil:
	default:
		t.Fatalf("%s: %T", m.Name, m.Data)
	}
	return values
}

func spend(t testing.TB, lim stint.Decider, key stint.Key, n int) {
	t.Helper()
	for range n {
		_, err := lim.Do(t.Context(), []stint.Request{key.Cost(1)}, nil)
		require.NoError(t, err)
	}
}

// asked is a request of which an Observer hears.
type asked struct{ ctx context.Context }

func (a asked) Context() context.Context { return a.ctx }

// decide tells an Observer the decisions of rules about a request.
func decide(o *otellimit.Observer, ctx context.Context, ds []rules.Decision) {
	otellimit.For[asked](o).Decisions(asked{ctx}, ds)
}

// fail tells an Observer an error of a request.
func fail(o *otellimit.Observer, ctx context.Context, err error) {
	otellimit.For[asked](o).Error(asked{ctx}, err)
}
