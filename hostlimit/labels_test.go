package hostlimit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
)

// The labels come from the file, or from the process that shares it. A process
// that does not share it is waited for.
func TestLabels(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	labels, err := hostlimit.Labels(path)
	require.NoError(t, err)
	require.Empty(t, labels)

	limits, err := stint.NewLimits(stint.Names{
		3: {Label: "Logins", Limit: stint.PerHour(3)},
		7: {Label: "Orders", Limit: stint.PerDay(7)},
	}, nil, nil)
	require.NoError(t, err)
	want := map[stint.Name]string{3: "Logins", 7: "Orders"}
	owner, err := hostlimit.Open(path, limits, nil)
	require.NoError(t, err)
	labels, err = hostlimit.Labels(path)
	require.NoError(t, err)
	require.Equal(t, want, labels)
	require.NoError(t, owner.Close())
	labels, err = hostlimit.Labels(path)
	require.NoError(t, err)
	require.Equal(t, want, labels)

	few, err := stint.NewLimits(stint.Names{7: {Label: "Orders", Limit: stint.PerDay(7)}}, nil, nil)
	require.NoError(t, err)
	owner, err = hostlimit.Open(path, few, nil)
	require.NoError(t, err)
	labels, err = hostlimit.Labels(path)
	require.NoError(t, err)
	require.Equal(t, want, labels, "also those that the owner does not declare")
	require.NoError(t, owner.Close())
	owner, err = hostlimit.Open(path, few, &hostlimit.Options{MaxGuests: 1})
	require.NoError(t, err)
	labels, err = hostlimit.Labels(path)
	require.ErrorIs(t, err, hostlimit.ErrRefused, "a copy needs a second connection")
	require.Nil(t, labels)
	require.NoError(t, owner.Close())

	memory, err := stint.New(stint.NewMemStore(), few, nil)
	require.NoError(t, err)
	server, err := hostlimit.Serve(memory, path, nil)
	require.NoError(t, err)
	held, err := stint.OpenBolt(path, nil, nil)
	require.NoError(t, err)
	labels, err = hostlimit.Labels(path)
	require.NoError(t, err)
	require.Equal(t, map[stint.Name]string{7: "Orders"}, labels, "without a copy, those of the owner")
	require.NoError(t, held.Close())
	require.NoError(t, server.Close())
	require.NoError(t, memory.Close())

	alone, err := stint.Open(path, limits, nil)
	require.NoError(t, err)
	_, err = hostlimit.Labels(path)
	require.ErrorIs(t, err, stint.ErrLocked)
	require.NoError(t, alone.Close())

	require.NoError(t, os.WriteFile(path, []byte("not a file of stint, but as long as one may begin"), 0o600))
	_, err = hostlimit.Labels(path)
	require.Error(t, err)
}
