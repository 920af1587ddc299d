package journal

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
)

// An Index equals a map, even if hashes collide.
func TestIndex(t *testing.T) {
	type key struct {
		name uint16
		id   string
	}
	x, want := New(), make(map[key]int64)
	put := func(k key, tat int64) {
		x.Put(format.Entry{Name: k.name, ID: k.id, TAT: tat})
		want[k] = tat
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		k := key{uint16(rnd.IntN(3)), fmt.Sprint(rnd.IntN(3_000))}
		if now := rnd.Int64(); rnd.IntN(3) == 0 {
			x.Drop(k.name, k.id, now)
			if tat, ok := want[k]; ok && tat <= now {
				delete(want, k)
			}
			continue
		}
		if rnd.IntN(3) > 0 {
			put(k, rnd.Int64N(3)*rnd.Int64())
			continue
		}
		tat, ok := x.Get(k.name, k.id)
		wantTAT, wanted := want[k]
		require.Equal(t, wanted, ok)
		require.Equal(t, wantTAT, tat)
	}
	for i := range 200_000 { // about five pairs share the stored half of the hash
		put(key{4, fmt.Sprint(i)}, int64(i))
	}
	require.Equal(t, len(want), x.Len())
	for k, wantTAT := range want {
		if tat, ok := x.Get(k.name, k.id); !ok || tat != wantTAT {
			t.Fatalf("%v: %d, %v; want %d", k, tat, ok, wantTAT)
		}
	}
	got, size := make(map[key]int64), 0
	for e := range x.All() {
		got[key{e.Name, string(e.ID)}] = e.TAT
		size += e.Size
	}
	require.True(t, maps.Equal(want, got))
	require.EqualValues(t, size, x.Size())

	sorter := x.Sorted(nil)
	var last format.RawEntry
	n := 0
	for sorter.Left > 0 {
		for i, e := range sorter.Take(1 + rnd.IntN(2000)) {
			require.Equal(t, want[key{e.Name, string(e.ID)}], e.TAT)
			require.True(t, n+i == 0 || last.Compare(e) < 0)
			last = e
		}
		n = len(want) - sorter.Left
	}
	require.Equal(t, len(want), n)
	require.Empty(t, sorter.Take(1))
	require.Nil(t, x.Sorted(func() bool { return true }))
}

// Full is true before the places run out.
func TestFull(t *testing.T) {
	x := New()
	require.False(t, x.Full())
	x.chunks = make([]chunk, 1<<(31-chunkBits))
	require.True(t, x.Full())
}

// An index from which everything is dropped that has passed is as long as what has
// not, however much has come.
func TestDrop(t *testing.T) {
	const live, come = 20_000, 400_000
	x := New()
	id := func(i int) string { return fmt.Sprintf("an id that is rather long %d", i) }
	for i := range come {
		x.Put(format.Entry{Name: 1, ID: id(i), TAT: int64(i + live)})
		if i%1000 > 0 {
			continue
		}
		for part := range x.Chunks() {
			for _, e := range x.Passed(nil, part, int64(i)) {
				x.Drop(e.Name, e.ID, int64(i))
			}
		}
		require.LessOrEqual(t, x.Len(), live+1)
		require.LessOrEqual(t, x.Chunks(), 10)
	}
	got := 0
	for e := range x.All() {
		require.Greater(t, e.TAT, int64(come-1000))
		got++
	}
	require.Equal(t, x.Len(), got)
	for i := come - live; i < come; i++ {
		tat, ok := x.Get(1, id(i))
		require.True(t, ok)
		require.EqualValues(t, i+live, tat)
	}
	require.Len(t, x.Sorted(nil).Take(come), x.Len())
}
