package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// ask runs an operation on several buckets, and puts the answers into the
// requests. A spend takes from all of them or from none. begun is when the
// caller's call began, or zero if that is now: all that is done for the call
// shares one Timeout. Options.Away decides together on the buckets whose server is
// away.
func (l *Limiter) ask(ctx context.Context, op script.Op, rs []*script.Request, begun time.Time) (err error) {
	if begun.IsZero() {
		begun = time.Now()
	}
	rs, without := l.split(op, rs)
	trips := l.trips(op, rs, begun)
	if len(without) > 0 {
		trips = append(trips, &script.Trip{Op: op, Requests: without, Away: true, Begun: begun})
	}
	if l.carryOutAll(ctx, trips); !l.server.Spreads() {
		return l.outcome(op, trips)
	}
	var all []*script.Trip
	for _, t := range trips {
		again := []*script.Trip{t}
		if errors.Is(t.Err, ErrCrossSlot) && len(t.Requests) > 1 && !l.opts.Atomic { // it turned out to be a cluster
			again = l.trips(op, t.Requests, begun)
			l.carryOutAll(ctx, again)
		}
		all = append(all, again...)
	}
	return l.outcome(op, all)
}

// split returns the requests to servers, and those that Options.Away decides. With
// Options.Atomic they are in one slot, or fail.
func (l *Limiter) split(op script.Op, rs []*script.Request) (asked, without []*script.Request) {
	if !l.watch.Under() || l.opts.Atomic {
		return rs, nil
	}
	for _, r := range rs {
		if l.decidesAway(op, r.Bucket, nil) {
			without = append(without, r)
		} else {
			asked = append(asked, r)
		}
	}
	return asked, without
}

// trips splits an operation. If Options.Atomic forbids that, all trips fail.
func (l *Limiter) trips(op script.Op, rs []*script.Request, begun time.Time) (trips []*script.Trip) {
	for _, r := range rs {
		r.Key = l.opts.keyOf(r.Bucket)
	}
	for _, call := range script.Calls(l.server, rs, func(r *script.Request) string { return r.Key }) {
		t := &script.Trip{Op: op, Requests: call, Begun: begun}
		for _, r := range call {
			t.Synced = t.Synced || op != script.Check && l.durability(r.Limit) == stint.Synced
		}
		trips = append(trips, t)
	}
	if len(trips) > 1 && l.opts.Atomic {
		err := fmt.Errorf("%w: %d calls", ErrCrossSlot, len(trips))
		if l.server.Spreads() && !l.server.IsCluster() && len(rs) <= script.MaxTogether {
			err = fmt.Errorf("%w: it is not known yet whether it is a cluster", ErrAway)
		}
		for _, t := range trips {
			t.Err = err
		}
	}
	return trips
}

// carryOutAll carries trips out at the same time.
func (l *Limiter) carryOutAll(ctx context.Context, trips []*script.Trip) {
	if len(trips) == 1 {
		l.carryOut(ctx, trips[0])
		return
	}
	var wg sync.WaitGroup
	for _, t := range trips {
		wg.Go(func() { l.carryOut(ctx, t) })
	}
	wg.Wait()
}

// outcome returns the error of an operation, and undoes spends that are in vain.
func (l *Limiter) outcome(op script.Op, trips []*script.Trip) (err error) {
	allowed := true
	for _, t := range trips {
		allowed = allowed && t.Err == nil && t.Allowed
		if err == nil || errors.Is(t.Err, ErrNoAnswer) || errors.Is(t.Err, stint.ErrNotDurable) {
			err = cmp.Or(t.Err, err)
		}
	}
	if op == script.Spend && !allowed && len(trips) > 1 {
		l.undo(trips)
	}
	return err
}

// carryOut asks the server, or Options.Away if the server is away. If a call spent
// nothing because the server was away, and it has come back since, carryOut asks again.
func (l *Limiter) carryOut(ctx context.Context, t *script.Trip) {
	if t.Err != nil {
		return
	}
	if t.Away {
		t.Err = l.decideAway(ctx, t)
		return
	}
	for {
		outages := l.watch.Outages.Load()
		t.Gate = l.watch.Of(t.Requests[0].Bucket)
		l.server.Run(t)
		if t.Err == nil || errors.Is(t.Err, stint.ErrNotDurable) { // too few replicas have it
			return
		}
		wasAway := errors.Is(t.Err, script.ErrNotYet) || errors.Is(t.Err, ErrAway) && l.watch.Outages.Load() != outages
		isAway := l.watch.Of(t.Requests[0].Bucket).Away() // read once, because it may change
		if isAway && l.mayDecideAway(t.Op, t.Err) {
			t.Err = unsure(t.Err, l.decideAway(ctx, t))
			return
		}
		if isAway || !wasAway {
			return
		}
		t.Err = nil
	}
}

// undo returns what the trips spent, because another trip of the same call denied or
// failed. That is done in the background. Tokens that have come back by themselves
// are not returned again. If an undo fails, the tokens stay spent. So do those that
// Options.Away failed to make durable, because it may have returned them.
func (l *Limiter) undo(trips []*script.Trip) {
	for _, t := range trips {
		switch {
		case !t.Allowed || t.Err != nil && (t.Away || !errors.Is(t.Err, stint.ErrNotDurable)):
		case t.Away:
			l.undoAway(t)
		default:
			l.undoTrip(t)
		}
	}
}

// undoTrip returns to the server what a trip has spent.
func (l *Limiter) undoTrip(t *script.Trip) {
	var back []*script.Request
	for _, r := range t.Requests {
		if r.Mode != stint.CheckOnly && r.Wait == 0 && r.Need != 0 && r.Limit != stint.Unlimited {
			again := *r
			again.Fourth = r.Now
			back = append(back, &again)
		}
	}
	if len(back) == 0 {
		return
	}
	l.begin(func() {
		for _, t := range l.trips(script.Undo, back, time.Now()) {
			t.Gate = l.watch.Of(t.Requests[0].Bucket)
			l.server.Run(t)
		}
		l.forget(back)
	})
}

// forget forgets denials on buckets to which tokens are returned.
func (l *Limiter) forget(rs []*script.Request) {
	for _, r := range rs {
		l.leases.Forget(r.Bucket)
	}
}

// unsure returns the error of a decision that Options.Away made after a call with
// the error cause. If that call may have spent, the error is not ErrAway.
func unsure(cause, err error) error {
	if errors.Is(cause, ErrNoAnswer) && errors.Is(err, ErrAway) {
		return fmt.Errorf("%w, and then: %v", cause, err)
	}
	return err
}
