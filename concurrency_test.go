package stint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
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

// eachRig runs f with every kind of limiter.
func eachRig(t *testing.T, limits *Limits, f func(t *testing.T, r *rig)) {
	t.Run("mem", func(t *testing.T) { f(t, rigOn(t, NewMemStore(), limits, Options{})) })
	t.Run("bbolt", func(t *testing.T) {
		f(t, rigOn(t, openBolt(t, filepath.Join(t.TempDir(), "buckets.db"), testNames), limits, Options{FlushInterval: time.Millisecond}))
	})
	t.Run("bbolt with little memory", func(t *testing.T) {
		f(t, rigOn(t, openBolt(t, filepath.Join(t.TempDir(), "buckets.db"), testNames), limits,
			Options{FlushInterval: time.Millisecond, MaxResident: 700}))
	})
}

// Time goes on: what is admitted from the first instant to the last is the burst, and what came back meanwhile.
func TestConcurrentSpendOverTime(t *testing.T) {
	limits := limitsOf(t, testNames, map[Name]Limit{perID: {Burst: 10, Count: 1000, Period: time.Second}})
	eachRig(t, limits, func(t *testing.T, r *rig) {
		begin := r.clock.Now()
		var admitted atomic.Int64
		hammer(func(g int, rnd *rand.Rand) {
			for range 500 {
				if r.Allow(perID.Key("a")) {
					admitted.Add(1)
				} else {
					r.clock.advance(100 * time.Microsecond) // from denied to denied it is less than a token: none is lost
				}
			}
		})
		for r.Allow(perID.Key("a")) {
			admitted.Add(1)
		}
		most := 10 + int64(r.clock.Now().Sub(begin)/time.Millisecond)
		require.LessOrEqual(t, admitted.Load(), most)
		require.GreaterOrEqual(t, admitted.Load(), most, "it was never full: time goes on only where it is empty")
	})
}

// Sets of keys that are in few shards are locked in an order that lets all of them through.
func TestConcurrentSpendAllInFewShards(t *testing.T) {
	limits := limitsOf(t, testNames, map[Name]Limit{perID: {Burst: 1e6, Count: 1, Period: time.Second}})
	r := rigOn(t, NewMemStore(), limits, Options{})
	keys := keysOfOneShard(r.Limiter, 8)
	for i, key := range keysOfOneShard(r.Limiter, 8) {
		keys = append(keys, perID.Key(key.ID+strings.Repeat("x", 10+i)), perID.Key(fmt.Sprint("other ", i)))
	}
	var spent atomic.Int64
	hammer(func(g int, rnd *rand.Rand) {
		for range 200 {
			var reqs []Request
			for _, i := range rnd.Perm(len(keys))[:6] {
				reqs = append(reqs, Request{Key: keys[i], Cost: 1})
			}
			if d, err := r.SpendAll(reqs...); err != nil || !d.Allowed {
				t.Error(d, err)
			}
			spent.Add(6)
		}
	})
	left := int64(0)
	for _, key := range keys {
		left += 1e6 - r.left(key)
	}
	require.Equal(t, spent.Load(), left)
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
					d, err = r.SpendAll(Request{Key: perID.Key(fmt.Sprint(n)), Cost: 1},
						Request{Key: perID.Key(fmt.Sprint(m)), Cost: 1})
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
