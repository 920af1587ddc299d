package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/source"

	"github.com/stint-go/stint/internal/display"
)

// Examples can be pasted from the help in a terminal of any width. No line of the
// help is wider than 80 columns without a terminal, or than the terminal.
func TestHelp(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		assert.NotEmpty(t, cmd.Short, cmd.CommandPath())
		assert.Contains(t, cmd.Example, "  stint ", cmd.CommandPath())
		help := succeeds(t, append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		for line := range strings.Lines(help) {
			assert.LessOrEqual(t, display.Wide(line)-1, 80, "%s: %s", cmd.CommandPath(), line)
		}
		shown := map[int]string{0: help}
		cmd.InitDefaultHelpFlag()
		for _, columns := range []int{40, 60, 80, 200} {
			shown[columns] = helpText(cmd, columns)
			fits(t, helpText(cmd, 0), shown[columns], columns)
		}
		for columns, text := range shown {
			_, examples, _ := strings.Cut(text, "\nExamples:\n")
			examples, _, _ = strings.Cut(examples, "\n\n")
			assert.Equal(t, commandsOf(cmd.Example), commandsOf(examples), "%s, %d columns", cmd.CommandPath(), columns)
		}
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(newRoot(nil))
}

// A command is the same whether it is made alone or with all others.
func TestOneCommand(t *testing.T) {
	for name := range commands {
		for _, arg := range []string{"--help", "--no-such-flag", "--version", "-h", "no such argument"} {
			var alone, all bytes.Buffer
			for root, out := range map[*cobra.Command]*bytes.Buffer{newRoot([]string{name}): &alone, newRoot(nil): &all} {
				root.SetArgs([]string{name, arg, "--no-such-flag"}) // so that it does nothing
				root.SetOut(out)
				root.SetErr(out)
				err := root.ExecuteContext(t.Context())
				fmt.Fprint(out, err)
			}
			assert.Equal(t, all.String(), alone.String(), "%s %s", name, arg)
		}
	}
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
	dir, err := source.StateDir()
	require.NoError(t, err)
	assert.Equal(t, filepath.Dir(db), dir)
	if runtime.GOOS != "linux" {
		return
	}
	home := filepath.Dir(filepath.Dir(db))
	for _, state := range []string{"", "relative"} {
		t.Setenv("XDG_STATE_HOME", state)
		dir, err = source.StateDir()
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(home, ".local", "state", "stint"), dir)
	}
	t.Setenv("HOME", "")
	fails(t, 2, "name the file with --db", "allow", "--limit", "3/1m", "alice")
}
