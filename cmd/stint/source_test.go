package main

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/source"
	"github.com/stint-go/stint/internal/subprocess"
)

const orders stint.Name = 6

// serveProgram is a program that has the file open and shares it, until it is killed.
// Alice has spent one of three tokens.
func serveProgram(path string) {
	limits, err := stint.NewLimits(
		stint.Names{orders: {Label: "Orders", Limit: stint.Limit{Burst: 3, Count: 3, Period: 3000 * time.Hour}}})
	check := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	check(err)
	lim, err := stint.Open(path, limits, nil)
	check(err)
	_, err = hostlimit.Serve(lim, path, nil)
	check(err)
	lim.Allow(orders.Key("alice"))
	check(lim.Flush())
	fmt.Println("serving")
	select {}
}

// openOrders opens a file with one limit, Orders.
func openOrders(t *testing.T, db string, limit stint.Limit) *stint.Limiter {
	t.Helper()
	limits, err := stint.NewLimits(stint.Names{orders: {Label: "Orders", Limit: limit}})
	require.NoError(t, err)
	lim, err := stint.Open(db, limits, nil)
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	return lim
}

// startServer starts a process that serves the file, and returns it.
func startServer(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := subprocess.Command(t.Context(), self)
	cmd.Env = append(os.Environ(), runServer+"="+path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "serving\n", line)
	return cmd
}

// The command acts through a program that has the file open, and says so. After
// the program was killed, it acts on the file.
func TestOwner(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "quota.db")
	server := startServer(t, db)
	pid := strconv.Itoa(server.Process.Pid)
	const limit = "--limit 3/3000h"
	n := 0
	steps := func(byProgram bool) {
		for _, step := range []struct {
			args   string
			status int
			stdout string // a regular expression
		}{
			{"check alice --cost 0 " + limit, 0, `allowed  alice  2 of 3 left, full in .*`},
			{"allow alice " + limit, 0, `allowed  alice  1 of 3 left, full in .*`},
			{"allow alice --cost 2 " + limit, 1, `denied  alice  1 of 3 left, retry in .*`},
			{"allow alice --cost 2 --limit 6/3000h", 0, `allowed  alice  0 of 6 left, full in .*`},
			{"refund alice --cost 6 --limit 6/3000h", 0, `refunded  alice  6 of 6 left`},
			{"allow alice " + limit, 0, `allowed  alice  2 of 3 left, full in .*`},
			{"allow bob --json " + limit, 0, `{"allowed":true,.*,"reset_after_ns":\d+PID}`},
			{"hold bob --for 24h", 0, `held  bob  for 24h, until .*`},
			{"hold carol --for 24h --json", 0, `{"name":"Orders","id":"carol","held_ns":86400000000000,"until":"[^"]+"PID}`},
			{"hold", 0, `Orders  bob    for (24h|23h59m), until .*\nOrders  carol  for .*`},
			{"hold --json", 0, `{.*"bob".*PID}\n{.*"carol".*PID}`},
			{"list " + limit, 0, `Orders  alice  2 of 3 left, .*\nOrders  bob    2 of 3 left, .*, held for .*\n` +
				`Orders  carol  full, held for .*`},
			{"show bob " + limit, 0, `Orders  bob\n(  .*\n){3}  hold    every request is denied for .*`},
			{"hold bob --end", 0, `ended  bob  was held until .*`},
			{"stat", 0, `file .*\nopen     (OPEN).*\n(.*\n)*holds    1\n(.*\n)*6 +Orders  2     0`},
			{"stat --json", 0, `{"file":.*PIDS.*"holds":1,.*}`},
			{"names", 0, `6  Orders`},
			{"export", 0, `(.*\n)*{"name":"Orders","id":"carol","hold":\d+}(\n.*)*`},
			{"backup " + filepath.Join(dir, fmt.Sprint("backup", n, ".db")), 0, `copied  .*`},
			{"reset alice", 0, `reset  alice  full`},
			{"reset alice --json", 0, `{"name":"Orders","id":"alice","reset":truePID}`},
			{"reset --prefix carol --dry-run", 0, `would reset  0 buckets and 1 hold of Orders`},
			{"reset --all --json", 0, `{"name":"Orders","buckets":1,"holds":1,"reset":truePID}`},
			{"list", 0, ``},
			{"allow alice --quiet --verbose " + limit, 0, ``},
		} {
			args := append(strings.Fields(step.args), "--db", db)
			if !strings.HasPrefix(step.args, "stat") && !strings.HasPrefix(step.args, "backup") &&
				!strings.HasPrefix(step.args, "names") && !strings.HasPrefix(step.args, "export") {
				args = append(args, "--name", "Orders")
			}
			r := runArgs(t, args...)
			require.Equal(t, step.status, r.status, "%s: %s", step.args, r.stderr)
			want := strings.NewReplacer("PIDS", "", "PID", "", "OPEN", "by no program").Replace(step.stdout)
			said := ""
			if byProgram {
				want = strings.NewReplacer("PIDS", `"pid":`+pid, "PID", `,"pid":`+pid,
					"OPEN", "by process "+pid).Replace(step.stdout)
				if strings.Contains(step.args, "--verbose") {
					said = "stint: " + db + " is open in process " + pid + ", which answers\n"
				}
			}
			if step.args == "list" {
				said += "stint: no buckets to show: full ones that are not held are left out\n"
			}
			require.Equal(t, said, r.stderr, step.args)
			require.Regexp(t, "^"+want+"\n?$", r.stdout, step.args)
		}
		require.Equal(t, 0, runProcess(t, "verify", filepath.Join(dir, fmt.Sprint("backup", n, ".db"))).status)
		n++
	}
	steps(true)
	steps(true)
	// The program knows its limits, so they need not be given.
	from := `\n  limit   3/3000h, from process ` + pid + `\n  tokens  `
	for args, want := range map[string]string{
		"list":                    `^Orders  alice  2 of 3 left, full in .*\n$`,
		"list --top 1":            `^Orders  alice  2 of 3 left, full in .*\n$`,
		"show alice":              `^Orders  alice` + from + `2 of 3 left\n  full `,
		"show dora --name Orders": `^Orders  dora` + from + `3 of 3 left\n  full    now\n`,
		"show dora":               `^dora  full: `,
	} {
		require.Regexp(t, want, succeeds(t, append(strings.Fields(args), "--db", db)...), args)
	}
	fails(t, 2, `has no limit "Tpyo": it has Orders`, "list", "--db", db, "--name", "Tpyo")
	fails(t, 2, `has no limit "Tpyo": it has Orders`, "show", "alice", "--db", db, "--name", "Tpyo")
	fails(t, 2, `process `+pid+`, which has the file open, has no limit "default": it has Orders; name one with --name`,
		"allow", "alice", "--db", db, "--limit", "3/1h")
	fails(t, 2, "no wait is long enough: lower --cost",
		"allow", "alice", "--cost", "4", "--limit", "3/1h", "--name", "Orders", "--db", db)
	fails(t, 3, "another process has it open", "compact", db, "--lock-timeout", "10ms")
	if runtime.GOOS != "windows" {
		none := filepath.Join(dir, "none")
		t.Setenv("TMPDIR", none)
		const because = ": no such file or directory; name another directory with TMPDIR\n"
		fails(t, 3, "stint: make a temporary file in "+none+because, "stat", "--db", db)
		t.Setenv("TMPDIR", dir)
	}

	require.NoError(t, server.Process.Kill())
	server.Wait()
	steps(false)
	temporary, err := filepath.Glob(filepath.Join(dir, "stint-*"))
	require.NoError(t, err)
	require.Empty(t, temporary)
}

// Under a quota of another size, what was used stays used: list and show print what
// check does, whether the program or the file has the bucket.
func TestOwnerCalendar(t *testing.T) {
	db := filepath.Join(t.TempDir(), "quota.db")
	lim := openOrders(t, db, stint.EachYear(5, time.UTC))
	server, err := hostlimit.Serve(lim, db, nil)
	require.NoError(t, err)
	_, err = lim.Spend(orders.Key("alice"), 4)
	require.NoError(t, err)
	for _, byProgram := range []bool{true, false} {
		if !byProgram {
			require.NoError(t, errors.Join(server.Close(), lim.Close()))
		}
		for limit, left := range map[string]string{"5/year": "1 of 5", "10/year": "6 of 10", "3/year": "0 of 3"} {
			for args, want := range map[string]string{
				"check alice --cost 0": "  alice  " + left + " left, resets ",
				"list":                 "Orders  alice  " + left + " left, resets ",
				"show alice":           "\n  tokens  " + left + " left\n",
			} {
				r := runArgs(t, append(strings.Fields(args), "--db", db, "--name", "Orders", "--limit", limit)...)
				assert.Contains(t, r.stdout, want, r.stderr)
			}
		}
	}
}

// A program that has the file may begin to share it later than the command
// starts, or close the file.
func TestOwnerLater(t *testing.T) {
	for name, later := range map[string]func(*testing.T, *stint.Limiter, string) string{
		"shares": func(t *testing.T, lim *stint.Limiter, db string) string {
			server, err := hostlimit.Serve(lim, db, nil)
			require.NoError(t, err)
			t.Cleanup(func() { server.Close() })
			return fmt.Sprintf("stint: %s is open in process %d, which answers\n", db, os.Getpid())
		},
		"closes": func(t *testing.T, lim *stint.Limiter, _ string) string {
			require.NoError(t, lim.Close())
			return ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := filepath.Join(t.TempDir(), "quota.db")
			lim := openOrders(t, db, stint.PerDay(3))
			require.True(t, lim.Allow(orders.Key("alice")))
			got := make(chan result)
			go func() {
				got <- runArgs(t, "list", "--db", db, "--limit", "3/1d", "--name", "Orders", "--lock-timeout", "1m", "--verbose")
			}()
			said := later(t, lim, db)
			r := <-got
			require.Equal(t, 0, r.status)
			require.Equal(t, said, r.stderr)
			require.Regexp(t, `^Orders  alice  2 of 3 left, full in .*\n$`, r.stdout)
		})
	}
}

// A program that shares the file, but is stopped, is not told to share it.
func TestOwnerIsStopped(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it reads /proc to see that the process is stopped")
	}
	t.Parallel()
	db := filepath.Join(t.TempDir(), "quota.db")
	server := startServer(t, db)
	defer server.Process.Kill()
	pid := strconv.Itoa(server.Process.Pid)
	require.NoError(t, exec.Command("kill", "-STOP", pid).Run())
	for stopped := false; !stopped; {
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/stat")
		require.NoError(t, err)
		stopped = len(tasks) > 0
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			require.NoError(t, err)
			stopped = stopped && strings.Contains(string(stat), ") T ")
		}
	}
	r := runArgs(t, "show", "alice", "--db", db, "--lock-timeout", "1ms")
	require.NotZero(t, r.status)
	require.Contains(t, r.stderr, "shares it, but does not answer")
	require.NotContains(t, r.stderr, "does not share")
}

// A command that a signal ends, such as one whose output is closed, leaves no copy
// of the program's file.
func TestOwnerLeavesNoCopy(t *testing.T) {
	skipOnWindows(t, "a file that is open stays")
	db := filepath.Join(t.TempDir(), "quota.db")
	startServer(t, db)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	f := &source.File{Path: db, LockTimeout: time.Minute}
	in, err := f.Look(t.Context())
	require.NoError(t, err)
	assert.NotZero(t, in.PID)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Contains(t, slices.Collect(maps.Values(in.Store.Labels())), "Orders")
	require.NoError(t, in.Close())
}
