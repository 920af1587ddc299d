package httplimit

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestShadow(t *testing.T) {
	t.Run("decides and does not deny", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{everyone: stint.PerHour(1), perKey: stint.PerHour(3)})
		var seen [][]Decision
		observer := Observer{Decisions: func(_ *http.Request, ds []Decision) { seen = append(seen, slices.Clone(ds)) }}
		srv := serve(t, New(lim, &Options{Observers: []Observer{observer}},
			Rule{Key: Shared(everyone), Shadow: true}, Rule{Key: ByHeader(perKey, "X-Key")})(http.HandlerFunc(status)))
		require.Equal(t, "200 200 200 429", statuses(t, 4, srv.URL, "X-Key", "k"))
		require.Equal(t, stint.LimitStats{Allowed: 1, Denied: 2}, lim.Stats().Limits[everyone])
		require.Len(t, seen, 4)
		shadow := seen[1][1]
		require.True(t, shadow.Shadow)
		require.False(t, shadow.Allowed)
		require.Equal(t, time.Hour, shadow.RetryAfter)
		require.Equal(t, "everyone", shadow.Label)
		res := get(t, srv.URL, "X-Key", "other")
		require.Equal(t, `"key";q=3;w=3600`, res.Header.Get("RateLimit-Policy"), "not in the header")
		require.Equal(t, 400, get(t, srv.URL).StatusCode, "no key")
	})
	t.Run("errors stop nothing", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		url, errs := failing(t, lim, Options{}, Rule{Key: ByHeader(perNumber, "X-Key"), Shadow: true})
		require.Equal(t, 200, get(t, url, "X-Key", "x").StatusCode)
		require.ErrorIs(t, last(*errs), stint.ErrInvalidID)
	})
	t.Run("counts statuses", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		url := limited(t, lim, Rule{Key: ByIP(failures), CountStatus: AuthFailed, Shadow: true})
		require.Equal(t, "401 401 401 401 401 401 401", statuses(t, 7, url+"?status=401"))
		require.EqualValues(t, 0, left(t, lim, local[failures]))
	})
	for name, cost := range map[string]int64{"over the burst": 6, "negative": -1} {
		t.Run("refunds nothing if it could not spend: "+name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			spend(t, lim, local[failures], 3)
			url := limited(t, lim, Rule{Key: ByIP(perAddress), RefundStatus: Status(200)},
				Rule{Key: ByIP(failures), Shadow: true, RefundStatus: Status(200), CostFunc: costing(cost)})
			require.Equal(t, 200, get(t, url).StatusCode)
			require.EqualValues(t, 2, left(t, lim, local[failures]))
			require.EqualValues(t, 5, left(t, lim, local[perAddress]))
		})
	}
}

func TestNested(t *testing.T) {
	t.Run("spends from a bucket once", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(4)})
		var inside []Decision
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inside = Decisions(r) })
		outer := New(lim, nil, Rule{Key: ByIP(perAddress)})
		inner := New(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(perKey, "X-Key")})
		srv := serve(t, outer(inner(h)))
		res := get(t, srv.URL, "X-Key", "k")
		require.EqualValues(t, 4, left(t, lim, local[perAddress]))
		require.Equal(t, `"address";r=4;t=12, "key";r=3;t=900`, res.Header.Get("RateLimit"))
		require.Len(t, inside, 2)
		require.Equal(t, "key", inside[1].Label)
		require.Equal(t, "200 200 200 429", statuses(t, 4, srv.URL, "X-Key", "k"))
		require.EqualValues(t, 0, left(t, lim, local[perAddress]))

		other, _ := newLimiter(t, nil) // its bucket is another one
		srv = serve(t, New(other, nil, Rule{Key: ByIP(perAddress)})(outer(h)))
		require.Equal(t, 429, get(t, srv.URL).StatusCode)
		require.EqualValues(t, 4, left(t, other, local[perAddress]))
	})

	// An inner rule replaces an outer Shadow rule of the same bucket.
	for name, c := range map[string]struct {
		shadow, meant Rule
		status, want  string
		held          bool
	}{
		"shadow":                   {Rule{}, Rule{}, "200", "200 200 200 200 200 429", false},
		"shadow counts":            {Rule{CountStatus: AuthFailed}, Rule{}, "200", "200 200 200 200 200 429", false},
		"shadow locks out":         {Rule{LockOut: time.Hour}, Rule{}, "200", "200 200 200 200 200 429", false},
		"inner counts":             {Rule{}, Rule{CountStatus: AuthFailed, LockOut: time.Hour}, "401", "401 401 401 401 401 429", true},
		"inner refunds":            {Rule{}, Rule{RefundStatus: Status(200)}, "200", "200 200 200 200 200 200", false},
		"inner costs 5":            {Rule{}, Rule{Cost: 5}, "200", "200 429 429 429 429 429", false},
		"shadow costs 5":           {Rule{Cost: 5}, Rule{}, "200", "200 200 200 200 200 429", false},
		"shadow in the same rules": {Rule{Pattern: "/none"}, Rule{}, "200", "200 200 200 200 200 429", false},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			c.shadow.Key, c.shadow.Shadow, c.meant.Key = ByIP(failures), true, ByIP(failures)
			h := New(lim, nil, c.shadow)(New(lim, nil, c.meant)(http.HandlerFunc(status)))
			if c.shadow.Pattern != "" {
				c.shadow.Pattern = ""
				h = New(lim, nil, c.shadow, c.meant)(http.HandlerFunc(status))
			}
			srv := serve(t, h)
			require.Equal(t, c.want, statuses(t, 6, srv.URL+"?status="+c.status))
			require.Equal(t, c.held, !heldUntil(t, lim, local[failures]).IsZero())
			if res := get(t, srv.URL); res.StatusCode == 429 {
				require.Equal(t, []string{"login"}, res.problem(t).Violated)
			}
		})
	}
	t.Run("longest wait", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		byKey := ByHeader(perKey, "X-Key")
		for _, wait := range []time.Duration{time.Hour, 2 * time.Hour} {
			require.NoError(t, lim.Hold(local[perAddress], lim.Now().Add(wait)))
			require.NoError(t, lim.Hold(local[perKey], lim.Now().Add(3*time.Hour-wait)))
			inner := New(lim, nil, Rule{Key: ByIP(perAddress)}, Rule{Key: byKey})(http.HandlerFunc(status))
			for _, shadows := range [][]Rule{
				{{Key: ByIP(perAddress), Shadow: true}},
				{{Key: ByIP(perAddress), Shadow: true}, {Key: byKey, Shadow: true}},
			} {
				res := get(t, serve(t, New(lim, nil, shadows...)(inner)).URL, "X-Key", "k")
				require.Equal(t, "7200", res.Header.Get("Retry-After"))
			}
		}
	})
}
