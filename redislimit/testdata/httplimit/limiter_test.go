package httplimit

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit"
)

// This file takes the place of httplimit/limiter_test.go when TestHTTPLimit of
// redislimit runs the tests of httplimit.

var opened atomic.Int64

func openLimiter(t testing.TB, limits *stint.Limits, now func() time.Time) limiter {
	t.Helper()
	lim, err := redislimit.Open(os.Getenv("REDISLIMIT_TEST_URL"), limits, &redislimit.Options{
		Prefix: fmt.Sprint("h", opened.Add(1)), Timeout: 20 * time.Second, Now: now,
	})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("skipped, because a shared server has no calendar")
	}
	require.NoError(t, err)
	return lim
}
