package stint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const goroutines = 64

// hammer runs f in many goroutines that begin together.
func hammer(f func(g int, rnd *rand.Rand)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for g := range goroutines {
		wg.Go(func() {
			<-begin
			f(g, rand.New(rand.NewPCG(uint64(g), rand.Uint64())))
		})
	}
	close(begin)
	wg.Wait()
}

// Whenever it is closed: what was admitted is in the file, and nothing else, and every call after it is told so.
func TestConcurrentClose(t *testing.T) {
	const burst, keys = 1000, 50
	limits := limitsOf(t, testNames, map[Name]Limit{perID: PerHour(burst)})
	rounds := 2
	if Long {
		rounds = 20
	}
	for range rounds {
		path := filepath.Join(t.TempDir(), "buckets.db")
		r := rigOn(t, openBolt(t, path, testNames), limits, Options{FlushInterval: time.Millisecond, MaxResident: 40})
		var spent [keys]atomic.Int64
		var closed atomic.Bool
		shut := sync.OnceFunc(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			closed.Store(true)
		})
		hammer(func(g int, rnd *rand.Rand) {
			defer shut()
			for i := 0; ; i++ {
				if g == 0 && i == 100 {
					shut()
				}
				after := closed.Load()
				n, m := rnd.IntN(keys), rnd.IntN(keys)
				var d Decision
				var err error
				if g%2 == 0 || n == m {
					m = -1
					d, err = r.Spend(perID.Key(fmt.Sprint(n)), 1)
				} else {
					d, err = r.SpendAll(Request{perID.Key(fmt.Sprint(n)), 1, 0}, Request{perID.Key(fmt.Sprint(m)), 1, 0})
				}
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
					spent[n].Add(1)
					if m >= 0 {
						spent[m].Add(1)
					}
				}
			}
		})
		requireClosed(t, r.Limiter)
		s := openBolt(t, path, testNames)
		for n := range spent {
			if want := spent[n].Load(); want > 0 {
				require.Equal(t, r.clock.ns.Load()+want*int64(time.Hour/burst), load(t, s, perID.Key(fmt.Sprint(n))))
			}
		}
	}
}
