package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/chart"
)

// Scenario is the content of a scenario file: limits that decide on the same
// load, or tenants that share a total, each with a load of its own.
type Scenario struct {
	Title        string
	Limits, Load []string
	Total        string
	Tenants      []Tenant
}

// Tenant shares a total with other tenants.
type Tenant struct {
	Name    string
	Ceiling string // none if it is empty
	Floor   string // none if it is empty
	Load    []string
}

// HasTenants reports whether the scenario is one of tenants.
func (in *Scenario) HasTenants() bool { return in.Total != "" || in.Tenants != nil }

func readTenants(in *Scenario) (*Simulation, error) {
	switch {
	case len(in.Limits)+len(in.Load) > 0:
		return nil, errors.New("a scenario has limits and load, or total and tenants, not both")
	case in.Total == "":
		return nil, errors.New("tenants share a total: the scenario has none")
	case len(in.Tenants) == 0:
		return nil, errors.New("a total is for tenants: the scenario has none")
	case len(in.Tenants) > chart.MostCurves:
		return nil, fmt.Errorf("%d tenants: no more than %d can be told apart in a chart", len(in.Tenants), chart.MostCurves)
	}
	total, err := stint.ParseLimit(in.Total)
	if err != nil {
		return nil, err
	}
	s := &Simulation{title: cmp.Or(in.Title, "Tenants of "+total.String()), total: total}
	for i, t := range in.Tenants {
		l := &simulated{name: cmp.Or(t.Name, fmt.Sprint("tenant ", i+1)), limit: stint.Unlimited, tenant: true}
		if t.Ceiling != "" {
			if l.limit, err = stint.ParseLimit(t.Ceiling); err != nil {
				return nil, err
			}
		}
		if t.Floor != "" {
			if l.floor, err = stint.ParseLimit(t.Floor); err != nil {
				return nil, err
			}
		}
		if err := s.add(t.Load, l); err != nil {
			return nil, err
		}
		s.limits = append(s.limits, l)
	}
	if len(s.requests) == 0 {
		return nil, errors.New("the tenants have no requests: want a load for one of them")
	}
	slices.SortStableFunc(s.requests, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return s, nil
}

// describe returns the limits of a simulated limit or tenant.
func (l *simulated) describe() string {
	if !l.tenant {
		return l.limit.String()
	}
	words := "no floor"
	if l.floor != (stint.Limit{}) {
		words = "floor " + l.floor.String()
	}
	if !l.limit.IsUnlimited() {
		words += ", ceiling " + l.limit.String()
	}
	return words
}

// counts returns how many requests were admitted, and how many on loan.
func (l *simulated) counts() string {
	s := fmt.Sprintf("%d of %d", l.allowed, l.requests)
	if l.tenant {
		s += fmt.Sprintf(", %d borrowed", l.borrowed)
	}
	return s
}
