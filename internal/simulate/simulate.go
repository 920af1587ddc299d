package simulate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
)

// Scenario is the content of a scenario file.
type Scenario struct {
	Title        string
	Limits, Load []string
}

// Simulation is a load, and limits that decide on it.
type Simulation struct {
	title    string
	requests []int64 // in order: the nanoseconds at which they come
	end      int64   // of the load
	limits   []*simulated
}

// simulated is one limit, and its decisions.
type simulated struct {
	name        string
	limit       stint.Limit
	admitted    []bool // by request of the Simulation
	allowed     int64
	nearestMiss time.Duration // 0 if nothing was denied
	missed      int           // number of that request, from 1
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
		text = strings.ReplaceAll(text, " in type simulate.Scenario", ": a scenario has title, limits and load")
		return nil, errors.New(text)
	}
	return &in, nil
}

// New returns the simulation of a scenario. A scenario with limits has at least
// one, at most six, and a load.
func New(in *Scenario) (*Simulation, error) {
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
	return s, s.add(in.Load)
}

var loadPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:(\d+) (?:(in) (\S+)|(every) (\S+)|(at once))|(\d+)/(\S+) for (\S+))` +
		`(?: after (\S+)(?: idle)?)?$`)
})

// The bounds of a Simulation. Each request is kept.
const (
	mostRequests = 1_000_000
	longest      = int64(50 * 365 * 24 * time.Hour)
)

// load is requests at equal distances, after a pause.
type load struct {
	pause, length int64 // in nanoseconds
	over          int64 // from the first request to the last
	count         int64
}

// readLoad reads a load. Its pause and its length are at most those of a limit's
// period, 100 years.
func readLoad(text string) (l load, err error) {
	wrong := fmt.Errorf("load %q: want one like '200 in 100ms', '300/1s for 2s', '600 every 4ms' or '200 at once'; "+
		"'after 5s idle' may follow", text)
	m := loadPattern().FindStringSubmatch(text)
	if m == nil {
		return l, wrong
	}
	var bad bool
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		bad = bad || err != nil || n < 1
		return max(1, n)
	}
	period := func(s string) int64 { // as in a limit
		l, err := stint.ParseLimit("1/" + s)
		bad = bad || err != nil
		return max(1, int64(l.Period))
	}
	if m[10] != "" {
		l.pause = period(m[10])
	}
	switch {
	case m[2] != "":
		l.count, l.over = number(m[1]), period(m[3])
		l.length = l.over
	case m[4] != "":
		l.count = min(number(m[1]), mostRequests+1)
		every := min(period(m[5]), longest/l.count+1)
		l.over, l.length = (l.count-1)*every, l.count*every
	case m[6] != "":
		l.count = number(m[1])
	default:
		l.over = period(m[9])
		l.length = l.over
		hi, lo := bits.Mul64(uint64(number(m[7])), uint64(l.over))
		every := uint64(period(m[8]))
		if hi >= every {
			return l, wrong
		}
		n, _ := bits.Div64(hi, lo, every)
		l.count = int64(min(n, mostRequests+1))
	}
	if bad || l.count < 1 {
		return l, wrong
	}
	return l, nil
}

// add adds loads that follow each other.
func (s *Simulation) add(loads []string) error {
	for _, text := range loads {
		l, err := readLoad(text)
		if err != nil {
			return err
		}
		s.end += l.pause
		if l.count > mostRequests-int64(len(s.requests)) || s.end+l.length > longest {
			return fmt.Errorf("load %q: with it, the loads have more than %s, or take more than 50 years",
				text, display.Plural(mostRequests, "request"))
		}
		for i := range l.count {
			at := s.end
			if gaps := l.count - 1; gaps > 0 {
				at += l.over/gaps*i + l.over%gaps*i/gaps
			}
			s.requests = append(s.requests, at)
		}
		s.end += l.length
	}
	return nil
}

// beginning is when a load begins, for quotas that follow the calendar.
var beginning = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Run has a Limiter in memory decide on all requests.
func (s *Simulation) Run() (err error) {
	names := stint.Names{}
	nameOf := func(i int) stint.Name { return stint.Name(1 + i) }
	for i, l := range s.limits {
		names[nameOf(i)] = stint.NameSpec{Label: fmt.Sprint("limit", i), IDs: stint.Single, Limit: l.limit}
		l.admitted = make([]bool, len(s.requests))
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
	for i, at := range s.requests {
		now.Store(at)
		for j, l := range s.limits {
			d, err := limiter.Spend(nameOf(j).Key(""), 1)
			if err != nil {
				return err
			}
			l.note(i, &d)
		}
	}
	return nil
}

func (s *Simulation) denied(l *simulated) int64 { return int64(len(s.requests)) - l.allowed }

// Summary is the result of a simulation. Its JSON is the output of --json.
type Summary struct {
	Requests int            `json:"requests"`
	Limits   []LimitSummary `json:"limits"`
}

// LimitSummary is what one limit did to the load.
type LimitSummary struct {
	Name        string             `json:"name"`
	Limit       *display.JSONLimit `json:"limit"`
	Allowed     int64              `json:"allowed"`
	Denied      int64              `json:"denied"`
	NearestMiss *time.Duration     `json:"nearest_miss_ns"`
}

// Summary returns the results.
func (s *Simulation) Summary() Summary {
	out := Summary{Requests: len(s.requests)}
	for _, l := range s.limits {
		one := LimitSummary{Name: l.name, Limit: display.NewJSONLimit(l.limit),
			Allowed: l.allowed, Denied: s.denied(l)}
		if one.Denied > 0 {
			one.NearestMiss = &l.nearestMiss
		}
		out.Limits = append(out.Limits, one)
	}
	return out
}
