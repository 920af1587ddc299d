package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// TestDecisions runs the commands one after another on one file. The limit gives back a token in eight hours: the
// time that a step takes does not show.
func TestDecisions(t *testing.T) {
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

	r := runArgs(t, "reset", "alice", "--db", db)
	assert.Equal(t, result{0, "reset  alice  full\n", ""}, r)
	r = runArgs(t, "list", "--db", db)
	assert.Regexp(t, `^default  bob    full in \S+\nother    alice  full in \S+\n$`, r.stdout)
}

func TestDecisionJSON(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	args := func(command string) []string {
		return []string{command, "--db", db, "--limit", "1/1m", "--burst", "2", "--cost", "2", "--json", "<a>"}
	}
	r := runArgs(t, args("check")...)
	assert.Equal(t, result{0, `{"allowed":true,"name":"default","id":"<a>","cost":2,"remaining":0,` +
		`"limit":{"burst":2,"count":1,"period":"1m0s"},"retry_after_ns":0,"reset_after_ns":120000000000}` + "\n", ""}, r)

	require.Equal(t, 0, runArgs(t, args("allow")...).status)
	r = runArgs(t, args("allow")...)
	require.Equal(t, 1, r.status)
	o := object(t, r.stdout)
	assert.Equal(t, false, o["allowed"])
	assert.Greater(t, o["retry_after_ns"], 0.0)
	assert.LessOrEqual(t, o["retry_after_ns"], 120e9)
	assert.Equal(t, o["retry_after_ns"], o["reset_after_ns"], "all of it is asked for")

	r = runArgs(t, "reset", "--db", db, "--json", "<a>")
	assert.Equal(t, result{0, `{"allowed":true,"name":"default","id":"<a>","cost":0,"remaining":9223372036854775807,` +
		`"limit":null,"retry_after_ns":0,"reset_after_ns":0}` + "\n", ""}, r)
}

func TestOnlyAllowMakesAFile(t *testing.T) {
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
	assert.FileExists(t, db)
	for command, status := range map[string]int{"check": 0, "refund": 2, "reset": 2} {
		require.Equal(t, status, runArgs(t, command, "--limit", "3/1m", "--name", "unheard", "alice").status)
	}
	store, err := stint.OpenBolt(db, nil, nil)
	require.NoError(t, err)
	defer store.Close()
	assert.Equal(t, map[stint.Name]string{1: defaultLabel}, namesOf(store))
}

const (
	testDefaults = `
Orders: {burst: 300, count: 300, period: 180m}
Logins: {burst: 5, count: 5, period: 1h, durability: synced}
`
	testOverrides = `
- Orders:
    burst: 1
    count: 1
    period: 1h
    ids: [12345678, {id: "le.wtf,le1.wtf", comment: two}]
- Exports: # which has no default
    burst: 2
    count: 2
    period: 1h
    ids: [12345678]
`
)

func TestLimitsFiles(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	defaults, overrides := write(t, "defaults.yml", testDefaults), write(t, "overrides.yml", testOverrides)
	for _, step := range []struct {
		label, id, stdout string
		status            int
	}{
		{"Logins", "alice", "allowed  alice  4 of 5 left", 0},
		{"Orders", "alice", "allowed  alice  299 of 300 left", 0},
		{"Orders", "12345678", "allowed  12345678  0 of 1 left", 0},
		{"Orders", "12345678", "denied  12345678  0 of 1 left", 1},
		{"Orders", "le.wtf,le1.wtf", "allowed  le.wtf,le1.wtf  0 of 1 left", 0},
		{"Exports", "12345678", "allowed  12345678  1 of 2 left", 0},
		{"Exports", "alice", "allowed  alice  no limit", 0},
	} {
		r := runArgs(t, "allow", "--db", db, "--limits", defaults, "--overrides", overrides, "--name", step.label, step.id)
		require.Equal(t, step.status, r.status, r.stderr)
		require.Contains(t, r.stdout, step.stdout)
	}
	r := runArgs(t, "allow", "--db", db, "--limits", defaults, "--overrides", overrides, "--name", "Exports", "--json", "alice")
	assert.Contains(t, r.stdout, `"remaining":9223372036854775807,"limit":null,`)

	store, err := stint.OpenBolt(db, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, map[stint.Name]string{1: "Logins", 2: "Orders", 3: "Exports"}, namesOf(store), "in the order of their first use")
	require.NoError(t, store.Close())

	r = runArgs(t, "list", "--db", db, "--limits", defaults, "--overrides", overrides)
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Regexp(t, `^`+
		`Exports  12345678        1 of 2 left, full in \S+\n`+
		`Logins   alice           4 of 5 left, full in \S+\n`+
		`Orders   12345678        0 of 1 left, full in \S+\n`+
		`Orders   alice           299 of 300 left, full in \S+\n`+
		`Orders   le.wtf,le1.wtf  0 of 1 left, full in \S+\n$`, r.stdout)

	r = runArgs(t, "list", "--db", db, "--limits", defaults, "--name", "Logins", "--json")
	o := object(t, r.stdout)
	assert.Equal(t, "Logins", o["name"])
	assert.Equal(t, "alice", o["id"])
	assert.Equal(t, 4.0, o["remaining"])
	assert.Equal(t, map[string]any{"burst": 5.0, "count": 5.0, "period": "1h0m0s"}, o["limit"])
	assert.Greater(t, o["reset_after_ns"], 0.0)
	assert.Len(t, o, 5)

	r = runArgs(t, "list", "--db", db, "--limit", "10/1h", "--name", "Logins")
	assert.Regexp(t, `^Logins  alice  \d of 10 left, full in \S+\n$`, r.stdout)
	r = runArgs(t, "list", "--db", db, "--name", "Odrers")
	assert.Equal(t, 2, r.status)
	assert.Contains(t, r.stderr, `the file has no limit "Odrers"`)
}

// TestList: what list says of a file, without a Limiter, is what a Limiter says; and the file stays as it is.
func TestList(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	names := stint.Names{1: {Label: "b"}, 2: {Label: "a"}}
	limit := stint.Limit{Burst: 7, Count: 3, Period: 24 * time.Hour}
	limits, err := stint.NewLimits(names, map[stint.Name]stint.Limit{1: limit, 2: limit}, nil)
	require.NoError(t, err)
	limiter, err := stint.Open(db, limits, nil)
	require.NoError(t, err)
	left := map[string]int64{}
	for i := range int64(7) {
		key := stint.Name(1).Key(string(rune('z' - i)))
		d, err := limiter.Spend(key, i)
		require.NoError(t, err)
		left[key.ID] = d.Remaining
	}
	require.NoError(t, limiter.Hold(stint.Name(1).Key("x"), time.Now().Add(100*time.Hour)))
	require.NoError(t, limiter.Hold(stint.Name(2).Key("full"), time.Now().Add(100*time.Hour)))
	require.NoError(t, limiter.Close())
	before, err := os.ReadFile(db)
	require.NoError(t, err)

	r := runArgs(t, "list", "--db", db)
	require.Equal(t, 0, r.status, r.stderr)
	assert.Regexp(t, `^a  full  full, held for \S+\nb  t     full in \S+\nb  u     full in \S+\nb  v     full in \S+\n`+
		`b  w     full in \S+\nb  x     full in \S+, held for \S+\nb  y     full in \S+\n$`, r.stdout)

	r = runArgs(t, "list", "--db", db, "--limit", "3/1d", "--burst", "7", "--name", "b", "--json")
	lines := strings.SplitAfter(strings.TrimSuffix(r.stdout, "\n"), "\n")
	require.Len(t, lines, 6)
	for _, line := range lines {
		o := object(t, strings.TrimSuffix(line, "\n")+"\n")
		assert.EqualValues(t, left[o["id"].(string)], o["remaining"], line)
		assert.Equal(t, o["id"] == "x", o["held_ns"] != nil)
	}
	// A limit that was made smaller: nobody waits longer than it takes to fill an empty bucket.
	r = runArgs(t, "list", "--db", db, "--limit", "1/1h", "--name", "b")
	assert.Equal(t, 6, strings.Count(r.stdout, "  0 of 1 left, full in 1h"), r.stdout)

	assert.Equal(t, result{0, "", ""}, runArgs(t, "list", "--db", db, "--quiet"))
	after, err := os.ReadFile(db)
	require.NoError(t, err)
	assert.True(t, string(before) == string(after), "list changed the file")

	r = runArgs(t, "reset", "--db", db, "--name", "a", "full")
	require.Equal(t, 0, r.status, r.stderr)
	assert.NotContains(t, runArgs(t, "list", "--db", db).stdout, "a  full", "reset ends a hold")
}

func TestLimitsCheck(t *testing.T) {
	defaults, overrides := write(t, "defaults.yml", testDefaults), write(t, "overrides.yml", testOverrides)
	assert.Equal(t, result{0, "valid  " + defaults + "  2 limits\n", ""}, runArgs(t, "limits", "check", defaults))
	assert.Equal(t, result{0, "valid  " + defaults + " " + overrides + "  3 limits\n", ""}, runArgs(t, "limits", "check", defaults, overrides))

	bad := write(t, "bad.yml", "Orders:\n  burst: 0\n  count: 1\n  period: 1m\nLogins:\n  burst: 1\n  count: 1\n  period: soon\n")
	badToo := write(t, "bad_overrides.yml", "- Orders:\n    burst: 1\n    count: 1\n    period: 1m\n    idz: [1]\n")
	r := runArgs(t, "limits", "check", bad, badToo)
	assert.Equal(t, 2, r.status)
	assert.Empty(t, r.stdout)
	for _, at := range []string{bad + ":2: ", bad + ":8: ", badToo + ":5: "} {
		assert.Contains(t, r.stderr, "stint: "+at)
	}

	notYAML := write(t, "not.yml", "a: [\n")
	r = runArgs(t, "limits", "check", notYAML)
	assert.Equal(t, 2, r.status)
	assert.Contains(t, r.stderr, notYAML)
}

// TestSharedLimitsFiles: real limits files, of labels that no program declared.
func TestSharedLimitsFiles(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "data", "limits")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("for developers and CI only: ", err)
	}
	for _, set := range [][]string{
		{"documented-defaults.yml", "documented-overrides.yml"},
		{"boulder-defaults.yml", "boulder-overrides.yml"},
		{"boulder-working_defaults.yml", "boulder-working_overrides.yml"},
		{"boulder-working_defaults.yml", "boulder-working_override_13371338.yml", "boulder-working_overrides_regid_fqdnset.yml"},
	} {
		args := []string{"limits", "check"}
		for _, file := range set {
			args = append(args, filepath.Join(dir, file))
		}
		r := runArgs(t, args...)
		assert.Equal(t, 0, r.status, r.stderr)
	}
	r := runArgs(t, "check", "--db", filepath.Join(t.TempDir(), "none.db"), "--name", "CertificatesPerFQDNSet", "--json", "le.wtf,le1.wtf",
		"--limits", filepath.Join(dir, "boulder-defaults.yml"), "--overrides", filepath.Join(dir, "boulder-overrides.yml"))
	require.Equal(t, 0, r.status, r.stderr)
	assert.Equal(t, map[string]any{"burst": 10000.0, "count": 10000.0, "period": "168h0m0s"}, object(t, r.stdout)["limit"])
}

// TestCheckAfterAHold: one that is over stays in the file, which check leaves as it is.
func TestCheckAfterAHold(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	store, err := stint.OpenBolt(db, stint.Names{1: {Label: defaultLabel}}, nil)
	require.NoError(t, err)
	key := stint.Name(1).Key("a")
	require.NoError(t, store.Save([]stint.Change{{Key: stint.Unknown.Key(key.String()), TAT: 1}, {Key: key, TAT: 1}}))
	require.NoError(t, store.Close())
	r := runArgs(t, "check", "--db", db, "--limit", "3/1m", "a")
	assert.Equal(t, 0, r.status, r.stderr)
}

// TestResetManyWithLimits: as for one ID, --limits needs --name: "default" is none of its limits.
func TestResetManyWithLimits(t *testing.T) {
	limits := write(t, "limits.yml", "Orders: {burst: 3, count: 3, period: 1h}\n")
	db := filepath.Join(t.TempDir(), "a.db")
	require.Equal(t, 0, runArgs(t, "allow", "--db", db, "--limit", "3/1h", "alice").status)
	for _, args := range [][]string{{"--limits", limits}, {"--limits", limits, "--name", "Logins"}, {"--limits", "missing.yml"}, {"--limit", "nonsense"}} {
		r := runArgs(t, append([]string{"reset", "--db", db, "--all"}, args...)...)
		assert.Equal(t, 2, r.status, args)
		assert.Empty(t, r.stdout)
	}
	assert.Contains(t, runArgs(t, "list", "--db", db).stdout, "alice")
}

// TestSharedBucket: the one bucket of a stint.Shared limit has an empty id.
func TestSharedBucket(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	line := `{"stint":1,"names":{"1":"everyone"}}` + "\n" + `{"name":"everyone","id":"","tat":4000000000000000000}` + "\n"
	require.Equal(t, 0, runWith(t, strings.NewReader(line), "import", "--db", db).status)
	assert.Regexp(t, `^everyone  ""  full in `, runArgs(t, "list", "--db", db).stdout)
	r := runArgs(t, "show", "--db", db, "--name", "everyone", "")
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Regexp(t, `^everyone  ""\n`, r.stdout)
	assert.Equal(t, 2, runArgs(t, "show", "--db", db, "").status, "as of a variable that is not set")
	assert.Equal(t, 2, runArgs(t, "reset", "--db", db, "").status)
	assert.Equal(t, "reset  \"\"  full\n", runArgs(t, "reset", "--db", db, "--name", "everyone", "").stdout)
	assert.Empty(t, runArgs(t, "list", "--db", db).stdout)
}
