package stint_test

import (
	"fmt"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stint-go/stint"
)

// 10,000 calls a month, as the provider counts them: full again at midnight
// Pacific on the first.
func ExampleEachMonth() {
	pacific := must(time.LoadLocation("America/Los_Angeles"))
	quota := stint.EachMonth(10_000, pacific)
	limiter, clock := newLimiter(OrdersPerAccount, quota)
	defer limiter.Close()
	clock.pass(31*24*time.Hour - time.Second) // one second before February, in UTC

	key := OrdersPerAccount.Key("12345678")
	fmt.Println(must(limiter.Spend(key, 9_999)).Remaining)
	d := must(limiter.Spend(key, 2))
	_, end := quota.PeriodAt(limiter.Now())
	fmt.Printf("allowed: %v, again in %v, on %s\n", d.Allowed, d.RetryAfter, end.Format("2 January, 15:04 MST"))
	fmt.Println(quota)
	// Output:
	// 1
	// allowed: false, again in 8h0m1s, on 1 February, 00:00 PST
	// 10000/month@America/Los_Angeles
}

// What three limits of "100 a day" admit of a client that asks as often as it
// can: in the hour around midnight after a quiet day, at most in 24 hours, and
// in 30 days.
func ExampleEachDay() {
	const day = 24 * time.Hour
	for _, limit := range []stint.Limit{
		stint.PerDay(100),
		stint.WithinWindow(100, day),
		stint.EachDay(100, time.UTC),
	} {
		fmt.Printf("%-12v around midnight %3d, in 24 hours %3d, in 30 days %4d\n", limit,
			admittedFrom(23*time.Hour+30*time.Minute, limit, time.Hour),
			max(admittedFrom(0, limit, day), admittedFrom(12*time.Hour, limit, day)),
			admittedFrom(0, limit, 30*day))
	}
	// Output:
	// 100/24h      around midnight 104, in 24 hours 199, in 30 days 3099
	// 98/24h burst 3 around midnight   7, in 24 hours 100, in 30 days 2942
	// 100/day      around midnight 200, in 24 hours 200, in 30 days 3000
}

// admittedFrom is admitted for a client that begins at a time of the day.
func admittedFrom(begin time.Duration, limit stint.Limit, within time.Duration) (n int) {
	limiter, c := newLimiter(OrdersPerAccount, limit)
	defer limiter.Close()
	c.pass(begin)
	for since := time.Duration(0); since < within; {
		d := must(limiter.Spend(OrdersPerAccount.Key("12345678"), 1))
		if d.Allowed {
			n++
			continue
		}
		c.pass(d.RetryAfter)
		since += d.RetryAfter
	}
	return n
}
