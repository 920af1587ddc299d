package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
)

// lineSuffix ends the label of a queue: the file keeps the last turn of each id
// of the limit LABEL under "LABEL line". A line is a queue here.
const lineSuffix = " line"

// lineOf returns the limit whose turns the file keeps under a label. ok is
// false if the label is not one for turns.
func lineOf(labels map[stint.Name]string, label string) (limit stint.Name, ok bool) {
	if label, ok = strings.CutSuffix(label, lineSuffix); ok {
		limit, ok = numberOf(labels, label)
	}
	return limit, ok
}

// mostInLine bounds the wait, in intervals or periods. A clock that was set back
// may leave a last turn that is far in the future.
const mostInLine = 1000

// waiter is this process, which wants tokens and may have to wait for them. It
// gets a turn, which is an instant, and spends when the instant comes. The file
// has the last turn of each id, as the id's TAT under the label of the queue. The
// limit's own label cannot have it, because a load clamps a TAT that is further
// ahead than an empty bucket's. Besides, tokens that are spent ahead are lost if
// the process is killed while it waits.
type waiter struct {
	f     *runFlags
	id    string
	limit stint.Limit
	turn  int64     // Unix nanoseconds; 0 without a turn
	spent time.Time // when the tokens were taken, or a little earlier
}

// wait waits for the turn, and returns after it has spent the tokens. If ctx ends
// before, nothing is spent.
func (l *waiter) wait(ctx context.Context) error {
	deadline := time.Now().Add(cmp.Or(l.f.timeout, math.MaxInt64))
	for {
		delay, err := l.step(ctx, deadline)
		if errors.Is(err, errOwnerLeft) {
			continue
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
		switch interrupted := ctx.Err() != nil; {
		case interrupted && delay == 0:
			return errors.Join(errNotRun, l.refund())
		case interrupted:
			return errors.Join(errNotRun, l.leave())
		case delay == 0:
			return nil
		}
	}
}

var errNotRun = fmt.Errorf("%w: the command was not run, and no token was spent", errInterrupted)

// step spends the tokens and returns 0, or takes a turn and returns the time
// until that turn.
func (l *waiter) step(ctx context.Context, deadline time.Time) (delay time.Duration, err error) {
	db, outOfTime := l.f.db, false
	// A process whose turn comes at the deadline may still spend, without a wait.
	if left := max(1, time.Until(deadline)); left < db.lockTimeout {
		db.lockTimeout, outOfTime = left, true
	}
	db.stop = ctx.Done()
	in, err := db.view(writing)
	switch {
	case errors.Is(err, errInterrupted):
		return 0, errors.Join(errNotRun, l.leave())
	case outOfTime && errors.Is(err, stint.ErrLocked):
		return 0, &ended{statusTryLater, fmt.Sprintf("%v: retry, or wait longer with --timeout", err)}
	case err != nil:
		return 0, err
	case in.owner != nil:
		return 0, l.ask(ctx, in, deadline)
	}
	delay, err = l.spend(in, in.now.Add(time.Until(deadline)))
	return delay, errors.Join(err, in.Close())
}

// ask spends the tokens at the program that has the file open, and waits in its
// queue. If the program closes the file, the next step begins again.
func (l *waiter) ask(ctx context.Context, in *source, deadline time.Time) error {
	owner := in.owner
	name, err := in.number(l.f.limits.label())
	if err != nil {
		return errors.Join(err, in.Close())
	}
	r := (&target{source: in, name: name}).request(l.limit, l.id, l.f.cost)
	var d stint.Decision
	if l.f.wait {
		within, stop := context.WithDeadline(ctx, deadline)
		if l.spent, err = owner.Wait(within, r); err != nil && ctx.Err() != nil {
			err = errNotRun
		}
		stop()
	} else {
		d, err = l.take(owner, r)
	}
	tooLate := errors.Is(err, stint.ErrQueueFull) || errors.Is(err, context.DeadlineExceeded)
	if full := errors.Is(err, stint.ErrQueueFull); tooLate || err == nil && !l.f.wait && !d.Allowed {
		if tooLate {
			d, err = check(owner, r)
		}
		if err == nil {
			err = l.denied(d.RetryAfter, full || !l.f.wait && l.isFull(d.RetryAfter))
		}
	}
	owner.Close()
	switch own := (*ended)(nil); {
	case errors.Is(err, hostlimit.ErrNoOwner): // nothing was spent
		return errOwnerLeft
	case errors.As(err, &own):
		return err
	case errors.Is(err, hostlimit.ErrNoAnswer): // it was killed, or stopped
		return failed(fmt.Errorf("%w: the command was not run, but its tokens may be spent: try again", err))
	}
	return failed(err)
}

// errOwnerLeft says that the program has closed the file before the tokens were
// spent.
var errOwnerLeft = errors.New("the program has closed the file")

// spend is step on the open file.
func (l *waiter) spend(in *source, deadline time.Time) (delay time.Duration, err error) {
	store, now := in.store, in.now
	last, err := l.last(store, now)
	if err != nil {
		return 0, err
	}
	if l.turn != 0 || last <= now.UnixNano() || l.later(last, now) {
		d, err := l.decide(in, l.take)
		if err != nil || d.Allowed {
			return 0, err
		}
		delay = d.RetryAfter // a process without a turn was quicker
		if l.limit.FollowsCalendar() && d.RetryAfter == d.ResetAfter {
			_, end := l.limit.PeriodAt(now) // exactly: the decision was made after now
			delay = end.Sub(now)
		}
	}
	first := l.turn == 0
	if first {
		delay = time.Duration(l.after(last, now.UnixNano()+int64(delay)) - now.UnixNano())
	}
	full := first && l.isFull(delay)
	if !l.f.wait || full || delay > deadline.Sub(now) {
		return 0, l.denied(delay, full)
	}
	if first {
		l.turn = now.Add(delay).UnixNano()
		err = l.setLast(store, l.turn)
	}
	return delay, err
}

// isFull reports whether the queue has no space for a turn after a delay.
func (l *waiter) isFull(delay time.Duration) bool {
	return l.limit.Queue > 0 && int64((delay-1)/l.limit.Interval()) >= l.limit.Queue
}

// denied returns the error of a request that gets no turn.
func (l *waiter) denied(delay time.Duration, full bool) error {
	if l.f.wait && full {
		place := delay - time.Duration(l.limit.Queue)*l.limit.Interval() // until the queue has space
		return &ended{statusTryLater, fmt.Sprintf(
			"%s is denied by %s: its queue of %s is full: retry in %s",
			display.Printable(l.id), l.limit, display.Plural(int(l.limit.Queue), "token"), display.Duration(place))}
	}
	todo := ", or queue with --wait"
	if l.f.wait {
		todo = ", or wait longer with --timeout"
	} else if full {
		todo = ""
	}
	return &ended{statusTryLater, fmt.Sprintf("%s is denied by %s: retry in %s%s",
		display.Printable(l.id), l.limit, display.Duration(delay), todo)}
}

// needs returns the nanoseconds in which the tokens come back. For a quota that
// follows the calendar, it returns one for each token: see after.
func (l *waiter) needs() int64 {
	if l.limit.FollowsCalendar() {
		return l.f.cost
	}
	return l.f.cost * int64(l.limit.Interval())
}

// after returns the turn after the last one, but none before the instant at which
// there are tokens. All tokens of a quota that follows the calendar come when a
// period begins. So such a turn is the beginning of a period, and a nanosecond for
// each token of the period that has been promised.
func (l *waiter) after(last, least int64) int64 {
	if !l.limit.FollowsCalendar() {
		return max(least, last+l.needs())
	}
	last = max(least, last)
	start, end := l.limit.PeriodAt(time.Unix(0, last))
	promised := last - start.UnixNano() // more than the quota after a hold, which ends at any time
	if promised <= l.limit.Burst && promised+l.needs() > l.limit.Burst {
		return end.UnixNano() + l.needs()
	}
	return last + l.needs()
}

// later reports whether the queue is for a later period of the calendar. Nobody
// waits for what is left of the present one, so it would be lost.
func (l *waiter) later(last int64, now time.Time) bool {
	_, end := l.limit.PeriodAt(now)
	return l.limit.FollowsCalendar() && last >= end.UnixNano()
}

func (l *waiter) label() string { return l.f.limits.label() + lineSuffix }

// last returns the last turn of the id, or 0 if there is none.
func (l *waiter) last(store dbfile.Store, now time.Time) (int64, error) {
	name, ok := numberOf(store.Labels(), l.label())
	if !ok {
		return 0, nil
	}
	last, err := store.Load(name.Key(l.id))
	interval := int64(l.limit.Interval())
	// The turn after it must be an int64 too.
	most := min(mostInLine, (math.MaxInt64-now.UnixNano()-l.needs())/interval)
	return min(last, now.UnixNano()+most*interval), failed(err)
}

func (l *waiter) setLast(store dbfile.Store, turn int64) error {
	name, err := store.Number(l.label())
	if err != nil {
		return failed(err)
	}
	return failed(store.Save([]stint.Change{{Key: name.Key(l.id), TAT: turn}}))
}

// leave gives up the turn. Later turns do not move. While a program has the
// file, there is nothing to give up, because the queue is the program's.
func (l *waiter) leave() (err error) {
	if l.turn == 0 {
		return nil
	}
	db := l.f.db
	db.lockTimeout = min(db.lockTimeout, leaveTimeout)
	in, err := db.view(changing)
	switch {
	case errors.Is(err, stint.ErrLocked):
		return nil // the turn stays in the file
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if in.owner != nil {
		return nil
	}
	last, err := l.last(in.store, in.now)
	if err == nil && last == l.turn {
		last -= l.needs()
		if _, end := l.limit.PeriodAt(in.now); l.limit.FollowsCalendar() && last == end.UnixNano() {
			last = 0 // no process waits for the next period
		}
		err = l.setLast(in.store, last)
	}
	return err
}

// leaveTimeout is how long an interrupted process waits for the file, to give its
// turn up.
const leaveTimeout = time.Second

// take spends the tokens, and notes when. It looks at the bucket first, which may have
// to be loaded, because a refund lacks the time between the two.
func (l *waiter) take(lim decider, r stint.Request) (stint.Decision, error) {
	_, _ = check(lim, r) // its errors come again
	l.spent = lim.Now()
	return spend(lim, r)
}

// refund returns the tokens, except those that time has brought back.
func (l *waiter) refund() error {
	to, err := changing.target(&l.f.db, l.f.limits.label())
	if err != nil {
		return err
	}
	_, err = to.decide(func(lim decider, r stint.Request) (stint.Decision, error) {
		return refund(lim, r.SpentAt(l.spent))
	}, l.limit, l.id, l.f.cost)
	return errors.Join(err, to.Close())
}

// decide acts on the bucket. When it returns, the result is durable.
func (l *waiter) decide(in *source, do action) (stint.Decision, error) {
	label := l.f.limits.label()
	name, err := in.declare(label)
	if err != nil {
		return stint.Decision{}, err
	}
	return (&target{in, keepOpen{in.store}, name, label}).decide(do, l.limit, l.id, l.f.cost)
}
