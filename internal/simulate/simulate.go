package simulate

import (
	"bytes"
	"cmp"
	"context"
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

// note notes the decision on a request.
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

// newSimulated returns a Limiter in memory. The variable now is its clock, in
// nanoseconds since the beginning.
func newSimulated(names stint.Names, now *atomic.Int64) (*stint.Limiter, error) {
	limits, err := stint.NewLimits(names)
	if err != nil {
		return nil, err
	}
	return stint.New(stint.NewMemStore(), limits, &stint.Options{
		Now: func() time.Time { return beginning.Add(time.Duration(now.Load())) },
	})
}

// Run decides on all requests with a Limiter.
func (s *Simulation) Run() (err error) {
	if s.total != (stint.Limit{}) {
		return s.runTenants()
	}
	names := stint.Names{}
	requests, decisions := make([]stint.Request, len(s.limits)), make([]stint.Decision, len(s.limits))
	for i, l := range s.limits {
		name := stint.Name(i + 1)
		names[name] = stint.NameSpec{Label: fmt.Sprint("limit", i), Limit: l.limit}
		requests[i] = stint.Request{Key: name.Key("all"), Cost: 1}
		l.admitted = make([]bool, len(s.times))
	}
	var now atomic.Int64
	limiter, err := newSimulated(names, &now)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()
	for i, at := range s.times {
		now.Store(at)
		if err := limiter.DoEach(context.Background(), requests, decisions); err != nil {
			return err
		}
		for j, l := range s.limits {
			l.note(i, &decisions[j])
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
