package stint_test

import (
	"fmt"
	"time"

	"github.com/stint-go/stint"
)

// admitted returns how many requests a limit admits within a time from its
// first one, if a client asks as often as it can.
func admitted(limit stint.Limit, within time.Duration) (n int) {
	limiter, c := newLimiter(OrdersPerAccount, limit)
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	for since := time.Duration(0); since < within; {
		d := must(limiter.Spend(key, 1))
		if d.Allowed {
			n++
			continue
		}
		c.pass(d.RetryAfter)
		since += d.RetryAfter
	}
	return n
}

// "100 a day" admits 199 in its first 24 hours, and a hard quota 100.
func ExamplePerDay() {
	const day = 24 * time.Hour
	for _, limit := range []stint.Limit{
		stint.PerDay(100),
		stint.PerDay(100).WithBurst(10),
		stint.PerDay(100).WithBurst(1),
		stint.WithinWindow(100, day),
	} {
		fmt.Printf("%-17v  at once %3d, in a day %d, in 30 days %d\n",
			limit, admitted(limit, 1), admitted(limit, day), admitted(limit, 30*day))
	}
	// Output:
	// 100/24h            at once 100, in a day 199, in 30 days 3099
	// 100/24h burst 10   at once  10, in a day 109, in 30 days 3009
	// 100/24h burst 1    at once   1, in a day 100, in 30 days 3000
	// 98/24h burst 3     at once   3, in a day 100, in 30 days 2942
}
