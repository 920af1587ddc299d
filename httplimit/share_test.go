package httplimit

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
	"github.com/stint-go/stint/shares"
)

const (
	total stint.Name = 101 + iota
	tenant
	tenantFloor
)

// newShares returns a Limiter with tenants of a total, which keeps two tokens for
// the tenant "floor".
func newShares(t testing.TB, ofTotal stint.Limit) (*shares.Decider, *testClock) {
	t.Helper()
	limits, err := stint.NewLimits(stint.Names{
		total:       {Label: "total", IDs: stint.Single, Limit: ofTotal},
		tenant:      {Label: "tenant", Limit: stint.PerHour(20)},
		tenantFloor: {Label: "floor", Limit: stint.Unlimited},
	}, stint.Override{Key: tenantFloor.Key("floor"), Limit: stint.PerHour(2)})
	require.NoError(t, err)
	clock := newTestClock()
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: clock.now})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	d, err := shares.New(lim, shares.Tree{Total: total, Class: tenant, Floor: tenantFloor})
	require.NoError(t, err)
	return d, clock
}

// The fields, and the decisions, are those of the total if it decides.
func TestShares(t *testing.T) {
	byTenant := ByHeader(tenant, "X-Key")
	// Until t is over, the client can use no more than r. A total does not lend what
	// it keeps for its floors.
	t.Run("fields of a total with a floor", func(t *testing.T) {
		for cost, want := range map[int64][]string{
			1: {"200 r=7;t=360", "200 r=6;t=360", "200 r=5;t=360", "200 r=4;t=360", "200 r=3;t=360", "200 r=2;t=360",
				"200 r=1;t=360", "200 r=0;t=360", "429 r=0;t=360"},
			3: {"200 r=5;t=360", "200 r=2;t=360", "429 r=2;t=360", "429 r=2;t=260"},
		} {
			lim, clock := newShares(t, stint.PerHour(10))
			h := Middleware(lim, nil, Rule{Key: byTenant, Cost: cost})(http.HandlerFunc(status))
			for i, want := range want {
				if i == 3 && cost == 3 {
					clock.pass(100 * time.Second)
				}
				w := answerTo(h, withKey("greedy"))
				_, state, _ := strings.Cut(w.Header().Get("RateLimit"), ";")
				require.Equal(t, want, fmt.Sprintf("%d %s", w.Code, state), "request %d of cost %d", i+1, cost)
			}
		}
	})
	t.Run("what observers and clients see", func(t *testing.T) {
		lim, _ := newShares(t, stint.PerHour(4))
		var seen rules.Decision
		h := Middleware(lim, &Options{Decisions: true}, Rule{Key: byTenant})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			seen = rules.Decisions(r.Context())[0]
		}))
		w := answerTo(h, withKey("greedy"))
		require.Equal(t, `"total";q=4;w=3600`, w.Header().Get("RateLimit-Policy"), "the label goes with the number")
		require.Equal(t, "total", seen.Label)
		require.Equal(t, [2]stint.Key{total.Key(""), tenant.Key("greedy")}, [2]stint.Key{seen.Key, seen.RuleKey})
	})
}
