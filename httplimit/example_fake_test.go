package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// thirdDenied is a fake for tests: it denies each third request. The Decider that
// it embeds is nil, because the middleware calls no other method.
type thirdDenied struct {
	stint.Decider
	limits *stint.Limits
	calls  int
}

func (f *thirdDenied) Limits() *stint.Limits { return f.limits }

func (f *thirdDenied) Do(_ context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	d := stint.Decision{Key: reqs[0].Key, Allowed: true}
	if f.calls++; f.calls%3 == 0 {
		d.Allowed, d.RetryAfter = false, time.Second
	}
	for i := range ds {
		ds[i] = d
	}
	return d, nil
}

// A test of a server needs no clock and no quota that is spent.
func ExampleMiddleware_fake() {
	limits, err := stint.NewLimits(stint.Names{RequestsPerAddress: {Label: "requests", Limit: stint.PerMinute(100)}})
	if err != nil {
		panic(err)
	}
	limited := httplimit.Middleware(&thirdDenied{limits: limits}, nil,
		httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})
	server := limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))
	for range 3 {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 ""
	// 200 ""
	// 429 "1"
}
