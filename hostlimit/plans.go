package hostlimit

import "github.com/stint-go/stint"

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

// withPlans returns limits with the overrides that SetOverrides put in force,
// checked all at once. changing is locked.
func (l *Limiter) withPlans(limits *stint.Limits) (*stint.Limits, error) {
	var groups []stint.Group
	for key, p := range l.plans {
		if _, ok := limits.Spec(key.Name); ok {
			plan := map[stint.Name]stint.Limit{key.Name: p.limit}
			groups = append(groups, stint.Group{IDs: []stint.OverrideID{p.id}, Limits: plan})
		}
	}
	if groups == nil {
		return limits, nil
	}
	return limits.WithAll(groups...)
}
