package filecopy

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
)

// New writes a file that has this content, and returns its path.
func New(t testing.TB, content []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.db")
	require.NoError(t, Write(path, content))
	return path
}

// Of makes a copy of a file, as Copy does, and returns its path.
func Of(t testing.TB, path string) (copied string) {
	t.Helper()
	copied = filepath.Join(t.TempDir(), "store.db")
	require.NoError(t, Copy(path, copied))
	return copied
}

// Read returns the content of a file.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}

// Edit changes a file with bbolt alone, behind stint's back.
func Edit(t testing.TB, path string, change func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, db.Update(change))
	require.NoError(t, db.Close())
}

// Commits returns the number of a file's last transaction.
func Commits(t testing.TB, path string) uint64 {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	m, err := bboltpage.ReadMeta(file)
	require.NoError(t, err)
	return m.Tx
}
