package migrate

import (
	"net/http"

	"github.com/didip/tollbooth/v7"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

func tollboothBefore(handler http.Handler) http.Handler {
	limit := tollbooth.NewLimiter(3.0/3600, nil) // requests a second
	limit.SetBurst(3)
	limit.SetIPLookups([]string{"RemoteAddr"})
	limit.SetHeader("X-User", nil)
	return tollbooth.LimitHandler(limit, handler)
}

func tollboothAfter(limiter *stint.Limiter, handler http.Handler) http.Handler {
	limit := httplimit.Middleware(limiter, nil,
		httplimit.Rule{Key: httplimit.ByHeader(Requests, "X-User")},
	)
	return limit(handler)
}
