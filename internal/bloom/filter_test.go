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
	f.AddAll(append(entries, format.Entry{Name: 3, ID: "deleted"}))
	require.False(t, f.Has(3, "deleted"))
	wrong := 0
	for i := range n {
		require.True(t, f.Has(1, fmt.Sprint("in", i)))
		if f.Has(1, fmt.Sprint("out", i)) {
			wrong++
		}
		if f.Has(2, fmt.Sprint("in", i)) {
			wrong++
		}
	}
	t.Logf("%d of %d others taken for one of %d", wrong, 2*n, n)
	require.Less(t, wrong, 2*n/120)
	require.InDelta(t, n, f.Added(), float64(n)/100)
	require.False(t, f.Overfull())
	for i := range n / 10 {
		f.Add(1, fmt.Sprint("more", i))
	}
	require.True(t, f.Overfull())
}
