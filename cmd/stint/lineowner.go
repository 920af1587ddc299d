package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
)

// ask spends the tokens at the program that has the file open, and waits in its
// queue. If the program closes the file, the next step begins again.
func (l *waiter) ask(ctx context.Context, owner *hostlimit.Limiter, deadline time.Time) (err error) {
	to, err := targetAt(owner, l.f.limits.label())
	if err != nil {
		return err
	}
	r := to.request(l.limit, l.id, l.f.cost)
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
	switch denied := (*ended)(nil); {
	case errors.Is(err, hostlimit.ErrNoOwner): // nothing was spent
		return errOwnerLeft
	case errors.As(err, &denied) || errors.Is(err, errInterrupted):
		return err
	case errors.Is(err, hostlimit.ErrNoAnswer): // it was killed, or stopped
		return failed(fmt.Errorf("%w: the command was not run, but its tokens may be spent: try again", err))
	}
	return failed(err)
}

// errOwnerLeft says that the program has closed the file before the tokens were
// spent.
var errOwnerLeft = errors.New("the program has closed the file")
