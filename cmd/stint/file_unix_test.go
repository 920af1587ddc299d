//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// replaceFile writes to a pipe, and follows a link. It replaces neither.
func TestReplaceFileThatIsNone(t *testing.T) {
	dir := t.TempDir()
	pipe, real, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "real"), filepath.Join(dir, "link")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	got := make(chan string)
	go func() {
		content, _ := os.ReadFile(pipe)
		got <- string(content)
	}()
	require.NoError(t, replaceFile(pipe, []byte("new")))
	info, err := os.Lstat(pipe)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeNamedPipe, "the pipe was replaced by a file")
	assert.Equal(t, "new", <-got)

	require.NoError(t, os.WriteFile(real, []byte("old"), 0o600))
	require.NoError(t, os.Symlink(real, link))
	require.NoError(t, replaceFile(link, []byte("new")))
	info, err = os.Lstat(link)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink, "the link was replaced by a file")
	content, err := os.ReadFile(real)
	require.NoError(t, err)
	assert.Equal(t, "new", string(content))
	info, err = os.Stat(real)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}
