package bloom

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
)

func TestFilter(t *testing.T) {
	f := New(0)
	n := int((*f.layers.Load())[0].room)
	var entries []format.Entry
	for i := range n {
		if i%2 == 0 {
			f.Add(1, fmt.Sprint("in", i))
		} else {
			entries = append(entries, format.Entry{Name: 1, ID: fmt.Sprint("in", i), TAT: 1})
		}
	}
	for i := range n / 10 {
		entries = append(entries, format.Entry{Name: 3, ID: fmt.Sprint("in", i)}) // deleted
	}
	f.AddAll(entries)
	wrong := 0
	for i := range n {
		require.True(t, f.Has(1, fmt.Sprint("in", i)))
		if f.Has(1, fmt.Sprint("out", i)) {
			wrong++
		}
		for _, name := range []uint16{2, 3} {
			if f.Has(name, fmt.Sprint("in", i)) {
				wrong++
			}
		}
	}
	t.Logf("%d false positives among %d other keys, with %d keys added", wrong, 3*n, n)
	require.Less(t, wrong, 3*n/120)
	require.InDelta(t, n, f.Added(), float64(n)/100)
	require.False(t, f.Overfull())
}

// TestLayers: a filter that is full goes on with another layer. It still has all
// keys, knows how many, and is seldom wrong about others.
func TestLayers(t *testing.T) {
	f := New(0)
	n := 4 * int((*f.layers.Load())[0].room) // layers have room for 1, 2 and 4 times as many
	for range 2 {
		for i := range n {
			f.Add(1, fmt.Sprint("in", i))
		}
		require.Len(t, *f.layers.Load(), 3, "a key that is there takes no room")
		require.InDelta(t, n, f.Added(), float64(n)/50)
		require.True(t, f.Overfull())
	}
	wrong := 0
	for i := range n {
		if id := fmt.Sprint("in", i); !f.Has(1, id) {
			t.Fatal(id, " is not there")
		}
		if f.Has(1, fmt.Sprint("out", i)) {
			wrong++
		}
	}
	t.Logf("%d false positives among %d other keys", wrong, n)
	require.Less(t, wrong, 3*n/120)
}

// TestLayersTogether: keys that are added by several goroutines while layers are
// added are all there.
func TestLayersTogether(t *testing.T) {
	f := New(0)
	const workers, each = 4, 20_000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprint(w, i)
				if f.Add(1, id); !f.Has(1, id) {
					t.Errorf("%s is not there", id)
				}
			}
		})
	}
	wg.Wait()
	for w := range workers {
		for i := range each {
			if id := fmt.Sprint(w, i); !f.Has(1, id) {
				t.Fatal(id, " is not there")
			}
		}
	}
	require.True(t, f.Overfull())
}
