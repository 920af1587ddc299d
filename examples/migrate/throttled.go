package migrate

import (
	"net/http"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

func throttledBefore(handler http.Handler) (http.Handler, error) {
	store, err := memstore.NewCtx(65536)
	if err != nil {
		return nil, err
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerHour(3), MaxBurst: 2} // a burst of 3
	limiter, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return nil, err
	}
	limit := throttled.HTTPRateLimiterCtx{
		RateLimiter: limiter,
		VaryBy:      &throttled.VaryBy{Headers: []string{"X-User"}},
	}
	return limit.RateLimit(handler), nil
}

func throttledAfter(limiter *stint.Limiter, handler http.Handler) http.Handler {
	limit := httplimit.Middleware(limiter, nil,
		httplimit.Rule{Key: httplimit.ByHeader(Requests, "X-User")},
	)
	return limit(handler)
}
