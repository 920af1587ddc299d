package stint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/events"
	"github.com/stint-go/stint/internal/gcra"
)

// Limiter decides whether requests may pass. Open and New make one. Its
// methods may be called from any number of goroutines.
type Limiter struct {
	// Locks, in this order: declareMu, limitsMu, those of package cache.
	// statsMu and the mutexes of given, of lines and of rulebooks come last, and no
	// other is taken while one of them is held.

	opts   Options
	cache  *cache.Cache
	clock  *clock.Clock
	store  Store
	events *emitter

	declareMu sync.Mutex             // held by SetLimits and Declare, while the store enters Names
	limitsMu  sync.Mutex             // held by all that put limits in force; never during a save
	limits    atomic.Pointer[Limits] // the newest
	given     givenRules             // for limits that requests bring
	lines     lines                  // of callers that wait for the next period

	statsMu sync.Mutex // guards errs
	errs    map[Name]int64

	closing  sync.Once
	closed   chan struct{}
	closeErr error
}

// Decider decides on requests. The buckets of a *Limiter belong to this
// process. Those of another Decider may belong to another process. The methods
// of a Decider may be called from any number of goroutines, and mean what those
// of *Limiter mean:
//
//   - A denial is a Decision. An error comes with the zero Decision, which
//     denies, and nothing was spent. Two kinds of errors are exceptions: after
//     ErrNotDurable, or if a Decider lost the answer of another process, the
//     tokens may be spent.
//   - Do decides at one instant, spends for all or for none, and RetryAfter is
//     exact.
//   - The limit is the Request's, or else the one in Limits.
//   - Now is the time by the clock of the decisions, which holds use too.
//   - Bucket and Now spend nothing.
//
// For a test of a program, use New with a NewMemStore, and Options.Now for the
// time. To force an answer, embed that Limiter in a struct of your own and
// replace Do, with which the doors of this module decide.
//
// Doors use a Decider as the key of a map, so it must be comparable: use a
// pointer.
type Decider interface {
	Limits() *Limits
	Now() time.Time
	Do(ctx context.Context, reqs []Request, ds []Decision) (Decision, error)
	Refund(reqs ...Request) (Decision, error)
	Wait(ctx context.Context, req Request) (Decision, error)
	Hold(key Key, until time.Time) (end time.Time, err error)
	SetHold(key Key, until time.Time) error
	Bucket(key Key) (Bucket, error)
}

var _ Decider = (*Limiter)(nil)

// Open returns a Limiter whose buckets live in the bbolt file at path. If there
// is no file, Open makes one with mode 0600. The Limiter locks the file until
// Close. The errors are those of OpenBolt and New.
//
// With Options.SetAsideCorrupt, Open renames a corrupt file and makes a new
// one; the buckets are full then. A file that was never stint's stays as it is,
// and the error is ErrFormat.
func Open(path string, limits *Limits, opts *Options) (*Limiter, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if limits == nil {
		return nil, errors.New("stint: Open: no limits")
	}
	if path, err = boltstore.Resolve(path); err != nil { // SetAsideCorrupt renames the file, not a link to it
		return nil, fmt.Errorf("stint: %w", err)
	}
	found, _ := os.Stat(path) // nil if there is no file yet
	l, err := openFile(path, limits, o)
	if !o.SetAsideCorrupt || !errors.Is(err, ErrCorrupt) {
		return l, err
	}
	corrupt := err
	aside, done, err := boltstore.SetAside(path, found, o.LockTimeout)
	if err != nil {
		return nil, fmt.Errorf("stint: set %s aside: %w", path, err)
	}
	o.ErrorIfNotExists = o.ErrorIfNotExists && !done
	l, err = openFile(path, limits, o)
	switch {
	case err != nil && done:
		return nil, fmt.Errorf("%w (the corrupt file is %s now)", err, aside)
	case done:
		l.events.emit(Event{Kind: FileSetAside, Err: corrupt, Path: aside})
	}
	return l, err
}

func openFile(path string, limits *Limits, o Options) (*Limiter, error) {
	file := BoltOptions{LockTimeout: o.LockTimeout, MaxResident: o.MaxResident}
	store, err := openStore(path, limits.Names(), file, o.ErrorIfNotExists, true)
	if err != nil {
		return nil, err
	}
	l, err := New(store, limits, &o)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return l, nil
}

// New returns a Limiter whose buckets live in the store. The store belongs to
// the Limiter from then on, and Close closes it. After an error the store still
// belongs to the caller.
func New(store Store, limits *Limits, opts *Options) (*Limiter, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	switch {
	case store == nil:
		return nil, errors.New("stint: New: no store")
	case limits == nil:
		return nil, errors.New("stint: New: no limits")
	case isReadOnly(store):
		return nil, errors.New("stint: New: the store is ReadOnly, and a Limiter has to write")
	}
	l := &Limiter{
		opts:   o,
		clock:  clock.New(o.Now, o.wall, o.machine, gcra.EndOfTime),
		store:  store,
		errs:   make(map[Name]int64),
		closed: make(chan struct{}),
	}
	l.limits.Store(limits)
	l.events = &emitter{clock: l.clock}
	l.cache = cache.New(cache.Options{
		Store: storeForCache(store), Clock: l.clock, Tell: l.events.tell(), Level: gcra.Level(o.Durability), MaxResident: o.MaxResident,
		Interval: o.FlushInterval, Timeout: o.CommitTimeout,
	}, limits.inForce())
	var names []uint16
	for _, name := range limits.order {
		names = append(names, uint16(name))
	}
	wrong, back, err := l.cache.Begin()
	if err == nil { // nothing is written to a store before all of it was read that can be refused
		err = store.Declare(limits.Names())
	}
	if err != nil {
		return nil, err
	}
	if back > 0 {
		l.cache.MoveBack(back, names, limits.moveBack(l.clock))
	}
	l.events.queue = events.New(o.OnEvent)
	if wrong != 0 {
		l.events.emit(Event{Kind: ClockWrong, Err: l.clock.Health()})
	}
	l.cache.Start()
	return l, nil
}

// moveBack returns the function that moves TATs back after a save whose clock was
// ahead of the one that is believed now. A bucket that it does not move counts as
// empty when it is loaded.
//
// Periods of the calendar do not move: what was used in the present one stays
// used, and a bucket of a later one is empty until the present one ends. Buckets
// without a configured limit stay as they are, because the limit that requests
// give may follow the calendar. The next request cuts them down to an empty one.
func (ls *Limits) moveBack(c *clock.Clock) func(key cache.Key, tat, back int64) (to int64, moves bool) {
	return func(key cache.Key, tat, back int64) (to int64, moves bool) {
		rule, err := ls.resolve(Key{Name(key.Name), key.ID})
		r := &ls.rules[rule]
		switch {
		case err != nil || !r.Limited():
			return 0, false
		case r.Periods != nil:
			return r.Clamp(tat, c.Now()), true
		}
		return back, true
	}
}

// Limits returns the limits in force, or those that SetLimits is putting in
// force.
func (l *Limiter) Limits() *Limits { return l.limits.Load() }

// Durability returns the level of limits that name none.
func (l *Limiter) Durability() Durability { return l.opts.Durability }

// Prefetch asks the processor for the memory of a bucket, and does not wait for it. If the
// buckets fill more than the processor's caches, a decision on the key a few tens of
// nanoseconds later is faster. Nothing else changes.
func (l *Limiter) Prefetch(key Key) {
	if len(key.ID) <= maxIDLen {
		l.cache.Prefetch(uint16(key.Name), key.ID)
	}
}

// Now returns the time by the Limiter's clock. Holds end by that clock.
func (l *Limiter) Now() time.Time { return time.Unix(0, l.clock.Now()) }

// InPlace returns nil if the file is at its path, or if the store has no file.
// Otherwise the error is ErrGone, and fs.ErrNotExist if the path has no file: the
// Limiter then makes it anew. InPlace asks the system, and reads nothing.
func (l *Limiter) InPlace() error {
	if file, ok := l.store.(FileStore); ok {
		return file.InPlace()
	}
	return nil
}

// Number returns the number that the file has for a label, for a program whose
// limits have labels only, such as those of a configuration file. A new label gets
// the lowest free number, and keeps it for ever. The limits in force stay as they
// are. The error is ErrNameMismatch if no number is free.
func (l *Limiter) Number(label string) (Name, error) {
	if l.isClosed() {
		return 0, ErrClosed
	}
	store, ok := l.store.(interface {
		Number(label string) (Name, error)
	})
	if !ok {
		return 0, fmt.Errorf("stint: Number: a %T keeps no labels", l.store)
	}
	return store.Number(label)
}

// Flush saves everything spent so far, at every level. It is in the store when
// Flush returns nil.
func (l *Limiter) Flush() error {
	if l.isClosed() {
		return ErrClosed
	}
	return l.cache.Flush(0)
}

func (l *Limiter) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Close saves every bucket as it is, and closes the store. If the file was removed,
// Close puts it back with all buckets. Later calls, and those that wait in queues,
// return ErrClosed. Close waits until callers of Wait whose context has ended have
// returned their tokens. A second Close returns what the first did.
func (l *Limiter) Close() error {
	l.closing.Do(func() {
		l.limitsMu.Lock() // what would put limits in force after this returns ErrClosed
		l.lines.mu.Lock() // no Wait begins after this
		close(l.closed)
		l.lines.mu.Unlock()
		l.limitsMu.Unlock()
		l.lines.callers.Wait()
		err := l.cache.Close()
		l.closeErr = l.store.Close()
		removed := errors.Is(err, ErrGone) && errors.Is(err, fs.ErrNotExist)
		if err != nil && !removed { // the store puts a removed file back, or says why not
			l.closeErr = errors.Join(fmt.Errorf("stint: the last flush: %w", err), l.closeErr)
		}
		l.events.queue.Close()
	})
	return l.closeErr
}

// Health returns nil, or everything that is wrong now, and since when. It
// reports failed saves and loads until one succeeds, a wrong clock, and what
// Store.Health says. It reports a save, or upkeep of the store, that takes
// longer than CommitTimeout, until the call ends. Health reads no disk, and
// waits for no call that does. Decisions go on from memory if they can.
func (l *Limiter) Health() error {
	return errors.Join(append(l.cache.Health(), l.clock.Health(), l.store.Health())...)
}
