package boltstore

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
)

// yields yields entries, and then an error unless it is nil.
func yields(entries []format.Entry, err error) iter.Seq2[format.Entry, error] {
	return func(yield func(format.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(format.Entry{}, err)
		}
	}
}

// Merge keeps the later TAT of what the tree, the journal and the entries have, in
// whatever order they come. After an error it has changed nothing.
func TestMerge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func(n int) (entries []format.Entry, latest map[Key]int64) {
		latest = map[Key]int64{}
		for range n {
			e := entry(Key{[]uint16{0, 1, 300}[random.IntN(3)], fmt.Sprint("6:", random.IntN(n))}, 1+random.Int64N(1<<60))
			entries = append(entries, e)
			latest[keyOf(e)] = max(latest[keyOf(e)], e.TAT)
		}
		return entries, latest
	}
	for _, n := range []int{0, 1, mergeSave - 1, mergeSave, 2*mergeSave + 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := openStore(t, storePath(t))
			put := func() map[Key]int64 {
				_, latest := some(2000)
				var entries []format.Entry
				for k, tat := range latest {
					entries = append(entries, entry(k, tat))
				}
				s.put(t, entries...)
				return latest
			}
			want := put()
			require.NoError(t, s.checkpoint())
			maps.Copy(want, put())

			entries, latest := some(n)
			err := s.Merge(yields(entries, errFault), func(format.Entry) {})
			require.ErrorIs(t, err, errFault)
			s.sameAs(t, want)

			saved, changed := map[Key]bool{}, map[Key]bool{}
			require.NoError(t, s.Merge(yields(entries, nil), func(e format.Entry) { saved[keyOf(e)] = true }))
			for k, tat := range latest {
				if tat > want[k] {
					want[k], changed[k] = tat, true
				}
			}
			require.Equal(t, changed, saved)
			s.sameAs(t, want)
			requireCrash(t, s, want)
			require.NoError(t, s.Close())
			require.Empty(t, temporaries(t, s))
		})
	}
}
