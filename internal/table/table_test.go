package table

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type key struct {
	name uint16
	id   string
}

// rig is Slots with the seed that hashes its keys.
type rig struct {
	Slots
	seed maphash.Seed
}

func newRig(class uint8) *rig {
	r := &rig{seed: maphash.MakeSeed()}
	r.Init(class, r.seed, NewBell())
	return r
}

func (r *rig) find(k key) (uint32, bool) {
	return r.Find(k.name, k.id, Hash(r.seed, k.name, k.id))
}

func (r *rig) insert(k key, tat int64, flags uint64) uint32 {
	if len(k.id) > int(r.stride)-slotID {
		panic("an id of another class: " + k.id)
	}
	return r.Insert(k.name, k.id, Hash(r.seed, k.name, k.id), tat, 1, flags)
}

// eachDirty visits the dirty buckets of one round.
func (r *rig) eachDirty(all bool, visit func(i uint32, b Slot) Outcome) {
	r.BeginDirty(all)
	for r.NextDirty(visit) {
	}
}

// dirtyOf returns what a round visits, and marks it clean.
func (r *rig) dirtyOf(all bool) map[key]int64 {
	got := make(map[key]int64)
	r.eachDirty(all, func(i uint32, b Slot) Outcome {
		got[key{b.Name(), string(b.ID())}] = b.TAT()
		r.MarkClean(i)
		return Done
	})
	return got
}

// TestSlots compares Slots with a map, over random histories.
func TestSlots(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r, want := newRig(0), make(map[key]int64)
		for step := range 20_000 {
			n := rnd.IntN(600)
			k := key{uint16(1 + n%2), fmt.Sprint(n)}
			i, ok := r.find(k)
			tat, wanted := want[k]
			require.Equal(t, wanted, ok, "seed %d step %d", seed, step)
			switch {
			case !ok:
				if len(want) < 40*(1+step/2000) {
					r.insert(k, int64(step), Dirty)
					want[k] = int64(step)
				}
				continue
			case rnd.IntN(3) == 0:
				require.Equal(t, tat, r.At(i).TAT())
				r.Remove(i)
				delete(want, k)
			default:
				require.Equal(t, tat, r.At(i).TAT())
				r.Write(i, int64(step))
				want[k] = int64(step)
			}
			if rnd.IntN(1000) == 0 {
				r.Shrink()
			}
			require.Equal(t, len(want), r.Len())
			require.Equal(t, len(want), r.Dirty())
		}
		require.Equal(t, want, r.dirtyOf(true), "seed %d", seed)
		require.Zero(t, r.Dirty())
	}
}

// After Write a bucket is dirty and used, whatever it was before.
func TestWrite(t *testing.T) {
	for _, flags := range []uint64{0, Stored, Dirty, Used, Dirty | Used, Stored | Dirty | Used} {
		r := newRig(0)
		i := r.insert(key{1, "a"}, 7, flags)
		r.Write(i, 8)
		b := r.At(i)
		require.Equal(t, flags|Dirty|Used, b.Meta()&(Stored|Dirty|Used), "%#x", flags)
		require.Equal(t, 1, r.Dirty(), "%#x", flags)
		require.Equal(t, map[key]int64{{1, "a"}: 8}, r.dirtyOf(false), "%#x", flags)
	}
}

func TestNextDirty(t *testing.T) {
	t.Run("more slots than groups", func(t *testing.T) {
		r, want := newRig(0), make(map[key]int64)
		for i := range 3 * maxGroups {
			k := key{1, fmt.Sprint(i)}
			r.insert(k, 1, Stored)
			if i%7 == 0 {
				want[k] = int64(i + 2)
			}
		}
		require.NotZero(t, r.groupShift)
		for k, tat := range want {
			i, ok := r.find(k)
			require.True(t, ok)
			r.Write(i, tat)
		}
		r.mark(r.capacity.Load() - 1)
		require.Equal(t, want, r.dirtyOf(false))
	})
	t.Run("outcomes", func(t *testing.T) {
		r := newRig(0)
		for i := range 200 {
			r.insert(key{1, fmt.Sprint(i)}, int64(i), Dirty)
		}
		visit := func(outcome Outcome) (n int) {
			r.eachDirty(false, func(i uint32, b Slot) Outcome {
				if n++; outcome == Removed {
					r.Remove(i)
				}
				return outcome
			})
			return n
		}
		require.Equal(t, 200, visit(Again))
		require.Equal(t, 200, visit(Defer))
		require.Zero(t, visit(Again), "deferred until all are visited")
		n := 0
		r.eachDirty(true, func(uint32, Slot) Outcome { n++; return Again })
		require.Equal(t, 200, n)
		require.Equal(t, 200, visit(Removed))
		require.Zero(t, r.Len())
	})
	t.Run("changes between its steps", func(t *testing.T) {
		for seed := range uint64(50) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			r, dirty, more := newRig(0), make(map[key]bool), 0
			for i := range 2000 {
				k := key{1, fmt.Sprint(i)}
				dirty[k] = rnd.IntN(2) == 0
				r.insert(k, 1, map[bool]uint64{true: Dirty | Stored, false: Stored}[dirty[k]])
			}
			r.BeginDirty(true)
			visits := 0
			for r.NextDirty(func(i uint32, b Slot) Outcome {
				visits++
				r.MarkClean(i)
				delete(dirty, key{1, string(b.ID())})
				return Done
			}) {
				require.Less(t, visits, 2*dirtyStep, "the lock is free every few buckets")
				visits = 0
				for range 20 { // as evictions do
					if k := (key{1, fmt.Sprint(rnd.IntN(2000))}); !dirty[k] {
						if i, ok := r.find(k); ok {
							r.Remove(i)
						}
					}
				}
				if rnd.IntN(50) == 0 {
					for range rnd.IntN(1000) {
						more++
						r.insert(key{2, fmt.Sprint(more)}, 1, Stored)
					}
				}
			}
			for k, left := range dirty {
				require.False(t, left, "seed %d: %v was not visited", seed, k)
			}
			require.Zero(t, r.Dirty())
		}
	})
}

// Each case of TestEvict has the round of eviction that removes a bucket; 0
// means none.
func TestEvict(t *testing.T) {
	const now, saving = 1000, 2 << SaveShift
	cases := []struct {
		what  string
		tat   int64
		flags uint64
		round int
	}{
		{"as stored, unused", now + 1, Stored, 1},
		{"as stored, used", now + 1, Stored | Used, 3}, // the second forgets that it was used
		{"dirty", now + 1, Dirty | Stored, 0},
		{"in a commit", now + 1, Stored | Pending, 0},
		{"in a save", now + 1, Stored | saving, 0},
		{"busy", now + 1, Stored | Gate, 0},
		{"full, unknown to the store", now, Dirty | Used, 1},
		{"full, dirty", now, Dirty | Stored | Used, 0},
	}
	r := newRig(0)
	for i, c := range cases {
		r.insert(key{1, fmt.Sprint(i)}, c.tat, c.flags)
	}
	for round := 1; round <= 6; round++ {
		r.hand = 0
		for seen := uint32(0); seen < r.capacity.Load(); seen += 16 {
			r.Evict(now, saving, round > 1, func(Slot) bool { return true })
		}
		for i, c := range cases {
			_, there := r.find(key{1, fmt.Sprint(i)})
			if round < c.round || c.round == 0 {
				require.True(t, there, "%s: round %d", c.what, round)
			} else if round == 6 { // a removal may move a slot past the hand
				require.False(t, there, "%s: round %d", c.what, round)
			}
		}
	}
}

func TestEach(t *testing.T) {
	r := newRig(0)
	for i := range 100 {
		r.insert(key{1, fmt.Sprint(i)}, int64(i), 0)
	}
	r.Each(func(i uint32, b Slot) Outcome {
		if b.TAT() >= 10 {
			return Done
		}
		r.Remove(i)
		return Removed
	})
	require.Equal(t, 90, r.Len())
	for i := range 100 {
		_, there := r.find(key{1, fmt.Sprint(i)})
		require.Equal(t, i >= 10, there, i)
	}
}

func TestClasses(t *testing.T) {
	for n := range MaxID + 1 {
		id := strings.Repeat("x", n)
		class := ClassOf(id)
		require.GreaterOrEqual(t, classes[class], uint32(n))
		r := newRig(class)
		i := r.insert(key{65535, id}, -1, 0)
		require.Equal(t, id, string(r.At(i).ID()))
		r.At(i).SetRule(1<<26 - 1)
		require.EqualValues(t, 65535, r.At(i).Name())
		require.EqualValues(t, 1<<26-1, r.At(i).Rule())
		_, ok := r.find(key{65535, id})
		require.True(t, ok)
	}
}

// leapOf leads to every window once before it returns to one.
func TestLeap(t *testing.T) {
	for n := uint32(1); n <= maxGroups/16; n++ {
		seen := make([]bool, n)
		at := uint32(0)
		for range n {
			at = (at + uint32(leapOf(n))) % n
			require.False(t, seen[at], n)
			seen[at] = true
		}
	}
}

// EvictSteps calls of Evict get to all slots, also in a shard with groups of
// several slots. A removal may move a bucket to a window that is done.
func TestEvictEach(t *testing.T) {
	for _, n := range []int{1, 100, 3000, 40_000} {
		r := newRig(0)
		for i := range n {
			r.insert(key{1, fmt.Sprint(i)}, 1001, Stored)
		}
		for range r.EvictSteps() {
			r.Evict(1000, 0, false, func(Slot) bool { return false })
		}
		require.Less(t, r.Len(), n/2+1)
		for range 3 * r.EvictSteps() {
			r.Evict(1000, 0, false, func(Slot) bool { return false })
		}
		require.Zero(t, r.Len(), n)
	}
}
