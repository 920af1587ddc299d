package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// Limiter is a stint.Limiter whose file several processes share. Its methods do
// what those of stint.Limiter do. Any number of goroutines may call them.
type Limiter struct {
	front  atomic.Pointer[spender] // for the current role; first, or Spend is not inlined
	place  place
	opts   Options
	limits atomic.Pointer[declared]
	now    atomic.Pointer[backend] // nil while there is no owner

	mu      sync.Mutex
	changed chan struct{} // closed when there is another backend
	seeking bool
	failure error // why the file could not be taken over
	closed  chan struct{}
	closing sync.Once
	err     error // of Close
	running sync.WaitGroup

	telling sync.Mutex // held while OnEvent runs
}

var _ stint.Decider = (*Limiter)(nil)

// backend decides. It is the Limiter of this process and its server, or a
// connection to the owner.
type backend struct {
	limiter *stint.Limiter
	server  *Server
	remote  remote
}

// spender has the calls that are so short that reading the role, or copying a
// Decision once more, would slow them down. The methods of Limiter are inlined,
// so each of them is one call of a spender.
type spender interface {
	Allow(key stint.Key) bool
	Spend(key stint.Key, cost int64) (stint.Decision, error)
	Check(key stint.Key, cost int64) (stint.Decision, error)
}

// put replaces the backend. b is nil if there is none now.
func (l *Limiter) put(b *backend) {
	front := spender(distant{l})
	if b != nil && b.limiter != nil {
		front = b.limiter
	}
	l.now.Store(b)
	l.front.Store(&front)
}

// Open returns a Limiter for the file at path. If no process has the file, this
// one opens it as stint.Open does, and serves it. Otherwise it becomes a guest
// of the process that has it. The errors are those of stint.Open; ErrLocked
// means that a process has the file and does not serve it. On a system without
// Unix sockets the error is errors.ErrUnsupported.
func Open(path string, limits *stint.Limits, opts *Options) (*Limiter, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if limits == nil {
		return nil, errors.New("hostlimit: Open: no limits")
	}
	p, err := placeOf(path)
	if err != nil {
		return nil, err
	}
	l := &Limiter{place: p, opts: o, changed: make(chan struct{}), closed: make(chan struct{}), seeking: true}
	l.limits.Store(declare(limits))
	l.put(nil)
	deadline := time.Now().Add(o.Limiter.LockTimeout)
	for {
		b, err := l.try()
		if err == nil {
			l.seeking = false
			l.become(b)
			return l, nil
		}
		again := errors.Is(err, stint.ErrLocked) || errors.Is(err, ErrNoOwner)
		if !again || time.Now().After(deadline) {
			return nil, err
		}
		l.pause(3 * time.Millisecond)
	}
}

// try opens the file, or connects to the process that has it. The error is
// ErrLocked or ErrNoOwner if another try may succeed a moment later.
func (l *Limiter) try() (*backend, error) {
	o := l.opts.Limiter
	o.LockTimeout = time.Millisecond
	limiter, err := stint.Open(l.place.file, l.limits.Load().limits, &o)
	switch {
	case err == nil:
		server, err := serve(limiter, l.place, l.opts.MaxGuests, l.tell)
		if err != nil {
			return nil, errors.Join(err, limiter.Close())
		}
		return &backend{limiter: limiter, server: server}, nil
	case !errors.Is(err, stint.ErrLocked):
		return nil, err
	}
	c, dialErr := dialConn(l.place.socket, namedOf(l.limits.Load().names), l.opts.TakeoverTimeout, l.lost)
	if dialErr != nil {
		if errors.Is(dialErr, ErrNoOwner) {
			return nil, fmt.Errorf("%w (%w)", err, dialErr)
		}
		return nil, dialErr
	}
	return &backend{remote: remote{c}}, nil
}

// pause waits for about d, or until the Limiter is closed.
func (l *Limiter) pause(d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.closed:
	}
}

// become puts a backend in place, or closes it if the Limiter is closed.
func (l *Limiter) become(b *backend) {
	l.mu.Lock()
	select {
	case <-l.closed:
		l.mu.Unlock()
		b.close()
		return
	default:
	}
	l.put(b)
	l.failure = nil
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if b.limiter != nil {
		l.tell(Event{Kind: BecameOwner})
		return
	}
	l.tell(Event{Kind: BecameGuest})
	if b.remote.isOver() { // it was lost before l.now had it
		l.lost(b.remote.conn, errMoved)
	}
}

func (b *backend) close() (err error) {
	if b.limiter == nil {
		b.remote.close()
		return nil
	}
	return errors.Join(b.server.Close(), b.limiter.Close())
}

// lost starts seek after the connection c has lost the owner.
func (l *Limiter) lost(c *conn, err error) {
	l.mu.Lock()
	b := l.now.Load()
	if b == nil || b.remote.conn != c || l.seeking {
		l.mu.Unlock()
		return
	}
	select {
	case <-l.closed:
		l.mu.Unlock()
		return
	default:
	}
	l.put(nil)
	l.seeking = true
	l.running.Go(func() {
		if errors.Is(err, errMoved) {
			err = errClosing
		}
		l.tell(Event{Kind: OwnerLost, Err: err})
		l.seek()
	})
	l.mu.Unlock()
}

// seek makes this process the next owner, or a guest of the next owner.
func (l *Limiter) seek() {
	told := false
	for {
		select {
		case <-l.closed:
			return
		default:
		}
		b, err := l.try()
		if err == nil {
			l.mu.Lock()
			l.seeking = false
			l.mu.Unlock()
			l.become(b)
			return
		}
		pause := 2 * time.Millisecond
		if !errors.Is(err, stint.ErrLocked) {
			l.mu.Lock()
			l.failure = err
			l.mu.Unlock()
			if !told {
				told = true
				l.tell(Event{Kind: TakeoverFailed, Err: err})
			}
			pause = 50 * time.Millisecond
		}
		l.pause(pause)
	}
}

// tell calls OnEvent.
func (l *Limiter) tell(e Event) {
	if l.opts.OnEvent == nil {
		return
	}
	l.telling.Lock()
	defer l.telling.Unlock()
	e.Time = time.Now()
	l.opts.OnEvent(e)
}

// call calls f if this process is the owner, or else g. If g was not carried
// out, call waits for the next owner and tries again. It does so after
// ErrNoAnswer, too, if repeat says that the call changes nothing.
func (l *Limiter) call(ctx context.Context, repeat bool, f func(*stint.Limiter) error, g func(remote) error) error {
	begun := time.Time{}
	for {
		b, changed := l.backend()
		err := errMoved
		switch {
		case b == nil:
		case b.limiter != nil:
			return f(b.limiter)
		default:
			if repeat && begun.IsZero() {
				begun = time.Now() // so that two unanswered calls take no longer than one
			}
			err = g(b.remote)
		}
		again := errors.Is(err, errMoved) || repeat && errors.Is(err, ErrNoAnswer)
		if !again {
			return err
		}
		if begun.IsZero() {
			begun = time.Now()
		}
		if waitErr := l.waitFor(ctx, b, changed, begun.Add(l.opts.TakeoverTimeout)); waitErr != nil {
			if errors.Is(err, errMoved) {
				return waitErr
			}
			return err
		}
	}
}

func (l *Limiter) backend() (*backend, chan struct{}) {
	if b := l.now.Load(); b != nil && b.limiter != nil {
		return b, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.Load(), l.changed
}

// waitFor waits until there is another backend than b.
func (l *Limiter) waitFor(ctx context.Context, b *backend, changed chan struct{}, deadline time.Time) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-changed:
		return nil
	case <-l.closed:
		return stint.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.failure != nil {
			return fmt.Errorf("%w within %v: %w", ErrNoOwner, l.opts.TakeoverTimeout, l.failure)
		}
		return fmt.Errorf("%w within %v", ErrNoOwner, l.opts.TakeoverTimeout)
	}
}

// owner returns the Limiter of this process if it is the owner, or nil.
func (l *Limiter) owner() *stint.Limiter {
	if b := l.now.Load(); b != nil {
		return b.limiter
	}
	return nil
}

// Role says which process has the file.
func (l *Limiter) Role() Role {
	switch b := l.now.Load(); {
	case b == nil:
		return RoleNone
	case b.limiter != nil:
		return RoleOwner
	}
	return RoleGuest
}

// Close gives up the file or the connection. Calls then return stint.ErrClosed.
// A second Close returns what the first did.
func (l *Limiter) Close() error {
	l.closing.Do(func() {
		l.mu.Lock()
		close(l.closed)
		b := l.now.Load()
		l.mu.Unlock()
		l.running.Wait()
		if b != nil {
			l.err = b.close()
		}
	})
	return l.err
}

// Limits returns the limits of this process.
func (l *Limiter) Limits() *stint.Limits { return l.limits.Load().limits }

// SetLimits puts other limits of this process in force, as
// stint.Limiter.SetLimits does. Other processes keep theirs.
func (l *Limiter) SetLimits(limits *stint.Limits) error {
	if limits == nil {
		return errors.New("hostlimit: SetLimits: no limits")
	}
	old := l.limits.Load().names
	if err := mismatch(namedOf(limits.Names()), old); err != nil {
		return err
	}
	return l.call(context.Background(), false, func(o *stint.Limiter) error {
		if err := o.SetLimits(limits); err != nil {
			return err
		}
		l.limits.Store(declare(limits))
		return nil
	}, func(r remote) error {
		if err := mismatch(r.names, limits.Names()); err != nil {
			return err
		}
		l.limits.Store(declare(limits))
		return nil
	})
}

// declared has limits and their Names.
type declared struct {
	limits *stint.Limits
	names  stint.Names
}

func declare(limits *stint.Limits) *declared { return &declared{limits, limits.Names()} }

// give puts the limit of this process into a request that another process
// decides.
func (l *Limiter) give(req *stint.Request) error {
	d := l.limits.Load()
	if _, ok := d.names[req.Key.Name]; !ok {
		return fmt.Errorf("%w %d", stint.ErrUnknownName, req.Key.Name)
	}
	if req.Limit == (stint.Limit{}) {
		limit, ok := d.limits.For(req.Key)
		if !ok {
			limit = stint.Unlimited
		}
		req.Limit = limit
	}
	if req.Limit != stint.Unlimited && req.Limit != stint.Blocked {
		req.Limit.Durability = cmp.Or(req.Limit.Durability, l.opts.Limiter.Durability)
	}
	return nil
}
