package httplimit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

const (
	total stint.Name = 101 + iota
	tenant
	tenantFloor
)

// newShares returns a Limiter with tenants of a total of ten an hour. Tenant
// "floor" has a floor of two.
func newShares(t testing.TB, ofTotal, ofTenant stint.Limit) (*stint.Limiter, *testClock) {
	t.Helper()
	floor := stint.PerHour(2)
	limits, err := stint.NewLimits(stint.Names{
		total:       {Label: "total", ID: stint.Shared},
		tenant:      {Label: "tenant", Parent: total, Floor: tenantFloor},
		tenantFloor: {Label: "floor"},
	}.WithLimits(map[stint.Name]stint.Limit{total: ofTotal, tenant: ofTenant}),
		stint.Override{Key: tenantFloor.Key("floor"), Limit: floor})
	require.NoError(t, err)
	clock := newTestClock()
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: clock.now})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim, clock
}

// A rule acts on its own bucket, even if the total of the bucket, or a floor,
// decides on the request.
func TestShares(t *testing.T) {
	ask := func(h http.Handler, id, status string) int {
		r := httptest.NewRequest("GET", "/?status="+status, nil)
		r.Header.Set("X-Tenant", id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	byTenant := ByHeader(tenant, "X-Tenant")
	remaining := func(lim *stint.Limiter, key stint.Key) int64 {
		b, err := lim.Bucket(key)
		require.NoError(t, err)
		return b.Remaining
	}
	for _, id := range []string{"loan", "floor"} {
		t.Run("Count/"+id, func(t *testing.T) {
			lim, _ := newShares(t, stint.PerHour(10), stint.PerHour(20))
			h := Middleware(lim, nil, Rule{Key: byTenant, Count: AuthFailed})(http.HandlerFunc(status))
			require.Equal(t, 401, ask(h, id, "401"))
			require.EqualValues(t, 19, remaining(lim, tenant.Key(id)))
			require.EqualValues(t, 9, remaining(lim, total.Key("")))
		})
		t.Run("Refund/"+id, func(t *testing.T) {
			lim, _ := newShares(t, stint.PerHour(10), stint.PerHour(20))
			h := Middleware(lim, nil, Rule{Key: byTenant, Refund: ServerError})(http.HandlerFunc(status))
			require.Equal(t, 500, ask(h, id, "500"))
			require.EqualValues(t, 20, remaining(lim, tenant.Key(id)))
			require.EqualValues(t, 10, remaining(lim, total.Key("")))
		})
	}
	t.Run("LockOut/the total is empty", func(t *testing.T) {
		lim, _ := newShares(t, stint.PerHour(10), stint.PerHour(20))
		h := Middleware(lim, nil, Rule{Key: byTenant, LockOut: time.Hour})(http.HandlerFunc(status))
		for range 8 { // the total keeps two for the floor
			require.Equal(t, 200, ask(h, "greedy", "200"))
		}
		require.Equal(t, 429, ask(h, "greedy", "200"))
		for _, key := range []stint.Key{total.Key(""), tenant.Key("greedy"), tenantFloor.Key("floor")} {
			require.Zero(t, heldUntil(t, lim, key), "%v", key)
		}
		require.Equal(t, 200, ask(h, "floor", "200"), "the others are not locked out")
	})
	t.Run("LockOut/its own bucket is empty", func(t *testing.T) {
		for _, ofTotal := range []int64{5, 10} { // the total decides, or the tenant
			lim, clock := newShares(t, stint.PerHour(ofTotal), stint.PerHour(3))
			h := Middleware(lim, nil, Rule{Key: byTenant, LockOut: time.Hour})(http.HandlerFunc(status))
			for range 3 {
				require.Equal(t, 200, ask(h, "greedy", "200"))
			}
			require.Equal(t, clock.now().Add(time.Hour).UnixNano(), heldUntil(t, lim, tenant.Key("greedy")).UnixNano())
			require.Zero(t, heldUntil(t, lim, total.Key("")))
			require.Equal(t, 200, ask(h, "floor", "200"), "the others are not locked out")
		}
	})
	t.Run("two rules of one total", func(t *testing.T) {
		lim, _ := newShares(t, stint.PerHour(10), stint.PerHour(20))
		other := func(*http.Request) (stint.Key, error) { return tenant.Key("other"), nil }
		h := Middleware(lim, nil, Rule{Key: byTenant, Refund: ServerError, Cost: 2},
			Rule{Key: other, Refund: ServerError})(http.HandlerFunc(status))
		require.Equal(t, 200, ask(h, "loan", "200"))
		require.EqualValues(t, 18, remaining(lim, tenant.Key("loan")))
		require.EqualValues(t, 19, remaining(lim, tenant.Key("other")))
		require.EqualValues(t, 7, remaining(lim, total.Key("")), "the sum of the costs")
		require.Equal(t, 500, ask(h, "loan", "500"))
		require.EqualValues(t, 7, remaining(lim, total.Key("")))

		require.Equal(t, 200, ask(h, "loan", "200"))
		require.Equal(t, 429, ask(h, "loan", "200"), "the total keeps two for the floor")
		require.EqualValues(t, 16, remaining(lim, tenant.Key("loan")), "all spend, or none")
		require.EqualValues(t, 18, remaining(lim, tenant.Key("other")))
		require.EqualValues(t, 4, remaining(lim, total.Key("")))

		lim, _ = newShares(t, stint.PerHour(10), stint.PerHour(20))
		h = Middleware(lim, nil, Rule{Key: byTenant})(Middleware(lim, nil, Rule{Key: other})(http.HandlerFunc(status)))
		require.Equal(t, 200, ask(h, "loan", "200"))
		require.EqualValues(t, 8, remaining(lim, total.Key("")))
	})
	// Until t is over, the client can use no more than r. A total does not lend what
	// it keeps for its floors.
	t.Run("fields of a total with a floor", func(t *testing.T) {
		for cost, want := range map[int64][]string{
			1: {"200 r=7;t=360", "200 r=6;t=360", "200 r=5;t=360", "200 r=4;t=360", "200 r=3;t=360", "200 r=2;t=360",
				"200 r=1;t=360", "200 r=0;t=360", "429 r=0;t=360"},
			3: {"200 r=5;t=360", "200 r=2;t=360", "429 r=2;t=360", "429 r=2;t=260"},
		} {
			lim, clock := newShares(t, stint.PerHour(10), stint.PerHour(20))
			h := Middleware(lim, nil, Rule{Key: byTenant, Cost: cost})(http.HandlerFunc(status))
			for i, want := range want {
				if i == 3 && cost == 3 {
					clock.pass(100 * time.Second)
				}
				r := httptest.NewRequest("GET", "/", nil)
				r.Header.Set("X-Tenant", "greedy")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				_, state, _ := strings.Cut(w.Header().Get("RateLimit"), ";")
				require.Equal(t, want, fmt.Sprintf("%d %s", w.Code, state), "request %d of cost %d", i+1, cost)
			}
		}
	})
	t.Run("what observers and clients see", func(t *testing.T) {
		lim, _ := newShares(t, stint.PerHour(4), stint.PerHour(20))
		var seen []rules.Decision
		h := Middleware(lim, &Options{Observers: []Observer{{Decisions: func(_ *http.Request, ds []rules.Decision) {
			seen = append(seen, ds...)
		}}}}, Rule{Key: byTenant})(http.HandlerFunc(status))
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Tenant", "greedy")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, `"total";q=4;w=3600`, w.Header().Get("RateLimit-Policy"), "the label goes with the number")
		require.Len(t, seen, 1)
		require.Equal(t, total.Key(""), seen[0].Key)
		require.Equal(t, tenant.Key("greedy"), seen[0].RuleKey)
		require.Equal(t, "total", seen[0].Label)
	})
}
