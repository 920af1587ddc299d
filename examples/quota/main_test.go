package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) { subprocess.Main(m, main) }

// program returns a run of the program, in a directory that keeps its file.
func program(t *testing.T, dir string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := subprocess.Command(t.Context(), self, args...)
	cmd.Dir = dir
	return cmd
}

// What a program has used is in the file when it prints a line, so a kill loses
// none of it.
func TestQuota(t *testing.T) {
	dir := t.TempDir()
	out, err := program(t, dir).Output()
	require.NoError(t, err)
	require.Regexp(t, `^call 1 of 10000, resets on 1 [A-Z][a-z]+, 00:00 Pacific\n$`, string(out))

	used := 1
	for range 3 {
		p := subprocess.Begin(t, program(t, dir, "-n", "1000000"))
		for range 5 {
			p.ReadLine(t)
			used++
		}
		require.NoError(t, p.Cmd.Process.Kill())
		for p.Lines.Scan() && strings.HasSuffix(p.Lines.Text(), "Pacific") { // printed before the kill
			used++
		}
		require.Error(t, p.Cmd.Wait())
	}
	out, err = program(t, dir).Output()
	require.NoError(t, err)
	var call int
	_, err = fmt.Sscanf(string(out), "call %d of 10000", &call)
	require.NoError(t, err)
	require.Greater(t, call, used, "nothing that was printed is forgotten")
	require.LessOrEqual(t, call, used+1+3, "a kill can hit a call that was not printed yet")

	out, err = program(t, dir, "-file", filepath.Join(dir, "small.db"), "-quota", "2", "-n", "3").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 75, exit.ExitCode())
	require.Contains(t, string(out), "not sent: the quota is used up: it resets on 1 ")
}
