package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
)

// fileAhead returns a file that was used while the clock was at ahead, with these
// changes. Before that, alice has spent.
func fileAhead(t *testing.T, limit string, ahead time.Time, changes ...stint.Change) (db string) {
	db = filepath.Join(t.TempDir(), "stint.db")
	succeeds(t, "allow", "--db", db, "--limit", limit, "alice")
	store, err := dbfile.Open(db, nil, nil)
	require.NoError(t, err)
	require.NoError(t, store.Save(append(changes, stint.Change{TAT: ahead.UnixNano()})))
	require.NoError(t, store.Close())
	return db
}

// The file was once used while the clock was two hours ahead. Each command says
// so on stderr, and time goes on between commands that live for milliseconds.
func TestClockBehind(t *testing.T) {
	ahead := time.Now().Add(2 * time.Hour)
	db := fileAhead(t, "1/1h", ahead, stint.Change{Key: stint.Name(1).Key("alice"), TAT: ahead.Add(time.Hour).UnixNano()})
	const warning = "the clock says "
	ask := func(command ...string) time.Duration {
		r := runArgs(t, append(command, "--db", db, "--limit", "1/1h", "--json", "alice")...)
		require.Equal(t, 1, r.status, r.stderr)
		require.Contains(t, r.stderr, warning)
		retryAfter := time.Duration(object(t, r.stdout)["retry_after_ns"].(float64))
		require.LessOrEqual(t, retryAfter, time.Hour)
		return retryAfter
	}
	first := ask("allow")
	begun := time.Now()
	<-time.After(200 * time.Millisecond)
	for _, command := range []string{"allow", "check", "allow"} {
		asked := time.Since(begun)
		last := ask(command)
		if runtime.GOOS == "linux" {
			require.Greater(t, first-last, asked-time.Millisecond, "it waits no longer than the machine runs")
		}
	}
	for _, args := range [][]string{{"show", "alice"}, {"list"}, {"run", "--limit", "1/1h", "alice", "--", "true"},
		{"hold", "--for", "1m", "alice"}, {"reset", "--limit", "1/1h", "alice"}} {
		r := runArgs(t, append([]string{args[0], "--db", db}, args[1:]...)...)
		require.Contains(t, r.stderr, warning, "%v", args)
	}
}

// The file is as in TestClockBehind. A bucket that is full and a hold that is over
// by the file's time are so for every command.
func TestClockOfFile(t *testing.T) {
	ahead := time.Now().Add(2 * time.Hour)
	key := stint.Name(1).Key("alice")
	over, later := ahead.Add(-time.Hour).UnixNano(), ahead.Add(time.Hour).UnixNano()
	db := fileAhead(t, "1/1h", ahead, stint.Change{Key: key, TAT: over},
		stint.Change{Key: stint.Unknown.Key(key.String()), TAT: over},
		stint.Change{Key: stint.Name(1).Key("bob"), TAT: later})
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, `^default  bob  full in [^\n]*\n$`},
		{[]string{"hold"}, `^$`},
		{[]string{"stat"}, `holds    0\n[^$]*1       default  1     1\n$`},
		{[]string{"export"}, `^[^\n]*\n{"name":"default","id":"bob",[^\n]*\n$`},
		{[]string{"verify", "--limit", "1/1h"}, `^sound  [^\n]*\n$`},
	} {
		r := runProcess(t, append(tc.args, "--db", db)...) // verify begins another process
		require.Zero(t, r.status, r.stderr)
		require.Contains(t, r.stderr, "the clock says ", "%v", tc.args)
		require.Regexp(t, tc.want, r.stdout, "%v", tc.args)
	}
}

// If the clock is behind the file, a quota resets at the end of the file's period.
func TestClockOfQuota(t *testing.T) {
	quota, ahead := stint.EachMonth(5, time.UTC), time.Now().Add(70*24*time.Hour)
	flags := []string{"--db", fileAhead(t, quota.String(), ahead), "--limit", quota.String()}
	for _, args := range [][]string{{"allow", "alice"}, {"check", "alice"}, {"spend", "alice"}, {"spend", "--force", "alice"},
		{"refund", "alice"}, {"list"}, {"show", "alice"}} {
		r := runArgs(t, append(args, flags...)...)
		require.Contains(t, r.stderr, "the clock says ", "%v", args)
		require.Regexp(t, "resets +"+display.Reset(quota, ahead)+"\n", r.stdout, "%v", args)
	}
}

// If the clock is behind the file, import drops what is over by the file's time.
func TestClockOfImport(t *testing.T) {
	ahead := time.Now().Add(2 * time.Hour)
	db := fileAhead(t, "1/1h", ahead)
	export := write(t, "a.jsonl", fmt.Sprintf(`{"stint":1,"names":{"1":"default"}}
{"name":"default","id":"bob","tat":%d}
{"name":"default","id":"carol","tat":%d}
`, ahead.Add(time.Hour).UnixNano(), ahead.Add(-time.Hour).UnixNano()))
	r := runArgs(t, "import", "--db", db, export)
	require.Contains(t, r.stderr, "the clock says ")
	require.Equal(t, "imported  1 bucket and 0 holds; 0 stay as they are in the file; 1 expired\n", r.stdout)
}
