package stint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
)

// A program declares its limits once. The numbers are what the file stores.
const (
	LoginsPerAddress stint.Name = 1
	OrdersPerAccount stint.Name = 6
	FailuresPerHost  stint.Name = 7
)

var names = stint.Names{
	LoginsPerAddress: {Label: "LoginsPerAddress", IDs: stint.IPAddress, Limit: stint.PerMinute(5)},
	OrdersPerAccount: {Label: "OrdersPerAccount", IDs: idformat.RegID, Limit: stint.PerHour(100)},
	FailuresPerHost: {
		Label:       "FailuresPerHost",
		IDs:         stint.Tuple(idformat.RegID, idformat.Hostname),
		OverrideIDs: idformat.RegID,
		Limit:       stint.PerHour(3),
	},
}

func ExampleNames_Key() {
	key, err := names.Key(LoginsPerAddress, "::ffff:10.0.0.2")
	fmt.Println(key, err)
	_, err = names.Key(LoginsPerAddress, "10.0.0")
	fmt.Println(err)
	// Output:
	// 1:10.0.0.2 <nil>
	// stint: invalid id "10.0.0": not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1 (LoginsPerAddress)
}

func ExampleLimit() {
	limit := stint.Limit{Burst: 20, Count: 5, Period: time.Minute}
	fmt.Println(limit)
	fmt.Println("a token comes back every", limit.Interval())
	fmt.Println("an empty bucket is full after", limit.Tolerance())
	fmt.Println(limit == stint.PerMinute(5).WithBurst(20))
	// Output:
	// 5/1m burst 20
	// a token comes back every 12s
	// an empty bucket is full after 4m0s
	// true
}

func ExampleParseLimit() {
	limit, err := stint.ParseLimit("300/180m")
	fmt.Println(limit.Burst, limit.Count, limit.Period, err)
	_, err = stint.ParseLimit("0/1d")
	fmt.Println(err)
	// Output:
	// 300 300 3h0m0s <nil>
	// stint: limit "0/1d": count is 0, want at least 1
}

// A limit in a configuration in JSON. It works in YAML, and as a flag, too.
func ExampleLimit_UnmarshalText() {
	var config struct{ PerAccount, PerDay stint.Limit }
	err := json.Unmarshal([]byte(`{"PerAccount": "300/1h burst 50", "PerDay": "1000/day@Europe/Berlin leased"}`), &config)
	fmt.Println(config.PerAccount.Burst, config.PerDay, config.PerDay.Durability, err)
	// Output: 50 1000/day@Europe/Berlin leased <nil>
}

// Each limit is beside its name. An override holds for some ids.
func ExampleNewLimits() {
	limits := must(stint.NewLimits(names,
		stint.Override{Key: FailuresPerHost.Key("12345678"), Limit: stint.PerHour(60)}))
	fmt.Println(limits.For(FailuresPerHost.Key("12345678:example.com")))
	fmt.Println(limits.For(FailuresPerHost.Key("87654321:example.com")))

	_, err := stint.NewLimits(stint.Names{1: {Label: "Forgotten"}})
	fmt.Println(err)
	// Output:
	// 60/1h
	// 3/1h
	// stint: Forgotten: it has no limit: give its NameSpec a Limit, or stint.Unlimited
}

// Our own monitoring is never denied.
func ExampleLimit_unlimited() {
	limits := must(stint.NewLimits(names,
		stint.Override{Key: LoginsPerAddress.Key("10.0.0.1"), Limit: stint.Unlimited}))
	limiter := must(stint.New(stint.NewMemStore(), limits, nil))
	defer limiter.Close()
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
		key, err := limits.Names().Key(LoginsPerAddress, address)
		if err != nil {
			panic(err)
		}
		d, err := limiter.Spend(key, 5)
		fmt.Println(d.Allowed, d.Remaining == math.MaxInt64, err)
	}
	// Output:
	// true true <nil>
	// true false <nil>
}

func ExampleLimits_Overrides() {
	larger := stint.PerHour(200)
	limits := must(stint.NewLimits(names,
		stint.Override{Key: OrdersPerAccount.Key("87654321"), Limit: larger, Comment: "load test, until March"},
		stint.Override{Key: OrdersPerAccount.Key("12345678"), Limit: larger},
	))
	for o := range limits.Overrides(OrdersPerAccount) {
		fmt.Printf("%s %v %q\n", o.Key.ID, o.Limit, o.Comment)
	}
	// Output:
	// 12345678 200/1h ""
	// 87654321 200/1h "load test, until March"
}

// The plans of an API: a function writes down the limits of a plan once.
func ExampleOverride() {
	const PerMinute, PerDay stint.Name = 1, 2
	plans := stint.Names{
		PerMinute: {Label: "PerMinute", Limit: stint.PerMinute(10)},
		PerDay:    {Label: "PerDay", Limit: stint.PerDay(1000)},
	}
	pro := func(id string) []stint.Override {
		return []stint.Override{
			{Key: PerMinute.Key(id), Limit: stint.PerMinute(100)},
			{Key: PerDay.Key(id), Limit: stint.Unlimited},
		}
	}
	limits := must(stint.NewLimits(plans, slices.Concat(pro("key-1"), pro("key-2"))...))
	fmt.Println(limits.For(PerMinute.Key("key-1")))
	fmt.Println(limits.For(PerMinute.Key("key-3")))
	fmt.Println(limits.For(PerDay.Key("key-2")))

	// A customer buys the plan. The old Limits stay as they are.
	others, err := limits.With(pro("key-3")...)
	fmt.Println(err)
	fmt.Println(others.For(PerMinute.Key("key-3")))
	// Output:
	// 100/1m
	// 10/1m
	// unlimited
	// <nil>
	// 100/1m
}

// A customer moves to a larger plan, and another one is no longer special.
func ExampleLimits_With() {
	const PerKey stint.Name = 1
	limits := must(stint.NewLimits(stint.Names{
		PerKey: {Label: "PerKey", Limit: stint.PerMinute(10)},
	}, stint.Override{Key: PerKey.Key("acme"), Limit: stint.PerMinute(100)}))

	moved, err := limits.With(
		stint.Override{Key: PerKey.Key("globex"), Limit: stint.PerMinute(500), Comment: "until March"},
		stint.Override{Key: PerKey.Key("acme")},
	)
	fmt.Println(err)
	for o := range moved.Overrides(PerKey) {
		fmt.Println(o.Key.ID, o.Limit, o.Comment)
	}
	// Output:
	// <nil>
	// globex 500/1m until March
}

// Override says which plan an id has, in any spelling of the id.
func ExampleLimits_Override() {
	limits := must(stint.NewLimits(names, stint.Override{Key: OrdersPerAccount.Key("12345678"), Limit: stint.PerHour(1000)}))
	for _, id := range []string{"12345678", "87654321"} {
		plan, ok := limits.Override(OrdersPerAccount.Key(id))
		fmt.Println(ok, plan.Burst)
	}
	// Output:
	// true 1000
	// false 0
}

// A customer buys a larger plan while the program runs, leaves it, and is blocked
// in the end. What was used stays used.
func ExampleLimiter_SetOverrides() {
	limits := must(stint.NewLimits(names))
	limiter := must(stint.New(stint.NewMemStore(), limits, nil))
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	spend := func() {
		d, err := limiter.Spend(key, 30)
		fmt.Println(d.Allowed, d.Remaining, d.Limit, err)
	}
	spend()
	for _, limit := range []stint.Limit{stint.PerHour(200), {}, stint.Blocked} { // {} is the default again
		if err := limiter.SetOverrides(stint.Override{Key: key, Limit: limit}); err != nil {
			panic(err)
		}
		spend()
	}
	// Output:
	// true 70 100/1h <nil>
	// true 140 200/1h <nil>
	// true 10 100/1h <nil>
	// false 0 blocked <nil>
}

func ExampleLimit_blocked() {
	limits := must(stint.NewLimits(names,
		stint.Override{Key: LoginsPerAddress.Key("10.0.0.1"), Limit: stint.Blocked}))
	limiter := must(stint.New(stint.NewMemStore(), limits, nil))
	defer limiter.Close()
	d, err := limiter.Spend(LoginsPerAddress.Key("10.0.0.1"), 1)
	fmt.Println(d.Allowed, d.Remaining, d.RetryAfter == math.MaxInt64, err)
	_, err = limiter.Reserve(LoginsPerAddress.Key("10.0.0.1").Cost(1))
	fmt.Println(err)
	// Output:
	// false 0 true <nil>
	// stint: id is blocked: LoginsPerAddress:10.0.0.1
}

// A service knows the plan of each customer from elsewhere, and gives its limit
// with the request.
func ExampleRequest_limit() {
	limits, _ := stint.NewLimits(stint.Names{OrdersPerAccount: {Label: "OrdersPerAccount", Limit: stint.Unlimited}})
	l, _ := stint.New(stint.NewMemStore(), limits, nil)
	defer l.Close()
	plans := map[string]stint.Limit{"free": stint.PerDay(2), "pro": stint.PerDay(1000)}
	order := func(customer, plan string) {
		d, err := l.SpendAll(stint.Request{Key: OrdersPerAccount.Key(customer), Cost: 1, Limit: plans[plan]})
		fmt.Println(customer, plan, d.Allowed, d.Remaining, err)
	}
	order("alice", "free")
	order("alice", "free")
	order("alice", "free")
	order("alice", "pro") // an upgrade does not refill: tokens come back faster now
	// Output:
	// alice free true 1 <nil>
	// alice free true 0 <nil>
	// alice free false 0 <nil>
	// alice pro false 0 <nil>
}

func ExampleLimiter_Do() {
	limits, _ := stint.NewLimits(names)
	l, _ := stint.New(stint.NewMemStore(), limits, nil)
	defer l.Close()
	reqs := []stint.Request{
		{Key: LoginsPerAddress.Key("10.0.0.1"), Cost: 1},
		{Key: OrdersPerAccount.Key("12345678"), Cost: 1},
	}
	ds := make([]stint.Decision, len(reqs))
	strictest, err := l.Do(context.Background(), reqs, ds)
	fmt.Println(strictest.Allowed, err)
	for _, d := range ds {
		fmt.Println(d.Key, d.Remaining)
	}
	// Output:
	// true <nil>
	// 1:10.0.0.1 4
	// 6:12345678 99
}

// slowDisk is a store whose saves wait.
type slowDisk struct {
	stint.Store
	ready chan struct{}
}

func (d slowDisk) Save(changes []stint.Change) error {
	<-d.ready
	return d.Store.Save(changes)
}

// The client goes while the disk is busy. Its tokens stay spent.
func ExampleLimiter_Do_context() {
	limits := must(stint.NewLimits(stint.Names{LoginsPerAddress: {Label: "Logins", Limit: stint.PerDay(3)}}))
	disk := slowDisk{stint.NewMemStore(), make(chan struct{})}
	limiter := must(stint.New(disk, limits, &stint.Options{Durability: stint.Synced}))
	defer limiter.Close()
	defer close(disk.ready)

	ctx, gone := context.WithCancel(context.Background())
	gone()
	key := LoginsPerAddress.Key("10.0.0.1")
	_, err := limiter.Do(ctx, []stint.Request{key.Cost(1)}, nil)
	fmt.Println(errors.Is(err, stint.ErrNotDurable), errors.Is(err, context.Canceled))
	fmt.Println(must(limiter.Check(key, 1)).Remaining, "left after the next one")
	// Output:
	// true true
	// 1 left after the next one
}

// A fleet of four machines, each with a limiter of its own: together they admit
// what one with the whole limit would.
func ExampleLimit_DividedBy() {
	whole := stint.PerMinute(20)
	share := whole.DividedBy(4)
	fmt.Println(share, "for each of 4")
	fmt.Println(share.Interval(), "instead of", whole.Interval())
	fmt.Println(share.Tolerance() == whole.Tolerance())
	// Output:
	// 20/4m burst 5 for each of 4
	// 12s instead of 3s
	// true
}
