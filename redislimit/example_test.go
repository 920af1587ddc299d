package redislimit_test

import (
	"fmt"
	"log"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit"
)

// While the server is away, each of four machines has a quarter of the limit.
// Health reports that the server is away.
func ExampleOpen_away() {
	const perAccount stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{perAccount: {Label: "perAccount", Limit: stint.PerHour(12)}})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := redislimit.Open("redis://127.0.0.1:1", limits, &redislimit.Options{Nodes: 4})
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	for range 4 {
		d, err := limiter.Spend(perAccount.Key("alice"), 1)
		fmt.Println(d.Allowed, d.Remaining, "of", d.Limit.Burst, err)
	}
	fmt.Println(limiter.Health() != nil, limiter.Stats().Outages)
	// Output:
	// true 2 of 3 <nil>
	// true 1 of 3 <nil>
	// true 0 of 3 <nil>
	// false 0 of 3 <nil>
	// true 1
}
