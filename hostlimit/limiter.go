package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/events"
)

// Limiter is a stint.Limiter whose file several processes share. Its methods do
// what those of stint.Limiter do. Any number of goroutines may call them.
type Limiter struct {
	front atomic.Pointer[spender] // for the current role; first, or Spend is not inlined
	methods
	dialed bool // never the owner, and its limits are the owner's
	place  place
	opts   Options
	events *events.Queue[Event]
	limits atomic.Pointer[declared]
	now    atomic.Pointer[backend] // nil while there is no owner

	changing sync.Mutex // held while limits change, before mu

	mu      sync.Mutex
	changed chan struct{} // closed when there is another backend
	failure error         // why the file could not be taken over
	closed  chan struct{}
	closing sync.Once
	err     error // of Close
	running sync.WaitGroup
}

var _ stint.Decider = (*Limiter)(nil)

// backend carries out calls: the Limiter of this process, which it serves, or a
// connection to the owner.
type backend struct {
	limiter *stint.Limiter // nil for a guest
	server  *Server
	conn    *conn         // nil for an owner
	limits  *stint.Limits // of this process, when it was opened or said hello
}

func (b *backend) do(ctx context.Context, c *wire.Call) error {
	if b.limiter != nil {
		return b.server.do(ctx, c)
	}
	return b.conn.do(ctx, c)
}

// role says which process has the file, if b is the backend in place, or nil.
func (b *backend) role() Role {
	switch {
	case b == nil || b.limiter == nil && b.conn.over() != nil:
		return RoleNone
	case b.limiter != nil:
		return RoleOwner
	}
	return RoleGuest
}

func (b *backend) close() error {
	if b.limiter == nil {
		b.conn.close()
		return nil
	}
	// This process listens until its file is closed, and tells all that it is closing:
	// another one that found no listener would make a file that was removed.
	b.server.shut()          // step shut
	err := b.limiter.Close() // steps look for the file, link back, close file
	return errors.Join(err, b.server.stopListening())
}

// spender has the calls that are so short that reading the role, or copying a
// Decision once more, would slow them down. The methods of Limiter are inlined,
// so each of them is one call of a spender: of the *stint.Limiter itself in the
// owner.
type spender interface {
	Allow(key stint.Key) bool
	Spend(key stint.Key, cost int64) (stint.Decision, error)
	Check(key stint.Key, cost int64) (stint.Decision, error)
	Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error)
	DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error
	Prefetch(key stint.Key)
}

// put replaces the backend. b is nil if there is none now.
func (l *Limiter) put(b *backend) {
	front := spender(l.methods)
	if b != nil && b.limiter != nil {
		front = b.limiter
	}
	l.now.Store(b)
	l.front.Store(&front)
}

// Allow is stint.Limiter.Allow. Options.LimiterOptions.FailOpen is the answer
// if Spend returns an error.
func (l *Limiter) Allow(key stint.Key) bool { return (*l.front.Load()).Allow(key) }

// Spend is stint.Limiter.Spend.
func (l *Limiter) Spend(key stint.Key, cost int64) (d stint.Decision, err error) {
	d, err = (*l.front.Load()).Spend(key, cost) // with "return" in front it is too long to be inlined
	return
}

// Check is stint.Limiter.Check.
func (l *Limiter) Check(key stint.Key, cost int64) (d stint.Decision, err error) {
	d, err = (*l.front.Load()).Check(key, cost)
	return
}

// Do is stint.Limiter.Do, for at most 256 requests.
func (l *Limiter) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if len(reqs) > wire.MaxRequests { // an owner may be a guest next time
		return l.methods.Do(ctx, reqs, ds)
	}
	return (*l.front.Load()).Do(ctx, reqs, ds)
}

// DoEach is stint.Limiter.DoEach. A guest sends 256 requests in a message.
// If the owner changes, the requests of one message may fail, and the others
// succeed.
func (l *Limiter) DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error {
	return (*l.front.Load()).DoEach(ctx, reqs, ds)
}

// Role says which process has the file.
func (l *Limiter) Role() Role { return l.now.Load().role() }

// OwnerPID returns the number of the process that has the file, or 0 if none has
// it now.
func (l *Limiter) OwnerPID() int {
	b := l.now.Load()
	switch b.role() {
	case RoleOwner:
		return os.Getpid()
	case RoleGuest:
		return b.conn.welcome.PID
	}
	return 0
}

func (l *Limiter) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Close gives up the file or the connection. Later calls return stint.ErrClosed,
// and those that a guest has under way after 250 ms return ErrNoAnswer. A second
// Close returns what the first did.
func (l *Limiter) Close() error {
	l.closing.Do(func() {
		l.mu.Lock()
		close(l.closed)
		b := l.now.Load()
		l.mu.Unlock()
		l.running.Wait()
		if b != nil {
			l.err = b.close() // step close
		}
		l.events.Close()
	})
	return l.err
}

// Limits returns the limits of this process.
func (l *Limiter) Limits() *stint.Limits { return l.limits.Load().limits }

// Durability returns the level of limits that name none.
func (l *Limiter) Durability() stint.Durability { return l.opts.LimiterOptions.Durability }

// Prefetch is stint.Limiter.Prefetch. A guest's does nothing, because the owner has the
// buckets.
func (l *Limiter) Prefetch(key stint.Key) { (*l.front.Load()).Prefetch(key) }

// SetLimits puts other limits of this process in force, as
// stint.Limiter.SetLimits does. Other processes keep theirs. In a guest the
// limits of totals and floors stay those of the owner, until this process becomes
// the owner. Only the owner converts the buckets of overrides that change, as after
// SetOverrides. A guest's smaller limit does not cut buckets down, because another
// process may have emptied them under a larger one: they wait for as long as they
// did under that.
func (l *Limiter) SetLimits(limits *stint.Limits) error {
	if limits == nil {
		return errors.New("hostlimit: SetLimits: no limits")
	}
	if err := checkLabels(limits.Names()); err != nil {
		return err
	}
	return l.change(func(own *stint.Limits) (*stint.Limits, error) {
		if err := wire.Mismatch(limits.Names(), own.Names()); err != nil {
			return nil, err
		}
		return limits, nil
	}, (*stint.Limiter).SetLimits)
}

// checkLabels returns an error for a label that the protocol cannot carry.
func checkLabels(names stint.Names) error {
	for name, spec := range names {
		if len(spec.Label) > wire.MaxLabel {
			return fmt.Errorf("hostlimit: the label of Name %d has %d bytes, want at most %d", name, len(spec.Label),
				wire.MaxLabel)
		}
	}
	return nil
}

// SetOverrides is stint.Limiter.SetOverrides, for the limits of this process.
// Other processes keep theirs. A change of the owner keeps these overrides, and a
// later SetLimits replaces them.
//
// Only the owner converts buckets, so that what was used stays used. In a guest
// the bucket is as after SetLimits: the processes that share it may all change to
// the same plan, and each would convert it once more.
func (l *Limiter) SetOverrides(overrides ...stint.Override) error {
	return l.change(func(own *stint.Limits) (*stint.Limits, error) {
		return own.With(overrides...)
	}, func(o *stint.Limiter, _ *stint.Limits) error { return o.SetOverrides(overrides...) })
}

// change puts other limits of this process in force. After ErrNotDurable of an owner
// they are in force, too.
func (l *Limiter) change(
	next func(own *stint.Limits) (*stint.Limits, error), of func(*stint.Limiter, *stint.Limits) error,
) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.isClosed() {
		return stint.ErrClosed
	}
	if l.dialed {
		return fmt.Errorf("hostlimit: the limits of a Limiter that Dial returned are the owner's: %w", errors.ErrUnsupported)
	}
	own := l.limits.Load().limits
	limits, err := next(own)
	if err != nil {
		return err
	}
	if b := l.now.Load(); b != nil { // or the next owner compares the Names
		if err = b.changeLimits(own, limits, of); errors.Is(err, stint.ErrClosed) {
			err = nil
		}
		if err != nil && (b.limiter == nil || !errors.Is(err, stint.ErrNotDurable)) {
			return err
		}
	}
	l.limits.Store(declare(limits))
	return err
}

// changeLimits tells a backend of limits of this process that were old before: an
// owner calls of. A guest tells its owner of the Names that are not among the old
// ones, which the owner compares with its own.
func (b *backend) changeLimits(old, limits *stint.Limits, of func(*stint.Limiter, *stint.Limits) error) error {
	if b.limiter != nil {
		return of(b.limiter, limits)
	}
	added := limits.Names()
	maps.DeleteFunc(added, func(name stint.Name, _ stint.NameSpec) bool {
		_, had := old.Spec(name)
		return had
	})
	for _, part := range wire.Split(added) {
		err := b.conn.do(context.Background(), &wire.Call{Op: wire.OpDeclare, Names: part})
		if err != nil && !isAny(err, errMoved, ErrNoAnswer) { // the next hello has the Names
			return err
		}
	}
	return nil
}

// declared has limits with what is looked up at each call of a guest.
type declared struct {
	limits *stint.Limits
	names  stint.Names
}

func declare(limits *stint.Limits) *declared {
	return &declared{limits, limits.Names()}
}

// doWith carries a call out. A guest gives the owner the limits of this process
// with the requests, and sees buckets under them.
func (l *Limiter) doWith(ctx context.Context, b *backend, c *wire.Call) error {
	if b.limiter != nil || l.dialed {
		return b.do(ctx, c)
	}
	own, reqs := l.limits.Load(), c.Requests
	for _, key := range c.Keys {
		if err := own.declares(key.Name); err != nil {
			return err
		}
	}
	c.Requests = append(c.Given, reqs...)
	given := c.Requests
	defer func() { c.Requests = reqs }()
	for i := range given {
		err := own.give(&given[i], l.opts.LimiterOptions.Durability)
		switch {
		case c.Op == wire.OpEach:
			c.Errs[i] = cmp.Or(c.Errs[i], err)
		case err != nil:
			return err
		}
	}
	if err := b.do(ctx, c); err != nil {
		return err
	}
	for i := range c.Decisions {
		own.show(&c.Decisions[i], reqs[i:i+1], given[i:i+1])
	}
	own.show(&c.Decision, reqs, given)
	switch c.Op {
	case wire.OpBucket:
		return own.seenNow(ctx, l, c.Bucket)
	case wire.OpBuckets:
		theirs := c.Buckets
		c.Buckets = func(yield func(stint.Bucket, error) bool) {
			for k, err := range theirs {
				if err == nil {
					err = own.seenNow(ctx, l, &k)
				}
				if !yield(k, err) {
					return
				}
			}
		}
	}
	return nil
}

// declares returns ErrUnknownName for a Name that at most another process declares.
func (d *declared) declares(name stint.Name) error {
	if _, ok := d.names[name]; !ok {
		return fmt.Errorf("%w %d", stint.ErrUnknownName, name)
	}
	return nil
}

// give puts the limit of this process into a request that another process
// decides, and the level of limits that name none.
func (d *declared) give(req *stint.Request, level stint.Durability) error {
	if err := d.declares(req.Key.Name); err != nil {
		return err
	}
	if req.Limit == (stint.Limit{}) {
		req.Limit = d.limitOf(req.Key)
	}
	if req.Limit != (stint.Limit{}) && req.Limit != stint.Unlimited && req.Limit != stint.Blocked {
		req.Limit.Durability = cmp.Or(req.Limit.Durability, level)
	}
	return nil
}

func (d *declared) limitOf(key stint.Key) stint.Limit {
	return d.limits.For(key)
}

// show puts the limit into a decision as the caller knows it: the one of the
// request, without the level that give has added.
func (d *declared) show(of *stint.Decision, reqs, given []stint.Request) {
	for i := range reqs {
		if given[i].Key == of.Key && given[i].Limit == of.Limit && of.Limit != (stint.Limit{}) {
			if of.Limit = reqs[i].Limit; of.Limit == (stint.Limit{}) {
				of.Limit = d.limitOf(of.Key)
			}
			return
		}
	}
}

// seenNow gives a bucket the Limit and the Remaining of this process. If its limit
// follows the calendar, and that of the owner is another one, the owner is asked
// once more.
func (d *declared) seenNow(ctx context.Context, l *Limiter, k *stint.Bucket) error {
	limit := d.limits.For(k.Key)
	if limit == k.Limit {
		return nil
	}
	k.Limit = limit
	if limit.FollowsCalendar() {
		c := wire.Call{Op: wire.OpSpend, Requests: []stint.Request{{Key: k.Key, Mode: stint.CheckOnly, Limit: limit}}}
		if err := l.do(ctx, &c); err != nil {
			return err
		}
		k.Remaining, k.ResetAfter = c.Decision.Remaining, c.Decision.ResetAfter
		return nil
	}
	if k.Remaining = 0; limit.Interval() > 0 {
		k.Remaining = int64(max(0, limit.Tolerance()-k.ResetAfter) / limit.Interval())
	}
	return nil
}
