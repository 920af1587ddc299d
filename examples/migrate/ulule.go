package migrate

import (
	"net/http"
	"time"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

func ululeBefore(handler http.Handler) http.Handler {
	rate := limiter.Rate{Period: time.Hour, Limit: 3} // in fixed windows
	limit := stdlib.NewMiddleware(limiter.New(memory.NewStore(), rate),
		stdlib.WithKeyGetter(func(r *http.Request) string { return r.Header.Get("X-User") }),
	)
	return limit.Handler(handler)
}

func ululeAfter(limiter *stint.Limiter, handler http.Handler) http.Handler {
	limit := httplimit.Middleware(limiter, &httplimit.Options{Headers: httplimit.XRateLimit},
		httplimit.Rule{Key: httplimit.ByHeader(Requests, "X-User")},
	)
	return limit(handler)
}
