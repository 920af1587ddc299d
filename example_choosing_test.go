package stint_test

import (
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"time"
	_ "time/tzdata"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
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

// A contract sets a quota: never more than n in any window, not even after a
// crash. A crash withholds no token.
func Example_hardQuota() {
	limit := stint.WithinWindow(1000, 24*time.Hour)
	limit.Durability = stint.Synced
	limits := limitsOf(OrdersPerAccount, limit)

	fmt.Println(limits.For(OrdersPerAccount.Key("any")))
	fmt.Println(admitted(limit, 24*time.Hour))
	// Output:
	// 980/24h burst 21
	// 1000
}

// Each of three limits must admit: bursts, a day, and the whole server.
// A job has failed. The program gives back what it took of the day, in another run
// than the one that took it.
func ExampleLimiter_Refund_laterRun() {
	const PerSecond, PerDay stint.Name = 1, 2
	limits := must(stint.NewLimits(stint.Names{
		PerSecond: {Label: "PerSecond", Limit: stint.PerSecond(5)},
		PerDay:    {Label: "PerDay", Limit: stint.EachDay(1000, nil)},
	}))
	dir := must(os.MkdirTemp("", ""))
	defer os.RemoveAll(dir)
	var job struct{ Spent time.Time } // stored with the job

	firstRun := func(limiter *stint.Limiter) {
		d, err := limiter.SpendAll(PerSecond.Key("alice").Cost(1), PerDay.Key("alice").Cost(50))
		if err == nil && d.Allowed {
			job.Spent = d.At()
		}
	}
	secondRun := func(limiter *stint.Limiter) {
		d, err := limiter.Refund(PerDay.Key("alice").Cost(50).SpentAt(job.Spent))
		fmt.Println(d.Remaining, err)
	}
	for _, run := range []func(*stint.Limiter){firstRun, secondRun} {
		limiter := must(stint.Open(filepath.Join(dir, "quota.db"), limits, nil))
		run(limiter)
		if err := limiter.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output: 1000 <nil>
}

func Example_severalLimits() {
	const PerSecond, PerDay, Everyone stint.Name = 1, 2, 3
	limits := must(stint.NewLimits(stint.Names{
		PerSecond: {Label: "PerSecond", Limit: stint.PerSecond(2)},
		PerDay:    {Label: "PerDay", Limit: stint.PerDay(1000)},
		Everyone:  {Label: "Everyone", IDs: stint.Single, Limit: stint.PerSecond(500)},
	}))
	limiter := must(stint.New(stint.NewMemStore(), limits, nil))
	defer limiter.Close()

	for range 3 {
		d, err := limiter.SpendAll(
			stint.Request{Key: PerSecond.Key("alice"), Cost: 1},
			stint.Request{Key: PerDay.Key("alice"), Cost: 1},
			stint.Request{Key: Everyone.Key(""), Cost: 1},
		)
		fmt.Println(d.Allowed, d.Limit, err)
	}
	// Output:
	// true 2/1s <nil>
	// true 2/1s <nil>
	// false 2/1s <nil>
}

// A customer buys a plan while the program runs, and later leaves it.
func Example_plans() {
	limits := must(stint.NewLimits(names))
	limiter := must(stint.New(stint.NewMemStore(), limits, nil))
	defer limiter.Close()
	show := func() { fmt.Println(limiter.Limits().For(OrdersPerAccount.Key("12345678"))) }

	customer := OrdersPerAccount.Key("12345678")
	pro := stint.Override{Key: customer, Limit: stint.PerHour(1000)}
	free := stint.Override{Key: customer} // the default again
	show()
	for _, plan := range []stint.Override{pro, free} {
		if err := limiter.SetOverrides(plan); err != nil {
			panic(err)
		}
		show()
	}
	// Output:
	// 100/1h
	// 1000/1h
	// 100/1h
}

// The limits file has changed. The program puts the plans, which it has from its
// database, into the new limits.
func Example_plansKept() {
	limiter := must(stint.New(stint.NewMemStore(), must(stint.NewLimits(names)), nil))
	defer limiter.Close()
	customer := OrdersPerAccount.Key("12345678")
	plans := []stint.Override{{Key: customer, Limit: stint.PerHour(1000)}}

	limits := must(stint.NewLimits(names)) // the file, read again
	with, err := limits.With(plans...)
	if err != nil {
		panic(err)
	}
	if err := limiter.SetLimits(with); err != nil {
		panic(err)
	}
	fmt.Println(limiter.Limits().Override(customer))
	// Output:
	// 1000/1h true
}

// A customer who may change plans without end gains by it, because a smaller
// rolling limit forgets what was used beyond its burst. So the changes are
// limited, too.
func Example_planChanges() {
	const Requests, PlanChanges stint.Name = 1, 2
	limits := must(stint.NewLimits(stint.Names{
		Requests: {Label: "Requests", Limit: stint.PerDay(100)},
		PlanChanges: {Label: "PlanChanges", Limit: stint.Limit{
			Burst: 2, Count: 2, Period: 7 * 24 * time.Hour, Durability: stint.Synced,
		}},
	}))
	c := new(clock)
	limiter := must(stint.New(stint.NewMemStore(), limits, &stint.Options{Now: c.now}))
	defer limiter.Close()

	const customer = "12345678"
	changeTo := func(plan stint.Limit) (bool, error) {
		d, err := limiter.Spend(PlanChanges.Key(customer), 1)
		if err == nil && d.Allowed {
			err = limiter.SetOverrides(stint.Override{Key: Requests.Key(customer), Limit: plan})
		}
		return d.Allowed, err
	}
	all := stint.Request{Key: Requests.Key(customer), Cost: 1000, Mode: stint.UpTo}
	used := must(limiter.SpendAll(all)).Taken
	fmt.Println(used)
	for range 2 {
		for _, n := range []int64{50, 100} {
			fmt.Println(changeTo(stint.PerDay(n)))
			used += must(limiter.SpendAll(all)).Taken
		}
	}
	fmt.Println(used)
	// Output:
	// 100
	// true <nil>
	// true <nil>
	// false <nil>
	// false <nil>
	// 150
}

// The id of an API key's owner, for keys that the program has issued.
func Example_ids() {
	const PerAccount, PerAddress stint.Name = 1, 2
	names := stint.Names{
		PerAccount: {Label: "PerAccount", IDs: idformat.RegID, Limit: stint.PerHour(100)},
		PerAddress: {Label: "PerAddress", IDs: stint.IPAddress, Limit: stint.PerHour(100)},
	}
	fmt.Println(names.Key(PerAccount, "0012345678"))
	fmt.Println(names.Key(PerAddress, "::ffff:10.0.0.2"))
	fmt.Println(PerAddress.Prefix(netip.MustParseAddr("2001:db8::1"), 32, 64))
	// Output:
	// 0: stint: invalid id "0012345678": not of format regId: want a decimal number below 2⁶⁴ without leading zeros (PerAccount)
	// 2:10.0.0.2 <nil>
	// 2:2001:db8::/64
}

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

// Of 100 tokens, 20 are for people: a batch job stops before it has taken them.
func ExampleRequest_leave() {
	const Mails stint.Name = 1
	limits := must(stint.NewLimits(stint.Names{Mails: {Label: "Mails", Limit: stint.PerHour(100)}}))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limiter := must(stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }}))
	defer limiter.Close()

	urgent := stint.Request{Key: Mails.Key("acme"), Cost: 1}
	batch := stint.Request{Key: Mails.Key("acme"), Cost: 1, Leave: 20}
	for _, req := range []stint.Request{batch, urgent} {
		sent := 0
		d := must(limiter.SpendAll(req))
		for ; d.Allowed; d = must(limiter.SpendAll(req)) {
			sent++
		}
		fmt.Println(sent, "sent;", d.Remaining, "left; the next one in", d.RetryAfter)
	}
	// Output:
	// 80 sent; 20 left; the next one in 36s
	// 20 sent; 0 left; the next one in 36s
}
