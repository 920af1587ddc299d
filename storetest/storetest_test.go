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
