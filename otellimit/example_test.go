package otellimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/otellimit"
)

const RequestsPerAddress stint.Name = 1

// openExample returns a Limiter. A real program calls stint.Open.
func openExample() *stint.Limiter {
	limits, err := stint.NewLimits(stint.Names{
		RequestsPerAddress: {Label: "requests", Limit: stint.PerHour(2)},
	})
	if err != nil {
		panic(err)
	}
	limiter, err := stint.New(stint.NewMemStore(), limits, nil)
	if err != nil {
		panic(err)
	}
	return limiter
}

// printSum prints a counter. A real program has an exporter instead.
func printSum(reader sdk.Reader, name string) {
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &rm); err != nil {
		panic(err)
	}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		sum, ok := m.Data.(metricdata.Sum[int64])
		if m.Name != name || !ok {
			continue
		}
		for _, p := range sum.DataPoints {
			limit, _ := p.Attributes.Value("stint.limit")
			decision, _ := p.Attributes.Value("stint.decision")
			fmt.Println(m.Name, limit.AsString(), decision.AsString(), p.Value)
		}
	}
}

func ExampleRegister() {
	reader := sdk.NewManualReader()
	meter := sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("example.com/server")
	limiter := openExample()
	defer limiter.Close()
	registration, err := otellimit.Register(meter, limiter, nil)
	if err != nil {
		panic(err)
	}
	defer registration.Unregister()

	for range 3 {
		limiter.Allow(RequestsPerAddress.Key("192.0.2.1"))
	}
	printSum(reader, "stint.decisions")
	// Unordered output:
	// stint.decisions requests allowed 2
	// stint.decisions requests denied 1
}

func ExampleNewObserver() {
	reader := sdk.NewManualReader()
	meter := sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("example.com/server")
	limiter := openExample()
	defer limiter.Close()
	observer, err := otellimit.NewObserver(meter)
	if err != nil {
		panic(err)
	}
	opts := &httplimit.Options{Observers: []httplimit.Observer{otellimit.For[*http.Request](observer)}}
	limit := httplimit.Middleware(limiter, opts, httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})

	h := limit(http.NotFoundHandler())
	for range 5 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	printSum(reader, "stint.requests")
	// Unordered output:
	// stint.requests requests allowed 2
	// stint.requests requests denied 3
}
