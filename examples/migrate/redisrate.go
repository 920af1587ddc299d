package migrate

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/stint-go/stint"
)

func redisRateBefore(w io.Writer, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	limiter := redis_rate.NewLimiter(client)
	for _, id := range requests {
		res, err := limiter.Allow(context.Background(), id, redis_rate.PerHour(3))
		if err != nil {
			return err
		}
		retryAfter := max(0, res.RetryAfter).Round(time.Minute) // -1 means allowed
		fmt.Fprintln(w, id, res.Allowed > 0, res.Remaining, retryAfter)
	}
	return nil
}

func redisRateAfter(w io.Writer, file string) error {
	limiter, err := open(file, stint.Synced)
	if err != nil {
		return err
	}
	defer limiter.Close()
	for _, id := range requests {
		d, err := limiter.Spend(Requests.Key(id), 1)
		if err != nil {
			return err
		}
		fmt.Fprintln(w, id, d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute))
	}
	return nil
}
