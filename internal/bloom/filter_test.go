package bloom

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
)

func TestFilter(t *testing.T) {
	f := New(0)
	n := int(f.room)
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
	for i := range n / 10 {
		f.Add(1, fmt.Sprint("more", i))
	}
	require.True(t, f.Overfull())
}
