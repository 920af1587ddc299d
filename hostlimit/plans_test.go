package hostlimit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Plans last over a change of the owner, in both roles, and over a SetLimits whose
// limits have them.
func TestPlans(t *testing.T) {
	path := filePath(t)
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: stint.PerHour(2)}},
		stint.Override{Key: perID.Key("bob"), Limit: stint.PerHour(3)})
	plans := []stint.Override{{Key: perID.Key("alice"), Limit: stint.PerHour(50)}, {Key: perID.Key("bob")}}
	owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	require.Equal(t, RoleGuest, guest.Role())
	inForce := func(l *Limiter, alice, bob int64) {
		t.Helper()
		for id, burst := range map[string]int64{"alice": alice, "bob": bob} {
			require.Equal(t, burst, check(t, l, perID.Key(id)).Limit.Burst, id)
			of := l.Limits().For(perID.Key(id))
			require.Equal(t, burst, of.Burst, id)
		}
	}
	with, err := limits.With(plans...)
	require.NoError(t, err)
	for _, l := range []*Limiter{owner, guest} {
		require.NoError(t, l.SetOverrides(plans...))
		inForce(l, 50, 2)
		require.NoError(t, l.SetLimits(limits))
		inForce(l, 2, 3)
		require.NoError(t, l.SetLimits(with))
		inForce(l, 50, 2)
		require.NoError(t, l.SetLimits(limits))
		require.NoError(t, l.SetOverrides(plans...))
	}
	require.NoError(t, owner.Close())
	inForce(guest, 50, 2)
	require.Equal(t, RoleOwner, guest.Role())
	require.NoError(t, guest.SetOverrides(stint.Override{Key: perID.Key("alice")}))
	inForce(guest, 2, 2)
}

// A plan that all processes take up, while one of them becomes the owner, converts a
// bucket once: the owner before has done it.
func TestPlanDuringTakeover(t *testing.T) {
	path, alice := filePath(t), perID.Key("alice")
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: stint.PerHour(2)}},
		stint.Override{Key: alice, Limit: stint.PerDay(1000)})
	upgraded, err := limits.With(stint.Override{Key: alice, Limit: stint.PerDay(20_000)})
	require.NoError(t, err)
	owner, next := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	spend(t, owner, alice, 800)
	require.NoError(t, owner.SetLimits(upgraded))
	withoutOwner(t, next)
	require.NoError(t, owner.Close())
	b, err := next.try()
	require.NoError(t, err)
	require.NotNil(t, b.limiter)
	require.NoError(t, next.SetLimits(upgraded))
	if err := next.become(b); err != nil {
		require.ErrorIs(t, err, ErrNoOwner) // take tries again
		require.NoError(t, next.take())
	}
	require.Equal(t, RoleOwner, next.Role())
	remaining := check(t, next, alice).Remaining
	require.GreaterOrEqual(t, remaining, int64(19_199))
	require.Less(t, remaining, int64(19_500)) // 19,960 if it was converted twice
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
	l := openOn(t, filepath.Join(folder, "quota.db"), limits, nil)
	key, plan := perID.Key("a"), synced(stint.PerHour(50))
	spend(t, l, key, 1)
	require.NoError(t, os.Rename(folder, folder+"-away"))
	err := l.SetOverrides(stint.Override{Key: perID.Key("a"), Limit: plan})
	require.ErrorIs(t, err, stint.ErrNotDurable)
	inForce := func() {
		t.Helper()
		require.Equal(t, plan, check(t, l, key).Limit)
		of := l.Limits().For(key)
		require.Equal(t, plan, of)
	}
	inForce()
	require.NoError(t, os.Rename(folder+"-away", folder))
	require.NoError(t, l.Flush())
	inForce()
}
