package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Time in a bubble of synctest passes at once when all of its goroutines wait.
func TestWaitForTheNextMinute(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{Calls: {Label: "Calls", Limit: stint.PerMinute(1)}})
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		limiter, err := stint.New(stint.NewMemStore(), limits, nil)
		require.NoError(t, err)
		defer limiter.Close()
		start := time.Now()
		for range 3 {
			_, err := limiter.Wait(t.Context(), Calls.Key("alice").Cost(1))
			require.NoError(t, err)
		}
		require.Equal(t, 2*time.Minute, time.Since(start))
	})
}
