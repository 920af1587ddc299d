//go:build !race

package otellimit_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/stint-go/stint"
)

// A thousand collections leave no memory behind.
func TestCollectDoesNotGrow(t *testing.T) {
	lim, err := stint.New(stint.NewMemStore(), newLimits(t, thousand()), nil)
	require.NoError(t, err)
	defer lim.Close()
	for name := range stint.Name(1000) {
		spend(t, lim, (name + 1).Key("a"), 1)
	}
	provider, reader := newMeter(t)
	register(t, provider, lim, nil)
	var rm metricdata.ResourceMetrics
	heap := func(collections int) uint64 {
		for range collections {
			require.NoError(t, reader.Collect(context.Background(), &rm))
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap(20)
	after := heap(1000)
	require.LessOrEqual(t, after, before+before/10, "%d bytes before, %d after", before, after)
}
