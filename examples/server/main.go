// Command server has a login limit, an API limit, and a status page. Its limits
// are durable: a client that is locked out stays so if the server is stopped or
// killed, and started again.
//
//	go run ./examples/server -addr localhost:8080 -file limits.db
//
//	curl -i localhost:8080/api/time
//	curl -i localhost:8080/login -d user=ada -d password=guess
//	open http://localhost:8080/status
package main

import (
	"context"
	"crypto/subtle"
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

// The limits of this program. The numbers are what the file stores.
const (
	RequestsPerAddress stint.Name = 1
	LoginsPerAddress   stint.Name = 2
	LoginsPerUser      stint.Name = 3
)

// maxBody is how much of a request's body is read. byUser reads it also if the
// request is denied.
const maxBody = 64 << 10

var names = stint.Names{
	RequestsPerAddress: {Label: "RequestsPerAddress", ID: stint.IPAddress},
	LoginsPerAddress:   {Label: "LoginsPerAddress", ID: stint.IPAddress, Limit: stint.Limit{Burst: 5, Count: 5, Period: 15 * time.Minute}},
	LoginsPerUser:      {Label: "LoginsPerUser", Limit: stint.PerHour(20)},
}

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	file := flag.String("file", "limits.db", "the file that remembers")
	api := flag.String("api", "100/1s", "the limit of API requests from one address")
	lockOut := flag.Duration("lockout", 15*time.Minute, "how long an address is locked out after five failed logins")
	reset := flag.Bool("reset", false, "let the status page reset and hold buckets")
	measure := flag.Bool("measure", false, "at the end, print how long requests were in the limiter")
	flag.Parse()
	var watch *stopwatch
	if *measure {
		watch = &stopwatch{took: make(map[bool][]time.Duration)}
		defer watch.print(os.Stdout)
	}
	if err := run(*addr, *file, *api, *lockOut, *reset, watch); err != nil {
		log.Fatal(err)
	}
}

func run(addr, file, api string, lockOut time.Duration, reset bool, watch *stopwatch) error {
	requests, err := stint.ParseLimit(api)
	if err != nil {
		return err
	}
	limits, err := stint.NewLimits(names, map[stint.Name]stint.Limit{RequestsPerAddress: requests}, nil)
	if err != nil {
		return err
	}
	limiter, err := stint.Open(file, limits, nil)
	if err != nil {
		return err
	}
	defer limiter.Close()

	server := &http.Server{Handler: routes(limiter, lockOut, reset, watch), ReadHeaderTimeout: 5 * time.Second}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		stop()                                       // a second signal kills
		return server.Shutdown(context.Background()) // waits for requests
	}
}

func routes(limiter *stint.Limiter, lockOut time.Duration, reset bool, watch *stopwatch) http.Handler {
	status := statuspage.New(limiter, &statuspage.Options{AllowReset: reset})
	right := func(status int) bool { return !httplimit.AuthFailed(status) }
	limit := httplimit.New(limiter,
		&httplimit.Options{Observers: []httplimit.Observer{status.Observer(), {Error: logError}}},
		httplimit.Rule{Pattern: "/api/", Key: httplimit.ByIP(RequestsPerAddress)},

		// A login spends before the password is checked, so that guesses that
		// arrive together are counted. A right password gets its token back. The
		// last wrong one locks the address out.
		httplimit.Rule{
			Pattern: "POST /login", Key: httplimit.ByIP(LoginsPerAddress),
			RefundStatus: right, LockOut: lockOut,
		},
		httplimit.Rule{
			Pattern: "POST /login", Key: byUser, Optional: true,
			RefundStatus: right,
		},
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/time", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, time.Now().Format(time.RFC3339))
	})
	mux.HandleFunc("GET /api/empty", empty)
	mux.HandleFunc("POST /login", login)

	all := http.NewServeMux()
	all.Handle("/", watch.around(limit, mux))
	all.Handle("/status", status) // a real server lets only operators see it
	bare := http.NewServeMux()    // the cost of a request without a limiter: see wrk.sh
	bare.HandleFunc("GET /unlimited/empty", empty)
	bare.HandleFunc("GET /unlimited/fields", fields)
	bare.HandleFunc("GET /unlimited/denial", denial)
	all.Handle("/unlimited/", bare)
	silent := httplimit.New(limiter,
		&httplimit.Options{Observers: []httplimit.Observer{status.Observer()}, Headers: httplimit.NoHeaders},
		httplimit.Rule{Pattern: "/silent/", Key: httplimit.ByIP(RequestsPerAddress)})
	few := http.NewServeMux()
	few.HandleFunc("GET /silent/empty", empty)
	all.Handle("/silent/", watch.around(silent, few))
	return http.MaxBytesHandler(all, maxBody)
}

func logError(r *http.Request, err error) { log.Print(r.Method, " ", r.URL.Path, ": ", err) }

func empty(http.ResponseWriter, *http.Request) {}

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

var denialBody = []byte(`{"type":"` + httplimit.QuotaExceeded + `","title":"Request cannot be satisfied as assigned quota has been exceeded",` +
	`"status":429,"detail":"Try again in 1 second.","violated-policies":["RequestsPerAddress"]}` + "\n")

// byUser finds the bucket of the user that a login names.
func byUser(r *http.Request) (stint.Key, error) {
	user := r.FormValue("user")
	if user == "" {
		return stint.Key{}, httplimit.ErrNoID
	}
	return names.Key(LoginsPerUser, user)
}

func login(w http.ResponseWriter, r *http.Request) {
	password := []byte(r.FormValue("password"))
	if r.FormValue("user") != "ada" || subtle.ConstantTimeCompare(password, []byte("lovelace")) != 1 {
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}
