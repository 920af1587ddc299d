package stint

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
)

// runWorlds takes limiters through histories, and sums up what happened.
func runWorlds(t *testing.T, histories, steps int, env func(t *testing.T) modeltest.Env) {
	counts := make(map[string]int)
	for range histories {
		w := modeltest.NewWorld(t, env(t), seed())
		w.Run(steps)
		w.End()
		for what, n := range w.Counts {
			counts[what] += n
		}
	}
	t.Log(counts)
}

func memWorld(t *testing.T, opts Options, disk *modeltest.Disk) *modeltest.Env {
	store := NewMemStore()
	return world(t, opts, disk, func(*Limits) Store { return store })
}

// Limiters decide as the model does on every kind of store, and keep the law.
func TestWorlds(t *testing.T) {
	t.Parallel()
	t.Run("mem", func(t *testing.T) {
		t.Parallel()
		runWorlds(t, testlength.Of(10, 2), testlength.Of(20_000, 1000), func(t *testing.T) modeltest.Env {
			return *memWorld(t,
				Options{}, nil)
		})
	})
	t.Run("faults and crashes", func(t *testing.T) {
		t.Parallel()
		runWorlds(t, testlength.Of(10, 2), testlength.Of(100_000, 1000), func(t *testing.T) modeltest.Env {
			env := memWorld(t, Options{}, &modeltest.Disk{})
			env.Crashes = true
			return *env
		})
	})
	t.Run("evictions, faults and crashes", func(t *testing.T) {
		t.Parallel()
		runWorlds(t, testlength.Of(10, 2), testlength.Of(100_000, 1000), func(t *testing.T) modeltest.Env {
			env := memWorld(t, Options{MaxResident: 8}, &modeltest.Disk{})
			env.Crashes = true
			return *env
		})
	})
	for _, resident := range []int{0, 8} {
		t.Run(fmt.Sprint("file/resident ", resident), func(t *testing.T) {
			t.Parallel()
			runWorlds(t, 1, testlength.Of(50_000, 1000), func(t *testing.T) modeltest.Env {
				path := filepath.Join(t.TempDir(), "buckets.db")
				env := world(t, Options{MaxResident: resident}, nil,
					func(ls *Limits) Store {
						files := boltfile.OS()
						files.LookEvery = 0
						return openBoltOn(t, path, ls.Names(), files)
					})
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
					env := memWorld(t, Options{FlushInterval: time.Second}, &modeltest.Disk{})
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
					env := memWorld(t, Options{CommitTimeout: 5 * time.Second},
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
				env := *memWorld(t, Options{}, &modeltest.Disk{})
				open := env.Open
				env.Open = func(ls modeltest.Limits) modeltest.System { return cheat{open(ls), do} }
				env.Crashes = true
				var world sync.WaitGroup
				world.Go(func() { modeltest.NewWorld(v, env, rand.Uint64()).Run(2000) })
				world.Wait()
			}
			require.True(t, v.failed, "it is not found")
		})
	}
}

// seed returns the seed in STINT_SEED, or a random one. With the seed that a
// failure has reported, a test goes through the same history:
//
//	STINT_SEED=… go test -run TestWorlds/mem .
func seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("STINT_SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}
