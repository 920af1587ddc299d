package stint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whenever a Limiter is closed, the file has what was admitted and nothing
// else. Every call after that returns ErrClosed.
func TestConcurrentClose(t *testing.T) {
	const burst, keys = 1000, 50
	limits := limitsOf(t, testNames, map[Name]Limit{perID: PerHour(burst)})
	rounds := 2
	if Long {
		rounds = 20
	}
	for range rounds {
		path := storePath(t)
		r := rigOn(t, openBolt(t, path, testNames), limits, Options{FlushInterval: time.Millisecond, MaxResident: 40})
		var spent [keys]atomic.Int64
		var closed atomic.Bool
		var wg sync.WaitGroup
		for g := range 64 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if g == 0 && i == 100 {
						if err := r.Close(); err != nil {
							t.Error(err)
						}
						closed.Store(true)
					}
					after := closed.Load()
					n, m := rand.IntN(keys), rand.IntN(keys-1)
					reqs := []Request{{Key: perID.Key(fmt.Sprint(n)), Cost: 1},
						{Key: perID.Key(fmt.Sprint((n + 1 + m) % keys)), Cost: 1}}
					d, err := r.SpendAll(reqs[g%2:]...)
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
					if after {
						t.Error("a decision of a closed limiter")
					}
					if d.Allowed {
						spent[(n+1+m)%keys].Add(1)
						if g%2 == 0 {
							spent[n].Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		requireClosed(t, r.Limiter)
		s := openBolt(t, path, testNames)
		for n := range spent {
			if want := spent[n].Load(); want > 0 {
				require.Equal(t, r.clock.ns.Load()+want*int64(time.Hour/burst), load(t, s, perID.Key(fmt.Sprint(n))))
			}
		}
	}
}
