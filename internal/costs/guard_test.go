//go:build long && !race

package costs

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/worlds"
)

// TestGuard fails if a decision has become a third slower. In one run it
// compares decisions with a reference, a map of TATs. The reference hashes the
// id, finds it in the map under a lock, reads the clock, and adds to the TAT.
// All take turns in short slices, and the shortest slice of each counts. Other
// work on the machine only makes slices longer, and seldom all of five hundred.
func TestGuard(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage slows the two down differently")
	}
	for _, c := range []struct {
		ids   int
		bound map[string]float64 // times as long as the reference, for each id
	}{
		{1, map[string]float64{"Spend": 2, "DoEach": 1.2}},
		{1000, map[string]float64{"Spend": 1.9, "DoEach": 1.1, "SpendAll": 2.3}},
		{100_000, map[string]float64{"Spend": 1, "DoEach": 0.5, "SpendAll": 0.9}},
	} {
		t.Run(fmt.Sprint(c.ids), func(t *testing.T) {
			inOneOf(t, 3, func() (slow []string) {
				least := guardRun(t, c.ids)
				for name, bound := range c.bound {
					ratio := float64(least[name]) / float64(least["reference"])
					t.Logf("%s takes %.2f times as long as the reference, want at most %v", name, ratio, bound)
					if ratio > bound {
						slow = append(slow, name)
					}
				}
				return slow
			})
		})
	}
}

// inOneOf requires that a run finds nothing slow, or one of the next does. Each run has
// its own memory, where chance puts it, and meets other work on the machine: what has
// become slower is slow in all of them.
func inOneOf(t *testing.T, runs int, run func() (slow []string)) {
	var slow []string
	for range runs {
		if slow = run(); len(slow) == 0 {
			return
		}
	}
	t.Errorf("too slow in each of %d runs: %v", runs, slow)
}

func guardLimits(t *testing.T, limit stint.Limit) *stint.Limits {
	return worlds.LimitsOf(t, stint.Names{flushed: {Label: "clients", IDs: stint.IPAddress, Limit: limit}}, nil)
}

// guardRun returns the shortest slice of each.
func guardRun(t *testing.T, ids int) map[string]time.Duration {
	const slice = 3 * 64
	limits := guardLimits(t, stint.PerMinute(1).WithBurst(50_000_000))
	l, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Durability: stint.Memory, FlushInterval: time.Hour})
	require.NoError(t, err)
	defer l.Close()
	ref := &guardReference{seed: maphash.MakeSeed(), base: time.Now()}
	id := func(i int) string { return fmt.Sprintf("%024x", uint64(i%ids)*0x9E3779B97F4A7C15) }
	var reqs [slice]stint.Request
	var ds [slice]stint.Decision
	allowed := func(d stint.Decision, err error) {
		if !d.Allowed || err != nil {
			t.Fatal("not allowed: ", d, err)
		}
	}
	contestants := map[string]func(){
		"reference": func() {
			for _, req := range reqs {
				ref.spend(req.Key.ID)
			}
		},
		"Spend": func() {
			for _, req := range reqs {
				allowed(l.Spend(req.Key, 1))
			}
		},
		"DoEach": func() {
			err := l.DoEach(context.Background(), reqs[:], ds[:])
			allowed(ds[0], err)
		},
	}
	if ids >= 3 {
		contestants["SpendAll"] = func() {
			for i := 0; i < slice; i += 3 {
				allowed(l.SpendAll(reqs[i : i+3]...))
			}
		}
	}
	for i := range ids {
		require.True(t, l.Allow(flushed.Key(id(i))))
		ref.spend(id(i))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	least := make(map[string]time.Duration)
	for range 500 {
		for name, run := range contestants {
			for i := 0; i < slice; i += 3 {
				first := rng.IntN(ids)
				for k := range 3 { // neighbours, which are three different ids
					reqs[i+k] = stint.Request{Key: flushed.Key(id(first + k)), Cost: 1}
				}
			}
			begun := time.Now()
			run()
			if took := time.Since(begun); least[name] == 0 || took < least[name] {
				least[name] = took
			}
		}
	}
	return least
}

type guardReference struct {
	seed  maphash.Seed
	base  time.Time
	parts [64]struct {
		mu   sync.Mutex
		tats map[string]*int64
	}
}

func (r *guardReference) spend(id string) bool {
	p := &r.parts[maphash.String(r.seed, id)%64]
	p.mu.Lock()
	defer p.mu.Unlock()
	now := int64(time.Since(r.base))
	tat := p.tats[id]
	if tat == nil {
		if p.tats == nil {
			p.tats = make(map[string]*int64)
		}
		tat = new(int64)
		p.tats[id] = tat
	}
	*tat = max(*tat, now) + 1
	return *tat <= now+int64(time.Hour)
}

// TestGuardCalendar fails if a decision on a quota that follows the calendar
// takes more than a twentieth longer than one on a rolling limit. The two take
// turns in short slices, and the shortest slice of each counts.
func TestGuardCalendar(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage slows the two down differently")
	}
	for _, ids := range []int{1, 1000} {
		t.Run(fmt.Sprint(ids), func(t *testing.T) {
			inOneOf(t, 3, func() (slow []string) {
				const slice = 200
				open := func(limit stint.Limit) *stint.Limiter {
					l, err := stint.New(stint.NewMemStore(), guardLimits(t, limit),
						&stint.Options{Durability: stint.Memory, FlushInterval: time.Hour})
					require.NoError(t, err)
					t.Cleanup(func() { l.Close() })
					return l
				}
				limiters := []*stint.Limiter{
					open(stint.PerMinute(1).WithBurst(50_000_000)), open(stint.EachMonth(50_000_000, time.UTC)),
				}
				keys := make([]stint.Key, ids)
				for i := range keys {
					keys[i] = flushed.Key(fmt.Sprintf("%024x", uint64(i)*0x9E3779B97F4A7C15))
				}
				least := [2]time.Duration{time.Hour, time.Hour}
				for round := range 4000 {
					for i := range limiters {
						which := (round + i) % 2
						l := limiters[which]
						begun := time.Now()
						for k := range slice {
							if d, err := l.Spend(keys[(round*slice+k)%ids], 1); err != nil || !d.Allowed {
								t.Fatal("not allowed: ", d, err)
							}
						}
						least[which] = min(least[which], time.Since(begun))
					}
				}
				ratio := float64(least[1]) / float64(least[0])
				t.Logf("a calendar decision takes %.3f times as long as a rolling one (%v, %v), want at most 1.05", ratio,
					least[1]/slice, least[0]/slice)
				if ratio > 1.05 {
					slow = append(slow, fmt.Sprintf("%.3f", ratio))
				}
				return slow
			})
		})
	}
}
