package away

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

const perID stint.Name = 1

// A home without a file stores a bounded number of debts, and no seen buckets.
func TestDebtStore(t *testing.T) {
	t.Parallel()
	s := newDebtStore(2)
	all := func() (n int) {
		for c, err := range s.All(perID | ownBit) {
			require.NoError(t, err)
			tat, err := s.Load(c.Key)
			require.NoError(t, err)
			require.Equal(t, c.TAT, tat)
			n++
		}
		return n
	}
	a, b, c := OwnKey(perID.Key("a")), OwnKey(perID.Key("b")), OwnKey(perID.Key("c"))
	require.NoError(t, s.Save([]stint.Change{{Key: a, TAT: 1}, {Key: b, TAT: 2}, {Key: perID.Key("a"), TAT: 3}}))
	require.Equal(t, 2, all())
	tat, _ := s.Load(perID.Key("a"))
	require.Zero(t, tat)
	require.NoError(t, s.Save([]stint.Change{{Key: b, TAT: 4}, {Key: c, TAT: 5}}))
	require.Equal(t, 2, all())
	tat, _ = s.Load(c)
	require.EqualValues(t, 5, tat, "the newest stays")
	require.NoError(t, s.Save([]stint.Change{{Key: c}}))
	require.Equal(t, 1, all())
	require.Len(t, s.keys, 1)
}
