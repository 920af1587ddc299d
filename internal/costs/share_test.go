package costs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
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
		floor := stint.Limit{Burst: 1000, Count: 1, Period: time.Hour}
		ids, overrides := make([]string, n), []stint.Override{}
		for i := range n {
			ids[i] = fmt.Sprintf("%024d", i)
			overrides = append(overrides, stint.Override{Key: shareFloor.Key(ids[i]), Limit: floor},
				stint.Override{Key: stint.Name(13).Key(ids[i]), Limit: plenty})
		}
		limits, err := stint.NewLimits(stint.Names{
			shareTotal:  {Label: "Total", ID: stint.Shared, Limit: plenty},
			shareTenant: {Label: "Tenant", Parent: shareTotal, Floor: shareFloor, Limit: plenty},
			shareFloor:  {Label: "Floor"},
			11:          {Label: "PlainTotal", ID: stint.Shared, Limit: plenty},
			12:          {Label: "PlainTenant", Limit: plenty},
			13:          {Label: "PlainFloor", Limit: stint.Unlimited},
		}, overrides...)
		require.NoError(b, err)
		l, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Durability: stint.Memory})
		require.NoError(b, err)
		defer l.Close()
		for i := range ids {
			ids[i] = fmt.Sprintf("%024d", rand.IntN(n))
		}
		for name, call := range map[string]func(id string) (stint.Decision, error){
			"Spend": func(id string) (stint.Decision, error) { return l.Spend(shareTenant.Key(id), 1) },
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
