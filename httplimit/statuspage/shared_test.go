package statuspage

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
)

// A guest's page shows what all processes share. It goes on when
// the owner changes.
func TestPageOfASharedFile(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{perAddress: {Label: "address", Limit: stint.PerHour(5)}})
	require.NoError(t, err)
	folder, err := os.MkdirTemp("", "page")
	require.NoError(t, err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "quota.db")
	patient := &hostlimit.Options{TakeoverTimeout: 20 * time.Second}
	owner, err := hostlimit.Open(path, limits, patient)
	require.NoError(t, err)
	defer owner.Close()
	guest, err := hostlimit.Open(path, limits, patient)
	require.NoError(t, err)
	defer guest.Close()
	require.Equal(t, hostlimit.RoleGuest, guest.Role())

	p := New(guest, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	require.Equal(t, 200, ask(5, ""))
	require.Equal(t, 429, ask(1, ""))
	require.NoError(t, errorOf(owner.Hold(client, owner.Now().Add(time.Hour))))
	rep := p.collector.Report()
	require.True(t, rep.Healthy)
	require.EqualValues(t, 5, limitOf(rep, "address").Allowed)
	require.Len(t, rep.Held, 1)
	require.NoError(t, guest.Reset(client))
	require.NoError(t, owner.Close())
	require.Equal(t, 200, ask(1, ""), "it is the owner now, or decides through it")
	require.EqualValues(t, 1, limitOf(New(guest, nil).collector.Report(), "address").Allowed, "the counts of the new owner")
}
