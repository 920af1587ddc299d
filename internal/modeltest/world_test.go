package modeltest

import (
	"fmt"
	"runtime"
	"testing"
)

// verdict is a testing.TB that notes that a World has failed.
type verdict struct {
	testing.TB
	failed string
}

func (v *verdict) Helper() {}

func (v *verdict) Fatalf(format string, args ...any) {
	v.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// judge returns why a World fails within a number of steps; "" if it does not.
func judge(env Env, seed uint64, steps int) string {
	v := &verdict{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := NewWorld(v, env, seed)
		w.Run(steps)
		w.End()
	}()
	<-done
	return v.failed
}

func TestWorld(t *testing.T) {
	counts := make(map[string]int)
	for seed := range uint64(30) {
		w := NewWorld(t, plainEnv(""), seed)
		w.Run(2000)
		w.End()
		for what, n := range w.Counts {
			counts[what] += n
		}
	}
	t.Log(counts)
}

// A World finds each mistake that a limiter may make.
func TestWorldFindsCheats(t *testing.T) {
	for _, cheat := range []string{
		"a look writes", "a turn is not saved", "a part of a group", "an undo gives more", "cancel gives back twice",
		"cancel needs limits", "close forgets", "a hold lets turns pass", "a reset is not saved",
	} {
		t.Run(cheat, func(t *testing.T) {
			for seed := range uint64(40) {
				if why := judge(plainEnv(cheat), seed, 2000); why != "" {
					t.Logf("found at seed %d: %.300s", seed, why)
					return
				}
			}
			t.Error("it is not found")
		})
	}
}
