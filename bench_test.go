package stint

import (
	"fmt"
	"math/rand/v2"
	"strconv"
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

// BenchmarkSave saves as many buckets at once as a synced Spend, a small and a
// large flush do. It takes four sets of buckets in turn.
func BenchmarkSave(b *testing.B) {
	for _, size := range []int{1, 1000, 50_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			store := openBolt(b, storePath(b), storeNames)
			var sets [4][]Change
			for i := range 4 * size {
				id := "client-" + strconv.Itoa(1_000_000+i)
				sets[i%4] = append(sets[i%4], Change{Key{1, id}, 0})
			}
			tat := time.Now().Add(time.Hour).UnixNano()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				set := sets[i%4]
				for j := range set {
					tat++
					set[j].TAT = tat
				}
				if err := store.Save(set); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
