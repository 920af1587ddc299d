// Command shared is a server and a command-line client that share the limits in
// one file. Any number of servers may run at once, and the client works whether
// one runs or not.
//
//	go run ./examples/shared serve localhost:8080
//	go run ./examples/shared left 127.0.0.1
//	go run ./examples/shared ban 127.0.0.1 1h
//	go run ./examples/shared unban 127.0.0.1
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
)

// RequestsPerAddress is the one limit of this program.
const RequestsPerAddress stint.Name = 1

var names = stint.Names{
	RequestsPerAddress: {Label: "RequestsPerAddress", IDs: stint.IPAddress, Limit: stint.PerHour(100)},
}

const usage = "usage: shared serve ADDRESS | left IP | ban IP DURATION | unban IP"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	if len(args) < 2 {
		return errors.New(usage)
	}
	file := os.Getenv("SHARED_FILE")
	if file == "" {
		file = "shared.db"
	}
	limits, err := stint.NewLimits(names)
	if err != nil {
		return err
	}
	limiter, err := hostlimit.Open(file, limits, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()
	if args[0] == "serve" {
		return serve(limiter, args[1])
	}
	key, err := names.Key(RequestsPerAddress, args[1])
	if err != nil {
		return err
	}
	switch {
	case args[0] == "left":
		bucket, err := limiter.Bucket(key)
		if err != nil {
			return err
		}
		fmt.Println(bucket.Remaining)
		return nil
	case args[0] == "ban" && len(args) == 3:
		d, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		_, err = limiter.Hold(key, limiter.Now().Add(d))
		return err
	case args[0] == "unban":
		return limiter.SetHold(key, time.Time{})
	}
	return fmt.Errorf("no such command: %q; %s", args, usage)
}

// serve answers requests until it is interrupted.
func serve(limiter *hostlimit.Limiter, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("http://%s\n", listener.Addr())
	limited := httplimit.Middleware(limiter, nil, httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)})
	server := &http.Server{Handler: limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello from process", os.Getpid())
	}))}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Shutdown(context.Background())
	}
}
