package stint_test

import (
	"fmt"
	"os"
	"time"

	"github.com/stint-go/stint"
)

// A program declares its limits once. The numbers are what the file stores.
const (
	LoginsPerAddress stint.Name = 1
	OrdersPerAccount stint.Name = 6
	FailuresPerHost  stint.Name = 7
)

var names = stint.Names{
	LoginsPerAddress: {Label: "LoginsPerAddress", ID: stint.IPAddress},
	OrdersPerAccount: {Label: "OrdersPerAccount", ID: stint.RegID},
	FailuresPerHost: {
		Label:    "FailuresPerHost",
		ID:       stint.Tuple(stint.RegID, stint.Hostname),
		Override: stint.RegID,
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

func ExampleParseKey() {
	key, err := stint.ParseKey("6:12345678")
	fmt.Println(key.Name, key.ID, err)
	// Output: 6 12345678 <nil>
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
	// stint: limit "0/1d": burst is 0, want at least 1
}

func ExampleNewLimits() {
	limits, err := stint.NewLimits(names,
		map[stint.Name]stint.Limit{
			LoginsPerAddress: stint.PerMinute(5),
			FailuresPerHost:  stint.PerHour(3),
		},
		map[stint.Name][]stint.Override{
			FailuresPerHost: {{IDs: []stint.OverrideID{{ID: "12345678"}}, Limit: stint.PerHour(60)}},
		})
	if err != nil {
		panic(err)
	}
	fmt.Println(limits.For(FailuresPerHost.Key("12345678:example.com")))
	fmt.Println(limits.For(FailuresPerHost.Key("87654321:example.com")))
	// Output:
	// 60/1h true
	// 3/1h true
}

func ExampleParseLimits() {
	_, err := stint.ParseLimits(names,
		[]byte(`
LoginsPerAddress: {burst: 5, count: 5, period: 1 minute}
OrdersPerAccount: {burst: 300, count: 300, period: 180m}
`),
		[]byte(`
- OrdersPerAccount: {burst: 300, count: 0, period: 180m, ids: [12345678, 12345678]}
`))
	fmt.Println(err)
	// Output:
	// defaults:2: LoginsPerAddress: period is "1 minute", want a duration such as 90s, 180m, 36h, 1d or 2w
	// overrides:2: OrdersPerAccount: count is 0, want at least 1
	// overrides:2: OrdersPerAccount: the id "12345678" is given twice, first in line 2
}

var (
	defaults = []byte(`
OrdersPerAccount:
  burst: 300
  count: 300
  period: 180m
`)
	overrides = []byte(`
- OrdersPerAccount:
    burst: 300
    count: 600
    period: 180m
    ids:
      - 12345678
      - id: 87654321
        comment: load test, until March
`)
)

func ExampleLimits_For() {
	limits, err := stint.ParseLimits(names, defaults, overrides)
	if err != nil {
		panic(err)
	}
	fmt.Println(limits.For(OrdersPerAccount.Key("1")))
	fmt.Println(limits.For(OrdersPerAccount.Key("12345678")))
	_, configured := limits.For(LoginsPerAddress.Key("10.0.0.2"))
	fmt.Println(configured)
	// Output:
	// 300/3h true
	// 600/3h burst 300 true
	// false
}

func ExampleLimits_DumpOverrides() {
	limits, err := stint.ParseLimits(names, defaults, overrides)
	if err != nil {
		panic(err)
	}
	limits.DumpOverrides(os.Stdout)
	// Output:
	// name,id,count,burst,period,comment
	// OrdersPerAccount,12345678,600,300,3h,
	// OrdersPerAccount,87654321,600,300,3h,"load test, until March"
}
