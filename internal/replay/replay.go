package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
)

// Config is what a replay needs.
type Config struct {
	Format   Format
	Deciding []Deciding
	Each     bool          // each limit decides for itself; otherwise all must admit a request
	Limits   *stint.Limits // of all names
	Store    stint.Store   // keeps the buckets; Close closes it
	Warn     func(warning string)
	Decided  func(allowed []bool) // gets the decisions on each request; may be nil
	Chart    bool                 // SVG is wanted
}

// Deciding is a limit that decides.
type Deciding struct {
	Name  stint.Name
	Limit string // in words
}

// Replay decides on the requests of logs, each at the time of its line.
type Replay struct {
	Config
	limiter *stint.Limiter
	reader  *reader
	clients clients
	log     string // that is read

	requestsOf []stint.Request // of one line, one for each limit
	decisions  []stint.Decision
	allowed    []bool

	newest atomic.Int64 // Unix nanoseconds; the Limiter reads it too
	behind int64        // the longest time by which a line was too late

	summary  Summary // the counts of lines and requests so far
	repeated repeatSummary
	costs    bool  // a line had another cost than 1
	tokens   int64 // tokens of all requests

	columns  []counts
	deniedBy []int64 // by limit, if all have to admit
	byID     map[string]*tally
	byMinute map[int64]*counts // first column, by minutes since 1970
	timeline *timeline         // nil without a chart
}

type counts struct {
	allowed, denied int64
	tokens          int64 // tokens of the allowed requests
}

func (c *counts) add(allowed bool, cost int64) {
	if allowed {
		c.allowed++
		c.tokens = capped(c.tokens, cost)
	} else {
		c.denied++
	}
}

// capped returns the sum of two positive numbers, or the largest number.
func capped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// tally has the decisions on one id.
type tally struct {
	id      string
	columns []counts
}

// New begins a replay. If it returns an error, the store is still open.
func New(c Config) (*Replay, error) {
	r := &Replay{Config: c, byID: map[string]*tally{}, byMinute: map[int64]*counts{}}
	note := func(text string) { r.Warn(display.Visible(r.log) + ": " + text) }
	var err error
	if r.reader, err = c.Format.reader(note); err != nil {
		return nil, err
	}
	r.clients = clients{ipv6Bits: c.Format.IPv6Bits, proxies: c.Format.Proxies, note: note}
	if c.Chart {
		r.timeline = &timeline{}
	}
	limits, columns := len(c.Deciding), 1
	if c.Each {
		columns = limits
	}
	r.requestsOf, r.decisions = make([]stint.Request, limits), make([]stint.Decision, limits)
	r.columns, r.allowed, r.deniedBy = make([]counts, columns), make([]bool, columns), make([]int64, limits)
	now := func() time.Time { return time.Unix(0, r.newest.Load()) }
	r.limiter, err = stint.New(c.Store, c.Limits, &stint.Options{Now: now, MaxResident: 1 << 24})
	if err != nil {
		return nil, StoreError{err}
	}
	return r, nil
}

// StoreError is an error of the store, not of a log.
type StoreError struct{ error }

func (e StoreError) Unwrap() error { return e.error }

// Nothing returns why there is no request, or nil if there is one or no line.
func (r *Replay) Nothing() error {
	switch fields := strings.Join(slices.Sorted(slices.Values(r.reader.lacking)), ", "); {
	case r.summary.Requests > 0 || r.summary.Other+r.summary.Malformed == 0:
		return nil
	case fields != "":
		return fmt.Errorf("no line has an id (--by %s) and a time (--time %s): the lines have %s; name others with --by, "+
			"which may be a /REGEXP/, and --time, or describe the lines with --lines REGEXP",
			r.Format.By, r.Format.Time, display.Visible(display.Shortened(fields, 600)))
	case r.Format.Lines != "":
		return fmt.Errorf("no line could be read: none is as --lines %s says", r.Format.Lines)
	}
	return errors.New("no line could be read: none is recognized; describe the lines with a regular expression, " +
		`as in --lines '^(?P<time>\S+ \S+) (?P<ip>\S+)'`)
}

// Requests returns how many requests were decided.
func (r *Replay) Requests() int64 { return r.summary.Requests }

// Close warns of what is odd in the logs, and closes the store.
func (r *Replay) Close() error {
	if years := &r.reader.times.inferred; years.Lines > 0 {
		r.Warn(fmt.Sprintf("lines without a year: %d, read as %v; --year sets the year of the first line",
			years.Lines, years))
	}
	if r.summary.OverBurst > 0 {
		r.Warn(fmt.Sprintf("requests that cost more than a limit's burst: %d; such requests are always denied",
			r.summary.OverBurst))
	}
	if r.behind > int64(time.Hour) { // a server's own lines are only seconds out of order
		r.Warn(fmt.Sprintf("lines are up to %s older than ones before them: give the oldest log first",
			display.Duration(time.Duration(r.behind))))
	}
	if err := r.limiter.Close(); err != nil {
		return StoreError{err}
	}
	return nil
}

// Read decides on the requests of a log, until ctx ends. Its name is for errors
// and warnings. If the log cannot be read to its end, the requests before are
// decided, and the error says why.
func (r *Replay) Read(ctx context.Context, log string, in io.Reader) error {
	r.log = log
	err := eachLine(ctx, in, func(number int, text []byte, ahead func() []byte, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == errUnended {
			r.Warn(fmt.Sprintf("%s:%d: %v", display.Visible(log), number, err))
			err = nil
		}
		var e entry
		if err == nil {
			e, err = r.reader.read(text, ahead)
		}
		switch {
		case err == errNoID:
			r.summary.Other++
			return nil
		case err == errNoLine:
			return nil
		case err != nil && errors.As(err, new(FlagError)):
			return err
		}
		var t *tally
		if err == nil {
			t, err = r.tally(e.id)
		}
		if err != nil {
			r.skip(log, number, err)
			return nil
		}
		if e.repeats > 0 {
			r.repeated.Lines, r.repeated.Requests = r.repeated.Lines+1, r.repeated.Requests+e.repeats
		}
		for range max(1, e.repeats) {
			if err := r.decide(t, &e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !errors.As(err, new(StoreError)) && !errors.As(err, new(FlagError)) {
		err = fmt.Errorf("%s: %w", log, err)
	}
	return err
}

// skip counts a malformed line, and reports the first few.
func (r *Replay) skip(log string, number int, err error) {
	const most = 5
	if r.summary.Malformed++; r.summary.Malformed <= most {
		r.Warn(fmt.Sprintf("%s:%d: skipped: %s", display.Visible(log), number, display.Visible(err.Error())))
	}
	if r.summary.Malformed == most+1 {
		r.Warn("further malformed lines are only counted")
	}
}

func (r *Replay) tally(text []byte) (*tally, error) {
	if t, ok := r.byID[string(text)]; ok { // most lines end here, and make no string
		return t, nil
	}
	var buffer [64]byte // for the longest address
	text = r.clients.id(buffer[:0], text)
	if t, ok := r.byID[string(text)]; ok {
		return t, nil
	}
	id, err := stint.AnyID.Canonical(string(text))
	if err != nil {
		return nil, err
	}
	t := &tally{id, make([]counts, len(r.columns))}
	r.byID[id] = t
	return t, nil
}

func (r *Replay) decide(t *tally, e *entry) error {
	at, cost, mode := e.at, e.cost, stint.Mode(0)
	if e.checked {
		mode = stint.CheckOnly
	}
	newest := r.newest.Load()
	r.behind = max(r.behind, newest-at)
	r.newest.Store(max(newest, at))
	for i, limit := range r.Deciding {
		r.requestsOf[i] = stint.Request{Key: limit.Name.Key(t.id), Cost: cost, Mode: mode}
	}
	var err error
	if r.Each {
		err = r.limiter.DoEach(context.Background(), r.requestsOf, r.decisions)
	} else {
		r.decisions[0], err = r.limiter.SpendAll(r.requestsOf...)
	}
	if errors.Is(err, stint.ErrCostOverBurst) { // no wait is long enough
		r.summary.OverBurst++
		if !r.Each {
			r.decisions[0].Key = r.tooSmall(cost)
		}
	} else if err != nil {
		return StoreError{err}
	}
	if r.summary.Requests++; e.checked {
		r.summary.Checked, cost = r.summary.Checked+1, 0
	} else {
		r.costs, r.tokens = r.costs || cost != 1, capped(r.tokens, cost)
	}
	for i := range r.columns {
		ok := r.decisions[i].Allowed
		r.allowed[i] = ok
		r.columns[i].add(ok, cost)
		t.columns[i].add(ok, cost)
	}
	if !r.allowed[0] && !r.Each {
		r.deniedBy[slices.IndexFunc(r.requestsOf, func(q stint.Request) bool { return q.Key == r.decisions[0].Key })]++
	}
	if r.timeline != nil {
		r.timeline.add(at, r.allowed)
	}
	minute, ok := r.byMinute[at/60e9]
	if !ok {
		minute = &counts{}
		r.byMinute[at/60e9] = minute
	}
	minute.add(r.allowed[0], cost)
	if r.Decided != nil {
		r.Decided(r.allowed)
	}
	return nil
}

// tooSmall returns the key of the first limit with a burst below the cost.
func (r *Replay) tooSmall(cost int64) stint.Key {
	i := slices.IndexFunc(r.requestsOf, func(q stint.Request) bool {
		limit := r.Limits.For(q.Key)
		return limit != stint.Unlimited && limit != stint.Blocked && cost > limit.Burst
	})
	return r.requestsOf[max(0, i)].Key
}
