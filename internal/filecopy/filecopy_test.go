package filecopy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	for _, content := range [][]byte{
		nil,
		[]byte("short"),
		make([]byte, 5000),
		append(make([]byte, 3*len(zeros)), "the end"...),
		append(bytes.Repeat([]byte("x"), 9000), make([]byte, 1<<20)...),
	} {
		require.NoError(t, Write(from, content))
		require.NoError(t, Copy(from, to))
		for _, path := range []string{from, to} {
			require.True(t, bytes.Equal(content, Read(t, path)), "%s: %d bytes", path, len(content))
		}
	}
	require.ErrorIs(t, Copy(from+".none", to), os.ErrNotExist)
}
