package stint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
)

// must returns what a call that cannot fail returned.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// inTempDir enters a new directory, and returns how to leave it.
func inTempDir() (leave func()) {
	was, dir := must(os.Getwd()), must(os.MkdirTemp("", "stint"))
	if err := os.Chdir(dir); err != nil {
		panic(err)
	}
	return func() {
		if err := errors.Join(os.Chdir(was), os.RemoveAll(dir)); err != nil {
			panic(err)
		}
	}
}

// clock is a clock that the examples set.
type clock struct{ since2026 atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(c.since2026.Load()))
}

func (c *clock) pass(d time.Duration) { c.since2026.Add(int64(d)) }

// limitsOf returns limits in which one Name has another default.
func limitsOf(name stint.Name, limit stint.Limit) *stint.Limits {
	return must(stint.NewLimits(names.WithLimits(map[stint.Name]stint.Limit{name: limit})))
}

// newLimiter returns a Limiter of one limit, without a file, and its clock.
func newLimiter(name stint.Name, limit stint.Limit) (*stint.Limiter, *clock) {
	c := new(clock)
	return must(stint.New(stint.NewMemStore(), limitsOf(name, limit), &stint.Options{Now: c.now})), c
}

// Three logins a minute. The README begins with such a program.
func Example() {
	defer inTempDir()()

	const Logins stint.Name = 1 // the number is what the file stores: it keeps its meaning

	names := stint.Names{Logins: {Label: "Logins", IDs: stint.IPAddress, Limit: stint.PerMinute(3)}}
	limits, err := stint.NewLimits(names)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := stint.Open("logins.db", limits, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()

	for range 4 {
		d, err := limiter.Spend(Logins.IP(netip.MustParseAddr("10.0.0.2")), 1)
		switch {
		case err != nil: // nothing was spent, and an error never carries permission
			log.Print(err)
		case d.Allowed:
			fmt.Println("welcome;", d.Remaining, "of", d.Limit.Burst, "left")
		default:
			fmt.Println("too many: come back in", d.RetryAfter.Round(time.Second))
		}
	}
	// Output:
	// welcome; 2 of 3 left
	// welcome; 1 of 3 left
	// welcome; 0 of 3 left
	// too many: come back in 20s
}

// Each limit has its level of durability.
func ExampleDurability() {
	const (
		Searches stint.Name = 2 // after a crash, begin anew
		Logins   stint.Name = 3 // a crash may forget the last second
		Exports  stint.Name = 4 // each costs money
	)
	searches := stint.PerSecond(5).WithBurst(20)
	searches.Durability = stint.Memory
	exports := stint.PerDay(100).WithBurst(10)
	exports.Durability = stint.Leased
	limits := must(stint.NewLimits(stint.Names{
		Searches: {Label: "Searches", Limit: searches},
		Logins:   {Label: "Logins", Limit: stint.PerHour(5)},
		Exports:  {Label: "Exports", Limit: exports},
	}))
	for _, name := range []stint.Name{Searches, Logins, Exports} {
		limit := limits.For(name.Key("alice"))
		fmt.Println(limit, limit.Durability)
	}
	// Output:
	// 5/1s burst 20 memory
	// 5/1h default
	// 100/24h burst 10 leased
}

// A Limiter goes on from what the last one left in the file.
func ExampleOpen() {
	defer inTempDir()()
	limits := limitsOf(OrdersPerAccount, stint.PerDay(3))
	for range 4 { // each as if in a process of its own
		limiter := must(stint.Open("orders.db", limits, nil))
		fmt.Println(limiter.Allow(OrdersPerAccount.Key("12345678")))
		if err := limiter.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// true
	// true
	// true
	// false
}

// A program on its own clock, such as a test or a simulation, needs no file.
func ExampleNew() {
	var c clock
	limits := limitsOf(OrdersPerAccount, stint.PerHour(1))
	limiter := must(stint.New(stint.NewMemStore(), limits, &stint.Options{Now: c.now}))
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	fmt.Println(limiter.Allow(key), limiter.Allow(key))
	c.pass(time.Hour)
	fmt.Println(limiter.Allow(key), limiter.Allow(key))
	// Output:
	// true false
	// true false
}

func ExampleLimiter_Allow() {
	limiter, _ := newLimiter(LoginsPerAddress, stint.PerMinute(2))
	defer limiter.Close()
	key := LoginsPerAddress.IP(netip.MustParseAddr("2001:db8::1"))
	fmt.Println(limiter.Allow(key), limiter.Allow(key), limiter.Allow(key))
	// Output: true true false
}

// RetryAfter is exact: a nanosecond earlier is too early.
func ExampleLimiter_Spend() {
	limiter, c := newLimiter(OrdersPerAccount, stint.Limit{Burst: 5, Count: 7, Period: time.Minute})
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	spend := func(cost int64) {
		d, err := limiter.Spend(key, cost)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)
	}
	spend(4)
	spend(2)
	c.pass(8571428571 - 1)
	spend(2)
	c.pass(1)
	spend(2)
	spend(6)
	// Output:
	// true 1 0s 34.285714288s
	// false 1 8.571428572s 34.285714288s
	// false 1 2ns 25.714285718s
	// false 1 1ns 25.714285717s
	// stint: cost over burst: 6 of 5 for OrdersPerAccount:12345678
}

func ExampleLimiter_Check() {
	limiter, _ := newLimiter(OrdersPerAccount, stint.PerHour(20))
	defer limiter.Close()
	for range 2 { // changes nothing
		d, err := limiter.Check(OrdersPerAccount.Key("12345678"), 5)
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 15 <nil>
	// true 15 <nil>
}

// Refund returns tokens that were not used, without those that time has brought
// back since they were spent.
func ExampleLimiter_Refund() {
	limiter, clock := newLimiter(OrdersPerAccount, stint.PerHour(20))
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	spent, err := limiter.Spend(key, 10)
	fmt.Println(spent.Remaining, err)
	clock.pass(6 * time.Minute) // 2 tokens are back
	d, err := limiter.Refund(key.Cost(4).SpentAt(spent.At()))
	fmt.Println(d.Remaining, err)
	// Output:
	// 10 <nil>
	// 14 <nil>
}

// Two limits, per minute and per day, must both admit.
func ExampleLimiter_SpendAll() {
	const (
		PerMinute stint.Name = 1
		PerDay    stint.Name = 2
	)
	limits := must(stint.NewLimits(stint.Names{
		PerMinute: {Label: "PerMinute", Limit: stint.PerMinute(2)},
		PerDay:    {Label: "PerDay", Limit: stint.PerDay(3)},
	}))
	var c clock
	limiter := must(stint.New(stint.NewMemStore(), limits, &stint.Options{Now: c.now}))
	defer limiter.Close()
	for range 5 {
		d, err := limiter.SpendAll(
			stint.Request{Key: PerMinute.Key("alice"), Cost: 1},
			stint.Request{Key: PerDay.Key("alice"), Cost: 1},
		)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Key, d.Limit, d.RetryAfter)
		c.pass(10 * time.Second)
	}
	// Output:
	// true 1:alice 2/1m 0s
	// true 1:alice 2/1m 0s
	// false 1:alice 2/1m 10s
	// true 2:alice 3/24h 0s
	// false 2:alice 3/24h 7h59m20s
}

// Only failed logins are limited: the limit is checked before the password, and
// spent if the password is wrong.
func ExampleRequest() {
	limiter, _ := newLimiter(FailuresPerHost, stint.PerHour(1))
	defer limiter.Close()
	key := FailuresPerHost.Key("12345678:example.com")
	for _, password := range []string{"right", "right", "wrong", "right"} {
		d, err := limiter.SpendAll(stint.Request{Key: key, Cost: 1, Mode: stint.CheckOnly})
		if err != nil || !d.Allowed {
			fmt.Println("locked out for", d.RetryAfter, err)
			continue
		}
		if password == "right" {
			fmt.Println("welcome")
			continue
		}
		_, err = limiter.Spend(key, 1)
		fmt.Println("no", err)
	}
	// Output:
	// welcome
	// welcome
	// no <nil>
	// locked out for 1h0m0s <nil>
}

func ExampleLimiter_DoEach() {
	limiter, _ := newLimiter(LoginsPerAddress, stint.PerMinute(2))
	defer limiter.Close()
	reqs := []stint.Request{
		{Key: LoginsPerAddress.Key("10.0.0.1"), Cost: 2},
		{Key: LoginsPerAddress.Key("10.0.0.2"), Cost: 1},
		{Key: LoginsPerAddress.Key("10.0.0.1"), Cost: 1},
		{Key: LoginsPerAddress.Key("10.0.0.3"), Cost: 3},
	}
	ds := make([]stint.Decision, len(reqs))
	var each stint.EachError
	errors.As(limiter.DoEach(context.Background(), reqs, ds), &each)
	for i, d := range ds {
		if each != nil && each[i] != nil {
			fmt.Println(reqs[i].Key, each[i])
			continue
		}
		fmt.Println(reqs[i].Key, d.Allowed, d.Remaining)
	}
	// Output:
	// 1:10.0.0.1 true 0
	// 1:10.0.0.2 true 1
	// 1:10.0.0.1 false 0
	// 1:10.0.0.3 stint: cost over burst: 3 of 2 for LoginsPerAddress:10.0.0.3
}

// Three places in the queue of a limit that lets one through each second.
func ExampleLimiter_Reserve() {
	limiter, _ := newLimiter(OrdersPerAccount, stint.Limit{Burst: 1, Count: 1, Period: time.Second, Queue: 2})
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	for range 3 {
		fmt.Println("in", must(limiter.Reserve(key.Cost(1))).Delay())
	}
	_, err := limiter.Reserve(key.Cost(1))
	fmt.Println(err, errors.Is(err, stint.ErrQueueFull))
	fmt.Println("meanwhile", limiter.Allow(key))
	// Output:
	// in 0s
	// in 1s
	// in 2s
	// stint: queue is full: OrdersPerAccount:12345678, the next turn is in 3s true
	// meanwhile false
}

// Cancel leaves the queue, and returns the tokens.
func ExampleLimiter_Reserve_cancel() {
	limiter, c := newLimiter(OrdersPerAccount, stint.PerHour(1))
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	limiter.Allow(key)
	r := must(limiter.Reserve(key.Cost(1)))
	if r.Delay() > time.Minute {
		r.Cancel()
	}
	c.pass(time.Hour)
	fmt.Println(limiter.Allow(key))
	// Output: true
}

// Wait fails at once if the turn would come after the deadline.
func ExampleLimiter_Wait() {
	limits := limitsOf(OrdersPerAccount, stint.PerSecond(100).WithBurst(1))
	limiter := must(stint.New(stint.NewMemStore(), limits, nil))
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	begun := time.Now()
	for range 3 {
		if _, err := limiter.Wait(context.Background(), key.Cost(1)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(time.Since(begun) >= 20*time.Millisecond)

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	must(limiter.Reserve(key.Cost(1)))
	_, err := limiter.Wait(ctx, key.Cost(1))
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output:
	// true
	// true
}

// A limit is raised, and lowered, while its bucket is empty. No token is added,
// and no request waits longer than at an empty bucket of the new limit.
func ExampleLimiter_SetLimits() {
	limiter, c := newLimiter(OrdersPerAccount, stint.Limit{Burst: 10, Count: 10, Period: 10 * 24 * time.Hour})
	defer limiter.Close()
	key := OrdersPerAccount.Key("12345678")
	show := func() {
		d, err := limiter.Check(key, 1)
		fmt.Println(d.Limit, d.Allowed, d.Remaining, d.RetryAfter, err)
	}
	set := func(limit stint.Limit) {
		if err := limiter.SetLimits(limitsOf(OrdersPerAccount, limit)); err != nil {
			log.Fatal(err)
		}
	}
	for range 10 {
		limiter.Allow(key)
	}
	show()
	set(stint.PerDay(100))
	show()
	c.pass(14*time.Minute + 24*time.Second)
	show()
	set(stint.PerHour(1))
	show()
	// Output:
	// 10/240h false 0 24h0m0s <nil>
	// 100/24h false 0 14m24s <nil>
	// 100/24h true 0 0s <nil>
	// 1/1h false 0 1h0m0s <nil>
}

// Hold is for a ban, or for a server's Retry-After. A shorter one changes nothing.
func ExampleLimiter_Hold() {
	limiter, c := newLimiter(FailuresPerHost, stint.PerHour(60))
	defer limiter.Close()
	key := FailuresPerHost.Key("12345678:example.com")
	for _, d := range []time.Duration{time.Hour, 15 * time.Minute, 2 * time.Hour} {
		until, err := limiter.Hold(key, c.now().Add(d))
		fmt.Println(until.Sub(c.now()), err)
	}
	d, err := limiter.Spend(key, 1)
	fmt.Println(d.Allowed, d.RetryAfter, err)
	// Output:
	// 1h0m0s <nil>
	// 1h0m0s <nil>
	// 2h0m0s <nil>
	// false 2h0m0s <nil>
}

// A ban of a day was too long: it becomes one of an hour, and then none.
func ExampleLimiter_SetHold() {
	limiter, c := newLimiter(FailuresPerHost, stint.PerHour(60))
	defer limiter.Close()
	key := FailuresPerHost.Key("12345678:example.com")
	if _, err := limiter.Hold(key, c.now().Add(24*time.Hour)); err != nil {
		log.Fatal(err)
	}
	for _, until := range []time.Time{c.now().Add(time.Hour), {}} {
		if err := limiter.SetHold(key, until); err != nil {
			log.Fatal(err)
		}
		d, err := limiter.Spend(key, 1)
		fmt.Println(d.Allowed, d.RetryAfter, err)
	}
	// Output:
	// false 1h0m0s <nil>
	// true 0s <nil>
}

func ExampleLimiter_Buckets() {
	limiter, c := newLimiter(LoginsPerAddress, stint.PerMinute(6))
	defer limiter.Close()
	limiter.Allow(LoginsPerAddress.Key("10.0.0.1"))
	c.pass(time.Minute)
	limiter.Allow(LoginsPerAddress.Key("10.0.0.2"))
	for bucket, err := range limiter.Buckets(LoginsPerAddress) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(bucket.Key.ID, bucket.Remaining, bucket.ResetAfter)
	}
	// Output: 10.0.0.2 5 10s
}

// Bucket says until when a host is held.
func ExampleLimiter_Bucket() {
	limiter, c := newLimiter(FailuresPerHost, stint.PerHour(60))
	defer limiter.Close()
	key := FailuresPerHost.Key("12345678:example.com")
	if _, err := limiter.Hold(key, c.now().Add(5*time.Minute)); err != nil {
		log.Fatal(err)
	}
	bucket, err := limiter.Bucket(key)
	fmt.Println(bucket.Remaining, "of", bucket.Limit, "until", bucket.HeldUntil.UTC().Format(time.TimeOnly), err)
	// Output: 60 of 60/1h until 00:05:00 <nil>
}

// Held lists bans for an operator, also those from before a restart.
func ExampleLimiter_Held() {
	limiter, c := newLimiter(FailuresPerHost, stint.PerHour(60))
	defer limiter.Close()
	key := FailuresPerHost.Key("12345678:example.com")
	if _, err := limiter.Hold(key, c.now().Add(5*time.Minute)); err != nil {
		log.Fatal(err)
	}
	for held := range limiter.Held() {
		fmt.Println(held.Key.ID, "until", held.HeldUntil.UTC().Format(time.TimeOnly))
	}
	// Output: 12345678:example.com until 00:05:00
}

func ExampleLimiter_Stats() {
	limiter, _ := newLimiter(LoginsPerAddress, stint.PerMinute(1))
	defer limiter.Close()
	limiter.Allow(LoginsPerAddress.Key("10.0.0.1"))
	limiter.Allow(LoginsPerAddress.Key("10.0.0.1"))
	limiter.Allow(LoginsPerAddress.Key("")) // an error
	st := limiter.Stats().Limits[LoginsPerAddress]
	fmt.Println(st.Allowed, "allowed,", st.Denied, "denied,", st.Errors, "failed; now", limiter.Health())
	// Output: 1 allowed, 1 denied, 1 failed; now <nil>
}

// One bucket for each /24 of IPv4, and each /64 of IPv6.
func ExampleName_Prefix() {
	for _, addr := range []string{"10.0.0.2", "::ffff:10.0.0.3", "2001:db8::1", "2001:db8:0:0:f00::2"} {
		fmt.Println(LoginsPerAddress.Prefix(netip.MustParseAddr(addr), 24, 64))
	}
	// Output:
	// 1:10.0.0.0/24
	// 1:10.0.0.0/24
	// 1:2001:db8::/64
	// 1:2001:db8::/64
}

func ExampleTuple() {
	format := stint.Tuple(idformat.RegID, stint.IPAddress)
	fmt.Println(format.Canonical("7:2001:DB8::1"))
	fmt.Println(format.Canonical("7:x"))
	// Output:
	// 7:2001:db8::1 <nil>
	//  stint: invalid id "7:x": not of format tuple(regId,ipAddress): part 2, "x": not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1
}

func ExampleEvent_LogValue() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindTime { // makes the output the same in each run
				return slog.Attr{}
			}
			return a
		},
	}))
	opts := &stint.Options{OnEvent: func(e stint.Event) { logger.Warn("rate limits", "event", e) }}
	opts.OnEvent(stint.Event{Kind: stint.FlushFailed, Err: errors.New("no space left on device")})
	// Output: level=WARN msg="rate limits" event.kind="flush failed" event.error="no space left on device"
}

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
		_, err := limiter.Hold(Requests.Key("api.example.com"), limiter.Now().Add(time.Hour))
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
