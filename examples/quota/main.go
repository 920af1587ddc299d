// Command quota keeps to 10,000 calls a month of a metered API, which counts its
// months by the clock on the Pacific coast. Each run is one call:
//
//	$ go run ./examples/quota
//	call 1 of 10000, resets on 1 December, 00:00 Pacific
//
// What was used survives kill -9. Once the quota is used up, the program says
// so and ends with the code 75.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stint-go/stint"
)

// Calls is the one limit of this program.
const Calls stint.Name = 1

var errUsedUp = errors.New("the quota is used up")

func main() {
	file := flag.String("file", "calls.db", "file that keeps what was used")
	quota := flag.Int64("quota", 10_000, "calls that the API allows in a month")
	calls := flag.Int("n", 1, "calls to make")
	flag.Parse()
	err := run(*file, *quota, *calls, os.Stdout)
	if errors.Is(err, errUsedUp) {
		fmt.Fprintln(os.Stderr, "not sent:", err)
		os.Exit(75) // EX_TEMPFAIL
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run makes some calls, and prints a line for each.
func run(file string, n int64, calls int, out io.Writer) (err error) {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		return err
	}
	quota := stint.EachMonth(n, pacific)
	quota.Durability = stint.Synced // a call that was sent counts, whatever ends the program
	names := stint.Names{Calls: {Label: "Calls", IDs: stint.Single, Limit: quota}}
	limits, err := stint.NewLimits(names)
	if err != nil {
		return err
	}
	limiter, err := stint.Open(file, limits, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()
	for range calls {
		d, err := limiter.Spend(Calls.Key(""), 1)
		if err != nil {
			return err
		}
		_, end := quota.PeriodAt(limiter.Now())
		resets := end.Format("2 January, 15:04") + " Pacific"
		if !d.Allowed {
			return fmt.Errorf("%w: it resets on %s", errUsedUp, resets)
		}
		// The call to the API is here.
		fmt.Fprintf(out, "call %d of %d, resets on %s\n", n-d.Remaining, n, resets)
	}
	return nil
}
