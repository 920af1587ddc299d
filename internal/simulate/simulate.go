package simulate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
)

// Simulation is a load, and limits that decide on it.
type Simulation struct {
	title  string
	times  []int64 // of the requests, in nanoseconds
	end    int64   // of the load
	limits []*simulated
	total  stint.Limit // of tenants
}

// simulated is one limit, or the ceiling of a tenant, and its decisions.
type simulated struct {
	name        string
	limit       stint.Limit
	asks        []bool // by request: it is for this limit
	requests    int64  // for this limit
	admitted    []bool // by request
	allowed     int64
	nearestMiss time.Duration // 0 if nothing was denied
	missed      int           // number of that request, from 1
	shared      *shared       // of a tenant
}

func (l *simulated) note(request int, d *stint.Decision) {
	l.admitted[request] = d.Allowed
	if d.Allowed {
		l.allowed++
	} else if l.nearestMiss == 0 || d.RetryAfter < l.nearestMiss {
		l.nearestMiss, l.missed = d.RetryAfter, request+1
	}
}

// ReadScenario reads a scenario in YAML.
func ReadScenario(content []byte) (*Scenario, error) {
	var in Scenario
	dec := yaml.NewDecoder(bytes.NewReader(content))
	dec.KnownFields(true)
	if err := dec.Decode(&in); err != nil && err != io.EOF {
		text := strings.Join(strings.Fields(err.Error()), " ")
		text = goType.ReplaceAllString(text, ": a scenario has title, limits and load, or total and tenants")
		return nil, errors.New(text)
	}
	return &in, nil
}

// New returns the simulation of a scenario. A scenario with limits has at least
// one, at most six, and a load.
func New(in *Scenario) (*Simulation, error) {
	if in.HasTenants() {
		return readTenants(in)
	}
	s := &Simulation{title: cmp.Or(in.Title, strings.Join(in.Load, ", then "))}
	for _, text := range in.Limits {
		name, limit, named := strings.Cut(text, "=")
		if !named {
			name, limit = "", text
		}
		l, err := stint.ParseLimit(limit)
		if err != nil {
			return nil, err
		}
		s.limits = append(s.limits, &simulated{name: cmp.Or(name, l.String()), limit: l})
	}
	for _, load := range in.Load {
		if err := s.add(load); err != nil {
			return nil, err
		}
	}
	for _, l := range s.limits {
		l.asks, l.requests = slices.Repeat([]bool{true}, len(s.times)), int64(len(s.times))
	}
	return s, nil
}

// goType is what yaml adds to an error about an unknown field.
var goType = regexp.MustCompile(` in type simulate\.(Scenario|Tenant)`)

var loadPattern = regexp.MustCompile(`^(?:(\d+) (?:(in) (\S+)|(every) (\S+)|(at once))|(\d+)/(\S+) for (\S+))` +
	`(?: after (\S+)(?: idle)?)?$`)

// mostRequests bounds the memory: each request is kept.
const mostRequests = 1_000_000

// add appends a load to the others.
func (s *Simulation) add(load string) error {
	wrong := fmt.Errorf("load %q: want one like '200 in 100ms', '300/1s for 2s', '600 every 4ms' or '200 at once'; "+
		"'after 5s idle' may follow", load)
	m := loadPattern.FindStringSubmatch(load)
	if m == nil {
		return wrong
	}
	var bad bool
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		bad = bad || err != nil || n < 1
		return n
	}
	period := func(s string) int64 { // as in a limit
		l, err := stint.ParseLimit("1/" + s)
		bad = bad || err != nil
		return max(1, int64(l.Period))
	}
	if m[10] != "" {
		s.end += period(m[10])
	}
	var count, over, length int64 // over: from the first to the last request; length: of the whole load
	switch {
	case m[2] != "":
		count, over = number(m[1]), period(m[3])
		length = over
	case m[4] != "":
		count = number(m[1])
		every := period(m[5])
		if count > mostRequests || every > int64(1<<62)/mostRequests {
			return fmt.Errorf("load %q: want at most %s, and at most %s from one to the next",
				load, display.Plural(mostRequests, "request"), display.Duration(time.Duration(1<<62/mostRequests).Truncate(time.Minute)))
		}
		over, length = (count-1)*every, count*every
	case m[6] != "":
		count = number(m[1])
	default:
		over = period(m[9])
		length = over
		hi, lo := bits.Mul64(uint64(number(m[7])), uint64(over))
		every := uint64(period(m[8]))
		if hi >= every {
			return wrong
		}
		n, _ := bits.Div64(hi, lo, every)
		count = int64(min(n, mostRequests+1))
	}
	if bad || count < 1 {
		return wrong
	}
	most := int64(50 * 365 * 24 * time.Hour)
	if count > mostRequests-int64(len(s.times)) || s.end < 0 || s.end+length < s.end || s.end+length > most {
		return fmt.Errorf("load %q: with it, the loads have more than %s, or take more than 50 years",
			load, display.Plural(mostRequests, "request"))
	}
	for i := range count {
		at := s.end
		if count > 1 {
			hi, lo := bits.Mul64(uint64(i), uint64(over))
			quotient, _ := bits.Div64(hi, lo, uint64(count-1))
			at += int64(quotient)
		}
		s.times = append(s.times, at)
	}
	s.end += length
	return nil
}

// beginning is when a load begins, for quotas that follow the calendar.
var beginning = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Run has a Limiter in memory decide on all requests.
func (s *Simulation) Run() (err error) {
	const total = stint.Name(1)
	names := stint.Names{}
	if s.total != (stint.Limit{}) {
		names[total] = stint.NameSpec{Label: "total", ID: stint.Shared, Limit: s.total}
	}
	nameOf := func(i int) stint.Name { return stint.Name(2 + 2*i) }
	for i, l := range s.limits {
		spec := stint.NameSpec{Label: fmt.Sprint("limit", i), ID: stint.Shared, Limit: l.limit}
		if l.shared != nil {
			spec.Label, spec.Parent = l.name, total
			if l.shared.floor != (stint.Limit{}) {
				spec.Floor = nameOf(i) + 1
				names[spec.Floor] = stint.NameSpec{Label: "floor of " + l.name, ID: stint.Shared, Limit: l.shared.floor}
			}
		}
		names[nameOf(i)] = spec
		l.admitted = make([]bool, len(s.times))
	}
	limits, err := stint.NewLimits(names)
	if err != nil {
		return err
	}
	var now atomic.Int64
	limiter, err := stint.New(stint.NewMemStore(), limits, &stint.Options{
		Now: func() time.Time { return beginning.Add(time.Duration(now.Load())) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()
	for i, at := range s.times {
		now.Store(at)
		for j, l := range s.limits {
			if !l.asks[i] {
				continue
			}
			d, err := limiter.Spend(nameOf(j).Key(""), 1)
			if err != nil {
				return err
			}
			l.note(i, &d)
		}
	}
	stats := limiter.Stats().Limits
	for i, l := range s.limits {
		if l.shared != nil {
			l.shared.borrowed = stats[nameOf(i)].Allowed - stats[nameOf(i)+1].Allowed // of its floor
		}
	}
	return nil
}

// Summary is the result of a simulation. Its JSON is the output of --json.
type Summary struct {
	Requests int            `json:"requests"`
	Limits   []LimitSummary `json:"limits"`
}

// LimitSummary is what one limit did to the load.
type LimitSummary struct {
	Name        string             `json:"name"`
	Limit       *display.JSONLimit `json:"limit"`
	Floor       *display.JSONLimit `json:"floor,omitempty"`
	Borrowed    *int64             `json:"borrowed,omitempty"`
	Allowed     int64              `json:"allowed"`
	Denied      int64              `json:"denied"`
	NearestMiss *time.Duration     `json:"nearest_miss_ns"`
}

// Summary returns the results.
func (s *Simulation) Summary() Summary {
	out := Summary{Requests: len(s.times)}
	for _, l := range s.limits {
		one := LimitSummary{Name: l.name, Limit: display.NewJSONLimit(l.limit),
			Allowed: l.allowed, Denied: l.requests - l.allowed}
		if l.shared != nil {
			one.Floor, one.Borrowed = display.NewJSONLimit(l.shared.floor), &l.shared.borrowed
			if l.limit.IsUnlimited() {
				one.Limit = nil
			}
		}
		if one.Denied > 0 {
			one.NearestMiss = &l.nearestMiss
		}
		out.Limits = append(out.Limits, one)
	}
	return out
}
