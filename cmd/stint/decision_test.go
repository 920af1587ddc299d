package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/source"
)

// The limit gives a token back in eight hours, so the time that a step takes
// does not show.
func TestDecision(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	for _, step := range []struct {
		args   string
		status int
		stdout string // a regular expression
	}{
		{"check alice --cost 0", 0, `allowed  alice  3 of 3 left`},
		{"check alice", 0, `allowed  alice  2 of 3 left, full in 8h`},
		{"check alice", 0, `allowed  alice  2 of 3 left, full in 8h`},
		{"allow alice", 0, `allowed  alice  2 of 3 left, full in 8h`},
		{"allow alice --cost 3", 1, `denied  alice  2 of 3 left, retry in (8h|7h\d+m)`},
		{"allow alice --cost 2", 0, `allowed  alice  0 of 3 left, full in (24h|23h\d+m)`},
		{"check alice", 1, `denied  alice  0 of 3 left, retry in (8h|7h\d+m)`},
		{"allow bob --quiet", 0, ``},
		{"allow bob --quiet --cost 3", 1, ``},
		{"refund alice", 0, `refunded  alice  1 of 3 left, full in (16h|15h\d+m)`},
		{"refund alice --cost 9", 0, `refunded  alice  3 of 3 left`},
		{"refund carol", 0, `refunded  carol  3 of 3 left`},
		{"allow alice", 0, `allowed  alice  2 of 3 left, full in 8h`},
		{"reset alice", 0, `reset  alice  3 of 3 left`},
		{"reset alice", 0, `reset  alice  3 of 3 left`},
		{"check alice", 0, `allowed  alice  2 of 3 left, full in 8h`},
		{"allow alice --name other", 0, `allowed  alice  2 of 3 left, full in 8h`},
		{"allow alice --burst 1", 0, `allowed  alice  0 of 1 left, full in 8h`},
	} {
		r := runArgs(t, append(strings.Fields(step.args), "--db", db, "--limit", "3/1d")...)
		require.Equal(t, step.status, r.status, "%s: %s", step.args, r.stderr)
		require.Empty(t, r.stderr, step.args)
		if step.stdout != "" {
			step.stdout += "\n"
		}
		require.Regexp(t, "^"+step.stdout+"$", r.stdout, step.args)
	}

	assert.Equal(t, result{0, "reset  alice  full\n", ""}, runArgs(t, "reset", "alice", "--db", db))
	assert.Regexp(t, `^default  bob    full in \S+\nother    alice  full in \S+\n$`, succeeds(t, "list", "--db", db))
}

func TestDecisionJSON(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	args := func(command string) []string {
		return []string{command, "--db", db, "--limit", "1/1m", "--burst", "2", "--cost", "2", "--json", "<a>"}
	}
	r := runArgs(t, args("check")...)
	assert.Equal(t, result{0, `{"allowed":true,"name":"default","id":"<a>","cost":2,"taken":0,"remaining":0,` +
		`"limit":{"burst":2,"count":1,"period":"1m0s"},"retry_after_ns":0,"reset_after_ns":120000000000}` + "\n", ""}, r)

	require.Equal(t, 2.0, object(t, succeeds(t, args("allow")...))["taken"])
	r = runArgs(t, args("allow")...)
	require.Equal(t, 1, r.status)
	o := object(t, r.stdout)
	assert.Equal(t, false, o["allowed"])
	assert.Greater(t, o["retry_after_ns"], 0.0)
	assert.LessOrEqual(t, o["retry_after_ns"], 120e9)
	assert.Equal(t, o["retry_after_ns"], o["reset_after_ns"], "all of it is asked for")

	r = runArgs(t, "reset", "--db", db, "--json", "<a>")
	assert.Equal(t, result{0, `{"name":"default","id":"<a>","reset":true}` + "\n", ""}, r)
	r = runArgs(t, "reset", "--db", db, "--limit", "1/1m", "--burst", "2", "--json", "<a>")
	assert.Equal(t, result{0, `{"name":"default","id":"<a>","remaining":2,` +
		`"limit":{"burst":2,"count":1,"period":"1m0s"},"reset":true}` + "\n", ""}, r)
}

func TestDecisionFile(t *testing.T) {
	db := stateHome(t)
	for _, args := range [][]string{
		{"check", "--limit", "3/1m", "alice"},
		{"refund", "--limit", "3/1m", "alice"},
		{"reset", "alice"},
		{"allow", "--limit", "nonsense", "alice"},
		{"allow", "--limit", "3/1m", ""},
	} {
		runArgs(t, args...)
		assert.NoFileExists(t, db, args)
	}
	require.Equal(t, 0, runArgs(t, "allow", "--limit", "3/1m", "alice").status)
	if runtime.GOOS != "windows" {
		for path, mode := range map[string]os.FileMode{db: 0o600, filepath.Dir(db): 0o700} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, mode, info.Mode().Perm(), path)
		}
	}
	for command, status := range map[string]int{"check": 0, "refund": 2, "reset": 2} {
		require.Equal(t, status, runArgs(t, command, "--limit", "3/1m", "--name", "unheard", "alice").status)
	}
	assert.Equal(t, `{"1":"default"}`+"\n", succeeds(t, "names", "--json"))
}

// failing is a Store that cannot save.
type failing struct{ stint.Store }

func (failing) Save([]stint.Change) error { return errors.New("no space left on device") }

// A decision that Close could not save is not printed.
func TestDecisionNotSaved(t *testing.T) {
	for name, act := range map[string]source.Action{"allow": spend, "reset": nil} {
		open := func(*source.File, string) (*source.Target, error) {
			return source.TargetIn(failing{stint.NewMemStore()}, defaultLabel), nil
		}
		cmd := newDecision(&decideFlags{open: open, act: act},
			&cobra.Command{Use: name + " ID", SilenceUsage: true, SilenceErrors: true})
		var stdout bytes.Buffer
		cmd.SetOut(&stdout)
		cmd.SetArgs([]string{"--limit", "3/1m", "alice"})
		err := cmd.Execute()
		assert.ErrorContains(t, err, "no space left on device", name)
		assert.Equal(t, 3, console.Status(err), name)
		assert.Empty(t, stdout.String(), name)
	}
}

// check leaves the file as it is, also if a hold in it is over.
func TestDecisionAfterHold(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	store, err := dbfile.Open(db, stint.Names{1: {Label: defaultLabel}}, nil)
	require.NoError(t, err)
	key := stint.Name(1).Key("a")
	require.NoError(t, store.Save([]stint.Change{{Key: stint.Unknown.Key(key.String()), TAT: 1}, {Key: key, TAT: 1}}))
	require.NoError(t, store.Close())
	succeeds(t, "check", "--db", db, "--limit", "3/1m", "a")
}

// spend --force asks an owner once, and takes what is there at that instant.
func TestSpendUpTo(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{orders: {Label: "Orders", Limit: stint.EachDay(3, nil)}})
	require.NoError(t, err)
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer lim.Close()
	for _, left := range []int64{2, 0, 0} {
		d, err := spendUpTo(lim, stint.Request{Key: orders.Key("alice"), Cost: 5 - 2*left})
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, left, d.Remaining)
	}
	require.Equal(t, stint.LimitStats{Allowed: 2, Denied: 1}, lim.Stats().Limits[orders])
}
