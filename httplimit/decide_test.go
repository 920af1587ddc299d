package httplimit

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

func TestShadow(t *testing.T) {
	byKey := Rule{Key: ByHeader(perKey, "X-Key")}
	runScenarios(t, map[string]scenario{
		"decides and does not deny": {
			limits: map[stint.Name]stint.Limit{everyone: stint.PerHour(1), perKey: stint.PerHour(3)},
			rules:  []Rule{{Key: Shared(everyone), Shadow: true}, byKey}, script: `
			200 k: 200
			Observed: key allowed, everyone allowed
			Fields: Ratelimit "key";r=2;t=1200 / Ratelimit-Policy "key";q=3;w=3600
			200 k: 200 200
			Observed: key allowed, everyone denied
			200 k: 429
			Observed: key denied, everyone denied
			200: 400
			Error: no id`},
	})
}

// Middlewares are independent of each other, but Decisions and the fields of a
// response have those of all.
func TestNested(t *testing.T) {
	runScenarios(t, map[string]scenario{
		"the fields of a denial inside stay": {limits: map[stint.Name]stint.Limit{perKey: stint.PerHour(1)},
			outer: []Rule{{Key: ByIP(failures), Count: rules.OneOf(429)}}, rules: []Rule{{Key: ByHeader(perKey, "X-Key")}},
			script: `
			200 k: 200 429
			RateLimit: "login";r=4;t=12, "key";r=0;t=3600`},
	})
	t.Run("again", func(t *testing.T) { // a handler calls nested middleware for each part of a batch
		lim, _ := newLimiter(t, nil)
		part := Middleware(lim, nil, Rule{Key: ByHeader(perKey, "X-Key"), Refund: ServerError})(http.HandlerFunc(status))
		var codes []int
		batch := Middleware(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) {
				for n := range 7 {
					w := answerTo(part, r)
					codes = append(codes, w.Code)
					require.Equal(t, fmt.Sprintf(`"everyone";r=4;t=12, "key";r=%d;t=12`, max(0, 4-n)), w.Header().Get("RateLimit"))
				}
			}))
		answerTo(batch, withKey("k"))
		require.Equal(t, []int{200, 200, 200, 200, 200, 429, 429}, codes)
		require.EqualValues(t, 4, left(t, lim, everyone.Key("")))
	})
}

// Denied may settle a request that was denied: it has spent nothing.
func TestDeniedSettles(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	spend(t, lim, perKey.Key("k"), 3)
	spend(t, lim, everyone.Key(""), 5)
	h := Middleware(lim, &Options{Denied: func(_ http.ResponseWriter, r *http.Request, _ stint.Decision) {
		_, err := rules.Settle(r.Context(), perKey, 0)
		require.NoError(t, err)
	}}, Rule{Key: ByHeader(perKey, "X-Key"), Cost: 2, Settle: true}, Rule{Key: Shared(everyone)})
	answerTo(h(http.HandlerFunc(status)), withKey("k"))
	require.EqualValues(t, 2, left(t, lim, perKey.Key("k")))
}
