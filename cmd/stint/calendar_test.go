//go:build long

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The version before quotas that follow the calendar opens a file with such
// buckets. Under a rolling limit of some seconds each of them is full or empty.
func TestCalendarBefore(t *testing.T) {
	const before = "150e89c"
	if exec.Command("git", "cat-file", "-e", before+"^{commit}").Run() != nil {
		t.Skip("the history does not have the version before")
	}
	dir := t.TempDir()
	tree, file := filepath.Join(dir, "before"), filepath.Join(dir, "quota.db")
	run := func(in, name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = in
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil {
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode(), "%v: %s", args, out) // denied
		}
		return string(out)
	}
	run(".", "git", "worktree", "add", "-q", "--detach", tree, before)
	defer run(".", "git", "worktree", "remove", "--force", tree)
	old, now := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	run(tree, "go", "build", "-o", old, "./cmd/stint")
	run(".", "go", "build", "-o", now, ".")

	for _, unit := range []string{"month", "year"} {
		limit := "10/" + unit + "@+12:00"
		for range 3 {
			run(dir, now, "allow", "--db", file, "--limit", limit, unit+"-some")
		}
		run(dir, now, "allow", "--db", file, "--limit", limit, "--cost", "10", unit+"-all")
	}
	listed := run(dir, old, "list", "--db", file, "--limit", "10/10s")
	for line := range strings.Lines(listed) {
		require.Contains(t, line, " 0 of 10 left", "empty until the end of the period, or full and not listed")
	}
	for _, id := range []string{"month-some", "month-all", "year-some", "year-all", "other"} {
		out := run(dir, old, "allow", "--db", file, "--limit", "10/10s", id)
		require.Regexp(t, `^(allowed  \S+  9 of 10 left|denied  \S+  0 of 10 left)`, out)
	}
	require.Contains(t, run(dir, now, "show", "--db", file, "--limit", "10/year@+12:00", "other"), "10 of 10 left")
}
