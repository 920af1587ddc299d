package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

// runMain in the environment makes the test binary the command. runServer,
// which names a file, makes it a program that has that file open.
const (
	runMain   = "STINT_TEST_RUN_MAIN"
	runServer = "STINT_TEST_RUN_SERVER"
)

func TestMain(m *testing.M) {
	commandOf = subprocess.Command
	if path := os.Getenv(runServer); path != "" {
		serveProgram(path)
	}
	if os.Getenv(runMain) != "" {
		main()
	}
	testscript.Main(m, map[string]func(){"stint": main})
}

// result is the outcome of a run of the command.
type result struct {
	status         int
	stdout, stderr string
}

// runWith runs the command in this process.
func runWith(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), append([]string{}, args...), stdin, &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

func runArgs(t *testing.T, args ...string) result {
	t.Helper()
	return runWith(t, strings.NewReader(""), args...)
}

// process returns the command, for a process of its own.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	heedSignals()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := subprocess.Command(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), runMain+"=1")
	return cmd
}

// commandDir returns a directory with the command in it, for PATH.
func commandDir(t *testing.T) string {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	var env []string
	if subprocess.Emulated() {
		env = append(env, runMain+"=1")
	}
	require.NoError(t, subprocess.Install(filepath.Join(dir, "stint"), self, env...))
	return dir
}

// heedSignals stops ignoring signals that a background job, or nohup, ignores.
// Processes that the tests start inherit that.
var heedSignals = sync.OnceFunc(func() {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
})

// runProcess runs the command in a process of its own.
func runProcess(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := process(t, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); !errors.As(err, new(*exec.ExitError)) {
		require.NoError(t, err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// homes are the variables that say where the user's files are.
var homes = []string{"HOME", "XDG_STATE_HOME", "LocalAppData"}

// stateHome makes a directory the user's home, and returns the path of the file
// that the command has there.
func stateHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range homes {
		t.Setenv(name, home)
	}
	if runtime.GOOS == "darwin" {
		home = filepath.Join(home, "Library", "Application Support")
	}
	return filepath.Join(home, "stint", "stint.db")
}

// write makes a file and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// object returns the JSON object in a line.
func object(t *testing.T, line string) (o map[string]any) {
	t.Helper()
	require.Equal(t, 1, strings.Count(line, "\n"), line)
	require.NoError(t, json.Unmarshal([]byte(line), &o), line)
	return o
}

// succeeds runs the command, which must succeed, and returns what it prints.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	r := runArgs(t, args...)
	require.Equal(t, 0, r.status, "%q: %s", args, r.stderr)
	return r.stdout
}

// fails runs the command, which must end with the status, and say want on stderr.
func fails(t *testing.T, status int, want string, args ...string) result {
	t.Helper()
	r := runArgs(t, args...)
	assert.Equal(t, status, r.status, "%q: %s", args, r.stderr)
	assert.Contains(t, r.stderr, want, "%q", args)
	return r
}

// skipOnWindows skips a test of what Windows lacks.
func skipOnWindows(t *testing.T, why string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip(why)
	}
}
