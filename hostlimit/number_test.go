package hostlimit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

// All processes have the same numbers for labels, whichever of them has the file,
// and whether it declares the labels or not.
func TestNumber(t *testing.T) {
	t.Parallel()
	path := filePath(t)
	orders := newLimits(t, stint.Names{7: {Label: "Orders", Limit: stint.PerDay(7)}})
	require.NoError(t, openOn(t, path, newLimits(t, stint.Names{
		1: {Label: "Total", IDs: stint.Single, Limit: stint.PerDay(7)}}), nil).Close())
	owner := openOn(t, path, orders, nil)
	guest := openOn(t, path, newLimits(t, nil), nil)
	require.Equal(t, RoleGuest, guest.Role())
	number := func(l *Limiter, label string, want stint.Name) {
		t.Helper()
		n, err := l.Number(label)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	number(guest, "Total", 1)
	number(guest, "Orders", 7)
	number(guest, "Logins", 2)
	number(owner, "Logins", 2)
	number(owner, "Mails", 3)
	number(guest, "Mails", 3)
	require.Equal(t, orders, owner.Limits(), "a number is no limit")
	require.NoError(t, owner.Close())
	number(guest, "Logins", 2)
	require.Equal(t, RoleOwner, guest.Role())

	// The owner has no Names. It serves those of a guest.
	late := openOn(t, path, orders, nil)
	require.True(t, late.Allow(stint.Name(7).Key("ada")))
	for _, l := range []*Limiter{guest, openOn(t, path, orders, nil)} {
		require.ErrorIs(t, errorOf(l.Number(strings.Repeat("l", 1025))), wire.ErrTooLong)
		require.ErrorContains(t, errorOf(l.Number("")), "no label")
	}
}

// A guest has declared Names that it has not used yet. A new label gets neither the
// number nor the label of one of them, whichever process asks.
func TestNumberBesideNamesOfGuests(t *testing.T) {
	t.Parallel()
	path := filePath(t)
	owner := openOn(t, path, limitsWith(t, nil), nil)
	limits := newLimits(t, stint.Names{
		4: {Label: "Logins", Limit: stint.PerHour(3)}, 7: {Label: "Mails", Limit: stint.PerHour(3)}})
	guest, other := openOn(t, path, limits, nil), openOn(t, path, limitsWith(t, nil), nil)
	for label, want := range map[string]stint.Name{"Mails": 7, "New": 5} {
		for _, l := range []*Limiter{other, guest, owner} {
			n, err := l.Number(label)
			require.NoError(t, err)
			require.Equal(t, want, n, label)
		}
	}
	for name := range limits.Names() {
		spend(t, guest, name.Key("a"), 1)
	}
}

// An owner without a file has no numbers to give.
func TestNumberWithoutFile(t *testing.T) {
	t.Parallel()
	path := filePath(t)
	limits := newLimits(t, nil)
	memory := inMemory(t, stint.NewMemStore(), limits, nil)
	serveOn(t, memory, path)
	guest := dialOn(t, path, nil, nil)
	require.ErrorContains(t, errorOf(guest.Number("Logins")), "keeps no labels")
}
