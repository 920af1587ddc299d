package redisclients_test

import (
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/examples/redisclients"
	"github.com/stint-go/stint/redislimit"
)

const perAccount stint.Name = 1

// spend asks three times for a token of a bucket of two.
func spend(client redislimit.Client, id string) {
	limits, err := stint.NewLimits(stint.Names{perAccount: {Label: "perAccount", Limit: stint.PerHour(2)}})
	if err != nil {
		log.Fatal(err)
	}
	lim, err := redislimit.New(client, limits, &redislimit.Options{Timeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close()
	for range 3 {
		d, err := lim.Spend(perAccount.Key(id), 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
}

func ExampleGoRedis() {
	pool := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, DialerRetries: 1})
	defer pool.Close()
	spend(redisclients.GoRedis{Pool: pool}, "alice")
	// Output:
	// true 1
	// true 0
	// false 0
}

func ExampleValkeyGo() {
	pool, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	spend(redisclients.ValkeyGo{Pool: pool}, "bob")
	// Output:
	// true 1
	// true 0
	// false 0
}
