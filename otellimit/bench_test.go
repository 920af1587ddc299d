package otellimit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/otellimit"
	"github.com/stint-go/stint/rules"
)

// BenchmarkCollect collects the metrics of a Limiter with 1,000 limits and a
// million buckets.
func BenchmarkCollect(b *testing.B) {
	buckets := 1_000_000
	if testing.Short() {
		buckets = 10_000
	}
	lim, err := stint.New(stint.NewMemStore(), newLimits(b, thousand()), nil)
	require.NoError(b, err)
	defer lim.Close()
	for i := range buckets {
		_, err := lim.Spend(stint.Name(1+i%1000).Key(fmt.Sprint("id-", i/1000)), 1)
		require.NoError(b, err)
	}
	provider, reader := newMeter(b, sdk.WithCardinalityLimit(0))
	register(b, provider, lim, nil)
	var rm metricdata.ResourceMetrics
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, reader.Collect(context.Background(), &rm))
	}
}

// BenchmarkObserver observes a request with one rule: without a span, and with
// a span that is recorded.
func BenchmarkObserver(b *testing.B) {
	provider, _ := newMeter(b)
	o, err := otellimit.NewObserver(provider.Meter("test"))
	require.NoError(b, err)
	ds := []rules.Decision{decision("address", true, 3, 0)}
	b.Run("metrics", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			decide(o, context.Background(), ds)
		}
	})
	tracer := tracesdk.NewTracerProvider().Tracer("test")
	attrs := []attribute.KeyValue{attribute.String("stint.decision", "allowed"), attribute.String("stint.limit", "address")}
	for _, c := range []struct {
		name string
		f    func(context.Context)
	}{
		{"span without Observer", func(context.Context) {}},
		{"span with two attributes", func(ctx context.Context) { trace.SpanFromContext(ctx).SetAttributes(attrs...) }},
		{"span", func(ctx context.Context) { decide(o, ctx, ds) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, span := tracer.Start(context.Background(), "request")
				c.f(ctx)
				span.End()
			}
		})
	}
}
