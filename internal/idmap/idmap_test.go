package idmap

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMap compares a Map, and every hundredth of its earlier versions, with Go
// maps, even if most of the hashes are equal.
func TestMap(t *testing.T) {
	for _, tc := range []struct {
		name string
		hash func(string) uint32
		ids  int
	}{
		{"a few ids", hash, 50},
		{"many ids", hash, 5000},
		{"equal hashes", func(id string) uint32 { return uint32(len(id)) }, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func(was func(string) uint32) { hash = was }(hash)
			hash = tc.hash
			rng := rand.New(rand.NewPCG(1, 2))
			var b Builder[int]
			model := map[string]int{}
			for i := range tc.ids {
				id := strconv.Itoa(rng.IntN(tc.ids))
				_, known := model[id]
				require.Equal(t, !known, b.Put(id, i))
				model[id] = i
			}
			m := b.Map()
			type version struct {
				m     Map[int]
				model map[string]int
			}
			versions := []version{{m, maps.Clone(model)}, {}}
			for i := range 1000 {
				id := strconv.Itoa(rng.IntN(2 * tc.ids))
				if rng.IntN(3) == 0 {
					m = m.Without(id)
					delete(model, id)
				} else {
					m = m.With(id, -i)
					model[id] = -i
				}
				if i%100 == 99 {
					versions = append(versions, version{m, maps.Clone(model)})
				}
			}
			for _, v := range versions {
				require.Equal(t, len(v.model), v.m.Len())
				for i := range 2 * tc.ids {
					id := strconv.Itoa(i)
					got, ok := v.m.Get(id)
					want, there := v.model[id]
					require.Equal(t, there, ok, id)
					require.Equal(t, want, got, id)
				}
				require.Equal(t, slices.Sorted(maps.Keys(v.model)), slices.Sorted(v.m.IDs()))
				for range v.m.IDs() {
					break
				}
			}
		})
	}
}
