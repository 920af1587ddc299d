package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// replayer is the state of a replay.
type replayer struct {
	limiter  *stint.Limiter
	names    []stint.Name  // of the limits
	limits   []string      // in words
	sweep    bool          // each limit decides for itself
	of       *stint.Limits // of all names
	reading  reading
	times    *logTime
	ipv6Bits int
	stderr   io.Writer
	progress *progress
	decided  func(allowed []bool)

	requestsOf []stint.Request // of one line, one for each limit
	decisions  []stint.Decision
	allowed    []bool

	newest atomic.Int64 // Unix nanoseconds; the Limiter reads it too
	behind int64        // the longest time by which a line was too late

	requests, malformed, other int64

	repeatedLines, repeats int64 // lines for several requests, and those requests
	costs                  bool  // a line had another cost than 1
	tokens                 int64 // tokens of all requests
	overBurst              int64 // requests that cost more than a limit's burst

	columns  []counts
	deniedBy []int64 // by limit, if all have to admit
	byID     map[string]*tally
	byMinute map[int64]*counts // first column, by minutes since 1970
}

// counts are requests.
type counts struct {
	allowed, denied int64
	tokens          int64 // tokens of the allowed requests
}

func (c *counts) requests() int64 { return c.allowed + c.denied }

func (c *counts) add(allowed bool, cost int64) {
	if allowed {
		c.allowed++
		c.tokens = capped(c.tokens, cost)
	} else {
		c.denied++
	}
}

// capped returns the sum of two positive numbers, or the largest
// number.
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

// add makes a limit one of the deciding limits.
func (r *replayer) add(name stint.Name, limit string) error {
	if slices.Contains(r.limits, limit) {
		return fmt.Errorf("the limit %s is given twice: once is enough", limit)
	}
	r.names, r.limits = append(r.names, name), append(r.limits, limit)
	r.requestsOf, r.decisions = make([]stint.Request, len(r.names)), make([]stint.Decision, len(r.names))
	if r.columns = make([]counts, 1); r.sweep {
		r.columns = make([]counts, len(r.names))
	}
	r.allowed, r.deniedBy = make([]bool, len(r.columns)), make([]int64, len(r.names))
	return nil
}

func (r *replayer) now() time.Time { return time.Unix(0, r.newest.Load()) }

func (r *replayer) read(ctx context.Context, log string, stdin io.Reader) error {
	in := stdin
	if log != "-" {
		file, err := os.Open(log)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	err := eachLine(ctx, r.progress.reader(in), func(number int, text []byte, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == errUnended {
			r.progress.close()
			fmt.Fprintf(r.stderr, "stint: %s:%d: %v\n", visible(log), number, err)
			err = nil
		}
		var e entry
		if err == nil {
			e, err = r.reading(text)
		}
		if err == errNoID {
			r.other++
			return nil
		}
		var t *tally
		if err == nil {
			t, err = r.tally(e.id)
		}
		if err != nil {
			r.skip(log, number, err)
			return nil
		}
		if e.repeated {
			r.repeatedLines, r.repeats = r.repeatedLines+1, r.repeats+e.times
		}
		for range e.times {
			if err := r.decide(t, e.at, e.cost); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !errors.As(err, new(failure)) {
		err = fmt.Errorf("%s: %w", log, err)
	}
	return err
}

// skip counts a malformed line, and reports the first few.
func (r *replayer) skip(log string, number int, err error) {
	const most = 5
	if r.malformed++; r.malformed <= most+1 {
		r.progress.close()
	}
	if r.malformed <= most {
		fmt.Fprintf(r.stderr, "stint: %s:%d: skipped: %s\n", visible(log), number, visible(err.Error()))
	}
	if r.malformed == most+1 {
		fmt.Fprintln(r.stderr, "stint: further malformed lines are only counted")
	}
}

func (r *replayer) tally(text []byte) (*tally, error) {
	if t, ok := r.byID[string(text)]; ok { // most lines end here, and make no string
		return t, nil
	}
	var buffer [64]byte // for the longest address
	text = canonical(buffer[:0], text, r.ipv6Bits)
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

func (r *replayer) decide(t *tally, at, cost int64) error {
	newest := r.newest.Load()
	r.behind = max(r.behind, newest-at)
	r.newest.Store(max(newest, at))
	for i, name := range r.names {
		r.requestsOf[i] = stint.Request{Key: name.Key(t.id), Cost: cost}
	}
	var err error
	if r.sweep {
		err = r.limiter.SpendEach(r.requestsOf, r.decisions)
	} else {
		r.decisions[0], err = r.limiter.SpendAll(r.requestsOf...)
	}
	if errors.Is(err, stint.ErrCostOverBurst) { // no wait is long enough
		r.overBurst++
		if !r.sweep {
			r.decisions[0].Key = r.tooSmall(cost)
		}
	} else if err != nil {
		return failed(err)
	}
	r.costs, r.tokens = r.costs || cost != 1, capped(r.tokens, cost)
	r.requests++
	for i := range r.columns {
		ok := r.decisions[i].Allowed
		r.allowed[i] = ok
		r.columns[i].add(ok, cost)
		t.columns[i].add(ok, cost)
	}
	if !r.allowed[0] && !r.sweep {
		r.deniedBy[slices.Index(r.names, r.decisions[0].Key.Name)]++
	}
	minute, ok := r.byMinute[at/60e9]
	if !ok {
		minute = &counts{}
		r.byMinute[at/60e9] = minute
	}
	minute.add(r.allowed[0], cost)
	if r.decided != nil {
		r.decided(r.allowed)
	}
	return nil
}

// tooSmall returns the key of the first limit with a burst below the cost.
func (r *replayer) tooSmall(cost int64) stint.Key {
	i := slices.IndexFunc(r.requestsOf, func(q stint.Request) bool {
		limit, ok := r.of.For(q.Key)
		return ok && limit != stint.Blocked && cost > limit.Burst
	})
	return r.requestsOf[max(0, i)].Key
}

// warnOfYears reports that years were inferred.
func (r *replayer) warnOfYears() {
	if t := r.times; t.inferred > 0 {
		fmt.Fprintf(r.stderr, "stint: lines without a year: %d, read as %s; --year sets the year of the first line\n",
			t.inferred, t.years())
	}
}

// warnOfCosts reports requests that no wait admits.
func (r *replayer) warnOfCosts() {
	if r.overBurst > 0 {
		fmt.Fprintf(r.stderr, "stint: requests that cost more than a limit's burst: %d; such requests are always denied\n",
			r.overBurst)
	}
}

// warnOfOrder reports logs that were given newest first. A server's own lines
// are only seconds out of order.
func (r *replayer) warnOfOrder() {
	if r.behind > int64(time.Hour) {
		fmt.Fprintf(r.stderr, "stint: lines are up to %s older than ones before them: give the oldest log first\n",
			duration(time.Duration(r.behind)))
	}
}
