package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/testlength"
)

// Three of the processes that start at the same moment are admitted, and none
// fails because another has the lock or because the file is half made.
func TestProcessesAtOnce(t *testing.T) {
	skipOnWindows(t, "no sh")
	stateHome(t)
	ran := filepath.Join(t.TempDir(), "ran")
	for name, c := range map[string]struct {
		args   []string
		denied int
	}{
		"allow": {[]string{"allow", "--limit", "3/1h", "--lock-timeout", "1m", "alice"}, 1},
		"run":   {[]string{"run", "--limit", "3/1h", "backup", "--", "sh", "-c", "echo x >>" + ran}, 75},
	} {
		t.Run(name, func(t *testing.T) {
			const burst = 3
			processes := 5
			if testlength.Long {
				processes = 10
			}
			cmds := make([]*exec.Cmd, processes)
			for i := range cmds {
				cmds[i] = process(t, c.args...)
				require.NoError(t, cmds[i].Start())
			}
			statuses := map[int]int{}
			for _, cmd := range cmds {
				_ = cmd.Wait()
				statuses[cmd.ProcessState.ExitCode()]++
			}
			assert.Equal(t, map[int]int{0: burst, c.denied: processes - burst}, statuses)
		})
	}
	content, err := os.ReadFile(ran)
	require.NoError(t, err)
	assert.Equal(t, "x\nx\nx\n", string(content))
}

// Each of the processes that wait for a token of one file runs.
func TestWaitProcesses(t *testing.T) {
	stateHome(t)
	processes := 5
	if testlength.Long {
		processes = 100
	}
	if testing.Short() {
		processes = min(processes, 20)
	}
	cmds := make([]*exec.Cmd, processes)
	for i := range cmds {
		cmds[i] = process(t, "run", "--wait", "--lock-timeout", "10m",
			"--limit", "20/1s", "--burst", "1", "a", "--", "echo", "ran")
		require.NoError(t, cmds[i].Start())
	}
	for _, cmd := range cmds {
		assert.NoError(t, cmd.Wait())
	}
}

func TestRunHeld(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	succeeds(t, "allow", "--db", db, "--limit", "1/1h", "another")
	succeeds(t, "hold", "--db", db, "--for", "1h", "a")
	r := runArgs(t, "run", "--wait", "--timeout", "59m", "--db", db, "--limit", "1/1h", "a", "--", "echo")
	assert.Equal(t, 75, r.status)
	assert.Regexp(t, `^stint: a is denied by 1/1h: retry in \S+, or wait longer with --timeout\n$`, r.stderr)
}

// A process that waits for the lock or for its tokens ends at once, and has spent
// nothing.
func TestRunInterrupted(t *testing.T) {
	skipOnWindows(t, "a process cannot be sent a signal")
	db := filepath.Join(t.TempDir(), "stint.db")
	args := []string{"run", "--wait", "--db", db, "--limit", "1/1h", "a", "--", "echo", "ran"}
	tat := func() int64 {
		store, err := dbfile.Open(db, nil, &stint.BoltOptions{LockTimeout: time.Minute})
		require.NoError(t, err)
		defer store.Close()
		tat, err := store.Load(stint.Name(1).Key("a"))
		require.NoError(t, err)
		return tat
	}
	require.Equal(t, "ran\n", runProcess(t, args...).stdout)
	spent := tat()
	r := interrupted(t, process(t, args...), changed(t, db))
	assert.Equal(t, result{130, "", "stint: interrupted: the command was not run, and no token was spent\n"}, r)
	assert.Equal(t, spent, tat())

	owner, err := dbfile.Open(db, nil, nil)
	require.NoError(t, err)
	r = interrupted(t, process(t, args...)) // an early signal ends it before it spends anything
	require.NoError(t, owner.Close())
	assert.Contains(t, []int{130, -1}, r.status)
	assert.Empty(t, r.stdout)
	assert.Equal(t, spent, tat())
}

// run passes signals on, and has the exit status of the command.
func TestRunPassesSignals(t *testing.T) {
	skipOnWindows(t, "a process cannot be sent a signal")
	stateHome(t)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		// A shell that waits in read may miss a signal that came just before.
		cmd := process(t, "run", "--limit", "9/1h", "a", "--",
			"sh", "-c", `trap "exit 7" INT TERM HUP QUIT; echo ready; while kill -0 $PPID; do :; done`)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ready\n", line)
		require.NoError(t, cmd.Process.Signal(s))
		_, err = io.Copy(io.Discard, stdout)
		require.NoError(t, err)
		_ = cmd.Wait()
		assert.Equal(t, 7, cmd.ProcessState.ExitCode(), "%v", s)
	}
}

// --timeout bounds the wait for the file too. If --lock-timeout ends first, the
// exit status is another.
func TestRunTimeoutLocked(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	owner, err := dbfile.Open(db, nil, nil)
	require.NoError(t, err)
	defer owner.Close()
	run := func(flags ...string) result {
		args := append([]string{"run", "--wait", "--db", db, "--limit", "1/1h"}, flags...)
		return runArgs(t, append(args, "a", "--", "echo", "ran")...)
	}
	r := run("--timeout", "1ms", "--lock-timeout", "2s")
	assert.Equal(t, 75, r.status)
	assert.Empty(t, r.stdout)
	assert.Regexp(t, `locked.*, or wait longer with --timeout\n$`, r.stderr)
	assert.Equal(t, 3, run("--timeout", "1h", "--lock-timeout", "1ms").status)
}

// A process waits in the queue of the program that has the file, and gives up
// its turn if it is interrupted. If the program closes the file, it waits on.
func TestRunAtOwner(t *testing.T) {
	skipOnWindows(t, "a process cannot be sent a signal")
	db := filepath.Join(t.TempDir(), "stint.db")
	key := orders.Key("a")
	owner := openOrders(t, db, stint.PerHour(1))
	server, err := hostlimit.Serve(owner, db, nil)
	require.NoError(t, err)
	defer server.Close()
	require.True(t, owner.Allow(key))
	waits := func() bool {
		for held := range owner.Held() {
			if held.Waiting > 0 {
				return true
			}
		}
		return false
	}
	for _, closes := range []bool{false, true} {
		steps, asked := []func() bool{waits}, (func() bool)(nil)
		if closes {
			steps = append(steps, func() bool {
				require.NoError(t, server.Close())
				require.NoError(t, owner.Flush()) // so that Close changes nothing
				asked = changed(t, db)            // while the command cannot open it
				require.NoError(t, owner.Close())
				return true
			}, func() bool { return asked() })
		}
		cmd := process(t, "run", "--wait", "--db", db, "--limit", "1/1h", "--name", "Orders", "a", "--", "echo", "ran")
		assert.Equal(t, result{130, "", "stint: interrupted: the command was not run, and no token was spent\n"},
			interrupted(t, cmd, steps...))
		if !closes {
			d, err := owner.Check(key, 1)
			require.NoError(t, err)
			assert.LessOrEqual(t, d.RetryAfter, time.Hour, "its turn was given back")
		}
	}
}

// interrupted starts a process, and interrupts it when each step, in turn, has
// been true.
func interrupted(t *testing.T, cmd *exec.Cmd, steps ...func() bool) result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	for i, step := range steps {
		if !seenBefore(ended, step) {
			t.Fatalf("it ended before step %d: %s", i, &stderr)
		}
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	<-ended
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// changed returns a function that reports whether a file has changed since. It
// does not lock the file: a process that asks for the lock again and again can
// keep others from it.
func changed(t *testing.T, path string) func() bool {
	t.Helper()
	content := func() []byte {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		return content
	}
	before := content()
	return func() bool { return !bytes.Equal(before, content()) }
}
