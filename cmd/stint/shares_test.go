package main

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
)

// show explains what a bucket has of its total.
func TestShowShare(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(file, content string) {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	write("limits.yml", `
Total:  {burst: 1000, count: 1000, period: 80000h}
Tenant: {burst: 600, count: 600, period: 60000h}
`)
	write("floors.yml", "- TenantFloor: {burst: 100, count: 100, period: 50000h, ids: [acme, globex]}\n")
	names := stint.Names{7: {Label: "Total", ID: stint.Shared}, 8: {Label: "Tenant"}, 9: {Label: "TenantFloor"}}
	save := func(changes ...stint.Change) {
		store, err := dbfile.Open("stint.db", names, nil)
		require.NoError(t, err)
		require.NoError(t, errors.Join(store.Declare(names), store.Save(changes), store.Close()))
	}
	spent := func(key stint.Key, hours time.Duration) stint.Change {
		return stint.Change{Key: key, TAT: time.Now().Add(hours * time.Hour).UnixNano()}
	}
	save(spent(stint.Name(7).Key(""), 690*80), spent(stint.Name(8).Key("acme"), 40*100),
		spent(stint.Name(9).Key("acme"), 88*500))
	show := func(id string, args ...string) result {
		return runArgs(t, append([]string{"show", id, "--db", "stint.db", "--limits", "limits.yml",
			"--overrides", "floors.yml", "--name", "Tenant"}, args...)...)
	}
	const flag = "--share=Tenant:Total:TenantFloor"
	r := show("acme", flag)
	require.Regexp(t, "^Tenant  acme\n  limit   600/60000h, the default in limits.yml\n  tokens  560 of 600 left\n"+
		"  share   own 12 of 100, ceiling 560 of 600, total 310 of 1000, keeps back 200\n  full    in ", r.stdout)
	r = show("acme", flag, "--json")
	require.Regexp(t, `"retry_after_ns":0,"share":{"own":{"remaining":12,"burst":100},`+
		`"total":{"remaining":310,"burst":1000},"kept":200}}\n$`, r.stdout)
	r = show("initech", flag)
	require.Contains(t, r.stdout, "  share   no floor, ceiling 600 of 600, total 310 of 1000, keeps back 200\n")
	require.NotContains(t, r.stdout, "next")

	save(spent(stint.Name(7).Key(""), 850*80))
	require.NotContains(t, show("acme", flag).stdout, "next", "its floor pays")
	require.Regexp(t, `  next    in 170d; requests are denied until then\n`, show("initech", flag).stdout) // 51 of 80 h

	for args, want := range map[string]string{
		"Tenant":              `want LABEL:TOTAL or LABEL:TOTAL:FLOOR`,
		"Tenant:Tpyo":         `limits.yml has no limit "Tpyo"`,
		"Total:Tenant:Tenant": "its Floor, Tenant, is itself or its Parent",
	} {
		r := show("acme", "--share", args)
		require.Equal(t, 2, r.status)
		require.Contains(t, r.stderr, want)
	}

	write("floors.yml", "- TenantFloor: {burst: 700, count: 700, period: 50000h, ids: [acme, globex]}\n")
	for _, want := range []string{
		`floors.yml:1: TenantFloor: the burst for "acme" is 700, above that of the ceiling, Tenant: 600`,
		`floors.yml:1: TenantFloor: the rate for "globex", 700/50000h, is above that of the ceiling, Tenant: 600/60000h`,
		"limits.yml:2: Total: the bursts of the floors of Tenant add up to 1400: want less than its burst, 1000",
		"limits.yml:2: Total: the floors of Tenant add up to ",
	} {
		fails(t, 2, want, "limits", "check", "limits.yml", "floors.yml", flag)
	}
}

// The document has what simulate prints of its scenario: the greedy tenant has
// all of an idle server, and its floor of a busy one.
func TestSharesDocument(t *testing.T) {
	printed := succeeds(t, "simulate", "--scenario", "../../testdata/shares/scenario.yml")
	document, err := os.ReadFile("../../docs/shares.md")
	require.NoError(t, err)
	require.Contains(t, string(document), "```text\n"+printed+"```\n")
	require.Contains(t, string(document),
		"\n  share   own 12 of 100, ceiling 560 of 600, total 310 of 1000, keeps back 200\n")
}
