package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	unlimited := succeeds(t, "allow", "--db", db, "--limits", defaults, "--overrides", overrides,
		"--name", "Exports", "--json", "alice")
	assert.Contains(t, unlimited, `"remaining":9223372036854775807,"limit":null,`)

	inOrderOfFirstUse := `{"1":"Logins","2":"Orders","3":"Exports"}` + "\n"
	assert.Equal(t, inOrderOfFirstUse, succeeds(t, "names", "--json", "--db", db))
	assert.Regexp(t, `^`+
		`Exports  12345678        1 of 2 left, full in \S+\n`+
		`Logins   alice           4 of 5 left, full in \S+\n`+
		`Orders   12345678        0 of 1 left, full in \S+\n`+
		`Orders   alice           299 of 300 left, full in \S+\n`+
		`Orders   le.wtf,le1.wtf  0 of 1 left, full in \S+\n$`,
		succeeds(t, "list", "--db", db, "--limits", defaults, "--overrides", overrides))

	o := object(t, succeeds(t, "list", "--db", db, "--limits", defaults, "--name", "Logins", "--json"))
	assert.Equal(t, "Logins", o["name"])
	assert.Equal(t, "alice", o["id"])
	assert.Equal(t, 4.0, o["remaining"])
	assert.Equal(t, map[string]any{"burst": 5.0, "count": 5.0, "period": "1h0m0s"}, o["limit"])
	assert.Greater(t, o["reset_after_ns"], 0.0)
	assert.Len(t, o, 5)

	assert.Regexp(t, `^Logins  alice  \d of 10 left, full in \S+\n$`,
		succeeds(t, "list", "--db", db, "--limit", "10/1h", "--name", "Logins"))
	fails(t, 2, `the file has no limit "Odrers"`, "list", "--db", db, "--name", "Odrers")
}

func TestLimitsCheck(t *testing.T) {
	defaults, overrides := write(t, "defaults.yml", testDefaults), write(t, "overrides.yml", testOverrides)
	assert.Equal(t, result{0, "valid  " + defaults + "  2 limits\n", ""}, runArgs(t, "limits", "check", defaults))
	assert.Equal(t, result{0, "valid  " + defaults + " " + overrides + "  3 limits\n", ""},
		runArgs(t, "limits", "check", defaults, overrides))

	bad := write(t, "bad.yml",
		"Orders:\n  burst: 0\n  count: 1\n  period: 1m\nLogins:\n  burst: 1\n  count: 1\n  period: soon\n")
	badToo := write(t, "bad_overrides.yml", "- Orders:\n    burst: 1\n    count: 1\n    period: 1m\n    idz: [1]\n")
	for _, at := range []string{bad + ":2: ", bad + ":8: ", badToo + ":5: "} {
		assert.Empty(t, fails(t, 2, "stint: "+at, "limits", "check", bad, badToo).stdout)
	}
	r := runArgs(t, "limits", "check", "--json", bad, badToo)
	assert.Equal(t, 2, r.status)
	o := object(t, r.stdout)
	assert.Equal(t, false, o["valid"])
	assert.Equal(t, []any{bad, badToo}, o["files"])
	assert.Equal(t, strings.Count(r.stderr, "\n"), len(o["mistakes"].([]any)))
	assert.Equal(t, bad+":2: Orders: burst is 0, want at least 1", o["mistakes"].([]any)[0])
	assert.Equal(t, map[string]any{"valid": true, "files": []any{defaults}, "limits": []any{"Logins", "Orders"},
		"mistakes": []any{}}, object(t, succeeds(t, "limits", "check", "--json", defaults)))
	assert.Empty(t, fails(t, 2, "missing.yml", "limits", "check", "--json", "missing.yml").stdout)
	notYAML := write(t, "not.yml", "a: [\n")
	fails(t, 2, notYAML, "limits", "check", notYAML)
}
