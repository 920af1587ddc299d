package httplimit

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// report is what the page shows, and what ?format=json says.
type report struct {
	Time    time.Time `json:"time"`
	Since   time.Time `json:"since"` // when the page was made
	Healthy bool      `json:"healthy"`
	Problem string    `json:"problem,omitempty"`

	AllowedPerSecond float64 `json:"allowed_per_second"`
	DeniedPerSecond  float64 `json:"denied_per_second"`

	Resident  int64       `json:"resident"`
	Loads     int64       `json:"loads"`
	Evictions int64       `json:"evictions"`
	Forward   int64       `json:"clock_steps_forward"`
	Backward  int64       `json:"clock_steps_backward"`
	FileBytes int64       `json:"file_bytes,omitempty"`
	Flush     flushReport `json:"flush"`
	Commit    flushReport `json:"commit"` // what decisions waited for

	Limits []limitReport `json:"limits"`

	hasFile bool
}

type flushReport struct {
	Count    int64   `json:"count"`
	Buckets  int64   `json:"buckets"`
	Failures int64   `json:"failures"`
	Last     float64 `json:"last_seconds"`
	Longest  float64 `json:"longest_seconds"`
}

type limitReport struct {
	Label      string  `json:"label"`
	Number     uint16  `json:"number"`
	Limit      string  `json:"limit,omitempty"` // as stint.ParseLimit reads it; "" where only overrides have one
	Burst      int64   `json:"burst,omitempty"`
	Count      int64   `json:"count,omitempty"`
	Period     float64 `json:"period_seconds,omitempty"`
	Queue      int64   `json:"queue,omitempty"`      // 0 means no bound
	Durability string  `json:"durability,omitempty"` // "default" means that of Options
	Overrides  int     `json:"overrides,omitempty"`

	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Errors  int64 `json:"errors"`
	Shadow  bool  `json:"shadow_denials"` // denials by Shadow rules are among Denied

	AllowedPerSecond float64   `json:"allowed_per_second"` // in the last slot of the history
	DeniedPerSecond  float64   `json:"denied_per_second"`
	SlotSeconds      float64   `json:"slot_seconds"`
	AllowedHistory   []float64 `json:"allowed_history"` // per second, oldest first
	DeniedHistory    []float64 `json:"denied_history"`

	Fullest    []bucketReport `json:"fullest"` // nearest to their limit
	MostDenied []bucketReport `json:"most_denied"`
}

type bucketReport struct {
	ID         string  `json:"id"`
	Burst      int64   `json:"burst"`
	Remaining  int64   `json:"remaining"`
	RetryAfter float64 `json:"retry_after_seconds"` // of a request with a cost of 1
	ResetAfter float64 `json:"reset_after_seconds"`
	Denied     int64   `json:"denied,omitempty"` // at least, in the last five to ten minutes
	Token      string  `json:"token"`            // what resets it
}

// shownBuckets is how many a list of the page has.
const shownBuckets = 6

// report looks at the Limiter, at most once a second.
func (s *StatusPage) report() *report {
	s.looking.Lock()
	defer s.looking.Unlock()
	now := s.lim.Now()
	if s.made != nil && now.Sub(s.madeAt) < time.Second {
		return s.made
	}
	st := s.lim.Stats()
	s.sampleLocked(now, st.Limits)
	s.describeLocked()
	rep := &report{
		Time: now.UTC(), Since: s.started.UTC(), Healthy: true,
		Resident: st.Resident, Loads: st.Loads, Evictions: st.Evictions,
		Forward: st.Forward, Backward: st.Backward,
		Flush: flushReport{
			Count: st.Flush.Flushes, Buckets: st.Flush.Buckets, Failures: st.Flush.Failures,
			Last: st.Flush.Last.Seconds(), Longest: st.Flush.Longest.Seconds(),
		},
		Commit: flushReport{
			Count: st.Commit.Commits, Buckets: st.Commit.Buckets, Failures: st.Commit.Failures,
			Last: st.Commit.Last.Seconds(), Longest: st.Commit.Longest.Seconds(),
		},
	}
	if err := s.lim.Health(); err != nil {
		rep.Healthy, rep.Problem = false, s.textOf(err)
	}
	rep.FileBytes, rep.hasFile = st.File.Bytes, st.File.Bytes > 0
	for name, c := range st.Limits {
		if _, declared := s.names[name]; !declared { // any more: it has no label
			continue
		}
		l := s.limitLocked(name, c, now)
		rep.AllowedPerSecond += l.AllowedPerSecond
		rep.DeniedPerSecond += l.DeniedPerSecond
		rep.Limits = append(rep.Limits, l)
	}
	slices.SortFunc(rep.Limits, func(a, b limitReport) int { return cmp.Compare(a.Number, b.Number) })
	s.made, s.madeAt = rep, now
	return rep
}

// describeLocked learns the names and the overrides of the limits in force.
func (s *StatusPage) describeLocked() {
	limits := s.lim.Limits()
	if s.limits == limits {
		return
	}
	s.limits, s.names, s.over = limits, limits.Names(), make(map[stint.Name]int)
	for name := range s.names {
		for range limits.Overrides(name) {
			s.over[name]++
		}
	}
}

func (s *StatusPage) limitLocked(name stint.Name, c stint.LimitStats, now time.Time) limitReport {
	l := limitReport{
		Label: s.names[name].Label, Number: uint16(name), Overrides: s.over[name],
		Allowed: c.Allowed, Denied: c.Denied, Errors: c.Errors,
		SlotSeconds: slotLen.Seconds(), Fullest: []bucketReport{}, MostDenied: []bucketReport{},
	}
	if limit, ok := s.limits.Default(name); ok {
		l.Limit, l.Burst, l.Count, l.Period = limit.String(), limit.Burst, limit.Count, limit.Period.Seconds()
		l.Queue, l.Durability = limit.Queue, limit.Durability.String()
	}
	history := of(s.series, name)
	history.advance(now)
	l.AllowedHistory, l.DeniedHistory = history.perSecond()
	l.AllowedPerSecond = l.AllowedHistory[len(l.AllowedHistory)-1]
	l.DeniedPerSecond = l.DeniedHistory[len(l.DeniedHistory)-1]

	s.mu.Lock()
	denied, spent := of(s.denied, name).counts(now), of(s.spent, name).counts(now)
	l.Shadow = s.shadow[name]
	s.mu.Unlock()
	times := make(map[stint.Key]int64, len(denied))
	for i, d := range denied {
		times[d.key] = d.n
		if b, ok := s.bucket(d.key); ok && i < shownBuckets && d.n > 0 {
			b.Denied = d.n
			l.MostDenied = append(l.MostDenied, b)
		}
	}
	for _, c := range spent {
		if b, ok := s.bucket(c.key); ok && b.ResetAfter > 0 {
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

// used returns the part of the bucket that has been spent.
func (b *bucketReport) used() float64 {
	if b.Burst == 0 {
		return 0
	}
	return 1 - float64(b.Remaining)/float64(b.Burst)
}

// bucket returns the state of a bucket; false where there is no limit, or no answer.
func (s *StatusPage) bucket(key stint.Key) (bucketReport, bool) {
	d, err := s.lim.Check(key, 1)
	if err != nil || d.Limit.Count == 0 && d.Allowed {
		return bucketReport{}, false
	}
	b := bucketReport{ID: key.ID, Burst: d.Limit.Burst, Token: s.token(key)}
	b.RetryAfter, b.Remaining = d.RetryAfter.Seconds(), d.Remaining
	reset := d.ResetAfter
	if d.Allowed { // as if one had been spent
		b.Remaining++
		reset -= d.Limit.Interval()
	}
	b.ResetAfter = max(0, reset, d.RetryAfter).Seconds()
	switch {
	case s.opts.HideIDs:
		b.ID = "#" + b.Token[:6]
	case key.ID == "":
		b.ID = "everyone"
	}
	return b, true
}
