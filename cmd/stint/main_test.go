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
)

func TestHelp(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		assert.NotEmpty(t, cmd.Short, cmd.CommandPath())
		assert.Contains(t, cmd.Example, "  stint ", cmd.CommandPath())
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		r := runArgs(t, args...)
		assert.Equal(t, 0, r.status)
		assert.Contains(t, r.stdout, cmd.Example)
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
