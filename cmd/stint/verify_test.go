package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/maintain"
)

// Only bbolt's own check finds some damage, and it may end its process. But a
// process that is killed found nothing.
func TestAskBbolt(t *testing.T) {
	t.Setenv(runMain, "1")
	path := filepath.Join(t.TempDir(), "stint.db")
	succeeds(t, "allow", "--limit", "3/1h", "alice", "--db", path)
	require.NoError(t, maintain.AskBbolt(pageCheck(t.Context(), path), path))
	garbage := write(t, "garbage.db", strings.Repeat("not a bbolt file\n", 1000))
	err := maintain.AskBbolt(pageCheck(t.Context(), garbage), garbage)
	require.ErrorIs(t, err, stint.ErrCorrupt)
	require.ErrorContains(t, err, "bbolt's check ended with exit status")

	if runtime.GOOS == "windows" { // there a killed process ends with an exit status
		return
	}
	defer func(was func(context.Context, string, ...string) *exec.Cmd) { commandOf = was }(commandOf)
	commandOf = func(ctx context.Context, _ string, _ ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "kill -9 $$")
	}
	err = maintain.AskBbolt(pageCheck(t.Context(), path), path)
	require.EqualError(t, err, "bbolt's check of "+path+" ended with signal: killed")
	require.NotErrorIs(t, err, stint.ErrCorrupt, "it says nothing about the file")
}
