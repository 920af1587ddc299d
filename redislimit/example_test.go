package redislimit_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit"
)

// Four machines share a server. While it is away, each decides with a quarter of each
// limit, from a file of its own. An outage and a restart of the program forget
// nothing.
func ExampleOptions_away() {
	const perAccount stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{perAccount: {Label: "perAccount", Limit: stint.PerHour(12)}})
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "away")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	for range 2 { // the program starts again during the outage
		shares, err := divided(limits, 4)
		if err != nil {
			log.Fatal(err)
		}
		own, err := stint.Open(filepath.Join(dir, "away.db"), shares, nil)
		if err != nil {
			log.Fatal(err)
		}
		limiter, err := redislimit.Open("redis://127.0.0.1:1", limits, &redislimit.Options{Away: own})
		if err != nil {
			log.Fatal(err)
		}
		for range 2 {
			d, err := limiter.Spend(perAccount.Key("alice"), 1)
			fmt.Println(d.Allowed, d.Remaining, "of", d.Limit.Burst, err)
		}
		fmt.Println(limiter.Health() != nil, limiter.Stats().Outages)
		limiter.Close()
		own.Close()
	}
	// Output:
	// true 2 of 3 <nil>
	// true 1 of 3 <nil>
	// true 1
	// true 0 of 3 <nil>
	// false 0 of 3 <nil>
	// true 1
}

// divided returns what each of some machines may use of the limits by itself.
func divided(limits *stint.Limits, machines int64) (*stint.Limits, error) {
	names := limits.Names()
	var overrides []stint.Override
	for name, spec := range names {
		spec.Limit = spec.Limit.DividedBy(machines)
		names[name] = spec
		for o := range limits.Overrides(name) {
			o.Limit = o.Limit.DividedBy(machines)
			overrides = append(overrides, o)
		}
	}
	return stint.NewLimits(names, overrides...)
}
