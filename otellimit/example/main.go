// Command example is a server with a limit, and with metrics for Prometheus.
package main

import (
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/otellimit"
)

const RequestsPerAddress stint.Name = 1

// check ends the program if something cannot be set up.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	limits, err := stint.NewLimits(stint.Names{
		RequestsPerAddress: {Label: "requests", Limit: stint.PerMinute(100)},
	})
	check(err)
	limiter, err := stint.Open("quota.db", limits, nil)
	check(err)
	defer limiter.Close()

	exporter, err := prometheus.New() // or an OTLP exporter
	check(err)
	meter := metric.NewMeterProvider(metric.WithReader(exporter)).Meter("example.com/server")
	_, err = otellimit.Register(meter, limiter, nil)
	check(err)
	observer, err := otellimit.NewObserver(meter)
	check(err)

	limit := httplimit.Middleware(limiter, &httplimit.Options{Observers: []httplimit.Observer{otellimit.For[*http.Request](observer)}},
		httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.Handler())
	mux.Handle("/", limit(http.NotFoundHandler()))
	check(http.ListenAndServe("localhost:8080", mux))
}
