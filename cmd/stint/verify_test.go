package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Only bbolt's own check finds some damage, and it may end its process.
func TestAskBbolt(t *testing.T) {
	t.Setenv(runMain, "1")
	path := filepath.Join(t.TempDir(), "stint.db")
	require.NoError(t, runArgsErr(t, "allow", "--limit", "3/1h", "alice", "--db", path))
	require.NoError(t, askBbolt(t.Context(), path))
	garbage := write(t, "garbage.db", strings.Repeat("not a bbolt file\n", 1000))
	err := askBbolt(t.Context(), garbage)
	require.ErrorIs(t, err, stint.ErrCorrupt)
	require.ErrorContains(t, err, "bbolt's check ended with exit status")
}
