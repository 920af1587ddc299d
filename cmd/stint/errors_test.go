package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/serve"
	"github.com/stint-go/stint/internal/source"
)

func TestErrors(t *testing.T) {
	stateHome(t)
	bboltMagic := string(binary.NativeEndian.AppendUint32(nil, 0xED0CDAED))
	garbage := write(t, "garbage.db",
		"a page of bbolt:"+bboltMagic+strings.Repeat("and nothing of it is right\n", 1000))
	empty := write(t, "empty.db", "")
	missing := filepath.Join(t.TempDir(), "missing.db")
	noDirectory := filepath.Join(t.TempDir(), "no", "stint.db")
	badDefaults := write(t, "bad.yml",
		"Orders:\n  burst: 0\n  count: 1\n  period: 1m\nLogins:\n  burst: 1\n  count: 1\n  period: soon\n")
	defaults := write(t, "defaults.yml",
		"Orders: {burst: 1, count: 1, period: 1m}\nLogins: {burst: 1, count: 1, period: 1m}\n")
	log := write(t, "access.log", `192.0.2.1 - - [10/Oct/2025:13:55:36 +0000] "GET / HTTP/1.1" 200 5`+"\n")

	foreign := filepath.Join(t.TempDir(), "foreign.db")
	other, err := bolt.Open(foreign, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, other.Close())

	locked := filepath.Join(t.TempDir(), "locked.db")
	owner, err := dbfile.Open(locked, nil, nil)
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
		{"mistyped command with flags", "alow --limit 3/1m alice", 2,
			`stint: unknown command "alow" (did you mean allow or show?); see stint --help` + "\n"},
		{"mistyped command of limits with flags", "limits chek --strict f", 2,
			`unknown command "chek" (did you mean check?); see stint limits --help` + "\n"},
		{"flag of no command", "--limit 3/1m", 2, "unknown flag: --limit; see stint --help"},
		{"help for an unknown command", "help permit", 2, `unknown command "permit"; see stint --help`},
		{"help for an unknown command of limits", "help limits chek", 2, `unknown command "limits chek"; see stint --help`},
		{"completion for no shell", "completion", 2, "no command given; see stint completion --help"},
		{"completion for an unknown shell", "completion csh", 2,
			`unknown command "csh" (did you mean bash or fish or zsh?); see stint completion --help`},
		{"no command of limits", "limits", 2, "no command given; see stint limits --help"},
		{"unknown flag", "allow --limits-file x alice", 2, "unknown flag: --limits-file; see stint allow --help"},
		{"flag of no number", "allow --limit 3/1m --cost x alice", 2,
			`invalid argument "x" for --cost: want a whole number; see`},
		{"flag of too large a number", "allow --limit 3/1m --cost 99999999999999999999 alice", 2,
			"for --cost: the number is too large; see"},
		{"flag of no duration", "allow --limit 3/1m --lock-timeout 5 alice", 2,
			`invalid argument "5" for --lock-timeout: want a duration such as 90s, 5m or 36h; see`},
		{"flag that is a switch", "list --json=maybe", 2, `invalid argument "maybe" for --json: want true or false; see`},
		{"no id", "allow --limit 3/1m", 2, "one ID is needed, not 0"},
		{"empty file name", "list --db ''", 2,
			"--db is empty: give it a value, or leave the flag out; see stint list --help"},
		{"empty name", "reset --name '' alice", 2, "--name is empty"},
		{"empty name of many", "reset --all --name ''", 2, "--name is empty"},
		// These are refused before the file, which is not there, is opened.
		{"reset of all by limits", "reset --all --limits " + defaults, 2, "--limits needs --name: "},
		{"reset of all of no limit", "reset --all --limits " + defaults + " --name Odrers", 2, `has no limit "Odrers"`},
		{"reset of all by missing limits", "reset --all --limits " + missing, 2, missing},
		{"reset of all by no limit", "reset --all --limit nonsense", 2, `"nonsense"`},
		{"empty limit", "allow --limit '' alice", 2, "--limit is empty"},
		{"empty limits", "allow --limits '' --name Orders alice", 2, "--limits is empty"},
		{"empty FILE", "compact ''", 2, "FILE is empty"},
		{"empty limits to check", "limits check ''", 2, "no FILE given"},
		{"two ids", "allow --limit 3/1m alice bob", 2, "one ID is needed, not 2"},
		{"empty id", "allow --limit 3/1m ''", 2, "an ID must not be empty"},
		{"long id", "allow --limit 3/1m " + strings.Repeat("x", 513), 2, "invalid id"},
		{"no limit", "allow alice", 2, "no limit given: --limit COUNT/PERIOD, or"},
		{"limit without period", "allow --limit 3 alice", 2, `"3"`},
		{"limit of nothing", "allow --limit 0/1m alice", 2, "is 0, want at least 1"},
		{"burst of nothing", "allow --limit 3/1m --burst 0 alice", 2, "--burst 0: burst is 0, want at least 1"},
		{"count of nothing, replayed", "replay --try 0/1m -", 2, `limit "0/1m": count is 0, want at least 1`},
		{"burst without limit", "allow --limits f --name n --burst 3 alice", 2, "--burst goes with --limit;"},
		{"overrides without limits", "allow --limit 3/1m --overrides f alice", 2, "--overrides goes with --limits;"},
		{"limit and limits", "allow --limit 3/1m --limits f --name n alice", 2, "--limit and --limits exclude each other"},
		{"json and quiet", "allow --limit 3/1m --json --quiet alice", 2, "--json and --quiet exclude each other"},
		{"cost over burst", "allow --limit 3/1m --cost 4 alice", 2, "no wait is long enough: lower --cost"},
		{"cost over burst, checked", "check --limit 3/1m --cost 4 alice", 2, "no wait is long enough: lower --cost"},
		{"negative cost", "allow --limit 3/1m --cost -1 alice", 2, "--cost -1: must be 0 or more;"},
		{"no lock timeout", "allow --limit 3/1m --lock-timeout 0s alice", 2, "--lock-timeout 0s: must be more than 0"},
		{"limits without name", "allow --limits " + defaults + " alice", 2,
			"--limits needs --name: " + defaults + " has Logins, Orders"},
		{"name not in limits", "allow --limits " + defaults + " --name Odrers alice", 2,
			`has no limit "Odrers": it has Logins, Orders`},
		{"limits missing", "allow --limits " + missing + " --name x alice", 2, missing},
		{"limits invalid", "allow --limits " + badDefaults + " --name Orders alice", 2, "bad.yml:2: Orders: burst"},
		{"limits missing, checked", "limits check " + missing, 2, missing},
		{"no limits to check", "limits check", 2, "no FILE given"},
		{"no log", "replay --limit 3/1m", 2, "no LOG given"},
		{"log missing", "replay --limit 3/1m " + missing, 2, missing},
		{"log keyed by nothing known", "replay --limit 3/1m --by shoe " + log, 2,
			`--by "shoe": must be ip, method, path, user`},
		{"try and limit", "replay --try 1/1m --limit 1/1m " + log, 2, "--try and --limit exclude each other"},
		{"try and db", "replay --try 1/1m --db x " + log, 2, "--try and --db exclude each other"},
		{"try of one limit twice", "replay --try 1/1m,1/60s " + log, 2, "given twice"},
		{"try of nothing", "replay --try= " + log, 2, "no limit in --try"},
		{"try without period", "replay --try 1 " + log, 2, `"1"`},
		{"and of no limit", "replay --limit 1/1m --and x " + log, 2, `"x"`},
		{"and of one limit twice", "replay --limit 5/1m --name 9/1h --and 9/1h " + log, 2, "the limit 9/1h is given twice"},
		{"few bits", "replay --limit 1/1h --ipv6-bits 0 " + log, 2, "--ipv6-bits 0: must be from 1 to 128"},
		{"many bits", "replay --limit 1/1h --ipv6-bits 129 " + log, 2, "--ipv6-bits 129: must be from 1 to 128"},
		{"top of nothing", "replay --limit 1/1h --top 0 " + log, 2, "--top 0: must be 1 or more"},
		{"replay without limit", "replay " + log, 2, "no limit given"},

		{"corrupt", "allow --limit 3/1m alice --db " + garbage, 3, "file is corrupt"},
		{"corrupt, checked", "check --limit 3/1m alice --db " + garbage, 3, "move the file away"},
		{"corrupt, reset", "reset alice --db " + garbage, 3, "move the file away"},
		{"corrupt, listed", "list --db " + garbage, 3, "move the file away"},
		{"corrupt, replayed", "replay --limit 3/1m --db " + garbage + " " + log, 3, "move the file away"},
		{"empty file", "allow --limit 3/1m alice --db " + empty, 3,
			"it is empty; remove it to start anew; or name another with --db\n"},
		{"another program's", "allow --limit 3/1m alice --db " + foreign, 3, "use the program that wrote it"},
		{"another program's, repaired", "verify --repair " + foreign, 3, "use the program that wrote it"},
		{"locked", "allow --limit 3/1m --lock-timeout 1ms alice --db " + locked, 3, "it does not share the file"},
		{"locked, checked", "check --limit 3/1m --lock-timeout 1ms alice --db " + locked, 3, "it does not share the file"},
		{"locked, replayed", "replay --limit 3/1m --lock-timeout 1ms --db " + locked + " " + log, 3,
			"another process has it open"},
		{"locked, run", "run --limit 3/1m --lock-timeout 1ms --db " + locked + " alice -- echo", 3,
			"it does not share the file"},
		{"another program's, run", "run --limit 3/1m --db " + foreign + " alice -- echo", 3, "use the program that wrote it"},
		{"locked, listed", "list --lock-timeout 1ms --db " + locked, 3,
			"it does not share the file"},
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

// broken is a stdout without a reader.
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

// Errors of these commands name no temporary file, no function of Go, and no
// directory besides those in the arguments.
func TestErrorNames(t *testing.T) {
	db, none := stateHome(t), filepath.Join(t.TempDir(), "none")
	require.Equal(t, 0, runArgs(t, "allow", "--limit", "3/1m", "alice").status)
	there := write(t, "there.db", "")
	for _, c := range []struct {
		stderr string // in it
		args   []string
	}{
		{filepath.Join(none, "b.db") + ": ", []string{"backup", "--db", db, filepath.Join(none, "b.db")}},
		{filepath.Join(none, "a.db") + ": ", []string{"allow", "--limit", "3/1m", "--db", filepath.Join(none, "a.db"), "a"}},
		{there + ": ", []string{"man", there}},
		{filepath.Join(none, "x.svg") + ": ",
			[]string{"simulate", "1/1s", "--load", "1 at once", "--svg", filepath.Join(none, "x.svg")}},
		{"make " + there + ": file already exists; name another with --to",
			[]string{"verify", db, "--repair", "--to", there}},
		{`limit "99999999999999999999/1m": count is 99999999999999999999, want at most 9223372036854775807`,
			[]string{"allow", "--limit", "99999999999999999999/1m", "a"}},
	} {
		r := runArgs(t, c.args...)
		assert.NotZero(t, r.status, c.args)
		assert.Contains(t, r.stderr, c.stderr)
		assert.NotRegexp(t, `strconv|-[0-9]{5,}|stint-snapshot`, r.stderr)
	}
}

// If serve cannot write its labels, such as to a full disk, a retry may succeed.
func TestServeStatus(t *testing.T) {
	in, err := (&source.File{Path: filepath.Join(t.TempDir(), "a.db")}).Reach(source.Writing)
	require.NoError(t, err)
	require.NoError(t, in.Close()) // it can write nothing from now on
	_, err = in.Declare(serve.ThrottleLabel)
	require.Error(t, err)
	assert.Equal(t, console.StatusFailed, console.Status(err), err)
}
