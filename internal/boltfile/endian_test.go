package boltfile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
)

// TestOpenOtherByteOrder reverses each word of the meta pages, as a machine of
// the other byte order would write them.
func TestOpenOtherByteOrder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "buckets.db")
	require.NoError(t, Make(path, OS(), func(f *File) error {
		return f.Update(func(tx *bolt.Tx) error { return LayOut(tx, nil) })
	}))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	for page := range 2 {
		meta := b[page*bboltpage.Size:]
		at := 0
		for _, word := range []int{8, 2, 2, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8} {
			slices.Reverse(meta[at : at+word])
			at += word
		}
	}
	require.NoError(t, os.WriteFile(path, b, 0o600))
	for _, readOnly := range []bool{false, true} {
		_, err = Open(path, Options{ReadOnly: readOnly})
		require.ErrorIs(t, err, format.ErrFormat)
		require.ErrorContains(t, err, "written by a machine of the other byte order; use stint export there")
	}
	there, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b, there)
}
