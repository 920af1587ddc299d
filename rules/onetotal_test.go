package rules

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
)

// Requests of one total spend the sum of their costs, or nothing, whichever of
// them is denied. A total that is named beside its share is such a request too.
func TestOneTotal(t *testing.T) {
	const (
		total stint.Name = 1 + iota
		share
		other
	)
	for _, role := range []hostlimit.Role{hostlimit.RoleOwner, hostlimit.RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			limits, err := stint.NewLimits(stint.Names{
				total: {Label: "total", ID: stint.Shared, Limit: stint.PerHour(10)},
				share: {Label: "share", Parent: total, Limit: stint.PerHour(6)},
				other: {Label: "other", Limit: stint.PerHour(20)},
			})
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "limits.db")
			// Time stands still: no token comes back, and a refund has nothing to keep.
			began := time.Now()
			opts := &hostlimit.Options{TakeoverTimeout: time.Minute}
			opts.LimiterOptions.Now = func() time.Time { return began }
			owner, err := hostlimit.Open(path, limits, opts)
			require.NoError(t, err)
			defer owner.Close()
			lim := owner
			if role == hostlimit.RoleGuest {
				lim, err = hostlimit.Open(path, limits, opts)
				require.NoError(t, err)
				defer lim.Close()
			}
			require.Equal(t, role, lim.Role())
			left := func() (left []int64) {
				for _, key := range []stint.Key{total.Key(""), share.Key("a"), share.Key("b"), other.Key("a")} {
					b, err := owner.Bucket(key)
					require.NoError(t, err)
					left = append(left, b.Remaining)
				}
				return left
			}
			reqs := []stint.Request{
				{Key: other.Key("a"), Cost: 1}, {Key: share.Key("a"), Cost: 4}, {Key: share.Key("b"), Cost: 3},
			}
			ds := make([]stint.Decision, len(reqs))
			spend := func(allowed bool, decided stint.Key, wantLeft, wantCounted []int64) {
				t.Helper()
				d, err := spendTogether(t.Context(), lim, reqs, ds)
				require.NoError(t, err)
				require.Equal(t, allowed, d.Allowed)
				require.Equal(t, decided, d.Key)
				require.Equal(t, wantLeft, left())
				var counted []int64 // allowed and denied
				for _, name := range []stint.Name{total, share, other} {
					of := owner.Stats().Limits[name]
					counted = append(counted, of.Allowed, of.Denied)
					require.Zero(t, of.Errors)
				}
				require.Equal(t, wantCounted, counted)
			}
			spend(true, share.Key("a"), []int64{3, 2, 3, 19}, []int64{2, 0, 2, 0, 1, 0})
			spend(false, share.Key("a"), []int64{3, 2, 3, 19}, []int64{2, 1, 2, 1, 1, 0}) // the total has no 4 either
			reqs[1].Cost = 1
			spend(false, total.Key(""), []int64{3, 2, 3, 19}, []int64{2, 2, 2, 1, 1, 0}) // 4 of the 3 that are left
			require.True(t, ds[0].Allowed)
			require.True(t, ds[1].Allowed)
			reqs[1].Mode = stint.CheckOnly
			spend(true, total.Key(""), []int64{0, 2, 0, 18}, []int64{3, 2, 3, 1, 2, 0})
			_, err = refundTogether(lim, share.Key("a").Cost(4).SpentAt(stint.JustSpent),
				share.Key("b").Cost(3).SpentAt(stint.JustSpent))
			require.NoError(t, err)
			require.Equal(t, []int64{7, 6, 3, 18}, left())

			both := []stint.Request{{Key: total.Key(""), Cost: 1}, {Key: share.Key("a"), Cost: 1}}
			d, err := spendTogether(t.Context(), lim, both, ds[:2])
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.Equal(t, []int64{5, 5, 3, 18}, left())
		})
	}
}
