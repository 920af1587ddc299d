package stint

import (
	"iter"
	"testing"

	"github.com/stretchr/testify/require"
)

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
