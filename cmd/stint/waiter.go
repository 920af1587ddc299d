package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

// waiter is this process, which wants tokens and may have to wait for them. It
// asks the file, closes it, sleeps as the denial says, and asks again. So no
// process has the file while it waits, and none knows of the others. If a program
// has the file open, the process waits in the program's queue.
type waiter struct {
	f       *runFlags
	id      string
	limit   stint.Limit
	denials int
	spent   time.Time // when the tokens were taken
}

// wait returns after it has spent the tokens. If ctx ends before, nothing is spent.
func (l *waiter) wait(ctx context.Context) error {
	deadline := time.Now().Add(cmp.Or(l.f.timeout, math.MaxInt64))
	for looks := false; ; {
		d, err := l.ask(ctx, deadline, looks)
		switch {
		case errors.Is(err, errOwnerLeft):
			continue
		case err != nil:
			return err
		case d.Allowed && looks:
			looks = false
			continue
		case d.Allowed && ctx.Err() != nil:
			return errors.Join(errNotRun, l.refund())
		case d.Allowed:
			return nil
		case !l.f.wait || d.RetryAfter > time.Until(deadline):
			return l.denied(d.RetryAfter, false)
		}
		select {
		case <-ctx.Done():
			return errNotRun
		case <-time.After(min(sleepAfter(d.RetryAfter, l.denials), time.Until(deadline))):
		}
		l.denials++
		looks = true // to look costs no sync, and many may look at once
	}
}

// sleepAfter returns the sleep after a denial: until the tokens are there, and then a
// random time, because other processes sleep until the same instant. That time
// doubles with each denial before, so that many processes ask seldom, and has a
// bound, so that none of them gives up its chance.
func sleepAfter(retryAfter time.Duration, denials int) time.Duration {
	const most = 10 * time.Second
	spread := min(retryAfter/8, most)
	for range denials {
		spread = min(2*spread, most)
	}
	return min(retryAfter, math.MaxInt64-most) + rand.N(spread+1)
}

var errNotRun = fmt.Errorf("%w: the command was not run, and no token was spent", console.ErrInterrupted)

// ask spends the tokens if they are there. With looks it spends nothing, unless a
// program has the file open.
func (l *waiter) ask(ctx context.Context, deadline time.Time, looks bool) (d stint.Decision, err error) {
	db, outOfTime := l.f.db, false
	// A process that has its tokens at the deadline may still spend, without a wait.
	if left := max(1, time.Until(deadline)); left < db.LockTimeout {
		db.LockTimeout, outOfTime = left, true
	}
	db.Stop = ctx.Done()
	open, act := source.Writing.Target, l.take
	if looks {
		open, act = lookAt, check
	}
	to, err := open(&db.File, l.f.limits.label())
	switch {
	case errors.Is(err, console.ErrInterrupted):
		return d, errNotRun
	case outOfTime && errors.Is(err, stint.ErrLocked):
		return d, console.End(console.StatusTryLater, fmt.Sprintf("%v: retry, or wait longer with --timeout", err))
	case err != nil:
		return d, err
	case to.Owner != nil:
		defer to.Close()
		return l.askOwner(ctx, deadline, to)
	}
	d, err = to.Decide(act, l.limit, l.id, l.f.cost)
	return d, errors.Join(err, to.Close())
}

// askOwner spends the tokens at the program that has the file open, and waits in
// its queue. If the program closes the file, the error is errOwnerLeft.
func (l *waiter) askOwner(ctx context.Context, deadline time.Time, to *source.Target) (d stint.Decision, err error) {
	r := to.Request(l.limit, l.id, l.f.cost)
	if l.f.wait {
		within, stop := context.WithDeadline(ctx, deadline)
		defer stop()
		d, err = to.Owner.Wait(within, r)
		l.spent = d.At()
	} else {
		d, err = l.take(to.Owner, r)
	}
	switch full := errors.Is(err, stint.ErrQueueFull); {
	case full || errors.Is(err, context.DeadlineExceeded):
		if d, err = check(to.Owner, r); err == nil {
			return d, l.denied(d.RetryAfter, full)
		}
	case err != nil && ctx.Err() != nil:
		return d, errNotRun
	}
	switch {
	case errors.Is(err, hostlimit.ErrNoOwner): // nothing was spent
		return d, errOwnerLeft
	case errors.Is(err, hostlimit.ErrNoAnswer): // it was killed, or stopped
		err = fmt.Errorf("%w: the command was not run, but its tokens may be spent: try again", err)
	}
	return d, console.Failed(err)
}

// errOwnerLeft says that the program has closed the file before the tokens were
// spent.
var errOwnerLeft = errors.New("the program has closed the file")

// denied returns the error of a command that does not wait for its tokens, or no
// longer. full says that the program's queue has no space.
func (l *waiter) denied(delay time.Duration, full bool) error {
	if full {
		delay -= time.Duration(l.limit.Queue) * l.limit.Interval() // until the queue has space
		return console.End(console.StatusTryLater, fmt.Sprintf(
			"%s is denied by %s: its queue of %s is full: retry in %s",
			display.Printable(l.id), l.limit, display.Plural(int(l.limit.Queue), "token"), display.Duration(delay)))
	}
	todo := "wait with --wait"
	if l.f.wait {
		todo = "wait longer with --timeout"
	}
	return console.End(console.StatusTryLater, fmt.Sprintf("%s is denied by %s: retry in %s, or %s",
		display.Printable(l.id), l.limit, display.Duration(delay), todo))
}

// take spends the tokens, and notes when.
func (l *waiter) take(lim source.Decider, r stint.Request) (stint.Decision, error) {
	d, err := spend(lim, r)
	l.spent = d.At()
	return d, err
}

// refund returns the tokens, except those that time has brought back.
func (l *waiter) refund() error {
	to, err := source.Changing.Target(&l.f.db.File, l.f.limits.label())
	if err != nil {
		return err
	}
	_, err = to.Decide(func(lim source.Decider, r stint.Request) (stint.Decision, error) {
		return refund(lim, r.SpentAt(l.spent))
	}, l.limit, l.id, l.f.cost)
	return errors.Join(err, to.Close())
}
