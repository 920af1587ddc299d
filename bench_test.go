package stint

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// benchmark runs f with a limiter that has a bucket for each of 1, 1,000 and 1,000,000 ids, in an order that no cache
// foresees.
func benchmark(b *testing.B, f func(b *testing.B, l *Limiter, keys []Key)) {
	limits := limitsOf(b, testNames, map[Name]Limit{perID: {Burst: 1e9, Count: 1e9, Period: 24 * time.Hour}})
	for _, n := range []int{1, 1_000, 1_000_000} {
		b.Run(fmt.Sprint("ids=", n), func(b *testing.B) {
			l, err := New(NewMemStore(), limits, &Options{MaxResident: 2_000_000, Durability: Memory})
			require.NoError(b, err)
			defer l.Close()
			keys := benchKeys(n)
			for _, key := range keys {
				l.Allow(key)
			}
			rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			b.ReportAllocs()
			f(b, l, keys)
		})
	}
}

func BenchmarkSpend(b *testing.B) {
	benchmark(b, func(b *testing.B, l *Limiter, keys []Key) {
		for i := 0; b.Loop(); i++ {
			l.Spend(keys[i%len(keys)], 1)
		}
	})
}

func BenchmarkSpendAll(b *testing.B) {
	benchmark(b, func(b *testing.B, l *Limiter, keys []Key) {
		reqs := make([]Request, min(3, len(keys)))
		for i := 0; b.Loop(); i++ {
			for j := range reqs {
				reqs[j] = Request{Key: keys[(3*i+j)%len(keys)], Cost: 1}
			}
			l.SpendAll(reqs...)
		}
	})
}

// BenchmarkSpendEach reports the time of 256 requests.
func BenchmarkSpendEach(b *testing.B) {
	benchmark(b, func(b *testing.B, l *Limiter, keys []Key) {
		reqs := make([]Request, 256)
		ds := make([]Decision, len(reqs))
		for i := 0; b.Loop(); i++ {
			for j := range reqs {
				reqs[j] = Request{Key: keys[(256*i+j)%len(keys)], Cost: 1}
			}
			l.SpendEach(reqs, ds)
		}
	})
}

// BenchmarkSave saves one of four sets of buckets in turn, as a synced Spend, a
// small and a large flush do.
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
