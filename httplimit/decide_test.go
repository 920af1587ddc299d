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
	runScenarios(t, map[string]scenario{
		"errors stop nothing": {rules: []Rule{{Key: ByHeader(perNumber, "X-Key"), Shadow: true}}, script: `
			200 x: 200
			Error: invalid id`},
		"counts statuses": {rules: []Rule{{Key: ByIP(failures), CountStatus: AuthFailed, Shadow: true}}, script: `
			401: 401 401 401 401 401 401 401
			left login 0`},
		"refunds nothing if it could not spend: over the burst": {rules: []Rule{{Key: ByIP(perAddress), RefundStatus: Status(200)},
			{Key: ByIP(failures), Shadow: true, RefundStatus: Status(200), CostFunc: costing(6)}}, script: `
			spend login 3
			200: 200
			Error: burst
			left login 2
			left address 5`},
		"refunds nothing if it could not spend: negative": {
			rules: []Rule{{Key: ByIP(failures), Shadow: true, RefundStatus: Status(200), CostFunc: costing(-1)}}, script: `
			spend login 3
			200: 200
			Error: negative
			left login 2`},
	})
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
	login := func(ru Rule) []Rule { ru.Key = ByIP(failures); return []Rule{ru} }
	shadow := func(ru Rule) []Rule { ru.Shadow = true; return login(ru) }
	const five = `
		200: 200 200 200 200 200 429
		Body: "violated-policies":["login"]
		held login 0s`
	runScenarios(t, map[string]scenario{
		"shadow":                   {outer: shadow(Rule{}), rules: login(Rule{}), script: five},
		"shadow counts":            {outer: shadow(Rule{CountStatus: AuthFailed}), rules: login(Rule{}), script: five},
		"shadow locks out":         {outer: shadow(Rule{LockOut: time.Hour}), rules: login(Rule{}), script: five},
		"shadow costs 5":           {outer: shadow(Rule{Cost: 5}), rules: login(Rule{}), script: five},
		"shadow in the same rules": {rules: append(shadow(Rule{}), login(Rule{})...), script: five},
		"inner counts": {outer: shadow(Rule{}), rules: login(Rule{CountStatus: AuthFailed, LockOut: time.Hour}), script: `
			401: 401 401 401 401 401 429
			held login 1h0m0s`},
		"inner refunds": {outer: shadow(Rule{}), rules: login(Rule{RefundStatus: Status(200)}), script: `
			200: 200 200 200 200 200 200
			left login 5`},
		"inner costs 5": {outer: shadow(Rule{}), rules: login(Rule{Cost: 5}), script: "200: 200 429"},
	})
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
