package costs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/shares"
)

const (
	shareTotal stint.Name = iota + 1
	shareTenant
	shareFloor
)

// BenchmarkShares decides on a tenant with a floor, and beside it SpendAll on
// as many buckets.
func BenchmarkShares(b *testing.B) {
	plenty := stint.Limit{Burst: 1e9, Count: 1e9, Period: 24 * time.Hour}
	for _, n := range []int{1, 1000, 100_000} {
		floor := stint.Limit{Burst: 1e9 / int64(2*n+2), Count: 1e8 / int64(n+1), Period: 24 * time.Hour}
		ids, overrides := make([]string, n), []stint.Override{}
		for i := range n {
			ids[i] = fmt.Sprintf("%024d", i)
			overrides = append(overrides, stint.Override{Key: shareFloor.Key(ids[i]), Limit: floor},
				stint.Override{Key: stint.Name(13).Key(ids[i]), Limit: plenty},
				stint.Override{Key: stint.Name(15).Key(ids[i]), Limit: stint.Limit{Burst: 1, Count: 1, Period: 24 * time.Hour}})
		}
		limits, err := stint.NewLimits(stint.Names{
			shareTotal:  {Label: "Total", IDs: stint.Single, Limit: plenty},
			shareTenant: {Label: "Tenant", Limit: plenty},
			shareFloor:  {Label: "Floor", Limit: stint.Unlimited},
			14:          {Label: "Borrower", Limit: plenty},
			15:          {Label: "BorrowerFloor", Limit: stint.Unlimited},
			11:          {Label: "PlainTotal", IDs: stint.Single, Limit: plenty},
			12:          {Label: "PlainTenant", Limit: plenty},
			13:          {Label: "PlainFloor", Limit: stint.Unlimited},
		}, overrides...)
		require.NoError(b, err)
		l, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Durability: stint.Memory})
		require.NoError(b, err)
		defer l.Close()
		above, err := shares.New(l, shares.Tree{Total: shareTotal, Class: shareTenant, Floor: shareFloor},
			shares.Tree{Total: shareTotal, Class: 14, Floor: 15})
		require.NoError(b, err)
		for i := range ids {
			ids[i] = fmt.Sprintf("%024d", rand.IntN(n))
		}
		for name, call := range map[string]func(id string) (stint.Decision, error){
			"own":  func(id string) (stint.Decision, error) { return above.Spend(shareTenant.Key(id), 1) },
			"loan": func(id string) (stint.Decision, error) { return above.Spend(stint.Name(14).Key(id), 1) },
			"SpendAll": func(id string) (stint.Decision, error) {
				return l.SpendAll(stint.Request{Key: stint.Name(11).Key(""), Cost: 1}, stint.Request{Key: stint.Name(12).Key(id), Cost: 1},
					stint.Request{Key: stint.Name(13).Key(id), Cost: 1})
			},
		} {
			for _, id := range ids {
				call(id)
			}
			b.Run(fmt.Sprint(name, "/ids=", n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					call(ids[i%n])
				}
			})
		}
	}
}
