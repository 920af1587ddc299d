package httplimit

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// crowded is a Decider of which another request takes a token after each Check.
type crowded struct{ *stint.Limiter }

func (c crowded) Check(key stint.Key, cost int64) (stint.Decision, error) {
	d, err := c.Limiter.Check(key, cost)
	if err == nil {
		_, err = c.Limiter.Spend(key, 1)
	}
	return d, err
}

// Each refusal that gives no time doubles the wait, until a success.
func TestBackOff(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		maxHold  time.Duration
		statuses string // of the requests in turn
		want     string // waits before each, after the first
	}{
		"doubles":             {0, "429 429 429 429 200", "1s 2s 4s 8s"},
		"starts anew":         {0, "429 429 200 429 429 200", "1s 2s 1ms 1s 2s"},
		"a 404 is no success": {0, "429 404 429 200", "1s 0s 2s"},
		"up to MaxHold":       {5 * time.Second, "429 429 429 429 429 200", "1s 2s 4s 5s 5s"},
		"up to an hour": {0, strings.Repeat("429 ", 15) + "200",
			"1s 2s 4s 8s 16s 32s 1m4s 2m8s 4m16s 8m32s 17m4s 34m8s 1h0m0s 1h0m0s 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, stint.PerSecond(1000), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
				tr.MaxHold = tc.maxHold
				var last time.Time
				var waits []string
				for i, text := range strings.Fields(tc.statuses) {
					status := map[string]int{"200": 200, "404": 404, "429": 429}[text]
					tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
						if i > 0 {
							waits = append(waits, time.Since(last).String())
						}
						last = time.Now()
						return answered(r, status), nil
					})
					_, err := send(t, t.Context(), tr, "http://a")
					require.NoError(t, err)
				}
				require.Equal(t, tc.want, strings.Join(waits, " "))
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
		limit stint.Limit
		want  int64
	}{
		"tokens of the waits are spent": {stint.PerMinute(60), 60 - 1 - 3},
		"but no more than there are":    {stint.PerSecond(60), 0},
		"without a limit":               {stint.Unlimited, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.limit, func(t *testing.T, lim *stint.Limiter, tr *Transport) {
				for _, status := range []int{429, 429, 200} { // with waits of 1 s and 2 s
					tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) { return answered(r, status), nil })
					_, err := send(t, t.Context(), tr, "http://a")
					require.NoError(t, err)
				}
				require.Equal(t, tc.want, left(t, lim, hostKey))
			})
		})
	}
	t.Run("another request spends meanwhile", func(t *testing.T) {
		inBubble(t, stint.PerSecond(60), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			tr.Limiter = crowded{lim}
			for _, status := range []int{429, 429, 200} {
				tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) { return answered(r, status), nil })
				_, err := send(t, t.Context(), tr, "http://a")
				require.NoError(t, err)
			}
			require.Zero(t, left(t, lim, hostKey))
		})
	})
	t.Run("no tokens of a quota come back", func(t *testing.T) {
		inBubble(t, stint.EachHour(10, time.UTC), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			for i := range 16 { // over four hours, and only the last request in its hour
				tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
					if i == 15 {
						return answered(r, 200), nil
					}
					return answered(r, 429), nil
				})
				_, err := send(t, t.Context(), tr, "http://a")
				require.NoError(t, err)
			}
			require.EqualValues(t, 9, left(t, lim, hostKey))
		})
	})
	t.Run("many hosts", func(t *testing.T) {
		inBubble(t, stint.PerSecond(1000), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
			tr.Wait = false
			asked := map[string]int{}
			tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				asked[r.URL.Host]++
				return answered(r, 429), nil
			})
			const hosts = 1500
			for range 66 { // seconds
				for i := range hosts {
					send(t, t.Context(), tr, fmt.Sprint("http://h", i))
				}
				<-time.After(time.Second)
			}
			require.Len(t, asked, hosts)
			for host, n := range asked {
				require.LessOrEqual(t, n, 7, "%s: after 0, 1, 3, 7, 15, 31 and 63 s", host)
			}
		})
	})
}
