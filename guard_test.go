//go:build !race

package stint_test

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// TestGuard fails where a decision has become a third slower than it was. It compares no times with the clock's, but,
// in one run, with those of the least that a limiter does: hash the id, find it in a map under a lock, read the clock, move
// a TAT on. All do so in short slices by turns, and the shortest slice of each counts: whatever else the machine has to
// do can only make one longer, and never leaves alone none of five hundred.
//
// It runs where STINT_GUARD is set, and without -race and -cover, which slow the two down differently.
func TestGuard(t *testing.T) {
	if os.Getenv("STINT_GUARD") == "" || testing.CoverMode() != "" {
		t.Skip("STINT_GUARD is not set")
	}
	for _, c := range []struct {
		ids                           int
		spend, spendEach, spendAllOf3 float64 // at most so many times as long as the reference, per id
	}{
		{ids: 1, spend: 2, spendEach: 1.2},
		{ids: 1000, spend: 1.9, spendEach: 1.1, spendAllOf3: 2.3},
		{ids: 100_000, spend: 1, spendEach: 0.5, spendAllOf3: 0.9},
	} {
		t.Run(fmt.Sprint(c.ids), func(t *testing.T) {
			least := guardRun(t, c.ids)
			for what, bound := range map[string]float64{"Spend": c.spend, "SpendEach": c.spendEach, "SpendAll": c.spendAllOf3} {
				if bound == 0 {
					continue
				}
				ratio := float64(least[what]) / float64(least["reference"])
				t.Logf("%s takes %.2f times as long as the reference", what, ratio)
				if ratio > bound {
					t.Errorf("%s takes %.2f times as long as the reference, want at most %v", what, ratio, bound)
				}
			}
		})
	}
}

// guardRun returns the shortest slice of each.
func guardRun(t *testing.T, ids int) map[string]time.Duration {
	const name stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{name: {Label: "Guard", Limit: stint.PerMinute(1).WithBurst(50_000_000)}}, nil, nil)
	require.NoError(t, err)
	l, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Durability: stint.Memory, FlushInterval: time.Hour})
	require.NoError(t, err)
	defer l.Close()
	r := newGuardReference()
	id := func(i int) string { return fmt.Sprintf("%024x", uint64(i%ids)*0x9E3779B97F4A7C15) }
	for i := range ids {
		l.Allow(name.Key(id(i)))
		r.spend(id(i))
	}

	const slice = 3 * 64
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
				r.spend(req.Key.ID)
			}
		},
		"Spend": func() {
			for _, req := range reqs {
				allowed(l.Spend(req.Key, 1))
			}
		},
		"SpendEach": func() {
			err := l.SpendEach(reqs[:], ds[:])
			allowed(ds[0], err)
		},
		"SpendAll": func() {
			for i := 0; i < slice; i += 3 {
				allowed(l.SpendAll(reqs[i : i+3]...))
			}
		},
	}
	if ids < 3 {
		delete(contestants, "SpendAll")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	least := make(map[string]time.Duration)
	for range 500 {
		for what, run := range contestants {
			for i := 0; i < slice; i += 3 {
				first := rng.IntN(ids)
				for k := range 3 { // side by side, they are three different ones
					reqs[i+k] = stint.Request{Key: name.Key(id(first + k)), Cost: 1}
				}
			}
			begun := time.Now()
			run()
			if took := time.Since(begun); least[what] == 0 || took < least[what] {
				least[what] = took
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

func newGuardReference() *guardReference {
	r := &guardReference{seed: maphash.MakeSeed(), base: time.Now()}
	for i := range r.parts {
		r.parts[i].tats = make(map[string]*int64)
	}
	return r
}

func (r *guardReference) spend(id string) bool {
	p := &r.parts[maphash.String(r.seed, id)%64]
	p.mu.Lock()
	defer p.mu.Unlock()
	now := int64(time.Since(r.base))
	tat := p.tats[id]
	if tat == nil {
		tat = new(int64)
		p.tats[id] = tat
	}
	*tat = max(*tat, now) + 1
	return *tat <= now+int64(time.Hour)
}
