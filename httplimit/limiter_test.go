package httplimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// openLimiter returns a Limiter in memory. When module redislimit runs the tests
// of this package, another file takes the place of this one.
func openLimiter(t testing.TB, limits *stint.Limits, now func() time.Time) limiter {
	t.Helper()
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: now})
	require.NoError(t, err)
	return lim
}
