package main

import (
	"bytes"
	"context"
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
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
)

// runMain in the environment makes the test binary the command.
const runMain = "STINT_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
	}
	testscript.Main(m, map[string]func(){"stint": main})
}

// result is what a run of the command came to.
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

// process returns the command, to be run in a process of its own.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	heedSignals()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), runMain+"=1")
	return cmd
}

// heedSignals has what the tests start heed the signals that a background job of a script, or one of nohup, ignores.
var heedSignals = sync.OnceFunc(func() {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
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

// stateHome makes a directory the user's home, and returns the file that the command has there.
func stateHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "LocalAppData"} {
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

func TestProcessesInTurn(t *testing.T) {
	db := stateHome(t)
	for _, left := range []string{"2 of 3 left", "1 of 3 left", "0 of 3 left"} {
		r := runProcess(t, "allow", "--limit", "3/1h", "alice")
		require.Equal(t, 0, r.status, r.stderr)
		require.Regexp(t, `^allowed  alice  `+left+`, full in \S+\n$`, r.stdout)
	}
	r := runProcess(t, "allow", "--limit", "3/1h", "alice")
	assert.Equal(t, 1, r.status, r.stderr)
	assert.Regexp(t, `^denied  alice  0 of 3 left, retry in \d+m(\d+s)?\n$`, r.stdout)
	assert.Empty(t, r.stderr)

	r = runProcess(t, "list")
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Regexp(t, `^default  alice  full in \S+\n$`, r.stdout)

	if runtime.GOOS != "windows" {
		for path, mode := range map[string]os.FileMode{db: 0o600, filepath.Dir(db): 0o700} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, mode, info.Mode().Perm(), path)
		}
	}
}

// TestProcessesAtOnce: none may find a file that is half made, and no token goes twice.
func TestProcessesAtOnce(t *testing.T) {
	stateHome(t)
	const processes, burst = 8, 3
	var cmds [processes]*exec.Cmd
	for i := range cmds {
		cmds[i] = process(t, "allow", "--limit", "3/1h", "--lock-timeout", "1m", "alice")
		require.NoError(t, cmds[i].Start())
	}
	statuses := map[int]int{}
	for _, cmd := range cmds {
		_ = cmd.Wait()
		statuses[cmd.ProcessState.ExitCode()]++
	}
	assert.Equal(t, map[int]int{0: burst, 1: processes - burst}, statuses)
}

func TestErrors(t *testing.T) {
	stateHome(t)
	garbage := write(t, "garbage.db", "a page of bbolt:\xED\xDA\x0C\xED"+strings.Repeat("and nothing of it is right\n", 1000))
	empty := write(t, "empty.db", "")
	missing := filepath.Join(t.TempDir(), "missing.db")
	noDirectory := filepath.Join(t.TempDir(), "no", "stint.db")
	badDefaults := write(t, "bad.yml", "Orders:\n  burst: 0\n  count: 1\n  period: 1m\nLogins:\n  burst: 1\n  count: 1\n  period: soon\n")
	defaults := write(t, "defaults.yml", "Orders: {burst: 1, count: 1, period: 1m}\nLogins: {burst: 1, count: 1, period: 1m}\n")
	log := write(t, "access.log", "nothing\n")

	foreign := filepath.Join(t.TempDir(), "foreign.db")
	other, err := bolt.Open(foreign, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, other.Close())

	locked := filepath.Join(t.TempDir(), "locked.db")
	owner, err := stint.OpenBolt(locked, nil, nil)
	require.NoError(t, err)
	defer owner.Close()

	for _, c := range []struct {
		name   string
		args   string // words; '' is an empty one
		status int
		stderr string // in it
	}{
		{"nothing", "", 2, "no command given; see stint --help"},
		{"unknown command", "permit alice", 2, `unknown command "permit"; see stint --help`},
		{"mistyped command", "alow alice", 2, `unknown command "alow" (did you mean allow or show?); see stint --help`},
		{"mistyped command with flags", "alow --limit 3/1m alice", 2, `stint: unknown command "alow" (did you mean allow or show?); see stint --help` + "\n"},
		{"mistyped command of limits with flags", "limits chek --strict f", 2, `unknown command "chek" (did you mean check?); see stint limits --help` + "\n"},
		{"flag of no command", "--limit 3/1m", 2, "unknown flag: --limit; see stint --help"},
		{"help for an unknown command", "help permit", 2, `unknown command "permit"; see stint --help`},
		{"help for an unknown command of limits", "help limits chek", 2, `unknown command "limits chek"; see stint --help`},
		{"completion for no shell", "completion", 2, "no command given; see stint completion --help"},
		{"completion for an unknown shell", "completion csh", 2, `unknown command "csh" (did you mean bash or fish or zsh?); see stint completion --help`},
		{"unknown command of limits", "limits chek f", 2, `unknown command "chek" (did you mean check?); see stint limits --help`},
		{"no command of limits", "limits", 2, "no command given; see stint limits --help"},
		{"unknown flag", "allow --limits-file x alice", 2, "unknown flag: --limits-file; see stint allow --help"},
		{"flag of no number", "allow --limit 3/1m --cost x alice", 2, `invalid argument "x" for "--cost"`},
		{"no id", "allow --limit 3/1m", 2, "one ID is needed, not 0"},
		{"empty file name", "list --db ''", 2, "--db is empty: give it a value, or leave it out; see stint list --help"},
		{"empty name", "reset --name '' alice", 2, "--name is empty"},
		{"empty name of many", "reset --all --name ''", 2, "--name is empty"},
		{"empty limit", "allow --limit '' alice", 2, "--limit is empty"},
		{"empty limits", "allow --limits '' --name Orders alice", 2, "--limits is empty"},
		{"empty snapshot", "list --snapshot ''", 2, "--snapshot is empty"},
		{"empty FILE", "compact ''", 2, "FILE is empty"},
		{"empty limits to check", "limits check ''", 2, "no FILE given"},
		{"two ids", "allow --limit 3/1m alice bob", 2, "one ID is needed, not 2"},
		{"empty id", "allow --limit 3/1m ''", 2, "invalid id"},
		{"long id", "allow --limit 3/1m " + strings.Repeat("x", 513), 2, "invalid id"},
		{"no limit", "allow alice", 2, "no limit given: --limit COUNT/PERIOD, or"},
		{"limit without period", "allow --limit 3 alice", 2, `"3"`},
		{"limit of nothing", "allow --limit 0/1m alice", 2, "is 0, want at least 1"},
		{"burst of nothing", "allow --limit 3/1m --burst 0 alice", 2, "burst"},
		{"burst without limit", "allow --limits f --name n --burst 3 alice", 2, "--burst goes with --limit;"},
		{"overrides without limits", "allow --limit 3/1m --overrides f alice", 2, "--overrides goes with --limits;"},
		{"limit and limits", "allow --limit 3/1m --limits f --name n alice", 2, "--limit and --limits exclude each other"},
		{"json and quiet", "allow --limit 3/1m --json --quiet alice", 2, "--json and --quiet exclude each other"},
		{"cost over burst", "allow --limit 3/1m --cost 4 alice", 2, "no wait is long enough: lower --cost"},
		{"cost over burst, checked", "check --limit 3/1m --cost 4 alice", 2, "no wait is long enough: lower --cost"},
		{"negative cost", "allow --limit 3/1m --cost -1 alice", 2, "negative cost"},
		{"no lock timeout", "allow --limit 3/1m --lock-timeout 0s alice", 2, "--lock-timeout 0s: must be more than 0"},
		{"limits without name", "allow --limits " + defaults + " alice", 2, "--limits needs --name: " + defaults + " has Logins, Orders"},
		{"name not in limits", "allow --limits " + defaults + " --name Odrers alice", 2, `has no limit "Odrers": it has Logins, Orders`},
		{"limits missing", "allow --limits " + missing + " --name x alice", 2, missing},
		{"limits invalid", "allow --limits " + badDefaults + " --name Orders alice", 2, "bad.yml:2: Orders: burst"},
		{"limits missing, checked", "limits check " + missing, 2, missing},
		{"no limits to check", "limits check", 2, "no FILE given"},
		{"no log", "replay --limit 3/1m", 2, "no LOG given"},
		{"log missing", "replay --limit 3/1m " + missing, 2, missing},
		{"log keyed by nothing known", "replay --limit 3/1m --by shoe " + log, 2, `--by "shoe": must be ip, method, path, user`},
		{"replay without limit", "replay " + log, 2, "no limit given"},

		{"corrupt", "allow --limit 3/1m alice --db " + garbage, 3, "file is corrupt"},
		{"corrupt, checked", "check --limit 3/1m alice --db " + garbage, 3, "move it away"},
		{"corrupt, reset", "reset alice --db " + garbage, 3, "move it away"},
		{"corrupt, listed", "list --db " + garbage, 3, "move it away"},
		{"corrupt, replayed", "replay --limit 3/1m --db " + garbage + " " + log, 3, "move it away"},
		{"empty file", "allow --limit 3/1m alice --db " + empty, 3, "it is empty; remove it to start anew; or name another with --db\n"},
		{"another program's", "allow --limit 3/1m alice --db " + foreign, 3, "use the program that wrote it"},
		{"another program's, repaired", "verify --repair " + foreign, 3, "use the program that wrote it"},
		{"locked", "allow --limit 3/1m --lock-timeout 1ms alice --db " + locked, 3, "another process has it open"},
		{"locked, checked", "check --limit 3/1m --lock-timeout 1ms alice --db " + locked, 3, "another process has it open"},
		{"locked, replayed", "replay --limit 3/1m --lock-timeout 1ms --db " + locked + " " + log, 3, "another process has it open"},
		{"locked, run", "run --limit 3/1m --lock-timeout 1ms --db " + locked + " alice -- echo", 3, "another process has it open"},
		{"another program's, run", "run --limit 3/1m --db " + foreign + " alice -- echo", 3, "use the program that wrote it"},
		{"another program's, replayed", "replay --limit 3/1m --db " + foreign + " " + log, 3, "use the program that wrote it"},
		{"locked, listed", "list --lock-timeout 1ms --db " + locked, 3, "status page of the program that has it open"},
		{"missing, listed", "list --db " + missing, 3, missing + ": no such file or directory; name another file with --db"},
		{"no directory", "allow --limit 3/1m alice --db " + noDirectory, 3, "make the directory first"},
		{"under a file", "allow --limit 3/1m alice --db " + filepath.Join(garbage, "stint.db"), 3, "garbage.db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && strings.Contains(c.stderr, "no such file") {
				t.Skip("said otherwise on Windows")
			}
			args := strings.Fields(c.args)
			for i, arg := range args {
				if arg == "''" {
					args[i] = ""
				}
			}
			r := runArgs(t, args...)
			assert.Equal(t, c.status, r.status)
			assert.Empty(t, r.stdout)
			assert.Contains(t, r.stderr, c.stderr)
			for line := range strings.Lines(r.stderr) {
				assert.Regexp(t, `^stint: .*\n$`, line)
				assert.Equal(t, 1, strings.Count(line, "stint: "), line)
			}
			assert.NoFileExists(t, missing)
		})
	}
}

func TestUnwritableDirectory(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("no directory is unwritable for this user")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500))
	for _, args := range [][]string{{"allow", "alice"}, {"run", "alice", "--", "echo"}, {"replay", write(t, "access.log", smallLog)}} {
		r := runArgs(t, append([]string{args[0], "--limit", "3/1m", "--db", filepath.Join(dir, "stint.db")}, args[1:]...)...)
		assert.Equal(t, 3, r.status)
		assert.Contains(t, r.stderr, "see who owns the file and its directory")
	}
	r := runArgs(t, "simulate", "3/1m", "--load", "1 at once", "--svg", filepath.Join(dir, "x.svg"))
	assert.Equal(t, 3, r.status)
	r = runArgs(t, "man", dir)
	assert.Equal(t, 3, r.status)
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

func TestVersion(t *testing.T) {
	r := runArgs(t, "--version")
	assert.Equal(t, 0, r.status)
	assert.Regexp(t, `^stint version .*go1\.\d+.*\n$`, r.stdout)
}

// failing is a Store that cannot save.
type failing struct{ stint.Store }

func (failing) Save([]stint.Change) error { return errors.New("no space left on device") }

// TestSaysNothingThatIsNotOnDisk: a decision that Close could not save was none.
func TestSaysNothingThatIsNotOnDisk(t *testing.T) {
	for name, act := range map[string]action{"allow": (*stint.Limiter).Spend, "reset": nil} {
		open := func(*dbFlags, string) (stint.Store, stint.Name, error) { return failing{stint.NewMemStore()}, 1, nil }
		cmd := newDecision(&decideFlags{open: open, act: act}, &cobra.Command{Use: name + " ID", SilenceUsage: true, SilenceErrors: true})
		var stdout bytes.Buffer
		cmd.SetOut(&stdout)
		cmd.SetArgs([]string{"--limit", "3/1m", "alice"})
		err := cmd.Execute()
		assert.ErrorContains(t, err, "no space left on device", name)
		assert.Equal(t, 3, status(err), name)
		assert.Empty(t, stdout.String(), name)
	}
}

// broken is a stdout that nobody reads.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestUnwritableOutput(t *testing.T) {
	stateHome(t)
	log := write(t, "access.log", "")
	for _, args := range [][]string{
		{"allow", "--limit", "3/1m", "alice"},
		{"list"},
		{"limits", "check", write(t, "defaults.yml", "Orders: {burst: 1, count: 1, period: 1m}\n")},
		{"replay", "--limit", "3/1m", log},
	} {
		var stderr bytes.Buffer
		status := run(context.Background(), args, strings.NewReader(""), broken{}, &stderr)
		assert.Equal(t, 3, status, args)
		assert.Equal(t, "stint: broken pipe\n", stderr.String(), args)
	}
}

func TestDuration(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0s"},
		{1, "1ms"},
		{time.Millisecond, "1ms"},
		{time.Millisecond + 1, "2ms"},
		{999*time.Millisecond + 1, "1s"},
		{time.Second, "1s"},
		{19*time.Second + 720*time.Millisecond, "19.8s"},
		{19*time.Second + 999*time.Millisecond, "20s"},
		{59*time.Second + 901*time.Millisecond, "1m"},
		{time.Minute + 1, "1m1s"},
		{14*time.Minute + 24*time.Second, "14m24s"},
		{14*time.Minute + 23*time.Second + 1, "14m24s"},
		{time.Hour - 1, "1h"},
		{2 * time.Hour, "2h"},
		{2*time.Hour + 1, "2h1m"},
		{24 * time.Hour, "24h"},
		{48*time.Hour - 1, "2d"},
		{2*day + 1, "2d1h"},
		{10 * day, "10d"},
		{36525 * day, "36525d"},
		{1<<63 - 1, "106751d23h"}, // the one that nothing can be added to
	} {
		assert.Equal(t, c.want, duration(c.d), int64(c.d))
	}
}

func TestPrintable(t *testing.T) {
	for id, want := range map[string]string{
		"alice": "alice", "10.0.0.1": "10.0.0.1", "é:b,c": "é:b,c",
		"a b": `"a b"`, "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`,
	} {
		assert.Equal(t, want, printable(id))
	}
}

// object returns the one JSON object in a line.
func object(t *testing.T, line string) (o map[string]any) {
	t.Helper()
	require.Equal(t, 1, strings.Count(line, "\n"), line)
	require.NoError(t, json.Unmarshal([]byte(line), &o), line)
	return o
}
