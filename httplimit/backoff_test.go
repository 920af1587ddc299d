package httplimit

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Each refusal that gives no time doubles the wait, until a success.
func TestBackOff(t *testing.T) {
	t.Parallel()
	refusals := func(n int) []int { return slices.Repeat([]int{429}, n) }
	for name, tc := range map[string]struct {
		maxHold  time.Duration
		statuses []int  // of the requests in turn
		want     string // waits between them
	}{
		"doubles":             {0, append(refusals(4), 200), "1s 2s 4s 8s"},
		"starts anew":         {0, []int{429, 429, 200, 429, 429, 200}, "1s 2s 1ms 1s 2s"},
		"a 404 is no success": {0, []int{429, 404, 429, 200}, "1s 0s 2s"},
		"up to MaxHold":       {5 * time.Second, append(refusals(5), 200), "1s 2s 4s 5s 5s"},
		"up to an hour": {0, append(refusals(15), 200),
			"1s 2s 4s 8s 16s 32s 1m4s 2m8s 4m16s 8m32s 17m4s 34m8s 1h0m0s 1h0m0s 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, stint.PerSecond(1000), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
				tr.MaxHold = tc.maxHold
				var waits []string
				last := time.Now()
				answer := answering(tc.statuses...)
				tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
					waits = append(waits, time.Since(last).String())
					last = time.Now()
					return answer(r)
				})
				sendAll(t, tr, len(tc.statuses))
				require.Equal(t, "0s "+tc.want, strings.Join(waits, " "))
			})
		})
	}
	t.Run("requests that are under way together", func(t *testing.T) {
		inBubble(t, stint.PerSecond(1000), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/good" {
					<-time.After(200 * time.Millisecond)
					return answered(r, 200), nil
				}
				<-time.After(100 * time.Millisecond)
				return answered(r, 429), nil
			})
			for _, want := range []time.Duration{time.Second, 2 * time.Second} {
				for _, path := range []string{"", "", "", "/good"} {
					go send(t, t.Context(), tr, "http://a"+path)
				}
				<-time.After(100 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, want, time.Until(heldUntil(t, lim, hostKey)), "one step, however many are refused")
				<-time.After(want) // the success was sent before the refusal, so it changes nothing
			}
		})
	})
	for name, tc := range map[string]struct {
		limit    stint.Limit
		refusals int // before a success
		want     int64
	}{
		"tokens of the waits are spent":  {stint.PerMinute(60), 2, 60 - 1 - 3}, // with waits of 1 s and 2 s
		"but no more than there are":     {stint.PerSecond(60), 2, 0},
		"without a limit":                {stint.Unlimited, 2, math.MaxInt64},
		"no tokens of a quota come back": {stint.EachHour(10, time.UTC), 15, 9}, // only the last request is in its hour
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.limit, func(t *testing.T, lim *stint.Limiter, tr *Transport) {
				tr.Base = answering(append(refusals(tc.refusals), 200)...)
				sendAll(t, tr, tc.refusals+1)
				require.Equal(t, tc.want, left(t, lim, hostKey))
			})
		})
	}
}
