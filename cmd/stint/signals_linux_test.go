package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
)

// A command that waits for another process to close the file ends at a signal.
func TestInterruptedWhileLocked(t *testing.T) {
	db := serveDB(t)
	store, err := dbfile.Open(db, nil, nil)
	require.NoError(t, err)
	defer store.Close()
	export := write(t, "a.jsonl", `{"stint":1,"names":{"1":"default"}}`+"\n")
	for _, tc := range []struct {
		args   string
		status int // -1 if the signal ended it
	}{
		{"serve", console.StatusDone},
		{"compact", -1},
		{"reset --all", -1},
		{"import " + export, -1},
		{"allow --limit 1/1h a", -1},
	} {
		t.Run(strings.Fields(tc.args)[0], func(t *testing.T) {
			cmd := process(t, append(strings.Fields(tc.args), "--db", db, "--lock-timeout", "1h")...)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			eventually(t, func() bool { return hasOpen(t, cmd.Process.Pid, db) })
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			if err := cmd.Wait(); err != nil {
				require.ErrorAs(t, err, new(*exec.ExitError))
			}
			assert.Equal(t, tc.status, cmd.ProcessState.ExitCode())
		})
	}
}

// hasOpen reports whether a process has a file open.
func hasOpen(t *testing.T, pid int, path string) bool {
	fds, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "fd", "*"))
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			return true
		}
	}
	return false
}
