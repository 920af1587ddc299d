package httplimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// quotaServer is a server with a quota, as a Base without a network.
type quotaServer struct {
	quota   int
	window  time.Duration
	count   counting
	fields  fieldStyle
	jitter  *rand.Rand // of the latency; nil means none
	refusal int        // status

	start   time.Time
	last    time.Time
	admits  int
	refuses map[int64]int // by window
}

// counting decides on a request. It returns the number of requests that are
// left, below 0 if it refuses, and the time at which there will be more.
type counting func(s *quotaServer, now time.Time) (left int, more time.Time)

// fixedWindows begin at multiples of the window, plus an offset.
func fixedWindows() counting {
	var begin time.Time
	used := 0
	return func(s *quotaServer, now time.Time) (int, time.Time) {
		const bit = 12345 * time.Millisecond
		if b := now.Add(-bit).Truncate(s.window).Add(bit); b != begin {
			begin, used = b, 0
		}
		used++
		return s.quota - used, begin.Add(s.window)
	}
}

// windowsFromFirst begin with the first request after the end of the window
// before.
func windowsFromFirst() counting {
	var end time.Time
	used := 0
	return func(s *quotaServer, now time.Time) (int, time.Time) {
		if !now.Before(end) {
			end, used = now.Add(s.window), 0
		}
		used++
		return s.quota - used, end
	}
}

func slidingLog() counting {
	var log []time.Time
	return func(s *quotaServer, now time.Time) (int, time.Time) {
		log = slices.DeleteFunc(log, func(at time.Time) bool { return !at.After(now.Add(-s.window)) })
		if len(log) == s.quota {
			return -1, log[0].Add(s.window)
		}
		log = append(log, now)
		return s.quota - len(log), log[0].Add(s.window)
	}
}

// tokenBucket returns the time of the next token.
func tokenBucket() counting {
	var full time.Time
	return func(s *quotaServer, now time.Time) (int, time.Time) {
		each := s.window / time.Duration(s.quota)
		next := full
		if now.After(next) {
			next = now
		}
		next = next.Add(each)
		if free := s.window - next.Sub(now); free >= 0 {
			full = next
			left := int(free / each)
			return left, full.Add(-s.window).Add(time.Duration(left+1) * each)
		}
		return -1, next.Add(-s.window)
	}
}

// fieldStyle returns the fields of a response.
type fieldStyle func(left int, now, more time.Time) []string

func up(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

func remaining(prefix string) fieldStyle {
	return func(left int, now, more time.Time) []string {
		return []string{prefix + "Remaining", strconv.Itoa(max(left, 0)), prefix + "Reset", up(more.Sub(now))}
	}
}

func retryAfter(format func(time.Duration) string, others ...string) fieldStyle {
	return func(left int, now, more time.Time) []string {
		if left >= 0 {
			return others
		}
		return append([]string{"Retry-After", format(more.Sub(now))}, others...)
	}
}

func always(fields ...string) fieldStyle {
	return func(int, time.Time, time.Time) []string { return fields }
}

var fieldStyles = map[string]fieldStyle{
	"GitHub": func(left int, now, more time.Time) []string {
		return []string{"Date", now.UTC().Format(http.TimeFormat), "X-RateLimit-Remaining", strconv.Itoa(max(left, 0)),
			"X-RateLimit-Reset", strconv.FormatInt(more.Add(time.Second-1).Unix(), 10)}
	},
	"X-RateLimit in seconds": remaining("X-RateLimit-"),
	"draft 06":               remaining("RateLimit-"),
	"IETF": func(left int, now, more time.Time) []string {
		return []string{"RateLimit", fmt.Sprintf(`"a";r=%d;t=%s`, max(left, 0), up(more.Sub(now)))}
	},
	"Let's Encrypt":   retryAfter(up),
	"secondary limit": retryAfter(up, "X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", "3600"),
	"decimals":        retryAfter(func(d time.Duration) string { return fmt.Sprintf("%.9f", d.Seconds()+1e-9) }),
	"Stripe":          always("Stripe-Rate-Limited-Reason", "global-rate"),
}

func (s *quotaServer) RoundTrip(r *http.Request) (*http.Response, error) {
	latency := 7 * time.Millisecond // each way
	if s.jitter != nil {
		latency += time.Duration(s.jitter.IntN(30)) * time.Millisecond
	}
	<-time.After(latency)
	now := time.Now()
	if s.start.IsZero() {
		s.start, s.refuses = now, make(map[int64]int)
	}
	left, more := s.count(s, now)
	status := 200
	if left >= 0 {
		s.last = now
		s.admits++
	} else {
		status = s.refusal
		s.refuses[int64(now.Sub(s.start)/s.window)]++
	}
	<-time.After(latency)
	return answered(r, status, s.fields(left, now, more)...), nil
}

// runAgainst sends requests one after the other, as the limit allows. It
// returns the share of the quota that was used, and the most refusals in a
// window after the first.
func runAgainst(t *testing.T, s *quotaServer, limit stint.Limit, requests int) (share float64, refusals int) {
	inBubble(t, limit, func(t *testing.T, lim *stint.Limiter, tr *Transport) {
		tr.Base = s
		<-time.After(31234567 * time.Microsecond) // in the middle of a window and of a second
		sendAll(t, tr, requests)
	})
	for window, n := range s.refuses {
		if window > 0 {
			refusals = max(refusals, n)
		}
	}
	return float64(s.admits) / (float64(s.quota) * max(1, float64(s.last.Sub(s.start))/float64(s.window))), refusals
}

// TestServers runs a client against each kind of server, with the quota as its
// limit and with WithinWindow.
func TestServers(t *testing.T) {
	t.Parallel()
	type quota struct {
		n      int
		window time.Duration
		jitter bool
	}
	requests, quotas := testlength.Of(10_000, 300), []quota{{100, time.Minute, false}}
	if testlength.Long {
		quotas = append(quotas, quota{100, time.Minute, true}, quota{10, 10 * time.Second, false})
	}
	for _, q := range quotas {
		for countName, newCount := range map[string]func() counting{
			"fixed windows": fixedWindows, "windows from the first request": windowsFromFirst,
			"sliding log": slidingLog, "token bucket": tokenBucket,
		} {
			for styleName, style := range fieldStyles {
				for limitName, limit := range map[string]stint.Limit{
					"the quota":    {Burst: int64(q.n), Count: int64(q.n), Period: q.window},
					"WithinWindow": stint.WithinWindow(int64(q.n), q.window),
				} {
					name := fmt.Sprint(q.n, " in ", q.window, ", jitter ", q.jitter, ", ", countName, ", ", styleName, ", ", limitName)
					s := &quotaServer{quota: q.n, window: q.window, count: newCount(), fields: style, refusal: 429}
					if styleName == "GitHub" || styleName == "secondary limit" {
						s.refusal = 403
					}
					if q.jitter {
						s.jitter = rand.New(rand.NewPCG(1, 2))
					}
					share, refusals := runAgainst(t, s, limit, requests)
					t.Logf("%s: share %.3f, refusals %d", name, share, refusals)
					least, most := 0.95, 1
					if countName == "sliding log" || countName == "windows from the first request" {
						// Rounding up to whole seconds may cost a second in each window.
						least = min(least, float64(q.window)/float64(q.window+time.Second))
					}
					if countName == "sliding log" && q.jitter {
						most = 10 // a burst that is faster than the last one
					}
					if limitName == "WithinWindow" {
						most = 0
					}
					assert.GreaterOrEqual(t, share, least-0.001, name)
					assert.LessOrEqual(t, refusals, most, name)
				}
			}
		}
	}
}
