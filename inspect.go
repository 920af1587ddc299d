package stint

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// Bucket is the state of one bucket.
type Bucket struct {
	Key        Key
	Limit      Limit // zero if none is configured
	Remaining  int64 // whole tokens; 0 if no limit is configured
	ResetAfter time.Duration
	HeldUntil  time.Time // zero if there is no hold
}

// Buckets yields the buckets of a limit that are not full, or are held, in no
// particular order, from memory and from the store. Each is read when it is
// yielded. A bucket that is made during the loop may be missing, and one that
// leaves memory may have its earlier state. If the store fails, the error is
// the last thing yielded.
func (l *Limiter) Buckets(name Name) iter.Seq2[Bucket, error] {
	return func(yield func(Bucket, error) bool) {
		if l.isClosed() {
			yield(Bucket{}, ErrClosed)
			return
		}
		if name == Unknown {
			return // the store has the holds there
		}
		fresh := l.freshKeys(name)
		for c, err := range l.store.All(name) {
			if err != nil {
				yield(Bucket{}, fmt.Errorf("stint: list buckets: %w", err))
				return
			}
			b, live, resident := l.inspect(c.Key, c.TAT)
			if !resident && fresh[c.Key] {
				continue // it was saved since: the loop over fresh lists it
			}
			delete(fresh, c.Key)
			if live && !yield(b, nil) {
				return
			}
		}
		for key := range fresh {
			b, live, resident := l.inspect(key, 0)
			if !resident { // it left memory, so the store may have it
				tat, err := l.store.Load(key)
				if err != nil {
					yield(Bucket{}, fmt.Errorf("stint: list buckets: %w", err))
					return
				}
				b, live, _ = l.inspect(key, tat)
			}
			if live && !yield(b, nil) {
				return
			}
		}
	}
}

// freshKeys returns the buckets in memory whose present state may not be in the
// store.
func (l *Limiter) freshKeys(name Name) map[Key]bool {
	fresh := make(map[Key]bool)
	l.directory.each(func(s *shard) {
		s.Each(func(_ uint32, b table.Slot) table.Outcome {
			if Name(b.Name()) == name && (!b.Has(table.Stored) || s.unsavedLocked(b)) {
				fresh[slotKey(b)] = true
			}
			return table.Done
		})
		for key := range s.gates {
			if key.Name == name {
				fresh[key] = true
			}
		}
	})
	return fresh
}

// Bucket returns the state of one bucket, which may be full. Bucket changes
// nothing and takes no space in memory: a bucket that is not in memory is read
// from the store. Its errors are those of Check.
func (l *Limiter) Bucket(key Key) (Bucket, error) {
	b, err := l.bucket(key)
	return b, l.failed(key, err)
}

func (l *Limiter) bucket(key Key) (Bucket, error) {
	r := request{change: change{key: key}, op: opCheck}
	if err := r.locate(l.directory); err != nil {
		return Bucket{}, err
	}
	s := r.shard
	s.mu.Lock()
	for s.limits != nil && !r.findLocked() {
		r.limits, r.removals = s.limits, s.Removals()
		s.mu.Unlock()
		_, err := r.limits.resolve(key)
		if err != nil {
			return Bucket{}, err
		}
		if r.tat, err = l.loadTAT(key); err != nil {
			return Bucket{}, err
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.limits == nil {
		return Bucket{}, ErrClosed
	}
	b, _ := l.inspectLocked(s, r.hash, key, r.tat)
	return b, nil
}

// inspect returns the state of a bucket with this TAT in the store. A live
// bucket is not full, or is held. A resident one is in memory.
func (l *Limiter) inspect(key Key, stored int64) (b Bucket, live, resident bool) {
	if len(key.ID) > maxIDLen {
		return Bucket{}, false, false // not one of stint's
	}
	s, h := l.directory.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits == nil {
		return Bucket{}, false, true
	}
	_, resident = s.findLocked(key, h)
	b, live = l.inspectLocked(s, h, key, stored)
	return b, live, resident
}

func (l *Limiter) inspectLocked(s *shard, h uint64, key Key, stored int64) (b Bucket, live bool) {
	now := l.clock.Now()
	rule, _ := s.limits.resolve(key)
	r := &s.limits.rules[rule]
	g := s.gates[key]
	tat := stored
	if i, resident := s.findLocked(key, h); resident {
		tat = g.tail(s.At(i).TAT())
	} else if rule > blocked {
		tat = r.rate.Clamp(tat, now)
	}
	b = Bucket{Key: key, Limit: r.limit, ResetAfter: time.Duration(gcra.ResetAfter(tat, now))}
	if rule > blocked {
		b.Remaining = r.rate.Remaining(tat, now)
	}
	if g != nil && g.hold > now {
		b.HeldUntil = time.Unix(0, g.hold)
	}
	return b, tat > now || !b.HeldUntil.IsZero()
}

// Snapshot writes a copy of the store's file, with everything spent so far,
// and returns its length in bytes. It serves backups and inspection while
// decisions go on. If the file was removed, the copy still has all buckets.
// BoltStore.Snapshot has the details; a store without a file returns an error.
func (l *Limiter) Snapshot(w io.Writer) (int64, error) {
	if err := l.Flush(); err != nil && !errors.Is(err, ErrGone) {
		return 0, err
	}
	return l.store.Snapshot(w)
}

// Health returns nil, or everything that is wrong now, and since when. It
// reports failed saves and loads until one succeeds, a wrong clock, and what
// Store.Health says. It reports a save, or upkeep of the store, that takes
// longer than CommitTimeout, until the call ends. Health reads no disk, and
// waits for no call that does. Decisions go on from memory if they can.
func (l *Limiter) Health() error {
	f := l.flusher
	f.statusMu.Lock()
	unsaved := failure{f.status.Err, f.status.Since}
	if unsaved.err == nil {
		unsaved = f.commit
	}
	errs := []error{unsaved.says("nothing saved"), f.saving.overdue, f.upkeep.overdue, l.clock.Health()}
	f.statusMu.Unlock()
	if load := l.loadFailure.Load(); load != nil {
		errs = append(errs, load.says("no bucket loaded"))
	}
	return errors.Join(append(errs, l.store.Health())...)
}

// Stats are counts since the Limiter was opened, and present sizes.
type Stats struct {
	Limits    map[Name]LimitStats // of Names declared now or before; Unknown has errors of undeclared ones
	Resident  int64               // buckets in memory
	Dirty     int64               // buckets in memory, changed since they were saved
	Loads     int64               // of buckets that were not in memory
	Evictions int64               // buckets removed from memory to make space
	Flush     FlushStats
	Commit    CommitStats
	Saving    time.Time // begin of the save under way, by the Limiter's clock; zero if there is none
	File      FileStats // zero if the store has no file
	Forward   int64     // steps of the wall clock ahead, which the Limiter follows
	Backward  int64     // steps back, which it does not follow
}

// LimitStats are counts of the calls for one limit.
type LimitStats struct {
	Allowed, Denied int64 // decisions to spend or to reserve
	Borrowed        int64 // allowed with a Parent, and not paid by the floor
	Errors          int64 // calls that returned an error
}

// failed counts an error against the key's limit, and returns the error. A nil
// err does nothing.
func (l *Limiter) failed(key Key, err error) error {
	if err == nil {
		return nil
	}
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	if l.limits.Load().label(key.Name) == "" {
		key.Name = Unknown // names that are not declared must not fill the memory
	}
	l.errs[key.Name]++
	return err
}

// FlushStats are counts and times of the flushes of one Limiter. A large flush
// is several saves, and each of them counts.
type FlushStats struct {
	Flushes  int64         // that wrote something
	Buckets  int64         // written or deleted by them
	Failures int64         // flushes that failed; the next one writes what they did not
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error     // why the last one failed; nil if it did not
	Since    time.Time // of the first failure in a row, by the Limiter's clock
}

// record notes how one save of a flush ended.
func (f *flusher) record(buckets int, took time.Duration, err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	st := &f.status
	st.Last, st.Longest = took, max(st.Longest, took)
	if err == nil {
		st.Flushes++
		st.Buckets += int64(buckets)
		return
	}
	st.Failures++
	if st.Err == nil {
		st.Since = time.Unix(0, f.clock.Now())
		f.emit(Event{Kind: FlushFailed, Err: err})
	}
	st.Err = err
}

// committed notes how a commit ended, for Health.
func (f *flusher) committed(err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if err != nil && f.commit.err == nil {
		f.commit.since = time.Unix(0, f.clock.Now())
	}
	f.commit.err = err
}

// recovered notes that nothing is left unsaved.
func (f *flusher) recovered() {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	f.commit = failure{}
	if f.status.Err != nil {
		f.status.Err, f.status.Since = nil, time.Time{}
		f.emit(Event{Kind: FlushRecovered})
	}
}

// stats returns the counts, and the begin of the save under way, or zero.
func (f *flusher) stats() (FlushStats, time.Time) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	return f.status, f.saving.since
}

// watch times the calls of one method of the store, one at a time. A call that
// takes longer than CommitTimeout is overdue. The flusher's statusMu
// guards it, except for the timer.
type watch struct {
	what    string
	timer   *time.Timer
	begun   time.Time // of the call under way, by the machine's clock
	since   time.Time // the same by the Limiter's clock; zero if there is none
	overdue error     // nil unless the call is overdue
}

// begin notes that a call begins. If it does not end in time, the timer calls
// late.
func (f *flusher) begin(w *watch) {
	now := time.Unix(0, f.clock.Now())
	f.statusMu.Lock()
	w.begun, w.since = time.Now(), now
	f.statusMu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(f.timeout, func() { f.late(w) })
	} else {
		w.timer.Reset(f.timeout)
	}
}

// late notes that a call is overdue, unless it ended as the timer fired.
func (f *flusher) late(w *watch) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if !w.since.IsZero() && time.Since(w.begun) >= f.timeout {
		err := fmt.Errorf("no answer from the store for %v", f.timeout)
		w.overdue = failure{err, w.since}.says(w.what + " under way")
		f.emit(Event{Kind: SaveOverdue, Err: w.overdue})
	}
}

// end notes how a call ended.
func (f *flusher) end(w *watch, err error) {
	w.timer.Stop()
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if w.overdue != nil {
		f.emit(Event{Kind: SaveEnded, Err: err})
	}
	w.since, w.overdue = time.Time{}, nil
	if gone := errors.Is(err, ErrGone); gone && !f.gone {
		f.gone = true
		f.emit(Event{Kind: FileGone, Err: err})
	} else if f.gone && err == nil && w == &f.saving {
		f.gone = false
		f.emit(Event{Kind: FileBack})
	}
}

// Stats returns the counts. It looks at no bucket, so it takes as long with
// ten million in memory as with none.
func (l *Limiter) Stats() Stats {
	st := Stats{
		Limits:    make(map[Name]LimitStats),
		Resident:  l.directory.resident.Load(),
		Loads:     l.loads.Load(),
		Evictions: l.evictions.Load(),
		Commit:    l.committer.stats(),
		File:      l.store.Stats(),
	}
	st.Flush, st.Saving = l.flusher.stats()
	st.Forward, st.Backward = l.clock.Steps()
	add := func(name Name, allowed, denied, errs int64) {
		ls := st.Limits[name]
		ls.Allowed += allowed
		ls.Denied += denied
		ls.Errors += errs
		st.Limits[name] = ls
	}
	for name := range l.limits.Load().names {
		add(name, 0, 0, 0)
	}
	l.directory.mu.Lock() // new limits retire the counts, shard after shard
	defer l.directory.mu.Unlock()
	l.directory.each(func(s *shard) {
		st.Dirty += int64(s.Dirty())
		if s.limits == nil {
			return
		}
		for i, name := range s.limits.order {
			c := s.countOf(uint32(i))
			add(name, int64(c.allowed), int64(c.denied), 0)
		}
	})
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	for name, c := range l.past {
		add(name, int64(c.allowed), int64(c.denied), 0)
	}
	for name, n := range l.errs {
		add(name, 0, 0, n)
	}
	for name, ls := range st.Limits {
		if m := l.limits.Load().member(name); m.role == classRole {
			ls.Borrowed = max(0, ls.Allowed-st.Limits[m.floor].Allowed)
			st.Limits[name] = ls
		}
	}
	return st
}
