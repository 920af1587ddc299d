package statuspage_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/httplimit/statuspage"
)

func ExampleNew() {
	limits, err := stint.NewLimits(stint.Names{1: {Label: "requests", Limit: stint.PerMinute(100)}})
	if err != nil {
		panic(err)
	}
	limiter, err := stint.New(stint.NewMemStore(), limits, nil)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	status := statuspage.New(limiter, &statuspage.Options{Title: "Our API"})
	limit := httplimit.Middleware(limiter, &httplimit.Options{Observers: []httplimit.Observer{status.Observer()}},
		httplimit.Rule{Key: httplimit.ByIP(1)})
	mux := http.NewServeMux()
	mux.Handle("/status", status) // a real program lets only operators see it
	mux.Handle("/", limit(http.NotFoundHandler()))

	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	page := httptest.NewRecorder()
	mux.ServeHTTP(page, httptest.NewRequest("GET", "/status?format=prometheus", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "stint_decisions_total{") {
			fmt.Print(line)
		}
	}
	// Output:
	// stint_decisions_total{stint_limit="requests",stint_decision="allowed"} 1
	// stint_decisions_total{stint_limit="requests",stint_decision="denied"} 0
}
