package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
)

type simulateFlags struct {
	load     []string
	scenario string
	svg      string
	json     bool
}

func newSimulate() *cobra.Command {
	f := &simulateFlags{}
	cmd := &cobra.Command{
		Use:   "simulate LIMIT... --load LOAD",
		Short: "Draw what limits do to a load, side by side",
		Long: `Draw what limits do to a load, side by side: how many requests each admits over time. Nothing is kept.
The clock is simulated, so the command takes no time.

A LIMIT is COUNT/PERIOD or 'COUNT/PERIOD burst N', and may have a name, 'NAME=LIMIT'. A large burst
makes it a token bucket, and a burst of 1 a leaky bucket.

A LOAD is one of these, and may end in "after 5s idle"; several follow each other:
  200 in 100ms         evenly, the first at the beginning and the last at the end
  300/1s for 2s        the same: 600 in 2s
  600 every 3333333ns  the first at the beginning, and the last one step before the end
  200 at once
To a limit, the second and the third are not the same: if a token takes 10ms, three steps of 3333333ns
are one nanosecond too short. The nearest miss is the shortest time by which a request came too early.

A scenario is a YAML file with a title and two lists, limits and load. Instead of the two lists it may
have a total, which is a LIMIT, and a list of tenants, each with name, ceiling, floor and load. Each
tenant has its own load. Its floor is guaranteed, and it borrows from the total up to its ceiling.

--json prints one object: requests, and limits, an array of name, limit, allowed, denied,
nearest_miss_ns (null without a denial). For a tenant, limit is the ceiling, and there are also floor
and borrowed.`,
		Example: `  stint simulate 'token bucket=100/1s burst 200' 'leaky bucket=100/1s burst 1' \
    --load '200 in 100ms after 5s idle'
  stint simulate '100/1s burst 200' '100/1s burst 1' --load '300/1s for 2s' --svg overload.svg
  stint simulate --scenario black-friday.yml --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.read(cmd, args)
			if err != nil {
				return err
			}
			if err := s.run(); err != nil {
				return err
			}
			if f.svg != "" && f.svg != "-" {
				if err := replaceFile(f.svg, s.svg()); err != nil {
					return failed(err)
				}
			}
			switch {
			case f.svg == "-":
				_, err = cmd.OutOrStdout().Write(s.svg())
			case f.json:
				err = printJSON(cmd.OutOrStdout(), s.summary())
			default:
				w := cmd.OutOrStdout()
				_, err = io.WriteString(folding(w), s.text(columns(w)))
			}
			return failed(err)
		},
	}
	cmd.Flags().StringArrayVar(&f.load, "load", nil, "a `LOAD`; may be repeated")
	cmd.Flags().StringVar(&f.scenario, "scenario", "", "a YAML `FILE` with title, limits and load")
	cmd.Flags().StringVar(&f.svg, "svg", "",
		"also write the chart as SVG to a `FILE`; - for standard output instead of the text")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	_ = cmd.MarkFlagFilename("scenario", "yml", "yaml")
	_ = cmd.MarkFlagFilename("svg", "svg")
	return cmd
}

// simulation is a load, and limits that decide on it.
type simulation struct {
	title  string
	times  []int64 // of the requests, in nanoseconds
	end    int64   // of the load
	limits []*simulated
	total  stint.Limit // of tenants
}

// simulated is one limit, and its decisions.
type simulated struct {
	name        string
	limit       stint.Limit
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

// read returns the simulation of the flags and arguments.
func (f *simulateFlags) read(cmd *cobra.Command, args []string) (*simulation, error) {
	if err := exclusive(cmd, "scenario", "load"); err != nil {
		return nil, err
	}
	if f.svg == "-" && f.json {
		return nil, misuse(cmd, "--svg - and --json exclude each other: both take standard output")
	}
	in := scenario{Limits: args, Load: f.load}
	if f.scenario != "" {
		if len(args) > 0 {
			return nil, misuse(cmd, "give limits in a scenario or as arguments, not both")
		}
		content, err := os.ReadFile(f.scenario)
		if err != nil {
			return nil, err
		}
		dec := yaml.NewDecoder(bytes.NewReader(content))
		dec.KnownFields(true)
		if err := dec.Decode(&in); err != nil && err != io.EOF {
			text := strings.Join(strings.Fields(err.Error()), " ")
			text = goType.ReplaceAllString(text, ": a scenario has title, limits and load, or total and tenants")
			return nil, fmt.Errorf("%s: %s", f.scenario, text)
		}
		if in.Total != "" || in.Tenants != nil {
			s, err := readTenants(&in)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.scenario, err)
			}
			return s, nil
		}
	}
	switch {
	case len(in.Limits) == 0:
		return nil, misuse(cmd, "no LIMIT given")
	case len(in.Limits) > len(svgColors):
		return nil, misuse(cmd, "%d limits: a chart can show at most %d",
			len(in.Limits), len(svgColors))
	case len(in.Load) == 0:
		return nil, misuse(cmd, "no --load given")
	}
	s := &simulation{title: cmp.Or(in.Title, strings.Join(in.Load, ", then "))}
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
	return s, nil
}

// goType is what yaml adds to an error about an unknown field.
var goType = regexp.MustCompile(` in type main\.(scenario|tenant)`)

var loadPattern = regexp.MustCompile(`^(?:(\d+) (?:(in) (\S+)|(every) (\S+)|(at once))|(\d+)/(\S+) for (\S+))` +
	`(?: after (\S+)(?: idle)?)?$`)

// mostRequests bounds the memory: each request is kept.
const mostRequests = 1_000_000

// add appends a load to the others.
func (s *simulation) add(load string) error {
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
				load, plural(mostRequests, "request"), duration(time.Duration(1<<62/mostRequests).Truncate(time.Minute)))
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
	if int64(len(s.times))+count > mostRequests || s.end < 0 || s.end+length < s.end || s.end+length > most {
		return fmt.Errorf("load %q: with it, the loads have more than %s, or take more than 50 years",
			load, plural(mostRequests, "request"))
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

// newSimulated returns a Limiter in memory. The variable now is its clock, in
// nanoseconds since the beginning.
func newSimulated(names stint.Names, now *atomic.Int64) (*stint.Limiter, error) {
	limits, err := stint.NewLimits(names, nil, nil)
	if err != nil {
		return nil, err
	}
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	return stint.New(stint.NewMemStore(), limits, &stint.Options{
		Now: func() time.Time { return start.Add(time.Duration(now.Load())) },
	})
}

// run decides on all requests with a Limiter.
func (s *simulation) run() (err error) {
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
		if err := limiter.SpendEach(requests, decisions); err != nil {
			return err
		}
		for j, l := range s.limits {
			l.note(i, &decisions[j])
		}
	}
	return nil
}

type simulationJSON struct {
	Requests int             `json:"requests"`
	Limits   []simulatedJSON `json:"limits"`
}

type simulatedJSON struct {
	Name        string         `json:"name"`
	Limit       *limitJSON     `json:"limit"`
	Floor       *limitJSON     `json:"floor,omitempty"`
	Borrowed    *int64         `json:"borrowed,omitempty"`
	Allowed     int64          `json:"allowed"`
	Denied      int64          `json:"denied"`
	NearestMiss *time.Duration `json:"nearest_miss_ns"`
}

func (s *simulation) summary() simulationJSON {
	out := simulationJSON{Requests: len(s.times)}
	for _, l := range s.limits {
		one := simulatedJSON{Name: l.name, Limit: newLimitJSON(l.limit),
			Allowed: l.allowed, Denied: l.requests(len(s.times)) - l.allowed}
		if l.shared != nil {
			one.Floor, one.Borrowed = newLimitJSON(l.shared.floor), &l.shared.borrowed
			if l.limit == stint.Unlimited {
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
