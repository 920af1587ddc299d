package stint

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemStore(t *testing.T) {
	testStore(t, func(*testing.T) Store { return NewMemStore() })
}

func TestBoltStore(t *testing.T) {
	testStore(t, func(t *testing.T) Store {
		return openBolt(t, filepath.Join(t.TempDir(), "buckets.db"), Names{1: {Label: "one"}})
	})
}

// save saves, and fails the test if that fails.
func save(t testing.TB, s Store, changes ...Change) {
	t.Helper()
	require.NoError(t, s.Save(changes))
}

// load returns what the store has.
func load(t testing.TB, s Store, key Key) int64 {
	t.Helper()
	tat, err := s.Load(key)
	require.NoError(t, err)
	return tat
}

// collect returns all that the store has under a name.
func collect(t testing.TB, seq iter.Seq2[Change, error]) (all []Change) {
	t.Helper()
	for c, err := range seq {
		require.NoError(t, err)
		all = append(all, c)
	}
	return all
}

func tatsOf(changes []Change) map[Key]int64 {
	m := make(map[Key]int64, len(changes))
	for _, c := range changes {
		m[c.Key] = c.TAT
	}
	return m
}

// trickyIDs are ids that an encoding may confuse: with one another, or with
// what a store has for itself.
var trickyIDs = []string{
	"", "*", "**", "***", "*!", "!", "a", "a*", "*a", "ab", "aa", "A", "ä", ":", "a:b", "1:a", "2:", "0", "meta",
	"holds", "format",
	"\x00", "\x00\x00", "a\x00", "\xff", "\xff\xff", "\n", " ", "1", "10", "2",
	strings.Repeat("*", maxIDLen), strings.Repeat("x", maxIDLen), strings.Repeat("x", maxIDLen-1),
	strings.Repeat("\xff", maxIDLen),
}

// testStore is the contract of a Store. open returns an empty one.
func testStore(t *testing.T, open func(*testing.T) Store) {
	run := func(name string, f func(*testing.T, Store)) {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer func() { require.NoError(t, s.Close()) }()
			f(t, s)
		})
	}

	run("nothing", func(t *testing.T, s Store) {
		for _, name := range []Name{Unknown, 1, 2, math.MaxUint16} {
			require.Zero(t, load(t, s, name.Key("a")))
			require.Empty(t, collect(t, s.All(name)))
		}
		save(t, s)
		save(t, s, Change{Key{1, "a"}, 0}, Change{Key{7, "a"}, 0}, Change{Key{Unknown, "1:a"}, 0})
		require.Empty(t, collect(t, s.All(1)))
	})

	run("ids", func(t *testing.T, s Store) {
		names := []Name{1, 2, 10, math.MaxUint16, Unknown}
		want := make(map[Key]int64)
		var changes []Change
		for i, name := range names {
			for j, id := range trickyIDs {
				if name == Unknown {
					id = Key{1, id}.String() // longer than any id: 514 bytes
				}
				c := Change{Key{name, id}, int64(1000*i + j + 1)}
				changes = append(changes, c)
				want[c.Key] = c.TAT
			}
		}
		rand.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		save(t, s, changes...)
		got := make(map[Key]int64)
		for _, name := range names {
			all := collect(t, s.All(name))
			require.Len(t, all, len(trickyIDs), "none twice")
			maps.Copy(got, tatsOf(all))
			plain := slices.DeleteFunc(slices.Clone(all),
				func(c Change) bool { return strings.Count(c.Key.ID, "*") == len(c.Key.ID) })
			require.True(t, slices.IsSortedFunc(plain,
				func(a, b Change) int { return bytes.Compare([]byte(a.Key.ID), []byte(b.Key.ID)) }))
		}
		require.Equal(t, want, got)
		for key, tat := range want {
			require.Equal(t, tat, load(t, s, key), "%q", key)
		}
		for key := range want { // each by itself: the others stay
			save(t, s, Change{Key: key})
			require.Zero(t, load(t, s, key))
			delete(want, key)
			if len(want)%20 == 0 {
				clear(got)
				for _, name := range names {
					maps.Copy(got, tatsOf(collect(t, s.All(name))))
				}
				require.Equal(t, want, got)
			}
		}
	})

	run("values", func(t *testing.T, s Store) {
		for _, tat := range []int64{1, -1, math.MaxInt64, math.MinInt64, 1 << 56, 255, 256} {
			save(t, s, Change{Key{1, "a"}, tat})
			require.Equal(t, tat, load(t, s, Key{1, "a"}))
			require.Equal(t, []Change{{Key{1, "a"}, tat}}, collect(t, s.All(1)))
		}
	})

	run("save replaces, adds and deletes in one step", func(t *testing.T, s Store) {
		save(t, s, Change{Key{1, "replaced"}, 1}, Change{Key{1, "deleted"}, 2}, Change{Key{1, "kept"}, 3})
		save(t, s, Change{Key{2, "added"}, 7}, Change{Key{1, "deleted"}, 0}, Change{Key{1, "replaced"}, 4},
			Change{Key{1, "absent"}, 0})
		require.Equal(t, []Change{{Key{1, "kept"}, 3}, {Key{1, "replaced"}, 4}}, collect(t, s.All(1)))
		require.Equal(t, []Change{{Key{2, "added"}, 7}}, collect(t, s.All(2)))
	})

	run("what is saved is copied", func(t *testing.T, s Store) {
		changes := []Change{{Key{1, strings.Clone("b")}, 1}, {Key{1, "a"}, 2}}
		save(t, s, changes...)
		clear(changes)
		require.Equal(t, []Change{{Key{1, "a"}, 2}, {Key{1, "b"}, 1}}, collect(t, s.All(1)))
	})

	run("what is read is copied", func(t *testing.T, s Store) {
		var changes []Change
		for i := range 500 {
			changes = append(changes, Change{Key{1, fmt.Sprintf("%04d", i)}, int64(i + 1)})
		}
		save(t, s, slices.Clone(changes)...)
		read := collect(t, s.All(1))
		for round := range 20 { // pages are freed and written anew
			for i := range changes {
				changes[i].Key.ID = fmt.Sprintf("%04d", i)
				changes[i].TAT = int64(1_000_000 + round)
			}
			save(t, s, slices.Clone(changes)...)
		}
		for i, c := range read {
			require.Equal(t, Change{Key{1, fmt.Sprintf("%04d", i)}, int64(i + 1)}, c)
		}
	})

	run("all of many, while saved to", func(t *testing.T, s Store) {
		const n = 3 * 4096 // exactly as many as are read at a time, three times
		var changes []Change
		for i := range n {
			changes = append(changes, Change{Key{2, fmt.Sprintf("%06d", 2*i)}, int64(i + 1)})
		}
		save(t, s, slices.Clone(changes)...)
		require.Equal(t, changes, collect(t, s.All(2)))

		seen := make(map[Key]int64)
		last := ""
		for c, err := range s.All(2) {
			require.NoError(t, err)
			require.Less(t, last, c.Key.ID, "in order, and none twice")
			last = c.Key.ID
			seen[c.Key] = c.TAT
			if len(seen)%1000 == 0 { // changes ahead, behind, and to the entry that was read last
				var id int
				fmt.Sscanf(c.Key.ID, "%d", &id)
				save(t, s, Change{Key{2, fmt.Sprintf("%06d", id+1)}, 1}, Change{Key{2, c.Key.ID}, 0},
					Change{Key{2, fmt.Sprintf("%06d", max(1, id-501))}, 1})
			}
		}
		for _, c := range changes {
			require.Equal(t, c.TAT, seen[c.Key], "a bucket that no save touched is there: %v", c.Key)
		}

		for range s.All(2) { // a caller that has seen enough
			break
		}
		save(t, s, Change{Key{2, "x"}, 1})
	})

	run("from many goroutines", func(t *testing.T, s Store) {
		const goroutines, rounds = 8, 30
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				pair := []Key{{1, fmt.Sprintf("%d-a", g)}, {2, fmt.Sprintf("%d-b", g)}}
				for i := range rounds {
					if err := s.Save([]Change{{pair[0], int64(i + 1)}, {pair[1], int64(i + 1)}}); err != nil {
						t.Error(err)
					}
					for _, key := range pair {
						if tat, err := s.Load(key); err != nil || tat != int64(i+1) {
							t.Errorf("%v: %d, %v, want %d", key, tat, err, i+1)
						}
					}
					for _, err := range s.All(1) {
						if err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		for name := Name(1); name <= 2; name++ {
			all := collect(t, s.All(name))
			require.Len(t, all, goroutines)
			for _, c := range all {
				require.EqualValues(t, rounds, c.TAT)
			}
		}
	})
}
