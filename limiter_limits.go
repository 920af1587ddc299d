package stint

import "errors"

// Limits returns the limits in force: the newest, while SetLimits puts them there.
func (l *Limiter) Limits() *Limits { return l.limits.Load() }

// SetLimits puts other limits in force while decisions go on: each bucket is held to the old ones or to the new, and to
// the new once SetLimits returns. A bucket keeps its TAT, except that one further ahead than the new limit allows is brought
// back to an empty bucket of that limit, so that none is stranded; when the larger limit comes back, it has more tokens than
// before. The file has that with the next flush: after a crash before it, the bucket is empty then. Names keep their numbers:
// the error is ErrNameMismatch where they do not, and after an error the old limits stay in force.
func (l *Limiter) SetLimits(limits *Limits) error {
	if limits == nil {
		return errors.New("stint: SetLimits: no limits")
	}
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	select {
	case <-l.closed:
		return ErrClosed
	default:
	}
	if err := l.checkLimits(limits); err != nil {
		return err
	}
	l.flusher.mu.Lock() // what is saved by one level's rules is saved before the other's
	defer l.flusher.mu.Unlock()
	l.limits.Store(limits)
	l.table.setLimits(limits, func(s *shard) {
		l.retireCountsLocked(s)
		s.setLimitsLocked(limits)
		now := l.clock.now()
		for i := range s.capacity.Load() {
			b := s.at(i)
			if b.meta() == 0 {
				continue
			}
			key := b.key()
			rule, _ := limits.resolve(key) // a name no longer declared is an error when it is next asked for
			b.setRule(rule)
			b.clear(flagCovered)
			if b.has(flagDirty) {
				s.markGroup(i)
			}
			if rule == 0 || b.has(flagAside) && len(s.aside[key].line) > 0 {
				continue
			}
			r := &limits.rules[rule].rate
			if tat := r.clamp(b.tat(), now); tat != b.tat() {
				*s.resetsOf(s.hashOf(b))++
				s.writeLocked(i, tat)
			}
		}
	})
	return nil
}

// retireCountsLocked keeps a shard's counts when its limits go.
func (l *Limiter) retireCountsLocked(s *shard) {
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	for i, name := range s.limits.order {
		if c := s.count(uint32(i)); *c != (count{}) {
			past := l.past[name]
			l.past[name] = count{past.allowed + c.allowed, past.denied + c.denied}
		}
	}
}

// checkLimits returns why the limits cannot be put in force with this store.
func (l *Limiter) checkLimits(limits *Limits) error {
	return l.store.Declare(limits.names)
}
