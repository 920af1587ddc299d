package status

import (
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Observes says that decisions will be passed to Observe.
func (c *Collector) Observes() {
	c.mu.Lock()
	c.observes = true
	c.mu.Unlock()
}

// Observe adds decisions to the next reports. Once a second one call also reads
// Limiter.Stats, while the others go on.
func (c *Collector) Observe(ds []rules.Decision) {
	now := c.lim.Now()
	if c.count(now, ds) && c.sampling.TryLock() {
		c.sampleLocked(now, c.lim.Stats())
		c.sampling.Unlock()
	}
}

// ObserveError counts a request that was answered with an error.
func (c *Collector) ObserveError() {
	c.mu.Lock()
	c.failed++
	c.mu.Unlock()
}

// count adds decisions to the counts of buckets. It reports whether the last
// sample is over a second old.
func (c *Collector) count(now time.Time, ds []rules.Decision) (due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	due = isDue(now, c.looked)
	for i := range ds {
		d := &ds[i]
		o := entry(c.observed, d.RuleKey.Name)
		if d.InFlight.Limit != 0 {
			o.inFlightPeak = max(o.inFlightPeak, d.InFlight.Running)
		}
		if !d.After || !d.Allowed {
			told := o
			if d.Key.Name != d.RuleKey.Name {
				told = entry(c.observed, d.Key.Name)
			}
			told.verdicts.add(d.Verdict())
		}
		at := &o.early
		if due {
			at = &o.late
		}
		switch {
		case d.Allowed && d.After:
		case d.Allowed:
			at.Allowed++
			o.spent.add(now, d.RuleKey, d.Cost)
		default:
			at.Denied++
			o.spent.add(now, d.RuleKey, 0)
			if !d.Shadow {
				o.denied.add(now, d.RuleKey, 1)
			}
		}
	}
	return due
}

// sampleLocked adds the decisions since the last sample to the charts, unless
// that was less than a second ago. Observed decisions in the second after the
// last sample are added to that second, and the one that leads to this sample to its
// time. The others are spread over the time since then. The caller holds sampling.
func (c *Collector) sampleLocked(now time.Time, st stint.Stats) {
	from, counts := c.looked, st.Limits
	if !isDue(now, from) || st.Err != nil {
		return
	}
	if now.Before(from) { // the charts begin anew by the other clock
		from = now.Add(-time.Second)
		clear(c.charts)
	}
	c.mu.Lock()
	c.looked = now
	seen := make(map[stint.Name]observed)
	for name, o := range c.observed {
		seen[name] = observed{early: o.early, late: o.late}
		o.early, o.late = stint.LimitStats{}, stint.LimitStats{}
	}
	c.mu.Unlock()
	for name, n := range counts {
		before, chart := c.before[name], entry(c.charts, name)
		if n.Allowed < before.Allowed || n.Denied < before.Denied { // another process has taken the file over
			before = stint.LimitStats{}
		}
		allowed, denied := n.Allowed-before.Allowed, n.Denied-before.Denied
		take := func(of stint.LimitStats) (a, d int64) {
			// The observer sees checks too, which the Limiter does not count.
			a, d = min(of.Allowed, allowed), min(of.Denied, denied)
			allowed, denied = allowed-a, denied-d
			return a, d
		}
		earlyAllowed, earlyDenied := take(seen[name].early)
		lateAllowed, lateDenied := take(seen[name].late)
		chart.add(from, from.Add(time.Second), earlyAllowed, earlyDenied)
		chart.add(from, now, allowed, denied)
		chart.add(now, now.Add(1), lateAllowed, lateDenied)
	}
	c.before = counts
}

// isDue reports whether a second has passed since the last time. It has, too, if the
// clock is behind: it may be that of the next owner of the file.
func isDue(now, last time.Time) bool { return now.Before(last) || now.Sub(last) >= time.Second }

// entry returns the value of a name, and adds a zero one if there is none.
func entry[T any](m map[stint.Name]*T, name stint.Name) *T {
	v := m[name]
	if v == nil {
		v = new(T)
		m[name] = v
	}
	return v
}
