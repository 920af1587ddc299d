package statuspage

import (
	"fmt"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// BenchmarkObserve observes requests of fifty buckets.
func BenchmarkObserve(b *testing.B) {
	lim, _ := newLimiter(b, stint.NewMemStore(), nil)
	p := New(lim, nil)
	var requests [50][]rules.Decision
	for i := range requests {
		requests[i] = allowed(perKey.Key(fmt.Sprint("id", i)))
	}
	i := 0
	for b.Loop() {
		p.observe(nil, requests[i%len(requests)])
		i++
	}
}
