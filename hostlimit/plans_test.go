package hostlimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// With KeepOverrides, plans last over SetLimits in both roles, and over a change
// of the owner.
func TestKeepOverrides(t *testing.T) {
	path := filePath(t)
	limits := func(bob stint.Limit) *stint.Limits {
		return newLimits(t, stint.Names{perID: {Label: "PerID", Limit: stint.PerHour(2)}},
			stint.Override{Key: perID.Key("bob"), Limit: bob})
	}
	keep := &Options{LimiterOptions: stint.Options{KeepOverrides: true}}
	owner, guest := openOn(t, path, limits(stint.PerHour(3)), keep), openOn(t, path, limits(stint.PerHour(3)), keep)
	forgets := openOn(t, path, limits(stint.PerHour(3)), nil)
	require.Equal(t, RoleGuest, guest.Role())
	set := func(id string, limit stint.Limit) {
		for _, l := range []*Limiter{owner, guest, forgets} {
			require.NoError(t, l.SetOverrides(stint.Override{Key: perID.Key(id), Limit: limit}))
		}
	}
	burst := func(l *Limiter, id string) int64 {
		d := check(t, l, perID.Key(id))
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

	// A plan that a guest has put in force, and ended as the owner, is over.
	alice := stint.Override{Key: perID.Key("alice")}
	require.NoError(t, guest.SetOverrides(alice))
	alice.Limit = stint.PerHour(7)
	listed, err := limits(stint.PerHour(5)).With(alice)
	require.NoError(t, err)
	require.NoError(t, guest.SetLimits(listed))
	require.EqualValues(t, 7, burst(guest, "alice"))
}

// SetLimits keeps plans that fit together, in whatever order SetOverrides put
// them in force.
func TestKeepOverridesOfShares(t *testing.T) {
	limits := shareLimits(t)
	for range 20 { // the plans are in a map
		l := openOn(t, filePath(t), limits, &Options{LimiterOptions: stint.Options{KeepOverrides: true}})
		for _, id := range []string{"globex", "acme"} {
			tokens := map[string]int64{"globex": 10, "acme": 80}[id]
			plan := stint.Override{Key: tenantFloor.Key(id), Limit: stint.PerHour(tokens), Comment: id}
			require.NoError(t, l.SetOverrides(plan))
		}
		require.NoError(t, l.SetLimits(limits))
		_, _, kept, ok := l.Limits().Share(tenant.Key("acme"))
		require.True(t, ok)
		require.EqualValues(t, 90, kept)
		require.NoError(t, l.Close())
	}
}

// If an owner cannot save what SetOverrides converted, the plan is in force all
// the same: Limits shows it, and SetLimits keeps it.
func TestPlanNotDurable(t *testing.T) {
	folder := filepath.Join(filepath.Dir(filePath(t)), "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	synced := func(limit stint.Limit) stint.Limit {
		limit.Durability = stint.Synced
		return limit
	}
	limits := limitsWith(t, map[stint.Name]stint.Limit{perID: synced(stint.PerHour(10))})
	l := openOn(t, filepath.Join(folder, "quota.db"), limits, &Options{LimiterOptions: stint.Options{KeepOverrides: true}})
	key, plan := perID.Key("a"), synced(stint.PerHour(50))
	spend(t, l, key, 1)
	require.NoError(t, os.Rename(folder, folder+"-away"))
	err := l.SetOverrides(stint.Override{Key: perID.Key("a"), Limit: plan})
	require.ErrorIs(t, err, stint.ErrNotDurable)
	inForce := func() {
		t.Helper()
		require.Equal(t, plan, check(t, l, key).Limit)
		of, _ := l.Limits().For(key)
		require.Equal(t, plan, of)
	}
	inForce()
	require.NoError(t, os.Rename(folder+"-away", folder))
	require.NoError(t, l.SetLimits(limits))
	inForce()
}

// Totals and floors are the owner's. A guest's SetOverrides of one does what it
// promises, or returns an error.
func TestSetOverridesOfShares(t *testing.T) {
	path, limits := filePath(t), shareLimits(t)
	owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	acme := tenantFloor.Key("acme")
	plan := stint.Override{Key: acme, Limit: stint.PerHour(30)}
	same := func() {
		require.Equal(t, limits, guest.Limits(), "nothing was done")
	}
	require.EqualError(t, guest.SetOverrides(plan),
		`hostlimit: the limit of TenantFloor:acme is the owner's, which has 20/1h and not 30/1h: unsupported operation`)
	for _, others := range [][]stint.Override{
		{{Key: acme}},
		{
			{Key: perID.Key("initech"), Limit: stint.PerHour(1)},
			{Key: tenantFloor.Key("initech"), Limit: stint.PerHour(1)},
		},
		{{Key: total.Key(""), Limit: stint.PerHour(99)}},
	} {
		require.ErrorIs(t, guest.SetOverrides(others...), errors.ErrUnsupported)
		same()
	}
	for _, agreed := range []stint.Override{
		{Key: acme, Limit: stint.PerHour(20)}, {Key: tenant.Key("acme"), Limit: stint.PerHour(50)},
	} {
		require.NoError(t, guest.SetOverrides(agreed))
	}
	require.NoError(t, guest.Reset(tenant.Key("acme")))
	b := bucket(t, guest, tenant.Key("acme"))
	require.EqualValues(t, 50, b.Remaining, "a ceiling is the guest's")
	require.NoError(t, guest.SetOverrides(stint.Override{Key: tenantFloor.Key("initech")}))

	require.NoError(t, owner.SetOverrides(plan))
	require.NoError(t, guest.SetOverrides(plan), "the owner has it")
	for guest.Allow(tenant.Key("other")) { // borrows what it can
	}
	require.True(t, spend(t, guest, tenant.Key("acme"), 30).Allowed)

	withoutOwner(t, guest)
	require.ErrorIs(t, guest.SetOverrides(stint.Override{Key: acme, Limit: stint.PerHour(20)}), ErrNoOwner)
	require.NoError(t, guest.SetOverrides(stint.Override{Key: tenant.Key("acme"), Limit: stint.PerHour(60)}))
	require.NoError(t, owner.Close())
	require.NoError(t, guest.take())
	require.Equal(t, RoleOwner, guest.Role())
	require.NoError(t, guest.SetOverrides(stint.Override{Key: acme, Limit: stint.PerHour(20)}))
}

// A guest cannot bring a new tree of shares.
func TestTreeOfGuest(t *testing.T) {
	path := filePath(t)
	owner, guest := openOn(t, path, limitsWith(t, nil), nil), openOn(t, path, shareLimits(t), nil)
	require.ErrorAs(t, errorOf(guest.Spend(tenant.Key("acme"), 1)), new(*stint.ConfigError))
	spend(t, guest, perID.Key("a"), 1)
	require.NoError(t, owner.Close())
	require.True(t, spend(t, guest, tenant.Key("acme"), 1).Allowed)
}

// A guest's other new Names are declared beside a tree that the owner cannot add.
func TestNewNameBesideTree(t *testing.T) {
	path := filePath(t)
	limits := newLimits(t, stint.Names{shared: testNames[shared]})
	owner, guest := openOn(t, path, limits, nil), openOn(t, path, shareLimits(t), nil)
	ds := make([]stint.Decision, 2)
	err := guest.DoEach(context.Background(), []stint.Request{{Key: tenant.Key("acme"), Cost: 1}, {Key: perID.Key("a"), Cost: 1}}, ds)
	require.ErrorAs(t, err, new(*stint.ConfigError))
	require.ErrorContains(t, err, "request 0: ")
	require.NotContains(t, err.Error(), "request 1: ")
	require.True(t, ds[1].Allowed)
	require.NoError(t, owner.SetLimits(limits))
	require.NoError(t, errorOf(guest.Reserve(perID.Key("a").Cost(1))))
	require.NoError(t, owner.SetLimits(limits))
	spend(t, guest, perID.Key("a"), 1)
	for _, key := range []stint.Key{tenant.Key("acme"), total.Key("")} {
		require.ErrorAs(t, errorOf(guest.Spend(key, 1)), new(*stint.ConfigError))
	}
}

// manyPlans returns a Limiter that keeps overrides, and whose limits have so many.
func manyPlans(t testing.TB, n int) *Limiter {
	overrides := make([]stint.Override, n)
	for i := range overrides {
		overrides[i] = stint.Override{Key: perID.Key(fmt.Sprint("customer-", i)), Limit: stint.PerHour(7)}
	}
	limits := newLimits(t, testNames, overrides...)
	return openOn(t, filePath(t), limits, &Options{LimiterOptions: stint.Options{KeepOverrides: true}})
}

// A plan ends without a look at all overrides, also after so many limits have come
// that they are tidied up.
func TestEndOfPlanAmongMany(t *testing.T) {
	const n, rounds = 50_000, 1500
	l := manyPlans(t, n)
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	before := allocated()
	for i := range rounds {
		for _, limit := range []stint.Limit{stint.PerHour(int64(9 + i)), {}} {
			require.NoError(t, l.SetOverrides(stint.Override{Key: perID.Key(fmt.Sprint("new-", i)), Limit: limit}))
		}
	}
	require.Less(t, allocated()-before, uint64(4*rounds*n), "four bytes for each override in each round")
	require.Empty(t, l.plans)
	require.NoError(t, l.SetOverrides(stint.Override{Key: perID.Key("customer-7")}))
	require.Len(t, l.plans, 1, "the limits list it, so it stays removed")
}

func BenchmarkEndOfPlan(b *testing.B) {
	l := manyPlans(b, 200_000)
	for b.Loop() {
		require.NoError(b, l.SetOverrides(stint.Override{Key: perID.Key("x")}))
	}
}
