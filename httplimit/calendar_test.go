package httplimit

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// TestTransportCalendar is a client of an API that admits 100 requests each day
// and begins its days at midnight Pacific, over a year with both changes of the
// clock: none is refused, and the client uses each day in full.
func TestTransportCalendar(t *testing.T) {
	t.Parallel()
	const quota = 100
	pacific, err := time.LoadLocation("America/Los_Angeles")
	require.NoError(t, err)
	inBubble(t, stint.EachDay(quota, pacific), func(t *testing.T, lim *stint.Limiter, tr *Transport) {
		used := make(map[string]int)
		tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
			used[time.Now().In(pacific).Format(time.DateOnly)]++
			return answered(r, http.StatusOK), nil
		})
		rng := rand.New(rand.NewPCG(6, 1))
		for first := time.Now(); time.Since(first) < 366*24*time.Hour; {
			sendAll(t, tr, 1)
			<-time.After(time.Duration(rng.Int64N(int64(20 * time.Minute))))
		}
		full := 0
		for day, n := range used {
			require.LessOrEqual(t, n, quota, day)
			full += n / quota
		}
		require.GreaterOrEqual(t, full, len(used)-2, "the first day and the last one are not whole")
	})
}

// The fields are exact for a quota that follows the calendar: the length of this
// period, and the time until it ends.
func TestHeadersCalendar(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.EachDay(5, berlin)})
	h := Middleware(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
	for _, c := range []struct {
		at, policy, state string
	}{
		{"2027-03-27T12:00:00+01:00", `"address";q=5;w=86400`, `"address";r=4;t=43200`},
		{"2027-03-28T00:00:00+01:00", `"address";q=5;w=82800`, `"address";r=4;t=82800`}, // a day of 23 hours
		{"2027-03-28T23:59:59.5+02:00", `"address";q=5;w=82800`, `"address";r=3;t=1`},
		{"2027-10-31T00:00:00+02:00", `"address";q=5;w=90000`, `"address";r=4;t=90000`}, // and one of 25
	} {
		at, err := time.Parse(time.RFC3339Nano, c.at)
		require.NoError(t, err)
		clock.pass(at.Sub(clock.now()))
		w := answerTo(h, withKey(""))
		require.Equal(t, c.policy, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, c.state, w.Header().Get("RateLimit"))
	}
	for range 4 {
		answerTo(h, withKey(""))
	}
	w := answerTo(h, withKey(""))
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, `"address";r=0;t=90000`, w.Header().Get("RateLimit"))
	require.Equal(t, "90000", w.Header().Get("Retry-After"))

	// The day has 25 hours, and ends before the answer begins.
	clock.pass(24 * time.Hour)
	require.NoError(t, lim.Reset(perAddress.Key("192.0.2.1")))
	w = answerTo(Middleware(lim, nil, Rule{Key: ByIP(perAddress), Refund: rules.OneOf(500)})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { clock.pass(2 * time.Hour) })), withKey(""))
	require.Equal(t, `"address";q=5;w=90000`, w.Header().Get("RateLimit-Policy"))
	require.Equal(t, `"address";r=4;t=3600`, w.Header().Get("RateLimit"))
}

// In a hold nothing is left, and t is the time until the hold ends or, if that is
// later, until the period does.
func TestHeadersCalendarHold(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.EachDay(5, time.UTC)})
	for _, headers := range []Headers{Standard, XRateLimit, Draft06} {
		h := Middleware(lim, &Options{Headers: headers}, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
		key := perAddress.Key("192.0.2.1")
		require.NoError(t, lim.Reset(key))
		for _, c := range []struct {
			hold        time.Duration
			code        int
			left, reset string
		}{
			{0, 200, "4", "71694"}, // it is 04:05:06
			{time.Minute, 429, "0", "60"},
			{24 * time.Hour, 429, "0", "86400"},
			{0, 200, "3", "71694"},
		} {
			require.NoError(t, lim.SetHold(key, time.Time{}))
			require.NoError(t, errorOf(lim.Hold(key, clock.now().Add(c.hold))))
			w := answerTo(h, withKey(""))
			require.Equal(t, c.code, w.Code)
			for field, want := range map[Headers]map[string]string{
				Standard:   {"RateLimit-Policy": `"address";q=5;w=86400`, "RateLimit": `"address";r=` + c.left + `;t=` + c.reset},
				XRateLimit: {"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": c.left, "X-RateLimit-Reset": c.reset},
				Draft06:    {"RateLimit-Limit": "5", "RateLimit-Remaining": c.left, "RateLimit-Reset": c.reset},
			}[headers] {
				require.Equal(t, want, w.Header().Get(field), field)
			}
			if c.code == 429 {
				require.Equal(t, c.reset, w.Header().Get("Retry-After"))
			}
		}
	}
}

// The owner of a file may have a clock that is ahead of the one of this process.
// w is the length of this month all the same.
func TestHeadersCalendarOfOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After((31 + 29 + 14) * 24 * time.Hour) // 15 March 2000
		lim := newMemLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.EachMonth(5, time.UTC)},
			&stint.Options{Now: func() time.Time { return time.Now().Add(time.Second) }})
		owner := struct{ stint.Decider }{lim}
		w := answerTo(Middleware(owner, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)), withKey(""))
		require.Equal(t, `"address";q=5;w=2678400`, w.Header().Get("RateLimit-Policy"), "31 days")
		require.Equal(t, `"address";r=4;t=1468799`, w.Header().Get("RateLimit"))
	})
}
