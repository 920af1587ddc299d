// Package model has the lease script as a Go function, for tests.
package model

import (
	"fmt"

	"github.com/stint-go/stint/redislimit/internal/script"
)

// Lease is the lease script as a Go function, on one bucket.
type Lease struct {
	TAT, Mark, Hold int64
	PlainRefund     bool // a mutant: unused tokens go back whole
}

// Step runs the script with the arguments of one bucket.
func (s *Lease) Step(now, generation int64, args [12]int64) script.LeaseAnswer {
	interval, tolerance, clamp, first, need, want := args[0], args[1], args[2], args[3], args[4], args[5]
	for i := 6; i < 12; i += 3 {
		unused, granted, at := args[i], args[i+1], args[i+2]
		back := max(0, min(unused, granted-max(0, now-at)))
		if s.PlainRefund {
			back = unused
		}
		if s.TAT > now {
			s.TAT = max(now, s.TAT-back)
		}
	}
	switch {
	case s.TAT <= now:
		s.Mark = now / 1000
	case clamp > 0 && s.Mark < generation:
		s.Mark = generation
		s.TAT = min(s.TAT, now+clamp)
	}
	a := script.LeaseAnswer{Answer: script.Answer{Now: now, TAT: s.TAT}}
	if s.Hold > now {
		a.Hold = s.Hold
	}
	if interval == 0 {
		return a
	}
	base := max(s.TAT, now)
	a.Wait = max(0, base+first-now-tolerance, a.Hold-now)
	if a.Wait == 0 {
		free := now + tolerance - base
		a.Granted = max(min(need, free), min(want, free/8)) / interval * interval
		if a.Granted > 0 {
			s.TAT = base + a.Granted
		}
	}
	a.TAT = s.TAT
	return a
}

// Value returns the value of the server's key then, or nil if there is no key.
func (s *Lease) Value(now int64) any {
	end := s.TAT
	if s.Hold > now {
		end = max(end, s.Hold)
	}
	if end <= now {
		return nil
	}
	v := fmt.Sprintf("%d %d", s.TAT, s.Mark)
	if s.Hold > now {
		v += fmt.Sprintf(" %d", s.Hold)
	}
	return v
}
