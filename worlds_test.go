package stint_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/internal/worlds"
)

// runWorlds takes limiters through histories, and sums up what happened.
func runWorlds(t *testing.T, histories, steps int, env func(t *testing.T) modeltest.Env) {
	counts := make(map[string]int)
	for range histories {
		w := modeltest.NewWorld(t, env(t), modeltest.Seed())
		w.Run(steps)
		w.End()
		for what, n := range w.Counts {
			counts[what] += n
		}
	}
	t.Log(counts)
}

// promote gives a bucket a lane.
func promote(l *stint.Limiter, key stint.Key) { stint.Promote(l, key) }

func memWorld(t *testing.T, opts stint.Options, disk *modeltest.Disk) *modeltest.Env {
	store := stint.NewMemStore()
	return worlds.Env(t, opts, disk, func(*stint.Limits) stint.Store { return store }, promote)
}

// Limiters decide as the model does on every kind of store, and keep the law.
func TestWorlds(t *testing.T) {
	t.Parallel()
	t.Run("mem", func(t *testing.T) {
		t.Parallel()
		runWorlds(t, testlength.Of(10, 2), testlength.Of(20_000, 1000), func(t *testing.T) modeltest.Env {
			return *memWorld(t, stint.Options{}, nil)
		})
	})
	for _, resident := range []int{0, 8} { // 0 evicts nothing
		t.Run(fmt.Sprint("faults and crashes/resident ", resident), func(t *testing.T) {
			t.Parallel()
			runWorlds(t, testlength.Of(10, 2), testlength.Of(100_000, 1000), func(t *testing.T) modeltest.Env {
				env := memWorld(t, stint.Options{MaxResident: resident}, &modeltest.Disk{})
				env.Crashes = true
				return *env
			})
		})
	}
	for _, resident := range []int{0, 8} {
		t.Run(fmt.Sprint("file/resident ", resident), func(t *testing.T) {
			t.Parallel()
			runWorlds(t, 1, testlength.Of(50_000, 1000), func(t *testing.T) modeltest.Env {
				path := filepath.Join(t.TempDir(), "buckets.db")
				env := worlds.Env(t, stint.Options{MaxResident: resident}, nil,
					func(ls *stint.Limits) stint.Store {
						files := boltfile.OS()
						files.LookEvery = 0
						return worlds.OpenFile(t, path, ls.Names(), files)
					}, promote)
				env.File = true
				env.TakeAway = func() func() {
					require.NoError(t, os.Rename(path, path+".away"))
					require.NoError(t, os.WriteFile(path, []byte("somebody else's"), 0o600))
					return func() { require.NoError(t, os.Rename(path+".away", path)) }
				}
				return *env
			})
		})
	}
	t.Run("ticks", func(t *testing.T) {
		t.Parallel()
		for range testlength.Of(100, 2) {
			synctest.Test(t, func(t *testing.T) {
				runWorlds(t, 1, 2000, func(t *testing.T) modeltest.Env {
					env := memWorld(t, stint.Options{FlushInterval: time.Second}, &modeltest.Disk{})
					env.Disk, env.DelayFlush, env.Ticks, env.Crashes = nil, nil, true, true
					return *env
				})
			})
		}
	})
	t.Run("commit timeouts", func(t *testing.T) {
		t.Parallel()
		for range testlength.Of(500, 2) {
			synctest.Test(t, func(t *testing.T) {
				runWorlds(t, 1, 2000, func(t *testing.T) modeltest.Env {
					env := memWorld(t, stint.Options{CommitTimeout: 5 * time.Second},
						&modeltest.Disk{})
					env.DelayFlush, env.Settle, env.Crashes = nil, synctest.Wait, true
					return *env
				})
			})
		}
	})
}

// cheat is a System that makes a mistake.
type cheat struct {
	modeltest.System
	do func(modeltest.System, modeltest.Call) modeltest.Reply
}

func (c cheat) Do(call modeltest.Call) modeltest.Reply { return c.do(c.System, call) }

// verdict notes that a World has failed, and ends its goroutine.
type verdict struct {
	testing.TB
	failed bool
}

func (v *verdict) Helper() {}

func (v *verdict) Fatalf(string, ...any) { v.failed = true; runtime.Goexit() }

// A World finds the mistakes that a limiter may make.
func TestWorldsCheats(t *testing.T) {
	skip := func(op modeltest.Op) func(s modeltest.System, c modeltest.Call) modeltest.Reply {
		return func(s modeltest.System, c modeltest.Call) modeltest.Reply {
			if c.Op == op {
				return modeltest.Reply{}
			}
			return s.Do(c)
		}
	}
	for name, do := range map[string]func(modeltest.System, modeltest.Call) modeltest.Reply{
		"reset does nothing":  skip(modeltest.Reset),
		"hold does nothing":   skip(modeltest.Hold),
		"overrides stay":      skip(modeltest.SetOverrides),
		"cancel does nothing": skip(modeltest.Cancel),
		"close saves nothing": skip(modeltest.Close),
		"flush saves nothing": skip(modeltest.Flush),
		"a check spends": func(s modeltest.System, c modeltest.Call) modeltest.Reply {
			if c.Op == modeltest.Check {
				c.Op = modeltest.Spend
			}
			return s.Do(c)
		},
		"a spend counts half": func(s modeltest.System, c modeltest.Call) modeltest.Reply {
			if c.Op == modeltest.Spend {
				c.Reqs[0].Cost = (c.Reqs[0].Cost + 1) / 2
			}
			return s.Do(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := &verdict{TB: t}
			for history := 0; history < 40 && !v.failed; history++ {
				env := *memWorld(t, stint.Options{}, &modeltest.Disk{})
				open := env.Open
				env.Open = func(ls modeltest.Limits) modeltest.System { return cheat{open(ls), do} }
				env.Crashes = true
				var ended sync.WaitGroup
				ended.Go(func() { modeltest.NewWorld(v, env, rand.Uint64()).Run(2000) })
				ended.Wait()
			}
			require.True(t, v.failed, "it is not found")
		})
	}
}

// Many goroutines do everything at once while time passes: admissions keep the
// law, and no id is stranded. Then time stands still, and no token is lost.
func TestConcurrentLaw(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) stint.Store{
		"mem": func(*testing.T) stint.Store { return stint.NewMemStore() },
		"file": func(t *testing.T) stint.Store {
			s, err := stint.OpenBolt(filepath.Join(t.TempDir(), "buckets.db"), nil, nil)
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

func concurrentLaw(t *testing.T, store stint.Store, resident, calls int) {
	clock, names, defaults := modeltest.NewClock(), stint.Names{}, map[stint.Name]stint.Limit{}
	for name := stint.Name(1); name <= 4; name++ {
		names[name] = stint.NameSpec{Label: fmt.Sprint("level ", name)}
		defaults[name] = stint.Limit{Burst: 20, Count: 1, Period: time.Millisecond,
			Durability: stint.Durability(name)}
	}
	limits, err := stint.NewLimits(names.WithLimits(defaults))
	require.NoError(t, err)
	l, err := stint.New(store, limits, &stint.Options{Now: clock.Now,
		FlushInterval: time.Millisecond, CommitTimeout: time.Hour, MaxResident: resident})
	require.NoError(t, err)
	var mu sync.Mutex
	logs := make(map[stint.Key][]modeltest.Admission)
	var all sync.WaitGroup
	for g := range 16 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(g)))
		all.Go(func() {
			for range calls {
				key := stint.Name(1 + rnd.IntN(4)).Key(fmt.Sprint(rnd.IntN(2)))
				cost := 1 + rnd.Int64N(8)
				after := clock.Nanos()
				admit := func(key stint.Key, from, to int64) {
					mu.Lock()
					defer mu.Unlock()
					logs[key] = append(logs[key], modeltest.Admission{After: from, Before: to, Cost: cost})
				}
				var err error
				switch rnd.IntN(14) {
				case 0, 1, 2, 3:
					var d stint.Decision
					if d, err = l.Spend(key, cost); d.Allowed {
						admit(key, after, clock.Nanos())
					}
				case 4:
					other := stint.Name(1 + key.Name%4).Key("0")
					var d stint.Decision
					if d, err = l.SpendAll(stint.Request{Key: key, Cost: cost},
						stint.Request{Key: other, Cost: cost}); d.Allowed {
						admit(key, after, clock.Nanos())
						admit(other, after, clock.Nanos())
					}
				case 5, 6:
					var r stint.Reservation
					if r, err = l.Reserve(key.Cost(cost)); err != nil {
						break
					}
					if rnd.IntN(2) == 0 {
						r.Cancel()
						r.Cancel()
						break
					}
					read := clock.Nanos()
					d := int64(r.Delay())
					if d == 0 {
						admit(key, after, clock.Nanos())
					} else { // it moves up if others leave
						admit(key, read, clock.Nanos()+d)
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
					stint.Promote(l, key)
				default:
					clock.Advance(time.Duration(rnd.IntN(2000)) * time.Microsecond)
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
		limit := defaults[key.Name]
		require.NoError(t, modeltest.Excess(limit.Burst, limit.Interval(), log), key)
		r, err := l.Reserve(key.Cost(0))
		require.NoError(t, err)
		longest = max(longest, r.Delay())
	}
	clock.Advance(longest + 20*time.Millisecond)
	var keys []stint.Key
	for key := range logs {
		require.EqualValues(t, 20, remaining(t, l, key), "%v is stranded", key)
		keys = append(keys, key)
	}
	spent := concurrentGroups(t, l, keys, calls)
	for i, key := range keys {
		require.Equal(t, 20-spent[i].Load(), remaining(t, l, key), "%v", key)
	}
	require.NoError(t, l.Close())
}

func remaining(t *testing.T, l *stint.Limiter, key stint.Key) int64 {
	d, err := l.Check(key, 0)
	require.NoError(t, err)
	return d.Remaining
}

// concurrentGroups spends from sets of keys while time stands still, and gives
// some of it back. It returns what is spent of each.
func concurrentGroups(t *testing.T, l *stint.Limiter, keys []stint.Key, calls int) []atomic.Int64 {
	spent := make([]atomic.Int64, len(keys))
	var all sync.WaitGroup
	for g := range 16 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(g)))
		all.Go(func() {
			for range calls {
				picked := rnd.Perm(len(keys))[:1+rnd.IntN(len(keys))]
				var reqs []stint.Request
				for _, i := range picked {
					reqs = append(reqs, stint.Request{Key: keys[i], Cost: int64(rnd.IntN(3))})
				}
				d, err := l.SpendAll(reqs...)
				if err == nil && d.Allowed && rnd.IntN(4) == 0 {
					for i := range reqs {
						reqs[i].Spent = d.At()
					}
					_, err = l.Refund(reqs...)
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
