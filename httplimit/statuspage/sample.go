package statuspage

import (
	"net/http"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

// Observer returns the observer that passes decisions to the page, for
// httplimit.Options.Observers. Several middlewares may share it. A call takes
// less than a microsecond. Once a second one call also reads Limiter.Stats,
// while the others go on.
func (p *Page) Observer() httplimit.Observer {
	return httplimit.Observer{Decisions: p.observe}
}

func (p *Page) observe(_ *http.Request, ds []rules.Decision) {
	now := p.lim.Now()
	if p.count(now, ds) && p.sampling.TryLock() {
		p.sampleLocked(now, p.lim.Stats())
		p.sampling.Unlock()
	}
}

// count adds decisions to the counts of buckets. It reports whether the last
// sample is over a second old.
func (p *Page) count(now time.Time, ds []rules.Decision) (due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	due = isDue(now, p.looked)
	for i := range ds {
		d := &ds[i]
		o := entry(p.observed, d.RuleKey.Name)
		if d.InFlight.Limit != 0 {
			o.InFlightPeak = max(o.InFlightPeak, d.InFlight.Running)
			if d.InFlight.Denied {
				o.InFlightDenied++
			}
		}
		early := &o.early
		if due {
			early = new(stint.LimitStats)
		}
		switch {
		case d.Allowed && d.After:
		case d.Allowed:
			early.Allowed++
			o.spent.add(now, d.RuleKey, d.Cost)
		default:
			early.Denied++
			o.spent.add(now, d.RuleKey, 0)
			if d.Shadow {
				o.shadow = true
			} else {
				o.denied.add(now, d.RuleKey, 1)
			}
		}
	}
	return due
}

// sampleLocked adds the decisions since the last sample to the charts, unless
// that was less than a second ago. Observed decisions in the second after the
// last sample are added to that second. The others are spread over the time
// since then. The caller holds sampling.
func (p *Page) sampleLocked(now time.Time, st stint.Stats) {
	from, counts := p.looked, st.Limits
	if !isDue(now, from) || st.Err != nil {
		return
	}
	if now.Before(from) { // the charts begin anew by the other clock
		from = now.Add(-time.Second)
		clear(p.charts)
	}
	p.mu.Lock()
	p.looked = now
	early := make(map[stint.Name]stint.LimitStats)
	for name, o := range p.observed {
		early[name], o.early = o.early, stint.LimitStats{}
	}
	p.mu.Unlock()
	for name, c := range counts {
		before, e, chart := p.before[name], early[name], entry(p.charts, name)
		if c.Allowed < before.Allowed || c.Denied < before.Denied { // another process has taken the file over
			before = stint.LimitStats{}
		}
		allowed, denied := c.Allowed-before.Allowed, c.Denied-before.Denied
		// The observer sees checks too, which the Limiter does not count.
		earlyAllowed, earlyDenied := min(e.Allowed, allowed), min(e.Denied, denied)
		chart.add(from, from.Add(time.Second), earlyAllowed, earlyDenied)
		chart.add(from, now, allowed-earlyAllowed, denied-earlyDenied)
	}
	p.before = counts
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
