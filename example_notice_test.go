package stint_test

import (
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
)

// A customer gets one notice when 80 % of the day's quota are used, however
// many requests cross that line together.
func Example_notice() {
	const (
		RequestsPerCustomer stint.Name = iota + 1
		NoticesPerCustomer
	)
	limits, err := stint.NewLimits(stint.Names{
		RequestsPerCustomer: {Label: "RequestsPerCustomer", Limit: stint.PerDay(1000)},
		NoticesPerCustomer:  {Label: "NoticesPerCustomer", Limit: stint.PerDay(1)},
	})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := stint.New(stint.NewMemStore(), limits, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	var notices atomic.Int64
	send := func(string) { notices.Add(1) }

	var requests sync.WaitGroup
	for range 900 {
		requests.Go(func() {
			d, err := limiter.Spend(RequestsPerCustomer.Key("alice"), 1)
			if err == nil && d.Allowed && d.Remaining <= d.Limit.Burst/5 &&
				limiter.Allow(NoticesPerCustomer.Key("alice")) {
				send("You have used 80 % of today's requests.")
			}
		})
	}
	requests.Wait()
	fmt.Println("notices:", notices.Load())
	// Output:
	// notices: 1
}
