// Command server is an HTTP server to copy. It has limits for addresses,
// accounts and logins, in files that it reads again on SIGHUP. It works behind a
// proxy, and shows operators a status page on an address of its own. A locked-out
// client stays locked out if the server is stopped or killed.
//
//	go run ./examples/server
//
//	curl -i localhost:8080/api/time
//	curl -i localhost:8080/api/time -H 'X-API-Key: key-of-ada'
//	curl -i localhost:8080/login -d user=ada -d password=guess
//	open http://localhost:8081/status
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/httplimit/statuspage"
)

// config is what the flags say.
type config struct {
	addr, operators string
	file            string
	limits, plans   string
	trusted         string
}

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "localhost:8080", "address for clients")
	flag.StringVar(&c.operators, "operators", "localhost:8081", "address of the status page")
	flag.StringVar(&c.file, "file", "limits.db", "file of the limiter")
	flag.StringVar(&c.limits, "limits", "", "file of limits; without it, the built-in limits")
	flag.StringVar(&c.plans, "plans", "", "file of overrides; needs -limits")
	flag.StringVar(&c.trusted, "trust", "", "networks of your proxies, with commas between them")
	flag.Parse()
	if err := run(c); err != nil {
		log.Fatal(err)
	}
}

func run(c config) (err error) {
	stop, reload := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	signal.Notify(reload, syscall.SIGHUP)
	clients, err := clientAddress(c.trusted)
	if err != nil {
		return err
	}
	limits, err := loadLimits(c.limits, c.plans)
	if err != nil {
		return err
	}
	limiter, err := stint.Open(c.file, limits, &stint.Options{OnEvent: logEvent})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, limiter.Close()) }() // after all requests have ended

	shared, err := hostlimit.Serve(limiter, c.file, nil) // answers the command stint while this process has the file
	if err != nil {
		return err
	}
	defer shared.Close()

	page := statuspage.New(limiter, nil)
	failed := make(chan error, 2)
	server, err := serve(c.addr, "listening on", routes(limiter, clients, page.Observer()), failed)
	if err != nil {
		return err
	}
	defer shutDown(server)
	operators := http.NewServeMux()
	operators.Handle("/status", page)
	pages, err := serve(c.operators, "status page on", operators, failed)
	if err != nil {
		return err
	}
	defer shutDown(pages)

	for {
		select {
		case <-reload:
			reloadLimits(limiter, c.limits, c.plans)
		case <-stop:
			signal.Stop(stop) // a second signal ends the process at once
			return nil
		case err := <-failed:
			return err
		}
	}
}

// serve starts a server, and prints its address. It sends an error to failed if
// the server ends by itself.
func serve(addr, label string, h http.Handler, failed chan<- error) (*http.Server, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	fmt.Println(label, listener.Addr())
	return server, nil
}

// shutDown waits for the requests that have begun, for at most 20 seconds. The
// unit file gives the process 30, so that Close has time to save.
func shutDown(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		server.Close()
	}
}

// clientAddress trusts the proxies in these networks.
func clientAddress(trusted string) (c httplimit.ClientAddress, err error) {
	for network := range strings.SplitSeq(trusted, ",") {
		if network == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(network)
		if err != nil {
			return c, fmt.Errorf("-trust: want networks such as 10.0.0.0/8, with commas between them: %w", err)
		}
		c.TrustedProxies = append(c.TrustedProxies, prefix)
	}
	return c, nil
}

func logEvent(e stint.Event) { slog.Warn("limits", "event", e) }
