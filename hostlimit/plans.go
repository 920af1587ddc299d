package hostlimit

import "github.com/stint-go/stint"

// keepPlans remembers what SetOverrides puts in force, if KeepOverrides asks for
// that. The stint.Limiter of an owner does not: to it, plans from before this
// process took the file over would be overrides of its limits. changing is locked.
func (l *Limiter) keepPlans(ls *stint.Limits, overrides []stint.Override) {
	if !l.opts.LimiterOptions.KeepOverrides {
		return
	}
	names := ls.Names()
	for _, o := range overrides {
		canonical, err := names.CanonicalOverride(o.Key.Name, o.Key.ID)
		if err != nil {
			continue // With has refused it
		}
		if key := o.Key.Name.Key(canonical); o.Limit == (stint.Limit{}) && !l.lists(key) {
			delete(l.plans, key)
		} else {
			l.plans[key] = o
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
	if tidied, err := l.base.With(); err == nil {
		l.base = tidied // or With would tidy the same limits again each time
	}
	without, err := l.base.With(stint.Override{Key: key})
	return err != nil || without.CountOverrides(key.Name) < l.base.CountOverrides(key.Name)
}

// withPlans returns limits with the overrides that SetOverrides put in force,
// checked all at once. changing is locked.
func (l *Limiter) withPlans(limits *stint.Limits) (*stint.Limits, error) {
	var plans []stint.Override
	for key, o := range l.plans {
		if _, ok := limits.Spec(key.Name); ok {
			plans = append(plans, o)
		}
	}
	if plans == nil {
		return limits, nil
	}
	return limits.With(plans...)
}
