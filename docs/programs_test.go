package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrograms pastes each program of the documents into a module that the
// commands of the README made, and compares what the program prints. A second
// text block is what it prints when it is run again.
func TestPrograms(t *testing.T) {
	programs := 0
	for _, path := range documents(t) {
		blocks := readBlocks(t, path)
		for i, b := range blocks {
			if !b.isProgram() {
				continue
			}
			programs++
			t.Run(fmt.Sprintf("%s %d", filepath.Base(path), programs), func(t *testing.T) {
				t.Parallel()
				program := compile(t, b.text)
				for _, want := range blocks[i+1:] {
					if want.language != "text" {
						break
					}
					cmd := exec.Command(program)
					cmd.Dir = filepath.Dir(program)
					out, err := cmd.CombinedOutput()
					require.NoError(t, err, string(out))
					assert.Equal(t, want.text, string(out))
				}
			})
		}
	}
	assert.NotZero(t, programs)
}

// compile returns the path of the program, which is alone in its directory.
func compile(t *testing.T, source string) string {
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	program := filepath.Join(t.TempDir(), "program")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	setup := blocksRunBy(t, "../README.md", "TestPrograms")
	require.Len(t, setup, 1)
	var commands [][]string
	for line := range strings.Lines(setup[0]) {
		args := strings.Fields(line)
		require.Equal(t, "go", args[0])
		args[len(args)-1] = strings.Replace(args[len(args)-1], "../stint", root, 1)
		commands = append(commands, args[1:])
	}
	for _, args := range append(commands, []string{"build", "-mod=mod", "-ldflags=-w", "-o", program, "."}) {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %v: %s", args, out)
	}
	return program
}
