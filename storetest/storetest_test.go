package storetest_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/storetest"
)

func TestMemStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) stint.Store { return stint.NewMemStore() })
}

func TestOpenBolt(t *testing.T) {
	storetest.Run(t, func(t *testing.T) stint.Store {
		s, err := stint.OpenBolt(filepath.Join(t.TempDir(), "buckets.db"), stint.Names{1: {Label: "one"}}, nil)
		require.NoError(t, err)
		return s
	})
}

func TestGobStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) stint.Store {
		s, err := openGob(filepath.Join(t.TempDir(), "buckets.gob"))
		require.NoError(t, err)
		return s
	})
}

// The Stores of this module have labels, so that Run does not skip the names.
func TestLabels(t *testing.T) {
	file, err := stint.OpenBolt(filepath.Join(t.TempDir(), "labels.db"), nil, nil)
	require.NoError(t, err)
	for _, store := range []stint.Store{stint.NewMemStore(), file} {
		require.NoError(t, store.Declare(stint.Names{1: {Label: "one"}}))
		require.ErrorIs(t, store.Declare(stint.Names{1: {Label: "another"}}), stint.ErrNameMismatch)
		require.NoError(t, store.Close())
	}
}
