package away

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each shard has one outage, however its slots lie.
func TestAll(t *testing.T) {
	t.Parallel()
	n := &Watch{}
	require.Equal(t, []*Outage{n.Whole}, n.All())
	a, b, of := new(Outage), new(Outage), new([16384]*Outage)
	of[1], of[2], of[3], of[5], of[16383] = a, a, b, a, b
	n.shards.Store(of)
	all := n.All()
	require.Len(t, all, 3)
	for i, o := range []*Outage{n.Whole, a, b} {
		require.Same(t, o, all[i])
	}
}

func BenchmarkAll(b *testing.B) {
	for _, shards := range []int{3, 100} {
		b.Run(fmt.Sprint(shards), func(b *testing.B) {
			n, of := &Watch{}, new([16384]*Outage)
			for i := range shards {
				o := new(Outage)
				for slot := i * len(of) / shards; slot < (i+1)*len(of)/shards; slot++ {
					of[slot] = o
				}
			}
			n.shards.Store(of)
			for b.Loop() {
				n.All()
			}
		})
	}
}
