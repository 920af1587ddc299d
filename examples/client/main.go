// Command client asks a metered API, and keeps to a quota across its runs: for
// example three answers an hour, however often it is started. Requests over the
// quota are not sent.
//
//	go run ./examples/client -quota 3/1h http://localhost:8080/api/time
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

// RequestsPerServer is the one limit of this program.
const RequestsPerServer stint.Name = 1

var names = stint.Names{RequestsPerServer: {Label: "RequestsPerServer"}}

func main() {
	file := flag.String("file", "", "file that keeps the quota across runs; default "+
		filepath.Join("stint", "client.db")+" in the user's configuration directory")
	quota := flag.String("quota", "1000/1d", "requests that the API allows, as COUNT/PERIOD")
	wait := flag.Duration("wait", 0, "longest time for the wait and the request together; 0 does not wait")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: client [-file FILE] [-quota COUNT/PERIOD] [-wait DURATION] URL")
		os.Exit(2)
	}
	if err := run(*file, *quota, *wait, flag.Arg(0)); err != nil {
		var over *rules.QuotaError
		if errors.As(err, &over) {
			fmt.Fprintf(os.Stderr, "not sent: the quota is used up, try again in %v\n", over.RetryAfter.Round(time.Second))
			os.Exit(75) // EX_TEMPFAIL
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// defaultFile returns the path of a file that lasts as long as the user's
// settings. A file in a cache directory may be deleted. The client would then
// exceed the quota, and the API would lock the user out. defaultFile makes the
// directory, which other users cannot read.
func defaultFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the file of the quota, use -file: %w", err)
	}
	dir = filepath.Join(dir, "stint")
	return filepath.Join(dir, "client.db"), os.MkdirAll(dir, 0o700)
}

// run returns instead of exiting, so that the limiter is closed. Close saves
// everything in the file.
func run(file, quota string, wait time.Duration, url string) (err error) {
	if file == "" {
		if file, err = defaultFile(); err != nil {
			return err
		}
	}
	limit, err := stint.ParseLimit(quota)
	if err != nil {
		return err
	}
	limits, err := stint.NewLimits(names.WithLimits(map[stint.Name]stint.Limit{RequestsPerServer: limit}))
	if err != nil {
		return err
	}
	// Many of these programs may run at once, and share the quota. A request
	// that was sent counts, whatever ends the program.
	limiter, err := hostlimit.Open(file, limits, &hostlimit.Options{
		LimiterOptions: stint.Options{Durability: stint.Synced},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()

	client := &http.Client{Transport: &httplimit.Transport{
		Limiter: limiter,
		Key:     httplimit.ByHost(RequestsPerServer),
		Wait:    wait > 0,
		OnError: func(_ *http.Request, err error) {
			fmt.Fprintln(os.Stderr, "cannot save how long the server asked to wait:", err)
		},
	}}
	ctx := context.Background()
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		says := "the server says " + res.Status
		if after := res.Header.Get("Retry-After"); after != "" {
			says += "; Retry-After: " + after
		}
		return errors.New(says)
	}
	_, err = io.Copy(os.Stdout, res.Body)
	return err
}
