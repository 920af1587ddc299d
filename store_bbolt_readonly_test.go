package stint

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestReadOnly reads a file whose journal is not home yet, and leaves it as it is, whatever is asked of it.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "buckets.db")
	names := Names{1: {Label: "One"}}
	s := openBolt(t, path, names)
	save(t, s, Change{Key{1, "home"}, 1 << 60}, Change{Key{1, "both"}, 1 << 60}, Change{Key{1, "gone"}, 1 << 60})
	require.NoError(t, s.append([]Change{{Key{1, "journal"}, 1 << 61}, {Key{1, "both"}, 1 << 61}, {Key{1, "gone"}, 0}}))
	abandon(t, s)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	past := time.Unix(1_000_000_000, 0)
	require.NoError(t, os.Chtimes(path, past, past))

	ro := &BoltOptions{ReadOnly: true, LockTimeout: time.Millisecond}
	r, err := OpenBolt(path, Names{1: {Label: "One"}, 2: {Label: "Two"}}, ro)
	require.NoError(t, err)
	require.Equal(t, map[Name]string{1: "One"}, r.Names(), "what the file does not have is not entered")
	_, err = OpenBolt(path, names, &BoltOptions{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrLocked)
	other, err := OpenBolt(path, nil, ro)
	require.NoError(t, err, "several may read")
	require.NoError(t, other.Close())

	require.Equal(t, []Change{{Key{1, "both"}, 1 << 61}, {Key{1, "home"}, 1 << 60}, {Key{1, "journal"}, 1 << 61}}, collect(t, r.All(1)))
	require.Equal(t, int64(1<<61), load(t, r, Key{1, "both"}))
	require.Zero(t, load(t, r, Key{1, "gone"}))
	require.EqualValues(t, 3, r.Stats().Journaled)
	_, err = r.Number("Two")
	require.ErrorIs(t, err, ErrUnknownName)
	n, err := r.Number("One")
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	for what, act := range map[string]func() error{
		"save":       func() error { return r.Save([]Change{{Key{1, "new"}, 1}}) },
		"append":     func() error { return r.append([]Change{{Key{1, "new"}, 1}}) },
		"compact":    r.Compact,
		"checkpoint": r.checkpoint,
	} {
		require.ErrorContains(t, act(), "read only", what)
	}
	require.NoError(t, r.sweep(1<<62))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())

	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, past, info.ModTime())
	require.Equal(t, []string{"buckets.db"}, listDir(t, dir))

	_, err = OpenBolt(path, Names{1: {Label: "Else"}}, ro)
	require.ErrorIs(t, err, ErrNameMismatch)
	_, err = OpenBolt(filepath.Join(dir, "none.db"), nil, ro)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, []string{"buckets.db"}, listDir(t, dir), "none is made")

	held := openBolt(t, path, nil)
	_, err = OpenBolt(path, nil, ro)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, held.Close())
}
