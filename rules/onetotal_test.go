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
	for _, name := range []string{"a Limiter", "a guest"} {
		t.Run(name, func(t *testing.T) {
			limits, err := stint.NewLimits(stint.Names{
				total: {Label: "total", ID: stint.Shared, Limit: stint.PerHour(10)},
				share: {Label: "share", Parent: total, Limit: stint.PerHour(6)},
				other: {Label: "other", Limit: stint.PerHour(20)},
			})
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "limits.db")
			// Time stands still: no token comes back, and a refund has nothing to keep.
			began := time.Now()
			opts := &hostlimit.Options{LimiterOptions: stint.Options{Now: func() time.Time { return began }}, TakeoverTimeout: time.Minute}
			owner, err := hostlimit.Open(path, limits, opts)
			require.NoError(t, err)
			defer owner.Close()
			lim := stint.Decider(owner)
			if name == "a guest" {
				guest, err := hostlimit.Open(path, limits, opts)
				require.NoError(t, err)
				defer guest.Close()
				require.Equal(t, hostlimit.RoleGuest, guest.Role())
				lim = guest
			}
			left := func() (left []int64) {
				for _, key := range []stint.Key{total.Key(""), share.Key("a"), share.Key("b"), other.Key("a")} {
					b, err := owner.Bucket(key)
					require.NoError(t, err)
					left = append(left, b.Remaining)
				}
				return left
			}
			counted := func() (counted []int64) { // allowed and denied
				all := owner.Stats().Limits
				for _, name := range []stint.Name{total, share, other} {
					counted = append(counted, all[name].Allowed, all[name].Denied)
				}
				require.Zero(t, all[total].Errors+all[share].Errors+all[other].Errors)
				return counted
			}
			reqs := []stint.Request{
				{Key: other.Key("a"), Cost: 1}, {Key: share.Key("a"), Cost: 4}, {Key: share.Key("b"), Cost: 3},
			}
			ds := make([]stint.Decision, len(reqs))
			spend := func(allowed bool, decided stint.Key) {
				t.Helper()
				d, err := spendTogether(t.Context(), lim, reqs, ds)
				require.NoError(t, err)
				require.Equal(t, allowed, d.Allowed)
				require.Equal(t, decided, d.Key)
			}
			spend(true, share.Key("a"))
			require.Equal(t, []int64{3, 2, 3, 19}, left())
			require.Equal(t, []int64{2, 0, 2, 0, 1, 0}, counted())
			spend(false, share.Key("a")) // the second request
			require.Equal(t, []int64{3, 2, 3, 19}, left())
			require.Equal(t, []int64{2, 1, 2, 1, 1, 0}, counted()) // the total has no 4 either
			reqs[1].Cost = 1
			spend(false, total.Key("")) // the third one: 4 of the 3 that are left
			require.Equal(t, []int64{3, 2, 3, 19}, left())
			require.True(t, ds[0].Allowed)
			require.True(t, ds[1].Allowed)
			require.Equal(t, []int64{2, 2, 2, 1, 1, 0}, counted())

			reqs[1].Mode = stint.CheckOnly
			spend(true, total.Key(""))
			require.Equal(t, []int64{0, 2, 0, 18}, left())
			_, err = refundTogether(lim, share.Key("a").Cost(4).SpentAt(stint.JustSpent), share.Key("b").Cost(3).SpentAt(stint.JustSpent))
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
