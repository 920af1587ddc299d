package stint

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkDecisions decides on 1, 1,000 and 1,000,000 ids, in an order that no
// cache foresees. SpendEach is the time of 256 requests.
func BenchmarkDecisions(b *testing.B) {
	limits := limitsOf(b, testNames, map[Name]Limit{perID: {Burst: 1e9, Count: 1e9, Period: 24 * time.Hour}})
	for _, n := range []int{1, 1_000, 1_000_000} {
		l, err := New(NewMemStore(), limits, &Options{MaxResident: 2_000_000, Durability: Memory})
		require.NoError(b, err)
		defer l.Close()
		reqs, ds := make([]Request, n+256), make([]Decision, 256)
		for i, j := range rand.Perm(n) {
			reqs[i] = Request{Key: perID.Key(fmt.Sprintf("%024d", j)), Cost: 1}
			l.Allow(reqs[i].Key)
		}
		for i := range 256 {
			reqs[n+i] = reqs[i%n]
		}
		for name, call := range map[string]func(i int){
			"Spend":     func(i int) { l.Spend(reqs[i].Key, 1) },
			"SpendAll":  func(i int) { l.SpendAll(reqs[i:][:min(3, n)]...) },
			"SpendEach": func(i int) { l.SpendEach(reqs[i:][:256], ds) },
		} {
			b.Run(fmt.Sprint(name, "/ids=", n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i += 3 {
					call(i % n)
				}
			})
		}
	}
}
