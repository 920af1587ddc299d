package stint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/gcra"
)

// Limiter decides whether requests may pass. Open and New make one. Its
// methods may be called from any number of goroutines.
type Limiter struct {
	opts      Options
	directory *directory
	clock     *clock.Clock
	hasShares atomic.Bool // some limit has a Parent
	store     Store
	flusher   *flusher
	committer *committer

	limitsMu sync.Mutex             // held by SetLimits
	limits   atomic.Pointer[Limits] // the newest
	given    givenRules             // for limits that requests bring

	statsMu sync.Mutex // guards errs and past
	errs    map[Name]int64
	past    map[Name]count // decisions under limits that were replaced

	evictionMu sync.Mutex     // guards evicting
	evicting   *evictionFlush // the flush under way; nil if there is none

	closing   sync.Once
	closed    chan struct{}
	closeErr  error
	evictions atomic.Int64
	loads     atomic.Int64

	loadFailure atomic.Pointer[failure] // of the last load; nil if it succeeded
}

// Open returns a Limiter whose buckets live in the bbolt file at path. If there
// is no file, Open makes one with mode 0600. The Limiter locks the file until
// Close. The errors are those of OpenBolt and New.
//
// With Options.Recover, Open renames a corrupt file and makes a new one; the
// buckets are full then. A file that was never stint's stays as it is, and the
// error is ErrFormat.
func Open(path string, limits *Limits, opts *Options) (*Limiter, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if limits == nil {
		return nil, errors.New("stint: Open: no limits")
	}
	if path, err = boltstore.Resolve(path); err != nil { // Recover renames the file, not a link to it
		return nil, fmt.Errorf("stint: %w", err)
	}
	found, _ := os.Stat(path) // nil if there is no file yet
	l, err := openFile(path, limits, o)
	if !o.Recover || !errors.Is(err, ErrCorrupt) {
		return l, err
	}
	corrupt := err
	aside, done, err := boltstore.SetAside(path, found, cmp.Or(o.LockTimeout, time.Second))
	if err != nil {
		return nil, fmt.Errorf("stint: set %s aside: %w", path, err)
	}
	l, err = openFile(path, limits, o)
	switch {
	case err != nil && done:
		return nil, fmt.Errorf("%w (the corrupt file is %s now)", err, aside)
	case done:
		l.flusher.emit(Event{Kind: FileSetAside, Err: corrupt, Path: aside})
	}
	return l, err
}

func openFile(path string, limits *Limits, o Options) (*Limiter, error) {
	store, err := OpenBolt(path, limits.names, &BoltOptions{LockTimeout: o.LockTimeout, MaxResident: o.MaxResident})
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
	}
	l := &Limiter{
		opts:      o,
		directory: newDirectory(limits, o.MaxResident),
		clock:     clock.New(o.Now, o.wall, gcra.EndOfTime),
		store:     store,
		errs:      make(map[Name]int64),
		past:      make(map[Name]count),
		closed:    make(chan struct{}),
	}
	l.limits.Store(limits)
	l.hasShares.Store(limits.members != nil)
	if err := store.Declare(limits.names); err != nil {
		return nil, err
	}
	step, err := beginClock(l.clock, store)
	if err = errors.Join(err, l.loadHolds()); err != nil {
		return nil, err
	}
	l.flusher = newFlusher(l.directory, store, l.clock, o)
	if step != 0 {
		l.flusher.emit(Event{Kind: ClockWrong, Step: step})
	}
	l.committer = newCommitter(l.flusher, o.CommitTimeout)
	return l, nil
}

// loadHolds puts the holds of the store in force.
func (l *Limiter) loadHolds() error {
	for hold, err := range l.store.All(Unknown) {
		if err != nil {
			return fmt.Errorf("stint: read the holds: %w", err)
		}
		if hold.Key == (Key{}) {
			continue // the time of the last save
		}
		key, err := ParseKey(hold.Key.ID)
		if err != nil {
			return fmt.Errorf("%w: a hold on %q", ErrCorrupt, hold.Key.ID)
		}
		s, h := l.directory.shard(key)
		s.gateLocked(key, h).hold = max(1, hold.TAT) // the first flush deletes those that are over
	}
	return nil
}

// lockFound locks the shard of r once the state of its bucket is known.
func (l *Limiter) lockFound(r *request) error {
	r.shard.mu.Lock()
	for !r.findLocked() {
		r.shard.mu.Unlock()
		if err := l.load(r); err != nil {
			return err
		}
		r.shard.mu.Lock()
	}
	if r.shard.limits == nil {
		r.shard.mu.Unlock()
		return ErrClosed
	}
	r.useConfiguredLocked(l.opts.Durability)
	return nil
}

// load asks the store for the TAT of a bucket that is not in memory.
func (l *Limiter) load(r *request) error {
	if l.directory.resident.Load() >= int64(l.opts.MaxResident) {
		if err := l.evictOne(); err != nil {
			return err
		}
	}
	r.shard.mu.Lock()
	limits, removals := r.shard.limits, r.shard.Removals()
	r.shard.mu.Unlock()
	if limits == nil {
		return ErrClosed
	}
	rule, err := limits.resolve(r.key)
	if err != nil {
		return err
	}
	r.rule, r.limits, r.removals, r.saved, r.tat = rule, limits, removals, 0, 0
	if rule <= blocked && r.op != opReset && (r.given == nil || !r.given.limited()) {
		return nil
	}
	r.saved, err = l.loadTAT(r.key)
	r.tat = r.saved
	return err
}

// evictOne makes space in memory for one bucket. If each bucket must be saved
// first, evictOne flushes.
func (l *Limiter) evictOne() error {
	full := func() bool { return l.directory.resident.Load() >= int64(l.opts.MaxResident) }
	evict := func(used bool) bool {
		n := l.directory.evict(l.clock.Now(), used, full)
		l.evictions.Add(int64(n))
		return n > 0 || !full() // other calls may take the space that this one made
	}
	for range 2 { // the first round may find that all were used since the last eviction
		if evict(false) {
			return nil
		}
	}
	timer := time.NewTimer(l.opts.CommitTimeout)
	defer timer.Stop()
	for !evict(true) {
		f := l.flushToEvict(evict)
		select {
		case <-f.done:
			if f.err != nil {
				return fmt.Errorf("%w: %d in memory, %w", ErrFull, l.opts.MaxResident, f.err)
			}
		case <-timer.C:
			return fmt.Errorf("%w: %d in memory, and no answer from the store for %v",
				ErrFull, l.opts.MaxResident, l.opts.CommitTimeout)
		}
	}
	return nil
}

// evictionFlush is a flush for all calls that wait for space in memory.
type evictionFlush struct {
	done chan struct{}
	err  error // valid once done is closed
}

// flushToEvict returns the flush under way, or begins one. After it a bucket
// can be evicted even if it was used.
func (l *Limiter) flushToEvict(evict func(used bool) bool) *evictionFlush {
	l.evictionMu.Lock()
	defer l.evictionMu.Unlock()
	if l.evicting == nil {
		f := &evictionFlush{done: make(chan struct{})}
		l.evicting = f
		go func() {
			f.err = l.flusher.flushUntil(func() bool { return evict(true) })
			l.evictionMu.Lock()
			l.evicting = nil
			l.evictionMu.Unlock()
			close(f.done)
		}()
	}
	return l.evicting
}

// flushUntil saves buckets until evict has removed one from memory.
func (f *flusher) flushUntil(evict func() bool) error {
	unsaved := func(err error) error { return fmt.Errorf("and they cannot be saved: %w", err) }
	if err := f.flushAndWait(); err != nil { // buckets in commits stay until the commits end
		return unsaved(err)
	}
	if evict() {
		return nil
	}
	f.mu.Lock() // no other save runs now, which could keep buckets in memory
	defer f.mu.Unlock()
	for range 4 {
		for next := 0; next >= 0; {
			var err error
			if next, _, err = f.flushPartLocked(true, next, false); err != nil {
				return unsaved(err)
			}
			if evict() {
				return nil
			}
		}
	}
	return errors.New("each with a queue, or in use")
}

// loadTAT returns the TAT that the store has for a bucket.
func (l *Limiter) loadTAT(key Key) (tat int64, err error) {
	l.loads.Add(1)
	tat, err = l.store.Load(key)
	was := l.loadFailure.Load()
	if err == nil {
		if was != nil {
			l.loadFailure.CompareAndSwap(was, nil)
		}
		return tat, nil
	}
	is := &failure{err, l.Now()}
	if was != nil {
		is.since = was.since
	}
	l.loadFailure.CompareAndSwap(was, is) // another load may have ended since
	return 0, fmt.Errorf("stint: %w", err)
}

// Raise takes tokens from a bucket, so that it is full no earlier than at the
// time full, and returns when it will be full. If that time has passed, Raise
// takes nothing. It is for buckets whose state is known from elsewhere: of two
// states the emptier stays, so nothing is spent twice, in whatever order they
// come. Raise empties a bucket at most. It changes no queue, and no bucket
// without a limit.
//
// The Limit of the Request counts, or else the configured one. Cost and Mode do
// not. The change is as durable as a spend. Errors are those of Spend, and
// ErrShare for a share of a total.
func (l *Limiter) Raise(req Request, full time.Time) (time.Time, error) {
	rs := [1]request{{change: change{key: req.Key}, cost: l.clock.Instant(full), op: opRaise}}
	err := l.give(&rs[0], &req)
	if err == nil && l.limits.Load().member(req.Key.Name).role != plainRole {
		err = fmt.Errorf("%w: %v cannot be raised", ErrShare, req.Key)
	}
	if err != nil {
		return time.Time{}, l.failed(req.Key, err)
	}
	if _, err := l.slowPathOf(rs[:], readClock); err != nil {
		return time.Time{}, err
	}
	return time.Unix(0, rs[0].to), nil
}

// Limits returns the limits in force, or those that SetLimits is putting in
// force.
func (l *Limiter) Limits() *Limits { return l.limits.Load() }

// Durability returns the level of limits that name none.
func (l *Limiter) Durability() Durability { return l.opts.Durability }

// Now returns the time by the Limiter's clock. Holds end by that clock.
func (l *Limiter) Now() time.Time { return time.Unix(0, l.clock.Now()) }

// Flush saves everything spent so far, at every level. It is in the store when
// Flush returns nil.
func (l *Limiter) Flush() error {
	if l.isClosed() {
		return ErrClosed
	}
	return l.flusher.flushAndWait()
}

func (l *Limiter) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Close saves every bucket as it is, and closes the store. Later calls, and
// those that wait in queues, return ErrClosed. A second Close returns what the
// first did.
func (l *Limiter) Close() error {
	l.closing.Do(func() {
		close(l.closed)
		close(l.flusher.stop)
		<-l.flusher.stopped
		l.limitsMu.Lock() // SetLimits after this returns ErrClosed
		l.directory.setLimits(nil, func(s *shard) {
			l.retireCountsLocked(s)
			s.setLimitsLocked(nil)
		})
		l.limitsMu.Unlock()
		l.committer.Close()
		if err := l.flusher.flush(true); err != nil {
			l.closeErr = fmt.Errorf("stint: the last flush: %w", err)
		}
		l.flusher.mu.Lock()
		l.flusher.closed = true
		l.flusher.mu.Unlock()
		l.closeErr = errors.Join(l.closeErr, l.store.Close())
		close(l.flusher.silent)
		<-l.flusher.delivered
	})
	return l.closeErr
}
