package stint_test

import (
	"fmt"
	"time"

	"github.com/stint-go/stint"
)

// Two tenants of a server that can serve 1000 requests a second. Each is
// guaranteed 200, and may use what the other leaves.
func ExampleLimits_Share() {
	const (
		Total       stint.Name = 1
		Tenant      stint.Name = 2
		TenantFloor stint.Name = 3
	)
	limits, err := stint.NewLimits(stint.Names{
		Total:       {Label: "Total", ID: stint.Shared, Limit: stint.PerSecond(1000)},
		Tenant:      {Label: "Tenant", Limit: stint.PerSecond(900), Parent: Total, Floor: TenantFloor},
		TenantFloor: {Label: "TenantFloor"},
	},
		stint.Override{Key: TenantFloor.Key("acme"), Limit: stint.PerSecond(200)},
		stint.Override{Key: TenantFloor.Key("globex"), Limit: stint.PerSecond(200)},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limiter, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	greedy := 0
	for limiter.Allow(Tenant.Key("acme")) {
		greedy++
	}
	fmt.Println("acme alone:", greedy)
	d, _ := limiter.Spend(Tenant.Key("globex"), 200)
	fmt.Println("globex has its floor:", d.Allowed)
	d, _ = limiter.Spend(Tenant.Key("acme"), 1)
	fmt.Println("acme has to wait", d.RetryAfter)

	share, _ := limits.Share(Tenant.Key("acme"))
	fmt.Println("loans leave", share.Kept, "for", share.Floor.ID, "and the others")
	st := limiter.Stats().Limits[Tenant]
	fmt.Println("allowed:", st.Allowed, "borrowed:", st.Borrowed)
	// Output:
	// acme alone: 600
	// globex has its floor: true
	// acme has to wait 5ms
	// loans leave 400 for acme and the others
	// allowed: 601 borrowed: 400
}
