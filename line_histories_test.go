package stint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// sometimesFails is a Store of which some saves do.
type sometimesFails struct {
	Store
	mu  sync.Mutex
	rnd *rand.Rand
	bad float64
}

func (s *sometimesFails) Save(changes []Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rnd.Float64() < s.bad {
		return errDisk
	}
	return s.Store.Save(changes)
}

// Spends, places in line, of which some are cancelled while they wait, holds, and commits that fail, in any order: over no stretch of
// time is more admitted than the limit says.
func TestLineHistories(t *testing.T) {
	for seed := range uint64(300) {
		for _, level := range []Durability{Memory, Leased, Synced} {
			synctest.Test(t, func(t *testing.T) { lineHistory(t, seed, level) })
		}
	}
}

func lineHistory(t *testing.T, seed uint64, level Durability) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	limit := PerSecond(1).WithBurst([]int64{1, 3, 10}[rnd.IntN(3)])
	limit.Durability = level
	store := &sometimesFails{Store: NewMemStore(), rnd: rand.New(rand.NewPCG(seed, 2)), bad: []float64{0, 0.3}[rnd.IntN(2)]}
	l, err := New(store, limitsOf(t, testNames, map[Name]Limit{single: limit}), &Options{FlushInterval: 3 * time.Second, CommitTimeout: 5 * time.Second})
	require.NoError(t, err)
	key, begun := single.Key("a"), time.Now()
	var mu sync.Mutex // guards what follows, and says in which order
	var places []Reservation
	var admitted []admission
	var log []string
	note := func(format string, args ...any) {
		log = append(log, fmt.Sprintf("%v "+format, append([]any{time.Since(begun)}, args...)...))
	}
	var calls sync.WaitGroup
	for range 30 {
		cost := 1 + rnd.Int64N(limit.Burst)
		switch rnd.IntN(8) {
		case 0, 1:
			calls.Go(func() {
				at := time.Since(begun)
				d, err := l.Spend(key, cost)
				mu.Lock()
				defer mu.Unlock()
				note("spend %d: %v %v", cost, d.Allowed, err)
				if d.Allowed {
					admitted = append(admitted, admission{at, cost})
				}
			})
		case 2, 3, 4:
			calls.Go(func() {
				r, err := l.Reserve(key, cost)
				mu.Lock()
				defer mu.Unlock()
				note("reserve %d: %v", cost, err)
				if err == nil {
					places = append(places, r)
				}
			})
		case 5:
			mu.Lock()
			if n := len(places); n > 0 {
				if i := rnd.IntN(n); places[i].Delay() > 0 {
					note("cancel %d", places[i].turn.Cost)
					calls.Go(places[i].Cancel)
					places = slices.Delete(places, i, i+1)
				}
			}
			mu.Unlock()
		case 6:
			if rnd.IntN(3) == 0 {
				until := time.Now().Add(time.Duration(rnd.IntN(20)) * time.Second)
				calls.Go(func() {
					err := l.Hold(key, until)
					mu.Lock()
					defer mu.Unlock()
					note("hold until %v: %v", until.Sub(begun), err)
				})
			}
		}
		if rnd.IntN(2) == 0 {
			synctest.Wait()
			pass(time.Duration(rnd.IntN(4000)) * time.Millisecond)
		}
	}
	pass(20 * time.Second)
	calls.Wait()
	for _, r := range places {
		admitted = append(admitted, admission{time.Duration(r.turn.At - begun.UnixNano()), r.turn.Cost})
	}
	t.Logf("seed %d, %v:\n%s", seed, level, strings.Join(log, "\n"))
	requireExact(t, limit, admitted)
	l.Close() // an error where a save failed
}
