package main

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.svg")
	require.NoError(t, replaceFile(path, []byte("old")))
	require.NoError(t, replaceFile(path, []byte("new")))
	require.Error(t, replaceFile(filepath.Join(dir, "no", "x.svg"), nil))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	require.Error(t, replaceFile(filepath.Join(dir, "d"), nil))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "nothing is left behind")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "new", string(content))
}

func TestStateDir(t *testing.T) {
	db := stateHome(t)
	dir, err := stateDir()
	require.NoError(t, err)
	assert.Equal(t, filepath.Dir(db), dir)
	if runtime.GOOS != "linux" {
		return
	}
	home := filepath.Dir(filepath.Dir(db))
	for _, state := range []string{"", "relative"} {
		t.Setenv("XDG_STATE_HOME", state)
		dir, err = stateDir()
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(home, ".local", "state", "stint"), dir)
	}
	t.Setenv("HOME", "")
	r := runArgs(t, "allow", "--limit", "3/1m", "alice")
	assert.Equal(t, 2, r.status)
	assert.Contains(t, r.stderr, "name the file with --db")
}
