package hostlimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// With KeepOverrides, plans last over SetLimits in both roles, and over a change
// of the owner.
func TestKeepOverrides(t *testing.T) {
	path := filePath(t)
	limits := func(bob stint.Limit) *stint.Limits {
		l, err := stint.NewLimits(stint.Names{perID: {Label: "PerID", Limit: stint.PerHour(2)}}, nil,
			map[stint.Name][]stint.Override{perID: {{IDs: []stint.OverrideID{{ID: "bob"}}, Limit: bob}}})
		require.NoError(t, err)
		return l
	}
	keep := &Options{LimiterOptions: stint.Options{KeepOverrides: true}}
	owner, guest := openOn(t, path, limits(stint.PerHour(3)), keep), openOn(t, path, limits(stint.PerHour(3)), keep)
	forgets := openOn(t, path, limits(stint.PerHour(3)), nil)
	require.Equal(t, RoleGuest, guest.Role())
	set := func(id string, limit stint.Limit) {
		for _, l := range []*Limiter{owner, guest, forgets} {
			require.NoError(t, l.SetOverrides(stint.OverrideID{ID: id}, map[stint.Name]stint.Limit{perID: limit}))
		}
	}
	burst := func(l *Limiter, id string) int64 {
		d, err := l.Check(perID.Key(id), 0)
		require.NoError(t, err)
		of, ok := l.Limits().For(perID.Key(id))
		require.True(t, ok)
		require.Equal(t, d.Limit.Burst, of.Burst)
		return of.Burst
	}
	set("alice", stint.PerHour(50))
	set("bob", stint.Limit{})
	set("carol", stint.PerHour(60))
	set("carol", stint.Limit{})
	for _, l := range []*Limiter{owner, guest, forgets} {
		require.EqualValues(t, 50, burst(l, "alice"))
		require.NoError(t, l.SetLimits(limits(stint.PerHour(4))))
	}
	for _, l := range []*Limiter{owner, guest} {
		require.EqualValues(t, 50, burst(l, "alice"))
		require.EqualValues(t, 2, burst(l, "bob"), "the override stays removed")
		require.EqualValues(t, 2, burst(l, "carol"))
	}
	require.EqualValues(t, 2, burst(forgets, "alice"))
	require.EqualValues(t, 4, burst(forgets, "bob"))

	require.NoError(t, forgets.Close())
	require.NoError(t, owner.Close())
	require.EqualValues(t, 50, burst(guest, "alice"))
	require.Equal(t, RoleOwner, guest.Role())
	require.NoError(t, guest.SetLimits(limits(stint.PerHour(5))))
	require.EqualValues(t, 50, burst(guest, "alice"))
	require.EqualValues(t, 2, burst(guest, "bob"))
}

// SetLimits keeps plans that fit together, in whatever order SetOverrides put
// them in force.
func TestKeepOverridesOfShares(t *testing.T) {
	limits := shareLimits(t)
	for range 20 { // the plans are in a map
		l := openOn(t, filePath(t), limits, &Options{LimiterOptions: stint.Options{KeepOverrides: true}})
		for _, id := range []string{"globex", "acme"} {
			tokens := map[string]int64{"globex": 10, "acme": 80}[id]
			plan := map[stint.Name]stint.Limit{tenantFloor: stint.PerHour(tokens)}
			require.NoError(t, l.SetOverrides(stint.OverrideID{ID: id, Comment: id}, plan))
		}
		require.NoError(t, l.SetLimits(limits))
		of, ok := l.Limits().Share(tenant.Key("acme"))
		require.True(t, ok)
		require.EqualValues(t, 90, of.Kept)
		require.NoError(t, l.Close())
	}
}
