package shares_test

import (
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/shares"
)

// Two tenants of a server that can serve 1000 requests a second. Each is
// guaranteed 200, and may use what the other leaves.
func Example() {
	const (
		Total       stint.Name = 1
		Tenant      stint.Name = 2
		TenantFloor stint.Name = 3
	)
	limits, err := stint.NewLimits(stint.Names{
		Total:       {Label: "Total", IDs: stint.Single, Limit: stint.PerSecond(1000)},
		Tenant:      {Label: "Tenant", Limit: stint.PerSecond(900)},
		TenantFloor: {Label: "TenantFloor", Limit: stint.Unlimited},
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
	server, err := shares.New(limiter, shares.Tree{Total: Total, Class: Tenant, Floor: TenantFloor})
	if err != nil {
		fmt.Println(err)
		return
	}

	greedy := 0
	for d, _ := server.Spend(Tenant.Key("acme"), 1); d.Allowed; d, _ = server.Spend(Tenant.Key("acme"), 1) {
		greedy++
	}
	fmt.Println("acme alone:", greedy)
	d, _ := server.Spend(Tenant.Key("globex"), 200)
	fmt.Println("globex has its floor:", d.Allowed)
	d, _ = server.Spend(Tenant.Key("acme"), 1)
	fmt.Println("acme has to wait", d.RetryAfter)

	fmt.Println("loans leave", server.Kept(Tenant))
	st := limiter.Stats().Limits
	fmt.Println("allowed:", st[Tenant].Allowed, "paid by floors:", st[TenantFloor].Allowed)
	// Output:
	// acme alone: 600
	// globex has its floor: true
	// acme has to wait 5ms
	// loans leave 400
	// allowed: 601 paid by floors: 201
}
