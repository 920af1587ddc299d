package httplimit

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

func TestShadow(t *testing.T) {
	byKey := Rule{Key: ByHeader(perKey, "X-Key")}
	runScenarios(t, map[string]scenario{
		"decides and does not deny": {
			limits: map[stint.Name]stint.Limit{everyone: stint.PerHour(1), perKey: stint.PerHour(3)},
			rules:  []Rule{{Key: Single(everyone), Shadow: true}, byKey}, script: `
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
		batch := Middleware(lim, &Options{Decisions: true}, Rule{Key: Single(everyone)})(http.HandlerFunc(
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

// A handler may run parts of a batch at the same time, within other middleware.
func TestNestedAtOnce(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerSecond(1_000_000)})
	var parts []http.Handler
	for _, headers := range []Headers{Standard, XRateLimit, NoHeaders, Draft06} {
		parts = append(parts, Middleware(lim, &Options{Headers: headers}, Rule{Key: ByHeader(perKey, "X-Key"), Refund: ServerError})(http.HandlerFunc(status)))
	}
	batch := Middleware(lim, nil, Rule{Key: Single(everyone), Refund: ServerError})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			var all sync.WaitGroup
			for range 50 {
				for _, part := range parts {
					all.Go(func() { assert.Equal(t, 200, answerTo(part, r.Clone(r.Context())).Code) })
				}
			}
			all.Wait()
		}))
	answerTo(batch, withKey("k"))
}

// The fields of nested middlewares, whether they are in the context of the handler
// or not.
func TestNestedFields(t *testing.T) {
	plain, refunded := Rule{}, Rule{Cost: 3, Refund: rules.OneOf(200)}
	for name, c := range map[string]struct {
		headers Headers
		around  [2]Rule // by address, and then by key
		want    string
	}{
		"plain, plain":        {Standard, [2]Rule{plain, plain}, `"address";r=4;t=12, "key";r=4;t=12`},
		"plain, changes":      {Standard, [2]Rule{plain, refunded}, `"address";r=4;t=12, "key";r=5;t=12`},
		"changes, plain":      {Standard, [2]Rule{refunded, plain}, `"address";r=5;t=12, "key";r=4;t=12`},
		"changes, changes":    {Standard, [2]Rule{refunded, refunded}, `"address";r=5;t=12, "key";r=5;t=12`},
		"strictest, plain":    {XRateLimit, [2]Rule{{Cost: 2}, plain}, "3"},
		"strictest, inside":   {XRateLimit, [2]Rule{plain, {Cost: 2}}, "3"},
		"strictest, refunded": {XRateLimit, [2]Rule{{Cost: 2}, refunded}, "3"},
		"strictest, outside":  {XRateLimit, [2]Rule{refunded, {Cost: 2}}, "3"},
	} {
		for _, three := range []bool{false, true} {
			lim, _ := newLimiter(t, nil)
			c.around[0].Key, c.around[1].Key = ByIP(perAddress), ByHeader(perKey, "X-Key")
			opts := &Options{Headers: c.headers}
			h := Middleware(lim, opts, c.around[0])(Middleware(lim, opts, c.around[1])(http.HandlerFunc(status)))
			want := c.want
			if three { // a plain one around them
				h = Middleware(lim, opts, Rule{Key: Single(everyone)})(h)
				if c.headers == Standard {
					want = `"everyone";r=4;t=12, ` + want
				}
			}
			f := answerTo(h, withKey("k")).Header()
			require.Equal(t, want, f.Get("RateLimit")+f.Get("X-RateLimit-Remaining"), "%s, three %t", name, three)
			require.Len(t, f["Ratelimit"], map[Headers]int{Standard: 1}[c.headers])
		}
	}
}

// Denied may settle a request that was denied: it has spent nothing.
func TestDeniedSettles(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	spend(t, lim, perKey.Key("k"), 3)
	spend(t, lim, everyone.Key(""), 5)
	h := Middleware(lim, &Options{Denied: func(_ http.ResponseWriter, r *http.Request, _ stint.Decision) {
		_, err := rules.Settle(r.Context(), perKey, 0)
		require.NoError(t, err)
	}}, Rule{Key: ByHeader(perKey, "X-Key"), Cost: 2, Settle: true}, Rule{Key: Single(everyone)})
	answerTo(h(http.HandlerFunc(status)), withKey("k"))
	require.EqualValues(t, 2, left(t, lim, perKey.Key("k")))
}
