// Program example shares one bucket between two processes. It starts itself a
// second time, and both processes spend until they are denied.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit"
)

const perAccount stint.Name = 1

func main() {
	url := flag.String("url", "redis://127.0.0.1:6399", "of the server")
	second := flag.Bool("second", false, "be the second process")
	id := flag.String("id", time.Now().Format(time.RFC3339Nano), "of the account; the default is a new one")
	flag.Parse()
	log.SetFlags(0)
	names := stint.Names{perAccount: {Label: "perAccount", Limit: stint.PerHour(20)}}
	limits, err := stint.NewLimits(names)
	if err != nil {
		log.Fatal(err)
	}
	lim, err := redislimit.Open(*url, limits, &redislimit.Options{Timeout: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close()
	if !*second {
		cmd := exec.Command(os.Args[0], "-url", *url, "-id", *id, "-second")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			log.Fatal(err)
		}
		defer cmd.Wait()
	}
	for n := 0; ; n++ {
		d, err := lim.Spend(perAccount.Key(*id), 1)
		if err != nil {
			log.Fatal(err)
		}
		if !d.Allowed {
			fmt.Printf("process %d: %d allowed, the next in %v\n", os.Getpid(), n, d.RetryAfter.Round(time.Second))
			return
		}
	}
}
