package migrate

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// TestMigrate compares what programs print before and after the change.
func TestMigrate(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	redis := miniredis.RunT(t)

	// serve returns a program that sends requests to a handler with stint.
	serve := func(limited func(*stint.Limiter, http.Handler) http.Handler) func(io.Writer, string) error {
		return func(w io.Writer, file string) error {
			limiter, err := open(file, stint.Flushed)
			if err != nil {
				return err
			}
			defer limiter.Close()
			ask(w, limited(limiter, handler))
			return nil
		}
	}
	const allowed = "alice true\nalice true\nalice true\nalice false\nbob true\n"
	const states = "alice true 2 0s\nalice true 1 0s\nalice true 0 0s\nalice false 0 20m0s\nbob true 2 0s\n"
	const statuses = "alice 200\nalice 200\nalice 200\nalice 429\nbob 200\n"
	for _, c := range []struct {
		name, want string
		before     func(io.Writer) error
		after      func(io.Writer, string) error
	}{
		{"x_time_rate", allowed, rateBefore, rateAfter},
		{"redis_rate", states, func(w io.Writer) error { return redisRateBefore(w, redis.Addr()) }, redisRateAfter},
		{"throttled", statuses, func(w io.Writer) error {
			limited, err := throttledBefore(handler)
			ask(w, limited)
			return err
		}, serve(throttledAfter)},
		{"ulule", statuses, func(w io.Writer) error {
			ask(w, ululeBefore(handler))
			return nil
		}, serve(ululeAfter)},
		{"tollbooth", statuses, func(w io.Writer) error {
			ask(w, tollboothBefore(handler))
			return nil
		}, serve(tollboothAfter)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after, again strings.Builder
			require.NoError(t, c.before(&before))
			require.Equal(t, c.want, before.String(), "before")
			file := filepath.Join(t.TempDir(), "limits.db")
			require.NoError(t, c.after(&after, file))
			require.Equal(t, c.want, after.String(), "after")

			// What is new: the next process remembers.
			require.NoError(t, c.after(&again, file))
			require.NotContains(t, strings.ToLower(again.String()), "alice true")
			require.NotContains(t, again.String(), "alice 200")
		})
	}
}

// ask prints the status of a request of each id.
func ask(w io.Writer, handler http.Handler) {
	for _, id := range requests {
		fmt.Fprintln(w, id, statusOf(handler, id))
	}
}

func statusOf(handler http.Handler, id string) int {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-User", id)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
}
