// Command forwardauth answers the question that a reverse proxy can ask before
// it forwards a request: may this one pass? It works with nginx (auth_request),
// HAProxy (Lua), Traefik (ForwardAuth) and Caddy (forward_auth), and keeps the
// limits of any program behind them, whatever it is written in.
// docs/production.md has the lines for each proxy.
//
//	go run ./examples/forwardauth -limit 100/1m
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
)

// RequestsPerAddress is the one limit of this program.
const RequestsPerAddress stint.Name = 1

func main() {
	listen := flag.String("listen", "127.0.0.1:8079", "address on which the proxy asks")
	file := flag.String("file", "forwardauth.db", "file that keeps the buckets")
	text := flag.String("limit", "100/1m", "requests of one address, as COUNT/PERIOD")
	denied := flag.Int("denied", http.StatusTooManyRequests, "status of a denial; nginx understands only 403")
	flag.Parse()
	if err := run(*listen, *file, *text, *denied); err != nil {
		log.Fatal(err)
	}
}

func run(listen, file, text string, denied int) (err error) {
	limit, err := stint.ParseLimit(text)
	if err != nil {
		return err
	}
	limits, err := stint.NewLimits(stint.Names{
		RequestsPerAddress: {Label: "RequestsPerAddress", IDs: stint.IPAddress, Limit: limit},
	})
	if err != nil {
		return err
	}
	limiter, err := hostlimit.Open(file, limits, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()

	// The proxy names the client in X-Forwarded-For. Only a proxy on this
	// machine is believed.
	clients := httplimit.ClientAddress{TrustedProxies: []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
	}}
	answer := httplimit.Middleware(limiter, &httplimit.Options{
		Denied: func(w http.ResponseWriter, _ *http.Request, _ stint.Decision) { w.WriteHeader(denied) },
	}, httplimit.Rule{Key: clients.ByIP(RequestsPerAddress)})
	pass := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	server := &http.Server{Handler: answer(pass)}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	done := make(chan error)
	context.AfterFunc(ctx, func() { done <- server.Shutdown(context.Background()) })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-done // the last answers are sent before the file is closed
}
