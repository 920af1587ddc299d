package limitsfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// tenants declares two classes of one total.
func tenants() stint.Names {
	return stint.Names{
		1: {Label: "Total", ID: stint.Shared},
		2: {Label: "Tenant", Parent: 1, Floor: 3},
		3: {Label: "TenantFloor"},
		4: {Label: "Batch", ID: stint.Shared, Parent: 1, Floor: 5},
		5: {Label: "BatchFloor", ID: stint.Shared},
	}
}

const tenantDefaults = `
Total:  {burst: 1000, count: 1000, period: 1s}
Tenant: {burst: 600, count: 600, period: 1s}
Batch:  {burst: 50, count: 50, period: 1s}
BatchFloor: {burst: 10, count: 50, period: 1s}
`

func lines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestShares(t *testing.T) {
	limits, err := Parse(tenants(), []byte(tenantDefaults), []byte(`
- TenantFloor: {burst: 100, count: 200, period: 1s, ids: [acme, globex]}
`), []byte(`
- group: gold
  ids: [initech]
  limits:
    Tenant: {burst: 700, count: 700, period: 1s}
    TenantFloor: {burst: 700, count: 550, period: 1s}
`))
	require.NoError(t, err)
	total, floor, kept, ok := limits.Share(stint.Name(2).Key("acme"))
	require.True(t, ok)
	require.Equal(t, []stint.Key{{Name: 1}, stint.Name(3).Key("acme")}, []stint.Key{total, floor})
	require.EqualValues(t, 910, kept)
	_, floor, _, _ = limits.Share(stint.Name(2).Key("umbrella"))
	require.Zero(t, floor)

	limits, err = Load(tenants(), "../testdata/shares/defaults.yml", "../testdata/shares/overrides.yml")
	require.NoError(t, err)
	_, _, kept, _ = limits.Share(stint.Name(2).Key("globex"))
	require.EqualValues(t, 200, kept)

	limits, err = Parse(tenants(), []byte("{}"), []byte("- TenantFloor: {burst: 1, count: 1, period: 1s, ids: [a]}"))
	require.NoError(t, err, "without a total, nothing is too much")
	require.NotNil(t, limits)
}

// All mistakes are reported at once, each with its place: those in a file, the
// floors that do not fit, and the wrong declarations.
func TestMistakesInShares(t *testing.T) {
	names := tenants()
	names[6] = stint.NameSpec{Label: "Chicken", ID: stint.Shared, Parent: 7}
	names[7] = stint.NameSpec{Label: "Egg", ID: stint.Shared, Parent: 6}
	names[8] = stint.NameSpec{Label: "PerIP", ID: stint.IPAddress}
	names[9] = stint.NameSpec{Label: "PerUser", Parent: 8}
	_, err := Parse(names, []byte(tenantDefaults+`
Chicken: {burst: 1, count: 1, period: 1s}
Egg: {burst: 1, count: 1, period: 1s}
PerIP: {burst: 1, count: 1, period: 1s}
PerUser: {burst: 1, count: 1, period: 1s}
`), []byte(`
- TenantFloor: {burst: 100, count: 600, period: 1s, ids: [acme]}
- Tenant: {burst: 50, count: 100, period: 1s, ids: [globex]}
- TenantFloor:
    burst: 900
    count: 400
    period: 1s
    ids:
      - initech
      - {id: globex, comment: too much}
- Tenant: {burst: 0, count: 1, period: 1s, ids: [initech]}
`))
	require.Equal(t, []string{
		`overrides:11: Tenant: burst is 0, want at least 1`,
		`defaults:7: Chicken: its Parent leads back to it: Chicken, Egg, Chicken`,
		`defaults:8: Egg: its Parent leads back to it: Egg, Chicken, Egg`,
		`defaults:10: PerUser: its Parent, PerIP, has ids of format ipAddress: want stint.Shared`,
		`overrides:10: TenantFloor: the burst for "globex" is 900, above that of the ceiling, Tenant: 50`,
		`overrides:10: TenantFloor: the rate for "globex", 400/1s, is above that of the ceiling, Tenant: 100/1s`,
		`defaults:2: Total: the bursts of the floors of Tenant and Batch add up to 1910: want less than its burst, 1000`,
		`defaults:2: Total: the floors of Tenant and Batch add up to 1450/1s: want no more than its 1000/1s`,
	}, lines(err))
	var wrong *stint.ConfigError
	require.True(t, errors.As(err, &wrong))

	_, err = Parse(tenants(), []byte(tenantDefaults+"TenantFloor: {burst: 1, count: 1, period: 1s}\n"), []byte(`
- TenantFloor: {blocked: true, ids: [acme]}
- TenantFloor: {unlimited: true, ids: [globex]}
`))
	require.Equal(t, []string{
		"overrides:2: TenantFloor: a floor of Tenant is blocked: want a limit",
		"overrides:3: TenantFloor: a floor of Tenant is unlimited: want a limit",
		"defaults:6: TenantFloor: it is the floor of Tenant: want overrides for the ids that have one, and no default",
	}, lines(err))
}

// A mistake in an override has the line of that override, even if the default of
// the limit is in another file.
func TestMistakesInOverridesOfShares(t *testing.T) {
	_, err := Parse(tenants(), []byte(tenantDefaults), []byte(`
- TenantFloor: {burst: 1, count: 1, period: 1s, ids: [acme]}
- TenantFloor: {quota: 5, resets: daily, ids: [globex]}
- Tenant: {quota: 5, resets: daily, ids: [acme, initech]}
- group: gold
  ids: [globex]
  limits:
    Tenant: {quota: 5, resets: hourly}
`), []byte(`
- Total: {quota: 9, resets: yearly, ids: [""]}
`))
	const why = " follows the calendar: a total, its shares and its floors are rates"
	require.Equal(t, []string{
		`overrides 2:2: Total: override of "": 9/year` + why,
		`overrides:4: Tenant: override of "acme": 5/day` + why,
		`overrides:4: Tenant: override of "initech": 5/day` + why,
		`overrides:6: Tenant: override of "globex": 5/hour` + why,
		`overrides:3: TenantFloor: override of "globex": 5/day` + why,
	}, lines(err))

	_, err = Parse(tenants(), []byte(tenantDefaults), []byte(`
- TenantFloor: {burst: 100, count: 100, period: 1s, ids: [acme]}

- Total: {burst: 110, count: 10, period: 1s, ids: [""]}
`))
	require.Equal(t, []string{
		"overrides:4: Total: the bursts of the floors of Tenant and Batch add up to 110: want less than its burst, 110",
		"overrides:4: Total: the floors of Tenant and Batch add up to 150/1s: want no more than its 10/1s",
	}, lines(err))
}

func TestWrongTrees(t *testing.T) {
	for _, c := range []struct {
		name stint.Name
		spec stint.NameSpec
		want string
	}{
		{2, stint.NameSpec{Label: "Tenant", Parent: 9}, "Tenant: its Parent, Name 9, is not declared"},
		{2, stint.NameSpec{Label: "Tenant", Floor: 3}, "Tenant: it has a Floor and no Parent: want both, or no Floor"},
		{2, stint.NameSpec{Label: "Tenant", Parent: 1, Floor: 9}, "Tenant: its Floor, Name 9, is not declared"},
		{2, stint.NameSpec{Label: "Tenant", Parent: 1, Floor: 1},
			"Tenant: its Floor, Total, is itself or its Parent: want another limit"},
		{2, stint.NameSpec{Label: "Tenant", ID: stint.IPAddress, Parent: 1, Floor: 3},
			"Tenant: its Floor, TenantFloor, has ids of format anyID: want ipAddress, and no Override"},
		{6, stint.NameSpec{Label: "Other", Parent: 1, Floor: 3},
			"Other: its Floor, TenantFloor, is also the Floor of Tenant: want a Floor for each"},
		{3, stint.NameSpec{Label: "TenantFloor", Parent: 1},
			"Tenant: its Floor, TenantFloor, has a Parent or a Floor: want a limit with neither"},
		{6, stint.NameSpec{Label: "Other", Parent: 4}, "Other: its Parent, Batch, has a Parent: want two levels"},
		{6, stint.NameSpec{Label: "Other", Parent: 5}, "Batch: its Floor, BatchFloor, is the Parent of Other"},
		{1, stint.NameSpec{Label: "Total", ID: stint.Shared, Parent: 1}, "Total: its Parent leads back to it: Total, Total"},
	} {
		names := tenants()
		names[c.name] = c.spec
		_, err := Parse(names, []byte("{}"))
		require.Contains(t, lines(err), "stint: "+c.want)
	}
}
