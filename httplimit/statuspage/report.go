package statuspage

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// report is everything that the page shows. Its JSON is ?format=json.
type report struct {
	Time    time.Time `json:"time"`
	Since   time.Time `json:"since"` // when the page was made
	Healthy bool      `json:"healthy"`
	Problem string    `json:"problem,omitempty"`
	Version string    `json:"version"` // of stint
	Go      string    `json:"go"`

	AllowedPerSecond float64 `json:"allowed_per_second"`
	DeniedPerSecond  float64 `json:"denied_per_second"`

	Resident  int64       `json:"resident"`
	Loads     int64       `json:"loads"`
	Evictions int64       `json:"evictions"`
	Forward   int64       `json:"clock_steps_forward"`
	Backward  int64       `json:"clock_steps_backward"`
	FileBytes int64       `json:"file_bytes,omitempty"` // 0 means no file
	FileFree  int64       `json:"file_free_bytes,omitempty"`
	Journal   int64       `json:"journal_bytes,omitempty"`
	Journaled int64       `json:"journal_buckets,omitempty"`
	Flush     writeReport `json:"flush"`
	Commit    writeReport `json:"commit"` // of decisions that waited for it

	heldCounts
	Held []heldReport `json:"held"` // latest end first

	Limits []limitReport `json:"limits"`
}

type writeReport struct {
	Count    int64   `json:"count"`
	Buckets  int64   `json:"buckets"`
	Failures int64   `json:"failures"`
	Last     float64 `json:"last_seconds"`
	Longest  float64 `json:"longest_seconds"`
}

type limitReport struct {
	Label      string  `json:"label"`
	Number     uint16  `json:"number"`
	Limit      string  `json:"limit,omitempty"` // for stint.ParseLimit; "" without a default
	Burst      int64   `json:"burst,omitempty"`
	Count      int64   `json:"count,omitempty"`
	Period     float64 `json:"period_seconds,omitempty"`
	Queue      int64   `json:"queue,omitempty"` // 0 means no bound
	Durability string  `json:"durability,omitempty"`
	Overrides  int     `json:"overrides,omitempty"`

	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Errors  int64 `json:"errors"`
	Shadow  bool  `json:"shadow_denials"` // Shadow rules have denied too
	heldCounts
	inFlightReport

	AllowedPerSecond float64   `json:"allowed_per_second"` // in the last slot
	DeniedPerSecond  float64   `json:"denied_per_second"`
	SlotSeconds      float64   `json:"slot_seconds"`
	AllowedHistory   []float64 `json:"allowed_history"` // per second, oldest first
	DeniedHistory    []float64 `json:"denied_history"`

	Fullest    []bucketReport `json:"fullest"` // nearest to their limit
	MostDenied []bucketReport `json:"most_denied"`

	limit stint.Limit // zero without a default
}

// FollowsCalendar reports whether the buckets reset when a period of the calendar
// ends.
func (l limitReport) FollowsCalendar() bool { return l.limit.FollowsCalendar() }

// inFlightReport has the requests of rules with InFlight that the page observes.
type inFlightReport struct {
	InFlight       int64 `json:"in_flight"`      // now, over all buckets
	InFlightPeak   int64 `json:"in_flight_peak"` // most of one bucket since the start
	InFlightDenied int64 `json:"in_flight_denied"`
}

type bucketReport struct {
	bucketID
	Burst      int64   `json:"burst"`
	Remaining  int64   `json:"remaining"`
	RetryAfter float64 `json:"retry_after_seconds"` // for a cost of 1
	ResetAfter float64 `json:"reset_after_seconds"`
	Denied     int64   `json:"denied,omitempty"` // at least, in one or two generations
}

// shownBuckets is the length of a list of buckets.
const shownBuckets = 6

// report returns a report, at most a second old.
func (p *Page) report() *report {
	p.sampling.Lock()
	defer p.sampling.Unlock()
	now := p.lim.Now()
	if p.made != nil && !isDue(now, p.made.Time) {
		return p.made
	}
	st := p.lim.Stats()
	p.sampleLocked(now, st)
	limits := p.lim.Limits()
	f, c := st.Flush, st.Commit
	rep := &report{
		Time: now.UTC(), Since: p.started.UTC(), Healthy: true,
		Version: version(), Go: runtime.Version(),
		Resident: st.Resident, Loads: st.Loads, Evictions: st.Evictions,
		Forward: st.Forward, Backward: st.Backward, FileBytes: st.File.Bytes,
		FileFree: st.File.Free, Journal: st.File.Journal, Journaled: st.File.Journaled,
		Flush:  writeReport{f.Saves, f.Buckets, f.Failures, f.Last.Seconds(), f.Longest.Seconds()},
		Commit: writeReport{c.Saves, c.Buckets, c.Failures, c.Last.Seconds(), c.Longest.Seconds()},
	}
	if err := p.lim.Health(); err != nil {
		rep.Healthy, rep.Problem = false, p.errorText(err)
	}
	held := p.held(rep, limits)
	running := make(map[stint.Name]int64)
	for r := range rules.InFlightOf(p.lim) {
		running[r.Key.Name] += r.Running
	}
	for _, name := range slices.Sorted(maps.Keys(st.Limits)) {
		spec, declared := limits.Spec(name)
		if !declared { // no longer, so it has no label
			continue
		}
		l := p.limitLocked(name, spec, st.Limits[name], now)
		l.Overrides = limits.CountOverrides(name)
		l.heldCounts = *entry(held, name)
		l.InFlight = running[name]
		rep.AllowedPerSecond += l.AllowedPerSecond
		rep.DeniedPerSecond += l.DeniedPerSecond
		rep.Limits = append(rep.Limits, l)
	}
	p.made = rep
	return rep
}

// version returns the version of stint in this program: "(devel)" without one.
var version = sync.OnceValue(func() string {
	const stintPath = "github.com/stint-go/stint"
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == stintPath {
			return cmp.Or(m.Version, "(devel)")
		}
	}
	return "(devel)"
})

// limitLocked returns the report of a limit. The caller holds sampling.
func (p *Page) limitLocked(name stint.Name, spec stint.NameSpec, c stint.LimitStats, now time.Time) limitReport {
	l := limitReport{
		Label: spec.Label, Number: uint16(name),
		Allowed: c.Allowed, Denied: c.Denied, Errors: c.Errors,
		SlotSeconds: slotLen.Seconds(), Fullest: []bucketReport{}, MostDenied: []bucketReport{},
	}
	if limit := spec.Limit; limit != (stint.Limit{}) && !limit.IsUnlimited() {
		l.limit, l.Limit, l.Queue = limit, limit.String(), limit.Queue
		l.Durability = cmp.Or(limit.Durability, p.lim.Durability()).String()
		l.Burst, l.Count, l.Period = limit.Burst, limit.Count, max(0, limit.Period.Seconds())
	}
	chart := entry(p.charts, name)
	chart.advance(now)
	l.AllowedHistory, l.DeniedHistory = chart.perSecond()
	l.AllowedPerSecond = l.AllowedHistory[len(l.AllowedHistory)-1]
	l.DeniedPerSecond = l.DeniedHistory[len(l.DeniedHistory)-1]

	p.mu.Lock()
	o := entry(p.observed, name)
	denied, spent := o.denied.counts(now), o.spent.counts(now)
	l.Shadow, l.inFlightReport = o.shadow, o.inFlightReport
	p.mu.Unlock()
	times := make(map[stint.Key]int64, len(denied))
	for i, d := range denied {
		times[d.key] = d.n
		if b, ok := p.bucket(d.key); ok && i < shownBuckets && d.n > 0 {
			b.Denied = d.n
			l.MostDenied = append(l.MostDenied, b)
		}
	}
	for _, c := range spent {
		if b, ok := p.bucket(c.key); ok && b.ResetAfter > 0 {
			b.Denied = times[c.key]
			l.Fullest = append(l.Fullest, b)
		}
	}
	slices.SortStableFunc(l.Fullest, func(a, b bucketReport) int {
		return cmp.Or(cmp.Compare(b.RetryAfter, a.RetryAfter), cmp.Compare(b.used(), a.used()))
	})
	l.Fullest = l.Fullest[:min(shownBuckets, len(l.Fullest))]
	return l
}

// bucket returns the state of a bucket, and false if the bucket has no limit or
// cannot be read.
func (p *Page) bucket(key stint.Key) (bucketReport, bool) {
	ask := stint.Request{Key: key, Cost: 1, Mode: stint.CheckOnly}
	d, err := p.lim.Do(context.Background(), []stint.Request{ask}, nil)
	if err != nil || d.Limit.Count == 0 && d.Allowed {
		return bucketReport{}, false
	}
	b := bucketReport{bucketID: p.bucketID(key), Burst: d.Limit.Burst, Remaining: d.Remaining}
	reset := d.ResetAfter
	if d.Allowed { // Check reports the state after a spend
		b.Remaining++
		if !d.Limit.FollowsCalendar() {
			reset -= d.Limit.Interval()
		} else if b.Remaining >= d.Limit.Burst {
			reset = 0
		}
	}
	b.RetryAfter, b.ResetAfter = d.RetryAfter.Seconds(), max(0, reset, d.RetryAfter).Seconds()
	return b, true
}

// used returns the share of the bucket's tokens that are spent, 0 to 1.
func (b *bucketReport) used() float64 {
	if b.Burst == 0 {
		return 0
	}
	return 1 - float64(b.Remaining)/float64(b.Burst)
}
