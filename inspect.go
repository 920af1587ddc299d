package stint

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
)

// Bucket is the state of one bucket.
type Bucket struct {
	Limit      Limit // zero where none is configured
	Remaining  int64 // 0 then
	ResetAfter time.Duration
	HeldUntil  time.Time // zero where there is no hold
}

// Buckets yields the buckets of a limit that are not full, or are held: those that are in memory only, and those that the
// store has, in no order that a caller may rely on. It looks at each as it is when its turn comes; one that is made
// meanwhile may be missing, and one that comes to memory and leaves it again be as it was. Where the store fails it ends, and Health tells.
func (l *Limiter) Buckets(name Name) iter.Seq2[Key, Bucket] {
	return func(yield func(Key, Bucket) bool) {
		if name == Unknown {
			return // the store has the holds there
		}
		fresh := make(map[Key]bool) // in memory, and perhaps not in the store
		l.table.each(func(s *shard) {
			saving := l.table.saving.Load()
			for i := range s.capacity.Load() {
				b := s.at(i)
				beingSaved := saving != 0 && b.meta()&maskSave == saving
				if b.name() == name && (!b.has(flagStored) || b.has(flagDirty) || beingSaved) {
					fresh[b.key()] = true
				}
			}
			for key := range s.aside {
				if key.Name == name {
					fresh[key] = true
				}
			}
		})
		for c, err := range l.store.All(name) {
			if err != nil {
				l.note(&l.notListed, err)
				return
			}
			b, live, resident := l.inspect(c.Key, c.TAT)
			if !resident && fresh[c.Key] {
				continue // what the store has by now is newer
			}
			delete(fresh, c.Key)
			if live && !yield(c.Key, b) {
				l.note(&l.notListed, nil)
				return
			}
		}
		l.note(&l.notListed, nil)
		for key := range fresh {
			b, live, resident := l.inspect(key, 0)
			if !resident { // but the store may have it by now
				tat, err := l.store.Load(key)
				if err != nil {
					l.note(&l.notListed, err)
					return
				}
				b, live, _ = l.inspect(key, tat)
			}
			if live && !yield(key, b) {
				return
			}
		}
	}
}

// Bucket returns the state of one bucket, which may be full. It changes nothing, and takes no room in memory: a bucket that is not
// there is read from the store. Its errors are those of Check.
func (l *Limiter) Bucket(key Key) (Bucket, error) {
	b, err := l.bucket(key)
	if err != nil {
		return Bucket{}, l.failed(key, err)
	}
	return b, nil
}

func (l *Limiter) bucket(key Key) (Bucket, error) {
	p := place{key: key, op: opCheck}
	if err := p.locate(l.table); err != nil {
		return Bucket{}, err
	}
	s := p.shard
	s.mu.Lock()
	for s.limits != nil && !p.findLocked() {
		p.limits, p.removals = s.limits, s.removals
		s.mu.Unlock()
		_, err := p.limits.resolve(key)
		if err != nil {
			return Bucket{}, err
		}
		if p.tat, err = l.stored(key); err != nil {
			return Bucket{}, err
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.limits == nil {
		return Bucket{}, ErrClosed
	}
	b, _ := l.inspectLocked(s, p.hash, key, p.tat)
	return b, nil
}

// inspect returns the state of a bucket, which the store has a TAT for, whether there is anything to tell of it, and whether it is in
// memory.
func (l *Limiter) inspect(key Key, stored int64) (b Bucket, live, resident bool) {
	if len(key.ID) > maxIDLen {
		return Bucket{}, false, false // nothing of ours
	}
	s, h := l.table.shard(key)
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
	now := l.clock.now()
	rule, _ := s.limits.resolve(key)
	r := &s.limits.rules[rule]
	tat, a := stored, s.aside[key]
	i, resident := s.findLocked(key, h)
	if resident {
		tat = s.at(i).tat()
	}
	if rule != 0 && (!resident || a != nil && a.lineOver(now)) {
		tat = r.rate.clamp(tat, now)
	}
	b = Bucket{Limit: r.limit, ResetAfter: time.Duration(resetAfter(tat, now))}
	if rule != 0 {
		b.Remaining = r.rate.remaining(tat, now)
	}
	if a != nil && a.hold > now {
		b.HeldUntil = time.Unix(0, a.hold)
	}
	return b, tat > now || !b.HeldUntil.IsZero()
}

// Snapshot writes a copy of the store's file, in which is all that was spent so far, and returns how many bytes that were:
// for a backup, or to be looked at, while decisions go on. See BoltStore.Snapshot; a store that cannot is an error.
func (l *Limiter) Snapshot(w io.Writer) (int64, error) {
	if err := l.Flush(); err != nil {
		return 0, err
	}
	return l.store.Snapshot(w)
}

// Health returns nil, or all that is wrong now, and since when: that saving fails, or loading buckets, or Buckets, each until it
// succeeds again, and of a BoltStore what the upkeep of its file fails at, or that it is broken, which it stays. It touches no
// disk, and waits for nobody who does. Decisions go on meanwhile, from memory, where they can.
func (l *Limiter) Health() error {
	flushes := l.flusher.stats()
	unsaved := failure{flushes.Err, flushes.Since}
	if unsaved.err == nil {
		l.flusher.statusMu.Lock()
		unsaved = l.flusher.commit
		l.flusher.statusMu.Unlock()
	}
	errs := []error{unsaved.says("nothing saved")}
	if f := l.notLoaded.Load(); f != nil {
		errs = append(errs, f.says("no bucket loaded"))
	}
	if f := l.notListed.Load(); f != nil {
		errs = append(errs, f.says("Buckets fails"))
	}
	return errors.Join(append(errs, l.store.Health())...)
}

// Stats are counts since the Limiter was opened, and sizes as they are now.
type Stats struct {
	Limits    map[Name]LimitStats // of the Names declared; errors on others are counted under Unknown
	Resident  int64               // buckets in memory
	Dirty     int64               // of those, the ones that the store does not have as they are
	Loads     int64               // questions to the store, for buckets that were not in memory
	Evictions int64               // buckets removed from memory to make room
	Flush     FlushStats
	Commit    CommitStats
	File      FileStats // zero where the store is not a BoltStore
	Forward   int64     // steps of the wall clock ahead, which the Limiter follows
	Backward  int64     // and back, which it does not
}

// LimitStats are what the calls for one limit came to.
type LimitStats struct {
	Allowed, Denied int64 // decisions to spend or to reserve
	Errors          int64 // calls that returned an error
}

// Stats returns the counts. It looks at no bucket: with ten million in memory it takes no longer than with none.
func (l *Limiter) Stats() Stats {
	st := Stats{
		Limits:    make(map[Name]LimitStats),
		Resident:  l.table.resident.Load(),
		Loads:     l.loads.Load(),
		Evictions: l.evictions.Load(),
		Flush:     l.flusher.stats(),
	}
	st.Commit = l.committer.status()
	st.File = l.store.Stats()
	st.Forward, st.Backward = l.clock.steps()
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
	l.table.mu.Lock() // new limits retire the counts, shard after shard
	defer l.table.mu.Unlock()
	l.table.each(func(s *shard) {
		st.Dirty += int64(s.dirty)
		if s.limits == nil {
			return
		}
		for i, name := range s.limits.order {
			c := s.count(uint32(i))
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
	return st
}

// failure is why the last of many attempts at something failed, and since when
// they do; zero: it did not.
type failure struct {
	err   error
	since time.Time
}

// says returns the failure as a sentence, or nil.
func (f failure) says(what string) error {
	if f.err == nil {
		return nil
	}
	return fmt.Errorf("stint: %s since %s: %w", what, f.since.UTC().Format(time.RFC3339), f.err)
}
