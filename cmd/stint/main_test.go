package main

import (
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/display"
)

func TestHelp(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		assert.NotEmpty(t, cmd.Short, cmd.CommandPath())
		assert.Contains(t, cmd.Example, "  stint ", cmd.CommandPath())
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		r := runArgs(t, args...)
		assert.Equal(t, 0, r.status)
		_, shown, _ := strings.Cut(r.stdout, "\nExamples:\n")
		shown, _, _ = strings.Cut(shown, "\n\n")
		assert.Equal(t, commandsOf(cmd.Example), commandsOf(shown), cmd.CommandPath())
		for line := range strings.Lines(r.stdout) {
			assert.LessOrEqual(t, display.Wide(line)-1, 80, "%s: %s", cmd.CommandPath(), line)
		}
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(newRoot())
}

func TestRoff(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "--wait": `\-\-wait`, ".hidden": `\&.hidden`, "'$x'": `\(aq$x\(aq`, `a\b`: `a\eb`,
		"^~`": `\(ha\(ti\(ga`,
	} {
		assert.Equal(t, want, roff(in))
	}
	assert.Equal(t, `"a \(dqb\(dq"`, roffQuoted(`a "b"`))
}

func TestVersion(t *testing.T) {
	r := runArgs(t, "--version")
	assert.Equal(t, 0, r.status)
	assert.Regexp(t, `^stint version .*go1\.\d+.*\n$`, r.stdout)
}

func TestBuild(t *testing.T) {
	b := newBuild(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"},
		{Key: "vcs.time", Value: "2026-01-01T00:00:00Z"},
	}})
	assert.Regexp(t, `^v1\.2\.3 abc modified go1\.`, b.String())
	assert.Equal(t, "2026-01-01T00:00:00Z", b.Time)
	assert.Regexp(t, `^unknown go1\.`, newBuild(nil).String())
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

func TestManMakesDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share", "man1")
	r := runArgs(t, "man", dir)
	require.Equal(t, 0, r.status, r.stderr)
	assert.FileExists(t, filepath.Join(dir, "stint-replay.1"))
}
