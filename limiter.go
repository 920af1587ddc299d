package stint

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
)

// Limiter decides whether requests may pass. It is made by Open or New, and its methods may be called from any number of
// goroutines.
type Limiter struct {
	opts    Options
	table   *table
	clock   *clock
	store   Store
	flusher *flusher

	committer *committer

	limitsMu sync.Mutex             // held by SetLimits
	limits   atomic.Pointer[Limits] // the newest

	statsMu sync.Mutex
	errs    map[Name]int64
	past    map[Name]count // decided under limits that have been replaced

	roomMu sync.Mutex
	room   *roomFlush // the one under way

	closing   sync.Once
	closed    chan struct{}
	closeErr  error
	evictions atomic.Int64
	loads     atomic.Int64

	notLoaded, notListed atomic.Pointer[failure] // why the last load, and the last Buckets, failed; nil: it did not
}

// Open returns a Limiter whose buckets live in the bbolt file at path, which is made (mode 0600) where there is none. The
// Limiter has the file to itself until Close; errors are those of OpenBolt and New.
func Open(path string, limits *Limits, opts *Options) (*Limiter, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if limits == nil {
		return nil, errors.New("stint: Open: no limits")
	}
	if path, err = boltstore.Resolve(path); err != nil { // the file is set aside, not a link to it
		return nil, fmt.Errorf("stint: %w", err)
	}
	found, _ := os.Stat(path) // nil: it is about to be made
	l, err := openFile(path, limits, o)
	if errors.Is(err, ErrCorrupt) && o.Recover {
		aside := Event{Kind: FileSetAside, Err: err}
		to, done, err := boltstore.SetAside(path, found, cmp.Or(o.LockTimeout, time.Second))
		if aside.Path = to; err != nil {
			return nil, fmt.Errorf("stint: set %s aside: %w", path, err)
		}
		l, err := openFile(path, limits, o)
		switch {
		case err != nil && done:
			return nil, fmt.Errorf("%w (the corrupt file is %s now)", err, aside.Path)
		case done:
			l.flusher.tell(aside)
		}
		return l, err
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

// New returns a Limiter whose buckets live in the store, which is the Limiter's from then on: Close closes it. After an
// error it is the caller's still.
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
		opts:   o,
		table:  newTable(limits, o.MaxResident),
		clock:  newClock(o.Now),
		store:  store,
		errs:   make(map[Name]int64),
		past:   make(map[Name]count),
		closed: make(chan struct{}),
	}
	l.flusher = &flusher{
		table: l.table, store: store, clock: l.clock, level: o.Durability, interval: o.FlushInterval,
		stop: make(chan struct{}), stopped: make(chan struct{}), silent: make(chan struct{}), delivered: make(chan struct{}),
	}
	l.committer = &committer{
		flusher: l.flusher,
		wake:    make(chan struct{}, 1), hurry: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := l.checkLimits(limits); err != nil {
		return nil, err
	}
	l.limits.Store(limits)
	for hold, err := range store.All(Unknown) {
		if err != nil {
			return nil, fmt.Errorf("stint: read the holds: %w", err)
		}
		key, err := ParseKey(hold.Key.ID)
		if err != nil {
			return nil, fmt.Errorf("%w: a hold on %q", ErrCorrupt, hold.Key.ID)
		}
		s, h := l.table.shard(key)
		s.asideLocked(key, h).hold = max(1, hold.TAT) // what is long over goes with the first flush
	}
	if o.OnEvent != nil {
		l.flusher.events = make(chan Event, 64)
		go l.flusher.deliver(o.OnEvent)
	}
	go l.flusher.run()
	go l.committer.run()
	return l, nil
}

// Allow reports whether one request for the key may pass, and spends a token if so. Where Spend would return an error
// the answer is Options.FailOpen, and what is spent is what Spend says.
func (l *Limiter) Allow(key Key) bool {
	if allowed, hit := l.hit(key, 1, opSpend, nil); hit {
		return allowed
	}
	d, err := l.one(key, 1, opSpend, readClock)
	return d.Allowed || err != nil && l.opts.FailOpen
}

// Spend takes cost tokens from the key's bucket, if it has that many. A denied request changes nothing. After an error
// the Decision is zero, and nothing was spent, but where no commit came within Options.CommitTimeout: that is an
// ErrNotDurable, which says so, and the tokens stay spent.
func (l *Limiter) Spend(key Key, cost int64) (d Decision, err error) {
	if _, hit := l.hit(key, cost, opSpend, &d); !hit {
		d, err = l.one(key, cost, opSpend, readClock)
	}
	return d, err
}

// Check returns the Decision that Spend would return, and changes nothing.
func (l *Limiter) Check(key Key, cost int64) (d Decision, err error) {
	if _, hit := l.hit(key, cost, opCheck, &d); !hit {
		d, err = l.one(key, cost, opCheck, readClock)
	}
	return d, err
}

// Refund gives cost tokens back to the key's bucket, up to as many as it holds, and reports its state. The Decision
// always allows; of a bucket that is full nothing changes. After ErrNotDurable the tokens are back, but a crash may take
// them again; after any other error nothing changed.
func (l *Limiter) Refund(key Key, cost int64) (Decision, error) {
	return l.one(key, cost, opRefund, readClock)
}

const readClock = math.MinInt64

// hit carries out a spend or a check on a bucket that is in memory, where nothing else is to be seen to: no hold, no line, no
// commit, no error. Where hit is false it changed nothing, and one is to do it. d may be nil.
func (l *Limiter) hit(key Key, cost int64, op op, d *Decision) (allowed, hit bool) {
	if len(key.ID) > maxIDLen {
		return false, false
	}
	s, h := l.table.shard(key)
	s.prefetch(h)
	now := l.clock.now() // by the time that the mutex is had, it may be past: then the decision is on that instant
	s.mu.Lock()
	allowed, hit, late := l.hitLocked(s, h, key, cost, op, now, d)
	s.mu.Unlock()
	if late {
		runtime.Gosched()
	}
	return allowed, hit
}

func (l *Limiter) hitLocked(s *shard, h uint64, key Key, cost int64, op op, now int64, d *Decision) (allowed, hit, late bool) {
	i, ok := s.findLocked(key, h)
	if !ok || s.limits == nil {
		return false, false, false
	}
	b := s.at(i)
	m := b.meta()
	if m>>metaRule == 0 || m&flagAside != 0 {
		return false, false, false
	}
	r := &s.limits.rules[m>>metaRule]
	if uint64(cost) > uint64(r.rate.burst) { // or negative
		return false, false, false
	}
	tat := b.tat()
	next, wait := r.rate.spend(tat, now, cost)
	allowed = wait == 0
	if op == opSpend {
		if !allowed || cost == 0 {
			if m&flagUsed == 0 {
				s.useLocked(i)
			}
		} else if level := cmp.Or(r.limit.Durability, l.opts.Durability); level < Leased {
			s.writeLocked(i, next)
		} else if level > Leased {
			return false, false, false
		} else {
			ahead, needs := r.rate.renewal(m, tat, next)
			if needs == needNow {
				return false, false, false
			}
			s.writeLocked(i, next)
			if needs == needLater {
				late = l.renewLocked(s, h, b, ahead)
			}
		}
		s.countLocked(key.Name, allowed)
	}
	if d != nil {
		d.Allowed = allowed
		d.RetryAfter = time.Duration(wait)
		d.Key = key
		r.report(d, next, now)
	}
	return allowed, true, late
}

// one carries out an op on one bucket, at the instant now or, for readClock and where that is too early, at the one it is decided at.
func (l *Limiter) one(key Key, cost int64, op op, now int64) (Decision, error) {
	var ps [1]place
	p := &ps[0]
	p.key, p.cost, p.op = key, cost, op
	if err := p.locate(l.table); err != nil {
		return Decision{}, l.failed(key, err)
	}
	if err := l.lockFound(p); err != nil {
		return Decision{}, l.failed(key, err)
	}
	// Of one that is not in memory, what was known then may have been forgotten since, and what ends a line must not be late.
	if now == readClock || !p.resident || p.shard.at(p.index).has(flagAside) {
		now = l.clock.now()
	}
	var d Decision
	err := p.decideLocked(now, &d)
	if err == nil {
		p.countLocked(d.Allowed)
		p.writeLocked(now)
		if p.next != p.tat {
			l.submitLocked(ps[:], now)
		}
	}
	p.shard.mu.Unlock()
	if err == nil && p.batch != nil {
		err = l.await(ps[:])
	}
	if err != nil {
		return Decision{}, l.failed(key, err)
	}
	return d, nil
}

// failed counts an error against the key's limit, and returns it.
func (l *Limiter) failed(key Key, err error) error {
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	if l.limits.Load().label(key.Name) == "" {
		key.Name = Unknown // names that nobody declared must not fill the memory
	}
	l.errs[key.Name]++
	return err
}

// lockFound locks the shard of p, and finds its bucket there, or knows that there is none.
func (l *Limiter) lockFound(p *place) error {
	p.shard.mu.Lock()
	for !p.findLocked() {
		p.shard.mu.Unlock()
		if err := l.load(p); err != nil {
			return err
		}
		p.shard.mu.Lock()
	}
	if p.shard.limits == nil {
		p.shard.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// load asks the store for the TAT of a bucket that is not in memory.
func (l *Limiter) load(p *place) error {
	if l.table.resident.Load() >= int64(l.opts.MaxResident) {
		if err := l.makeRoom(); err != nil {
			return err
		}
	}
	p.shard.mu.Lock()
	limits, removals := p.shard.limits, p.shard.removals
	p.shard.mu.Unlock()
	if limits == nil {
		return ErrClosed
	}
	rule, err := limits.resolve(p.key)
	if err != nil {
		return err
	}
	p.rule, p.limits, p.removals, p.saved, p.tat = rule, limits, removals, 0, 0
	if rule == 0 && p.op != opReset {
		return nil
	}
	if p.saved, err = l.stored(p.key); err != nil {
		return err
	}
	p.tat = p.saved
	if rule != 0 {
		p.tat = limits.rules[rule].rate.clamp(p.saved, l.clock.now()) // not at the instant of the decision: that may be older
	}
	return nil
}

// stored returns the TAT that the store has for a bucket.
func (l *Limiter) stored(key Key) (tat int64, err error) {
	l.loads.Add(1)
	tat, err = l.store.Load(key)
	l.note(&l.notLoaded, err)
	if err != nil {
		return 0, fmt.Errorf("stint: %w", err)
	}
	return tat, nil
}

// note notes, for Health, how something ended.
func (l *Limiter) note(last *atomic.Pointer[failure], err error) {
	was := last.Load()
	var is *failure
	switch {
	case err == nil && was == nil:
		return
	case err != nil && was == nil:
		is = &failure{err, l.Now()}
	case err != nil:
		is = &failure{err, was.since}
	}
	last.CompareAndSwap(was, is) // or another has ended meanwhile
}

// Reset makes the buckets full, as if they had never been used, and ends their holds. What waits in their lines goes
// when its turn comes. After an error the keys before the one that failed are reset, and those behind it are not; after
// ErrNotDurable that one is full too, but for its hold, and a crash may bring back what it was.
func (l *Limiter) Reset(keys ...Key) error {
	for _, key := range keys {
		if err := l.reset(key); err != nil {
			return l.failed(key, err)
		}
	}
	return nil
}

func (l *Limiter) reset(key Key) error {
	ps := [1]place{{key: key, op: opReset}}
	p := &ps[0]
	if err := p.locate(l.table); err != nil {
		return err
	}
	if err := l.lockFound(p); err != nil {
		return err
	}
	now := l.clock.now()
	a := p.shard.aside[key]
	held := a != nil && (a.hold != 0 || a.lost || a.late > 0)
	if a != nil {
		a.line = nil
	}
	*p.shard.resetsOf(p.hash)++
	p.next = min(now, p.tat)
	p.writeLocked(now)
	l.submitLocked(ps[:], now)
	p.shard.mu.Unlock()
	if p.batch != nil {
		if err := l.await(ps[:]); err != nil {
			return err
		}
	}
	if held {
		return l.hold(key, time.Time{})
	}
	return nil
}

// Now returns the time by the Limiter's clock, which Hold is held to.
func (l *Limiter) Now() time.Time { return time.Unix(0, l.clock.now()) }

// Flush saves everything spent so far, of all limits; it is in the store when Flush returns nil.
func (l *Limiter) Flush() error {
	select {
	case <-l.closed:
		return ErrClosed
	default:
		return l.flusher.flushAndWait()
	}
}

// Close saves every bucket as it is, and closes the store. Calls that come later, and those that wait in line, return
// ErrClosed. A second Close returns what the first did.
func (l *Limiter) Close() error {
	l.closing.Do(func() {
		close(l.closed)
		close(l.flusher.stop)
		<-l.flusher.stopped
		l.limitsMu.Lock() // a SetLimits that comes later finds it closed: also one of the listener, who is waited for
		l.table.setLimits(nil, func(s *shard) {
			l.retireCountsLocked(s)
			s.setLimitsLocked(nil)
		})
		l.limitsMu.Unlock()
		l.committer.close()
		if err := l.flusher.flush(true); err != nil {
			l.closeErr = fmt.Errorf("stint: the last flush: %w", err)
		}
		l.flusher.mu.Lock()
		l.flusher.over = true
		l.flusher.mu.Unlock()
		l.closeErr = errors.Join(l.closeErr, l.store.Close())
		close(l.flusher.silent)
		if l.opts.OnEvent != nil {
			<-l.flusher.delivered
		}
	})
	return l.closeErr
}
