package hostlimit

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// BenchmarkSpend measures a Limiter in both roles. The owner of the guest is
// another process.
func BenchmarkSpend(b *testing.B) {
	limits := newLimits(b, stint.Names{perID: {Label: "PerID", Limit: whole}})
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
	alone := openAlone(b, path, limits, nil)
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

// TestOwnerCost compares the decisions of owners that have guests, by Open and
// by Serve, with decisions of a Limiter without guests. The three take turns,
// and the shortest turn of each counts.
func TestOwnerCost(t *testing.T) {
	if !testlength.Long {
		t.Skip("it measures")
	}
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: whole}})
	var serving [2]*stint.Limiter // without guests, and with
	paths := []string{filePath(t), filePath(t), filePath(t)}
	for i := range serving {
		serving[i] = openAlone(t, paths[i], limits, nil)
	}
	serveOn(t, serving[1], paths[1])
	owner := openOn(t, paths[2], limits, nil)
	for range 8 {
		require.Equal(t, RoleGuest, openOn(t, paths[1], limits, nil).Role())
		require.Equal(t, RoleGuest, openOn(t, paths[2], limits, nil).Role())
	}
	var keys [1000]stint.Key
	for i := range keys {
		keys[i] = perID.Key(fmt.Sprintf("%024d", i))
	}
	var least [3]time.Duration
	for round := range 6000 {
		spend := []func(stint.Key, int64) (stint.Decision, error){serving[0].Spend, serving[1].Spend, owner.Spend}[round%3]
		begun := time.Now()
		for _, key := range keys {
			if d, err := spend(key, 1); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		if took := time.Since(begun); least[round%3] == 0 || took < least[round%3] {
			least[round%3] = took
		}
	}
	times := func(i int) float64 { return float64(least[i]) / float64(least[0]) }
	t.Logf("%v alone; with guests %.3f times by Serve, %.3f times by Open", least[0]/1000, times(1), times(2))
}
