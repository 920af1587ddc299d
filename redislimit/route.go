package redislimit

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// ask runs an operation on several buckets, and puts the answers into the
// requests. A spend takes from all of them or from none. begun is when the
// caller's call began, or zero if that is now: all that is done for the call
// shares one Timeout.
func (l *Limiter) ask(op script.Op, rs []*script.Request, begun time.Time) (err error) {
	if begun.IsZero() {
		begun = time.Now()
	}
	trips := l.trips(op, rs, begun)
	if l.carryOutAll(trips); !l.server.Spreads() {
		return l.outcome(op, trips)
	}
	var all []*script.Trip
	for _, t := range trips {
		again := []*script.Trip{t}
		if errors.Is(t.Err, ErrCrossSlot) && len(t.Requests) > 1 && !l.opts.Atomic { // it turned out to be a cluster
			again = l.trips(op, t.Requests, begun)
			l.carryOutAll(again)
		}
		all = append(all, again...)
	}
	return l.outcome(op, all)
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
func (l *Limiter) carryOutAll(trips []*script.Trip) {
	if len(trips) == 1 {
		l.carryOut(trips[0])
		return
	}
	var wg sync.WaitGroup
	for _, t := range trips {
		wg.Go(func() { l.carryOut(t) })
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

// carryOut asks the server, or decides without it while it is away. If the server
// went away and came back during a call that spent nothing, carryOut asks again.
func (l *Limiter) carryOut(t *script.Trip) {
	if t.Err != nil {
		return
	}
	for {
		o, aways := l.node.Of(t.Requests[0].Bucket), l.node.Aways.Load()
		if l.whileAway(t, o, nil) {
			return
		}
		if l.node.Of(t.Requests[0].Bucket) != o { // the shards have become known
			continue
		}
		t.Gate = o
		l.server.Run(t)
		if t.Err == nil || errors.Is(t.Err, stint.ErrNotDurable) { // too few replicas have it
			l.saw(t)
			return
		}
		if l.whileAway(t, o, t.Err) || !errors.Is(t.Err, ErrAway) || l.node.Aways.Load() == aways {
			return
		}
		t.Err = nil
	}
}

// undo returns what the trips spent, because another trip of the same call denied or failed.
// A server is asked in the background, and a charge under way is waited for there. Tokens
// that have come back by themselves are not returned again. If an undo fails, the tokens
// stay spent. So do those of a decision of this machine that is not durable, because the
// local Limiter may have returned them.
func (l *Limiter) undo(trips []*script.Trip) {
	for _, t := range trips {
		if !t.Allowed || t.Err != nil && (t.Requests[0].Here || !errors.Is(t.Err, stint.ErrNotDurable)) {
			continue
		}
		var spent []*script.Request
		for _, r := range t.Requests {
			if r.Mode != stint.CheckOnly && r.Wait == 0 && r.Need != 0 && !r.Limit.IsUnlimited() &&
				!(r.Here && l.node.Undo(r, false)) {
				spent = append(spent, r)
			}
		}
		if len(spent) == 0 {
			continue
		}
		l.begin(func() {
			var back []*script.Request
			for _, r := range spent {
				again := *r
				again.Fourth = r.Now
				if r.Here {
					if l.node.Undo(r, true) {
						continue
					}
					again.Need /= int64(l.opts.Nodes) // the server has been charged in between
				}
				back = append(back, &again)
			}
			for _, t := range l.trips(script.Undo, back, time.Now()) {
				t.Gate = l.node.Of(t.Requests[0].Bucket)
				l.server.Run(t)
			}
			l.forget(back)
		})
	}
}

// forget forgets denials on buckets to which tokens are returned.
func (l *Limiter) forget(rs []*script.Request) {
	for _, r := range rs {
		l.leases.Forget(r.Bucket)
	}
}

// unsure returns the error of a decision that this machine made after a call with
// the error cause. If that call may have spent, the error is not ErrAway.
func unsure(cause, err error) error {
	if errors.Is(cause, ErrNoAnswer) && errors.Is(err, ErrAway) {
		return fmt.Errorf("%w, and then: %v", cause, err)
	}
	return err
}

// whileAway decides a trip without the server, as Options.Away says. cause is
// the error of the trip, or nil if it was not made. It returns false, and changes
// nothing, if the server is not away.
func (l *Limiter) whileAway(t *script.Trip, o *away.Outage, cause error) bool {
	nothing := cause == nil || errors.Is(cause, ErrAway) || errors.Is(cause, ErrBusy)
	if !nothing && !errors.Is(cause, ErrNoAnswer) {
		return false
	}
	was, err := l.node.While(o, l.server.Deadline(t), func() {
		cause = cmp.Or(cause, script.ErrNotYet)
		decides := t.Op == script.Spend || t.Op == script.Check || t.Op == script.Part || t.Op == script.Refund && nothing
		for _, r := range t.Requests {
			decides = decides && l.opts.away(r.Bucket.Name) != AwayClosed
		}
		if t.Err = cause; decides {
			t.Err = unsure(cause, l.decideHere(t, o))
		}
	})
	if err != nil {
		t.Err = cmp.Or(cause, err)
	}
	return was
}

// decideHere decides on buckets without the server. None of them may have
// AwayClosed. After an error nothing was spent on this machine, except that after
// stint.ErrNotDurable the tokens may be spent.
func (l *Limiter) decideHere(t *script.Trip, o *away.Outage) error {
	t.Allowed = true
	now := script.Instant(l.Now())
	var shared []*script.Request
	for _, r := range t.Requests {
		if r.Here, r.Answer = true, (script.Answer{Now: now}); l.opts.away(r.Bucket.Name) == AwayShare {
			shared = append(shared, r)
			continue
		}
		r.Limit = stint.Unlimited
		r.Taken += r.Cost
		if t.Op == script.Spend || t.Op == script.Part {
			l.open.Add(1)
		}
	}
	err := l.node.Decide(o, t.Op, shared)
	for _, r := range shared {
		t.Allowed = t.Allowed && (r.Wait == 0 || r.Mode == stint.SpendOnly)
	}
	return err
}
