// Command server has the handlers that wrk.sh measures: with a limit, with a
// limit that sends no header fields, and without a limit.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/httplimit/statuspage"
)

// Requests is the limit of requests from one address.
const Requests stint.Name = 1

func main() {
	addr := flag.String("addr", "localhost:8080", "address of the server")
	file := flag.String("file", "limits.db", "file of the limiter")
	api := flag.String("api", "100/1s", "limit of requests from one address")
	measure := flag.Bool("measure", false, "at the end, print how long requests were in the limiter")
	flag.Parse()
	var watch *stopwatch
	if *measure {
		watch = &stopwatch{took: make(map[bool][]time.Duration)}
		defer watch.print(os.Stdout)
	}
	if err := run(*addr, *file, *api, watch); err != nil {
		log.Fatal(err)
	}
}

func run(addr, file, api string, watch *stopwatch) error {
	limit, err := stint.ParseLimit(api)
	if err != nil {
		return err
	}
	limits, err := stint.NewLimits(stint.Names{
		Requests: {Label: "RequestsPerAddress", IDs: stint.IPAddress, Limit: limit},
	})
	if err != nil {
		return err
	}
	limiter, err := stint.Open(file, limits, nil)
	if err != nil {
		return err
	}
	defer limiter.Close()

	server := &http.Server{Handler: routes(limiter, watch), ReadHeaderTimeout: 5 * time.Second}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Println("listening on", listener.Addr())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return server.Shutdown(context.Background())
	}
}

func routes(limiter *stint.Limiter, watch *stopwatch) http.Handler {
	observers := []httplimit.Observer{statuspage.New(limiter, nil).Observer()}
	rule := httplimit.Rule{Key: httplimit.ByIP(Requests)}
	limit := httplimit.Middleware(limiter, &httplimit.Options{Observers: observers}, rule)
	silent := httplimit.Middleware(limiter,
		&httplimit.Options{Observers: observers, Headers: httplimit.NoHeaders}, rule)

	mux := http.NewServeMux()
	mux.Handle("GET /limited", watch.around(limit, http.HandlerFunc(empty)))
	mux.Handle("GET /silent", watch.around(silent, http.HandlerFunc(empty)))
	mux.HandleFunc("GET /unlimited/empty", empty)
	mux.HandleFunc("GET /unlimited/fields", fields)
	mux.HandleFunc("GET /unlimited/denial", denial)
	return mux
}

func empty(http.ResponseWriter, *http.Request) {}

// fields writes the fields of httplimit, without a limit.
func fields(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Ratelimit-Policy"] = []string{`"RequestsPerAddress";q=1000000000;w=1`}
	w.Header()["Ratelimit"] = []string{`"RequestsPerAddress";r=999999999;t=1`}
}

// denial writes the answer of httplimit to a denied request.
func denial(w http.ResponseWriter, _ *http.Request) {
	maps.Copy(w.Header(), denialHeader)
	w.WriteHeader(http.StatusTooManyRequests)
	w.Write(denialBody)
}

var denialHeader = http.Header{
	"Ratelimit-Policy": {`"RequestsPerAddress";q=100;w=1`}, "Ratelimit": {`"RequestsPerAddress";r=0;t=1`},
	"Retry-After": {"1"}, "Cache-Control": {"no-store"}, "Content-Type": {"application/problem+json"},
}

var denialBody = []byte(`{"type":"` + httplimit.QuotaExceeded + `",` +
	`"title":"Request cannot be satisfied as assigned quota has been exceeded",` +
	`"status":429,"detail":"Try again in 1 second.","violated-policies":["RequestsPerAddress"]}` + "\n")
