package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/events"
)

// How a Limiter becomes the owner of the file, or a guest of the owner. try opens
// the file or connects to its owner, and returns a backend, which become puts in
// place; take does both. Open calls take until it succeeds. When a guest loses its
// owner (lost), or another file takes the place of an owner's file (replaced), the
// Limiter has no backend for a while. Calls wait (do, waitFor), and seek calls take
// until there is a backend again.

// Open returns a Limiter for the file at path. If no process has the file, this
// one opens it as stint.Open does, and serves it. Otherwise it becomes a guest
// of the process that has it. The errors are those of stint.Open; ErrLocked
// means that a process has the file and does not serve it. ErrRefused means that
// the path of the socket has a file that is no socket, or the socket of a process
// that this one does not trust. On a system without Unix sockets the error is
// errors.ErrUnsupported.
func Open(path string, limits *stint.Limits, opts *Options) (*Limiter, error) {
	if limits == nil {
		return nil, errors.New("hostlimit: Open: no limits")
	}
	o, p, err := prepare(path, limits.Names(), opts)
	if err != nil {
		return nil, err
	}
	l := &Limiter{place: p, opts: o, changed: make(chan struct{}), closed: make(chan struct{})}
	l.methods = methods{l}
	l.limits.Store(declare(limits))
	l.put(nil)
	l.events = events.New(o.OnEvent)
	deadline := time.Now().Add(o.LimiterOptions.LockTimeout)
	for {
		err := l.take()
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, ErrNoOwner) || time.Now().After(deadline) {
			l.events.Close()
			return nil, l.inTime(err)
		}
		l.pause(3 * time.Millisecond)
	}
}

// inTime returns the error of try with the time that Open has waited.
func (l *Limiter) inTime(err error) error {
	waited := l.opts.LimiterOptions.LockTimeout
	switch {
	case !errors.Is(err, ErrNoOwner), errors.Is(err, ErrRefused):
		return err
	case isAny(err, wire.ErrMessage, errHungUp):
		return foreign(l.place, err)
	case errors.Is(err, ErrNoAnswer):
		return fmt.Errorf("%w: %s: the process that has it does not answer within %v: %w",
			stint.ErrLocked, l.place.file, waited, err)
	}
	return fmt.Errorf("%w: %s: still in use after %v by a process that does not share it: %w",
		stint.ErrLocked, l.place.file, waited, err)
}

// take makes this process the owner, or a guest, if try can. It closes an owner's backend
// if the limits have changed since try looked at them, and a guest's if they do not fit.
func (l *Limiter) take() error {
	b, err := l.try()
	if err != nil {
		return err
	}
	return l.become(b)
}

// try connects to the owner, or becomes the owner. The error is ErrNoOwner if
// another try may succeed a moment later.
//
// If the file is removed, only its owner knows the buckets, and makes it anew. So
// try makes a file only if no process listens at the socket, and none is about to
// listen: it holds the place's lock from the look at the socket until it listens.
//
// TestTakeover explores all interleavings of the steps that comments name here, in
// server.go and in socket.go. Who changes such a line changes the step there.
func (l *Limiter) try() (*backend, error) {
	b, err := l.join() // steps look, hello, welcome
	if !errors.Is(err, ErrNoOwner) {
		return b, err
	}
	unlock, lockErr := l.place.lock(0) // steps open lock, lock, check lock
	defer unlock()                     // steps remove lock, unlock, free lock, freed lock
	switch {
	case errors.Is(lockErr, stint.ErrLocked):
		return nil, err
	case lockErr != nil:
		return nil, lockErr
	}
	if isStale(err) { // or another process has become the owner since
		if b, err = l.join(); !errors.Is(err, ErrNoOwner) { // step look
			return b, err
		}
	}
	served := !isStale(err)
	o := l.opts.LimiterOptions
	o.LockTimeout = 1 // one try
	o.ErrorIfNotExists = o.ErrorIfNotExists || served
	own := l.limits.Load()
	limiter, openErr := stint.Open(l.place.file, own.limits, &o) // steps open, link, open file, lock file, check file
	switch {
	case errors.Is(openErr, stint.ErrLocked), served && errors.Is(openErr, fs.ErrNotExist):
		return nil, err
	case openErr != nil:
		return nil, openErr
	}
	server, err := serve(limiter, l.place, l.opts.MaxGuests, l.events, l.replaced)
	if err != nil {
		return nil, errors.Join(err, limiter.Close()) // steps look for the file, link back, close file
	}
	return &backend{limiter: limiter, server: server, limits: own.limits}, nil
}

// join connects to the owner. If the process at the socket has another file than the
// one at the path, it says that it is closing.
func (l *Limiter) join() (*backend, error) {
	own := l.limits.Load()
	c, err := dialConn(l.place, own.names, l.opts.TakeoverTimeout, l.lost)
	if err != nil {
		return nil, err
	}
	return &backend{conn: c, limits: own.limits}, nil
}

// pause waits for about d, or until the Limiter is closed.
func (l *Limiter) pause(d time.Duration) {
	select {
	case <-time.After(d/2 + rand.N(d)):
	case <-l.closed:
	}
}

// become puts a backend in place, or closes it after an error, or if the Limiter is
// closed.
func (l *Limiter) become(b *backend) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if own := l.limits.Load().limits; own != b.limits { // they have changed since b was made
		// An owner opens the file anew, because the owner before may have converted buckets
		// for the same change, and a change of the limits would convert them once more.
		err := fmt.Errorf("%w: the limits have changed meanwhile", ErrNoOwner)
		if b.limiter == nil {
			err = b.changeLimits(b.limits, own, nil)
		}
		if err != nil {
			b.close()
			return err
		}
	}
	l.mu.Lock()
	if l.isClosed() {
		l.mu.Unlock()
		b.close()
		return nil
	}
	l.put(b) // steps guest, owner
	l.failure = nil
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if b.limiter != nil {
		tell(l.events, Event{Role: RoleOwner})
		if b.server.isClosing() { // another file came before put, and replaced has ignored that
			l.replaced(b.limiter, cmp.Or(b.limiter.InPlace(), errMoved))
		}
		return nil
	}
	tell(l.events, Event{Role: RoleGuest})
	if err := b.conn.over(); err != nil { // it ended before put, and lost has ignored that
		l.lost(b.conn, err)
	}
	return nil
}

// lost gives up the connection c, whose owner is gone, silent or closing, and
// starts seek.
func (l *Limiter) lost(c *conn, err error) {
	l.leave(func(b *backend) bool { return b.conn == c }, err, func(*backend) {}) // step lost
}

// replaced gives up the file of an old Limiter after another file was put at its
// path, and starts seek for an owner of that one. Decisions under way have
// drainTime to end before the Limiter of the old file closes.
func (l *Limiter) replaced(old *stint.Limiter, err error) {
	l.leave(func(b *backend) bool { return b.limiter == old }, err, func(b *backend) {
		l.pause(drainTime)
		b.close()
	})
}

// leave gives up the backend b that is in place, if is(b). A goroutine then calls
// after(b), and seek.
func (l *Limiter) leave(is func(*backend) bool, why error, after func(*backend)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.now.Load()
	if b == nil || l.isClosed() || !is(b) {
		return
	}
	l.put(nil)
	l.running.Go(func() {
		tell(l.events, Event{Role: RoleNone, Err: why})
		after(b)
		l.seek()
	})
}

// seek makes this process the next owner, or a guest of the next owner.
func (l *Limiter) seek() {
	told := false
	for pause := time.Duration(0); !l.isClosed(); l.pause(pause) {
		err := l.take()
		if err == nil {
			return
		}
		pause = pauseAfter(err, pause)
		if !errors.Is(err, ErrNoOwner) || errors.Is(err, ErrNoAnswer) {
			l.mu.Lock()
			l.failure = err
			l.mu.Unlock()
			if !told {
				told = true
				tell(l.events, Event{Role: RoleNone, Err: err})
			}
		}
	}
}

// pauseAfter returns the pause after a try of seek, which has failed, and after
// the pause before it. If the file cannot be opened, it may stay so for hours, and
// a try that reads a long journal first takes much of a small processor.
func pauseAfter(err error, last time.Duration) time.Duration {
	const short, long, longest = 2 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond
	switch {
	case errors.Is(err, ErrNoOwner) && !errors.Is(err, ErrNoAnswer):
		return short
	case isAny(err, ErrNoAnswer, ErrRefused):
		return long
	}
	return min(max(2*last, long), longest)
}

// do carries a call out with the backend that is in place. If the call was not
// carried out, do waits for the next backend and tries again. If the call changes
// nothing, do also tries again after ErrNoAnswer.
//
// While there is no owner, a call waits for at most TakeoverTimeout. If an owner
// comes and goes, the time begins again. After ErrNoAnswer it counts from the
// beginning of the call. The end of ctx ends a Wait, and no spend: ctx has no part
// in the decision. After Dial there is no next backend.
func (l *Limiter) do(ctx context.Context, c *wire.Call) error {
	begun, waits := time.Now(), ctx
	if c.Op != wire.OpWait {
		waits = context.Background()
	}
	for {
		b, changed := l.backend()
		clear(c.Errs) // of the last owner
		if err := c.Check(b != nil && b.limiter != nil); err != nil {
			return err
		}
		err := errMoved
		if b != nil {
			if err = l.doWith(ctx, b, c); errors.Is(err, stint.ErrClosed) && !l.isClosed() {
				err = errMoved // a Wait whose owner closes, or the Limiter of a file that was replaced
			}
		}
		unanswered := errors.Is(err, ErrNoAnswer) && reads(c) && !l.dialed
		if !unanswered && !errors.Is(err, errMoved) {
			return err
		}
		if l.dialed && !l.isClosed() {
			return ErrNoOwner
		}
		since := time.Now() // not begun: a Wait may have been in the queue for long
		if unanswered {
			since = begun
		}
		if waitErr := l.waitFor(waits, changed, since.Add(l.opts.TakeoverTimeout)); waitErr != nil {
			if unanswered {
				return err
			}
			return waitErr
		}
	}
}

// reads reports whether a call changes nothing, at least the second time.
func reads(c *wire.Call) bool {
	switch c.Op {
	case wire.OpSpend, wire.OpEach:
		return !slices.ContainsFunc(c.Requests, func(q stint.Request) bool { return q.Mode != stint.CheckOnly })
	case wire.OpBucket, wire.OpBuckets, wire.OpHeld, wire.OpFlush, wire.OpHealth, wire.OpStats, wire.OpNow,
		wire.OpNumber: // a label keeps its number
		return true
	}
	return false
}

// backend returns the backend in place, or nil, and a channel that is closed
// when there is another one.
func (l *Limiter) backend() (*backend, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.Load(), l.changed
}

// waitFor waits until there is another backend.
func (l *Limiter) waitFor(ctx context.Context, changed chan struct{}, deadline time.Time) error {
	select {
	case <-changed:
		return nil
	case <-l.closed:
		return stint.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(deadline)):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		return fmt.Errorf("%w within %v: %w", ErrNoOwner, l.opts.TakeoverTimeout, l.failure)
	}
	return fmt.Errorf("%w within %v", ErrNoOwner, l.opts.TakeoverTimeout)
}
