package hostlimit

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stint-go/stint"
)

// BenchmarkSpend measures a Limiter in both roles. The owner of the guest is
// another process.
func BenchmarkSpend(b *testing.B) {
	limits, err := stint.NewLimits(stint.Names{perID: {Label: "PerID", Limit: whole}}, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	run := func(b *testing.B, callers int, spend func(stint.Key, int64) (stint.Decision, error)) {
		b.ReportAllocs()
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				key := perID.Key(fmt.Sprint("caller ", c))
				for range b.N / callers {
					if d, err := spend(key, 1); err != nil || !d.Allowed {
						panic(fmt.Sprint(d, err))
					}
				}
			})
		}
		all.Wait()
	}
	path := filePath(b)
	alone, err := stint.Open(path, limits, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("no guests", func(b *testing.B) { run(b, 1, alone.Spend) })
	alone.Close()
	owner := openOn(b, path, limits, nil)
	for range 8 {
		openOn(b, path, limits, nil)
	}
	b.Run("owner of 8 guests", func(b *testing.B) { run(b, 1, owner.Spend) })
	path = filePath(b)
	w := startWorker(b, workerOptions{Path: path, Limit: whole, ID: "a"}, false)
	w.waitFor("owner", 1)
	guest := openOn(b, path, limits, nil)
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("guest/%d", callers), func(b *testing.B) { run(b, callers, guest.Spend) })
	}
	w.stop()
}
