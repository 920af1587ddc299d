package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// TestTour replays the sessions in docs/tour.md and README.md. A shell runs each
// line after a "$ ", and must print the lines below it. In the tour, a block
// after a line "`NAME`:" is a file. Without the tag long, lines that need no shell
// run in this process.
func TestTour(t *testing.T) {
	skipOnWindows(t, "no sh")
	t.Run("tour", func(t *testing.T) {
		dir := t.TempDir()
		replaySession(t, filepath.Join("..", "..", "docs", "tour.md"), dir, 15)
		picture, err := os.ReadFile(filepath.Join(dir, "overload.svg"))
		require.NoError(t, err)
		shown := filepath.Join("..", "..", "docs", "overload.svg")
		if *updateTour {
			require.NoError(t, os.WriteFile(shown, picture, 0o600))
		}
		want, err := os.ReadFile(shown)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(picture))
	})
	t.Run("README", func(t *testing.T) {
		replaySession(t, filepath.Join("..", "..", "README.md"), t.TempDir(), 5)
	})
}

// noShell matches commands that mean the same without a shell.
var noShell = regexp.MustCompile(`^stint [a-zA-Z0-9 ./:,=-]+$`)

// replaySession replays a session of more than this many commands in dir.
func replaySession(t *testing.T, tour, dir string, least int) {
	text, err := os.ReadFile(tour)
	require.NoError(t, err)
	bin := commandDir(t)
	stateHome(t)

	t.Setenv(runMain, "1")
	shell := func(line string) string {
		if !testlength.Long && noShell.MatchString(line) {
			back, err := os.Getwd()
			require.NoError(t, err)
			require.NoError(t, os.Chdir(dir))
			defer func() { require.NoError(t, os.Chdir(back)) }()
			var out bytes.Buffer
			run(t.Context(), strings.Fields(line)[1:], strings.NewReader(""), &out, &out)
			return out.String()
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C", "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if !errors.As(err, new(*exec.ExitError)) {
			require.NoError(t, err)
		}
		return string(out)
	}

	parts := strings.Split("\n"+string(text), "\n```")
	commands := 0
	for i := 1; i < len(parts); i += 2 {
		language, block, _ := strings.Cut(parts[i], "\n")
		if m := regexp.MustCompile("`([a-z.]+)`:\\s*$").FindStringSubmatch(parts[i-1]); m != nil {
			require.NoError(t, os.WriteFile(filepath.Join(dir, m[1]), []byte(block+"\n"), 0o600))
			continue
		}
		if language != "console" {
			continue
		}
		parts[i] = language
		for _, step := range regexp.MustCompile(`(?m)^\$ `).Split(block, -1)[1:] {
			line, want, _ := strings.Cut(step+"\n", "\n")
			for strings.HasSuffix(line, `\`) { // it goes on
				var more string
				more, want, _ = strings.Cut(want, "\n")
				line += "\n" + more
			}
			commands++
			got := strings.TrimSpace(shell(line))
			parts[i] += strings.TrimRight("\n$ "+line+"\n"+got, "\n")
			if !*updateTour {
				assert.Equal(t, masked(strings.TrimSpace(want)), masked(got), "$ %s", line)
			}
		}
	}
	assert.Greater(t, commands, least)
	if *updateTour {
		require.NoError(t, os.WriteFile(tour, []byte(strings.TrimPrefix(strings.Join(parts, "\n```"), "\n")), 0o600))
	}
}

var updateTour = flag.Bool("update-tour", false, "write what the commands of the sessions print into the documents")

// masks replace text that differs between sessions.
var masks = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	// After a moment, "full in 8h" is "full in 7h59m".
	{regexp.MustCompile(`((?:full|retry|next) +in|held for) [0-9][0-9a-z.]*`), "$1 TIME"},
	{regexp.MustCompile(`\b(at|until) [0-9-]{10} [0-9:]{8} UTC`), "$1 INSTANT"},
	{regexp.MustCompile(`\bfor [0-9][0-9a-z.]*, until`), "for TIME, until"},
	{regexp.MustCompile(`[0-9.]+ [KM]iB`), "SIZE"},
	{regexp.MustCompile(`"(re[a-z]+_after_ns)":[0-9]+`), `"$1":NANOSECONDS`},
}

func masked(s string) string {
	for _, m := range masks {
		s = m.pattern.ReplaceAllString(s, m.mask)
	}
	return s
}
