package migrate

import (
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/stint-go/stint"
)

// requests has the id of each request that the programs decide.
var requests = []string{"alice", "alice", "alice", "alice", "bob"}

func rateBefore(w io.Writer) error {
	var mu sync.Mutex
	limiters := make(map[string]*rate.Limiter) // it grows for ever
	allow := func(id string) bool {
		mu.Lock()
		defer mu.Unlock()
		l, ok := limiters[id]
		if !ok {
			l = rate.NewLimiter(rate.Every(time.Hour/3), 3)
			limiters[id] = l
		}
		return l.Allow()
	}

	for _, id := range requests {
		fmt.Fprintln(w, id, allow(id))
	}
	return nil
}

func rateAfter(w io.Writer, file string) error {
	const Requests stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{
		Requests: {Label: "Requests", Limit: stint.PerHour(3)},
	})
	if err != nil {
		return err
	}
	limiter, err := stint.Open(file, limits, nil)
	if err != nil {
		return err
	}
	defer limiter.Close()

	for _, id := range requests {
		fmt.Fprintln(w, id, limiter.Allow(Requests.Key(id)))
	}
	return nil
}
