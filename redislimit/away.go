package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// AwayOpen is an Options.Away that admits everything while the server is away.
// Limits of stint.Blocked still deny.
var AwayOpen stint.Decider = awayOpen{}

// awayOpen has no limits and remembers nothing.
type awayOpen struct{}

func (awayOpen) Limits() *stint.Limits { return noLimits }

var noLimits, _ = stint.NewLimits(nil)

func (awayOpen) Now() time.Time { return time.Now() }

func (awayOpen) Do(_ context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	d := stint.Decision{Allowed: true, Remaining: math.MaxInt64, Limit: stint.Unlimited}
	d.SetAt(time.Now())
	for i, r := range reqs {
		d.Key, d.Taken = r.Key, r.Cost
		if r.Mode == stint.CheckOnly {
			d.Taken = 0
		}
		if ds != nil {
			ds[i] = d
		}
	}
	return d, nil
}

func (o awayOpen) Refund(reqs ...stint.Request) (stint.Decision, error) {
	return stint.Decision{Allowed: true, Remaining: math.MaxInt64, Limit: stint.Unlimited}, nil
}

func (o awayOpen) Wait(ctx context.Context, req stint.Request) (stint.Decision, error) {
	return o.Do(ctx, []stint.Request{req}, nil)
}

func (awayOpen) Hold(stint.Key, time.Time) (time.Time, error) {
	return time.Time{}, fmt.Errorf("redislimit: AwayOpen: hold: %w", errors.ErrUnsupported)
}

func (awayOpen) SetHold(_ stint.Key, until time.Time) error {
	if until.After(time.Now()) {
		return fmt.Errorf("redislimit: AwayOpen: hold: %w", errors.ErrUnsupported)
	}
	return nil
}

func (awayOpen) Bucket(key stint.Key) (stint.Bucket, error) {
	return stint.Bucket{Key: key, Limit: stint.Unlimited}, nil
}

// newWatch returns what notices that a server is away.
func (l *Limiter) newWatch() *away.Watch {
	return away.New(away.Config{
		Server: l.server, Learn: l.learn, Decides: l.opts.Away != nil, Elapsed: l.elapsed, Prefix: l.opts.Prefix,
		Key: l.opts.keyOf, Begin: l.begin, Closing: l.closing, Tell: l.tell, Note: l.note,
	})
}

// learn asks what the server is, unless it is known to be a single one.
func (l *Limiter) learn() error {
	if l.server.Spreads() {
		return l.look()
	}
	return nil
}

// decidesAway reports whether Options.Away decides a trip, because the server is away.
func (l *Limiter) decidesAway(op script.Op, key stint.Key, cause error) bool {
	return l.watch.Under() && l.watch.Of(key).Away() && l.mayDecideAway(op, cause)
}

// mayDecideAway reports whether Options.Away may decide a trip, after an error of the
// server or, if cause is nil, before it was asked. Holds and resets are not made
// there, because other machines would not notice them. A refund that the server may
// have made is not made twice.
func (l *Limiter) mayDecideAway(op script.Op, cause error) bool {
	nothing := cause == nil || errors.Is(cause, ErrAway) || errors.Is(cause, ErrBusy)
	switch op {
	case script.Spend, script.Check, script.Part:
		nothing = nothing || errors.Is(cause, ErrNoAnswer)
	case script.Refund:
	default:
		return false
	}
	return nothing && l.opts.Away != nil
}

// decideAway lets Options.Away decide a trip.
func (l *Limiter) decideAway(ctx context.Context, t *script.Trip) (err error) {
	t.Away = true
	reqs, ds := make([]stint.Request, len(t.Requests)), make([]stint.Decision, len(t.Requests))
	t.At = l.opts.Away.Now() // before Now of the server, so that no Spent comes too late
	now := l.Now()
	for i, r := range t.Requests {
		reqs[i] = stint.Request{Key: r.Bucket, Cost: r.Cost, Leave: r.Leave, Mode: r.Mode, Limit: r.Given, Spent: r.Spent}
		switch {
		case t.Op == script.Check:
			reqs[i].Mode = stint.CheckOnly
		case t.Op == script.Part:
			reqs[i].Mode = stint.UpTo
		}
		if t.Op == script.Refund && !r.Spent.IsZero() {
			reqs[i].Spent = t.At.Add(r.Spent.Sub(now))
		}
	}
	var d stint.Decision
	if t.Op == script.Refund {
		if d, err = l.opts.Away.Refund(reqs...); err == nil {
			for i := range ds {
				ds[i] = d
			}
		}
	} else {
		d, err = l.opts.Away.Do(ctx, reqs, ds)
	}
	if err != nil {
		return awayError(err)
	}
	l.awayDecisions.Add(int64(len(ds)))
	t.Allowed = d.Allowed
	for i, r := range t.Requests {
		ds[i].Taken += r.Taken // by a Part, from its lease
		ds[i].SetAt(now)
		r.Away = &ds[i]
	}
	return nil
}

// awayError returns an error of Options.Away. If Away is closed, or its limits do
// not fit the request, nothing was spent. Other errors say so themselves.
func awayError(err error) error {
	for _, is := range []error{stint.ErrClosed, stint.ErrUnknownName, stint.ErrInvalidID, stint.ErrCostOverBurst, errors.ErrUnsupported} {
		if errors.Is(err, is) {
			return fmt.Errorf("%w, and Options.Away cannot decide: %v", ErrAway, err)
		}
	}
	return fmt.Errorf("redislimit: server is away, and Options.Away failed: %w", err)
}

// undoAway returns to Options.Away what a trip has spent there.
func (l *Limiter) undoAway(t *script.Trip) {
	var back []stint.Request
	for _, r := range t.Requests {
		if r.Away.Taken > 0 {
			back = append(back, stint.Request{Key: r.Bucket, Cost: r.Away.Taken, Limit: r.Given, Spent: t.At})
		}
	}
	if len(back) > 0 {
		l.begin(func() { l.opts.Away.Refund(back...) })
	}
}
