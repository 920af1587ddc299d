package stint_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/stint-go/stint"
)

// An API has asked for an hour of rest. The next run of the program knows it.
func ExampleLimiter_Hold_nextRun() {
	const Requests stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{
		Requests: {Label: "Requests", Limit: stint.PerMinute(60)},
	})
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "cooldowns.db")

	firstRun := func(limiter *stint.Limiter) {
		_, err := limiter.Hold(Requests.Key("api.example.com"), time.Now().Add(time.Hour))
		fmt.Println(err)
	}
	secondRun := func(limiter *stint.Limiter) {
		d, err := limiter.Spend(Requests.Key("api.example.com"), 1)
		fmt.Println(d.Allowed, d.RetryAfter.Round(time.Minute), err)
	}
	for _, run := range []func(*stint.Limiter){firstRun, secondRun} {
		limiter, err := stint.Open(path, limits, nil)
		if err != nil {
			log.Fatal(err)
		}
		run(limiter)
		if err := limiter.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// <nil>
	// false 1h0m0s <nil>
}
