package status

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

// Report is everything that a status page shows. Package statuspage documents its
// JSON.
type Report struct {
	Time    time.Time `json:"time"`
	Since   time.Time `json:"since"` // when the Collector was made
	Healthy bool      `json:"healthy"`
	Problem string    `json:"problem,omitempty"`
	Version string    `json:"version"` // of stint
	Go      string    `json:"go"`

	AllowedPerSecond float64 `json:"allowed_per_second"`
	DeniedPerSecond  float64 `json:"denied_per_second"`

	Resident  int64       `json:"resident"`
	Dirty     int64       `json:"dirty"`
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
	Held []HeldReport `json:"held"` // latest end first

	Limits []LimitReport `json:"limits"`

	observes bool  // the following, and the requests of the limits, are known
	failed   int64 // requests that were answered with an error
}

type writeReport struct {
	Count    int64   `json:"count"`
	Buckets  int64   `json:"buckets"`
	Failures int64   `json:"failures"`
	Last     float64 `json:"last_seconds"`
	Longest  float64 `json:"longest_seconds"`
}

// LimitReport is what a report has about a limit.
type LimitReport struct {
	Label      string  `json:"label"`
	Number     uint16  `json:"number"`
	Limit      string  `json:"limit,omitempty"` // for stint.ParseLimit; "" without a default
	Burst      int64   `json:"burst,omitempty"`
	Count      int64   `json:"count,omitempty"`
	Period     float64 `json:"period_seconds,omitempty"`
	Queue      int64   `json:"queue,omitempty"` // 0 means no bound
	Durability string  `json:"durability,omitempty"`
	Overrides  int     `json:"overrides,omitempty"`

	Allowed int64 `json:"allowed"` // decisions of buckets
	Denied  int64 `json:"denied"`
	Errors  int64 `json:"errors"`
	heldCounts
	requestReport

	AllowedPerSecond float64   `json:"allowed_per_second"` // in the last slot
	DeniedPerSecond  float64   `json:"denied_per_second"`
	SlotSeconds      float64   `json:"slot_seconds"`
	AllowedHistory   []float64 `json:"allowed_history"` // per second, oldest first
	DeniedHistory    []float64 `json:"denied_history"`

	Fullest    []BucketReport `json:"fullest"` // nearest to their limit
	MostDenied []BucketReport `json:"most_denied"`

	limit stint.Limit
}

// Default returns the limit of buckets without an override, or the zero Limit.
func (l LimitReport) Default() stint.Limit { return l.limit }

// requestReport has what clients were told, as far as it was observed.
type requestReport struct {
	RequestsAllowed int64 `json:"requests_allowed"`
	RequestsDenied  int64 `json:"requests_denied"`
	ShadowDenied    int64 `json:"shadow_denied"` // which stopped no request

	InFlight       int64 `json:"in_flight"`      // now, over all buckets
	InFlightPeak   int64 `json:"in_flight_peak"` // most of one bucket since the start
	InFlightDenied int64 `json:"in_flight_denied"`

	verdicts verdicts
}

// verdicts count what clients were told, by the bits of a verdict.
type verdicts [8]int64

const isDenied, inShadow, noPlace = 1, 2, 4

func (c *verdicts) add(v rules.Verdict) {
	bits := 0
	if v.Denied {
		bits |= isDenied
	}
	if v.Shadow {
		bits |= inShadow
	}
	if v.InFlight {
		bits |= noPlace
	}
	c[bits]++
}

// observe adds what was observed of a limit.
func (r *requestReport) observe(o *observed) {
	r.InFlightPeak, r.verdicts = o.inFlightPeak, o.verdicts
	for bits, n := range r.verdicts {
		switch {
		case bits&isDenied == 0:
			r.RequestsAllowed += n
		case bits&inShadow != 0:
			r.ShadowDenied += n
		default:
			r.RequestsDenied += n
		}
		if bits&noPlace != 0 {
			r.InFlightDenied += n
		}
	}
}

// BucketReport is the state of a bucket.
type BucketReport struct {
	BucketID
	Burst      int64   `json:"burst"`
	Remaining  int64   `json:"remaining"`
	RetryAfter float64 `json:"retry_after_seconds"` // for a cost of 1
	ResetAfter float64 `json:"reset_after_seconds"`
	Denied     int64   `json:"denied,omitempty"` // at least, in one or two generations
}

// shownBuckets is the length of a list of buckets.
const shownBuckets = 6

// Report returns a report, at most a second old.
func (c *Collector) Report() *Report {
	c.sampling.Lock()
	defer c.sampling.Unlock()
	now := c.lim.Now()
	if c.made != nil && !isDue(now, c.made.Time) {
		return c.made
	}
	st := c.lim.Stats()
	c.sampleLocked(now, st)
	limits := c.lim.Limits()
	f, w := st.Flush, st.Commit
	rep := &Report{
		Time: now.UTC(), Since: c.started.UTC(), Healthy: true,
		Version: version(), Go: runtime.Version(),
		Resident: st.Resident, Dirty: st.Dirty, Loads: st.Loads, Evictions: st.Evictions,
		Forward: st.Forward, Backward: st.Backward, FileBytes: st.File.Bytes,
		FileFree: st.File.Free, Journal: st.File.Journal, Journaled: st.File.Journaled,
		Flush:  writeReport{f.Saves, f.Buckets, f.Failures, f.Last.Seconds(), f.Longest.Seconds()},
		Commit: writeReport{w.Saves, w.Buckets, w.Failures, w.Last.Seconds(), w.Longest.Seconds()},
	}
	if err := c.lim.Health(); err != nil {
		rep.Healthy, rep.Problem = false, c.errorText(err)
	}
	held := c.held(rep, limits)
	running := make(map[stint.Name]int64)
	for r := range rules.InFlightOf(c.lim) {
		running[r.Key.Name] += r.Running
	}
	for _, name := range slices.Sorted(maps.Keys(st.Limits)) {
		spec, declared := limits.Spec(name)
		if !declared { // no longer, so it has no label
			continue
		}
		l := c.limitLocked(name, spec, st.Limits[name], now)
		l.Overrides = limits.CountOverrides(name)
		l.heldCounts = *entry(held, name)
		l.InFlight = running[name]
		rep.AllowedPerSecond += l.AllowedPerSecond
		rep.DeniedPerSecond += l.DeniedPerSecond
		rep.Limits = append(rep.Limits, l)
	}
	c.mu.Lock()
	rep.observes, rep.failed = c.observes, c.failed
	c.mu.Unlock()
	c.made = rep
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
func (c *Collector) limitLocked(name stint.Name, spec stint.NameSpec, counts stint.LimitStats, now time.Time) LimitReport {
	l := LimitReport{
		Label: spec.Label, Number: uint16(name),
		Allowed: counts.Allowed, Denied: counts.Denied, Errors: counts.Errors,
		SlotSeconds: slotLen.Seconds(), Fullest: []BucketReport{}, MostDenied: []BucketReport{},
	}
	if limit := spec.Limit; limit != (stint.Limit{}) && limit != stint.Unlimited {
		l.limit, l.Limit, l.Queue = limit, limit.String(), limit.Queue
		l.Durability = cmp.Or(limit.Durability, c.lim.Durability()).String()
		l.Burst, l.Count, l.Period = limit.Burst, limit.Count, max(0, limit.Period.Seconds())
	}
	chart := entry(c.charts, name)
	chart.advance(now)
	l.AllowedHistory, l.DeniedHistory = chart.perSecond()
	l.AllowedPerSecond = l.AllowedHistory[len(l.AllowedHistory)-1]
	l.DeniedPerSecond = l.DeniedHistory[len(l.DeniedHistory)-1]

	c.mu.Lock()
	o := entry(c.observed, name)
	denied, spent := o.denied.counts(now), o.spent.counts(now)
	l.requestReport.observe(o)
	c.mu.Unlock()
	times := make(map[stint.Key]int64, len(denied))
	for i, d := range denied {
		times[d.key] = d.n
		if b, ok := c.bucket(d.key); ok && i < shownBuckets && d.n > 0 {
			b.Denied = d.n
			l.MostDenied = append(l.MostDenied, b)
		}
	}
	for _, s := range spent {
		if b, ok := c.bucket(s.key); ok && b.ResetAfter > 0 {
			b.Denied = times[s.key]
			l.Fullest = append(l.Fullest, b)
		}
	}
	slices.SortStableFunc(l.Fullest, func(a, b BucketReport) int {
		return cmp.Or(cmp.Compare(b.RetryAfter, a.RetryAfter), cmp.Compare(b.Used(), a.Used()))
	})
	l.Fullest = l.Fullest[:min(shownBuckets, len(l.Fullest))]
	return l
}

// bucket returns the state of a bucket, and false if the bucket has no limit or
// cannot be read.
func (c *Collector) bucket(key stint.Key) (BucketReport, bool) {
	ask := stint.Request{Key: key, Cost: 1, Mode: stint.CheckOnly}
	d, err := c.lim.Do(context.Background(), []stint.Request{ask}, nil)
	if err != nil || d.Limit.Count == 0 && d.Allowed {
		return BucketReport{}, false
	}
	b := BucketReport{BucketID: c.BucketID(key), Burst: d.Limit.Burst, Remaining: d.Remaining}
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

// Used returns the share of the bucket's tokens that are spent, 0 to 1.
func (b *BucketReport) Used() float64 {
	if b.Burst == 0 {
		return 0
	}
	return 1 - float64(b.Remaining)/float64(b.Burst)
}
