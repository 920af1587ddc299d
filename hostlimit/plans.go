package hostlimit

import (
	"errors"

	"github.com/stint-go/stint"
)

// plan is an override that SetOverrides put in force. The zero Limit means that
// it removed one.
type plan struct {
	id    stint.OverrideID
	limit stint.Limit
}

// keepPlan remembers what SetOverrides puts in force, if KeepOverrides asks for
// that. The owner's stint.Limiter remembers it too, and forgets it when another
// process takes the file over. changing is locked.
func (l *Limiter) keepPlan(ls *stint.Limits, id stint.OverrideID, limits map[stint.Name]stint.Limit) {
	if !l.opts.LimiterOptions.KeepOverrides {
		return
	}
	for name, limit := range limits {
		canonical, err := ls.Names().CanonicalOverride(name, id.ID)
		if err != nil {
			continue // With has refused it
		}
		if key := name.Key(canonical); limit == (stint.Limit{}) && !lists(l.base, key) {
			delete(l.plans, key)
		} else {
			if l.plans == nil {
				l.plans = make(map[stint.Key]plan)
			}
			l.plans[key] = plan{id, limit}
		}
	}
}

// lists reports whether limits have an override of a canonical id.
func lists(limits *stint.Limits, key stint.Key) bool {
	for id := range limits.Overrides(key.Name) {
		if id.ID == key.ID {
			return true
		}
	}
	return false
}

// withPlans returns limits with the overrides that SetOverrides put in force.
// changing is locked.
func (l *Limiter) withPlans(limits *stint.Limits) (*stint.Limits, error) {
	of := make(map[stint.OverrideID]map[stint.Name]stint.Limit) // together, because a limit may need its floor
	for key, p := range l.plans {
		if _, ok := limits.Spec(key.Name); !ok {
			continue
		}
		if of[p.id] == nil {
			of[p.id] = make(map[stint.Name]stint.Limit)
		}
		of[p.id][key.Name] = p.limit
	}
	var errs []error
	for id, plan := range of {
		with, err := limits.With(id, plan)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		limits = with
	}
	return limits, errors.Join(errs...)
}
