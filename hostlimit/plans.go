package hostlimit

import "github.com/stint-go/stint"

// plan is an override that SetOverrides put in force. The zero Limit means that
// it removed one.
type plan struct {
	id    stint.OverrideID
	limit stint.Limit
}

// keepPlan remembers what SetOverrides puts in force, if KeepOverrides asks for
// that. The stint.Limiter of an owner does not: to it, plans from before this
// process took the file over would be overrides of its limits. changing is locked.
func (l *Limiter) keepPlan(ls *stint.Limits, id stint.OverrideID, limits map[stint.Name]stint.Limit) {
	if !l.opts.LimiterOptions.KeepOverrides {
		return
	}
	names := ls.Names()
	for name, limit := range limits {
		canonical, err := names.CanonicalOverride(name, id.ID)
		if err != nil {
			continue // With has refused it
		}
		if key := name.Key(canonical); limit == (stint.Limit{}) && !l.lists(key) {
			delete(l.plans, key)
		} else {
			if l.plans == nil {
				l.plans = make(map[stint.Key]plan)
			}
			l.plans[key] = plan{id, limit}
		}
	}
}

// lists reports whether the limits given to Open or SetLimits have an override
// of a canonical id: whether there is one less without it. That takes
// microseconds, and Overrides would sort all ids. changing is locked.
func (l *Limiter) lists(key stint.Key) bool {
	if l.base.CountOverrides(key.Name) == 0 {
		return false
	}
	if tidied, err := l.base.WithAll(); err == nil {
		l.base = tidied // or With would tidy the same limits again each time
	}
	without, err := l.base.With(stint.OverrideID{ID: key.ID}, map[stint.Name]stint.Limit{key.Name: {}})
	return err != nil || without.CountOverrides(key.Name) < l.base.CountOverrides(key.Name)
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
