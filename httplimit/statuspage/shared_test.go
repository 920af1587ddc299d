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

// A guest's page shows what all processes share, and acts on it. It goes on when
// the owner changes.
func TestPageOfASharedFile(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{perAddress: {Label: "address", Limit: stint.PerHour(5)}})
	require.NoError(t, err)
	folder, err := os.MkdirTemp("", "page")
	require.NoError(t, err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "quota.db")
	owner, err := hostlimit.Open(path, limits, nil)
	require.NoError(t, err)
	defer owner.Close()
	guest, err := hostlimit.Open(path, limits, nil)
	require.NoError(t, err)
	defer guest.Close()
	require.Equal(t, hostlimit.RoleGuest, guest.Role())

	p := New(guest, &Options{AllowReset: true})
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	require.Equal(t, 200, ask(5, ""))
	require.Equal(t, 429, ask(1, ""))
	require.NoError(t, errorOf(owner.Hold(client, owner.Now().Add(time.Hour))))
	rep := p.report()
	require.True(t, rep.Healthy)
	require.EqualValues(t, 5, rep.limit("address").Allowed)
	require.Len(t, rep.Held, 1)
	require.Equal(t, 303, post(p, "reset="+p.bucketID(client).Token, fromPage...).Code)
	b, err := owner.Bucket(client)
	require.NoError(t, err)
	require.EqualValues(t, 5, b.Remaining)
	require.True(t, b.HeldUntil.IsZero())

	require.NoError(t, owner.Close())
	require.Equal(t, 200, ask(1, ""), "it is the owner now, or decides through it")
	p.made = nil
	require.EqualValues(t, 1, p.report().limit("address").Allowed, "the counts of the new owner")
}
