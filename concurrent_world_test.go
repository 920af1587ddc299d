package stint

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// admission is a cost that was admitted between two instants.
type admission struct{ after, before, cost int64 }

// requireLaw requires that over any stretch of time no more than burst +
// elapsed ÷ T was admitted. An admission may be anywhere between its two
// instants, so each stretch counts as the longest that these allow.
func requireLaw(t *testing.T, law string, limit Limit, log []admission) {
	t.Helper()
	slices.SortFunc(log, func(a, b admission) int { return cmp.Compare(a.before, b.before) })
	for _, first := range log {
		sum := int64(0)
		for _, a := range log {
			if a.after < first.after {
				continue
			}
			sum += a.cost
			if (sum-limit.Burst)*int64(limit.Interval()) > a.before-first.after {
				t.Fatalf("%s: %d tokens of %v in %d ns", law, sum, limit, a.before-first.after)
			}
		}
	}
}

// Many goroutines do everything at once while time passes: admissions keep the
// law, and no id is stranded. Then time stands still, and no token is lost.
func TestConcurrentLaw(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) Store{
		"mem": func(*testing.T) Store { return NewMemStore() },
		"file": func(t *testing.T) Store {
			s, err := OpenBolt(filepath.Join(t.TempDir(), "buckets.db"), nil, nil)
			require.NoError(t, err)
			return s
		},
	}
	for kind, open := range stores {
		for _, resident := range []int{0, 700} { // 0 evicts nothing
			t.Run(fmt.Sprint(kind, "/resident ", resident), func(t *testing.T) {
				concurrentLaw(t, open(t), resident, testlength.Of(2_000, 40))
			})
		}
	}
}

func concurrentLaw(t *testing.T, store Store, resident, calls int) {
	clock, names, defaults := newSimClock(), Names{}, map[Name]Limit{}
	for name := Name(1); name <= 4; name++ {
		names[name] = NameSpec{Label: fmt.Sprint("level ", name)}
		defaults[name] = Limit{Burst: 20, Count: 1, Period: time.Millisecond,
			Durability: Durability(name)}
	}
	limits, err := NewLimits(names.WithLimits(defaults))
	require.NoError(t, err)
	l, err := New(store, limits, &Options{Now: clock.Now,
		FlushInterval: time.Millisecond, CommitTimeout: time.Hour, MaxResident: resident})
	require.NoError(t, err)
	var mu sync.Mutex
	logs := make(map[Key][]admission)
	var all sync.WaitGroup
	for g := range 16 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(g)))
		all.Go(func() {
			for range calls {
				key := Name(1 + rnd.IntN(4)).Key(fmt.Sprint(rnd.IntN(2)))
				cost := 1 + rnd.Int64N(8)
				after := clock.ns.Load()
				admit := func(key Key, from, to int64) {
					mu.Lock()
					defer mu.Unlock()
					logs[key] = append(logs[key], admission{from, to, cost})
				}
				var err error
				switch rnd.IntN(14) {
				case 0, 1, 2, 3:
					var d Decision
					if d, err = l.Spend(key, cost); d.Allowed {
						admit(key, after, clock.ns.Load())
					}
				case 4:
					other := Name(1 + key.Name%4).Key("0")
					var d Decision
					if d, err = l.SpendAll(Request{Key: key, Cost: cost},
						Request{Key: other, Cost: cost}); d.Allowed {
						admit(key, after, clock.ns.Load())
						admit(other, after, clock.ns.Load())
					}
				case 5, 6:
					var r Reservation
					if r, err = l.Reserve(key.Cost(cost)); err != nil {
						break
					}
					if rnd.IntN(2) == 0 {
						r.Cancel()
						r.Cancel()
						break
					}
					read := clock.ns.Load()
					d := int64(r.Delay())
					if d == 0 {
						admit(key, after, clock.ns.Load())
					} else {
						admit(key, read+d, clock.ns.Load()+d)
					}
				case 7:
					err = l.SetLimits(limits)
				case 8:
					err = l.Flush()
				case 9:
					for range l.Buckets(key.Name) {
					}
					l.Stats()
					err = l.Health()
				case 10: // makes memory scarce
					_, err = l.Spend(key.Name.Key(fmt.Sprint("other ", rnd.IntN(2000))), 1)
				case 11, 12:
					promote(l, key)
				default:
					clock.advance(time.Duration(rnd.IntN(2000)) * time.Microsecond)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	longest := time.Duration(0)
	for key, log := range logs {
		requireLaw(t, key.String(), defaults[key.Name], log)
		r, err := l.Reserve(key.Cost(0))
		require.NoError(t, err)
		longest = max(longest, r.Delay())
	}
	clock.advance(longest + 20*time.Millisecond)
	var keys []Key
	for key := range logs {
		require.EqualValues(t, 20, remainingOf(t, l, key), "%v is stranded", key)
		keys = append(keys, key)
	}
	spent := concurrentGroups(t, l, keys, calls)
	for i, key := range keys {
		require.Equal(t, 20-spent[i].Load(), remainingOf(t, l, key), "%v", key)
	}
	require.NoError(t, l.Close())
}

// concurrentGroups spends from sets of keys while time stands still, and gives
// some of it back. It returns what is spent of each.
func concurrentGroups(t *testing.T, l *Limiter, keys []Key, calls int) []atomic.Int64 {
	spent := make([]atomic.Int64, len(keys))
	var all sync.WaitGroup
	for g := range 16 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(g)))
		all.Go(func() {
			for range calls {
				picked := rnd.Perm(len(keys))[:1+rnd.IntN(len(keys))]
				var reqs []Request
				for _, i := range picked {
					reqs = append(reqs, Request{Key: keys[i], Cost: int64(rnd.IntN(3))})
				}
				d, err := l.SpendAll(reqs...)
				if err == nil && d.Allowed && rnd.IntN(4) == 0 {
					_, err = l.Refund(justSpent(reqs)...)
				} else if d.Allowed {
					for n, i := range picked {
						spent[i].Add(reqs[n].Cost)
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return spent
}
